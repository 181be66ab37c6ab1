r"""Ridge regression, on either layout.

In a stream it is a quadratic problem like any other: whitened passes. In rows it is descent with
Chebyshev steps on samples and labels that are halved and, with an intercept, centred first, so that
they stay within the machine's bounds; the proof of the answer is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from iceform.certificates import Result
from iceform.constructions import steps_needed
from iceform.errors import BoundError, ProgramError
from iceform.validation import check_choice
from iceform_estimators.algorithms.descent import Descent, NativeLine, labels_of
from iceform_estimators.algorithms.examples import flats
from iceform_estimators.algorithms.linear import LinearModel, fitted, fitted_inside
from iceform_estimators.algorithms.record import Peer, option
from iceform_estimators.algorithms.recursion import Recursion
from iceform_estimators.algorithms.sparse import sparse_result
from iceform_estimators.machine import ArraySource, Heads, Running, Sizes, Source, Target
from iceform_estimators.machine.inside import SOLVERS, Domain
from iceform_estimators.machine.problem import Coordinates, LinearProblem, Metric, Scaling
from iceform_estimators.machine.solvers import Solution

_SINGULAR = 1e-12  # of the largest eigenvalue: below it the least one may be zero
_SEEN = 1e-10  # of the largest direction: smaller ones are rounding


@dataclass(frozen=True)
class Ridge(LinearModel):
    r"""Ridge regression, :math:`\min_{w,b} \|Xw + b - y\|^2 + \alpha \|w\|^2`.

    Parameters
    ----------
    alpha
        The penalty, scikit-learn's convention.
    positive
        Whether coefficients must not be negative; in a stream only.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`; in rows ``tol`` is the distance to the solution that the
        steps are planned for.
    w_bound, eps
        In rows: entrywise bound of the coefficients, and error of a look-up.
    solver, bound, label_bound
        In a stream: "inside" plans its steps by these bounds of the entries of samples and
        labels, and the host only writes prompts and adds answers up
        (:mod:`iceform_estimators.machine.inside`). "auto" takes fewer passes, in coordinates that
        the host computes from the data.
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

    alpha: float = field(
        default=1.0, metadata=option("The penalty's weight.", low=0, slider=(1e-3, 1e3))
    )
    positive: bool = field(
        default=False,
        kw_only=True,
        metadata=option("Whether coefficients must not be negative.", command=False),
    )
    w_bound: float = field(default=4.0, kw_only=True)
    eps: float = field(default=1e-9, kw_only=True)
    solver: str = field(default="auto", kw_only=True)
    bound: float = field(default=1.0, kw_only=True)
    label_bound: float = field(default=1.0, kw_only=True)

    def l2(self, rows: float) -> float:
        return self.alpha / rows

    def batches(self) -> Recursion:
        """The same for data that arrive in batches."""
        self._check_signs("batches")
        return Recursion(self.alpha, fit_intercept=self.fit_intercept)

    def coordinates(self, problem: LinearProblem, w: Tensor) -> Coordinates | None:
        return None if self.positive else super().coordinates(problem, w)

    def _check_signs(self, where: str) -> None:
        if self.positive:
            raise ProgramError(
                f"{self.label} with positive=True runs on whole streams, not in {where}: which "
                "coefficients are 0 is known from all samples only; leave positive out"
            )

    def stream(self, machine: Running, source: Source) -> Result:
        """Of many solutions, the one of least norm."""
        if check_choice("solver", self.solver, SOLVERS) == "inside":
            return fitted_inside(self, machine, source, Domain(self.bound, self.label_bound))
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

    # ------------------------------------------------------------------------------------- rows

    def _halved(self, source: ArraySource) -> Scaling:
        """Entries of a difference from the mean reach twice the bound, so they are halved."""
        x, y, centred = source.x, source.y, self.fit_intercept
        mean = x.mean(0) if centred else torch.zeros_like(x[0])
        half = 2.0 if centred else 1.0
        center = float(y.mean()) if centred else 0.0
        return Scaling(mean, torch.full_like(mean, half), center, half, intercept=centred)

    def _descent(self, x: Tensor, l2: float) -> Descent:
        """Chebyshev steps for these (halved) samples."""
        gram = torch.linalg.eigvalsh(x.mT @ x / len(x))
        hessian = (float(gram.min()) + l2, float(gram.max()) + l2)
        if not hessian[0] > _SINGULAR * hessian[1]:
            raise BoundError(
                f"the least eigenvalue of X'X/n + alpha/n is {hessian[0]:.3g}: the problem has no "
                "unique solution; use Ridge(alpha > 0)"
            )
        start = self.w_bound * math.sqrt(x.shape[1])
        steps = steps_needed("chebyshev", *hessian, 0.5 * self.tol / start)
        return Descent("squared", steps, None, l2, "chebyshev", w_bound=self.w_bound, eps=self.eps)

    def sizes(self, dim: int, samples: int) -> Sizes:
        return Descent("squared", w_bound=self.w_bound, eps=self.eps).sizes(dim, samples)

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        data = Descent("squared", w_bound=self.w_bound, eps=self.eps)
        scaling = self._halved(ArraySource(x.double(), labels_of(y).double()))
        samples = scaling.samples(x.double())[:, : x.shape[1]].to(x)
        return data.targets(samples, scaling.labels(labels_of(y).double()).to(x))

    def rows(self, machine: Heads, x: Tensor, y: Tensor | None) -> Result:
        self._check_signs("rows")
        source = ArraySource(x.double(), labels_of(y).double())
        scaling = self._halved(source)
        l2 = self.l2(source.rows)
        problem = LinearProblem(machine, source, scaling, self.loss(), scaling.penalty(l2))
        samples = scaling.samples(source.x)[:, : x.shape[1]]
        descent = self._descent(samples, float(scaling.penalty(l2)[0]))
        w, _ = descent.descend(machine, samples.to(x), scaling.labels(source.y).to(x))
        w = torch.cat([w.double(), w.new_zeros(int(scaling.intercept)).double()])
        problem.passes = descent.steps
        if scaling.intercept:
            machine.ledger.note("host", "means of the columns and of the labels")
        found = fitted(self, problem, Solution(w, self.tol), self.prove(problem, w))
        return replace(found, _predict=NativeLine(found.coef, found.intercept))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        x, y = x.double(), labels_of(y).double()
        if self.fit_intercept:
            x, y = x - x.mean(0), y - y.mean()
        penalty = math.sqrt(self.alpha) * torch.eye(x.shape[1]).to(x)
        both, labels = torch.cat([x, penalty]), torch.cat([y, y.new_zeros(x.shape[1])])
        solution: Tensor = torch.linalg.lstsq(both, labels[:, None], driver="gelsd").solution
        return solution[:, 0]


def _least_norm(coef: Tensor, metric: Metric, scaling: Scaling) -> Tensor:
    """Take out of the coefficients what the samples cannot see.

    A direction v that they do not see is v / scale in the data's own units.
    """
    unseen = metric.null()[: len(coef)] / scaling.scale[:, None]
    directions, size = torch.linalg.svd(unseen, full_matrices=False)[:2]
    directions = directions[:, size > _SEEN * size.max()]
    least: Tensor = coef - directions @ (directions.mT @ coef)
    return least
