r"""Studies 3 and 4 by construction: every pass is one frozen attention layer.

A pass of gradient descent looks up the residual's line in the prompt; for lasso a second look-up
follows, the soft threshold S_t(u) = sign(u) max(|u| - t, 0), whose kinks its grid crowds at:

.. math:: w \leftarrow S_{\eta\alpha}(w - \eta \nabla(w)).

How far the answer is from the exact one is certified afterwards, from the answer itself. With
:math:`H` the Hessian, :math:`\mu` its least eigenvalue and a subgradient g at w,
:math:`\|w - w^*\| \le \|H^{-1/2} g\| / \sqrt\mu`, and :math:`\|H^{-1} g\|` where the objective is
quadratic. For lasso the exact proximal step w+ of the answer w gives
:math:`g = (w - w_+)/\eta + \nabla(w_+) - \nabla(w)`, hence
a bound of :math:`\|w - w_+\| + \|w_+ - w^*\|`, with H on the features that safe screening leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.constructions import GradientStep, Rates, Schedule, steps_needed
from iceform.errors import BoundError
from iceform.interpolation import Interpolant

__all__ = ["Answer", "Problem", "emulate_lasso", "emulate_ridge"]

THRESHOLD_TOKENS = 257  # where the error of a graded table with two kinks stops falling
_RANK = 1e-13  # eigenvalues below this share of the largest are rounding
_EIGEN = 64.0  # error of eigh over d u, with room to spare
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
        return (max(least, 0.0) + self.l2) * (1 - _SLACK), (most + self.l2) * (1 + _SLACK)

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
    return layer.step_at(problem.x, problem.y, w, rates.gain, rates.shrink)


def emulate_ridge(problem: Problem, tol: float) -> Answer:
    """Chebyshev passes through the frozen layer (least squares where l2 is 0)."""
    low, high = problem.hessian
    if not low > _RANK * high:
        raise BoundError(
            f"the least eigenvalue of X'X/n + alpha/n is {low:.3g} of {high:.3g}: no unique "
            "solution; drop collinear columns or use ridge"
        )
    steps = steps_needed("chebyshev", low, high, tol / problem.radius)
    schedule = Schedule.of("chebyshev", steps, None, (low, high))
    layer = problem.layer(schedule.growth((low, high)))
    w = problem.x.new_zeros(problem.x.shape[1])
    for eta in schedule.steps:
        w = _pass(layer, problem, w, Rates(eta, eta * problem.l2))
    return Answer(w, ridge_distance(problem, w), steps, layer.interpolant.tokens)


def ridge_distance(problem: Problem, w: Tensor) -> float:
    """||w - w*||_2 at most: ||H^-1 gradient||, plus what rounding can hide of the gradient."""
    x, n = problem.x, len(problem.y)
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    values, vectors = torch.linalg.eigh(x.mT @ x / n + problem.l2 * eye)
    low = problem.hessian[0]
    away = (vectors.mT @ problem.gradient(w)) / values.clamp(min=low)
    unit = torch.finfo(x.dtype).eps / 2
    # Entries of the gradient are sums of n products of sums of d products.
    terms = (x.abs() @ w.abs() + problem.y.abs()) @ x.abs() / n + problem.l2 * w.abs()
    hidden = (n + x.shape[1] + 4) * unit * float(terms.norm()) / low
    solved = _EIGEN * x.shape[1] * unit * float(values[-1]) / low  # relative error of H^-1
    return float(away.norm()) * (1 + solved) + hidden


def emulate_lasso(
    problem: Problem, alpha: float, tol: float, tokens: int = THRESHOLD_TOKENS
) -> Answer:
    """Accelerated proximal passes, each a frozen layer and a soft-threshold look-up.

    Momentum starts afresh where it points uphill. Passes stop at ``tol``, or where the answer no
    longer gets closer: the look-ups' own error is the floor.
    """
    eta = 1 / problem.hessian[1]
    layer = problem.layer(_PROXIMAL_GROWTH)
    threshold = soft_threshold(eta * alpha, 2 * layer.domain.w_norm, tokens)
    w = ahead = best = problem.x.new_zeros(problem.x.shape[1])
    closest, since, t = math.inf, 0, 1.0
    for count in range(1, _MOST_PASSES + 1):
        fresh = threshold(_pass(layer, problem, ahead, Rates(eta, 0.0)))
        if float((ahead - fresh) @ (fresh - w)) > 0:
            t = 1.0
        grown = (1 + math.sqrt(1 + 4 * t * t)) / 2
        ahead, w, t = fresh + (t - 1) / grown * (fresh - w), fresh, grown
        if count % _LOOK:
            continue
        distance = lasso_distance(problem, alpha, w)
        stalled = math.isfinite(distance) and not distance < _PROGRESS * closest
        since = since + 1 if stalled else 0
        if distance < closest:
            closest, best = distance, w
        if closest <= tol or since == _PATIENCE:
            break
    return Answer(best, closest, count, layer.interpolant.tokens, threshold.tokens)


_LOOK = 20  # passes between looks at the certificate
_PROGRESS = 0.7  # a look must find less than this share of the distance to count as progress
_PATIENCE = 25  # looks without progress
_MOST_PASSES = 20_000


def _shrink(u: Tensor, by: float) -> Tensor:
    return u.sign() * (u.abs() - by).clamp(min=0)


def soft_threshold(by: float, reach: float, tokens: int = THRESHOLD_TOKENS) -> Interpolant:
    """The look-up of S_t on [-reach, reach]."""
    return Interpolant.fit(lambda u: _shrink(u, by), -reach, reach, kinks=(-by, by), tokens=tokens)


def lasso_distance(problem: Problem, alpha: float, w: Tensor) -> float:
    """||w - w*||_2 at most, whatever w is.

    First, which features can be in w* at all: the duality gap at the exact proximal step w+ bounds
    how far its dual point is from the optimal one, and a feature whose correlation stays below the
    penalty within that ball is zero in w* (safe screening). On the others, together with the
    support of w+, the objective is strongly convex with the least eigenvalue of their own Gram
    matrix, and a subgradient at w+ bounds the distance.
    """
    n = len(problem.y)
    eta = 1 / problem.hessian[1]
    gradient = problem.gradient(w)
    after = _shrink(w - eta * gradient, eta * alpha)
    kept = _may_be_nonzero(problem, alpha, after) | (after != 0)
    g = (w - after) / eta + problem.gradient(after) - gradient
    if not bool(kept.any()):
        return float((w - after).norm())
    own = problem.x[:, kept]
    values, vectors = torch.linalg.eigh(own.mT @ own / n)
    if not float(values[0]) > _RANK * float(values[-1]):
        return math.inf
    # ||w+ - w*||_H^2 <= <g, w+ - w*>, so ||w+ - w*||_H <= ||H^-1/2 g||.
    inner = (vectors.mT @ g[kept]) / values.sqrt()
    return float((w - after).norm() + inner.norm() / values[0].sqrt())


def _may_be_nonzero(problem: Problem, alpha: float, w: Tensor) -> Tensor:
    """Features that safe screening at w cannot rule out of the solution's support."""
    x, y, n = problem.x, problem.y, len(problem.y)
    residual = y - x @ w
    scale = max(1.0, float((residual @ x).abs().max()) / (n * alpha))
    dual = residual / scale  # |X' dual| <= n alpha, so it is feasible
    primal = float(residual.square().sum()) / (2 * n) + alpha * float(w.abs().sum())
    bound = (float(y.square().sum()) - float((y - dual).square().sum())) / (2 * n)
    radius = math.sqrt(2 * n * max(primal - bound, 0.0))
    reach: Tensor = (dual @ x).abs() + radius * x.norm(dim=0)
    return reach >= n * alpha
