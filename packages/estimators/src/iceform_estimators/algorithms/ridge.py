"""Ridge regression, and least squares without its penalty: whitened passes."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from iceform.certificates import Result
from iceform.errors import ProgramError
from iceform_estimators.algorithms.elastic_net import sparse_result
from iceform_estimators.algorithms.examples import flats
from iceform_estimators.algorithms.linear import LinearModel, fitted, planned
from iceform_estimators.algorithms.record import Peer, labels_of, setting
from iceform_estimators.algorithms.recursive_least_squares import Recursion
from iceform_estimators.machine import MachineRun, Source
from iceform_estimators.machine.problem import Coordinates, LinearProblem, Metric, Scaling
from iceform_estimators.tuning import C_SLIDER, CLOSE


@dataclass(frozen=True)
class Ridge(LinearModel):
    r"""Ridge regression, :math:`\min_{w,b} \|Xw + b - y\|^2 + \alpha \|w\|^2`.

    Parameters
    ----------
    alpha
        The penalty, scikit-learn's convention.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.
    positive
        Whether coefficients must not be negative.
    solver, bound, label_bound
        "inside" plans its steps by these bounds of the entries of samples and
        labels, and the host only writes prompts and adds answers up
        (:mod:`iceform_estimators.machine.fixed_schedule`). "auto" takes fewer passes, in
        coordinates that the host computes from the data.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Ridge(alpha=2.0), X, y).coef.numpy().round(6))
    [1.]
    """

    name: ClassVar[str] = "ridge"
    title: ClassVar[str] = "Ridge regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "Least squares with small coefficients."
    objective: ClassVar[str] = "min |Xw + b - y|^2 + alpha |w|^2"
    lookup: ClassVar[str] = "the residual itself: a straight line"
    estimator: ClassVar[str] = "InContextRidge"
    peer: ClassVar[Peer | None] = Peer("sklearn.linear_model.Ridge")
    example = staticmethod(flats)

    several: ClassVar[bool] = True

    alpha: float = setting(1.0, "The penalty's weight.", low=0, slider=C_SLIDER)

    _: KW_ONLY
    positive: bool = setting(False, "Whether coefficients must not be negative.", command=False)
    solver: str = field(default="auto")
    bound: float = field(default=1.0)
    label_bound: float = field(default=1.0)

    def l2(self, rows: float) -> float:
        return self.alpha / rows

    def batches(self) -> Recursion:
        """The same for data that arrive in batches."""
        if self.positive:
            raise ProgramError(
                f"{self.label} with positive=True runs on all data at once, not in batches: which "
                "coefficients are 0 is known from all samples only; leave positive out"
            )
        return Recursion(self.alpha, fit_intercept=self.fit_intercept)

    def coordinates(self, problem: LinearProblem, w: Tensor) -> Coordinates | None:
        return None if self.positive else super().coordinates(problem, w)

    def stream(self, machine: MachineRun, source: Source) -> Result:
        """Of many solutions, the one of least norm."""
        inside = planned(self, machine, source, (self.bound, self.label_bound))
        if inside is not None:
            return inside
        self.note_line(machine)
        problem = self.problem(machine, source)
        if self.positive:
            return sparse_result(self, problem, torch.zeros_like(problem.ridge))
        solution = self.solve(problem)
        proof = self.prove(problem, solution.w)
        if proof.metric is None:
            return fitted(self, problem, solution, proof)
        coef, intercept = problem.scaling.raw(solution.w)
        least = _least_norm(coef, proof.metric, problem.scaling)
        moved = intercept + problem.scaling.mean @ (coef - least)
        return fitted(self, problem, solution, proof, instead=(least, moved))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        x, y = x.double(), labels_of(y).double()
        if self.fit_intercept:
            x, y = x - x.mean(0), y - y.mean()
        penalty = math.sqrt(self.alpha) * torch.eye(x.shape[1]).to(x)
        both, labels = torch.cat([x, penalty]), torch.cat([y, y.new_zeros(x.shape[1])])
        solution: Tensor = torch.linalg.lstsq(both, labels[:, None], driver="gelsd").solution
        return solution[:, 0]


@dataclass(frozen=True)
class LinearRegression(Ridge):
    r"""Least squares, :math:`\min_{w,b} \|Xw + b - y\|^2`.

    Where features depend on each other it is the solution of least norm, as scikit-learn's is, and
    the certificate speaks of the fitted values.

    Parameters
    ----------
    positive, fit_intercept, tol, max_passes, precondition
        As for :class:`Ridge`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(f"{Machine(2).run(LinearRegression(), X, y + 1).intercept.item():.6f}")
    1.000000
    """

    name: ClassVar[str] = "linear"
    title: ClassVar[str] = "Least squares"
    says: ClassVar[str] = "Least squares."
    objective: ClassVar[str] = "min |Xw + b - y|^2"
    column: ClassVar[bool] = True
    estimator: ClassVar[str] = "InContextLinearRegression"
    peer: ClassVar[Peer | None] = Peer("sklearn.linear_model.LinearRegression")
    penalised: ClassVar[bool] = False
    batches = None  # type: ignore[assignment]  # a first batch may leave coefficients open

    alpha: float = field(default=0.0, init=False)


def _least_norm(coef: Tensor, metric: Metric, scaling: Scaling) -> Tensor:
    """Take out of the coefficients what the samples cannot see.

    A direction v that they do not see is v / scale in the data's own units.
    """
    unseen = metric.null()[: len(coef)] / scaling.scale[:, None]
    directions, size = torch.linalg.svd(unseen, full_matrices=False)[:2]
    directions = directions[:, size > CLOSE * size.max()]
    least: Tensor = coef - directions @ (directions.mT @ coef)
    return least
