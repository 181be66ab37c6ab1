r"""Huber regression with its scale, as scikit-learn's ``HuberRegressor`` defines it.

.. math:: \min_{w, b, \sigma > 0} \sum_i \Big(\sigma + \sigma H_\epsilon\big(\tfrac{r_i}{\sigma}
   \big)\Big) + \alpha \|w\|^2, \qquad r = Xw + b - y,

with H the square up to epsilon and a line beyond. For a given sigma the gradient looks up a clip;
labels measured in units of epsilon sigma make it the same clip for every sigma. The scale itself
solves mean min(|r|/sigma, epsilon)^2 = 1, a second look-up on the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.algorithms.examples import outliers
from iceform.algorithms.linear import LinearModel, fitted
from iceform.algorithms.record import Peer, option
from iceform.certificates import Result, Step
from iceform.functions import Loss, loss_named
from iceform.interpolation import Interpolant
from iceform.machine import ArraySource, Running, Source
from iceform.machine.problem import Encoding, LinearProblem, slip_of, sum_and_farthest
from iceform.machine.proofs import Proof, gram_slip, lower, norm_of
from iceform.machine.solvers import Solution, minimise
from iceform.machine.stream import CLIP_SQUARED
from iceform.machine.whitening import Metric, metric_of

__all__ = ["Huber"]

_FIRST = 0.5  # scale that is tried, in units of the labels' deviation
_ROUNDS = 60  # of the search for the scale
_NARROW = 1e-12  # relative width at which the scale is found
_SMALLEST = 1e-8  # of the scale relative to the labels': below it the fit is exact
_GROWTHS = 12  # balls tried for the proof, each twice as large
_UNIT = torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True)
class Huber(LinearModel):
    """Linear regression that outliers do not pull, with its scale, as ``HuberRegressor`` has it.

    Parameters
    ----------
    epsilon
        Where squares end and lines begin, in units of the scale; at least 1.
    alpha
        The penalty alpha ||w||^2 beside the sum over samples.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.
    """

    name: ClassVar[str] = "huber"
    title: ClassVar[str] = "Huber regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "A line that outliers do not pull."
    objective: ClassVar[str] = (
        "min sum_i (s + s H(r_i / s)) + alpha |w|^2, H a square up to epsilon"
    )
    lookup: ClassVar[str] = "a clip: the residual, but no more than epsilon scales"
    estimator: ClassVar[str] = "InContextHuberRegressor"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.HuberRegressor", settings={"tol": 1e-10, "max_iter": 100_000}
    )
    example = staticmethod(outliers)

    epsilon: float = field(
        default=1.35,
        metadata=option(
            "Where squares end, in units of the residuals' scale.", low=1, slider=(1, 5)
        ),
    )
    alpha: float = field(
        default=1e-4, metadata=option("The penalty's weight.", low=0, slider=(1e-4, 10))
    )

    def loss(self) -> Loss:
        return loss_named("huber")

    def stream(self, machine: Running, source: Source) -> Result:
        search = _Scale(self, machine, source)
        sigma, solution, problem = search.run()
        proof = _prove(search, problem, solution.w, sigma)
        problem.passes = search.passes
        machine.ledger.note("host", "the search for the scale")
        machine.ledger.note("host", "the proof: gradient and curvature at the answer, enclosed")
        parts = {
            "scale": sigma * search.base.size,
            "n_outliers": search.outliers(problem, solution.w),
        }
        found = fitted(self, problem, solution, proof, parts)
        if not isinstance(source, ArraySource):
            return found
        residual = source.x @ found.coef + found.intercept - source.y
        outside = residual.abs() > self.epsilon * parts["scale"]
        return replace(found, parts={**found.parts, "outliers": outside})

    def problem_at(
        self, machine: Running, source: Source, parts: Mapping[str, Any] | None = None
    ) -> LinearProblem:
        """Labels are in units of epsilon times the scale that is tried first, or that was found."""
        search = _Scale(self, machine, source)
        return search.problem(float(parts["scale"]) / search.base.size if parts else _FIRST)


class _Scale:
    """The search for sigma, in units of the labels' deviation."""

    def __init__(self, model: Huber, machine: Running, source: Source) -> None:
        self.model, self.machine, self.source = model, machine, source
        self.base = model.scaling(source)
        self.passes = 0
        machine.ledger.note("host", "means and deviations of the columns")
        self.w = model.start(self.base)  # of labels in units of their deviation

    def problem(self, sigma: float) -> LinearProblem:
        """The objective at a given scale, labels in units of epsilon sigma."""
        unit = self.model.epsilon * sigma
        scaling = replace(self.base, size=self.base.size * unit)
        ridge = sigma * scaling.penalty(self.model.alpha * self.base.size / self.source.total)
        return LinearProblem(self.machine, self.source, scaling, self.model.loss(), ridge)

    def excess(self, sigma: float) -> tuple[float, Solution, LinearProblem]:
        """1 - mean min(|r|/sigma, epsilon)^2 at the best coefficients for this scale.

        Not a number where passes ran out.
        """
        problem = self.problem(sigma)
        unit = self.model.epsilon * sigma
        model = self.model
        solution = minimise(
            problem,
            tol=model.tol,
            max_passes=max(1, model.max_passes - self.passes),
            precondition=model.precondition,
            start=None if self.w is None else self.w / unit,
        )
        self.w = solution.w * unit
        if self.passes + problem.passes >= model.max_passes:  # none is left to ask how far off
            mean = math.nan
        else:
            mean = self._mean_square(problem, solution.w)
        self.passes += problem.passes
        return 1 - model.epsilon**2 * mean, solution, problem

    def _mean_square(self, problem: LinearProblem, w: Tensor) -> float:
        reach = problem.covered
        for _ in range(3):
            table = CLIP_SQUARED.on(reach)
            task = _LookupSum(self.machine, table, problem.encoding, w)
            total, beyond = self.source.combine(task, sum_and_farthest)
            problem.passes += 1
            self.machine.ledger.note("readout", "the sum of looked-up clipped squares")
            if float(beyond) == 0:
                break
            reach = 2 * (table.high + float(beyond))
        return float(total) / self.source.total

    def run(self) -> tuple[float, Solution, LinearProblem]:
        """Bracket the root, then close in by regula falsi with halved weights (Illinois).

        Where passes run out first the last scale is returned, as not converged.
        """
        at = self.excess
        low, high = _FIRST, 1.0
        bottom = at(low)
        if self._spent:
            return self._unsettled(low, bottom)
        top = at(high)
        while not self._spent and bottom[0] > 0 and low > _SMALLEST:
            high, top = low, bottom
            low /= 4
            bottom = at(low)
        if self._spent:
            return self._unsettled(low, bottom)
        while not self._spent and top[0] < 0:
            low, bottom = high, top
            high *= 2
            top = at(high)
        if self._spent:
            return self._unsettled(high, top)
        if bottom[0] > 0:
            return low, bottom[1], bottom[2]
        a, b, fa, fb = math.log(low), math.log(high), bottom[0], top[0]
        best = (low, *bottom) if -fa < fb else (high, *top)
        for _ in range(_ROUNDS):
            if fb == fa or b - a <= _NARROW:
                break
            c = min(max(b - fb * (b - a) / (fb - fa), a), b)
            sigma = math.exp(c)
            fc, solution, problem = at(sigma)
            last, best = best[1], (sigma, fc, solution, problem)
            if abs(fc) <= self.model.tol or (abs(fc) >= 0.99 * abs(last) and b - a < 1e-7):
                break
            if self._spent:
                return self._unsettled(sigma, (fc, solution, problem))
            if fc > 0:
                b, fb, fa = c, fc, fa / 2 if last > 0 else fa
            else:
                a, fa, fb = c, fc, fb / 2 if last < 0 else fb
        return best[0], best[2], best[3]

    @property
    def _spent(self) -> bool:
        return self.passes >= self.model.max_passes

    @staticmethod
    def _unsettled(
        sigma: float, found: tuple[float, Solution, LinearProblem]
    ) -> tuple[float, Solution, LinearProblem]:
        _, solution, problem = found
        return sigma, replace(solution, converged=False), problem

    def outliers(self, problem: LinearProblem, w: Tensor) -> int:
        """Samples beyond epsilon sigma."""
        (count,) = self.source.reduce(_Beyond(problem.encoding, w))
        return int(count)


