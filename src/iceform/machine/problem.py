r"""LinearProblem: F(w) = mean_i l(w.x_i - y_i) + (1/2) sum_j q_j w_j^2 on scaled data.

Samples that have weights c_i count by them, mean_i (.) being sum_i c_i (.) / sum_i c_i: in a prompt
c_i is a factor of the sample's value rows.

Its gradient is one pass of the frozen machine over the data.

**Coordinates.** With a matrix T, w = T u and :math:`x \cdot w = (T^\top x) \cdot u`: prompts that
hold :math:`T^\top x_i` for x_i and u for w ask for the same look-ups, and their rows add up to the
gradient in u, :math:`T^\top \nabla F`. A step against it is a gradient step in those coordinates;
w = T u is the linear map back. Which T (a host's choice, from the curvature), and in which passes,
is up to the solver; proofs are about w and the samples as scaled, whatever was written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import exponent_of, power_of_two
from iceform.errors import PrecisionError
from iceform.functions import Loss
from iceform.functions.curvature import Curvature
from iceform.interpolation import Interpolant
from iceform.machine.moments import split
from iceform.machine.running import Running
from iceform.machine.scaling import Scaling
from iceform.machine.sources import Source
from iceform.machine.tables import Table, table_of

__all__ = [
    "Coordinates", "Encoding", "LinearProblem", "Metric", "metric_of", "slip_of",
    "sum_and_farthest",
]  # fmt: skip

_UNIT = torch.finfo(torch.float64).eps / 2
_SLACK = 1e-3  # norms and lengths of computed vectors, far beyond their rounding
_WIDENINGS = 8  # of a table in one pass; each at least doubles its range


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
    """

    machine: Any  # a Running, or in rows a run that only keeps the ledger
    source: Source
    scaling: Scaling
    loss: Loss
    ridge: Tensor
    positive: float | None = None
    passes: int = 0
    _reach: float = field(default=1.0, repr=False)
    _tried: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        self.machine.check_dim(self.dim)
        written = "label x sample" if self.loss.kind == "margin" else "samples and labels"
        what = f"scaled {written}, the coefficients, and a table of the loss's derivative"
        self.machine.ledger.note("prompt", what)
        if self.source.weighed:
            self.machine.ledger.note("prompt", "weights, as factors of the samples' value rows")
        if self.curvature.quadratic:  # the first pass, at w = 0, sees the labels
            self._reach = self._tried = self.scaling.label_reach(self.source)

    @property
    def dim(self) -> int:
        """Number of coefficients p, the intercept's included."""
        return self.scaling.dim

    @property
    def curvature(self) -> Curvature:
        """Second-order facts about the loss."""
        return self.loss.curvature

    @property
    def table(self) -> Table:
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
        """W = 0."""
        return torch.zeros(self.dim, dtype=torch.float64, device=self.source.device)

    def gradient(self, w: Tensor, *, trial: bool = False) -> Tensor:
        """The gradient of F, its loss looked up by the frozen machine in one pass.

        A table that has to be widened stays so, unless this is but a trial.
        """
        return self._mean(self.encoding, w, trial) + self.ridge * w

    def slope(self, u: Tensor, within: Coordinates, *, trial: bool = False) -> Tensor:
        """T' times the gradient at T u, by one pass over samples that are written as T'x."""
        self.machine.ledger.note("prompt", "samples in other coordinates, T'x for x and u for w")
        encoding = replace(self.encoding, turned=within.turned)
        penalty = within.turned.mT @ (self.ridge * within.back(u))
        return self._mean(encoding, u, trial) + penalty

    def _mean(self, encoding: Encoding, w: Tensor, trial: bool) -> Tensor:
        """What the samples' rows are in the mean, by one pass; more where the table is widened."""
        reach = self._reach
        for _ in range(_WIDENINGS):
            table = self.table.on(reach)
            task = GradientTask(self.machine, table, encoding, w)
            total, beyond = self.source.combine(task, sum_and_farthest)
            self.passes += 1
            self.machine.ledger.note("readout", "sums of the samples' gradients")
            if float(beyond) == 0:
                self._tried = reach
                if not trial:
                    self.keep()
                return total / self.source.total
            # Residuals left the table: a wider one is another prompt.
            reach = table.high + float(beyond)
        raise PrecisionError(
            f"residuals still leave the table at {reach:.3g}; the iteration diverges",
            best=math.inf,
        )

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
        (gram,) = self.source.reduce(GramTask(self.encoding, w, bend))
        return gram / self.source.total + torch.diag(self.ridge)

    @cached_property
    def _second_moments(self) -> Tensor:
        """Mean of x_i x_i', for losses whose curvature is 1."""
        known = self.scaling.second_moments(self.source)
        if known is not None:
            return known
        task = GramTask(self.encoding, self.start(), torch.ones_like)
        return self.source.reduce(task)[0] / self.source.total


def sum_and_farthest(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """Of two chunks' look-ups: what they add up to, and how far any of them left the table."""
    return [first[0] + second[0], torch.maximum(first[1], second[1])]


@dataclass(frozen=True, eq=False)
class GradientTask:
    """sum_i c_i (A(z_i) - o_i) x_i of a chunk by the frozen machine, and how far z left A."""

    machine: Running
    table: Interpolant
    encoding: Encoding
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        prompt = self.machine.look_ups(self.table, *self.encoding.written(x, y, self.w))
        beyond = (prompt.residuals().abs().max() - self.table.high).clamp(min=0)
        if float(beyond) > 0:
            return [torch.zeros_like(self.w), beyond]
        return [self.machine.total(prompt), beyond]


@dataclass(frozen=True, eq=False)
class GramTask:
    """sum_i c(w.x_i - y_i) x_i x_i' of a chunk."""

    encoding: Encoding
    w: Tensor
    bend: object

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = self.encoding(x, y)
        weights = self.bend(samples @ self.w - labels)  # type: ignore[operator]
        weights = self.encoding.weigh(weights, y)
        return [(samples * weights[:, None]).mT @ samples]


def slip_of(samples: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """What z_i = w.x_i - y_i is off by.

    Samples and labels are a difference of two given numbers over a third, and round relative to
    themselves; then z sums p products.
    """
    return (len(w) + 4) * _UNIT * (samples.abs() @ w.abs() + labels.abs())


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
        """U."""
        return self.inverse.mT @ w

    def back(self, u: Tensor) -> Tensor:
        """W."""
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

        Two products of p terms round by 2 (p + 2) u sqrt(p) ||E||_F in norm, V being as long as p
        unit vectors to the last digits.
        """
        if self.given is None or not self.rank:
            return 0.0
        p = len(self.scale)
        left = self.vectors.mT @ (self.given @ self.vectors)
        apart = float((left - torch.diag(self.eigenvalues)).norm())
        rounded = 3 * (p + 2) * _UNIT * math.sqrt(p) * float(self.given.norm())
        return (1 + _SLACK) * (apart + rounded)

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

    def step(self, gradient: Tensor) -> Tensor:
        """H^+ g."""
        step: Tensor = self.whitener @ (self.whitener.mT @ gradient)
        return step

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
    values, vectors = torch.linalg.eigh(scaled)
    # Each entry is a sum of rows products; eigh itself is off by about p u.
    top = float(values[-1].clamp(min=0))
    noise = 4 * (len(matrix) + rows**0.5) * torch.finfo(torch.float64).eps * top
    keep = values > noise
    return Metric(vectors[:, keep], values[keep], scale, noise, given=scaled)
