"""LayerNorm: not emulated, but accounted for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.errors import BoundError
from iceform.networks.pieces.base import Piece, Reach, Settings, Span

__all__ = ["Norm"]


class Norm(Piece):
    r"""LayerNorm, as it is: not emulated, but its rounding and its amplification are accounted for.

    With s the least :math:`\sqrt{\sigma^2 + \epsilon}` of a token that was seen so far.
    """

    kind = "LayerNorm"
    how = "not emulated"
    emulated = False

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        name: str,
        settings: Settings,
        width: int,
        weight: Tensor | None,
        bias: Tensor | None,
        floor: float,
    ) -> None:
        super().__init__(name, settings)
        self.width, self.floor = width, floor
        one = torch.ones(width)
        for key, given in (("weight", weight), ("bias", bias)):
            plain = one if key == "weight" else 0 * one
            value = plain if given is None else given.detach()
            self.register_buffer(key, value.to(settings.dtype))
        self.least, self.norm = math.inf, 0.0

    def named(self, name: str) -> Norm:
        """The same under another name."""
        self.name = name
        return self

    def exact(self, *inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs[0], (self.width,), self.weight, self.bias, self.floor)

    def emulate(self, *inputs: Tensor) -> Tensor:
        return self.exact(*inputs)

    def _seen(self, x: Tensor) -> tuple[float, float]:
        x = x.detach()
        variance = x.var(-1, unbiased=False)
        return float((variance + self.floor).sqrt().min()), float(x.norm(dim=-1).max())

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        least, norm = self._seen(inputs[0])
        self.least, self.norm = min(self.least, least), max(self.norm, norm)

    def settle(self) -> None:
        self._set(self.least / self.settings.headroom, self.norm * self.settings.headroom)

    def settle_for(self, *spans: Span) -> None:
        self._set(math.sqrt(self.floor), math.sqrt(self.width) * spans[0].reach * (1 + 2**-20))

    def _set(self, least: float, norm: float) -> None:
        self.least, self.norm = max(least, math.sqrt(self.floor)), norm

    def check(self, *inputs: Tensor) -> None:
        """Nothing is looked up: what an input is like widens what the certificate speaks of."""
        least, norm = self._seen(inputs[0])
        if least >= self.least * (1 - 2**-10) and norm <= self.norm:
            return
        if not math.isfinite(norm):
            raise BoundError(f"{self.name}: a token's 2-norm is {norm}; nothing is certified of it")
        self.widened += 1
        self._set(min(self.least, least), max(self.norm, norm))

    def reach(self, *reaches: Reach) -> Reach:
        r"""Entries :math:`|y_i| \le \sqrt d\,|\gamma_i| + |\beta_i|`, whatever comes in."""
        slack = 1 + (self.width + 16) * 2 * self.settings.unit
        weight, bias = self.weight.double().abs() * slack, self.bias.double()
        root = math.sqrt(self.width)
        rows = root * weight + bias.abs() * slack
        length = root * float(weight.max()) + float(bias.norm()) * slack
        return Reach(float(rows.max()), min(length, float(rows.norm())), (weight, bias), root)

    @property
    def range(self) -> float:
        return self.norm

    @property
    def certified(self) -> float:
        """Rounding: mean and variance of d numbers, a quotient, an affine map."""
        d, unit, s = self.width, self.settings.unit, self.least * (1 - 2**-10)
        gain = float(self.weight.abs().max())
        centred = 2 * (d + 3) * unit * self.norm / s + math.sqrt(d) * (d + 6) * unit
        size = gain * math.sqrt(d) + float(self.bias.double().norm())
        return gain * centred + 3 * unit * size

    @property
    def limit(self) -> float:
        return self.norm

    def walk(self, *spans: Span) -> Span:
        """Never more than twice what it can give."""
        gain, root = float(self.weight.abs().max()), math.sqrt(self.width)
        error = spans[0].along(self.width)
        least = self.least * (1 - 2**-10) - error / root
        grown = gain * error / least if least > 0 else math.inf
        entry = gain * root + float(self.bias.abs().max())
        error = min(grown, 2 * gain * root) + self.certified
        return Span(entry, error, error, self.width)

    def made(self) -> dict[str, Any]:
        return {"floor": self.floor}

    def ranges(self) -> dict[str, Any]:
        return {"least": self.least, "norm": self.norm}

    def restore(self, ranges: dict[str, Any]) -> None:
        self.least, self.norm = float(ranges["least"]), float(ranges["norm"])