@dataclass(frozen=True, eq=False)
class _LookupSum:
    """sum_i A(z_i) of a chunk, and how far z left the table."""

    machine: Running
    table: Interpolant
    encoding: Encoding
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        prompt = self.machine.look_ups(self.table, *self.encoding.written(x, y, self.w))
        beyond = (prompt.residuals().abs().max() - self.table.high).clamp(min=0)
        if float(beyond) > 0:
            return [beyond.new_zeros(()), beyond]
        return [self.machine.count(prompt), beyond]


@dataclass(frozen=True, eq=False)
class _Beyond:
    encoding: Encoding
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = self.encoding(x, y)
        return [((samples @ self.w - labels).abs() > 1).sum()]


# ---------------------------------------------------------------------------------------------
# the proof, in coefficients and scale together
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Joint:
    """Sums over a chunk of the joint problem in (w, sigma), labels in units of their deviation.

    They are the Gram matrix of the samples that stay inside, its slips, how far these turn, and the
    gradient with a bound of its rounding.

    F = mean(sigma/2 + sigma h(z/sigma)) + (1/2) sum q w^2. A sample inside bends F by a a'/sigma
    with a = (x, -z/sigma), one outside not at all.
    """

    encoding: Encoding
    w: Tensor
    sigma: float
    epsilon: float
    depth: int
    whitener: Tensor | None = None
    radius: float = 0.0

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = self.encoding(x, y)
        t = (samples @ self.w - labels) / self.sigma
        off = slip_of(samples, self.w, labels) / self.sigma + 4 * _UNIT * t.abs()
        drift = torch.zeros_like(t)
        if self.whitener is not None:
            moves = self.radius * (samples @ self.whitener[:-1]).norm(dim=1)
            scale = self.radius * float(self.whitener[-1].norm())
            drift = (moves + t.abs() * scale) / max(self.sigma - scale, _UNIT)
        drift = 1.001 * drift + off
        safe = (t.abs() + drift < self.epsilon).to(t)
        rows = torch.cat([samples, -t[:, None]], 1)
        safe = self.encoding.weigh(safe, y)
        gram = (rows * safe[:, None]).mT @ rows / self.sigma
        # |a_j| c |t| + |a_j| off is at most sqrt(c) |a_j| times sqrt(c) |t| + off/sqrt(c).
        c = gram_slip(len(x), self.depth)
        last = (math.sqrt(c) * t.abs() + off / math.sqrt(c)).square()
        slips = torch.cat([c * safe @ samples.square(), (safe @ last)[None]]) / self.sigma
        turn = (safe * drift.square()).sum() / self.sigma
        return [gram, slips, turn, *self._gradient(samples, t, off, y)]

    def _gradient(self, samples: Tensor, t: Tensor, off: Tensor, y: Tensor) -> list[Tensor]:
        weigh = self.encoding.weigh
        clipped = t.clamp(-self.epsilon, self.epsilon)
        slips = off + (len(t) + self.depth + 8) * _UNIT * self.epsilon
        slope = weigh(clipped, y) @ samples
        lost = weigh(slips, y) @ samples.abs()
        share = weigh(0.5 - 0.5 * clipped.square(), y)
        lost_share = slips * self.epsilon + (len(t) + self.depth + 8) * _UNIT
        lost_share = weigh(lost_share, y).sum()
        return [torch.cat([slope, share.sum()[None]]), torch.cat([lost, lost_share[None]])]


