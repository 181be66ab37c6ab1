"""Scaling: how samples and labels are brought to one size, and coefficients brought back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic.double_double import div, pair, two_sum
from iceform.errors import BoundError
from iceform.machine.sources import Source

__all__ = ["Scaling"]

_LARGEST = 1e150  # squares must stay finite
_FAR_OFF = 1e6  # in scales: how far a mean is known to 1e-10 of the scale


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
        """Learn it from the data in one sweep.

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
        known = source.moments(products=labels)
        mean, squares = known.mean, known.spread
        center, label_squares = known.center, known.label_spread
        if not intercept:
            squares, label_squares = squares + n * mean.square(), label_squares + n * center**2
            mean, center = torch.zeros_like(mean), 0.0
        elif not labels:
            center = 0.0
        if not (bool(squares.isfinite().all()) and math.isfinite(label_squares)):
            raise BoundError(
                f"the data hold NaN, infinity or numbers beyond {_LARGEST:.0e}, where squares "
                "overflow; fill or remove what is missing, and scale the rest down"
            )
        scale = (squares / n).sqrt()
        # Rounding leaves a constant column with a spread of about u |mean|.
        flat = scale <= 8 * torch.finfo(torch.float64).eps * mean.abs()
        scale = torch.where(flat | (scale == 0), torch.ones_like(scale), scale)
        if not columns:
            scale = torch.full_like(scale, float((squares / n).mean().sqrt()) or 1.0)
        size = math.sqrt(label_squares / n) if labels else 1.0
        return cls(mean, scale, center, size or 1.0, intercept)

    @property
    def dim(self) -> int:
        """Features after scaling."""
        return len(self.mean) + self.intercept

    def samples(self, x: Tensor) -> Tensor:
        """Scaled samples, shape (n, dim), each entry within 2 u of exact relative to itself.

        ``mean`` and ``scale`` are given numbers, however they were found: only a difference and a
        quotient round, and the proofs rely on it.
        """
        out = x.new_empty(len(x), self.dim)
        scaled = out[:, : len(self.mean)]
        torch.sub(x, self.mean, out=scaled).div_(self.scale)
        if self.intercept:
            out[:, -1] = 1.0
        return out

    def labels(self, y: Tensor) -> Tensor:
        """Scaled labels."""
        return (y - self.center) / self.size if (self.center or self.size != 1) else y

    def lows(self, x: Tensor) -> Tensor:
        """What scaled samples were rounded by, to be added to them; itself within 2^-97 of them."""
        low = _lost(x, self.mean, self.scale)
        return torch.cat([low, low.new_zeros(len(x), 1)], 1) if self.intercept else low

    def label_lows(self, y: Tensor) -> Tensor:
        """The same of the labels."""
        return _lost(y, y.new_tensor(self.center), y.new_tensor(self.size))

    def label_reach(self, source: Source) -> float:
        """The largest scaled label of a source."""
        known = source.moments(products=False)
        return max(known.high - self.center, self.center - known.low) / self.size

    def second_moments(self, source: Source) -> Tensor | None:
        """Mean of x x' over a source's scaled samples, by its moments: no further sweep.

        None where the data lie so far from zero that their mean is not known well enough.
        """
        known = source.moments(products=True)
        assert known.products is not None
        if float((known.mean.abs() / self.scale).max()) > _FAR_OFF:
            return None
        shift = (known.mean - self.mean) / self.scale
        inner = known.products / source.rows / self.scale / self.scale[:, None]
        inner = inner + torch.outer(shift, shift)
        if not self.intercept:
            return inner
        last = torch.cat([shift, shift.new_ones(1)])
        return torch.cat([torch.cat([inner, shift[:, None]], 1), last[None]])

    def raw(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients and intercept of the data as they came."""
        coef = self.size * w[: len(self.mean)] / self.scale
        constant = self.size * w[-1] + self.center if self.intercept else w.new_zeros(())
        return coef, constant - self.mean @ coef

    def intercept_slip(self, coef: Tensor, intercept: Tensor) -> Tensor:
        """What rounding in :meth:`raw` may have taken from the intercept."""
        unit = torch.finfo(torch.float64).eps / 2
        terms = self.mean.abs() @ coef.abs() + intercept.abs() + abs(self.center)
        return (len(coef) + 8) * unit * terms

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


def _lost(values: Tensor, center: Tensor, size: Tensor) -> Tensor:
    """(values - center)/size less the float64 that is computed of it."""
    exact = div(two_sum(values, -center), pair(size.expand_as(values)))
    return (exact.hi - (values - center) / size) + exact.lo
