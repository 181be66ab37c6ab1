"""Ranges of scalar functions: a tree evaluated in interval arithmetic on the cells of a range.

Bounds are rounded outward; see :mod:`iceform.functions.formulas.intervals` for what is taken for
granted of torch's functions. Kinks and jumps are no obstacle: both branches are joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from iceform.functions.formulas.calculus import derivative
from iceform.functions.formulas.functions import constant_value
from iceform.functions.formulas.intervals import Interval, jet
from iceform.functions.formulas.trees import Node, Number, Operation, Variable

__all__ = ["enclosed", "natural", "slope", "values_on"]

_CELLS = 256  # a range is cut into
_Z = Variable()


@lru_cache(maxsize=4096)
def enclosed(tree: Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of the values on [low, high]; infinite where there are none."""
    found = natural(tree, _cells(low, high))
    return float(found.low.min()), float(found.high.max())


@lru_cache(maxsize=4096)
def slope(tree: Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of the difference quotients on [low, high], kinks included."""
    found = natural(derivative(tree), _cells(low, high))
    return float(found.low.min()), float(found.high.max())


def values_on(tree: Node, low: Tensor, high: Tensor) -> Interval:
    """The values on each of many intervals."""
    return natural(tree, Interval(low, high))


def _cells(low: float, high: float) -> Interval:
    edges = torch.linspace(low, high, _CELLS + 1, dtype=torch.float64)
    edges[0], edges[-1] = low, high
    return Interval(edges[:-1], edges[1:])


def natural(tree: Node, cells: Interval) -> Interval:
    """The natural interval extension: every operation by its own range."""
    if isinstance(tree, Variable):
        return cells
    if isinstance(tree, Number) or tree.constant:
        value = constant_value(tree)
        wide = 0.0 if isinstance(tree, Number) else 2.0**-44 * abs(value)
        full = torch.full_like(cells.low, value)
        return Interval(full - wide, full + wide)
    parts = [natural(a, cells) for a in tree.arguments]
    return _operation(tree, parts)


def _operation(tree: Operation, parts: list[Interval]) -> Interval:
    name, first = tree.name, parts[0]
    if name in _PLAIN:
        return _PLAIN[name](*parts)
    if name == "*":
        return _square(first) if tree.arguments[0] == tree.arguments[1] else first * parts[1]
    if name == "/":
        inverse = jet(Operation("^", (_Z, Number(-1.0))), parts[1], 0)[0]
        return first * inverse
    if name == "^":
        return jet(Operation("^", (_Z, tree.arguments[1])), first, 0)[0]
    return jet(Operation(name, (_Z,)), first, 0)[0]


def _square(u: Interval) -> Interval:
    return u.absolute * u.absolute


def _relu(u: Interval) -> Interval:
    return Interval(u.low.clamp(min=0.0), u.high.clamp(min=0.0))


def _sign(u: Interval) -> Interval:
    return Interval(torch.sign(u.low), torch.sign(u.high))


def _step(u: Interval) -> Interval:
    return Interval(0.5 * (1 + torch.sign(u.low)), 0.5 * (1 + torch.sign(u.high)))


def _larger(a: Interval, b: Interval) -> Interval:
    return Interval(torch.maximum(a.low, b.low), torch.maximum(a.high, b.high))


def _smaller(a: Interval, b: Interval) -> Interval:
    return Interval(torch.minimum(a.low, b.low), torch.minimum(a.high, b.high))


_PLAIN: dict[str, Callable[..., Interval]] = {
    "neg": lambda u: -u,
    "+": lambda u, v: u + v,
    "-": lambda u, v: u - v,
    "abs": lambda u: u.absolute,
    "relu": _relu,
    "sign": _sign,
    "step": _step,
    "max": _larger,
    "min": _smaller,
    "clip": lambda u, low, high: _smaller(_larger(u, low), high),
}


def finite(bounds: tuple[float, float]) -> bool:
    """Whether there are bounds."""
    return math.isfinite(bounds[0]) and math.isfinite(bounds[1])
