r"""Vectorised float64 intervals, rounded outward.

An operation that IEEE arithmetic rounds to nearest, x = fl(a op b), is off by half a unit in the
last place of x. With u = 2^-53 that is at most u|x|, or :math:`\eta = 2^{-1074}` where a product or
a quotient is subnormal; sums that are subnormal are exact. :math:`fl(x + fl(\varphi|x|))` with
:math:`\varphi = 1.5 u` is at least the next float after x: three quarters of a unit round up to
one, also where units are as coarse as :math:`\eta`.

A function of torch's on the CPU is taken to be within four units in the last place, or within the
least normal number where it underflows. That, and IEEE arithmetic, is all that is assumed.

An end that is not a number bounds nothing: the interval becomes everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic.units import UNIT

LIBRARY = 2.0**-50  # relative: four units in the last place
COMPOUND = 4 * LIBRARY  # the same for up to four functions, multiplied or nested
_PHI = 1.5 * UNIT
_ETA = math.ulp(0.0)
_TINY = torch.finfo(torch.float64).tiny
_LARGEST = torch.finfo(torch.float64).max
_PHASE = 2.0**-48  # of a turn, relative: what the place in a period may be off by
_TURNS = 2.0**30  # turns beyond which the place in a period is not looked for


def below(exact: Fraction | float) -> float:
    """The largest float64 that is not above a number."""
    if isinstance(exact, float):
        return exact
    if abs(exact) > _LARGEST:
        return _LARGEST if exact > 0 else -math.inf
    near = float(exact)
    return near if Fraction(near) <= exact else math.nextafter(near, -math.inf)


def above(exact: Fraction | float) -> float:
    """The smallest float64 that is not below a number."""
    return -below(-exact)


@dataclass(frozen=True, eq=False)
class Interval:
    """Closed intervals, one for every entry; unbounded where nothing is known.

    Every operation rounds outward: what it returns holds all values that it can take.

    Attributes
    ----------
    low, high
        The ends, float64.

    Examples
    --------
    >>> z = Interval(torch.tensor([1.0]), torch.tensor([2.0]))
    >>> square = z * z
    >>> bool((square.low <= 1) & (4 <= square.high))
    True
    """

    low: Tensor
    high: Tensor

    @classmethod
    def point(cls, values: Tensor) -> Interval:
        """Intervals of one point each."""
        return cls(values, values)

    @classmethod
    def of(cls, value: Fraction | float) -> Interval:
        """One number, shape (1,)."""
        ends = torch.tensor([[below(value)], [above(value)]], dtype=torch.float64, device="cpu")
        return cls(ends[0], ends[1])

    @classmethod
    def whole(cls, like: Tensor) -> Interval:
        """Everything."""
        return cls(torch.full_like(like, -math.inf), torch.full_like(like, math.inf))

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.low[index], self.high[index])

    def __len__(self) -> int:
        return len(self.low)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return _outward(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return _outward(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = (
            self.low * other.low,
            self.low * other.high,
            self.high * other.low,
            self.high * other.high,
        )
        # A product that is not a number, 0 times infinity, makes both ends that.
        low = torch.minimum(torch.minimum(ends[0], ends[1]), torch.minimum(ends[2], ends[3]))
        high = torch.maximum(torch.maximum(ends[0], ends[1]), torch.maximum(ends[2], ends[3]))
        return _signed(_outward(low, high, eta=_ETA), self, other)

    def __truediv__(self, other: Interval) -> Interval:
        return self * other.reciprocal()

    def reciprocal(self) -> Interval:
        """1/u; everything where u may be 0."""
        found = _outward(1 / self.high, 1 / self.low, eta=_ETA)
        found = Interval(
            torch.where(self.low > 0, found.low.clamp(min=0.0), found.low),
            torch.where(self.high < 0, found.high.clamp(max=0.0), found.high),
        )
        return found.unknown_where(self.has_zero)

    def square(self) -> Interval:
        """u^2."""
        size = self.absolute()
        found = _outward(size.low.square(), size.high.square(), eta=_ETA)
        return Interval(found.low.clamp(min=0.0), found.high)

    def absolute(self) -> Interval:
        """|u|."""
        nearest = torch.minimum(self.low.abs(), self.high.abs())
        return Interval(torch.where(self.has_zero, 0.0, nearest), self.magnitude)

    def times(self, factor: float) -> Interval:
        """Multiplied by a whole number >= 1: multiples of the least number, so exact below it."""
        return _outward(self.low * factor, self.high * factor)

    def over(self, divisor: float) -> Interval:
        """Divided by a number >= 1 that float64 holds."""
        found = _outward(self.low / divisor, self.high / divisor, eta=_ETA)
        return _signed(found, self, _ONE)

    def flipped(self) -> Interval:
        """In reverse along the first axis."""
        return Interval(self.low.flip(0), self.high.flip(0))

    def sum(self) -> Interval:
        """Along the first axis, in whatever order."""
        slack = len(self.low) * _PHI
        low = self.low.sum(0) - (slack * self.low.abs().sum(0))
        high = self.high.sum(0) + (slack * self.high.abs().sum(0))
        return _numbers(low, high)

    # ----------------------------------------------------------------------- sets and places

    def hull(self, other: Interval) -> Interval:
        """The least interval that holds both."""
        return Interval(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))

    def meet(self, other: Interval) -> Interval:
        """What both allow; they must have a point in common."""
        return Interval(torch.maximum(self.low, other.low), torch.minimum(self.high, other.high))

    def where(self, mask: Tensor, other: Interval) -> Interval:
        """These where the mask is set, the others elsewhere."""
        low = torch.where(mask, self.low, other.low)
        return Interval(low, torch.where(mask, self.high, other.high))

    def unknown_where(self, mask: Tensor) -> Interval:
        """Everything where the mask is set."""
        return Interval(
            self.low.masked_fill(mask, -math.inf), self.high.masked_fill(mask, math.inf)
        )

    def clamped(self, low: float = -math.inf, high: float = math.inf) -> Interval:
        """Cut to a range that the quantity is known to lie in."""
        return Interval(self.low.clamp(low, high), self.high.clamp(low, high))

    @property
    def has_zero(self) -> Tensor:
        """Whether 0 is inside."""
        return (self.low <= 0) & (self.high >= 0)

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    # ------------------------------------------------------------------------------ functions

    def increasing(
        self, compute: Callable[[Tensor], Tensor], low: float = -math.inf, high: float = math.inf,
        slack: float = LIBRARY,
    ) -> Interval:  # fmt: skip
        """A library function, or a few of them, that increases and stays within [low, high]."""
        return computed(compute(self.low), compute(self.high), slack).clamped(low, high)

    def falling_away(self, compute: Callable[[Tensor], Tensor], peak: float) -> Interval:
        """An even, positive library function that falls from ``peak`` with the size of u."""
        size = self.absolute()
        ends = compute(size.high), compute(size.low)
        return computed(*ends, slack=COMPOUND).clamped(0.0, peak)

    def wave(self, compute: Callable[[Tensor], Tensor], peak: float) -> Interval:
        """Sine or cosine, whose maximum is ``peak`` turns from 0."""
        turn = 2 * math.pi
        places = Interval(self.low / turn, self.high / turn)
        ends = compute(self.low), compute(self.high)
        found = computed(torch.minimum(*ends), torch.maximum(*ends))
        lost = ~(places.magnitude < _TURNS)
        low = found.low.masked_fill(_holds_one_of(places, peak + 0.5) | lost, -1.0)
        high = found.high.masked_fill(_holds_one_of(places, peak) | lost, 1.0)
        return Interval(low, high).clamped(-1.0, 1.0)

    def tangent(self) -> Interval:
        """The tangent; everything where there may be a pole."""
        places = Interval(self.low / math.pi, self.high / math.pi)
        pole = _holds_one_of(places, 0.5) | ~(places.magnitude < _TURNS)
        return computed(torch.tan(self.low), torch.tan(self.high)).unknown_where(pole)

    def power(self, exponent: float) -> Interval:
        """u^p; of a negative number only whole powers are known, of 0 only positive ones."""
        whole = float(exponent).is_integer()
        even = whole and exponent % 2 == 0
        base = self.absolute() if even else self
        ends = base.low**exponent, base.high**exponent
        found = computed(torch.minimum(*ends), torch.maximum(*ends))
        if even or not whole:
            found = found.clamped(low=0.0)
        if exponent < 0:
            found = found.unknown_where(self.has_zero)
        return found if whole else found.unknown_where(self.low < 0)


def _numbers(low: Tensor, high: Tensor) -> Interval:
    """Everything, where a bound is not a number."""
    return Interval(
        low.nan_to_num(-math.inf, math.inf, -math.inf),
        high.nan_to_num(math.inf, math.inf, -math.inf),
    )


def _outward(low: Tensor, high: Tensor, eta: float = 0.0) -> Interval:
    """Ends that were rounded to nearest, moved outward by as much."""
    return _numbers(low - (_PHI * low.abs() + eta), high + (_PHI * high.abs() + eta))


def _signed(product: Interval, a: Interval, b: Interval) -> Interval:
    """A product whose sign underflow has not taken."""
    if bool((product.low.abs() <= _ETA).any() | (product.high.abs() <= _ETA).any()):
        up = ((a.low >= 0) & (b.low >= 0)) | ((a.high <= 0) & (b.high <= 0))
        down = ((a.low >= 0) & (b.high <= 0)) | ((a.high <= 0) & (b.low >= 0))
        low = torch.where(up, product.low.clamp(min=0.0), product.low)
        return Interval(low, torch.where(down, product.high.clamp(max=0.0), product.high))
    return product


def computed(low: Tensor, high: Tensor, slack: float = LIBRARY) -> Interval:
    """Values of a library function, moved outward by what it may be off by."""
    return _numbers(low - slack * low.abs() - _TINY, high + slack * high.abs() + _TINY)


def _holds_one_of(places: Interval, offset: float) -> Tensor:
    """Whether k + offset may lie within ``places`` for a whole number k."""
    reach = _PHASE * (1 + places.magnitude)
    return (places.high + reach - offset).floor() >= (places.low - reach - offset).ceil()


_ONE = Interval.of(1.0)
