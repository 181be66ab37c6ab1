"""Torch's names for what the language has: ``torch.tanh(v)``, or ``v.tanh()``, on a value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch.nn import functional as F

from iceform.computer.places import here, refuse
from iceform.computer.values import Value, applied, combine, foreign, function, is_number
from iceform.functions.formulas import Formula, trees

__all__ = ["call", "clamp", "maximum", "minimum", "where"]

_GELU = Formula("z*(1 + erf(z/sqrt(2)))/2")
_SILU = Formula("z*sigmoid(z)")
_LOG_SIGMOID = Formula("-softplus(-z)")

_UNARY: dict[Any, str] = {
    torch.abs: "abs",
    torch.arctan: "atan",
    torch.atan: "atan",
    torch.cos: "cos",
    torch.cosh: "cosh",
    torch.erf: "erf",
    torch.special.erf: "erf",
    torch.exp: "exp",
    torch.expm1: "expm1",
    torch.log: "log",
    torch.log1p: "log1p",
    torch.relu: "relu",
    F.relu: "relu",
    torch.sigmoid: "sigmoid",
    torch.special.expit: "sigmoid",
    torch.sign: "sign",
    torch.sin: "sin",
    torch.sinh: "sinh",
    F.softplus: "softplus",
    torch.sqrt: "sqrt",
    torch.tan: "tan",
    torch.tanh: "tanh",
}


def _extreme(op: str, a: Any, b: Any) -> Value:
    """Of two values, or of a value and a number, in either order."""
    if not isinstance(a, Value):
        a, b = b, a
    if is_number(b):
        arguments = (trees.Variable(), trees.Number(Fraction(float(b))))
        value: Value = a.apply(trees.Operation(op[:3], arguments))
        return value
    return combine(op, a, b)


def maximum(a: Any, b: Any) -> Value:
    """The larger of two."""
    return _extreme("maximum", a, b)


def minimum(a: Any, b: Any) -> Value:
    """The smaller of two."""
    return _extreme("minimum", a, b)


def clamp(value: Any, min: Any = None, max: Any = None) -> Value:
    """No less than ``min`` and no more than ``max``."""
    value = value if min is None else maximum(value, min)
    clamped: Value = value if max is None else minimum(value, max)
    return clamped


def where(condition: Value, a: Any, b: Any) -> Value:
    """``a`` where the condition holds, else ``b``."""
    if not isinstance(condition, Value):
        raise refuse(f"where asks for a comparison, got {type(condition).__name__}", here())
    chosen: Value = condition * (a - b) + b
    return chosen


def _gelu(value: Value, approximate: str = "none") -> Value:
    if approximate != "none":
        raise refuse(f"gelu is the exact one here, not approximate={approximate!r}", here())
    return applied(_GELU, value)


def _softmax(*_: Any, **__: Any) -> Value:
    raise refuse("softmax over samples is ice.attend(query, key, value)", here())


_SEVERAL: dict[Any, Callable[..., Any]] = {
    torch.add: lambda a, b: a + b,
    torch.sub: lambda a, b: a - b,
    torch.mul: lambda a, b: a * b,
    torch.div: lambda a, b: a / b,
    torch.true_divide: lambda a, b: a / b,
    torch.neg: lambda a: -a,
    torch.pow: lambda a, b: a**b,
    torch.square: lambda a: a**2,
    torch.reciprocal: lambda a: 1.0 / a,
    torch.rsqrt: lambda a: a ** (-0.5),
    torch.maximum: maximum,
    torch.minimum: minimum,
    torch.clamp: clamp,
    torch.clip: clamp,
    torch.where: where,
    torch.sum: lambda a: a.sum(),
    torch.mean: lambda a: a.mean(),
    torch.dot: lambda a, b: a @ b,
    torch.norm: lambda a: (a @ a) ** 0.5,
    torch.linalg.norm: lambda a: (a @ a) ** 0.5,
    torch.linalg.vector_norm: lambda a: (a @ a) ** 0.5,
    F.gelu: _gelu,
    F.silu: lambda a, inplace=False: applied(_SILU, a),
    F.logsigmoid: lambda a: applied(_LOG_SIGMOID, a),
    torch.softmax: _softmax,
}


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


_METHODS = {_name(func): func for func in (*_UNARY, *_SEVERAL)}


def call(func: Any, *args: Any, **kwargs: Any) -> Value:
    """A torch function on values, or what is called so as a method of a value."""
    func = _METHODS.get(func, func)
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            raise foreign(argument)
    if func in _UNARY:
        if kwargs.get("inplace") is False:
            del kwargs["inplace"]
        if len(args) + len(kwargs) != 1:
            raise refuse(f"{_name(func)} takes one value here and no options", here())
        return function(_UNARY[func], *args, **kwargs)
    if func in _SEVERAL:
        value: Value = _SEVERAL[func](*args, **kwargs)
        return value
    known = sorted({*map(_name, _UNARY), *map(_name, _SEVERAL)} - {"softmax"})
    raise refuse(
        f"torch's {_name(func)} is not a word of the language; it has {', '.join(known)}, and any "
        "ice.Formula",
        here(),
    )


Value.named[:] = [call]
Value.methods |= set(_METHODS)
