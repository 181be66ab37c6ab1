"""Ranges: all real numbers from one to another, in interval arithmetic rounded outward."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from iceform import tuning
from iceform.arithmetic import Interval, exactly
from iceform.arithmetic.units import NOISE
from iceform.errors import BoundError
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.calculus import derivative
from iceform.expressions.formulas.enclosing import jets

BEYOND = 2.0**-10  # of a value's size, small beside it: how far it may leave its range


@lru_cache(maxsize=4096)
def enclosed(tree: trees.Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of the values on [low, high], kinks and jumps included; infinite where none are."""
    edges = torch.linspace(low, high, tuning.RANGES_CELLS + 1, dtype=torch.float64)
    edges[0], edges[-1] = low, high
    found = jets(tree, Interval(edges[:-1], edges[1:]), 0).value
    return float(found.low.min()), float(found.high.max())


@lru_cache(maxsize=4096)
def slope(tree: trees.Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of the difference quotients on [low, high], kinks included."""
    return enclosed(derivative(tree), low, high)


@dataclass(frozen=True)
class Range:
    """All real numbers from ``low`` to ``high``, with arithmetic that rounds outward.

    Examples
    --------
    >>> Range(-1.0, 2.0) + Range(0.5, 0.5), Range(-1.0, 2.0).size
    (Range(low=-0.5, high=2.5), 2.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise BoundError(f"a range needs low <= high, got [{self.low}, {self.high}]")

    @property
    def size(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def finite(self) -> bool:
        """Whether it is bounded."""
        return math.isfinite(self.size)

    def __add__(self, other: Range) -> Range:
        low, above = _sum(self.low, other.low)
        high, below = _sum(self.high, other.high)
        return Range(
            math.nextafter(low, -math.inf) if not above >= 0 else low,
            math.nextafter(high, math.inf) if not below <= 0 else high,
        )

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __sub__(self, other: Range) -> Range:
        return self + -other

    def __mul__(self, other: Range) -> Range:
        ends = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return outward(min(ends), max(ends))

    def times(self, factor: float) -> Range:
        """By a number."""
        return self * Range(factor, factor)

    def power(self, n: int) -> Range:
        """To a whole number from 1 on."""
        out = self
        for _ in range(n - 1):
            out = out * self
        if n % 2 or not self.low <= 0 <= self.high:
            return out
        return Range(0.0, out.high)

    def join(self, other: Range) -> Range:
        """The least range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def meet(self, other: Range) -> Range:
        """What both hold; ``other`` where they have nothing in common."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high) if low <= high else other

    def widened(self, old: Range) -> Range:
        """With each end that moved since ``old`` moved on to 0 or to a power of 4."""
        low = self.low if self.low == old.low else -_power_of_four(-self.low)
        high = self.high if self.high == old.high else _power_of_four(self.high)
        return Range(low, high)

    def beyond(self, away: float, nearer: float) -> Range:
        """Ends of what was seen moved on: those that face 0 nearer to it, the others further."""
        low = self.low / nearer if self.low > 0 else self.low * away
        high = self.high / nearer if self.high < 0 else self.high * away
        return Range(low, high)

    def around(self) -> Range:
        """As a domain: as much as was seen once more at each end; an end that is 0 stays."""
        more = max(self.high - self.low, BEYOND * self.size)
        low, high = self.low - more, self.high + more
        return Range(0.0 if self.low == 0 else low, 0.0 if self.high == 0 else high)

    def holds(self, other: Range) -> bool:
        """Whether ``other`` lies within."""
        return self.low <= other.low and other.high <= self.high

    def open_beyond(self, others: Sequence[Range]) -> Range:
        """Without the ends that all of some other ranges, if there are any, keep anyway."""
        low = bool(others) and all(self.low <= r.low for r in others)
        high = bool(others) and all(r.high <= self.high for r in others)
        return Range(-math.inf if low else self.low, math.inf if high else self.high)

    def of(self, tree: trees.Node) -> Range:
        """What a scalar function makes of it."""
        low, high = enclosed(tree, self.low, self.high)
        if not (math.isfinite(low) and math.isfinite(high)):
            return Range(-math.inf, math.inf)
        return Range(low, high)

    def __str__(self) -> str:
        return f"[{exactly(self.low)}, {exactly(self.high)}]"


def _power_of_four(value: float) -> float:
    """The least power of 4, or 0, that is at least this but for noise; infinity beyond float64."""
    if not 0 < value <= sys.float_info.max / 4:
        return 0.0 if value <= 0 else math.inf
    return 2.0 ** (2 * math.ceil(math.log2(value) / 2 - NOISE))


def _product(a: float, b: float) -> float:
    """Of two numbers: 0 where one of them is, and not where it underflows."""
    found = a * b
    return found if found or not (a and b) else math.copysign(math.ulp(0.0), found)


def _sum(a: float, b: float) -> tuple[float, float]:
    """A sum as it is rounded, and how much more it is: an end that does not move shall stay."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def outward(low: float, high: float) -> Range:
    """The range from one to the other, and a unit in the last place more at each end.

    An end that is 0 stays; ends that are no numbers make the range of all numbers.

    Examples
    --------
    >>> outward(0.0, 1.0)
    Range(low=0.0, high=1.0000000000000002)
    """
    if math.isnan(low) or math.isnan(high):
        return Range(-math.inf, math.inf)
    return Range(
        low if low == 0 else math.nextafter(low, -math.inf),
        high if high == 0 else math.nextafter(high, math.inf),
    )
