r"""LinearProblem: F(w) = mean_i l(w.x_i - y_i) + (1/2) sum_j q_j w_j^2 on scaled data; metrics.

Its gradient is one pass of the frozen machine over the data. Samples that have weights c_i count by
them, mean_i (.) being sum_i c_i (.) / sum_i c_i: in a prompt c_i is a factor of the sample's value
rows.

**Coordinates.** With a matrix T, w = T u and :math:`x \cdot w = (T^\top x) \cdot u`: prompts that
hold :math:`T^\top x_i` for x_i and u for w ask for the same look-ups, and their rows add up to the
gradient in u, :math:`T^\top \nabla F`. A step against it is a gradient step in those coordinates;
w = T u is the linear map back. Which T (a host's choice, from the curvature), and in which passes,
is up to the solver; proofs are about w and the samples as scaled, whatever was written.

**Magnitudes.** The rounding model of the proofs is relative: it holds where nothing overflows, and
where what underflows is far below what is bounded. Scaled samples and labels are about 1. What is
not are their sizes s_j and t, in squares s_j^2, in ratios t/s_j whose squares add up to lengths,
and in penalties q_j = l2/s_j^2. Where the largest entry of every column and of the labels is 0 or
within :math:`2^{\pm 200}`, sizes are within :math:`2^{-260} \dots 2^{200}`: what varies less than
:math:`2^{-49}` of its mean counts as constant, and :math:`2^{-11}` is left for the root of the
number of samples. Ratios are then within :math:`2^{\pm 460}` and, with l2 within
:math:`2^{-300} \dots 2^{250}` or 0, penalties within :math:`2^{-700} \dots 2^{770}`; a penalty that
shortens lengths leaves t/sqrt(l2), at least :math:`2^{-385}`. All of these and the squares of
lengths are normal numbers. Where scales are not found from the data but stated, they are held to
the same range. Coefficients that are not found here but given are held to what labels are, each
times the largest entry of its column. Anything else is refused by :func:`check_magnitudes`, which
every :class:`LinearProblem` calls when it is made, so that no proof is without it, by
:func:`check_coefficients` and by :meth:`Scaling.penalty`. Dividing a column or the labels by a
power of two is exact, and multiplies or divides the coefficients by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import UNIT, exponent_of, power_of_two
from iceform.arithmetic.double_double import div, pair, two_sum
from iceform.errors import BoundError, PrecisionError
from iceform.expressions import Curvature, Loss
from iceform.tables import Interpolant
from iceform_estimators.machine.sources import HEAVIEST, Source, each, split
from iceform_estimators.machine.stream import MachineRun, ScalarTable, table_of
from iceform_estimators.tuning import APART, FAR, SLACK

_MOST = HEAVIEST**2  # of columns and labels
_LEAST = 1 / _MOST
_SIZES = (2.0**-260, 2.0**201)  # of scales: as above, and twice a stated bound
_PENALTIES = (2.0**-300, 2.0**250)


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

    Examples
    --------
    >>> x, y = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([1.0, 3.0]).double()
    >>> scaling = Scaling.of(ArraySource(x, y), intercept=True)
    >>> scaling.samples(x).tolist(), scaling.labels(y).tolist()
    ([[-1.0, 1.0], [1.0, 1.0]], [-1.0, 1.0])
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
        if float((known.mean.abs() / self.scale).max()) > FAR:
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
        """The other way: coefficients of scaled data, to begin with.

        Those too small for the proofs are 0, since passes may begin anywhere; larger ones than
        these cover are refused.
        """
        w = coef * self.scale / self.size
        if self.intercept:
            constant = (intercept + self.mean @ coef - self.center) / self.size
            w = torch.cat([w, constant.reshape(1)])
        far = float(w.abs().max()) if len(w) else 0.0
        if not far <= _MOST:
            raise BoundError(
                f"coefficients to begin with reach {far:.3g} on scaled data, certified are up to "
                f"{_MOST:.1e}; begin at 0 (warm_start=False) or nearer to the answer"
            )
        return torch.where(w.abs() < _LEAST, 0.0, w)

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

    def thresholds(self, l1: float) -> Tensor:
        """Of the penalty l1 |coef|_1, for coefficients of scaled data; none for the intercept."""
        found = l1 / (self.scale * self.size)
        return torch.cat([found, found.new_zeros(int(self.intercept))])


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
        check_magnitude(f"column {j} of the samples", size)
    check_magnitude("the labels", max(abs(known.low), abs(known.high)))


def check_coefficients(source: Source, w: Tensor) -> None:
    """Refuse given coefficients whose products with the samples leave what the proofs cover."""
    largest = source.moments(products=False).largest
    for j, (size, reach) in enumerate(zip(w.abs().tolist(), largest.tolist(), strict=True)):
        # A column of zeros has no products; a coefficient is then held to the range itself. A
        # product that underflows is not 0.
        product = max(size * (reach or 1.0), math.ulp(0.0)) if size else 0.0
        check_magnitude(f"coefficient {j}, times its column", product)


def check_sizes(scaling: Scaling) -> None:
    """Refuse scales, found or stated, whose squares and ratios leave what the proofs cover."""
    sizes = [*scaling.scale.tolist(), scaling.size]
    for j, size in enumerate(sizes):
        if not _SIZES[0] <= size <= _SIZES[1]:
            what = "the labels" if j == len(sizes) - 1 else f"column {j} of the samples"
            raise BoundError(
                f"{what} would be divided by {size:.3g}, certified are {_SIZES[0]:.1e} to "
                f"{_SIZES[1]:.1e}; state a bound nearer to the data, or divide both by a power of "
                f"two, 2^{_exponent(size)} say"
            )


def check_magnitude(what: str, size: float) -> None:
    """Refuse what is neither 0 nor within the range whose squares are normal numbers."""
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


# What the host does of a pass, in words of the ledger.
SCALED = "means and deviations of the columns, and samples scaled by them"
TURNED = "samples in other coordinates: T'x for x and u for w, T found from the data"
WATCHED = "all residuals of a pass, to see whether its table covers them"
WIDENED = "another table for the next pass, as wide as those residuals"
STRAIGHT = "a straight line, looked up: without attention the answer is the same but for rounding"

_WIDENINGS = 8  # of a table in one pass; each at least doubles its range
_SQUARES = 8  # of a matrix whose norm is bounded: a share of a hundredth too much
_WIDEST = 1024  # coefficients: an eigendecomposition costs their cube


@dataclass(frozen=True, eq=False)
class Coordinates:
    """w = T u for an invertible T.

    Attributes
    ----------
    turned
        T, shape (p, p).
    inverse
        The transpose of its inverse.
    rank
        How many of the coordinates are stepped along, the first ones.
    """

    turned: Tensor
    inverse: Tensor
    rank: int

    def of(self, w: Tensor) -> Tensor:
        """u."""
        return self.inverse.mT @ w

    def back(self, u: Tensor) -> Tensor:
        """w."""
        return self.turned @ u

    def gradient(self, slope: Tensor) -> Tensor:
        """The gradient in w of one in u."""
        return self.inverse @ slope

    def along(self, slope: Tensor) -> Tensor:
        """A step in u: the slope, where it is stepped along."""
        return torch.cat([slope[: self.rank], slope.new_zeros(len(slope) - self.rank)])


@dataclass(frozen=True, eq=False)
class Metric:
    """A symmetric matrix H = S E S by the eigenvectors of E = V L V', whose diagonal is about 1.

    T = S^{-1} V L^{-1/2} has T T' = H^{-1}. Scaling by S makes what is kept independent of the
    units of the coefficients: only eigenvalues above what rounding leaves of zero ones are.
    """

    vectors: Tensor  # V, (p, rank)
    eigenvalues: Tensor  # L, (rank,), increasing
    scale: Tensor  # S, (p,), powers of two
    noise: float = 0.0  # eigenvalues of E up to this are rounding
    unknown: Tensor | None = (
        None  # (p, p - rank), the other directions, where they are known better
    )
    given: Tensor | None = None  # E, where the rest was computed from it

    @property
    def rank(self) -> int:
        """How many eigenvalues are kept."""
        return len(self.eigenvalues)

    @property
    def whole(self) -> bool:
        """Whether all are."""
        return self.rank == len(self.scale)

    @cached_property
    def lost(self) -> float:
        """No less than ||V'EV - L||, whatever found V and L: 0 where E is not kept.

        Two products of p terms round by 2 (p + 2) u sqrt(p) ||E||_F ||V||^2 in norm.
        """
        if self.given is None or not self.rank:
            return 0.0
        p = len(self.scale)
        left = self.vectors.mT @ (self.given @ self.vectors)
        apart = float((left - torch.diag(self.eigenvalues)).norm())
        rounded = 3 * (p + 2) * UNIT * math.sqrt(p) * float(self.given.norm())
        return SLACK * (apart + rounded * self.stretch**2)

    @cached_property
    def stretch(self) -> float:
        """No less than ||V||, which is 1 to the last digits where V was found as it should be."""
        p, rank = self.vectors.shape
        eye = torch.eye(rank, dtype=self.vectors.dtype, device=self.vectors.device)
        skew = float((self.vectors.mT @ self.vectors - eye).norm())
        return math.sqrt(1 + skew + 4 * (p + 2) * UNIT * rank)

    @cached_property
    def whitener(self) -> Tensor:
        """T, shape (p, rank)."""
        return self.vectors / self.eigenvalues.sqrt() / self.scale[:, None]

    @cached_property
    def factor(self) -> Tensor:
        """S V L^{1/2}, whose product with its transpose is H, shape (p, rank)."""
        return self.vectors * self.eigenvalues.sqrt() * self.scale[:, None]

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue of H."""
        return float(torch.linalg.matrix_norm(self.factor, 2)) ** 2 if self.rank else 0.0

    def size(self, w: Tensor) -> float:
        """||w|| in the metric."""
        return float((self.factor.mT @ w).norm())

    def norm(self, gradient: Tensor) -> float:
        """||g|| in the inverse metric: the length of the step it asks for."""
        return float((self.whitener.mT @ gradient).norm())

    def unseen(self, gradient: Tensor) -> Tensor:
        """The part of g that H knows nothing of, as a direction d with H d = 0."""
        turned = gradient / self.scale
        return (turned - self.vectors @ (self.vectors.mT @ turned)) / self.scale

    def null(self) -> Tensor:
        """Directions d with H d = 0, shape (p, p - rank)."""
        rest = self.unknown
        if rest is None and self.whole:
            rest = self.vectors[:, :0]
        elif rest is None:
            rest = torch.linalg.svd(self.vectors).U[:, self.rank :]
        return rest / self.scale[:, None]

    @cached_property
    def coordinates(self) -> Coordinates:
        """Those in which H is the identity where it is known, and 0 in the others."""
        rest = self.null()
        turned = torch.cat([self.whitener, rest], 1)
        return Coordinates(
            turned, torch.cat([self.factor, rest * self.scale.square()[:, None]], 1), self.rank
        )

    @property
    def condition(self) -> float:
        """Largest over least eigenvalue of E that is not zero."""
        return float(self.eigenvalues[-1] / self.eigenvalues[0]) if self.rank else 1.0


