"""Small algorithms in the language of heads, on the tokens of a causal network.

A prompt is a null token, tokens that are given, and last the one that answers, ``state``. A sketch
says what each step does, and every step becomes heads of a design: an average, a choice by a score,
a match of keys, a gate at a threshold. Tokens that a step is not for look at the null token, whose
values are 0. Positions have codes of +-1, by which a token finds itself or the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.heads import Design, Features, Head, Move, Row
from iceform.heads.head import Pair, Place
from iceform.targets.rounding import EPSILON

BITS = 3
POSITIONS = 2**BITS
GROUPS = ("null", "given", "data", "state")

Reads = Mapping[str, float]


@dataclass(frozen=True)
class Sharpness:
    """How firmly heads look where they should, in logits.

    Attributes
    ----------
    score
        Per unit of a score.
    code
        Per bit of a position.
    mask
        By which a token is hidden.
    route
        Of the null token, for those that do not ask.
    """

    score: float
    code: float
    mask: float
    route: float


HARD = Sharpness(
    2.0**10, 2.0**12, 2.0**14, 2.0**16
)  # 1/64 more of a score is e^16 times the weight
SOFT = Sharpness(16.0, 24.0, 48.0, 64.0)  # of the size that trained networks have


@dataclass
class Sketch:
    """Blocks of features beside the flags and codes, and heads layer by layer.

    Examples
    --------
    The largest y, by one head:

    >>> from iceform.bench.sketch import Sketch
    >>> s = Sketch({"y": 1, "best": 1})
    >>> s.layer(s.choose("state", "data", {"y": 1.0}, {"y": 1.0}, "best"))
    >>> s.design().ground_truth()[0][0]["role"]
    'choose, into best'
    """

    blocks: Mapping[str, int]
    sharp: Sharpness = HARD
    layers: list[tuple[Head, ...]] = field(default_factory=list)

    @property
    def features(self) -> Features:
        """Flags of groups, codes, and the blocks."""
        flags = dict.fromkeys(GROUPS, 1)
        return Features.of(**flags, code=BITS, before=BITS, **self.blocks)

    def design(self) -> Design:
        """As stock blocks hold it: mirrored, with a norm that only centres."""
        return Design(self.features, tuple(self.layers), norm=EPSILON)

    def layer(self, *heads: Head) -> None:
        """Heads that work side by side."""
        self.layers.append(heads)

    # ----------------------------------------------------------------------------- the heads

    def average(self, at: str, over: str, values: Reads, into: str) -> Head:
        """The mean over the tokens of a group that come before, or are, the one that asks."""
        return self._head(
            f"average, into {into}", at, [self._only(over)], self._moves(values, into)
        )

    def choose(self, at: str, over: str, score: Reads, values: Reads, into: str) -> Head:
        """The values of the token with the largest score."""
        wins = Row(constant=self.sharp.score), Row({(name, 0): c for name, c in score.items()})
        logit = [wins, self._only(over)]
        return self._head(f"choose, into {into}", at, logit, self._moves(values, into))

    def match(
        self, at: str, over: str, key: tuple[str, str], values: Reads, into: str,
        sharp: float | None = None, less: str = "",
    ) -> Head:  # fmt: skip
        """The values of the token whose block ``key[1]`` is most like the asking one's ``key[0]``.

        ``less`` is a feature of the key that counts against it.
        """
        asks, seen = key
        sharp = sharp or self.sharp.score
        parts = range(self.blocks.get(asks, BITS))
        logit = [(Row.of(asks, j, sharp), Row.of(seen, j)) for j in parts]
        if less:
            logit.append((Row(constant=-sharp), Row.of(less)))
        logit.append(self._only(over))
        return self._head(f"match {asks}, into {into}", at, logit, self._moves(values, into))

    def gate(
        self, at: str, score: Row | Sequence[Pair], values: Row | Reads, into: str,
        factor: float = 1.0,
    ) -> Head:  # fmt: skip
        """The token's own values where the score is positive, nothing where it is negative."""
        others = {name: 1.0 for name in GROUPS if name != "null"}
        scores = [(score, Row.flags(**others))] if isinstance(score, Row) else score
        logit = [(row.times(self.sharp.score), key) for row, key in scores]
        moves = self._moves(values, into, factor)
        return self._head(f"gate, into {into}", at, [*logit, *self._own()], moves)

    def own(self, at: str, values: Reads, into: str) -> Head:
        """The token's own values, added."""
        never = Row(constant=-self.sharp.mask), Row.flags(null=1.0)
        return self._head(
            f"own, into {into}", at, [*self._own(), never], self._moves(values, into)
        )  # fmt: skip

    def _head(self, role: str, at: str, logit: Sequence[Pair], moves: tuple[Move, ...]) -> Head:
        away = {name: self.sharp.route for name in GROUPS if name != at}
        return Head(role, (*logit, (Row.flags(**away), Row.flags(null=1.0))), moves)

    def _moves(self, values: Row | Reads, into: str, factor: float = 1.0) -> tuple[Move, ...]:
        if isinstance(values, Row):
            return (Move(values, {(into, 0): factor}),)
        size = self.blocks[into]
        return tuple(
            Move(Row({(name, j): c for name, c in values.items()}), {(into, j): factor})
            for j in range(size)
        )

    def _only(self, group: str) -> Pair:
        """All tokens that are not of the group are hidden."""
        hidden = {name: 1.0 for name in GROUPS if name != group}
        return Row(constant=-self.sharp.mask), Row.flags(**hidden)

    def _own(self) -> list[Pair]:
        """Tokens are hidden from all but themselves; the null token has the logit 0."""
        alike = [(Row.of("code", b, self.sharp.code), Row.of("code", b)) for b in range(BITS)]
        others = {name: 1.0 for name in GROUPS if name != "null"}
        return [*alike, (Row(constant=-BITS * self.sharp.code), Row.flags(**others))]

    # ------------------------------------------------------------------------------ the words

    def word(self, group: str, **blocks: Tensor | Sequence[float] | float) -> Float[Tensor, "f"]:
        """The features of a token."""
        at, out = self.features, torch.zeros(self.features.total, dtype=torch.float64)
        out[at[group]] = 1.0
        for name, value in blocks.items():
            out[at[name]] = torch.as_tensor(value, dtype=torch.float64)
        return out

    def positions(self) -> Float[Tensor, "p f"]:
        """Codes of the position and of the one before; the null token's are 0."""
        at, out = self.features, torch.zeros(POSITIONS, self.features.total, dtype=torch.float64)
        codes = 2.0 * ((torch.arange(POSITIONS)[:, None] >> torch.arange(BITS)) & 1) - 1
        out[1:, at["code"]] = codes[1:].double()
        out[2:, at["before"]] = codes[1:-1].double()
        return out


def places(weights: Mapping[str, Sequence[float]]) -> dict[Place, float]:
    """A combination of features, by block."""
    return {(name, j): c for name, each in weights.items() for j, c in enumerate(each)}


def is_plain_gate(head: Head) -> bool:
    """Whether a head is a gate of :meth:`Sketch.gate` whose score is one row."""
    return head.role.startswith("gate") and len(head.logit) == BITS + 3
