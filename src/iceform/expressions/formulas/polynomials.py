"""Trees that are polynomials, exactly: over the rationals, as numbers are typed."""

from __future__ import annotations

import sys
from fractions import Fraction

from iceform.expressions.formulas.algebra import ZERO, add, is_decimal, multiply, power
from iceform.expressions.formulas.functions import exact_value, exponent_of
from iceform.expressions.formulas.trees import Node, Number, Variable, fold

MOST_DEGREE = 16

Polynomial = tuple[Fraction, ...]  # coefficients, constant first, no zeros at the end


def polynomial(tree: Node) -> Polynomial | None:
    """The coefficients of a tree that is a polynomial of low degree, as rational numbers."""
    return fold(tree, _coefficients)


def _coefficients(node: Node, below: list[Polynomial | None]) -> Polynomial | None:
    if isinstance(node, Variable):
        return (Fraction(0), Fraction(1))
    if isinstance(node, Number) or node.constant:
        value = exact_value(node)
        return None if value is None else _trimmed([value])
    if node.name == "^" and node.arguments[1].constant:
        return _poly_power(below[0], exponent_of(node.arguments[1]))
    known = [p for p in below if p is not None]
    if node.name not in ("+", "-", "*", "/", "neg") or len(known) < len(below):
        return None
    return _poly_combined(node.name, known)


def _poly_combined(name: str, parts: list[Polynomial]) -> Polynomial | None:
    if name == "neg":
        return _poly_product(parts[0], (Fraction(-1),))
    if name == "*":
        return _poly_product(*parts)
    if name == "/":
        return _poly_product(parts[0], (1 / parts[1][0],)) if len(parts[1]) == 1 else None
    a, b = parts
    width = max(len(a), len(b))
    flip = 1 if name == "+" else -1
    return _trimmed([_at(a, k) + flip * _at(b, k) for k in range(width)])


def _poly_power(factor: Polynomial | None, exponent: Fraction) -> Polynomial | None:
    if factor is None or exponent.denominator != 1 or not 0 <= exponent <= MOST_DEGREE:
        return None
    out: Polynomial | None = (Fraction(1),)
    for _ in range(int(exponent)):
        out = None if out is None else _poly_product(out, factor)
    return out


def _poly_product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    if len(a) + len(b) > MOST_DEGREE + 2:
        return None
    out = [Fraction(0)] * max(len(a) + len(b) - 1, 0)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return _trimmed(out)


def _trimmed(coefficients: list[Fraction]) -> Polynomial:
    while coefficients and coefficients[-1] == 0:
        coefficients = coefficients[:-1]
    return tuple(coefficients)


def _at(coefficients: Polynomial, k: int) -> Fraction:
    return coefficients[k] if k < len(coefficients) else Fraction(0)


def value_at(coefficients: Polynomial, at: Fraction) -> Fraction:
    """The polynomial at a rational number."""
    return sum((c * at**k for k, c in enumerate(coefficients)), Fraction(0))


def line(tree: Node) -> tuple[float, float] | None:
    """Slope and intercept of a tree that is a straight line."""
    known = polynomial(tree)
    if known is None or len(known) > 2 or not all(abs(c) <= sys.float_info.max for c in known):
        return None
    return float(_at(known, 1)), float(_at(known, 0))


def shortest(tree: Node) -> Node:
    """A polynomial written out, where that is shorter and its coefficients are decimals."""
    known = polynomial(tree)
    if known is None or not all(map(is_decimal, known)):
        return tree
    written: Node = ZERO
    for k in reversed(range(len(known))):
        term = multiply(Number(known[k]), power(Variable(), k))
        written = add(written, term)
    return written if written.size < tree.size else tree
