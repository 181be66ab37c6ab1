"""Ball arithmetic (``flint.arb``): where it comes from, and how it is read."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from iceform.errors import BoundError, ProgramError

__all__ = ["ball_arithmetic", "balls_of", "uppermost", "whole_power"]

_FEWEST, _MOST = 53, 1 << 20
_one_at_a_time = threading.RLock()  # the number of bits is the process's, not a thread's


def ball_arithmetic() -> Any:
    """The module python-flint, or a refusal that says how to get it."""
    try:
        import flint
    except ImportError:
        raise ProgramError(
            "ball arithmetic needs python-flint, on which iceform depends, and it is missing here: "
            "pip install python-flint"
        ) from None
    return flint


@contextmanager
def balls_of(bits: int) -> Iterator[Any]:
    """python-flint with so many bits, which no other thread changes meanwhile.

    Example
    -------
    >>> with balls_of(128) as flint:
    ...     uppermost(flint.arb(2).sqrt() ** 2 - 2) < 1e-36
    True
    """
    flint = ball_arithmetic()
    if isinstance(bits, bool) or not isinstance(bits, int) or not _FEWEST <= bits <= _MOST:
        raise BoundError(
            f"bits must be a whole number from {_FEWEST}, float64's own, to {_MOST}; got {bits!r}"
        )
    with _one_at_a_time:
        before = flint.ctx.prec
        flint.ctx.prec = bits
        try:
            yield flint
        finally:
            flint.ctx.prec = before


def whole_power(ball: Any, exponent: int) -> Any:
    """A ball to a whole power; one that holds 0 too, where flint's own power is not a number."""
    if exponent < 0:
        return 1 / whole_power(ball, -exponent)
    if exponent < 2:
        return ball if exponent else ball_arithmetic().arb(1)
    if exponent % 2:
        return ball * whole_power(ball, exponent - 1)
    half = whole_power(ball, exponent // 2)
    return (half * half).nonnegative_part()  # a square is not negative, nor is its ball


def uppermost(ball: Any) -> float:
    """A double that is at least every point of a ball; 0 of the ball that is exactly 0."""
    if ball == 0:  # of balls: certainly equal
        return 0.0
    return math.nextafter(float(ball.upper()), math.inf) if ball.is_finite() else math.inf


def function_of_ball(name: str, x: Any) -> Any:
    """The enclosure of a smooth function at a ball."""
    if name == "recip":
        return 1 / x
    if name == "sigmoid":
        return 1 / (1 + (-x).exp())
    return getattr(x, name)()


def exact_end(end: Any) -> Fraction:
    """The value of a ball of radius 0, such as another one's end."""
    mantissa, exponent = (int(part) for part in end.man_exp())
    return Fraction(mantissa) * Fraction(2) ** exponent
