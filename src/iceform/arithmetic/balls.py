"""Ball arithmetic (``flint.arb``): where it comes from, and how it is read."""

from __future__ import annotations

import math
from typing import Any

from iceform.errors import ProgramError

__all__ = ["ball_arithmetic", "uppermost"]


def ball_arithmetic() -> Any:
    """The module python-flint, or a refusal that says how to get it."""
    try:
        import flint
    except ImportError:
        raise ProgramError(
            "ball arithmetic needs python-flint; install it with pip install 'iceform[rigor]'"
        ) from None
    return flint


def uppermost(ball: Any) -> float:
    """A double that is at least every point of a ball; 0 of the ball that is exactly 0."""
    if ball == 0:  # of balls: certainly equal
        return 0.0
    return math.nextafter(float(ball.upper()), math.inf) if ball.is_finite() else math.inf
