"""Torch's functions on values, and NumPy's of the same names: what each is in the language.

Functions of one number that are a row of the formulas' table are that row. All others are written
in words of the language, so that ranges, errors and proofs know nothing of them. Those that torch
lets go over an axis go over the components of a vector; the samples are for the words of ``ice``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from iceform.computer.graph import refuse, source_line
from iceform.computer.values import (
    WORDS,
    Value,
    applied,
    components,
    emit,
    filled_like,
    foreign,
    function,
    hot,
    lifted,
    matrix,
    maximum,
    minimum,
    soft_threshold,
    where,
)
from iceform.expressions.formulas import Formula
from iceform.expressions.formulas.table import TABLE

_GELU = Formula("z*(1 + erf(z/sqrt(2)))/2")
_SILU = Formula("z*sigmoid(z)")
_LOG_SIGMOID = Formula("-softplus(-z)")
_MISH = Formula("z*tanh(softplus(z))")


class _Extreme(NamedTuple):
    """The largest component of a vector, and which it is, as torch gives it."""

    values: Value
    indices: Value


def _alike(value: Value, *_: Any, **__: Any) -> Value:
    """A value in another form that holds the same numbers."""
    return +value


def _reshaped(value: Value, *shape: Any) -> Value:
    """As one vector; no other shape."""
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if tuple(wanted) not in ((), (-1,), (value.width,)):
        raise refuse(
            f"a vector of {value.width} has no shape {tuple(wanted)}: matrices are of numbers "
            "alone, A @ v; hold rows as values of their own in a list, or as samples",
            source_line(),
        )
    return +value


def _scalar(value: Value) -> Value:
    if value.width is not None:
        raise refuse(f"item() takes a scalar, and this is a vector of {value.width}", source_line())
    return +value


# ---------------------------------------------------------------------------------------------
# of one number
# ---------------------------------------------------------------------------------------------


def _gelu(value: Value, approximate: str = "none") -> Value:
    if approximate != "none":
        raise refuse(f"gelu is the exact one here, not approximate={approximate!r}", source_line())
    return applied(_GELU, value)


def _softplus(value: Value, beta: float = 1.0, threshold: float = 20) -> Value:
    return function("softplus", value * beta) / beta if beta != 1 else function("softplus", value)


def _arcsine(value: Value) -> Value:
    """2 atan(z / (1 + sqrt(1 - z^2))), for |z| <= 1, which every run checks."""
    z = emit("bounded", value, attr=(-1.0, 1.0))
    return 2 * function("atan", z / (1 + function("sqrt", 1 - z * z)))


def _angle(y: Value, x: Value) -> Value:
    """The angle of (x, y): atan of the quotient that is at most 1, turned to where the point is."""
    steep = abs(y) > abs(x)
    flat = function("atan", minimum(abs(x), abs(y)) / maximum(abs(x), abs(y)))
    ahead = where(steep, math.pi / 2 - flat, flat)
    above = where(x < 0, math.pi - ahead, ahead)
    return where(y < 0, -above, above)


def _elu(value: Value, alpha: float = 1.0, inplace: bool = False, *, over: float = 1.0) -> Value:
    below = function("exp", minimum(value, 0.0) / over) - 1
    return function("relu", value) + alpha * below


def _leaky(value: Value, negative_slope: float = 1 / 100, inplace: bool = False) -> Value:
    return (1 - negative_slope) * function("relu", value) + negative_slope * value


def _sign(value: Value) -> Value:
    return (value > 0) - (value < 0)


def _log_of_sum(a: Value, b: Value) -> Value:
    return maximum(a, b) + function("softplus", -abs(a - b))


def _rounded(value: Value, decimals: int = 0) -> Value:
    return round(value, decimals)


def _clamp(value: Any, min: Any = None, max: Any = None, **names: Any) -> Value:
    """No less than ``min`` and no more than ``max``."""
    low, high = names.get("a_min", min), names.get("a_max", max)
    value = value if low is None else maximum(value, low)
    clamped: Value = value if high is None else minimum(value, high)
    return clamped


# ---------------------------------------------------------------------------------------------
# of the components of a vector
# ---------------------------------------------------------------------------------------------


def _softmax(value: Any, dim: Any = None, **_: Any) -> Value:
    weights = function("exp", components("softmax", value, dim))
    return weights / weights.sum()


def _logsumexp(value: Any, dim: Any = None, **_: Any) -> Value:
    return function("log", function("exp", components("logsumexp", value, dim)).sum())


def _extreme(word: str, over: Callable[..., Value], value: Any, *other: Any, **named: Any) -> Any:
    """The largest component, of two values the larger, or with an axis also which it is."""
    second = named.get("other", *other)
    if isinstance(second, Value):
        return over(value, second)
    dim = named.get("dim", second)
    most = reduce(over, components(word, value, dim))
    sign = 1.0 if over is maximum else -1.0
    return most if dim is None else _Extreme(most, _first_largest(sign * value))


def _first_largest(value: Any, dim: Any = None, **_: Any) -> Value:
    """Which component is the largest, the first of them."""
    first, *others = components("argmax", value, dim)
    place, most = first * 0.0, first
    for number, other in enumerate(others, 1):
        larger = other > most
        place, most = where(larger, number, place), maximum(most, other)
    return place.nearest_whole()


def _up_to(word: str, combine: Callable[..., Any], value: Any, dim: Any = None) -> Value:
    return emit("concat", *accumulate(components(word, value, dim), combine))


def _product(value: Any, dim: Any = None) -> Value:
    return reduce(operator.mul, components("prod", value, dim))


def _turned(value: Any, shifts: int = 1, dims: Any = None) -> Value:
    parts = list(components("roll", value, dims))
    by = shifts % len(parts)
    return emit("concat", *parts[len(parts) - by :], *parts[: len(parts) - by])


def _differences(value: Any, n: int = 1, dim: Any = None) -> Value:
    whole = components("diff", value, dim)
    return whole if n == 0 else _differences(whole[1:] - whole[:-1], n - 1)


def _crossed(a: Value, b: Value, dim: Any = None) -> Value:
    (a0, a1, a2), (b0, b1, b2) = a, b
    return emit("concat", a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0)


def _variance(
    value: Any, dim: Any = None, unbiased: bool = True, *, correction: float | None = None,
    ddof: float | None = None,
) -> Value:  # fmt: skip
    away = components("var", value, dim)
    away = away - away.mean()
    less = correction if ddof is None else ddof
    return (away @ away) / (len(away) - (float(unbiased) if less is None else less))


def _deviation(value: Any, *args: Any, **options: Any) -> Value:
    return _variance(value, *args, **options) ** 0.5


def _length(value: Value, p: Any = None, dim: Any = None, ord: Any = None, **_: Any) -> Value:
    order, over = p if ord is None else ord, components("norm", value, dim)
    if order in (None, 2, "fro"):
        return (over @ over) ** 0.5
    if order == math.inf:
        return reduce(maximum, abs(over))
    if order == 1:
        return abs(over).sum()
    raise refuse(f"norms are those for p = 1, 2 and infinity; got {order!r}", source_line())


def _likeness(a: Value, b: Value, dim: Any = None, **_: Any) -> Value:
    return (a @ b) / (_length(a) * _length(b))


def _any(value: Value, dim: Any = None) -> Value:
    return components("any", value, dim).sum() > 0


def _all(value: Value, dim: Any = None) -> Value:
    over = components("all", value, dim)
    return over.sum() >= len(over)


# ---------------------------------------------------------------------------------------------
# side by side, and matrices
# ---------------------------------------------------------------------------------------------


def _side(word: str, parts: Iterable[Any], dim: Any = 0) -> Any:
    """Numbers as one vector, and vectors too where they are joined; stacked, a list of rows."""
    several = list(parts)
    beside = next(v for v in several if isinstance(v, Value))
    values = [lifted(v, beside) for v in several]
    if dim not in (0, -1):
        raise refuse(f"{word} makes a vector, or a list of rows; got dim={dim!r}", source_line())
    if word == "stack" and any(v.width is not None for v in values):
        return values
    return emit("concat", *values)


def _pieces(value: Value, size: Any, dim: Any = None) -> list[Value]:
    sizes = [size] * -(-len(value) // size) if isinstance(size, int) else list(size)
    ends = list(accumulate(sizes))
    return [value[end - own : end] for end, own in zip(ends, sizes, strict=True)]


def _padded(a: Value, pad: Any, mode: str = "constant", value: float = 0.0) -> Value:
    before, after = ([lifted([float(value)] * k, a)] if k else [] for k in pad)
    return emit("concat", *before, a, *after)


def _matmul(a: Any, b: Any) -> Value:
    """A tensor's own @ would ask us again."""
    found: Value = a @ b if isinstance(a, Value) else b.__rmatmul__(a)
    return found


