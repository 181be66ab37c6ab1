"""Curves: what an instruction's F and G are made of, and what is known of them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import torch

from iceform.arithmetic.intervals import above
from iceform.computer.enclosures import slope
from iceform.computer.forms import affine, compose, operation
from iceform.computer.ranges import Range
from iceform.computer.virtual import Curve, Step
from iceform.functions.formulas import trees
from iceform.functions.formulas.functions import evaluate

__all__ = [
    "at_zero", "mirrored", "negative", "quarter_square", "scale_of", "steepest",
    "times",
]  # fmt: skip

_PLAIN_SIZE = 32.0  # values of sizes from 1/32 to 32 are held as they are
_MOST_BITS = 300  # of a scale: a product of three is still a number, and one over it too


def quarter_square(k: float, shift: float) -> trees.Node:
    """A quarter of k (z + shift)^2."""
    square = operation("^", affine(1.0, shift), 2.0)
    return operation("*", 0.25 * k, square)


def steepest(curve: Curve, on: Range) -> float:
    """Bound of the slope of a curve away from the gap of a step."""
    if isinstance(curve, Step):
        return 2 * curve.sharpness * curve.beside()
    low, high = (
        slope(curve, on.low, on.high)
        if on.low < on.high
        else slope(curve, on.low - 2.0**-20, on.high + 2.0**-20)
    )
    return max(abs(low), abs(high))


def mirrored(curve: Curve) -> Curve:
    """The curve of -z."""
    if isinstance(curve, Step):
        return replace(curve, at=-curve.at, height=-curve.height)
    return compose(curve, affine(-1.0, 0.0))


def negative(curve: Curve) -> Curve:
    """-curve."""
    if isinstance(curve, Step):
        return replace(curve, offset=-curve.offset, height=-curve.height)
    return operation("neg", curve)


def times(curve: Curve, factor: float) -> Curve:
    """A curve by a power of two."""
    if isinstance(curve, Step):
        off = above(abs(Fraction(factor)) * Fraction(curve.off))
        return replace(curve, offset=factor * curve.offset, height=factor * curve.height, off=off)
    return operation("*", factor, curve)


def scale_of(range: Range) -> float:
    """The power of two that a register divides a value by: 1 unless it is large or small.

    A product by squares is off by rounding of the square of the larger factor.
    """
    if range.size == 0 or 1 / _PLAIN_SIZE <= range.size <= _PLAIN_SIZE:
        return 1.0
    return 2.0 ** max(-_MOST_BITS, min(round(math.log2(range.size)), _MOST_BITS))


def at_zero(curve: Curve) -> float:
    """The value at 0; 1 for a step, which has none there."""
    if isinstance(curve, Step):
        return 1.0
    return float(evaluate(curve, torch.zeros(1, dtype=torch.float64)))
