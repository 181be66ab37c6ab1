r"""Balls of about 98 bits, elementwise: a pair of float64 in the middle, and how far the rest is.

What was computed is compared with what is exact by doing the exact algorithm again, in
numbers so long that their own rounding is no part of the answer. Every operation here returns a
ball that holds all results of numbers in the balls it is given: what those were off by, carried
on, and at most ``UNIT`` of the result (``SUMMED`` of the sum of magnitudes) for the pairs
themselves; ``_LEAST`` where something underflows, flushed or not. A radius that is not a
number bounds nothing and counts as infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import double_double as pairs
from iceform.arithmetic.double_double import SUMMED, UNIT, DoubleDouble
from iceform.arithmetic.units import OUTWARD, OUTWARD_FEW

_LEAST = 2.0**-1018  # a few operations that underflow, each by less than the least normal number


@dataclass(frozen=True, eq=False)
class Doubled:
    """All numbers within ``off`` of ``mid``, entry by entry.

    Examples
    --------
    >>> third = Doubled.exactly(torch.tensor([1.0])) * Doubled.exactly(torch.tensor([3.0]))
    >>> low, high = third.ends()
    >>> bool((low <= 3) & (3 <= high))
    True
    """

    mid: DoubleDouble
    off: Tensor

    @classmethod
    def exactly(cls, values: Tensor) -> Doubled:
        """Floating-point numbers are known."""
        values = values.detach().double()
        return cls(pairs.pair(values), torch.zeros_like(values))

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Doubled:
        """Closed intervals."""
        middle = low + 0.5 * (high - low)
        off = torch.maximum(high - middle, middle - low)
        return cls(pairs.pair(middle), _outward(off * OUTWARD_FEW))

    @property
    def size(self) -> Tensor:
        """An upper bound of the magnitudes."""
        return (self.mid.hi.abs() + self.off) * OUTWARD

    @property
    def shape(self) -> torch.Size:
        """Of the tensor of balls."""
        return self.mid.hi.shape

    def ends(self) -> tuple[Tensor, Tensor]:
        """Float64 on either side."""
        reach = _outward(self.off + self.mid.lo.abs() + UNIT * self.mid.hi.abs())
        ulp = 2.0**-52 * self.mid.hi.abs()
        return self.mid.hi - reach - ulp, self.mid.hi + reach + ulp

    def __getitem__(self, index: Any) -> Doubled:
        return Doubled(DoubleDouble(*(part[index] for part in self.mid)), self.off[index])

    @property
    def mT(self) -> Doubled:  # noqa: N802 - torch's name
        """The last two axes exchanged."""
        return Doubled(DoubleDouble(*(part.mT for part in self.mid)), self.off.mT)

    def __neg__(self) -> Doubled:
        return Doubled(DoubleDouble(-self.mid.hi, -self.mid.lo), self.off)

    def __add__(self, other: Doubled) -> Doubled:
        mid = pairs.add(self.mid, other.mid)
        rounded = UNIT * (self.mid.hi.abs() + other.mid.hi.abs())
        return Doubled(mid, _outward(self.off + other.off + rounded))

    def __sub__(self, other: Doubled) -> Doubled:
        return self + -other

    def __mul__(self, other: Doubled) -> Doubled:
        mid = pairs.mul(self.mid, other.mid)
        carried = self.size * other.off + other.size * self.off
        return Doubled(mid, _outward(carried + UNIT * mid.hi.abs()))

    def __truediv__(self, other: Doubled) -> Doubled:
        mid = pairs.div(self.mid, other.mid)
        least = other.mid.hi.abs() * (1 - 2.0**-50) - other.off
        carried = (self.off + mid.hi.abs() * other.off * OUTWARD) / least
        off = torch.where(least > 0, carried + UNIT * mid.hi.abs(), math.inf)
        return Doubled(mid, _outward(off))

    def sum(self) -> Doubled:
        """Over the last axis."""
        rounded = SUMMED * self.mid.hi.abs().sum(-1)
        return Doubled(pairs.sum_last(self.mid), _outward(self.off.sum(-1) + rounded))

    def exp(self) -> Doubled:
        """e^x for x <= 709."""
        mid = pairs.exp(self.mid)
        most = mid.hi * OUTWARD + _LEAST
        return Doubled(mid, _outward(most * (torch.expm1(self.off) + UNIT)))

    def apart(self, computed: Tensor) -> tuple[Tensor, Tensor]:
        """How far numbers are from the middles, rounded up, and the radii."""
        gap = (self - Doubled.exactly(computed)).mid
        rounded = UNIT * (self.mid.hi.abs() + computed.detach().double().abs())
        return _outward(gap.hi.abs() + gap.lo.abs()), _outward(self.off + rounded)


def _outward(off: Tensor) -> Tensor:
    return torch.nan_to_num(off * OUTWARD + _LEAST, nan=math.inf, posinf=math.inf)


def softmax_average(logits: Doubled, values: Doubled) -> Doubled:
    """What attention reads: sum_j softmax(logits)_j values_j for every row of the logits.

    Logits of shape (queries, n) and values of shape (n, m) give averages of shape (queries, m).

    Examples
    --------
    >>> logits, values = torch.zeros(1, 2).double(), torch.tensor([[1.0], [3.0]]).double()
    >>> low, high = softmax_average(Doubled.exactly(logits), Doubled.exactly(values)).ends()
    >>> bool((low <= 2) & (2 <= high))
    True
    """
    top = Doubled.exactly(logits.mid.hi.amax(-1, keepdim=True))
    masses = (logits - top).exp()
    # An average is off by what masses are off by times how far values are from it, so values are
    # measured from a number near it.
    near = masses.mid.hi @ values.mid.hi / masses.mid.hi.sum(-1, keepdim=True)
    spread = values.mT - Doubled.exactly(near[..., None])
    return (masses[..., None, :] * spread).sum() / masses.sum()[..., None] + Doubled.exactly(near)