def _one_hot(value: Value, num_classes: int = -1) -> Value:
    if num_classes < 1:
        raise refuse("one_hot needs to be told how many classes there are", source_line())
    return hot(value, num_classes)


def _of_numbers(word: Callable[..., Any]) -> Callable[..., Any]:
    """The word, which takes no matrices."""

    def checked(*args: Any, **options: Any) -> Any:
        for argument in (*args, *options.values()):
            if isinstance(argument, torch.Tensor) and matrix(argument) is not None:
                raise foreign(argument)
        return word(*args, **options)

    return checked


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "div divide true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "neg": "negative", "pow": "power float_power",
    "abs": "absolute", "eq": "eq", "ne": "not_equal", "gt": "greater", "ge": "greater_equal",
    "lt": "less", "le": "less_equal", "and_": "logical_and bitwise_and",
    "or_": "logical_or bitwise_or", "xor": "logical_xor bitwise_xor", "inv": "logical_not",
}  # fmt: skip
_RENAMED = {"arctan": "atan", "expit": "sigmoid", "arcsinh": "asinh"}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    # of one number, or number by number
    "square": lambda a: a**2,
    "reciprocal": lambda a: 1.0 / a,
    "rsqrt": lambda a: a ** (-0.5),
    "exp2": lambda a: 2.0**a,
    "log2": lambda a: function("log", a) / math.log(2),
    "log10": lambda a: function("log", a) / math.log(10),
    "erfc": lambda a: 1 - function("erf", a),
    "asin arcsin": _arcsine,
    "acos arccos": lambda a: math.pi / 2 - _arcsine(a),
    "acosh arccosh": lambda a: function("log", a + function("sqrt", a * a - 1)),
    "atanh arctanh": lambda a: (function("log", 1 + a) - function("log", 1 - a)) / 2,
    "atan2 arctan2": _angle,
    "logit": lambda a: function("log", a) - function("log", 1 - a),
    "deg2rad": lambda a: a * (math.pi / 180),
    "rad2deg": lambda a: a * (180 / math.pi),
    "xlogy": lambda a, b: a * function("log", b),
    "logaddexp": _log_of_sum,
    "hypot": lambda a, b: (a * a + b * b) ** 0.5,
    "fmod": lambda a, b: a - b * math.trunc(a / b),
    "sign sgn": _sign,
    "heaviside": lambda a, at: (a > 0) * (1 - at) + (a >= 0) * at,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc fix int long": math.trunc,
    "frac": lambda a: a - math.trunc(a),
    "bool": lambda a: abs(a) > 0,
    "maximum fmax": maximum,
    "minimum fmin": minimum,
    "clamp clip": _clamp,
    "hardtanh": lambda a, min_val=-1.0, max_val=1.0, inplace=False: _clamp(a, min_val, max_val),
    "clamp_min": maximum,
    "clamp_max": minimum,
    "where": where,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "addcmul": lambda a, b, c, value=1.0: a + value * b * c,
    "addcdiv": lambda a, b, c, value=1.0: a + value * b / c,
    "relu": lambda a, inplace=False: function("relu", a),
    "relu6": lambda a, inplace=False: _clamp(a, 0, 6),
    "hardsigmoid": lambda a, inplace=False: _clamp(a + 3, 0, 6) / 6,
    "hardswish": lambda a, inplace=False: a * _clamp(a + 3, 0, 6) / 6,
    "leaky_relu": _leaky,
    "elu": _elu,
    "celu": lambda a, alpha=1.0, inplace=False: _elu(a, alpha, over=alpha),
    "gelu": _gelu,
    "silu": lambda a, inplace=False: applied(_SILU, a),
    "mish": lambda a, inplace=False: applied(_MISH, a),
    "logsigmoid log_sigmoid": lambda a: applied(_LOG_SIGMOID, a),
    "softplus": _softplus,
    "softsign": lambda a: a / (1 + abs(a)),
    "tanhshrink": lambda a: a - function("tanh", a),
    "softshrink": soft_threshold,
    "zeros_like": lambda a, **_: filled_like(a, 0.0),
    "ones_like": lambda a, **_: filled_like(a, 1.0),
    "full_like": lambda a, number, **_: filled_like(a, number),
    "one_hot": _one_hot,
    # of the components of a vector
    "sum": lambda a, dim=None, **_: a.sum(dim),
    "mean": lambda a, dim=None, **_: a.mean(dim),
    "max": partial(_extreme, "max", maximum),
    "min": partial(_extreme, "min", minimum),
    "amax": lambda a, dim=None, **_: reduce(maximum, components("amax", a, dim)),
    "amin": lambda a, dim=None, **_: reduce(minimum, components("amin", a, dim)),
    "argmax": _first_largest,
    "argmin": lambda a, dim=None, **_: _first_largest(-a, dim),
    "cumsum": partial(_up_to, "cumsum", operator.add),
    "cumprod": partial(_up_to, "cumprod", operator.mul),
    "prod": _product,
    "flip": lambda a, dims=None: components("flip", a)[::-1],
    "roll": _turned,
    "diff": _differences,
    "cross": _crossed,
    "var": _variance,
    "std": _deviation,
    "norm vector_norm": _length,
    "dist": lambda a, b, p=2: _length(a - b, p),
    "normalize": lambda a, p=2, dim=None, **_: a / _length(a, p),
    "cosine_similarity": _likeness,
    "any": _any,
    "all": _all,
    "count_nonzero": lambda a, dim=None: (abs(components("count_nonzero", a, dim)) > 0).sum(),
    "logsumexp": _logsumexp,
    "softmax": _softmax,
    "softmin": lambda a, dim=None, **_: _softmax(-a, dim),
    "log_softmax": lambda a, dim=None, **_: a - _logsumexp(a, dim),
    # side by side, and matrices
    "stack": partial(_side, "stack"),
    "cat concat concatenate hstack": partial(_side, "cat"),
    "vstack row_stack": partial(_side, "stack"),
    "unbind tolist": lambda a, dim=0: list(a),
    "split": _pieces,
    "pad": _padded,
    "dot inner vdot": _matmul,
    "mv": _matmul,
    "matmul": _matmul,
    # the same in another form
    "clone detach contiguous double float to type cpu nan_to_num positive": _alike,
    "reshape view flatten ravel squeeze": _reshaped,
    "item": _scalar,
    "numel": len,
    "dim": lambda a: len(a.shape),
    "size": lambda a, dim=None: a.shape if dim is None else a.shape[dim],
}  # fmt: skip

_TAKES_MATRICES = ("matmul", "mv")
WORDS.update({
    name: partial(function, name)
    for name, row in TABLE.items()
    if row.typed and row.arity == 1 and any(hasattr(p, name) for p in (torch, torch.special, F))
})  # fmt: skip
WORDS.update({name: partial(function, row) for name, row in _RENAMED.items()})
WORDS["asinh"] = partial(function, "asinh")
for _own, _names in _OPERATORS.items():
    WORDS.update(dict.fromkeys((_own.strip("_"), *_names.split()), getattr(operator, _own)))
for _names, _word in _FUNCTIONS.items():
    WORDS.update(dict.fromkeys(_names.split(), _word))
WORDS.update({
    name: _of_numbers(word) for name, word in WORDS.items() if name not in _TAKES_MATRICES
})  # fmt: skip
