"""Tensors of balls: programs that are written with torch run on them, enclosed.

A :class:`BallTensor` has the operations of torch that exact algorithms are written with, so that
one piece of code is the reference in float64 and its proof in balls::

    with balls_of(128):
        exact = reference(BallTensor.of(x), BallTensor.of(w))

Scalar functions are the rows of the table of operations. Numbers and tensors of floating-point
numbers that are mixed in are known exactly. Balls may leave a comparison open: it is neither true
nor false (:class:`BallCondition`), and ``torch.where`` holds both of its branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.arithmetic.balls import ball_arithmetic, uppermost
from iceform.errors import ProgramError
from iceform.expressions.formulas.table import TABLE
from iceform.validation import written_out

Axes = int | tuple[int, ...] | None


class BallTensor(np.ndarray[Any, Any]):
    """An array of balls (``flint.arb``) that stands in for a tensor."""

    __array_priority__ = 2000  # before a tensor's

    @classmethod
    def of(cls, values: Any) -> BallTensor:
        """Floating-point numbers as balls of radius 0; balls as they are."""
        if isinstance(values, Tensor):
            arb = ball_arithmetic().arb
            values = written_out(values.detach().double().cpu()).numpy()
            values = np.frompyfunc(lambda v: arb(float(v)), 1, 1)(values)
        return np.asarray(values, dtype=object).view(cls)

    def widest(self) -> float:
        """No less than the largest radius."""
        return max(uppermost(ball.rad()) for ball in self.flat)

    # ------------------------------------------------------------------------ as tensors do it

    def double(self) -> BallTensor:
        """Itself: balls are as long as they need to be."""
        return self

    @property
    def mT(self) -> BallTensor:  # noqa: N802 - torch's name
        """The last two axes exchanged."""
        return BallTensor.of(np.swapaxes(self, -1, -2))

    def sum(self, dim: Axes = None, keepdim: bool = False) -> BallTensor:  # type: ignore[override]
        """Over axes."""
        return BallTensor.of(np.sum(self.view(np.ndarray), axis=dim, keepdims=keepdim))

    def mean(self, dim: int, keepdim: bool = False) -> BallTensor:  # type: ignore[override]
        """Over an axis."""
        return BallTensor.of(self.sum(dim, keepdim) / self.shape[dim])

    def clamp(self, low: float, high: float) -> BallTensor:
        """Cut to a range."""
        return maximum(minimum(self, high), low)

    def square(self) -> BallTensor:
        """u^2, which is not negative."""
        return multiply(self, self)

    def expand(self, *shape: Any) -> BallTensor:
        """Spread over axes; -1 leaves one as it is."""
        sizes = shape[0] if isinstance(shape[0], Sequence) else shape
        own = (1,) * (len(sizes) - self.ndim) + self.shape
        whole = tuple(o if s == -1 else s for s, o in zip(sizes, own, strict=True))
        return BallTensor.of(np.broadcast_to(self, whole))

    def unbind(self, dim: int) -> list[BallTensor]:
        """The slices along an axis."""
        return [BallTensor.of(part) for part in np.moveaxis(self, dim, 0)]

    def __bool__(self) -> bool:
        """Whether it is not 0, where that is one question and the balls tell."""
        return bool(_COMPARISONS["ne"](self, 0))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """A function of NumPy, but for those that take an open comparison for a false one."""
        name = ufunc.__name__
        if name in _COMPARED and method == "__call__":
            return _COMPARISONS[_COMPARED[name]](*inputs)
        if name in _COMPARED or name in _DECIDING:
            raise ProgramError(f"ball arithmetic does not know numpy's {name!r}; use torch's")
        plain = [
            BallTensor.of(v).view(np.ndarray) if isinstance(v, BallTensor | Tensor) else v
            for v in inputs
        ]
        into = kwargs.pop("out", ())
        if into:
            kwargs["out"] = tuple(np.asarray(v) for v in into)
        values = getattr(ufunc, method)(*plain, **kwargs)
        return into[0] if into else BallTensor.of(values)

    def _unordered(self, *args: Any, **kwargs: Any) -> Any:
        """Balls that overlap have no order."""
        raise ProgramError("ball arithmetic does not know how to sort balls, or which is the first")

    argmax = argmin = argsort = sort = argpartition = partition = searchsorted = _unordered

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch, on balls."""
        name = func.__name__.strip("_")
        compute = _FUNCTIONS.get(name) or (_rowwise(name) if name in TABLE else None)
        if compute is None:
            raise ProgramError(
                f"ball arithmetic does not know torch's {name!r}; it knows "
                f"{', '.join(sorted({*_FUNCTIONS, *TABLE}))}"
            )
        return compute(*args, **(kwargs or {}))