def metric_of(matrix: Tensor, rows: int) -> Metric:
    """The metric of a Gram matrix of ``rows`` samples."""
    diagonal = matrix.diagonal()
    roots = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    scale = power_of_two(exponent_of(math.sqrt(2) * roots) - 1)  # the nearest ones
    if not len(matrix):
        return Metric(matrix, diagonal, scale)
    scaled = matrix / scale / scale[:, None]
    if not bool(torch.isfinite(scaled).all()):
        raise BoundError(
            "the curvature of the objective is beyond float64 where a fit begins or has come to; "
            "scale the samples, and begin at 0 (warm_start=False) or nearer to the answer"
        )
    values, vectors = torch.linalg.eigh(scaled)
    # Each entry is a sum of rows products; eigh itself is off by about p u.
    top = float(values[-1].clamp(min=0))
    noise = 4 * (len(matrix) + rows**0.5) * torch.finfo(torch.float64).eps * top
    keep = values > noise
    return Metric(vectors[:, keep], values[keep], scale, noise, given=scaled)


def spectral_norm(matrix: Tensor) -> float:
    r"""No less than the largest singular value; infinite where there is none.

    :math:`\|M\|_2^2 = \|M'M\|_2`, and so on for its squares: with :math:`B_0 = M`,
    :math:`B_{k+1} = B_k'B_k / \|B_k\|_F^2`, and :math:`\|B_k\|_2 \le \|B_k\|_F` for the last,

    .. math:: \|B_k\|_2 \le \|B_k\|_F \left(\|B_{k+1}\|_2 + γ\right)^{1/2},

    γ covering the rounding of a product in the Frobenius norm. After k squares that is no more
    than :math:`p^{2^{-k-1}}` times the norm.
    """
    if not matrix.numel():
        return 0.0
    gamma = 2 * (max(matrix.shape) + 4) * UNIT
    sizes, square = [float(matrix.norm())], matrix
    for _ in range(_SQUARES):
        if not 0 < sizes[-1] < math.inf:
            break
        unit = square / sizes[-1]
        square = unit.mT @ unit
        sizes.append(float(square.norm()))
    bound = sizes.pop() * (1 + gamma)
    for size in reversed(sizes):
        bound = size * math.sqrt(bound + gamma) * (1 + gamma)
    return math.inf if math.isnan(bound) else bound


