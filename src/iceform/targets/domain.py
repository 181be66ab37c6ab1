"""What a certificate must know of the data: sizes, not values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import exactly
from iceform.arithmetic.balls import balls_of
from iceform.arithmetic.units import NOISE, OUTWARD_MANY, SAFE_MINIMUM
from iceform.errors import BoundError, DtypeError, ShapeError
from iceform.expressions.ball_tensors import BallTensor
from iceform.validation import plain_tensor


@dataclass(frozen=True)
class DataDomain:
    """Bounds of a data set, which is all that a certificate must know of it.

    Attributes
    ----------
    samples
        n.
    rows, rms_rows
        Of ||x_i||_2, and of its root mean square.
    label
        Of |y_i|.
    rms
        Of the root mean square of y.
    bottom, top
        Of the eigenvalues of X'X/n.
    reach, size
        Of |z_i| and ||w_t|| along the exact run, where the algorithm must know; infinite if not.
    padding
        Tokens of zeros beside the samples.

    Examples
    --------
    >>> known = DataDomain.box(dim=4, samples=10, bound=1.0)  # all data with |x|, |y| <= 1
    >>> known.label, round(known.rows, 6)
    (1.0, 2.0)
    >>> LinearDescent(dim=4, steps=3).certificate(known).error < 1e-9
    True
    """

    samples: int
    rows: float
    rms_rows: float
    label: float
    rms: float
    bottom: float
    top: float
    reach: float = math.inf
    size: float = math.inf
    padding: int = 0

    @classmethod
    def box(cls, dim: int, samples: int, bound: float) -> DataDomain:
        """All data with |x|, |y| <= bound."""
        row = math.sqrt(dim) * bound * OUTWARD_MANY
        return cls(samples, row, row, bound, bound, 0.0, row * row)

    @classmethod
    def of(cls, x: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> DataDomain:
        """These data of ``dim`` features, rounded to ``dtype``."""
        x, y = (part.to(dtype).double() for part in check_data(x, y, dim))
        norms = x.norm(dim=1)
        bottom, top = eigenvalue_bounds(x)
        return cls(
            len(x),
            float(norms.max()) * OUTWARD_MANY,
            float(norms.square().mean().sqrt()) * OUTWARD_MANY,
            float(y.abs().max()),
            float(y.square().mean().sqrt()) * OUTWARD_MANY,
            bottom,
            top,
        )

    def describe(self) -> dict[str, float | str]:
        """For a certificate."""
        run = {"max |z_i|": self.reach, "max ||w_t||": self.size}
        return {
            "samples": float(self.samples),
            "max ||x_i||": self.rows,
            "max |y_i|": self.label,
            "rms y": self.rms,
            "eigenvalues of X'X/n": f"[{exactly(self.bottom)}, {exactly(self.top)}]",
            **{name: value for name, value in run.items() if math.isfinite(value)},
        }


def check_data(x: Tensor, y: Tensor, dim: int, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Finite tensors (n, dim) and (n,) with 1 <= n <= most, without their graphs."""
    x, y = plain_tensor("X", x), plain_tensor("y", y)
    for name, value in (("X", x), ("y", y)):
        if not value.is_floating_point():
            raise DtypeError(f"{name} must be a floating-point tensor, got {value.dtype}")
        if not bool(torch.isfinite(value).all()):
            raise BoundError(f"{name} holds NaN or infinity; fill or remove what is missing")
    if x.ndim != 2 or x.shape[1] != dim or y.shape != x.shape[:1]:
        raise ShapeError(
            f"X must be (n, {dim}) and y (n,), got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if not len(x):
        raise ShapeError("a prompt holds at least one sample, got 0")
    if most is not None and len(x) > most:
        raise ShapeError(
            f"a prompt holds 1 to {most} samples, got {len(x)}; write the target with positions >= "
            f"{len(x) + 2}"
        )
    return x, y


def eigenvalue_bounds(x: Float[Tensor, "n d"]) -> tuple[float, float]:
    """Proven bounds of the eigenvalues of X'X/n.

    float64's eigenvalues, moved apart until X'X/n - bottom and top - X'X/n are seen to be positive
    definite: every pivot of their LDL' in balls is positive.
    Of numbers whose squares are beyond float64 nothing is known but the sign: 0 and infinity.
    """
    rounded = x.double().T @ x.double() / len(x)
    if not bool(torch.isfinite(rounded).all()):
        return 0.0, math.inf
    found = torch.linalg.eigvalsh(rounded)
    low, high = float(found[0]), float(found[-1])
    with balls_of(tuning.PROOFS_BITS):
        rows = BallTensor.of(x)
        gram = BallTensor.of(rows.mT @ rows / len(x))
        apart = max(high, SAFE_MINIMUM) * NOISE
        while not _positive(-gram, high + apart):
            apart *= 16
        # The least may be 0, or too near to tell.
        bottom = low - apart
        return (bottom if bottom > 0 and _positive(gram, -bottom) else 0.0), high + apart


def _positive(matrix: BallTensor, shift: float) -> bool:
    """Whether the pivots of matrix + shift I are positive for sure."""
    a = BallTensor.of(matrix + BallTensor.of(shift * torch.eye(len(matrix)).double()))
    for k in range(len(a)):
        if not a[k, k] > 0:
            return False
        a[k + 1 :] = a[k + 1 :] - a[k + 1 :, k, None] / a[k, k] * a[k]
    return True
