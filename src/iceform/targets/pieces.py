"""Pieces of the heads of targets: who looks where, what is carried, and pairs of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iceform.heads import Features, Head, Move, Row
from iceform.heads.head import Pair
from iceform.targets.linear_head_pairs import LinearHeadPairs
from iceform.targets.rounding import OFF

MASK = 4 * OFF  # hides tokens: it beats every logit of a table by far
ROUTE = 4 * MASK  # of the null token for those that do not ask: beats mask and logits
ONE = Row(constant=1.0)


def masked(kinds: Iterable[str], mask: float = MASK) -> Pair:
    """Hides tokens that have one of these flags."""
    return Row(constant=-mask), Row.flags(**dict.fromkeys(kinds, 1.0))


def routed(kinds: Iterable[str], weight: float = ROUTE, to: str = "null") -> Pair:
    """Tokens of these kinds do not ask: they see the null token alone, whose values are 0."""
    return Row.flags(**dict.fromkeys(kinds, weight)), Row.flags(**{to: 1.0})


def added(source: str, size: int, into: Mapping[str, float]) -> tuple[Move, ...]:
    """A block of numbers, added to other blocks with a coefficient each."""
    return tuple(
        Move(Row.of(source, j), {(name, j): c for name, c in into.items()}) for j in range(size)
    )


def erased(names: Iterable[str], size: int = 1) -> tuple[Move, ...]:
    """Moves that set blocks to 0: each number minus itself, which is exact."""
    return tuple(move for name in names for move in added(name, size, {name: -1.0}))


def tokens_of(features: Features, count: int, **blocks: Tensor | float) -> Float[Tensor, "t f"]:
    """So many tokens that hold these blocks, in float64, and 0 in all others.

    A number is that of every token, a vector of a block of one number has one for each.
    """
    out = torch.zeros(count, features.total, dtype=torch.float64)
    for name, value in blocks.items():
        held, block = torch.as_tensor(value, dtype=torch.float64), out[:, features[name]]
        block[:] = held[:, None] if held.ndim == block.shape[1] == 1 else held
    return out


def apart_from(group: Int[Tensor, "n"], groups: int) -> Int[Tensor, "n groups"]:
    """For every token the flags of the groups that it is not of."""
    return 1 - torch.nn.functional.one_hot(group, groups)


def pair_heads(
    pairs: LinearHeadPairs, role: str, dim: int, reads: Mapping[str, str], also: Iterable[Pair],
    moves: Callable[[float], tuple[Move, ...]],
) -> Iterator[Head]:  # fmt: skip
    """Pairs of heads with the logits t (asks . seen - label), beside null tokens of weight 2^K.

    Parameters
    ----------
    pairs
        The combination.
    role
        What they are for, with {t:+g} where t is said.
    dim
        Of ``asks`` and ``seen``.
    reads
        The features that are "asks", "seen", "label" and the "null" tokens' logit.
    also
        Masks, and who does not ask.
    moves
        What is carried, by its coefficient a_j 2^K/2, which has the sign of t.
    """
    for j, sign in pairs.ticks:
        t = sign * j * pairs.delta
        logit = (
            *((Row.of(reads["asks"], k, t), Row.of(reads["seen"], k)) for k in range(dim)),
            (Row(constant=-t), Row.of(reads["label"])),
            (ONE, Row.of(reads["null"])),
            *also,
        )
        a = sign * pairs.weights[j - 1] * 2.0 ** (pairs.leak_bits - 1)
        yield Head(role.format(t=t), logit, moves(a))
