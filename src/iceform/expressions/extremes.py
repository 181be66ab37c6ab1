"""Bounds of a derivative over a range, by splitting it until they are tight."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.units import OUTWARD


@dataclass(frozen=True)
class FunctionBounds:
    """Proven bounds of a function over a range, and values between which it is seen to go.

    ``low <= inf f <= seen_low`` and ``seen_high <= sup f <= high``.
    """

    low: float
    high: float
    seen_low: float
    seen_high: float

    @property
    def sign(self) -> int | None:
        """+1 where f >= 0 is proved, -1 where f <= 0 is, None where neither is."""
        if self.low >= 0:
            return 1
        return -1 if self.high <= 0 else None

    @property
    def size(self) -> float:
        """A bound of |f|."""
        return max(abs(self.low), abs(self.high))

    @property
    def seen_size(self) -> float:
        """A value that |f| takes, or 0."""
        return max(-self.seen_low, self.seen_high, 0.0)


_STEEPEST = 1000  # power of two of a scale
_UNKNOWN = FunctionBounds(-math.inf, math.inf, math.inf, -math.inf)

Unsettled = Callable[[Interval, FunctionBounds], Tensor]
Encloser = Callable[[Interval, int], Jet]


def extremes(f: Encloser, low: float, high: float, order: int) -> FunctionBounds:
    """Of the derivative of that order, to five per cent where it can be.

    A derivative that is seen to keep its sign is refined until that is proved.
    """
    values = _sweep(f, low, high, 0, lambda cells, seen: cells.magnitude.isinf())
    if math.isinf(values.size):
        return _UNKNOWN
    # The powers of very short and very long ranges are kept finite.
    half = max(0.5 * high - 0.5 * low, sys.float_info.min)
    scale = math.ldexp(1.0, round(max(-_STEEPEST, min(_STEEPEST, -order * math.log2(half)))))
    floor = tuning.EXTREMES_NEGLIGIBLE * values.size * scale

    def unsettled(cells: Interval, seen: FunctionBounds) -> Tensor:
        loose = cells.magnitude > max(tuning.TIGHT * seen.seen_size, floor)
        wrong_sign = (cells.low < 0) & (seen.seen_low >= 0)
        wrong_sign |= (cells.high > 0) & (seen.seen_high <= 0)
        return loose | (wrong_sign & (cells.magnitude > floor))

    return _sweep(f, low, high, order, unsettled)


def signed(f: Encloser, low: float, high: float, order: int = 0) -> FunctionBounds:
    """The same, no further than it takes to tell the derivative's sign."""

    def unsettled(cells: Interval, seen: FunctionBounds) -> Tensor:
        undecided = not seen.seen_low < 0 < seen.seen_high
        return (cells.low < 0) & (cells.high > 0) & undecided

    return _sweep(f, low, high, order, unsettled)


def _sweep(
    f: Encloser, low: float, high: float, order: int, unsettled: Unsettled
) -> FunctionBounds:
    """Halve the cells that are unsettled until none is, or the budget is spent."""
    left = tuning.EXTREMES_WORK
    edges = torch.linspace(low, high, tuning.EXTREMES_FIRST + 1, dtype=torch.float64)
    edges[-1] = high
    cells = Interval(edges[:-1], edges[1:])
    known = FunctionBounds(math.inf, -math.inf, math.inf, -math.inf)
    for _ in range(tuning.EXTREMES_ROUNDS):
        values, middles = enclosed(f, cells, order)
        known = _with_seen(known, middles)
        again = unsettled(values, known)
        known = _with_bounds(known, values[~again])
        left -= max(len(cells), tuning.EXTREMES_LEAST)
        if not bool(again.any()) or 2 * int(again.sum()) > left:
            break
        cells, values = _halved(cells[again]), values[again]
    return _with_bounds(known, values) if bool(again.any()) else known


def enclosed(f: Encloser, cells: Interval, order: int) -> tuple[Interval, Interval]:
    """The derivative of that order on each cell, and at each cell's middle.

    What the jet on the cell says is met with Taylor's formula around its middle m,
    f^(k)(x)/k! = sum_j C(k + j, k) t_{k+j} (x - m)^j, whose last coefficient is taken on the
    whole cell: the excess falls with a higher power of the cell's width.
    """
    middle = Interval.point(cells.low + 0.5 * (cells.high - cells.low))
    whole, centre = (
        f(cells, order + tuning.EXTREMES_BEYOND),
        f(middle, order + tuning.EXTREMES_BEYOND - 1),
    )
    away = cells - middle
    series = [centre[order + j] for j in range(tuning.EXTREMES_BEYOND)] + [
        whole[order + tuning.EXTREMES_BEYOND]
    ]
    found = series[-1].times(float(math.comb(order + tuning.EXTREMES_BEYOND, order)))
    for j in reversed(range(tuning.EXTREMES_BEYOND)):
        found = series[j].times(float(math.comb(order + j, order))) + away * found
    met = whole[order].meet(found)  # they enclose the same
    factorial = float(math.factorial(order))
    return met.times(factorial), centre[order].times(factorial)


def _with_seen(known: FunctionBounds, middles: Interval) -> FunctionBounds:
    return FunctionBounds(
        known.low,
        known.high,
        min(known.seen_low, float(middles.high.min())),
        max(known.seen_high, float(middles.low.max())),
    )


def _with_bounds(known: FunctionBounds, values: Interval) -> FunctionBounds:
    if len(values) == 0:
        return known
    low, high = float(values.low.min()), float(values.high.max())
    return FunctionBounds(
        min(known.low, low), max(known.high, high), known.seen_low, known.seen_high
    )


def _halved(cells: Interval) -> Interval:
    middle = 0.5 * (cells.low + cells.high)
    return Interval(torch.cat([cells.low, middle]), torch.cat([middle, cells.high]))


def concordance(f: Encloser, low: float, high: float) -> float:
    """A bound s with |f''| <= s f' on [low, high], where f' > 0 is proved; else infinity.

    Of a loss's derivative f = l' this is |l'''| <= s l''.
    """
    edges = torch.linspace(low, high, tuning.EXTREMES_FIRST + 1, dtype=torch.float64)
    edges[-1] = high
    cells, settled, left = Interval(edges[:-1], edges[1:]), 0.0, tuning.EXTREMES_WORK
    while True:
        slope, here = enclosed(f, cells, 1)
        bend, there = enclosed(f, cells, 2)
        ratio = torch.where(slope.low > 0, bend.magnitude / slope.low, math.inf)
        seen = torch.where(here.low > 0, there.absolute().low / here.high, 0.0)
        again = ratio > tuning.EXTREMES_LOOSE * max(float(seen.max()), settled)
        settled = max([settled, *ratio[~again].tolist()])
        left -= max(len(cells), tuning.EXTREMES_LEAST)
        if not bool(again.any()) or 2 * int(again.sum()) > left:
            worst: float = max([settled, *ratio[again].tolist()])
            return worst * OUTWARD
        cells = _halved(cells[again])
