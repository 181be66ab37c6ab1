"""Trees computed: in torch, in rational numbers, in balls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.arithmetic.balls import number
from iceform.expressions.formulas.table import MOST_BITS, TABLE, expanded, is_condition
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable, fold, parts
from iceform.validation import full_precision

Value = Tensor | float
Exact = Fraction | None
Ball = Any  # flint.arb, which ships no types


def evaluate(tree: Node, z: Tensor) -> Tensor:
    """The tree at every entry of ``z``; common parts are computed once."""
    written, constants = _in_torch(tree)

    def compute(node: Node, below: list[Value]) -> Value:
        if node in constants:
            return constants[node]
        if not isinstance(node, Operation):
            return z
        if TABLE[node.name].condition or node.name == "where":
            below = [b if isinstance(b, Tensor) else torch.full_like(z, b) for b in below]
        value: Value = _compute(node.name)(*below)
        return value

    out = fold(written, compute)
    return torch.full_like(z, out) if isinstance(out, float) else out


@lru_cache(maxsize=256)
def _in_torch(tree: Node) -> tuple[Node, dict[Node, float]]:
    """The tree as torch computes it, and the values of its parts without the variable."""
    written = expanded(tree, lambda row: row.value is None)
    numbers = [n for n in parts(written) if n.constant and not is_condition(n)]
    return written, {node: constant_value(node) for node in numbers}


def _compute(name: str) -> Callable[..., Any]:
    found = TABLE[name].value
    assert found is not None, name
    return found


@full_precision
def constant_value(tree: Node) -> float:
    """The value of a tree without the variable, in float64; NaN or infinite where it has none."""
    if isinstance(tree, Number):
        return float(tree.value)
    written = expanded(tree, lambda row: row.value is None)
    exact = exact_values(written)

    def compute(node: Node, below: list[Tensor]) -> Tensor:
        value = exact[node]
        if value is not None and abs(value) <= sys.float_info.max:
            return torch.tensor(float(value), dtype=torch.float64)
        assert isinstance(node, Operation)
        computed: Tensor = _compute(node.name)(*below)
        return computed

    return float(fold(written, compute))


def exact_values(
    tree: Node, at: Fraction | None = None, *, named: bool = True
) -> dict[Node, Exact]:
    """The value of every part of a tree as a rational number, where it is known to be one.

    ``at`` is that of the variable. Numbers that were typed by name count as the float64 that they
    hold, unless ``named`` is False.
    """
    known: dict[Node, Exact] = {}
    for node in parts(tree):
        if isinstance(node, Number):
            known[node] = node.value if named or node.name is None else None
        elif isinstance(node, Variable):
            known[node] = at
        else:
            known[node] = _exact(node.name, [known[a] for a in node.arguments])
    return known


def _exact(name: str, below: list[Exact]) -> Exact:
    if name == "where":  # of which one side may be all that holds at a point
        return below[1] if below[1] == below[2] else None
    rational = TABLE[name].rational
    whole = [b for b in below if b is not None]
    if rational is None or len(whole) < len(below) or sum(map(_bits, whole)) > MOST_BITS:
        return None
    return rational(*whole)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def exact_value(tree: Node, *, named: bool = True) -> Fraction | None:
    """The value of a tree without the variable as a rational number, where it is one."""
    return exact_values(tree, named=named)[tree]


def exponent_of(tree: Node) -> Fraction:
    """An exponent: exact, or the float64 that a constant such as sqrt(2) comes to."""
    exact = exact_value(tree)
    return Fraction(constant_value(tree)) if exact is None else exact


def ball_function(tree: Node) -> Callable[[Ball], Ball]:
    """The tree as a function of a ball, or of an array of balls: an enclosure of its values."""
    written, exact = _in_balls(tree)

    def compute(z: Ball, node: Node, below: list[Ball]) -> Ball:
        value = exact[node]
        if isinstance(node, Number):
            return number(node.value, node.name)
        if value is not None:
            return number(value)
        if not isinstance(node, Operation):
            return z
        ball = TABLE[node.name].ball
        assert ball is not None, node.name
        return np.frompyfunc(ball, len(below), 1)(*below)

    def enclosed(z: Ball) -> Ball:
        found = fold(written, lambda node, below: compute(z, node, below))
        return np.full(z.shape, found) if isinstance(z, np.ndarray) and tree.constant else found

    return enclosed


@lru_cache(maxsize=256)
def _in_balls(tree: Node) -> tuple[Node, dict[Node, Exact]]:
    """The tree as balls compute it, and the parts that are rational numbers."""
    written = expanded(tree, lambda row: row.ball is None)
    return written, exact_values(written, named=False)