class BallCondition:
    """What a comparison of balls says, elementwise: True, False, or None where it is open."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, dtype=object)

    def __bool__(self) -> bool:
        if self.values.size != 1:
            raise ProgramError(f"{self.values.size} comparisons have no one truth; use all()")
        (value,) = self.values.flat
        if value is None:
            raise ProgramError(
                "balls leave a comparison open: decide by torch.where, which holds both branches, "
                "or compute with more bits"
            )
        return bool(value)

    def __invert__(self) -> Any:
        return _rowwise("not")(self)

    def __and__(self, other: Any) -> Any:
        return _rowwise("and")(self, other)

    def __or__(self, other: Any) -> Any:
        return ~(~self & ~other)

    def all(self) -> BallCondition:
        """Whether every one is true."""
        return BallCondition(reduce(TABLE["and"].ball, self.values.flat, True))  # type: ignore[arg-type]

    def any(self) -> Any:
        """Whether one is true."""
        return ~(~self).all()

    __torch_function__ = BallTensor.__torch_function__


def _rowwise(name: str) -> Callable[..., Any]:
    """A row of the table, elementwise: balls, or a condition."""

    def compute(*args: Any, **options: Any) -> Any:
        row = TABLE[name]
        if row.ball is None:
            raise ProgramError(f"ball arithmetic does not know {name!r} but in formulas")
        if len(args) != row.arity or options:
            raise ProgramError(
                f"ball arithmetic knows {name!r} of {row.arity} tensors and without options, "
                f"elementwise; got {len(args)} and {sorted(options)}"
            )
        out = np.frompyfunc(row.ball, len(args), 1)(*map(_balls, args))
        return BallCondition(out) if row.condition else BallTensor.of(out)

    return compute


def _of_two(name: str) -> Callable[..., Any]:
    """Of two tensors: a number in the second one's place is an axis to torch."""

    def compute(*args: Any, **options: Any) -> Any:
        if any(isinstance(a, int) for a in args):
            raise ProgramError(
                f"ball arithmetic does not know torch's {name!r} along an axis; torch.{name}imum "
                "of two tensors is elementwise"
            )
        return _rowwise(name)(*args, **options)

    return compute


def _balls(value: Any) -> Any:
    if isinstance(value, BallCondition):
        return value.values
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        return value.cpu().numpy().astype(object)
    if isinstance(value, int | float):
        return ball_arithmetic().arb(float(value))
    return BallTensor.of(value)


_product: Callable[..., BallTensor] = _rowwise("*")
maximum: Callable[..., BallTensor] = _rowwise("max")
minimum: Callable[..., BallTensor] = _rowwise("min")


def multiply(a: Any, b: Any) -> BallTensor:
    """Elementwise; a square is not negative."""
    return _product(a, b) if a is b else BallTensor.of(BallTensor.of(a) * BallTensor.of(b))


def softmax(scores: BallTensor, dim: int = -1) -> BallTensor:
    """Along an axis."""
    # Taking off one number from all scores changes nothing and keeps exp small.
    middles = np.frompyfunc(lambda ball: ball.mid(), 1, 1)(scores)
    masses = BallTensor.of(np.frompyfunc(lambda ball: ball.exp(), 1, 1)(
        scores - np.maximum.reduce(middles.view(np.ndarray), axis=dim, keepdims=True)
    ))  # fmt: skip
    return BallTensor.of(masses / masses.sum(dim, keepdim=True))


def solve(matrix: BallTensor, right: BallTensor) -> BallTensor:
    """The solution of a system of equations that the balls show to be regular."""
    flint = ball_arithmetic()
    columns = flint.arb_mat([[entry] for entry in right])
    found = flint.arb_mat([list(row) for row in matrix]).solve(columns)
    return BallTensor.of([found[i, 0] for i in range(len(right))])


def _zeros_like(values: BallTensor) -> BallTensor:
    return BallTensor.of(torch.zeros(values.shape))


_above, _at_least, _same = _rowwise(">"), _rowwise(">="), _rowwise("==")
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "gt": _above,
    "lt": lambda a, b: _above(b, a),
    "ge": _at_least,
    "le": lambda a, b: _at_least(b, a),
    "eq": _same,
    "ne": lambda a, b: ~_same(a, b),
}
# NumPy's names of them, and what else decides by them.
_COMPARED = {"greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le",
             "equal": "eq", "not_equal": "ne"}  # fmt: skip
_DECIDING = {"maximum", "minimum", "fmax", "fmin", "clip", "sign",
             "logical_and", "logical_or", "logical_xor", "logical_not"}  # fmt: skip

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_COMPARISONS,
    "add": lambda a, b: BallTensor.of(a) + BallTensor.of(b),
    "cat": lambda parts, dim=0: BallTensor.of(np.concatenate([_balls(p) for p in parts], dim)),
    "linalg_solve": solve,
    "matmul": lambda a, b: BallTensor.of(a) @ BallTensor.of(b),
    "logical_and": _rowwise("and"),
    "logical_not": _rowwise("not"),
    "max": _of_two("max"),
    "maximum": maximum,
    "min": _of_two("min"),
    "minimum": minimum,
    "mul": multiply,
    "softmax": softmax,
    "stack": lambda parts, dim=0: BallTensor.of(np.stack([_balls(p) for p in parts], dim)),
    "sub": lambda a, b: BallTensor.of(a) - BallTensor.of(b),
    "zeros_like": _zeros_like,
}
