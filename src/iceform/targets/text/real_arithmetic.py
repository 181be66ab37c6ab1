"""Real numbers for a text: every result as a ball that holds the exact one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from iceform import tuning
from iceform.arithmetic.balls import exact_end, function_of_ball
from iceform.errors import ProgramError
from iceform.targets.text.syntax import ProgramLine
from iceform.targets.text.words import TextSizes, TextWord


class BallArithmetic:
    """Results as balls of python-flint, which hold the exact ones."""

    def __init__(self, flint: Any, sizes: TextSizes) -> None:
        self.flint, self.one = flint, 1 << sizes.format.fraction

    def number(self, word: TextWord) -> Any:
        """A number as it was before it became a word."""
        units = Fraction(word.units)  # type: ignore[arg-type]
        return self.flint.arb(units.numerator) / self.flint.arb(units.denominator * self.one)

    def compute(self, operation: str, operands: list[Any]) -> Any:
        """The exact result's ball."""
        if operation in _IN_BALLS:
            return _IN_BALLS[operation](*operands)
        x = operands[0]
        if operation == "step":
            return self.flint.arb(1 if self.positive(x) else 0)
        if operation == "floor":
            return self.flint.arb(self.floor(x))
        return function_of_ball(operation, x)

    def positive(self, x: Any) -> bool:
        """Whether a number is larger than 0; refused where its ball does not say."""
        if x > 0:
            return True
        if x <= 0:
            return False
        raise ProgramError(
            f"the exact run meets a number of which {tuning.TEXT_RUN_BITS} bits do not say whether "
            "it is positive, so what rounding loses here is unknown."
        )

    def floor(self, x: Any) -> int:
        """The largest whole number that is not larger; refused where the ball does not say."""
        low, high = (math.floor(exact_end(end)) for end in (x.lower(), x.upper()))
        if low != high:
            raise ProgramError("the exact run meets a floor that its ball does not decide.")
        return low

    def holds(self, test: str, value: Any, line: ProgramLine) -> bool:
        """Whether a ball passes a test against 0."""
        if test in (">", "<="):
            return self.positive(value) == (test == ">")
        return self.positive(-value) == (test == "<")

    def index(self, value: Any) -> int | None:
        """The whole number that a ball is, or None."""
        low, high = value.lower(), value.upper()
        if low != high:
            return None
        number = exact_end(low)
        return int(number) if number.denominator == 1 else None

    def nearest(self, value: Any) -> int:
        """The whole number nearest to a ball; refused where it does not say."""
        return self.floor(value + self.flint.arb(1) / 2)


_IN_BALLS: dict[str, Any] = {
    "copy": lambda a: a,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "max": lambda a, b: a.max(b),
    "min": lambda a, b: a.min(b),
    "c + a * b": lambda c, a, b: c + a * b,
    "c - a * b": lambda c, a, b: c - a * b,
    "abs": abs,
}
