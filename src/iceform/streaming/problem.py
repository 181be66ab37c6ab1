r"""LinearProblem: F(w) = mean_i l(w.x_i - y_i) + (1/2) sum_j q_j w_j^2 on scaled data.

Its gradient is one pass of the frozen machine over the data. Its curvature, which only says in
which metric to step, is computed by the readout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from iceform.constructions import Loss
from iceform.errors import PrecisionError
from iceform.interpolation import Interpolant
from iceform.streaming.curvature import Curvature, curvature_of
from iceform.streaming.machine import StreamMachine
from iceform.streaming.scaling import Scaling
from iceform.streaming.sources import ArraySource, Source
from iceform.streaming.tables import Table, table_of

__all__ = ["Encoding", "LinearProblem", "Metric", "metric_of"]

_WIDENINGS = 8  # of a table in one pass; each at least doubles its range
_KEPT_BYTES = 1 << 28  # scaled samples up to this size are kept between passes


@dataclass(frozen=True, eq=False)
class Encoding:
    """How a chunk becomes samples x', labels y' and offsets o: l_i' = (f(w.x' - y') - o) x'."""

    scaling: Scaling
    kind: str
    positive: float | None = None  # one-vs-rest: the label that counts as 1
    scaled: bool = False  # whether the chunk is scaled already

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        samples = x if self.scaled else self.scaling.samples(x)
        if self.kind == "residual":
            labels = y if self.scaled else self.scaling.labels(y)
            return samples, labels, torch.zeros_like(labels)
        if self.positive is not None:
            y = (y == self.positive).to(x)
            y = 2 * y - 1 if self.kind == "margin" else y
        if self.kind == "margin":
            return samples * y[:, None], torch.zeros_like(y), torch.zeros_like(y)
        return samples, torch.zeros_like(y), y


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

    machine: StreamMachine
    source: Source
    scaling: Scaling
    loss: Loss
    ridge: Tensor
    positive: float | None = None
    passes: int = 0
    _reach: float = field(default=1.0, repr=False)
    _tried: float = field(default=1.0, repr=False)
    _prepared: Source = field(init=False, repr=False)
    _encoding: Encoding = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.machine.check_dim(self.dim)
        self._prepared, self._encoding = self.source, self.encoding
        if isinstance(self.source, ArraySource) and 8 * self.source.x.numel() <= _KEPT_BYTES:
            y = (
                self.source.y
                if self.loss.kind != "residual"
                else self.scaling.labels(self.source.y)
            )
            self._prepared = ArraySource(self.scaling.samples(self.source.x), y)
            self._encoding = replace(self.encoding, scaled=True)

    @property
    def dim(self) -> int:
        """Number of coefficients p, the intercept's included."""
        return self.scaling.dim

    @property
    def curvature(self) -> Curvature:
        """Second-order facts about the loss."""
        return curvature_of(self.loss)

    @property
    def table(self) -> Table:
        """The look-up table of l'."""
        return table_of(self.loss, self.machine.tokens)

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
        reach = self._reach
        for _ in range(_WIDENINGS):
            table = self.table.on(reach)
            total, beyond = self._prepared.reduce(
                GradientTask(self.machine, table, self._encoding, w)
            )
            self.passes += 1
            if float(beyond) == 0:
                self._tried = reach
                if not trial:
                    self.keep()
                return total / self.source.rows + self.ridge * w
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
        bend = facts.majorizer if majorizer and facts.majorizer is not None else facts.bend
        (gram,) = self._prepared.reduce(GramTask(self._encoding, w, bend))
        return gram / self.source.rows + torch.diag(self.ridge)


@dataclass(frozen=True, eq=False)
class GradientTask:
    """sum_i (A(w.x_i - y_i) - o_i) x_i of a chunk by the frozen machine, and how far z left A."""

    machine: StreamMachine
    table: Interpolant
    encoding: Encoding
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, offsets = self.encoding(x, y)
        z = samples @ self.w - labels
        beyond = (z.abs().max() - self.table.high).clamp(min=0)
        if float(beyond) > 0:
            return [torch.zeros_like(self.w), beyond]
        return [(self.machine.look_up(self.table, z) - offsets) @ samples, beyond]


@dataclass(frozen=True, eq=False)
class GramTask:
    """sum_i c(w.x_i - y_i) x_i x_i' of a chunk."""

    encoding: Encoding
    w: Tensor
    bend: object

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = self.encoding(x, y)
        weights = self.bend(samples @ self.w - labels)  # type: ignore[operator]
        return [(samples * weights[:, None]).mT @ samples]


@dataclass(frozen=True, eq=False)
class Metric:
    """A symmetric matrix H by its eigenvectors: T = V L^{-1/2}, so that T T' is its inverse.

    Only eigenvalues above what rounding leaves of zero ones are kept.
    """

    vectors: Tensor  # V, (p, rank)
    eigenvalues: Tensor  # L, (rank,), increasing

    @property
    def rank(self) -> int:
        """How many eigenvalues are kept."""
        return len(self.eigenvalues)

    @cached_property
    def whitener(self) -> Tensor:
        """T, shape (p, rank)."""
        return self.vectors / self.eigenvalues.sqrt()

    def size(self, w: Tensor) -> float:
        """||w|| in the metric."""
        return float((self.eigenvalues.sqrt() * (self.vectors.mT @ w)).norm())

    def norm(self, gradient: Tensor) -> float:
        """||g|| in the inverse metric: the length of the step it asks for."""
        return float((self.whitener.mT @ gradient).norm())

    def step(self, gradient: Tensor) -> Tensor:
        """H^+ g."""
        step: Tensor = self.whitener @ (self.whitener.mT @ gradient)
        return step

    @property
    def condition(self) -> float:
        """Largest over least eigenvalue that is not zero."""
        return float(self.eigenvalues[-1] / self.eigenvalues[0]) if self.rank else 1.0


def metric_of(matrix: Tensor, rows: int) -> Metric:
    """The metric of a Gram matrix of ``rows`` samples."""
    values, vectors = torch.linalg.eigh(matrix)
    # Each entry is a sum of rows products; eigh itself is off by about p u.
    noise = (len(matrix) + rows**0.5) * torch.finfo(torch.float64).eps * values[-1].clamp(min=0)
    keep = values > 4 * noise
    return Metric(vectors[:, keep], values[keep])
