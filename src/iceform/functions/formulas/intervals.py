r"""Interval Taylor arithmetic: derivatives of a formula, enclosed on whole cells at once.

The jet of f on a cell X holds, for k = 0 .. order, an interval with every :math:`f^{(k)}(x)/k!`,
x in X. Sums and products are those of power series. For a function of a jet,
:math:`h = g(u)`, the rule :math:`h' = g'(u)\,u'` gives

.. math:: h_k = \frac1k \sum_{j=1}^{k} j\,u_j\,d_{k-j},\qquad d = \text{jet of } g'(u),

one order lower, so a function needs no more than its range on an interval and the tree of its
derivative. A naive enclosure is met with the mean value form
:math:`f^{(k)}(X) \subset f^{(k)}(m) + f^{(k+1)}(X)(X - m)`, whose excess falls with the square
of the cell.

Every bound is rounded outward. Arithmetic is taken to round correctly, torch's functions to be
off by no more than 16 units in the last place. A formula is the function that its floating-point
numbers give: ``pi`` stands for the float64 next to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iceform.functions.formulas.calculus import outer_derivative
from iceform.functions.formulas.functions import UNARY, constant_value
from iceform.functions.formulas.trees import Node, Number, Operation, Variable

__all__ = ["Interval", "enclose", "jet"]

_TINY = torch.finfo(torch.float64).tiny
_ARITHMETIC = 2.0**-50  # relative: one rounding, or a sum of up to eight terms
_LIBRARY = 2.0**-48  # relative: sixteen units in the last place
_PHASE = 2.0**-40  # of a turn, relative: what the place in a period may be off by


@dataclass(frozen=True)
class Interval:
    """Closed intervals, elementwise; unbounded where nothing is known."""

    low: Tensor
    high: Tensor

    @classmethod
    def points(cls, values: Tensor) -> Interval:
        """Intervals of one point each."""
        return cls(values, values)

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.low[index], self.high[index])

    def __len__(self) -> int:
        return len(self.low)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return _outward(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = [_products(a, b) for a in self._ends for b in other._ends]
        low = torch.stack([p.low for p in ends]).amin(0)
        high = torch.stack([p.high for p in ends]).amax(0)
        return _bounded(low, high)

    @property
    def _ends(self) -> tuple[Tensor, Tensor]:
        return self.low, self.high

    def times(self, factors: Tensor) -> Interval:
        """Multiplied by positive numbers."""
        return _outward(self.low * factors, self.high * factors)

    def over(self, divisors: Tensor) -> Interval:
        """Divided by positive numbers."""
        return _outward(self.low / divisors, self.high / divisors)

    def meet(self, other: Interval) -> Interval:
        """What both allow."""
        return Interval(torch.maximum(self.low, other.low), torch.minimum(self.high, other.high))

    def sum(self) -> Interval:
        """Along the first axis."""
        low, high = self.low.sum(0), self.high.sum(0)
        off_low = _ARITHMETIC * self.low.abs().sum(0)
        off_high = _ARITHMETIC * self.high.abs().sum(0)
        return _bounded(low - off_low, high + off_high)

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def absolute(self) -> Interval:
        """Of |u|."""
        nearest = torch.minimum(self.low.abs(), self.high.abs())
        return Interval(torch.where(self.has_zero, 0.0, nearest), self.magnitude)

    @property
    def has_zero(self) -> Tensor:
        """Whether 0 is inside."""
        return (self.low <= 0) & (self.high >= 0)


def _bounded(low: Tensor, high: Tensor) -> Interval:
    """Everything, where a bound is not a number."""
    return _unknown_where(low.isnan() | high.isnan(), Interval(low, high))


def _unknown_where(unknown: Tensor, found: Interval) -> Interval:
    return Interval(
        found.low.masked_fill(unknown, -math.inf), found.high.masked_fill(unknown, math.inf)
    )


def _outward(low: Tensor, high: Tensor, relative: float = _ARITHMETIC) -> Interval:
    """Bounds that were computed to a relative error, moved outward by it; zeros are exact."""
    return _bounded(low - relative * low.abs(), high + relative * high.abs())


def _products(a: Tensor, b: Tensor) -> Interval:
    """A product of two numbers, rounded outward without losing its sign."""
    product, sign = a * b, torch.sign(a) * torch.sign(b)
    lost = product.abs() < _TINY  # underflow, or a factor that is zero
    off = _ARITHMETIC * product.abs()
    return Interval(
        torch.where(lost, _TINY * sign.clamp(max=0), product - off),
        torch.where(lost, _TINY * sign.clamp(min=0), product + off),
    )


# ---------------------------------------------------------------------------------------------
# ranges of functions
# ---------------------------------------------------------------------------------------------

Range = Callable[[Interval], Interval]


def _computed(low: Tensor, high: Tensor) -> Interval:
    """Values of a library function, moved outward by what it may be off by."""
    found = _outward(low, high, _LIBRARY)
    return Interval(found.low - _TINY, found.high + _TINY)


def _increasing(name: str, floor: float = -math.inf) -> Range:
    compute = UNARY[name].compute

    def bounds(u: Interval) -> Interval:
        found = _computed(compute(u.low), compute(u.high))
        return Interval(found.low.clamp(min=floor), found.high)

    return bounds


def _even(name: str) -> Range:
    rising = _increasing(name, floor=0.0)
    return lambda u: rising(u.absolute)


def _holds_one_of(places: Interval, offset: float) -> Tensor:
    """Whether k + offset lies within ``places`` for a whole number k."""
    reach = _PHASE * (1 + places.magnitude)
    return (places.high + reach - offset).floor() >= (places.low - reach - offset).ceil()


def _wave(name: str, peak: float) -> Range:
    """Sine or cosine, whose maximum is ``peak`` turns from 0."""
    compute = UNARY[name].compute

    def bounds(u: Interval) -> Interval:
        turns = Interval(u.low / (2 * math.pi), u.high / (2 * math.pi))
        ends = torch.stack([compute(u.low), compute(u.high)])
        found = _computed(ends.amin(0), ends.amax(0))
        low = found.low.masked_fill(_holds_one_of(turns, peak + 0.5), -1.0)
        high = found.high.masked_fill(_holds_one_of(turns, peak), 1.0)
        return Interval(low.clamp(min=-1.0), high.clamp(max=1.0))

    return bounds


def _tangent(u: Interval) -> Interval:
    found = _computed(torch.tan(u.low), torch.tan(u.high))
    pole = _holds_one_of(Interval(u.low / math.pi, u.high / math.pi), 0.5)
    return _unknown_where(pole, found)


_RANGES: dict[str, Range] = {
    "atan": _increasing("atan"),
    "cos": _wave("cos", 0.0),
    "cosh": _even("cosh"),
    "exp": _increasing("exp", floor=0.0),
    "expm1": _increasing("expm1", floor=-1.0),
    "log": _increasing("log"),
    "log1p": _increasing("log1p"),
    "logcosh": _even("logcosh"),
    "sigmoid": _increasing("sigmoid", floor=0.0),
    "sin": _wave("sin", 0.25),
    "sinh": _increasing("sinh"),
    "softplus": _increasing("softplus", floor=0.0),
    "sqrt": _increasing("sqrt", floor=0.0),
    "tan": _tangent,
    "tanh": _increasing("tanh", floor=-1.0),
}


def _power(u: Interval, exponent: float) -> Interval:
    """Of a negative number to a broken power nothing is known: torch makes it no number."""
    even = exponent.is_integer() and exponent % 2 == 0
    if even:
        u = u.absolute
    ends = torch.stack([u.low**exponent, u.high**exponent])
    found = _computed(ends.amin(0), ends.amax(0))
    low = found.low.clamp(min=0.0) if even else found.low
    if exponent > 0:
        return Interval(low, found.high)
    return _unknown_where(u.has_zero, Interval(low, found.high))


def _range(node: Operation, u: Interval) -> Interval:
    if node.name == "^":
        return _power(u, constant_value(node.arguments[1]))
    return _RANGES[node.name](u)


# ---------------------------------------------------------------------------------------------
# jets
# ---------------------------------------------------------------------------------------------


def _series_product(a: Interval, b: Interval) -> Interval:
    """Coefficients of the product of two power series, as many as both have."""
    terms = a[:, None] * b[None, :]
    count = torch.arange(len(a))
    rows = [terms[count[: k + 1], k - count[: k + 1]].sum() for k in range(len(a))]
    return Interval(torch.stack([r.low for r in rows]), torch.stack([r.high for r in rows]))


def _column(first: int, last: int) -> Tensor:
    return torch.arange(first, last + 1, dtype=torch.float64)[:, None]


class _Jets:
    """Jets of the parts of a tree without kinks over the same cells, each computed once."""

    def __init__(self, cells: Interval) -> None:
        self.cells = cells
        self.known: dict[Node, Interval] = {}

    def of(self, node: Node, count: int) -> Interval:
        """The first ``count`` coefficients, shape (count, cells)."""
        found = self.known.get(node)
        if found is None or len(found) < count:
            found = self.known[node] = self._made(node, count)
        return found[:count]

    def _made(self, node: Node, count: int) -> Interval:
        if isinstance(node, Variable):
            return self._series(self.cells, 1.0, count)
        if isinstance(node, Number) or node.constant:
            value = torch.full_like(self.cells.low, constant_value(node))
            return self._series(Interval.points(value), 0.0, count)
        if node.name in UNARY or node.name == "^":
            return self._function(node, count)
        return self._combined(node, count)

    def _series(self, start: Interval, slope: float, count: int) -> Interval:
        rest = torch.zeros(count - 1, len(self.cells), dtype=torch.float64)
        rest[:1] = slope
        return Interval(torch.cat([start.low[None], rest]), torch.cat([start.high[None], rest]))

    def _combined(self, node: Operation, count: int) -> Interval:
        first = self.of(node.arguments[0], count)
        if node.name == "neg":
            return -first
        if node.name == "/":
            inverse = Operation("^", (node.arguments[1], Number(-1.0)))
            return _series_product(first, self.of(inverse, count))
        second = self.of(node.arguments[1], count)
        if node.name == "*":
            return _series_product(first, second)
        return first + second if node.name == "+" else first - second

    def _function(self, node: Operation, count: int) -> Interval:
        u = self.of(node.arguments[0], count)
        start = _range(node, u[0])
        if count == 1:
            return start[None]
        slopes = self.of(outer_derivative(node), count - 1)
        orders = _column(1, count - 1)
        rest = _series_product(u[1:].times(orders), slopes).over(orders)
        return Interval(
            torch.cat([start.low[None], rest.low]), torch.cat([start.high[None], rest.high])
        )


def jet(tree: Node, cells: Interval, order: int) -> Interval:
    """Taylor coefficients 0 .. ``order`` of a tree without kinks, shape (order + 1, cells)."""
    return _Jets(cells).of(tree, order + 1)


def enclose(tree: Node, cells: Interval, order: int) -> tuple[Interval, Interval]:
    """The derivative of that order on each cell, and at each cell's middle."""
    middle = Interval.points(0.5 * (cells.low + cells.high))
    whole = jet(tree, cells, order + 1)
    centre = jet(tree, middle, order)[order]
    rise = whole[order + 1].times(torch.tensor(order + 1.0, dtype=torch.float64))
    met = whole[order].meet(centre + rise * (cells - middle))
    factorial = torch.tensor(float(math.factorial(order)), dtype=torch.float64)
    return met.times(factorial), centre.times(factorial)
