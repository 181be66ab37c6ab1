"""Numbers of a proof as decimals that keep it true.

A bound that is printed with three digits is a statement of its own: rounded to nearest, it is false
about every other time. So an upper bound is printed by :func:`at_most`, which rounds up, a lower
bound by :func:`at_least`, which rounds down, and a number that is both, or an end of a domain, by
:func:`exactly`. Rounding is that of :mod:`decimal` on the exact value of the float.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from iceform.errors import ProgramError

_FORM = re.compile(r"\.(\d+)([eg])")
_WIDEST = 9999  # exponents: far beyond what a float has
LEAST_PLAIN = -4  # the least power of ten of a leading digit that is written without one


def at_most(value: float, form: str = ".3e") -> str:
    """The least decimal of that form which is not below ``value``.

    ``form`` is as for floats: ".3e" has three digits behind the point, ".3g" three in all.

    Examples
    --------
    >>> at_most(1 / 3), at_most(1 / 3, ".3g")
    ('3.334e-01', '0.334')
    """
    return _directed(value, form, ROUND_CEILING)


def at_least(value: float, form: str = ".3e") -> str:
    """The largest decimal of that form which is not above ``value``.

    Examples
    --------
    >>> at_least(2 / 3), at_least(2 / 3, ".3g")
    ('6.666e-01', '0.666')
    """
    return _directed(value, form, ROUND_FLOOR)


def exactly(value: float, digits: int = 6) -> str:
    """A float in so many digits where they give it back, else in as many as do.

    Examples
    --------
    >>> exactly(0.5), exactly(1 / 3)
    ('0.5', '0.3333333333333333')
    """
    short = f"{value:.{digits}g}"
    return short if float(short) == value or math.isnan(value) else repr(float(value))


def _directed(value: float, form: str, rounding: str) -> str:
    found = _FORM.fullmatch(form)
    if found is None:
        raise ProgramError(f"bounds are printed in forms such as .3e and .3g, got {form!r}")
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return format(value, form)
    digits, kind = int(found[1]) + (found[2] == "e"), found[2]
    context = Context(max(1, digits), rounding, -_WIDEST, _WIDEST)
    return _written(context.create_decimal(Decimal(value)), max(1, digits), kind)


def _written(rounded: Decimal, digits: int, kind: str) -> str:
    """As Python writes floats in that form: a decimal may lie between two of them."""
    power = rounded.adjusted()
    if kind == "g" and LEAST_PLAIN <= power < digits:
        text = f"{rounded:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    sign, held, _ = rounded.as_tuple()
    spelled = "".join(map(str, held)).ljust(digits, "0")
    mantissa = (spelled[0] + "." + spelled[1:]).rstrip("0" if kind == "g" else "").rstrip(".")
    return f"{'-' * sign}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"
