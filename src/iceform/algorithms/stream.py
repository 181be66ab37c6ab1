"""Programs for data of any length: what they share, and smooth linear models."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from iceform.certificates import Certificate, Step
from iceform.errors import ProgramError, ShapeError
from iceform.functions import Loss, loss_named
from iceform.machine import Running, Source, StreamMachine
from iceform.machine.problem import LinearProblem
from iceform.machine.proofs import Proof, certificate_of, prove
from iceform.machine.scaling import Scaling
from iceform.machine.solvers import PRECONDITIONERS, Solution, minimise
from iceform.machine.tables import read_line
from iceform.validation import check_choice, check_positive

_UNIT = torch.finfo(torch.float64).eps / 2

__all__ = [
    "Fit",
    "LinearModel",
    "LinearSVM",
    "Logistic",
    "Poisson",
    "Quantile",
    "StreamProgram",
]


@dataclass(frozen=True, eq=False)
class Fit:
    """What a program leaves behind.

    Attributes
    ----------
    coef, intercept
        Of the data as they came, shapes (d,) and ().
    certificate
        Proven distance of the coefficients from the exact optimum's.
    passes
        Passes of the frozen machine over the data.
    digest
        SHA-256 of its weights.
    intercept_error
        Proven distance of the intercept.
    converged
        Whether the loop ended below its tolerance.
    extras
        What else a program found (Huber's scale, an outlier count, ...).
    history
        Gradient norms, one per step.
    """

    coef: Tensor
    intercept: Tensor
    certificate: Certificate
    passes: int
    digest: str
    machine: StreamMachine
    intercept_error: float = 0.0
    converged: bool = True
    extras: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[float, ...] = ()

    def predict(self, x: Tensor) -> Tensor:
        """x.coef + intercept for new samples, looked up by the frozen machine, shape (n,)."""
        if x.ndim != 2 or x.shape[1] != len(self.coef):
            raise ShapeError(f"samples must have shape (n, {len(self.coef)}), got {tuple(x.shape)}")
        return read_line(self.machine, x @ self.coef + self.intercept)


class StreamProgram(ABC):
    """An algorithm that passes over data of any length by prompts to one frozen layer."""

    @property
    def name(self) -> str:
        """As in tables."""
        return type(self).__name__

    @abstractmethod
    def stream(self, machine: Running, source: Source) -> Any:
        """Loop the machine over the data."""


@dataclass(frozen=True)
class LinearModel(StreamProgram):
    """What all linear models share.

    Parameters
    ----------
    fit_intercept
        Whether there is one; it is not penalised.
    tol
        Length of the last step, in the metric of the Hessian, relative to the coefficients.
    max_passes
        Most passes over the data.
    precondition
        "whiten", "diagonal" or "none", as for :func:`iceform.machine.solvers.minimise`.
    """

    fit_intercept: bool = field(default=True, kw_only=True)
    tol: float = field(default=1e-9, kw_only=True)
    max_passes: int = field(default=1000, kw_only=True)
    precondition: str = field(default="whiten", kw_only=True)

    def loss(self) -> Loss:
        """l, on scaled labels."""
        return loss_named("squared")

    def l2(self, rows: int) -> float:
        """The penalty (l2/2) ||coef||^2 beside a mean over samples."""
        return 0.0

    @property
    def _positive(self) -> float | None:
        return None

    def scaling(self, source: Source) -> Scaling:
        """How the data are scaled before anything else."""
        return Scaling.of(
            source,
            intercept=self.fit_intercept,
            labels=self.loss().kind == "residual",
            columns=self.precondition != "none",
        )

    def check_labels(self, source: Source) -> None:
        """Refuse labels that the loss is not defined for."""
        loss = self.loss()
        if loss.kind != "residual" and self._positive is None:
            source.reduce(_LabelCheck(loss))

    def problem(self, machine: Running, source: Source) -> LinearProblem:
        """The objective on scaled data."""
        check_choice("precondition", self.precondition, PRECONDITIONERS)
        l2 = check_positive("penalty", self.l2(source.rows), zero=True)
        self.check_labels(source)
        scaling = self.scaling(source)
        ridge = scaling.penalty(l2)
        return LinearProblem(machine, source, scaling, self.loss(), ridge, self._positive)

    def stream(self, machine: Running, source: Source) -> Fit:
        problem = self.problem(machine, source)
        solution = minimise(
            problem, tol=self.tol, max_passes=self.max_passes, precondition=self.precondition
        )
        return fitted(problem, solution, prove(problem, solution.w))


@dataclass(frozen=True, eq=False)
class _LabelCheck:
    """Raises where a label is not what a loss takes."""

    loss: Loss

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        self.loss.check_labels(y)
        return [y.new_zeros(())]


def fitted(
    problem: LinearProblem,
    solution: Solution,
    proof: Proof,
    extras: Mapping[str, Any] | None = None,
    instead: tuple[Tensor, Tensor] | None = None,
) -> Fit:
    """Raw coefficients with their certificate.

    ``instead`` are coefficients and an intercept with the same fitted values, up to rounding.
    """
    scaling, source = problem.scaling, problem.source
    coef, intercept = scaling.raw(solution.w)
    rows = scaling.functionals()
    certificate = certificate_of(proof, rows[: len(coef)], coef, source)
    last = 0.0
    if scaling.intercept:
        slip = scaling.intercept_slip(coef, intercept)
        last = float(proof.bounds(rows[len(coef) :]).sum() + slip)
        step = Step("intercept", "bound of its distance", last, "D times its norm, and rounding")
        certificate = replace(certificate, derivation=(*certificate.derivation, step))
    if not certificate.error < math.inf and proof.radius < math.inf:
        told = instead or (coef, intercept)
        certificate = _about_fitted_values(problem, proof, certificate, (coef, intercept), told)
        coef, intercept = told
    return Fit(
        coef, intercept, certificate, problem.passes, problem.machine.digest,
        problem.machine.machine, last, solution.converged, extras or {}, tuple(solution.history),
    )  # fmt: skip


def _about_fitted_values(
    problem: LinearProblem,
    proof: Proof,
    certificate: Certificate,
    found: tuple[Tensor, Tensor],
    told: tuple[Tensor, Tensor],
) -> Certificate:
    """Where coefficients are not unique: the fitted values still are."""
    scaling = problem.scaling
    worst = scaling.size * proof.movement(problem)
    moved, size = problem.source.largest(_FittedTask(scaling.mean, found, told))
    rounding = (len(found[0]) + 16) * _UNIT * (float(size) + abs(scaling.center))
    step = Step("fitted", "distance of the fitted values", worst, "D max_i ||x_i||_{H^{-1}}")
    return Certificate.total(
        {
            "distance of the fitted values": worst,
            "choice of the coefficients": float(moved),
            "rounding": rounding,
        },
        domain={**certificate.domain, "what": "fitted values; the coefficients are not unique"},
        dtype=certificate.dtype,
        backend=certificate.backend,
        derivation=(*certificate.derivation, step),
        assumptions=certificate.assumptions,
        compared="fitted - optimally fitted",
    )


@dataclass(frozen=True, eq=False)
class _FittedTask:
    """Largest difference of two models' fitted values in a chunk, and the terms they add up."""

    mean: Tensor
    found: tuple[Tensor, Tensor]
    told: tuple[Tensor, Tensor]

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        (coef, intercept), (other, constant) = self.found, self.told
        moved = x @ (coef - other) + (intercept - constant)
        sizes = (x.abs() + self.mean.abs()) @ (coef.abs() + other.abs())
        return [moved.abs().max(), (sizes + intercept.abs() + constant.abs()).max()]


@dataclass(frozen=True)
class Logistic(LinearModel):
    """argmin C sum_i ln(1 + e^{-s_i (w.x_i + b)}) + ||w||^2 / 2 for labels 0 and 1 (s = 2 y - 1).

    Parameters
    ----------
    C
        The inverse penalty, scikit-learn's convention.
    positive
        The label that counts as 1; every other one is 0.
    """

    C: float = 1.0
    positive: float | None = None

    def loss(self) -> Loss:
        return loss_named("logistic")

    def l2(self, rows: int) -> float:
        return 1 / (check_positive("C", self.C) * rows)

    @property
    def _positive(self) -> float | None:
        return self.positive


@dataclass(frozen=True)
class LinearSVM(LinearModel):
    """argmin C sum_i max(0, 1 - s_i (w.x_i + b))^2 + ||w||^2 / 2 for labels -1 and +1.

    The intercept is not penalised.
    """

    C: float = 1.0
    positive: float | None = None

    def loss(self) -> Loss:
        return loss_named("squared_hinge")

    def l2(self, rows: int) -> float:
        return 1 / (2 * check_positive("C", self.C) * rows)

    @property
    def _positive(self) -> float | None:
        return self.positive


@dataclass(frozen=True)
class Poisson(LinearModel):
    """argmin mean_i (e^{z_i} - y_i z_i) + alpha/2 ||w||^2 with z = w.x + b and counts y."""

    alpha: float = 1.0

    def loss(self) -> Loss:
        return loss_named("poisson")

    def l2(self, rows: int) -> float:
        return check_positive("alpha", self.alpha, zero=True)


@dataclass(frozen=True)
class Quantile(LinearModel):
    """A quantile's line: the pinball loss with its corner rounded over ``width`` label deviations.

    Parameters
    ----------
    quantile
        Which.
    alpha
        alpha/2 ||w||^2 beside the mean loss, both on scaled labels.
    width
        Of the rounded corner, in standard deviations of the labels.
    """

    quantile: float = 0.5
    alpha: float = 0.0
    width: float = 0.05

    def loss(self) -> Loss:
        if not 0 < self.quantile < 1:
            raise ProgramError(f"quantile must be between 0 and 1, got {self.quantile!r}")
        return loss_named("quantile", quantile=self.quantile, width=self.width)

    def l2(self, rows: int) -> float:
        return self.alpha
