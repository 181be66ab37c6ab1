"""Trees as text that parses to the same tree, and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iceform.functions.formulas.trees import Node, Number, Operation, Variable

__all__ = ["brief", "latex", "text"]

# How tightly each kind of tree holds together; a looser one inside a tighter is bracketed.
_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(1, 6)
_BINDING = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "neg": _SIGN, "^": _POWER}
_BRIEF = 80  # characters
_LATEX_NAMES = {"atan": r"\arctan", "tan": r"\tan", "tanh": r"\tanh", "sin": r"\sin",
                "sinh": r"\sinh", "cos": r"\cos", "cosh": r"\cosh", "exp": r"\exp",
                "log": r"\log", "min": r"\min", "max": r"\max"}  # fmt: skip


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


def number(value: float) -> str:
    """The shortest text that reads back as the same float64."""
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return re.sub(r"e\+?(-?)0*", r"e\1", repr(value))


def text(tree: Node, variable: str) -> str:
    """As one would type it."""
    if isinstance(tree, Variable):
        return variable
    if isinstance(tree, Number):
        return tree.name or number(tree.value)
    parts = [text(a, variable) for a in tree.arguments]
    if tree.name not in _BINDING:
        return f"{tree.name}({', '.join(parts)})"
    bracketed = _bracketed(tree, parts, "(", ")")
    if tree.name == "neg":
        return f"-{bracketed[0]}"
    return (f" {tree.name} " if tree.name in "+-" else tree.name).join(bracketed)


def brief(written: str) -> str:
    """As much of a text as a message can carry."""
    return written if len(written) <= _BRIEF else f"{written[: _BRIEF - 3]}..."


def _bracketed(tree: Operation, parts: Sequence[str], left: str, right: str) -> list[str]:
    needs = _needs(tree.name)
    return [
        part if _binding(a) >= need else f"{left}{part}{right}"
        for a, part, need in zip(tree.arguments, parts, needs, strict=True)
    ]


def latex(tree: Node, variable: str) -> str:
    """For a page that sets mathematics."""
    if isinstance(tree, Variable):
        return variable
    if isinstance(tree, Number):
        return _latex_number(tree)
    parts = [latex(a, variable) for a in tree.arguments]
    if tree.name in _BINDING:
        return _latex_operator(tree, parts)
    if tree.name == "abs":
        return rf"\left|{parts[0]}\right|"
    if tree.name == "sqrt":
        return rf"\sqrt{{{parts[0]}}}"
    name = _LATEX_NAMES.get(tree.name, rf"\operatorname{{{tree.name}}}")
    return rf"{name}\left({', '.join(parts)}\right)"


def _latex_number(tree: Number) -> str:
    if tree.name is not None:
        return r"\pi" if tree.name == "pi" else tree.name
    mantissa, _, exponent = number(tree.value).partition("e")
    return rf"{mantissa} \cdot 10^{{{exponent}}}" if exponent else mantissa


def _latex_operator(tree: Operation, parts: list[str]) -> str:
    if tree.name == "/":
        return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
    exponent = parts[-1]
    bracketed = _bracketed(tree, parts, r"\left(", r"\right)")
    if tree.name == "^":
        return f"{{{bracketed[0]}}}^{{{exponent}}}"
    if tree.name == "neg":
        return f"-{bracketed[0]}"
    return {"+": " + ", "-": " - ", "*": r" \cdot "}[tree.name].join(bracketed)
