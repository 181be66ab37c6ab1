r"""Expectile regression: squares that weigh one side of the line more than the other.

.. math:: \min_{w, b} \frac1n \sum_i \big|\tau - 1\{r_i > 0\}\big| \frac{r_i^2}{2}
   + \frac{\alpha}{2} \|w\|^2, \qquad r = Xw + b - y.

A sample above the line weighs tau, one below it 1 - tau; tau = 1/2 is least squares. The derivative
is a line with one bend at 0, so a few whitened passes solve it, and l'' is constant on either side:
samples that cannot change sides within the distance in question keep their curvature, which proves
that distance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from iceform.expressions import Curvature, Loss, ScalarFunction, vouched
from iceform_estimators.algorithms.examples import fan
from iceform_estimators.algorithms.linear import LinearModel
from iceform_estimators.algorithms.record import Peer, labels_of, setting
from iceform_estimators.machine.problem import LinearProblem, metric_of
from iceform_estimators.machine.solvers import Solution
from iceform_estimators.tuning import PENALTY_SLIDER, ROUNDS, SHARE_SLIDER


@lru_cache(maxsize=64)
def _loss(tau: float) -> Loss:
    """l'(z) = tau z below 0 and (1 - tau) z above; the same object for the same tau."""

    def weight(z: Tensor) -> Tensor:  # of two plain numbers torch.where makes float32
        return torch.where(z < 0, torch.full_like(z, tau), torch.full_like(z, 1 - tau))

    def above(z: Tensor) -> Tensor:
        return torch.full_like(z, max(tau, 1 - tau))

    def derivative(z: Tensor) -> Tensor:
        return torch.where(z < 0, tau * z, (1 - tau) * z)

    f = ScalarFunction(derivative, "expectile'", (0.0,))
    facts = Curvature(weight, above, (min(tau, 1 - tau), max(tau, 1 - tau)), kinks=(0.0,))
    return vouched(Loss("expectile", "residual", f, facts))


@dataclass(frozen=True)
class Expectile(LinearModel):
    """An expectile's line: least squares that weighs samples above it by ``expectile``.

    Where a quantile splits the samples' number, an expectile splits their distances: those above
    the line add up to ``1 - expectile`` of all. Without a penalty, of many
    solutions it is the one of least norm.

    Parameters
    ----------
    expectile
        tau: which, between 0 and 1; 1/2 is least squares.
    alpha
        alpha/2 ||w||^2 beside the mean loss.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Expectile(0.9), X, y).coef.numpy().round(6))
    [2.]
    """

    name: ClassVar[str] = "expectile"
    title: ClassVar[str] = "Expectile regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "The line that splits the samples' distances in a given ratio."
    objective: ClassVar[str] = (
        "min mean_i |t - 1{r_i > 0}| r_i^2 / 2 + alpha |w|^2 / 2, t = expectile, r = Xw + b - y"
    )
    lookup: ClassVar[str] = "a line that bends at 0: one slope below the line, another above"
    estimator: ClassVar[str] = "InContextExpectileRegressor"
    peer: ClassVar[Peer | None] = None
    penalised: ClassVar[bool] = False
    example = staticmethod(fan)

    expectile: float = setting(
        0.5,
        "Which expectile, between 0 and 1.",
        low=0,
        high=1,
        open="low high",
        slider=SHARE_SLIDER,
    )
    alpha: float = setting(0.0, "The penalty's weight.", low=0, slider=PENALTY_SLIDER)

    def loss(self) -> Loss:
        return _loss(float(self.expectile))

    def l2(self, rows: float) -> float:
        return self.alpha

    def scores(self, y: Tensor, predicted: Tensor) -> dict[str, float]:
        tau, squares = self.expectile, (y - predicted).square()
        lost = torch.where(y > predicted, tau * squares, (1 - tau) * squares)
        return {"expectile loss": float(lost.mean())}

    def chosen(self, problem: LinearProblem, found: Solution) -> Solution:
        """If there are many solutions, the one of least norm."""
        metric = metric_of(problem.hessian(found.w, majorizer=True), problem.source.rows)
        if self.alpha or metric.whole:
            return found
        unseen = metric.null()
        raw = unseen[: len(problem.scaling.scale)] / problem.scaling.scale[:, None]
        coef = found.w[: len(raw)] / problem.scaling.scale
        return replace(found, w=found.w - unseen @ (torch.linalg.pinv(raw) @ coef))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """By reweighted least squares, until no sample changes sides."""
        x, y, ones = x.double(), labels_of(y).double(), torch.ones(len(x), 1).to(x.double())
        rows = torch.cat([x, ones], 1) if self.fit_intercept else x
        penalty = rows.new_full((rows.shape[1],), self.alpha * len(x))
        penalty[x.shape[1] :] = 0.0
        w, before = torch.zeros_like(penalty), None
        for _ in range(ROUNDS):
            below = rows @ w < y
            if before is not None and torch.equal(below, before):
                break
            weights = torch.where(
                below, rows.new_tensor(self.expectile), rows.new_tensor(1 - self.expectile)
            )
            gram = (rows * weights[:, None]).mT @ rows + torch.diag(penalty)
            w, before = torch.linalg.solve(gram, (rows * weights[:, None]).mT @ y), below
        return w[: x.shape[1]]
