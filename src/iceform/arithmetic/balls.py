"""Ball arithmetic (``flint.arb``): where it comes from, and how it is read."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from iceform.errors import BoundError, ProgramError

__all__ = ["ball_arithmetic", "balls_of", "uppermost", "whole_power"]

_FEWEST, _MOST = sys.float_info.mant_dig, 1 << 20
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


# ---------------------------------------------------------------------------------------------
# functions and choices
# ---------------------------------------------------------------------------------------------


def number(value: Fraction, name: str | None = None) -> Any:
    """A rational number, or what the name of a number stands for."""
    flint = ball_arithmetic()
    named = {"pi": flint.arb.pi, "e": flint.arb.const_e}.get(name or "")
    return flint.arb(flint.fmpq(value.numerator, value.denominator)) if named is None else named()


def power(ball: Any, exponent: Any) -> Any:
    """A ball to the power of another one."""
    if exponent.is_integer():
        return whole_power(ball, int(exponent.unique_fmpz()))
    return ball**exponent


def sigmoid(u: Any) -> Any:
    """1/(1 + e^-u)."""
    return 1 / (1 + (-u).exp())


def softplus(u: Any) -> Any:
    """ln(1 + e^u) = max(u, 0) + ln(1 + e^-|u|)."""
    return u.max(u * 0) + (-abs(u)).exp().log1p()


def logcosh(u: Any) -> Any:
    """ln cosh u = |u| + ln(1 + e^(-2|u|)) - ln 2."""
    size = abs(u)
    return size + (-2 * size).exp().log1p() - ball_arithmetic().arb.const_log2()


def sign(u: Any) -> Any:
    """-1, 0 or 1; what there is between of a ball that holds 0 and more."""
    return u.sgn()


def above(a: Any, b: Any) -> bool | None:
    """Whether a > b; None where the balls leave that open."""
    return bool(a > b) if a > b or a <= b else None


def same(a: Any, b: Any) -> bool | None:
    """Whether a = b; None where the balls leave that open."""
    return bool(a == b) if a == b or not a.overlaps(b) else None


def negated(condition: bool | None) -> bool | None:
    """Not a condition."""
    return None if condition is None else not condition


def both(a: bool | None, b: bool | None) -> bool | None:
    """Two conditions at once."""
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def chosen(condition: bool | None, a: Any, b: Any) -> Any:
    """a or b by a condition; both where that is open."""
    if condition is None:
        return a.union(b)
    return a if condition else b


def function_of_ball(name: str, x: Any) -> Any:
    """The enclosure of a smooth function at a ball."""
    if name == "recip":
        return 1 / x
    if name == "sigmoid":
        return sigmoid(x)
    return getattr(x, name)()


def exact_end(end: Any) -> Fraction:
    """The value of a ball of radius 0, such as another one's end."""
    mantissa, exponent = (int(part) for part in end.man_exp())
    return Fraction(mantissa) * Fraction(2) ** exponent
