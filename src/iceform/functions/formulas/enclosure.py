"""Bounds of a derivative over a range, by splitting it until they are tight."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.functions.formulas.functions import UNARY
from iceform.functions.formulas.intervals import Interval, enclose
from iceform.functions.formulas.trees import Node, Operation

__all__ = ["Extremes", "extremes", "signed"]

_FIRST = 64  # cells to start with
_LEAST = 512  # cells that a round costs as much as
_LARGEST = 400  # nodes beyond which a tree is not worth the time
_FUNCTION = 8  # nodes that a function costs as much as: one jet per order
_WORK = 1 << 17  # cells times nodes that one bound may cost
_ROUNDS = 20  # bisections
_TIGHT = 1.05  # stop where the bound is within this factor of a value that is taken
_NEGLIGIBLE = 2.0**-20  # of sup|f|/(half the range)^order: smaller derivatives need no care


@dataclass(frozen=True)
class Extremes:
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


_UNKNOWN = Extremes(-math.inf, math.inf, math.inf, -math.inf)

Unsettled = Callable[[Interval, Extremes], Tensor]


def extremes(tree: Node, low: float, high: float, order: int) -> Extremes:
    """Of the derivative of that order of a tree without kinks, to five per cent where it can be.

    A derivative that is seen to keep its sign is refined until that is proved.
    """
    values = _sweep(tree, low, high, 0, lambda cells, seen: cells.magnitude.isinf())
    if math.isinf(values.size):
        return _UNKNOWN
    # 2^-+1000 keeps the powers of very short and very long ranges finite.
    half = max(0.5 * high - 0.5 * low, sys.float_info.min)
    scale = math.ldexp(1.0, round(max(-1000.0, min(1000.0, -order * math.log2(half)))))
    floor = _NEGLIGIBLE * values.size * scale

    def unsettled(cells: Interval, seen: Extremes) -> Tensor:
        loose = cells.magnitude > max(_TIGHT * seen.seen_size, floor)
        wrong_sign = (cells.low < 0) & (seen.seen_low >= 0)
        wrong_sign |= (cells.high > 0) & (seen.seen_high <= 0)
        return loose | (wrong_sign & (cells.magnitude > floor))

    return _sweep(tree, low, high, order, unsettled)


def signed(tree: Node, low: float, high: float, order: int = 0) -> Extremes:
    """The same, no further than it takes to tell the derivative's sign."""

    def unsettled(cells: Interval, seen: Extremes) -> Tensor:
        undecided = not seen.seen_low < 0 < seen.seen_high
        return (cells.low < 0) & (cells.high > 0) & undecided

    return _sweep(tree, low, high, order, unsettled)


def _sweep(tree: Node, low: float, high: float, order: int, unsettled: Unsettled) -> Extremes:
    """Halve the cells that are unsettled until none is, or the budget is spent."""
    if tree.size > _LARGEST:
        return _UNKNOWN
    left = _WORK // _weight(tree)
    edges = torch.linspace(low, high, _FIRST + 1, dtype=torch.float64)
    edges[-1] = high
    cells = Interval(edges[:-1], edges[1:])
    known = Extremes(math.inf, -math.inf, math.inf, -math.inf)
    for _ in range(_ROUNDS):
        values, middles = enclose(tree, cells, order)
        known = _with_seen(known, middles)
        again = unsettled(values, known)
        known = _with_bounds(known, values[~again])
        left -= max(len(cells), _LEAST)
        if not bool(again.any()) or 2 * int(again.sum()) > left:
            break
        cells, values = _halved(cells[again]), values[again]
    return _with_bounds(known, values) if bool(again.any()) else known


def _weight(tree: Node) -> int:
    if not isinstance(tree, Operation):
        return 1
    return (_FUNCTION if tree.name in UNARY else 1) + sum(map(_weight, tree.arguments))


def _with_seen(known: Extremes, middles: Interval) -> Extremes:
    return Extremes(
        known.low,
        known.high,
        min(known.seen_low, float(middles.high.min())),
        max(known.seen_high, float(middles.low.max())),
    )


def _with_bounds(known: Extremes, values: Interval) -> Extremes:
    if len(values) == 0:
        return known
    low, high = float(values.low.min()), float(values.high.max())
    return Extremes(min(known.low, low), max(known.high, high), known.seen_low, known.seen_high)


def _halved(cells: Interval) -> Interval:
    middle = 0.5 * (cells.low + cells.high)
    return Interval(torch.cat([cells.low, middle]), torch.cat([middle, cells.high]))
