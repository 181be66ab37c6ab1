r"""Scaling: how samples and labels are brought to one size, and coefficients brought back.

**Magnitudes.** The rounding model of the proofs is relative: it holds where nothing overflows, and
where what underflows is far below what is bounded. Scaled samples and labels are about 1. What is
not are their sizes s_j and t, in squares s_j^2, in ratios t/s_j whose squares add up to lengths,
and in penalties q_j = l2/s_j^2. Where the largest entry of every column and of the labels is 0 or
within :math:`2^{\pm 200}`, sizes are within :math:`2^{-260} \dots 2^{200}`: what varies less than
:math:`2^{-49}` of its mean counts as constant, and :math:`2^{-11}` is left for the root of the
number of samples. Ratios are then within :math:`2^{\pm 460}` and, with l2 within
:math:`2^{-300} \dots 2^{250}` or 0, penalties within :math:`2^{-700} \dots 2^{770}`; a penalty that
shortens lengths leaves t/sqrt(l2), at least :math:`2^{-385}`. All of these and the squares of
lengths are normal numbers. Anything else is refused by :func:`check_magnitudes` and
:meth:`Scaling.penalty` before a number is returned. Dividing a column or the labels by a power of
two is exact, and multiplies or divides the coefficients by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic.double_double import div, pair, two_sum
from iceform.errors import BoundError
from iceform.machine.sources import Source

__all__ = ["Scaling", "check_magnitudes"]

_LEAST, _MOST = 2.0**-200, 2.0**200  # of columns and labels
_PENALTIES = (2.0**-300, 2.0**250)
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
        n = source.total
        check_magnitudes(source, products=labels)
        known = source.moments(products=labels)
        mean, squares = known.mean, known.spread
        center, label_squares = known.center, known.label_spread
        if not intercept:
            squares, label_squares = squares + n * mean.square(), label_squares + n * center**2
            mean, center = torch.zeros_like(mean), 0.0
        elif not labels:
            center = 0.0
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
        inner = known.products / source.total / self.scale / self.scale[:, None]
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

    def scaled(self, coef: Tensor, intercept: Tensor) -> Tensor:
        """The other way: coefficients of scaled data, to begin with."""
        w = coef * self.scale / self.size
        if not self.intercept:
            return w
        constant = (intercept + self.mean @ coef - self.center) / self.size
        return torch.cat([w, constant.reshape(1)])

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
        if l2 and not _PENALTIES[0] <= l2 <= _PENALTIES[1]:
            raise BoundError(
                f"the penalty beside the mean loss is {l2:.3g}, certified are 0 and "
                f"{_PENALTIES[0]:.1e} to {_PENALTIES[1]:.1e}; use another penalty, or divide the "
                "samples and the labels by a power of two"
            )
        q = l2 / self.scale.square()
        return torch.cat([q, q.new_zeros(1)]) if self.intercept else q


def check_magnitudes(source: Source, *, products: bool = True) -> None:
    """Refuse columns and labels whose squares leave what the proofs cover.

    Parameters
    ----------
    source
        The data; their moments are computed by one sweep, which is kept.
    products
        Whether that sweep is to find products of columns too, for whoever asks next.
    """
    known = source.moments(products=products)
    for j, size in enumerate(known.largest.tolist()):
        _check_magnitude(f"column {j} of the samples", size)
    _check_magnitude("the labels", max(abs(known.low), abs(known.high)))


def _check_magnitude(what: str, size: float) -> None:
    # Written so that NaN fails: every comparison with NaN is false.
    if size == 0 or _LEAST <= size <= _MOST:
        return
    if not math.isfinite(size):
        found = "holds NaN or infinity; fill or remove what is missing"
    else:
        found = (
            f"reaches {size:.3g}, certified are 0 and {_LEAST:.1e} to {_MOST:.1e}, where squares "
            f"neither overflow nor underflow; divide by a power of two, 2^{_exponent(size)} say"
        )
    raise BoundError(f"{what}: it {found}")


def _exponent(size: float) -> int:
    return math.frexp(size)[1]


def _lost(values: Tensor, center: Tensor, size: Tensor) -> Tensor:
    """(values - center)/size less the float64 that is computed of it."""
    exact = div(two_sum(values, -center), pair(size.expand_as(values)))
    return (exact.hi - (values - center) / size) + exact.lo