def _prove(search: _Scale, problem: LinearProblem, w: Tensor, sigma: float) -> Proof:
    """The distance of (w, sigma) to the joint optimum, on samples that stay inside."""
    source, model = search.source, search.model
    rows, weight = source.rows, source.total
    unit = model.epsilon * sigma
    inner = w * unit
    encoding = Encoding(search.base, "residual")
    q = search.base.penalty(model.alpha * search.base.size / weight)
    ridge = torch.cat([q, q.new_zeros(1)])
    point = torch.cat([inner, inner.new_zeros(1)])

    def sums(whitener: Tensor | None, radius: float) -> list[Tensor]:
        task = _Joint(encoding, inner, sigma, model.epsilon, source.count, whitener, radius)
        return [part / weight for part in source.reduce(task)]

    def metric(gram: Tensor, slips: Tensor) -> Metric | None:
        computed = metric_of(gram + torch.diag(ridge), rows)
        return lower(computed, slips + 8 * _UNIT * ridge) if computed.whole else None

    gram, slips, _, gradient, error = sums(None, 0.0)
    gradient = gradient + ridge * point
    error = error + 8 * _UNIT * ((ridge * point).abs() + gradient.abs())
    start = metric(gram, slips)
    if start is None:
        why = "the samples that are no outliers do not determine the answer"
        step = Step("D", "not bounded", math.inf, why)
        return Proof(math.inf, torch.eye(len(w), dtype=w.dtype, device=w.device), (step,))
    found, steps = math.inf, [Step("nu", "joint gradient", start.norm(gradient), "enclosed")]
    radius, safe = 2 * norm_of(start, gradient, error), start
    for _ in range(_GROWTHS):
        gram, slips, turn, _, _ = sums(start.whitener, radius)
        inside = metric(gram, slips)
        if inside is None:
            break
        safe = inside
        scale = radius * float(start.whitener[-1].norm())
        bent = 2 * math.sqrt(float(turn)) * float(safe.whitener[-1].norm())
        kept = (1 - 1.001 * bent) / (1 + scale / sigma)
        distance = norm_of(safe, gradient, error) / kept if kept > 0 else math.inf
        stretch = float(torch.linalg.matrix_norm(start.factor.mT @ safe.whitener, 2))
        if distance * stretch * 1.001 <= radius:
            found = distance
            break
        radius *= 2
    steps.append(Step("D", "nu of the samples that stay inside", found, "coefficients and scale"))
    # Functionals act on the coefficients alone, in the problem's units.
    return Proof(found, safe.whitener[:-1] / unit, tuple(steps))
