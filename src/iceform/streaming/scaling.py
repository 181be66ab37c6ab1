"""Scaling: how samples and labels are brought to one size, and coefficients brought back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.errors import BoundError
from iceform.streaming.sources import Source

__all__ = ["Scaling"]

_LARGEST = 1e150  # squares must stay finite


@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> [(x - mean) / scale, 1] and y -> (y - center) / size.

    Attributes
    ----------
    mean, scale
        Shapes (d,); a column that does not vary has scale 1.
    center, size
        Of the labels.
    intercept
        Whether a constant feature is appended.
    """

    mean: Tensor
    scale: Tensor
    center: float
    size: float
    intercept: bool

    @classmethod
    def of(
        cls, source: Source, *, intercept: bool, labels: bool = True, columns: bool = True
    ) -> Scaling:
        """Learn it from the data in two passes.

        Parameters
        ----------
        source
            The data.
        intercept
            Whether there is one; without it nothing is centred.
        labels
            Whether labels are numbers that may be scaled.
        columns
            A scale for each column; False takes one scale for all.
        """
        n = source.rows
        sums = source.reduce(_sums)
        mean, center = (sums[0] / n, float(sums[1]) / n) if intercept else (0 * sums[0], 0.0)
        center = center if labels else 0.0
        squares, label_squares = source.reduce(_Spread(mean, center))
        if not bool(squares.isfinite().all() and label_squares.isfinite().all()):
            raise BoundError(
                f"the data exceed {_LARGEST:.0e}, where squares overflow; scale them down"
            )
        scale = (squares / n).sqrt()
        # Rounding leaves a constant column with a spread of about u |mean|.
        flat = scale <= 8 * torch.finfo(torch.float64).eps * mean.abs()
        scale = torch.where(flat | (scale == 0), torch.ones_like(scale), scale)
        if not columns:
            scale = torch.full_like(scale, float((squares / n).mean().sqrt()) or 1.0)
        size = float((label_squares / n).sqrt()) if labels else 1.0
        return cls(mean, scale, center, size or 1.0, intercept)

    @property
    def dim(self) -> int:
        """Features after scaling."""
        return len(self.mean) + self.intercept

    def samples(self, x: Tensor) -> Tensor:
        """Scaled samples, shape (n, dim)."""
        out = (x - self.mean) / self.scale
        return torch.cat([out, out.new_ones(len(out), 1)], 1) if self.intercept else out

    def terms(self, x: Tensor) -> Tensor:
        """Bounds |x| + |mean| over scale of what was added up to get each entry of a sample."""
        out = (x.abs() + self.mean.abs()) / self.scale
        return torch.cat([out, out.new_ones(len(out), 1)], 1) if self.intercept else out

    def labels(self, y: Tensor) -> Tensor:
        """Scaled labels."""
        return (y - self.center) / self.size if (self.center or self.size != 1) else y

    def raw(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients and intercept of the data as they came."""
        coef = self.size * w[: len(self.mean)] / self.scale
        constant = self.size * w[-1] + self.center if self.intercept else w.new_zeros(())
        return coef, constant - self.mean @ coef

    def functionals(self) -> Tensor:
        """Rows a with raw coefficient = a.w (then the intercept), shape (d + intercept, dim)."""
        d = len(self.mean)
        rows = torch.diag(self.size / self.scale)
        if not self.intercept:
            return rows
        out = torch.zeros(d + 1, d + 1, dtype=rows.dtype, device=rows.device)
        out[:d, :d] = rows
        out[d, :d], out[d, d] = -self.size * self.mean / self.scale, self.size
        return out

    def penalty(self, l2: float) -> Tensor:
        """Weights q with l2 ||coef||^2 = sum_j q_j w_j^2 size^2; the intercept is free."""
        q = l2 / self.scale.square()
        return torch.cat([q, q.new_zeros(1)]) if self.intercept else q


def _sums(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.sum(0), y.sum()]


@dataclass(frozen=True, eq=False)
class _Spread:
    mean: Tensor
    center: float

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [(x - self.mean).square().sum(0), (y - self.center).square().sum()]
