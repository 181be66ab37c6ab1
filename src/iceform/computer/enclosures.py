"""Ranges of scalar functions: a tree enclosed on the cells of a range.

Kinks and jumps are no obstacle: both branches are joined.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from iceform.arithmetic import Interval
from iceform.functions.formulas.calculus import derivative
from iceform.functions.formulas.enclosing import jets
from iceform.functions.formulas.trees import Node

__all__ = ["enclosed", "slope"]

_CELLS = 256  # a range is cut into


@lru_cache(maxsize=4096)
def enclosed(tree: Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of the values on [low, high]; infinite where there are none."""
    found = jets(tree, _cells(low, high), 0).value
    return float(found.low.min()), float(found.high.max())


@lru_cache(maxsize=4096)
def slope(tree: Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of the difference quotients on [low, high], kinks included."""
    return enclosed(derivative(tree), low, high)


def _cells(low: float, high: float) -> Interval:
    edges = torch.linspace(low, high, _CELLS + 1, dtype=torch.float64)
    edges[0], edges[-1] = low, high
    return Interval(edges[:-1], edges[1:])
