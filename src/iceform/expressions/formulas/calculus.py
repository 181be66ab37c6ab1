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
from iceform.expressions.formulas.functions import UNARY, exponent_of
from iceform.expressions.formulas.polynomials import shortest
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable

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
    known: dict[Node, Node] = {}

    def rate(node: Node) -> Node:
        if node not in known:
            known[node] = differentiate(node)
        return known[node]

    def differentiate(node: Node) -> Node:
        if isinstance(node, Variable):
            return ONE
        if isinstance(node, Number) or node.constant:
            return ZERO
        if node.name in UNARY or node.name == "^":
            return multiply(outer_derivative(node), rate(node.arguments[0]))
        return _RULES[node.name](*node.arguments, *(rate(a) for a in node.arguments))

    return rate(tree)


def outer_derivative(node: Operation) -> Node:
    """g'(u) of the function or power g(u)."""
    u = node.arguments[0]
    if node.name == "^":
        exponent = exponent_of(node.arguments[1])
        return multiply(Number(exponent), power(u, exponent - 1))
    return UNARY[node.name].outer(u)


def _of_quotient(a: Node, b: Node, da: Node, db: Node) -> Node:
    if b.constant:
        return divide(da, b)
    return divide(shortest(subtract(multiply(da, b), multiply(a, db))), power(b, 2))


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
    "neg": lambda a, da: negate(da),
    "max": _of_max,
    "min": _of_min,
    "clip": _of_clip,
}
