"""Simplification and symbolic differentiation."""

from __future__ import annotations

from collections.abc import Callable

from iceform.expressions.formulas.algebra import (
    ONE,
    ZERO,
    add,
    call,
    divide,
    multiply,
    negate,
    power,
    subtract,
)
from iceform.expressions.formulas.functions import exponent_of
from iceform.expressions.formulas.polynomials import shortest
from iceform.expressions.formulas.table import TABLE, is_condition
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable, fold

_BUILD: dict[str, Callable[..., Node]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "^": lambda a, b: power(a, exponent_of(b)),
    "neg": negate,
}


def canonical(tree: Node, replaced: dict[Node, Node] | None = None) -> Node:
    """The tree rebuilt, and so simplified, with other trees in place of those in ``replaced``."""
    known = dict(replaced or {})

    def rebuilt(node: Node) -> Node:
        if not isinstance(node, Operation):
            return known.get(node, node)
        if node not in known:
            known[node] = build(node.name, *(rebuilt(a) for a in node.arguments))
        return known[node]

    return rebuilt(tree)


def build(name: str, *arguments: Node) -> Node:
    """The simplified tree of any operation."""
    if name in _BUILD:
        return _BUILD[name](*arguments)
    return call(name, *arguments)


def derivative(tree: Node) -> Node:
    """d/dz by the usual rules; where a function has a kink, the mean of its two slopes."""
    return fold(tree, _rate)


def _rate(node: Node, rates: list[Node]) -> Node:
    if isinstance(node, Variable):
        return ONE
    if isinstance(node, Number) or node.constant or is_condition(node):
        return ZERO
    if node.name in _RULES:
        return _RULES[node.name](*node.arguments, *rates)
    row = TABLE[node.name]
    if row.slope is not None:
        return multiply(row.slope(*node.arguments), *rates)
    assert row.definition is not None, node.name
    return derivative(row.definition(*node.arguments))


def _of_quotient(a: Node, b: Node, da: Node, db: Node) -> Node:
    if b.constant:
        return divide(da, b)
    return divide(shortest(subtract(multiply(da, b), multiply(a, db))), power(b, 2))


def _of_power(a: Node, b: Node, da: Node, db: Node) -> Node:
    if not b.constant:  # a^b = e^(b ln a)
        return derivative(call("exp", multiply(b, call("log", a))))
    exponent = exponent_of(b)
    return multiply(multiply(Number(exponent), power(a, exponent - 1)), da)


def _of_choice(condition: Node, a: Node, b: Node, rate: Node, da: Node, db: Node) -> Node:
    return Operation("where", (condition, da, db))


def _of_max(a: Node, b: Node, da: Node, db: Node) -> Node:
    return add(db, multiply(call("step", subtract(a, b)), subtract(da, db)))


def _of_min(a: Node, b: Node, da: Node, db: Node) -> Node:
    return add(db, multiply(call("step", subtract(b, a)), subtract(da, db)))


def _of_clip(a: Node, low: Node, high: Node, da: Node, *ends: Node) -> Node:
    inside = multiply(call("step", subtract(a, low)), call("step", subtract(high, a)))
    return multiply(inside, da)


_RULES: dict[str, Callable[..., Node]] = {
    "+": lambda a, b, da, db: add(da, db),
    "-": lambda a, b, da, db: subtract(da, db),
    "*": lambda a, b, da, db: add(multiply(da, b), multiply(a, db)),
    "/": _of_quotient,
    "^": _of_power,
    "neg": lambda a, da: negate(da),
    "where": _of_choice,
    "max": _of_max,
    "min": _of_min,
    "clip": _of_clip,
}
