"""Loops of passes: descent in whitened coordinates, momentum with restarts, soft thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from iceform.arithmetic import NOISE
from iceform.validation import check_choice
from iceform_estimators.machine.problem import (
    Coordinates,
    LinearProblem,
    Metric,
    metric_of,
    needs_sharpening,
)
from iceform_estimators.machine.whitening import evenly, sharpened
from iceform_estimators.tuning import ACCEPT, PATIENCE, PROGRESS, SMALL, TRIES, WIDEST

PRECONDITIONERS = ("whiten", "diagonal", "none")

_SUFFICIENT = (
    1 / TRIES
)  # share of the fall, or of the slope, that a shortened Newton step may leave
_HALVINGS = round(math.log2(WIDEST))  # of one, where no quadratic above the loss is known
_FAR = 8  # times another share
_LEAP = 1 / SMALL  # in the metric of the start, of a Newton step: beyond, l'' has vanished


@dataclass(eq=False)
class Solution:
    """Where a loop ended.

    Attributes
    ----------
    w
        Scaled coefficients.
    length
        The last step asked for, in the metric of the Hessian.
    history
        Gradient norms, one per accepted step.
    converged
        Whether ``length`` came below the tolerance.

    Examples
    --------
    >>> Solution(torch.ones(1), 1e-12).converged
    True
    """

    w: Tensor
    length: float
    history: list[float] = field(default_factory=list)
    converged: bool = True


def minimise(
    problem: LinearProblem,
    *,
    tol: float,
    max_passes: int,
    precondition: str = "whiten",
    start: Tensor | None = None,
) -> Solution:
    """The minimiser of F(w).

    Parameters
    ----------
    problem
        F.
    tol
        Stop when the step that is asked for has length ``tol``, in the metric of the Hessian,
        relative to w (or to 1).
    max_passes
        Most passes over the data; a step that has begun is finished, and of any passes at least
        one leads to a step. With 0 the answer is where passes begin.
    precondition
        "whiten" writes the data in coordinates in which the Hessian is the identity (anew for each
        pass, where it changes), so that gradient steps in them are Newton's. "diagonal" and "none"
        keep the coordinates, whose scales the problem has set, and use momentum with restarts.
    start
        0 by default.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> from iceform.expressions import loss_named
    >>> x, y = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([1.0, 3.0]).double()
    >>> source, run = ArraySource(x, y), Machine(2).start()
    >>> scaling, loss = Scaling.of(source, intercept=True), loss_named("squared")
    >>> problem = LinearProblem(run, source, scaling, loss, scaling.penalty(0.0))
    >>> w = minimise(problem, tol=1e-9, max_passes=20).w
    >>> print(torch.cat([part.reshape(-1) for part in scaling.raw(w)]).numpy().round(6))
    [1. 1.]
    """
    check_choice("precondition", precondition, PRECONDITIONERS)
    w = problem.start() if start is None else start
    problem.machine.ledger.note("host", "lengths of the steps and when to stop")
    if max_passes < 1:
        return Solution(w, math.inf, converged=False)
    loop = _whitened if precondition == "whiten" else _accelerated
    return loop(problem, w, tol, max_passes)


_MORE = 2  # steps beyond the tolerance where some coefficients are far less certain than others


class _Stall:
    """Notices that the gradient has stopped falling."""

    def __init__(self) -> None:
        self.best, self.since = math.inf, 0

    def __call__(self, value: float) -> bool:
        if value < PROGRESS * self.best:
            self.best, self.since = value, 0
            return False
        self.since += 1
        return self.since >= PATIENCE


@dataclass(frozen=True, eq=False)
class Iterate:
    """Where a loop stands: w = T u, and the slope there, of samples that were written as T'x.

    In coordinates in which the Hessian is the identity a Newton step is a gradient step of length
    1; the only thing done to the answer of the pass is the map back, w = T u.
    """

    problem: LinearProblem
    within: Coordinates
    u: Tensor
    slope: Tensor
    linear: Tensor
    share: float = 1.0  # of the step that led here

    @classmethod
    def at(
        cls, problem: LinearProblem, w: Tensor, metric: Metric, linear: Tensor, *,
        trial: bool = False,
    ) -> Iterate:  # fmt: skip
        """At w, in the coordinates of a metric: one pass."""
        what = "coordinates of the samples in a pass, by eigenvectors of their Gram matrix"
        problem.machine.ledger.note("host", what)
        problem.machine.ledger.note("host", "w = T u, from the coordinates of a pass back")
        within = metric.coordinates
        return cls._passed(problem, within, within.of(w), linear, trial)

    @classmethod
    def _passed(
        cls, problem: LinearProblem, within: Coordinates, u: Tensor, linear: Tensor, trial: bool
    ) -> Iterate:
        slope = problem.slope(u, within, trial=trial) + within.turned.mT @ linear
        return cls(problem, within, u, slope, linear)

    @cached_property
    def w(self) -> Tensor:
        """Scaled coefficients."""
        return self.within.back(self.u)

    @cached_property
    def gradient(self) -> Tensor:
        """In w, to tell its length in other metrics."""
        return self.within.gradient(self.slope)

    @property
    def length(self) -> float:
        """Of the step that is asked for."""
        return float(self.within.along(self.slope).norm())

    @property
    def size(self) -> float:
        """||w|| in the metric."""
        return float(self.u[: self.within.rank].norm())

    @property
    def step(self) -> Tensor:
        """In w."""
        return self.within.back(self.within.along(self.slope))

    def moved(self) -> Tensor:
        """w after a gradient step."""
        return self.within.back(self.u - self.within.along(self.slope))

    def stepped(self, share: float = 1.0, *, trial: bool = False) -> Iterate:
        """After that share of a gradient step, in the same coordinates: one pass."""
        u = self.u - share * self.within.along(self.slope)
        return self._passed(self.problem, self.within, u, self.linear, trial)

    def anew(self, w: Tensor, metric: Metric, *, trial: bool = False) -> Iterate:
        """At another point, in coordinates of its own: one pass."""
        return self.at(self.problem, w, metric, self.linear, trial=trial)


def _whitened(problem: LinearProblem, w: Tensor, tol: float, max_passes: int) -> Solution:
    stand, first, more = begin(problem, w)
    stalled, history = _Stall(), [first.norm(stand.gradient)]
    while problem.passes < max_passes or len(history) == 1:
        if stand.length <= tol * max(1.0, stand.size):
            if not more:
                return Solution(stand.w, stand.length, history)
            more -= 1
        elif stalled(history[-1]):
            break
        before, stand = stand, advance(stand, first)
        if stand is before:  # no step is known to lead down
            break
        history.append(first.norm(stand.gradient))
    return Solution(stand.w, stand.length, history, converged=False)


def begin(problem: LinearProblem, w: Tensor) -> tuple[Iterate, Metric, int]:
    """The first pass; the metric that lengths are told in, and steps to take beyond the last."""
    own, first, more = _metrics(problem, w)
    return Iterate.at(problem, w, own, torch.zeros_like(w)), first, more


def whitened_at(problem: LinearProblem, w: Tensor) -> Coordinates:
    """Those that a pass at w is written in."""
    return _metrics(problem, w)[0].coordinates


def _metrics(problem: LinearProblem, w: Tensor) -> tuple[Metric, Metric, int]:
    """Of the Hessian at w and of a bound of it; steps to take beyond the last."""
    rows = problem.source.rows
    matrix = problem.hessian(w, majorizer=True)
    first = metric_of(matrix, rows)
    if not problem.curvature.quadratic:
        return _metric_at(problem, w, first), first, 0
    if not needs_sharpening(first):
        return first, first, 0
    found = sharpened(problem, w, matrix, evenly).metric
    return found, found, _MORE


def advance(stand: Iterate, first: Metric) -> Iterate:
    """A Newton step if it is no leap and brings the gradient down, else a safe one.

    What is tried is a pass in the coordinates of the point it lands on, if all of the step is, and
    else in those it started in: of most shares nothing but the gradient's length is asked.
    """
    problem = stand.problem
    if problem.curvature.quadratic:
        return stand.stepped()
    leaps = not first.size(stand.step) <= _LEAP
    if not leaps:
        after = _landed(stand, first)
        if after is not None and first.norm(after.gradient) <= ACCEPT * first.norm(stand.gradient):
            problem.keep()
            return after
    if problem.curvature.kinks is None:
        return _safe(stand, first, leaps)
    share = _share(stand, first)
    if share is None:
        return stand
    w = stand.w - share * stand.step
    return replace(stand.anew(w, _metric_at(problem, w, first)), share=share)


def _safe(stand: Iterate, first: Metric, leaps: bool) -> Iterate:
    """Part of a Newton step, or to the least point of a quadratic above F."""
    problem = stand.problem
    known = problem.curvature.majorizer is not None
    if not known or not leaps:  # part of a leap may land where l'' has vanished as well
        found = _damped(stand, first, TRIES if known else _HALVINGS)
        if found is not None:
            return found.anew(found.w, _metric_at(problem, found.w, first))
        if not known:
            return stand
    matrix = problem.hessian(stand.w, majorizer=True)
    above = stand.anew(stand.w, metric_of(matrix, problem.source.rows))
    w = above.moved()
    return stand.anew(w, _metric_at(problem, w, first))


def _landed(stand: Iterate, first: Metric) -> Iterate | None:
    """After a Newton step; None where the curvature overflows there."""
    w = stand.moved()
    matrix = stand.problem.hessian(w)
    if not bool(torch.isfinite(matrix).all()):
        return None
    return stand.anew(w, _metric_at(stand.problem, w, first, matrix), trial=True)


def _metric_at(
    problem: LinearProblem, w: Tensor, first: Metric, matrix: Tensor | None = None
) -> Metric:
    """Of the Hessian at w, with a trace of what it was where it has vanished along a coefficient.

    Coordinates in which next to nothing is 1 would be so large that residuals drown in rounding.
    """
    matrix = problem.hessian(w) if matrix is None else matrix
    missing = (NOISE * first.scale.square() - matrix.diagonal()).clamp(min=0)
    return metric_of(matrix + torch.diag(missing), problem.source.rows)


def _share(stand: Iterate, first: Metric) -> float | None:
    """Of a step that is too long, one that leads near the least F; None where F does not fall.

    F is convex, so that its slope along a step only grows: what is looked for is where it is 0,
    and a pass tells it at one share. The first is that of the step before, but no leap; then ever
    larger or smaller ones, up to one on the other side; then where the line through the last two
    is 0.
    """
    step = stand.within.along(stand.slope)
    start = float(stand.slope @ step)
    low, high = (0.0, start), (math.inf, -start)
    share, notch = min(stand.share, _LEAP / max(first.size(stand.step), _LEAP)), 2.0
    for _ in range(_HALVINGS):
        rate = float(stand.stepped(share, trial=True).slope @ step)
        if abs(rate) <= _SUFFICIENT * start or (rate > 0 and share == 1):
            return share
        low, high = ((share, rate), high) if rate > 0 else (low, (share, rate))
        if not low[0]:
            share, notch = share / notch, notch**2
        elif high[0] > 1:
            share, notch = min(1.0, share * notch), notch**2
        else:
            across = low[1] / (low[1] - high[1])
            far = high[0] > _FAR * low[0]
            share = math.sqrt(low[0] * high[0]) if far else low[0] + across * (high[0] - low[0])
    return low[0] or None


def _damped(stand: Iterate, first: Metric, halvings: int) -> Iterate | None:
    """As much of a Newton step as brings the gradient down; None where none of the tried does.

    Along it ||g||^2 falls at the rate 2 ||g||^2 in any fixed metric, so some share of it does.
    """
    start = first.norm(stand.gradient)
    share = min(0.5, _LEAP / max(first.size(stand.step), _LEAP))
    for _ in range(halvings):
        after = stand.stepped(share, trial=True)
        if first.norm(after.gradient) <= (1 - _SUFFICIENT * share) * start:
            stand.problem.keep()
            return after
        share *= 0.5
    return None


def _accelerated(problem: LinearProblem, w: Tensor, tol: float, max_passes: int) -> Solution:
    """Nesterov's momentum, restarted whenever it points uphill."""
    problem.machine.ledger.note("host", "momentum, and where it begins anew")
    metric = metric_of(problem.hessian(w, majorizer=True), problem.source.rows)
    eta = 1 / (metric.largest or 1.0)
    ahead, t = w, 1.0
    history: list[float] = []
    length = math.inf
    while problem.passes < max_passes:
        gradient = problem.gradient(ahead)
        length = metric.norm(gradient)
        history.append(length)
        if length <= tol * max(1.0, metric.size(ahead)):
            return Solution(ahead, length, history)
        after = ahead - eta * gradient
        if float(gradient @ (after - w)) > 0:
            ahead, t = w, 1.0
            gradient = problem.gradient(ahead)
            after = ahead - eta * gradient
        ahead, t = nesterov(after, w, t)
        w = after
    return Solution(w, length, history, converged=False)


def nesterov(after: Tensor, before: Tensor, t: float) -> tuple[Tensor, float]:
    """Where to look next, beyond the step from ``before`` to ``after``, and the next t."""
    grown = 0.5 * (1 + math.sqrt(1 + 4 * t * t))
    return after + (t - 1) / grown * (after - before), grown
