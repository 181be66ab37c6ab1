"""Loops of passes: preconditioned descent, momentum with restarts, soft thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from iceform.machine.problem import LinearProblem, Metric, metric_of
from iceform.machine.whitening import evenly, needs_sharpening, sharpened
from iceform.validation import check_choice

__all__ = ["PRECONDITIONERS", "Solution", "advance", "minimise", "nesterov"]

PRECONDITIONERS = ("whiten", "diagonal", "none")

_PATIENCE = 12  # steps in which the gradient falls less than this before its floor is reached:
_PROGRESS = 0.9
_ACCEPT = 0.7  # a Newton step must bring the gradient at least this far down,
_SUFFICIENT = 0.25  # share of the fall that the slope promises, for a shortened Newton step
_HALVINGS = 40  # of one, where there is nothing else
_TRIES = 4  # and where there is a quadratic above the loss
_LEAP = 1e3  # and be at most this long in the metric of the start: beyond, l'' has vanished


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
    linear: Tensor | None = None,
) -> Solution:
    """The minimiser of F(w) + linear.w.

    Parameters
    ----------
    problem
        F.
    tol
        Stop when the step that is asked for has length ``tol``, in the metric of the Hessian,
        relative to w (or to 1).
    max_passes
        Most passes over the data.
    precondition
        "whiten" writes the data in coordinates in which the Hessian is the identity (again after
        each step, where it changes): Newton's method. "diagonal" and "none" keep the coordinates,
        whose scales the problem has set, and use momentum with restarts.
    start
        0 by default.
    linear
        A linear term.
    """
    check_choice("precondition", precondition, PRECONDITIONERS)
    w = problem.start() if start is None else start
    extra = torch.zeros_like(w) if linear is None else linear
    problem.machine.ledger.note("host", "lengths of the steps and when to stop")
    loop = _whitened if precondition == "whiten" else _accelerated
    return loop(problem, w, extra, tol, max_passes)


_MORE = 2  # steps beyond the tolerance where some coefficients are far less certain than others


def _small(length: float, tol: float, w: Tensor, metric: Metric) -> bool:
    return length <= tol * max(1.0, metric.size(w))


class _Stall:
    """Notices that the gradient has stopped falling."""

    def __init__(self) -> None:
        self.best, self.since = math.inf, 0

    def __call__(self, value: float) -> bool:
        if value < _PROGRESS * self.best:
            self.best, self.since = value, 0
            return False
        self.since += 1
        return self.since >= _PATIENCE


def _whitened(
    problem: LinearProblem, w: Tensor, linear: Tensor, tol: float, max_passes: int
) -> Solution:
    rows, quadratic = problem.source.rows, problem.curvature.quadratic
    problem.machine.ledger.note(
        "host", "directions of the steps, by eigenvectors of the Gram matrix"
    )
    matrix = problem.hessian(w, majorizer=True)
    first = metric_of(matrix, rows)
    more = 0
    if quadratic and needs_sharpening(first):
        first, more = sharpened(problem, w, matrix, evenly).metric, _MORE
    metric, stalled = first, _Stall()
    gradient = problem.gradient(w) + linear
    history = [first.norm(gradient)]
    while problem.passes < max_passes:
        if not quadratic:
            metric = metric_of(problem.hessian(w), rows)
        length = metric.norm(gradient)
        if _small(length, tol, w, metric):
            if not more:
                return Solution(w, length, history)
            more -= 1
        elif stalled(history[-1]):
            break
        w, gradient = advance(problem, w, gradient, linear, metric, first)
        history.append(first.norm(gradient))
    return Solution(w, metric.norm(gradient), history, converged=False)


def advance(
    problem: LinearProblem, w: Tensor, gradient: Tensor, linear: Tensor, newton: Metric,
    first: Metric,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A Newton step if it is no leap and brings the gradient down, else a safe one."""
    step = newton.step(gradient)
    if problem.curvature.quadratic:
        return w - step, problem.gradient(w - step) + linear
    leaps = not first.size(step) <= _LEAP
    if not leaps:
        after = problem.gradient(w - step, trial=True) + linear
        if first.norm(after) <= _ACCEPT * first.norm(gradient):
            problem.keep()
            return w - step, after
    known = problem.curvature.majorizer is not None
    if not known or not leaps:  # part of a leap may land where l'' has vanished as well
        tries = _TRIES if known else _HALVINGS
        found = _damped(problem, w, gradient, linear, step, first, tries)
        if found is not None or not known:
            return found or (w, gradient)
    # The least point of the quadratic above F.
    above = metric_of(problem.hessian(w, majorizer=True), problem.source.rows)
    safe = above.step(gradient)
    return w - safe, problem.gradient(w - safe) + linear


def _damped(
    problem: LinearProblem, w: Tensor, gradient: Tensor, linear: Tensor, newton: Tensor,
    first: Metric, halvings: int,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """As much of a Newton step as brings the gradient down; None where none of the tried does.

    Along it ||g||^2 falls at the rate 2 ||g||^2 in any fixed metric, so some share of it does.
    """
    start, share = first.norm(gradient), min(0.5, _LEAP / max(first.size(newton), _LEAP))
    for _ in range(halvings):
        after = problem.gradient(w - share * newton, trial=True) + linear
        if first.norm(after) <= (1 - _SUFFICIENT * share) * start:
            problem.keep()
            return w - share * newton, after
        share *= 0.5
    return None


def _accelerated(
    problem: LinearProblem, w: Tensor, linear: Tensor, tol: float, max_passes: int
) -> Solution:
    """Nesterov's momentum, restarted whenever it points uphill."""
    metric = metric_of(problem.hessian(w, majorizer=True), problem.source.rows)
    eta = 1 / (metric.largest or 1.0)
    ahead, t = w, 1.0
    history: list[float] = []
    length = math.inf
    while problem.passes < max_passes:
        gradient = problem.gradient(ahead) + linear
        length = metric.norm(gradient)
        history.append(length)
        if _small(length, tol, ahead, metric):
            return Solution(ahead, length, history)
        after = ahead - eta * gradient
        if float(gradient @ (after - w)) > 0:
            ahead, t = w, 1.0
            gradient = problem.gradient(ahead) + linear
            after = ahead - eta * gradient
        ahead, t = nesterov(after, w, t)
        w = after
    return Solution(w, length, history, converged=False)


def nesterov(after: Tensor, before: Tensor, t: float) -> tuple[Tensor, float]:
    """Where to look next, beyond the step from ``before`` to ``after``, and the next t."""
    grown = 0.5 * (1 + math.sqrt(1 + 4 * t * t))
    return after + (t - 1) / grown * (after - before), grown
