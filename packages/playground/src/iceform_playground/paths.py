"""Steps one at a time: the same loop by the frozen machine and in plain float64, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from iceform.functions import Loss
from iceform_estimators.algorithms import soft_threshold
from iceform_estimators.machine import (
    Coordinates,
    GramTask,
    LinearProblem,
    Running,
    Scaling,
    Source,
    Table,
    advance,
    begin,
    nesterov,
)
from iceform_playground import questions as asked
from iceform_playground.lookups import table_of

_FARTHEST = 4.0  # of a residual: twice the board's height
_STILL = 1e-15  # a step this short, relative to the coefficients, is the last


@dataclass(eq=False)
class LookedProblem(LinearProblem):
    """A problem whose table is chosen by the sliders."""

    how: asked.Lookup = field(default_factory=asked.Lookup)

    @classmethod
    def of(cls, problem: LinearProblem, how: asked.Lookup) -> LookedProblem:
        """The same problem with that table."""
        return cls(*_parts(problem), how=how)

    @property
    def table(self) -> Table:
        return table_of(self.loss, self.how)

    def shrink(self, u: Tensor, tau: Tensor) -> Tensor:
        """Soft thresholds, looked up."""
        return soft_threshold(self.machine, u, tau)


@dataclass(eq=False)
class ExactProblem(LinearProblem):
    """The same problem without the machine."""

    @classmethod
    def of(cls, problem: LinearProblem) -> ExactProblem:
        """From the problem that the machine is given."""
        return cls(*_parts(problem))

    def gradient(self, w: Tensor, *, trial: bool = False) -> Tensor:
        """The gradient of F, in float64."""
        (total,) = self.source.reduce(_NativeTask(self, w))
        self.passes += 1
        return total / self.source.total + self.ridge * w

    def slope(self, u: Tensor, within: Coordinates, *, trial: bool = False) -> Tensor:
        """The same in other coordinates."""
        return within.turned.mT @ self.gradient(within.back(u))

    def shrink(self, u: Tensor, tau: Tensor) -> Tensor:
        """Soft thresholds."""
        return torch.sign(u) * (u.abs() - tau).clamp(min=0)


def _parts(
    problem: LinearProblem,
) -> tuple[Running, Source, Scaling, Loss, Tensor]:
    return problem.machine, problem.source, problem.scaling, problem.loss, problem.ridge


@dataclass(frozen=True, eq=False)
class _NativeTask:
    problem: LinearProblem
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, offsets = self.problem.encoding(x, y)
        slopes = self.problem.loss.derivative(samples @ self.w - labels) - offsets
        return [self.problem.encoding.weigh(slopes, y) @ samples]


def steps(
    problem: LookedProblem | ExactProblem, how: asked.Running, thresholds: Tensor
) -> Iterator[Tensor]:
    """Scaled coefficients from w = 0 on, one step after the other."""
    if whitened(how, thresholds):
        return _newton(problem)
    eta = how.rate / _steepest(problem)
    return _descent(problem, eta, thresholds, momentum=how.method != "gradient")


def whitened(how: asked.Running, thresholds: Tensor) -> bool:
    """Whether samples are written in coordinates of the Hessian."""
    return how.method == "newton" and not bool((thresholds > 0).any())


def _steepest(problem: LinearProblem) -> float:
    """The Hessian's largest eigenvalue at most: sup l'' times that of the samples' own."""
    task = GramTask(problem.encoding, problem.start(), torch.ones_like)
    gram = problem.source.reduce(task)[0] / problem.source.total
    _, bend, _ = problem.loss.curvature_on(-_FARTHEST, _FARTHEST)
    top = float(torch.linalg.eigvalsh(gram)[-1])
    return max(bend, 0.0) * top + float(problem.ridge.max()) or 1.0


def _descent(
    problem: LookedProblem | ExactProblem, eta: float, thresholds: Tensor, *, momentum: bool
) -> Iterator[Tensor]:
    """Proximal gradient steps; momentum is restarted whenever it points uphill."""
    w = ahead = problem.start()
    t = 1.0
    while True:
        yield w
        moved = ahead - eta * problem.gradient(ahead)
        after = problem.shrink(moved, eta * thresholds)
        uphill = float((ahead - after) @ (after - w)) > 0
        (ahead, t), w = (after, 1.0) if uphill or not momentum else nesterov(after, w, t), after


def _newton(problem: LookedProblem | ExactProblem) -> Iterator[Tensor]:
    """Gradient steps in coordinates of the Hessian, shortened where they would go too far."""
    w = problem.start()
    yield w
    stand, first, _ = begin(problem, w, torch.zeros_like(w))
    while True:
        last, stand = stand.w, advance(stand, first)
        yield stand.w
        if float((stand.w - last).abs().max()) <= _STILL * max(1.0, float(stand.w.abs().max())):
            return