def needs_sharpening(metric: Metric) -> bool:
    """Whether a Gram matrix hides some of its directions."""
    if not len(metric.scale) or len(metric.scale) > _WIDEST:
        return False
    return not metric.whole or metric.condition * APART > 1


@dataclass(frozen=True, eq=False)
class Encoding:
    """How a chunk becomes samples x', labels y' and offsets o: l_i' = (f(w.x' - y') - o) x'."""

    scaling: Scaling
    kind: str
    positive: float | None = None  # one-vs-rest: the label that counts as 1
    turned: Tensor | None = None  # T, by which prompts hold T'x' and coefficients u, w = T u

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        samples, (y, _) = self.scaling.samples(x), split(y)
        if self.kind == "residual":
            labels = self.scaling.labels(y)
            return samples, labels, torch.zeros_like(labels)
        if self.positive is not None:
            y = (y == self.positive).to(x)
            y = 2 * y - 1 if self.kind == "margin" else y
        if self.kind == "margin":
            return samples * y[:, None], torch.zeros_like(y), torch.zeros_like(y)
        return samples, torch.zeros_like(y), y

    def lines(self, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Samples, z = w.x' - y', what z may be off by, and offsets."""
        samples, labels, offsets = self(x, y)
        return samples, samples @ w - labels, slip_of(samples, w, labels), offsets

    def lows(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What samples and labels were rounded by, to be added to them."""
        low, (y, _) = self.scaling.lows(x), split(y)
        if self.kind == "residual":
            return low, self.scaling.label_lows(y)
        if self.kind == "margin":
            sign = y if self.positive is None else 2 * (y == self.positive).to(x) - 1
            low = low * sign[:, None]
        return low, torch.zeros_like(y)

    def written(
        self, x: Tensor, y: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Samples, labels, w, offsets and factors as a prompt holds them."""
        samples, labels, offsets = self(x, y)
        samples = samples if self.turned is None else samples @ self.turned
        return samples, labels, w, offsets if self.kind == "glm" else None, split(y)[1]

    @staticmethod
    def weigh(values: Tensor, y: Tensor) -> Tensor:
        """Numbers of a chunk's samples, times their weights."""
        weights = split(y)[1]
        return values if weights is None else values * weights


@dataclass(eq=False)
class LinearProblem:
    """A linear model to be fitted in context.

    Parameters
    ----------
    machine, source, scaling
        The frozen weights, the data, and how they are scaled.
    loss
        l.
    ridge
        q, shape (p,).
    positive
        For one-vs-rest: the label that counts as 1.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> from iceform.expressions import loss_named
    >>> x, y = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([1.0, 3.0]).double()
    >>> source, run = ArraySource(x, y), Machine(2).start()
    >>> scaling, loss = Scaling.of(source, intercept=True), loss_named("squared")
    >>> problem = LinearProblem(run, source, scaling, loss, scaling.penalty(0.0))
    >>> problem.gradient(problem.start()).norm() > 0, problem.passes
    (tensor(True), 1)
    """

    machine: Any  # a MachineRun, or in rows a run that only keeps the ledger
    source: Source
    scaling: Scaling
    loss: Loss
    ridge: Tensor
    positive: float | None = None
    passes: int = 0
    _reach: float = field(default=1.0, repr=False)
    _tried: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        self.check_range()
        self.machine.check_dim(self.dim)
        written = "label x sample" if self.loss.kind == "margin" else "samples and labels"
        what = f"scaled {written}, the coefficients, and a table of the loss's derivative"
        self.machine.ledger.note("prompt", what)
        if self.source.weighed:
            self.machine.ledger.note("prompt", "weights, as factors of the samples' value rows")
        if self.curvature.quadratic:  # the first pass, at w = 0, sees the labels
            self._reach = self._tried = self.scaling.label_reach(self.source)

    def check_range(self) -> None:
        """Refuse data and scales beyond what proofs cover, before anything else."""
        check_magnitudes(self.source, products=False)
        check_sizes(self.scaling)

    @property
    def dim(self) -> int:
        """Number of coefficients p, the intercept's included."""
        return self.scaling.dim

    @property
    def curvature(self) -> Curvature:
        """Second-order facts about the loss."""
        return self.loss.curvature

    @property
    def table(self) -> ScalarTable:
        """The look-up table of l'."""
        return table_of(self.loss, self.machine.tokens)

    @property
    def covered(self) -> float:
        """The largest residual that the table in use covers."""
        return self._reach

    @property
    def encoding(self) -> Encoding:
        """How chunks are encoded."""
        return Encoding(self.scaling, self.loss.kind, self.positive)

    def start(self) -> Tensor:
        """w = 0."""
        return torch.zeros(self.dim, dtype=torch.float64, device=self.source.device)

    def gradient(self, w: Tensor, *, trial: bool = False) -> Tensor:
        """The gradient of F, its loss looked up by the frozen machine in one pass.

        A table that has to be widened stays so, unless this is but a trial.
        """
        return self._mean(self.encoding, w, trial) + self.ridge * w

    def slope(self, u: Tensor, within: Coordinates, *, trial: bool = False) -> Tensor:
        """T' times the gradient at T u, by one pass over samples that are written as T'x."""
        self.machine.ledger.note("host", TURNED)
        encoding = replace(self.encoding, turned=within.turned)
        penalty = within.turned.mT @ (self.ridge * within.back(u))
        return self._mean(encoding, u, trial) + penalty

    def _mean(self, encoding: Encoding, w: Tensor, trial: bool) -> Tensor:
        """What the samples' rows are in the mean, by one pass; more where the table is widened."""
        total, self._tried, passes = swept(
            self.machine, self.source, self.table, self._reach, partial(encoding.written, w=w)
        )
        self.passes += passes
        if not trial:
            self.keep()
        return total / self.source.total

    def keep(self) -> None:
        """Keep the table of the last pass."""
        self._reach = self._tried

    @property
    def floor(self) -> float:
        """What the look-up leaves of a gradient entry of unit-size features at the optimum."""
        return self.table.on(self._reach).error

    def hessian(self, w: Tensor, *, majorizer: bool = False) -> Tensor:
        """Mean of c(z_i) x_i x_i' plus the penalty's, shape (p, p); c is l'' or its majorizer."""
        facts = self.curvature
        self.machine.ledger.note("host", "Gram matrix of the samples, weighed by the curvature")
        if facts.quadratic:
            return self._second_moments + torch.diag(self.ridge)
        bend = facts.majorizer if majorizer and facts.majorizer is not None else facts.bend
        gram = gram_of(self.source, self.encoding, w, bend)
        return gram / self.source.total + torch.diag(self.ridge)

    @cached_property
    def _second_moments(self) -> Tensor:
        """Mean of x_i x_i', for losses whose curvature is 1."""
        known = self.scaling.second_moments(self.source)
        if known is not None:
            return known
        ones = gram_of(self.source, self.encoding, self.start(), torch.ones_like)
        return ones / self.source.total


@dataclass(frozen=True, eq=False)
class GradientTask:
    """sum_i c_i (A(z_i) - o_i) x_i of a chunk by the frozen machine, and how far z left A.

    ``written`` says what a prompt holds of a chunk; ``counted`` adds up the look-ups themselves.
    """

    machine: MachineRun
    table: Interpolant
    written: Callable[[Tensor, Tensor], tuple[Tensor | None, ...]]
    counted: bool = False

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        prompt = self.machine.look_ups(self.table, *self.written(x, y))  # type: ignore[arg-type]
        beyond = (prompt.residuals().abs().max() - self.table.high).clamp(min=0)
        if float(beyond) > 0:
            return [torch.zeros_like(beyond if self.counted else prompt.w), beyond]
        read = self.machine.count if self.counted else self.machine.total
        return [read(prompt), beyond]


def swept(
    machine: MachineRun,
    source: Source,
    table: ScalarTable,
    reach: float,
    written: Callable[[Tensor, Tensor], tuple[Tensor | None, ...]],
    *,
    counted: bool = False,
    says: str = "sums of the samples' gradients",
) -> tuple[Tensor, float, int]:
    """What a pass adds up, how far its table goes, and passes in all.

    Residuals that leave the table ask for a wider one: another prompt, and another pass.
    """
    for passes in range(1, _WIDENINGS + 1):
        task = GradientTask(machine, table.on(reach), written, counted)
        total, beyond = source.combine(task, each(torch.add, torch.maximum))
        machine.ledger.note("readout", says)
        machine.ledger.note("host", WATCHED)
        if float(beyond) == 0:
            return total, reach, passes
        machine.ledger.note("host", WIDENED)
        reach = task.table.high + float(beyond)
    raise PrecisionError(
        f"residuals still leave the table at {reach:.3g}; the iteration diverges", best=math.inf
    )


def gram_of(source: Source, encoding: Encoding, w: Tensor, bend: Callable[..., Tensor]) -> Tensor:
    """sum_i c_i bend(w.x_i - y_i) x_i x_i' over the samples.

    Parameters
    ----------
    source, encoding
        The data, and how a chunk of them becomes samples and labels.
    w, bend
        Coefficients, and what residuals weigh a sample by; ``torch.ones_like`` for all alike.
    """

    def gram(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = encoding(x, y)
        weights = encoding.weigh(bend(samples @ w - labels), y)
        return [(samples * weights[:, None]).mT @ samples]

    return source.reduce(gram)[0]


def slip_of(samples: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """What z_i = w.x_i - y_i is off by.

    Samples and labels are a difference of two given numbers over a third, and round relative to
    themselves; then z sums p products.
    """
    return (len(w) + 4) * UNIT * (samples.abs() @ w.abs() + labels.abs())
