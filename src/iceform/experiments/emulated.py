r"""Studies 3 and 4 by construction: every pass is one frozen attention layer.

A pass of gradient descent looks up the residual's line in the prompt; for lasso a second look-up
follows, the soft threshold S_t(u) = sign(u) max(|u| - t, 0), whose kinks its grid crowds at:

.. math:: w \leftarrow S_{\eta\alpha}(w - \eta \nabla(w)).

How far the answer is from the exact one is certified afterwards, from the answer itself. With
:math:`\mu` the least eigenvalue of the Hessian and a subgradient g at w,
:math:`\|w - w^*\| \le \|g\| / \mu`. For lasso the exact proximal step w+ of the answer w gives
:math:`g = (w - w_+)/\eta + \nabla(w_+) - \nabla(w)`, hence
:math:`\|w - w^*\| \le \|w - w_+\| + \|g\|/\mu`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.constructions import GradientStep
from iceform.constructions.residual import Rates
from iceform.constructions.schedules import Schedule, steps_needed
from iceform.errors import BoundError
from iceform.interpolation import Interpolant

__all__ = ["Answer", "Problem", "emulate_lasso", "emulate_ridge"]

_SLACK = 1e-9  # relative widening of bounds that were read off the data
_PROXIMAL_GROWTH = 1.0  # ||ahead - w*|| over ||w*||: checked at every pass, as the domain is


@dataclass(frozen=True)
class Answer:
    """Coefficients, their certified distance to the exact ones (2-norm), and what it took."""

    coef: Tensor
    certified: float
    passes: int
    grid_tokens: int
    threshold_tokens: int = 0


@dataclass(frozen=True)
class Problem:
    """One data set, in the domain its own data gives.

    Attributes
    ----------
    x, y
        (n, d) and (n,), float64.
    l2
        Ridge's penalty per sample, alpha / n.
    radius
        Bound of the solution's norm.
    """

    x: Tensor
    y: Tensor
    l2: float
    radius: float

    @property
    def hessian(self) -> tuple[float, float]:
        """Least and largest eigenvalue of X'X/n + l2."""
        values = torch.linalg.eigvalsh(self.x.mT @ self.x / len(self.y))
        least, most = float(values[0]), float(values[-1])
        if not least + self.l2 > 0:
            raise BoundError(
                f"the least eigenvalue of X'X/n is {least:.3g}: no unique solution; drop collinear "
                "columns or use ridge"
            )
        return (least + self.l2) * (1 - _SLACK), (most + self.l2) * (1 + _SLACK)

    def gradient(self, w: Tensor) -> Tensor:
        """Of the smooth part, in float64."""
        return (self.x @ w - self.y) @ self.x / len(self.y) + self.l2 * w

    def layer(self, growth: float) -> GradientStep:
        """The frozen layer of every pass, as accurate as float64 allows.

        Iterates stay within (1 + growth) times the radius, where they start from 0.
        """
        n, d = self.x.shape
        wide = 1 + _SLACK
        w_norm = (1 + growth) * self.radius * wide
        return GradientStep(
            "squared", 1.0, dim=d, samples=n, eps=None,
            bound=wide * float(self.x.abs().max()),
            x_norm=wide * float(self.x.norm(dim=1).max()),
            y_bound=wide * float(self.y.abs().max()),
            w_bound=w_norm, w_norm=w_norm,
        )  # fmt: skip


def _pass(layer: GradientStep, problem: Problem, w: Tensor, rates: Rates) -> Tensor:
    """One pass, refused where the iterate has left the certified domain."""
    layer.domain.check_coefficients(w)
    layer.check_range(problem.x, problem.y, w)
    return layer.run(problem.x, problem.y, w, rates)


def emulate_ridge(problem: Problem, tol: float) -> Answer:
    """Chebyshev passes through the frozen layer (least squares where l2 is 0)."""
    low, high = problem.hessian
    steps = steps_needed("chebyshev", low, high, tol / problem.radius)
    schedule = Schedule.of("chebyshev", steps, None, (low, high))
    layer = problem.layer(schedule.growth((low, high)))
    w = problem.x.new_zeros(problem.x.shape[1])
    for eta in schedule.steps:
        w = _pass(layer, problem, w, Rates(eta, eta * problem.l2))
    certified = float(problem.gradient(w).norm()) / low
    return Answer(w, certified, steps, layer.interpolant.tokens)


def emulate_lasso(problem: Problem, alpha: float, tol: float) -> Answer:
    """Proximal passes with constant momentum, each a frozen layer and a soft-threshold look-up."""
    low, high = problem.hessian
    eta = 1 / high
    root = math.sqrt(low / high)
    momentum = (1 - root) / (1 + root)
    layer = problem.layer(_PROXIMAL_GROWTH)
    threshold = soft_threshold(eta * alpha, 2 * layer.domain.w_norm)
    w = ahead = problem.x.new_zeros(problem.x.shape[1])
    most = 2 * steps_needed("nesterov", low, high, tol / problem.radius)
    for count in range(1, most + 1):
        moved = _pass(layer, problem, ahead, Rates(eta, eta * problem.l2))
        fresh = threshold(moved)
        ahead, w = fresh + momentum * (fresh - w), fresh
        if certify_lasso(problem, alpha, w, eta, low) <= tol:
            break
    return Answer(
        w, certify_lasso(problem, alpha, w, eta, low), count, layer.interpolant.tokens,
        threshold.tokens,
    )  # fmt: skip


def soft_threshold(by: float, reach: float) -> Interpolant:
    """The look-up of S_t on [-reach, reach], the best there is."""

    def shrink(u: Tensor) -> Tensor:
        return u.sign() * (u.abs() - by).clamp(min=0)

    return Interpolant.fit(shrink, -reach, reach, kinks=(-by, by), tokens=_THRESHOLD_TOKENS)


_THRESHOLD_TOKENS = 257  # where the error of a graded table with two kinks stops falling


def certify_lasso(problem: Problem, alpha: float, w: Tensor, eta: float, low: float) -> float:
    """||w - w*||_2 at most, by strong convexity at the exact proximal step of w."""
    gradient = problem.gradient(w)
    moved = w - eta * gradient
    after = moved.sign() * (moved.abs() - eta * alpha).clamp(min=0)
    g = (w - after) / eta + problem.gradient(after) - gradient
    return float((w - after).norm() + g.norm() / low)
