"""Attention heads on keys, queries and values that were looked up."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor, nn

from iceform.certificates.entries import Asked
from iceform.errors import BoundError
from iceform.networks.pieces.base import Piece, Settings, Span
from iceform.networks.pieces.linear import LinearMap

__all__ = ["Heads"]


class Heads(Piece):
    """Softmax attention on keys, queries and values that were looked up.

    The softmax is the target head's own, and it is the frozen attending layer that computes it.
    """

    kind = "heads"
    how = "attended, Q, K, V looked up"

    def __init__(self, name: str, settings: Settings, heads: int, head_dim: int, value_dim: int):
        super().__init__(name, settings)
        self.heads, self.head_dim, self.value_dim = heads, head_dim, value_dim
        self.norms = {key: [0.0] * heads for key in "qkv"}
        self.bias = 0.0  # largest finite entry of a mask
        self.length = 1
        self.hook_pattern = nn.Identity()

    def exact(self, *inputs: Tensor) -> Tensor:
        q, k, v, *mask = inputs
        pattern: Tensor = self.hook_pattern(self.weights(q, k, mask[0] if mask else None))
        return pattern @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of every query, for callers who ask for it."""
        return torch.softmax(q @ k.mT + (0.0 if mask is None else mask), -1)

    def _seen(self, inputs: tuple[Tensor, ...]) -> dict[str, list[float]]:
        """The largest 2-norm of each head's keys, queries and values; (*b, heads, n, d)."""
        return {
            key: t.detach().double().norm(dim=-1).movedim(-2, 0).flatten(1).amax(1).tolist()
            for key, t in zip("qkv", inputs[:3], strict=True)
        }

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._grow(self._seen(inputs), 1.0)
        self.bias = max(self.bias, self._added(inputs))
        self.length = max(self.length, output.shape[-2], inputs[1].shape[-2])

    @staticmethod
    def _added(inputs: tuple[Tensor, ...]) -> float:
        """The largest |entry| of a mask that does not forbid."""
        if len(inputs) < 4:
            return 0.0
        mask = inputs[3].detach()
        allowed = mask > torch.finfo(mask.dtype).min / 2
        return float(mask.masked_fill(~allowed, 0.0).abs().max())

    def _grow(self, seen: dict[str, list[float]], factor: float) -> None:
        self.norms = {
            key: [max(a, factor * b) for a, b in zip(self.norms[key], seen[key], strict=True)]
            for key in "qkv"
        }

    def settle(self) -> None:
        headroom = self.settings.headroom
        self.norms = {key: [headroom * n for n in norms] for key, norms in self.norms.items()}

    def settle_from(self, maps: dict[str, LinearMap], length: int) -> None:
        """Ranges from those of the maps that make keys, queries and values."""
        self.norms = {
            key: torch.exp2(m.exponents.double())
            .unflatten(0, (self.heads, -1))
            .norm(dim=-1)
            .tolist()
            for key, m in maps.items()
        }
        self.length = length

    def check(self, *inputs: Tensor) -> None:
        longest = self.settings.layers.sizes.tokens
        if inputs[1].shape[-2] > longest or inputs[0].shape[-2] > longest:
            raise BoundError(
                f"{self.name}: a sequence of {max(inputs[0].shape[-2], inputs[1].shape[-2])} "
                f"tokens, the frozen layers are sized for {longest}; pass tokens="
            )
        added = self._added(inputs)
        if not added <= self.bias:
            if not self._widens:
                self._out_of_range("the largest entry of a mask", added, self.bias)
            self.bias = added
        seen = self._seen(inputs)
        for key, word in (("q", "query"), ("k", "key"), ("v", "value")):
            for head, (norm, limit) in enumerate(zip(seen[key], self.norms[key], strict=True)):
                if norm <= limit:
                    continue
                if not (self._widens and math.isfinite(norm)):
                    self._out_of_range(
                        f"the largest 2-norm of a {word} of head {head}", norm, limit
                    )
                self.widened += 1
                return self._grow(seen, self.settings.headroom)
        return None

    def emulate(self, *inputs: Tensor) -> Tensor:
        if not self.settings.literal and self.settings.layers.maps.attends:
            return self.exact(*inputs)
        q, k, v, *mask = inputs
        allowed = mask[0] if mask else q.new_zeros(q.shape[-2], k.shape[-2])
        return self.settings.layers.attend(k, q, v, allowed, self._margin, self.settings.backend)

    @property
    def _margin(self) -> float:
        return self.settings.layers.margin(self.logits + self.bias)

    def asked(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Asked | None:
        q, k, v, *mask = (t.detach() for t in inputs)
        *lead, token, feature = (draw.randrange(n) for n in output.shape)
        here = tuple(lead)

        def one(t: Tensor) -> Tensor:
            return t.expand(*output.shape[:-2], *t.shape[-2:])[here]

        added = mask[0] if mask else q.new_zeros(q.shape[-2], k.shape[-2])
        query, allowed = one(q)[token : token + 1], one(added)
        allowed = allowed.expand(q.shape[-2], -1)[token : token + 1]
        got = output[(*here, token, feature)]
        frozen = self.settings.layers
        return frozen.ask_attend(one(k), query, one(v), allowed, self._margin, feature, got)

    @property
    def logits(self) -> float:
        """Bound of |q . k|."""
        return max(q * k for q, k in zip(self.norms["q"], self.norms["k"], strict=True))

    @property
    def range(self) -> float:
        return self.logits

    @property
    def tokens(self) -> int:
        return self.length

    def _rounding(self) -> tuple[float, float]:
        """Of a logit, relative to |q||k|, and of the weighted sum."""
        unit = self.settings.unit
        return (self.head_dim + 4) * unit, (2 * self.settings.layers.sizes.tokens + 16) * unit

    def carried(self, errors: dict[str, Tensor]) -> Tensor:
        r"""Error of each head's output: :math:`e_v + 2 \tanh(\Delta/2) \max\|v\|` and rounding.

        A logit moves by at most Delta = |q| e_k + |k| e_q + e_q e_k and its own rounding.
        """
        q, k, v = (torch.tensor(self.norms[key], dtype=torch.float64) for key in "qkv")
        dot, sums = self._rounding()
        moved = q * errors["k"] + k * errors["q"] + errors["q"] * errors["k"] + dot * q * k
        moved = moved + 2 * self.settings.unit * self.bias
        leak = self.settings.layers.leak
        largest = v + errors["v"]
        return errors["v"] + 2 * torch.tanh(moved / 2) * largest + (sums + 2 * leak) * largest

    @property
    def certified(self) -> float:
        none = torch.zeros(self.heads, dtype=torch.float64)
        return float(self.carried(dict.fromkeys("qkv", none)).max())

    def walk(self, maps: dict[str, LinearMap], query: Span, key: Span) -> Span:
        """Ranges and error behind the heads, concatenated."""
        spans = {"q": query, "k": key, "v": key}
        errors = {n: m.carried(spans[n].error, self.heads) for n, m in maps.items()}
        v = torch.tensor(self.norms["v"], dtype=torch.float64)
        error = float(self.carried(errors).norm())
        return Span(float(v.norm()), float(v.max()), error, self.heads * self.value_dim)

    def ranges(self) -> dict[str, Any]:
        return {"norms": self.norms, "length": self.length, "bias": self.bias}

    def restore(self, ranges: dict[str, Any]) -> None:
        norms = {key: [float(n) for n in ranges["norms"][key]] for key in "qkv"}
        self.norms, self.length = norms, int(ranges["length"])
        self.bias = float(ranges["bias"])
