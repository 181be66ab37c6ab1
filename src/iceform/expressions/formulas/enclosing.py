"""Trees evaluated in jets: a formula and its derivatives, enclosed on cells.

A number is the rational number that was typed. ``pi`` and ``e`` are enclosed between the float64
that stands for them and its neighbour, so that a bound holds for either reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch

from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.jets import chosen
from iceform.expressions.formulas.functions import exact_value
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable

_ZERO, _ONE = Jet.number(0.0), Jet.number(1.0)
_HALF = Jet.number(0.5)


def _negative_sign(u: Jet, low: Jet, middle: Jet, high: Jet, count: int) -> Jet:
    """One of three numbers by the sign of u."""
    value = u.value
    open_or_zero = chosen(value.high < 0, value.low >= 0, low, middle, count)
    return chosen(value.low > 0, value.high <= 0, high, open_or_zero, count)


def _sign(u: Jet, count: int) -> Jet:
    return _negative_sign(u, -_ONE, _ZERO, _ONE, count)


def _step(u: Jet, count: int) -> Jet:
    return _negative_sign(u, _ZERO, _HALF, _ONE, count)


_FUNCTIONS: dict[str, Callable[..., Jet]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "/": lambda a, b: a / b,
    "neg": Jet.__neg__,
    "abs": Jet.absolute,
    "atan": Jet.atan,
    "clip": lambda u, low, high: u.largest(low).smallest(high),
    "cos": Jet.cos,
    "cosh": Jet.cosh,
    "erf": Jet.erf,
    "exp": Jet.exp,
    "expm1": Jet.expm1,
    "log": Jet.log,
    "log1p": Jet.log1p,
    "logcosh": Jet.logcosh,
    "max": Jet.largest,
    "min": Jet.smallest,
    "relu": lambda u: u.largest(_ZERO),
    "sigmoid": Jet.sigmoid,
    "sin": Jet.sin,
    "sinh": Jet.sinh,
    "softplus": Jet.softplus,
    "sqrt": Jet.sqrt,
    "tan": Jet.tan,
    "tanh": Jet.tanh,
}


class _TreeEvaluation:
    """One evaluation on given cells; every part is computed once."""

    def __init__(self, cells: Interval, order: int) -> None:
        self.count = order + 1
        self.variable = Jet.variable(cells, order)
        self.known: dict[Node, Jet] = {}

    def of(self, node: Node) -> Jet:
        if node not in self.known:
            self.known[node] = self.made(node)
        return self.known[node]

    def made(self, node: Node) -> Jet:
        if isinstance(node, Variable):
            return self.variable
        if isinstance(node, Number) and node.name is not None:
            return Jet.number(_named(float(node.value)))
        if node.constant and (exact := exact_value(node, named=False)) is not None:
            return Jet.number(exact)
        assert isinstance(node, Operation)
        if node.name == "^":
            return self.power(node)
        if node.name == "*" and node.arguments[0] == node.arguments[1]:
            return self.of(node.arguments[0]).square()
        return self.operation(node.name, *map(self.of, node.arguments))

    def operation(self, name: str, *parts: Jet) -> Jet:
        if name in ("sign", "step"):
            (u,) = parts
            count = 1 if u.constant else self.count
            found = _sign(u, count) if name == "sign" else _step(u, count)
            return Jet(found.series[:1], constant=True) if u.constant else found
        return parts[0] * parts[1] if name == "*" else _FUNCTIONS[name](*parts)

    def power(self, node: Operation) -> Jet:
        base, exponent = self.of(node.arguments[0]), exact_value(node.arguments[1], named=False)
        if exponent is not None and Fraction(float(exponent)) == exponent:
            return base.power(float(exponent))
        # No float64 holds the exponent: u^p = e^(p ln u), for u > 0 only.
        return (self.of(node.arguments[1]) * base.log()).exp()

    def written_out(self, found: Jet) -> Jet:
        sure = torch.ones_like(self.variable.value.low, dtype=torch.bool)
        return chosen(sure, ~sure, found, found, self.count) if found.constant else found


def _named(value: float) -> Interval:
    """Between a float64 and its neighbours: what it stands for is nearer than they are."""
    ends = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    return Interval(*(torch.tensor([end], dtype=torch.float64) for end in ends))


def jets(tree: Node, cells: Interval, order: int) -> Jet:
    """Taylor coefficients 0 .. ``order`` of a tree on cells."""
    run = _TreeEvaluation(cells, order)
    return run.written_out(run.of(tree))
