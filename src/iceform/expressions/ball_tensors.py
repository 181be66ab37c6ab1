"""Tensors of balls: programs that are written with torch run on them, enclosed.

A :class:`BallTensor` has the operations of torch that exact algorithms are written with, so that
one piece of code is the reference in float64 and its proof in balls::

    with balls_of(128):
        exact = reference(BallTensor.of(x), BallTensor.of(w))

Scalar functions are the rows of the table of operations. Numbers and tensors of floating-point
numbers that are mixed in are known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.arithmetic.balls import ball_arithmetic, uppermost
from iceform.errors import ProgramError
from iceform.expressions.formulas.table import TABLE

Axes = int | tuple[int, ...] | None


class BallTensor(np.ndarray[Any, Any]):
    """An array of balls (``flint.arb``) that stands in for a tensor."""

    __array_priority__ = 2000  # before a tensor's

    @classmethod
    def of(cls, values: Any) -> BallTensor:
        """Floating-point numbers as balls of radius 0; balls as they are."""
        if isinstance(values, Tensor):
            arb = ball_arithmetic().arb
            values = values.detach().double().cpu().numpy()
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


def _rowwise(name: str) -> Callable[..., BallTensor]:
    """A row of the table, elementwise."""

    def compute(*args: Any) -> BallTensor:
        ball = TABLE[name].ball
        if ball is None:
            raise ProgramError(f"ball arithmetic does not know {name!r} but in formulas")
        return BallTensor.of(np.frompyfunc(ball, len(args), 1)(*map(_balls, args)))

    return compute


def _balls(value: Any) -> Any:
    if isinstance(value, int | float):
        return ball_arithmetic().arb(float(value))
    return BallTensor.of(value)


_product, maximum, minimum = _rowwise("*"), _rowwise("max"), _rowwise("min")


def multiply(a: Any, b: Any) -> BallTensor:
    """Elementwise; a square is not negative."""
    return _product(a, b) if a is b else BallTensor.of(BallTensor.of(a) * BallTensor.of(b))


def softmax(scores: BallTensor, dim: int = -1) -> BallTensor:
    """Along an axis."""
    # Taking off one number from all scores changes nothing and keeps exp small.
    middles = np.frompyfunc(lambda ball: ball.mid(), 1, 1)(scores)
    masses = BallTensor.of(np.frompyfunc(lambda ball: ball.exp(), 1, 1)(
        scores - np.maximum.reduce(middles, axis=dim, keepdims=True)
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


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: BallTensor.of(a) + BallTensor.of(b),
    "cat": lambda parts, dim=0: BallTensor.of(np.concatenate([_balls(p) for p in parts], dim)),
    "linalg_solve": solve,
    "matmul": lambda a, b: BallTensor.of(a) @ BallTensor.of(b),
    "maximum": maximum,
    "minimum": minimum,
    "mul": multiply,
    "softmax": softmax,
    "stack": lambda parts, dim=0: BallTensor.of(np.stack([_balls(p) for p in parts], dim)),
    "sub": lambda a, b: BallTensor.of(a) - BallTensor.of(b),
    "zeros_like": _zeros_like,
}
