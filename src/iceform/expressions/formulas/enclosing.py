"""Trees in jets: an expression and its derivatives, enclosed on cells.

A number is the rational number that was typed. ``pi`` and ``e`` are enclosed between the float64
that stands for them and its neighbour, so that a bound holds for either reading.

**Where the branches of a choice meet.** ``where(z < c, a(z), b(z))`` is continuous at c if
a(c) = b(c), and that is only known if both are known exactly. At a point most operations give
rational numbers; of the rest a few values are known (e^0 = 1). What is not is left open.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.jets import choose, chosen
from iceform.expressions.formulas.functions import exact_values
from iceform.expressions.formulas.table import TABLE, expanded
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable, fold, parts


def jets(tree: Node, cells: Interval, order: int) -> Jet:
    """Taylor coefficients 0 .. ``order`` of a tree on cells."""
    variable = Jet.variable(cells, order)
    written, constants, joined = _in_jets(tree)

    def compute(node: Node, below: list[Any]) -> Any:
        if node in constants:
            return constants[node]
        if not isinstance(node, Operation):
            return variable
        if node in joined:
            return choose(*below, continuous=True)
        jet = TABLE[node.name].jet
        assert jet is not None, node.name
        return jet(*below)

    found: Jet = fold(written, compute)
    if not found.constant:
        return found
    sure = torch.ones_like(cells.low, dtype=torch.bool)
    return chosen(sure, ~sure, found, found, order + 1)


@lru_cache(maxsize=256)
def _in_jets(tree: Node) -> tuple[Node, dict[Node, Jet], frozenset[Node]]:
    """The tree as jets compute it, its constants, and the choices whose branches meet."""
    written = expanded(tree, lambda row: row.jet is None)
    constants = {
        node: Jet.number(value)
        for node, value in exact_values(written, named=False).items()
        if value is not None
    }
    for node in parts(written):
        if isinstance(node, Number) and node.name is not None:
            constants[node] = Jet.number(_named(float(node.value)))
    return written, constants, _joined(written)


def _named(value: float) -> Interval:
    """Between a float64 and its neighbours: what it stands for is nearer than they are."""
    ends = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    return Interval(*(torch.tensor([end], dtype=torch.float64, device="cpu") for end in ends))


def _joined(tree: Node) -> frozenset[Node]:
    """The choices whose branches are known to meet where they switch."""
    switches = {node: at for node in parts(tree) if (at := _switch(node)) is not None}
    values = {at: exact_values(tree, at, named=False) for at in set(switches.values())}
    return frozenset(node for node, at in switches.items() if values[at][node] is not None)


def _switch(node: Node) -> Fraction | None:
    """Where a choice switches, if its condition compares the variable with a number."""
    if not isinstance(node, Operation) or node.name != "where":
        return None
    condition = node.arguments[0]
    if not isinstance(condition, Operation) or condition.name not in (">", ">="):
        return None
    a, b = condition.arguments
    number = b if isinstance(a, Variable) else a if isinstance(b, Variable) else None
    return number.value if isinstance(number, Number) and number.name is None else None
