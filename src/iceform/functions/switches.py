"""Where the branches of a choice meet: a tape at a point, in rational numbers.

``torch.where(z < c, a(z), b(z))`` is continuous at c if a(c) = b(c), and that is only known if both
are known exactly. At a point most operations give rational numbers; of the rest a few values are
known (e^0 = 1). What is not is left open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from iceform.functions.tracing import Step, Tape, Use

__all__ = ["exact_at", "switches"]

_COMPARISONS = frozenset({"gt", "ge", "lt", "le"})
_ZERO, _ONE = Fraction(0), Fraction(1)
_MOST_BITS = 1 << 14  # of a rational number that is worth having

# At 0 these are 0; e^0 and cos 0 are 1.
_ODD = ("asinh", "atan", "erf", "expm1", "gelu", "log1p", "mish", "silu", "sin", "sinh", "sqrt",
        "tan", "tanh")  # fmt: skip
_EVEN = ("cos", "cosh", "exp", "exp2")

Exact = Fraction | None


def switches(tape: Tape) -> dict[int, Fraction]:
    """The places c of comparisons of the variable itself with a number, by their steps."""
    found = {}
    for k, step in enumerate(tape.steps):
        numbers = [a for a in step.arguments if isinstance(a, float) and math.isfinite(a)]
        if step.name in _COMPARISONS and Use(0) in step.arguments and len(numbers) == 1:
            found[k] = Fraction(numbers[0])
    return found


def exact_at(tape: Tape, point: Fraction) -> list[Exact]:
    """The value of every step at a point; None where it is not known exactly."""
    known: list[Exact] = []
    for step in tape.steps:
        value = point if step.name == "variable" else _value(step, known)
        small = value is not None and value.numerator.bit_length() <= _MOST_BITS
        known.append(value if small else None)
    return known


def _value(step: Step, known: list[Exact]) -> Exact:
    if step.options:
        return None
    parts = [_number(a, known) for a in step.arguments]
    if step.name in _ODD + _EVEN:
        at_zero = _ZERO if step.name in _ODD else _ONE
        return at_zero if parts[:1] == [_ZERO] and len(parts) == 1 else None
    if step.name == "where":
        return parts[1] if len(parts) == 3 and parts[1] == parts[2] else None
    if step.name not in _RATIONAL or any(p is None for p in parts):
        return None
    try:
        return _RATIONAL[step.name](*parts)
    except (TypeError, ZeroDivisionError):
        return None


def _number(argument: Any, known: list[Exact]) -> Exact:
    if isinstance(argument, Use):
        return known[argument.step]
    finite = isinstance(argument, float) and math.isfinite(argument)
    return Fraction(argument) if finite else None


def _power(base: Fraction, exponent: Fraction) -> Exact:
    whole = exponent.denominator == 1 and 0 <= exponent <= 16
    return base ** int(exponent) if whole else None


_RATIONAL: dict[str, Callable[..., Exact]] = {
    "abs": abs,
    "add": lambda a, b: a + b,
    "clamp": lambda u, low, high: min(max(u, low), high),
    "clamp_max": min,
    "clamp_min": max,
    "clone": lambda u: u,
    "div": lambda a, b: a / b,
    "full_like": lambda u, value: value,
    "maximum": max,
    "minimum": min,
    "mul": lambda a, b: a * b,
    "neg": lambda u: -u,
    "ones_like": lambda u: _ONE,
    "pow": _power,
    "reciprocal": lambda u: 1 / u,
    "relu": lambda u: max(u, _ZERO),
    "rsub": lambda a, b: b - a,
    "square": lambda u: u * u,
    "sub": lambda a, b: a - b,
    "zeros_like": lambda u: _ZERO,
}
