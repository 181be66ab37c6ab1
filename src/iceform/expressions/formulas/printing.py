"""Trees as text that parses to the same tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from iceform.arithmetic.decimals import LEAST_PLAIN
from iceform.expressions.formulas.algebra import is_decimal
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable

# How tightly each kind of tree holds together; a looser one inside a tighter is bracketed.
_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(1, 6)
_BINDING = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "neg": _SIGN, "^": _POWER}
_LONG = re.compile(r"\d*\.\d{16,}(e-?\d+)?")  # more digits than tell a float64 from others
_PLAIN = 15  # digits of a whole number that is written without an exponent


def _binding(node: Node) -> int:
    if isinstance(node, Number) and node.value < 0:
        return _SIGN
    return _BINDING.get(node.name, _ATOM) if isinstance(node, Operation) else _ATOM


def _needs(name: str) -> tuple[int, ...]:
    """The least binding each argument of an operator may have without brackets."""
    own = _BINDING[name]
    if name == "neg":
        return (own + 1,)
    if name == "^":
        return (_ATOM, _ATOM)
    # On the right a sum in a sum, or a product in a product, is bracketed: a - (b + c).
    return (own, own + 1)


def number(value: Fraction) -> str:
    """The shortest text that reads back as the same number, or the quotient that it is."""
    if not is_decimal(value):
        return f"({value.numerator}/{value.denominator})"
    digits, scale = value.numerator, 0
    # Over a power of ten: a denominator of 2^a 5^b takes max(a, b) digits.
    while (shift := value * 10**scale).denominator != 1:
        scale += 1
    digits = shift.numerator
    while digits and digits % 10 == 0:
        digits, scale = digits // 10, scale - 1
    return _decimal(digits, scale)


def _decimal(digits: int, scale: int) -> str:
    """digits/10^scale, with an exponent where that is shorter."""
    sign, written = ("-" if digits < 0 else ""), str(abs(digits))
    first = len(written) - 1 - scale  # the power of ten of the leading digit
    if scale <= 0 and first < _PLAIN:
        return sign + written + "0" * -scale
    if scale > 0 and first >= LEAST_PLAIN:
        padded = written.rjust(scale + 1, "0")
        return f"{sign}{padded[:-scale]}.{padded[-scale:]}"
    rest = f".{written[1:]}" if len(written) > 1 else ""
    return f"{sign}{written[0]}{rest}e{first}"


def text(tree: Node, variable: str) -> str:
    """As one would type it."""
    if isinstance(tree, Variable):
        return variable
    if isinstance(tree, Number):
        return tree.name or number(tree.value)
    parts = [text(a, variable) for a in tree.arguments]
    if tree.name not in _BINDING:
        return f"{tree.name}({', '.join(parts)})"
    bracketed = _bracketed(tree, parts)
    if tree.name == "neg":
        return f"-{bracketed[0]}"
    return (f" {tree.name} " if tree.name in "+-" else tree.name).join(bracketed)


def brief(written: str, most: int = 80) -> str:
    """As much of a text as a message can carry, numbers as short as a float64's."""
    written = _LONG.sub(lambda found: repr(float(found[0])), written)
    return written if len(written) <= most else f"{written[: most - 3]}..."


def _bracketed(tree: Operation, parts: Sequence[str]) -> list[str]:
    needs = _needs(tree.name)
    return [
        part if _binding(a) >= need else f"({part})"
        for a, part, need in zip(tree.arguments, parts, needs, strict=True)
    ]
