"""Attention heads on keys, queries and values that were looked up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from iceform.arithmetic.units import OUTWARD_MOST, UNIT
from iceform.certificates.witness import ReplayedEntry
from iceform.errors import BoundError
from iceform.networks.pieces.base import Bounds, Piece, PieceSettings
from iceform.run import primitives
from iceform.tables import Interpolant

FORBIDS = 1 / math.sqrt(UNIT)  # a logit that is replaced by minus this, or less, hides its token


class AttentionPiece(Piece):
    """Softmax attention on keys, queries and values that were looked up.

    The softmax is the target head's own, and it is the frozen attending layer that computes it.
    """

    kind = "heads"
    made_with = ("head_dim", "value_dim", "scale", "causal")
    fixed: ClassVar[dict[str, Any]] = {"norms": dict[str, float], "length": int, "bias": float}
    how = "attended, Q, K, V looked up"
    ranged = 3

    def __init__(
        self,
        name: str,
        settings: PieceSettings,
        head_dim: int,
        value_dim: int,
        *,
        scale: float,
        causal: bool,
    ) -> None:
        super().__init__(name, settings)
        self.head_dim, self.value_dim = head_dim, value_dim
        self.scale, self.causal = scale, causal
        self.norms = dict.fromkeys("qkv", 0.0)
        self.bias = 0.0  # largest finite entry of a mask
        self.length = 1
        self.hook_pattern = nn.Identity()

    def exact(self, *inputs: Tensor) -> Tensor:
        q, k, v, mask = self._asked(inputs)
        logits = q @ k.mT
        if len(inputs) > 3 or self.causal:
            logits = logits + mask
        pattern: Tensor = self.hook_pattern(torch.softmax(logits, -1))
        return pattern @ v

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        """As :meth:`exact`, at once unless somebody looks at the pattern."""
        if self.hook_pattern._forward_hooks or type(self.hook_pattern) is not nn.Identity:
            return self.exact(q, k, v, *mask)
        added = mask[0] if mask else None
        return primitives.heads(q, k, v, added, self.scale, causal=self.causal)

    def _asked(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries with the scale, keys, values, and all that is added to the logits."""
        q, k, v, *given = inputs
        mask = given[0] if given else q.new_zeros(q.shape[-2], k.shape[-2])
        if self.causal:
            never = q.new_full((q.shape[-2], k.shape[-2]), -math.inf)
            mask = mask + never.triu(1)
        return q * self.scale, k, v, mask

    def _seen(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """The largest 2-norm of scaled queries, keys and values, and |entry| of a mask."""
        q, k, v = (primitives.longest(t) for t in inputs[:3])
        return torch.cat([q * abs(self.scale), k, v, self._added(inputs)])

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        *longest, added = self._seen(inputs).tolist()
        self._check_mask(added)
        self._grow(longest, 1.0)
        self.bias = max(self.bias, added)
        self.length = max(self.length, output.shape[-2], inputs[1].shape[-2])

    @staticmethod
    def _added(inputs: tuple[Tensor, ...]) -> Tensor:
        """The largest |entry| of a mask that does not forbid; infinity where a row is all -inf."""
        if len(inputs) < 4:
            return inputs[0].new_zeros(1)
        mask = inputs[3].detach()
        forbids = mask <= torch.finfo(mask.dtype).min / 2
        largest = primitives.largest(mask.masked_fill(forbids, 0.0)).to(inputs[0].dtype)
        return largest.masked_fill((mask == -math.inf).all(-1).any(), math.inf)

    def _check_mask(self, added: float) -> None:
        """Refuse masks that no softmax has a value for."""
        if not math.isfinite(added):
            raise BoundError(
                f"{self.name}: a row of its mask is -inf for every token, or the mask holds NaN or "
                "+inf: the softmax of that row is no number; let every token attend to one"
            )

    def _grow(self, seen: list[float], factor: float) -> None:
        pairs = zip("qkv", seen, strict=True)
        self.norms = {key: max(self.norms[key], factor * n) for key, n in pairs}

    def freeze_range(self) -> None:
        self.norms = {key: self.settings.headroom * n for key, n in self.norms.items()}

    def set_range_from(self, *given: Bounds) -> None:
        self._widen(given)
        self.length = self.settings.layers.sizes.tokens

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        """Outputs are means of values, with weights that sum to 1 but for rounding."""
        if widen:
            self._widen(given)
        slack = 1 + self._rounding()[1] + self.settings.layers.leak
        v = self.norms["v"] * slack
        return Bounds(min(v, given[2].entry * slack), v, width=self.value_dim)

    def _widen(self, given: tuple[Bounds, ...]) -> None:
        """Widen the range to all that inputs within these bounds can be."""
        for key, longest in self._scaled(b.along for b in given).items():
            self.norms[key] = max(self.norms[key], longest if math.isfinite(longest) else 0.0)
        mask = given[3].entry if len(given) > 3 else 0.0
        self.bias = max(self.bias, mask if math.isfinite(mask) else 0.0)

    def _scaled(self, along: Iterable[Callable[[int], float]]) -> dict[str, float]:
        """2-norms of queries, keys and values, those of queries with the scale."""
        sizes = (self.head_dim, self.head_dim, self.value_dim)
        factors = (abs(self.scale), 1.0, 1.0)
        given = zip("qkv", along, sizes, factors, strict=False)
        return {key: of(size) * factor * OUTWARD_MOST for key, of, size, factor in given}

    def covers(self, *given: Bounds) -> bool:
        longest = self._scaled(b.along for b in given)
        return all(longest[key] <= self.norms[key] for key in "qkv")

    def check_range(self, numbers: list[float], *inputs: Tensor) -> bool:
        *seen, added = numbers
        self._check_mask(added)
        if not added <= self.bias:
            if not self._widens:
                self._out_of_range("the largest entry of a mask", added, self.bias)
            self.bias = added
        # Lengths that are covered are not among the numbers.
        for key, word, longest in zip("qkv", ("query", "key", "value"), seen, strict=False):
            if longest <= self.norms[key]:
                continue
            if not (self._widens and math.isfinite(longest)):
                self._out_of_range(f"the largest 2-norm of a {word}", longest, self.norms[key])
            self.widened += 1
            self._grow(seen, self.settings.headroom)
            return True
        return False

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        longest = self.settings.layers.sizes.tokens
        if inputs[1].shape[-2] > longest or inputs[0].shape[-2] > longest:
            raise BoundError(
                f"{self.name}: a sequence of {max(inputs[0].shape[-2], inputs[1].shape[-2])} "
                f"tokens, the frozen layers are sized for {longest}; pass tokens="
            )
        seen: Tensor | None = None
        if not covered:
            seen = self._seen(inputs)
        elif len(inputs) > 3:
            seen = self._added(inputs)
        if self.settings.attends:
            return self._attended(*inputs), seen
        q, k, v, mask = self._asked(inputs)
        out = self.settings.layers.attend(k, q, v, mask, self._margin)
        return out, seen

    @property
    def _margin(self) -> float:
        return self.settings.layers.margin(self.logits + self.bias)

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        q, k, v, added = self._asked(tuple(t.detach() for t in inputs))
        *lead, token, feature = (draw.randrange(n) for n in output.shape)
        here = tuple(lead)

        def one(t: Tensor) -> Tensor:
            return t.expand(*output.shape[:-2], *t.shape[-2:])[here]

        query, allowed = one(q)[token : token + 1], one(added)
        allowed = allowed.expand(q.shape[-2], -1)[token : token + 1]
        got = output[(*here, token, feature)]
        frozen = self.settings.layers
        yield frozen.ask_attend(one(k), query, one(v), allowed, self._margin, feature, got)

    @property
    def logits(self) -> float:
        """Bound of |q . k|."""
        return self.norms["q"] * self.norms["k"]

    @property
    def range(self) -> float:
        return self.logits

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        return ()

    @property
    def tokens(self) -> int:
        return self.length

    def _rounding(self) -> tuple[float, float]:
        """Relative rounding of a logit, as a share of |q||k|, and of the weighted sum."""
        unit = self.settings.unit
        return (self.head_dim + 6) * unit, (2 * self.settings.layers.sizes.tokens + 16) * unit

    def carried(self, errors: dict[str, float]) -> float:
        r"""Error of a head's output: :math:`e_v + 2 \tanh(\Delta/2) \max\|v\|` and rounding.

        A logit moves by at most Delta = |q| e_k + |k| e_q + e_q e_k and its own rounding; all are
        2-norms, those of queries with the scale.
        """
        q, k, v = (self.norms[key] for key in "qkv")
        dot, sums = self._rounding()
        moved = q * errors["k"] + k * errors["q"] + errors["q"] * errors["k"] + dot * q * k
        moved += 2 * self.settings.unit * self.bias
        largest = v + errors["v"]
        leak = self.settings.layers.leak
        if self.bias >= FORBIDS:  # tokens whose logits were replaced: exp(logit - FORBIDS) at most
            leak += self.settings.layers.sizes.tokens * math.exp(min(0.0, 2 * q * k - FORBIDS))
        return errors["v"] + 2 * math.tanh(moved / 2) * largest + (sums + 2 * leak) * largest

    @property
    def certified(self) -> float:
        return self.carried(dict.fromkeys("qkv", 0.0))

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        if len(given) > 3 and given[3].error:
            return math.inf, math.inf
        error = self.carried(self._scaled(b.apart for b in given))
        return error, error
