"""The functions of the language: what each computes in torch, and its derivative as a tree."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.expressions.formulas.algebra import (
    ONE,
    ZERO,
    add,
    call,
    divide,
    multiply,
    negate,
    power,
)
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable
from iceform.validation import full_precision

_LINEAR_FROM = 40.0  # softplus(u) - u < e^-40, far below an ulp of u
_LOG_2 = math.log(2.0)


@dataclass(frozen=True)
class Unary:
    """A function of one argument.

    Attributes
    ----------
    compute
        Elementwise, by torch operations that autograd differentiates four times.
    outer
        The tree of g'(u) from that of u.
    """

    compute: Callable[[Tensor], Tensor]
    outer: Callable[[Node], Node]


def _softplus(u: Tensor) -> Tensor:
    return F.softplus(u, threshold=_LINEAR_FROM)


def _logcosh(u: Tensor) -> Tensor:
    """log1p(2 sinh(u/2)^2) near 0, |u| + log1p(e^(-2|u|)) - log 2 elsewhere.

    Each branch sees only arguments at which it and its derivatives are accurate.
    """
    near = u.abs() < 1
    small = torch.where(near, u, 0.0)
    large = torch.where(near, 1.0, u).abs()
    middle = torch.log1p(2 * torch.sinh(small / 2).square())
    return torch.where(near, middle, large + torch.log1p(torch.exp(-2 * large)) - _LOG_2)


def _step(u: Tensor) -> Tensor:
    return 0.5 * (1 + torch.sign(u))


def _zero(u: Node) -> Node:
    return ZERO


def _times_mirror(u: Node) -> Node:
    """The sigmoid's slope s(u) s(-u); s(u) (1 - s(u)) would round relative to 1, not to itself."""
    return multiply(call("sigmoid", u), call("sigmoid", negate(u)))


def _sech_squared(u: Node) -> Node:
    return multiply(Number(Fraction(4)), _times_mirror(multiply(Number(Fraction(2)), u)))


def _normal(u: Node) -> Node:
    """2 exp(-u^2)/sqrt(pi), the slope of erf."""
    scale = divide(Number(Fraction(2)), call("sqrt", Number(Fraction(math.pi), "pi")))
    return multiply(scale, call("exp", negate(power(u, 2))))


UNARY: dict[str, Unary] = {
    "abs": Unary(torch.abs, lambda u: call("sign", u)),
    "atan": Unary(torch.atan, lambda u: divide(ONE, add(ONE, power(u, 2)))),
    "cos": Unary(torch.cos, lambda u: negate(call("sin", u))),
    "cosh": Unary(torch.cosh, lambda u: call("sinh", u)),
    "erf": Unary(torch.erf, _normal),
    "exp": Unary(torch.exp, lambda u: call("exp", u)),
    "expm1": Unary(torch.expm1, lambda u: call("exp", u)),
    "log": Unary(torch.log, lambda u: divide(ONE, u)),
    "log1p": Unary(torch.log1p, lambda u: divide(ONE, add(ONE, u))),
    "logcosh": Unary(_logcosh, lambda u: call("tanh", u)),
    "relu": Unary(torch.relu, lambda u: call("step", u)),
    "sigmoid": Unary(torch.sigmoid, _times_mirror),
    "sign": Unary(torch.sign, _zero),
    "sin": Unary(torch.sin, lambda u: call("cos", u)),
    "sinh": Unary(torch.sinh, lambda u: call("cosh", u)),
    "softplus": Unary(_softplus, lambda u: call("sigmoid", u)),
    "sqrt": Unary(torch.sqrt, lambda u: divide(Number(Fraction(1, 2)), call("sqrt", u))),
    "step": Unary(_step, _zero),
    "tan": Unary(torch.tan, lambda u: add(ONE, power(call("tan", u), 2))),
    "tanh": Unary(torch.tanh, _sech_squared),
}

ARITY: dict[str, int] = {**dict.fromkeys(UNARY, 1), "clip": 3, "max": 2, "min": 2}

Value = Tensor | float


def _power(a: Tensor, b: float) -> Tensor:
    return a ** (int(b) if b.is_integer() else b)


def _min(a: Any, b: Any) -> Tensor:
    if isinstance(a, float):
        return torch.clamp(b, max=a)
    return torch.clamp(a, max=b) if isinstance(b, float) else torch.minimum(a, b)


def _max(a: Any, b: Any) -> Tensor:
    if isinstance(a, float):
        return torch.clamp(b, min=a)
    return torch.clamp(a, min=b) if isinstance(b, float) else torch.maximum(a, b)


_SEVERAL: dict[str, Callable[..., Tensor]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": _power,
    "neg": lambda a: -a,
    "clip": torch.clamp,
    "max": _max,
    "min": _min,
}


def evaluate(tree: Node, z: Tensor) -> Tensor:
    """The formula at every entry of ``z``; common parts are computed once."""
    known: dict[Node, Value] = {}

    def value(node: Node) -> Value:
        if node not in known:
            known[node] = compute(node)
        return known[node]

    def compute(node: Node) -> Value:
        if isinstance(node, Variable):
            return z
        if isinstance(node, Number) or node.constant:
            return constant_value(node)
        return _operation(node.name)(*(value(a) for a in node.arguments))

    out = value(tree)
    return torch.full_like(z, out) if isinstance(out, float) else out


def _operation(name: str) -> Callable[..., Tensor]:
    return UNARY[name].compute if name in UNARY else _SEVERAL[name]


@full_precision
def constant_value(tree: Node) -> float:
    """The value of a tree without the variable, in float64; NaN or infinite where it has none."""
    if isinstance(tree, Number):
        return float(tree.value)
    assert isinstance(tree, Operation)
    if (exact := exact_value(tree)) is not None and abs(exact) <= sys.float_info.max:
        return float(exact)
    values = [torch.tensor(constant_value(a), dtype=torch.float64) for a in tree.arguments]
    if tree.name == "^":
        return float(values[0] ** values[1])
    return float(_operation(tree.name)(*values))


_RATIONAL: dict[str, Callable[..., Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "max": max,
    "min": min,
    "relu": lambda a: max(a, Fraction(0)),
}
_MOST_BITS = 1 << 16  # of an exact number; beyond it is not worth having


def exact_value(tree: Node, *, named: bool = True) -> Fraction | None:
    """The value of a tree without the variable as a rational number, where it is one.

    Numbers that were typed by name count as the float64 that they hold, unless ``named`` is False.
    """
    if isinstance(tree, Number):
        return tree.value if named or tree.name is None else None
    if isinstance(tree, Variable):
        return None
    parts = [exact_value(a, named=named) for a in tree.arguments]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts) or sum(_bits(p) for p in known) > _MOST_BITS:
        return None
    if tree.name == "^":
        return _exact_power(*known)
    if tree.name not in _RATIONAL or (tree.name == "/" and known[1] == 0):
        return None
    return _RATIONAL[tree.name](*known)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    whole = exponent.denominator == 1 and (base != 0 or exponent > 0)
    small = abs(exponent) * _bits(base) <= _MOST_BITS
    return base ** int(exponent) if whole and small else None


def exponent_of(tree: Node) -> Fraction:
    """An exponent: exact, or the float64 that a constant such as sqrt(2) comes to."""
    exact = exact_value(tree)
    return Fraction(constant_value(tree)) if exact is None else exact
