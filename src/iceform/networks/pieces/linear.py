"""Linear maps, their weights in the prompt."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic.units import OUTWARD_MANY, SAFE_MINIMUM
from iceform.certificates.witness import ReplayedEntry
from iceform.errors import BoundError, PrecisionError
from iceform.networks.frozen import SLACK
from iceform.networks.pieces.base import (
    SMALLEST_SHARE,
    Bounds,
    Piece,
    PieceSettings,
)
from iceform.networks.pieces.readings import Reading
from iceform.run import primitives, rounding_of
from iceform.tables import Interpolant


def powers_of_two(ranges: Tensor) -> Tensor:
    """Exponents s with ranges <= 2^s, each at most 20 octaves below the largest."""
    largest = float(ranges.max())
    floor = largest * SMALLEST_SHARE if largest > 0 else 1.0
    return torch.log2(ranges.double().clamp(min=floor)).ceil()


class LinearMap(Piece):
    r"""x -> W x + b, every row r looked up on the identity's table scaled by 2^{s_r}.

    The prompt holds :math:`2^{-s_r} (W_r, b_r)`, the look-up of z is scaled back by 2^{s_r}; both
    are exact. The look-up's error is proven for |z_r| <= 2^{s_r} and tokens of 2-norm at most X,
    which bounds the terms of the product by :math:`\|(W_r, b_r)\|_2 \sqrt{X^2 + 1}`; both are
    checked on every input.

    The line's table is the same at any scale: a token that needs a larger 2^{s_r} than the usual
    one has it in its own prompt, up to the widest that is allowed; and a row whose terms could
    round by more than the table reaches has a larger one always.

    Parameters
    ----------
    name, settings
        As for every piece.
    weight, bias
        Of the map.
    rounded
        Whether they were computed from parameters, in float64, and then rounded.
    """

    kind = "linear"
    made_with = ("rounded",)
    fixed: ClassVar[dict[str, Any]] = {"norm": float, "widest": Tensor}
    how = "look-up, weights in the prompt"

    weight: Tensor
    bias: Tensor
    exponents: Tensor
    theta: Tensor
    offset: Tensor
    scale: Tensor
    least: Tensor
    by: Tensor

    def __init__(
        self,
        name: str,
        settings: PieceSettings,
        weight: Tensor,
        bias: Tensor | None,
        *,
        rounded: bool = False,
    ) -> None:
        super().__init__(name, settings)
        zero = weight.new_zeros(len(weight))
        for key, value in (("weight", weight), ("bias", zero if bias is None else bias)):
            self.register_buffer(key, value.detach().to(settings.dtype).contiguous())
        self.rounded = rounded
        self.largest = torch.zeros(len(weight), dtype=torch.float64)
        self.norm = 0.0
        self.register_buffer("exponents", torch.zeros_like(self.bias))
        self.widest = torch.zeros(len(weight), dtype=torch.float64)
        self._encode()

    @property
    def in_features(self) -> int:
        """Features read."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Features written."""
        return self.weight.shape[0]

    def _encode(self) -> None:
        scale = torch.exp2(-self.exponents.to(self.weight))
        self.register_buffer("theta", self.weight * scale[:, None], persistent=False)
        self.register_buffer("offset", self.bias * scale, persistent=False)
        self.register_buffer("scale", torch.exp2(self.exponents.to(self.weight)), persistent=False)
        room = torch.exp2(self.widest.to(self.weight) - self.exponents.to(self.weight))
        self.register_buffer("by", 1 / room, persistent=False)
        # Rounding of the product must not leave the table: |terms| (n + 3) u <= its slack.
        share = 4 * (self.in_features + 4) * self.settings.unit / SLACK
        terms = share * (self.theta.norm(dim=-1) + self.offset.abs()) * (self.norm + 1)
        self.register_buffer("least", terms.clamp(min=1.0).minimum(room), persistent=False)

    def exact(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.linear(x, self.weight, self.bias)

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (x,) = inputs
        self.norm = max(self.norm, float(x.norm(dim=-1).max()))
        rows = output.double().abs().reshape(-1, self.out_features).amax(0).cpu()
        self.largest = torch.maximum(self.largest, rows)

    def freeze_range(self) -> None:
        self._set(self.settings.headroom * self.largest, self.settings.headroom * self.norm)

    def set_range_from(self, *given: Bounds) -> None:
        rows, norm = self._rows(*given)
        self._set(rows * OUTWARD_MANY, norm)

    def _set(self, ranges: Tensor, norm: float) -> None:
        self.norm = norm
        self.register_buffer("exponents", powers_of_two(ranges).to(self.weight))
        self.widest = self.exponents.double().cpu()
        self._encode()

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        """Bounds of the rows, by the weights or by the range of the look-ups."""
        rows, norm = self._rows(*given)
        if widen and bool(rows.isfinite().all()) and math.isfinite(norm):
            wider = torch.log2((rows * OUTWARD_MANY).clamp(min=SAFE_MINIMUM)).ceil()
            self.widest = torch.maximum(self.widest, wider)
            self.norm = max(self.norm, norm)
            self._encode()
        rows = torch.minimum(rows, torch.exp2(self.widest)) + self.errors().cpu()
        length = float(rows.norm()) * OUTWARD_MANY
        return Bounds(float(rows.max()), length, width=self.out_features)

    def covers(self, *given: Bounds) -> bool:
        return self._rows(*given)[1] <= self.norm

    def _rows(self, r: Bounds) -> tuple[Tensor, float]:
        """Rows by Cauchy-Schwarz on the ball that a norm leaves, or on lengths and entries.

        And the length of a token.
        """
        weight, bias = self.weight.double().cpu(), self.bias.double().cpu()
        rows = weight.norm(dim=-1) * r.along(self.in_features) + bias.abs()
        rows = torch.minimum(rows, weight.abs().sum(-1) * r.entry + bias.abs())
        if r.ball is not None and len(r.ball[0]) == self.in_features:
            scale, centre = (t.cpu() for t in r.ball)
            around = r.radius * (weight * scale).norm(dim=-1) + (weight @ centre + bias).abs()
            around = around + r.off * weight.abs().sum(-1)
            rows = torch.minimum(rows, around)
        return rows, r.along(self.in_features) * OUTWARD_MANY

    def _product(self, x: Tensor, offset: Tensor | None = None) -> Tensor:
        """Theta x + offset, rows of x taken together however they lie in memory."""
        if x.is_cuda and not x.is_contiguous():
            order = [*sorted(range(x.ndim - 1), key=x.stride, reverse=True), x.ndim - 1]
            if (turned := x.permute(order)).is_contiguous():
                back = [order.index(i) for i in range(x.ndim)]
                return self._product(turned, offset).permute(back)
        flat = F.linear(x.reshape(-1, self.in_features), self.theta, offset)
        return flat.reshape(*x.shape[:-1], self.out_features)

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        """The look-ups, the largest share of a row's range, and the largest 2-norm of a token."""
        (x,) = inputs
        if self.settings.line is not None:
            return self.read(x, covered=covered)
        reading = self._reading(x)
        over = primitives.largest(reading.z * self.by)
        return reading.written() * self.scale, self._with_length(over, x, covered=covered)

    def _reading(self, x: Tensor) -> Reading:
        """The reading of a token at the scales of the calibrated ranges."""
        z, prompted = (
            self._product(x, self.offset),
            torch.cat([self.theta, self.offset[:, None]], -1),
        )
        return Reading(self.settings, z, self.least, lambda: (with_one(x), prompted))

    def read(
        self, x: Tensor, *, covered: bool, then: tuple[Interpolant, float, float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """By the line's table, and in the table that comes ``then``, whose largest is second."""
        line = self.settings.line
        assert line is not None, "prompts must be written"
        offset = self.offset
        if x.is_cuda:  # products without a sum are quicker there
            given = (self._product(x), line, self.least, self.scale, self.by)
            out, over = primitives.read(*given, offset=offset, then=then)
        else:
            given = (self._product(x, offset), line, self.least, self.scale, self.by)
            out, over = primitives.read(*given, then=then)
        return out, self._with_length(over, x, covered=covered)

    @staticmethod
    def _with_length(over: Tensor, x: Tensor, *, covered: bool) -> Tensor:
        return over if covered else torch.cat([over, primitives.longest(x)])

    def check_range(self, numbers: list[float], *inputs: Tensor) -> bool:
        over, norm = (*numbers, 0.0)[:2]
        if norm <= self.norm and over <= 1:
            return False
        if not self._widens and not norm <= self.norm:
            self._out_of_range("the largest 2-norm of a token", norm, self.norm)
        if not self._widens and not inputs:
            self._out_of_range("the largest share of an output's range", over, 1.0)
        largest = self._product(inputs[0], self.offset).abs().reshape(-1, self.out_features).amax(0)
        if not (self._widens and math.isfinite(norm)):
            row = int((largest * self.by).argmax())
            usual = 2.0 ** float(self.exponents[row])
            limit = 2.0 ** float(self.widest[row])
            self._out_of_range(f"max |output {row}|", float(largest[row]) * usual, limit)
        self.widened += 1
        # Powers of two only grow: rows that are still in range keep their prompt.
        wider = torch.exp2(self.exponents.double()) * largest.double().clamp(min=1.0)
        self._set(wider, max(self.norm, norm))
        return True

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        x = inputs[0].detach().reshape(-1, self.in_features)
        token, row = draw.randrange(len(x)), draw.randrange(self.out_features)
        got = output.reshape(-1, self.out_features)[token, row] / self.scale[row]
        yield self._reading(x[token]).ask(row, got)

    @property
    def _terms(self) -> Tensor:
        """Bound of the terms of each row's product."""
        rows = torch.cat([self.weight, self.bias[:, None]], -1).double().norm(dim=-1)
        terms: Tensor = rows * math.hypot(self.norm, 1.0)
        return terms

    def errors(self) -> Tensor:
        """Proven error of every output row."""
        settings, table = self.settings, self.settings.layers.table
        scale = torch.exp2(self.widest).to(self.weight.device)
        largest = float((self._terms / scale).max())
        summands = self.in_features + 1 + int(self.rounded)
        if not math.isfinite(largest):
            raise BoundError(
                f"{self.name}: products of its weights and inputs reach {largest}; nothing is "
                "certified of that: calibrate on finite numbers, or scale the weights"
            )
        model = rounding_of(settings.backend).model(settings.dtype, table, largest, summands)
        if not model.gamma * largest <= SLACK:
            raise PrecisionError(
                f"{self.name}: products of terms up to {largest:.3g} times their range round by "
                f"more than {SLACK:.3g} of it in {settings.dtype}; use float64",
                best=model.gamma * largest,
            )
        return scale * (table.error + table.rounding(model))

    @property
    def certified(self) -> float:
        return float(self.errors().max())

    @property
    def range(self) -> float:
        return float(torch.exp2(self.widest).max())

    @property
    def limit(self) -> float:
        return self.norm

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        """Errors grow by a row's sum or norm, a token's by the matrix's norm."""
        weight, row = self.weight.double(), given[0].apart(self.in_features)
        sums = float(weight.abs().sum(-1).max()) * given[0].error
        grown = min(sums, float(weight.norm(dim=-1).max()) * row) * OUTWARD_MANY
        return grown + self.certified, self._spectral * row + float(self.errors().norm())

    @cached_property
    def _spectral(self) -> float:
        return float(torch.linalg.matrix_norm(self.weight.double(), 2)) * OUTWARD_MANY

    def restore(self, ranges: Mapping[str, Any]) -> None:
        super().restore(ranges)
        self._encode()


def with_one(x: Tensor) -> Tensor:
    """x with a last feature 1, which the bias multiplies."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
