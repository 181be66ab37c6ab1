"""What the gradient is off by is part of every proof of optimality: without it each would fail.

At a point where the computed gradient is 0, or the error larger than it, everything that a proof
says comes from the error alone; so each is compared with the worst gradient within the error.
"""

import itertools
import math

import pytest
import torch

from iceform.expressions import loss_named
from iceform_estimators.machine import ArraySource, LinearProblem, Scaling
from iceform_estimators.machine.convexity_bounds import held_by_penalty, nearby
from iceform_estimators.machine.problem import Metric, metric_of
from iceform_estimators.machine.proofs import Newton, enclose, norm_of

SIGNS = [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1.0, 1.0), repeat=3)]


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Unasked:
    """In place of a machine: nothing is run."""

    def __init__(self):
        self.ledger = self

    def note(self, *args):
        pass

    def check_dim(self, dim):
        pass


def problem_of(alpha: float, seed: int = 0) -> LinearProblem:
    x = drawn(seed, 20, 3)
    scaling = Scaling(torch.zeros(3).double(), torch.ones(3).double(), 0.0, 1.0, intercept=False)
    source = ArraySource(x, x @ drawn(seed + 1, 3))
    loss = loss_named("squared")
    return LinearProblem(Unasked(), source, scaling, loss, scaling.penalty(alpha))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_norm_of_a_gradient_holds_for_every_one_within_its_error(seed, share):
    root = drawn(seed, 3, 3) * torch.tensor([1.0, 1e-3, 1e3], dtype=torch.float64)
    metric = metric_of(root.mT @ root, 3)
    assert metric.whole
    error = drawn(seed + 100, 3).abs()
    gradient = share * drawn(seed + 200, 3) * error
    worst = max(metric.norm(gradient + sign * error) for sign in SIGNS)
    found = norm_of(metric, gradient, error)
    assert found >= worst * (1 - 1e-12)
    # And not more than the two together: each part alone, by the triangle inequality.
    parts = float((metric.whitener.abs().mT @ error).norm())
    assert found <= metric.norm(gradient) + parts * (1 + 1e-12)


def test_where_directions_are_missing_the_error_still_counts():
    metric = Metric(torch.eye(3).double()[:, :2], torch.ones(2).double(), torch.ones(3).double())
    error = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
    assert norm_of(metric, torch.zeros(3).double(), error) == pytest.approx(5.0, rel=2e-3)


@pytest.mark.parametrize("seed", range(4))
def test_newtons_bounds_hold_for_every_gradient_within_its_error(seed):
    root = drawn(seed, 3, 3)
    matrix = root.mT @ root
    metric = metric_of(matrix, 3)
    error, functionals = drawn(seed + 1, 3).abs(), torch.eye(3).double()
    gradient = 0.3 * drawn(seed + 2, 3)
    known = Newton(gradient, error, 0.0, metric.whitener)
    found = known.bounds(functionals, torch.zeros(3).double(), 0.0)
    for sign in SIGNS:
        step = torch.linalg.solve(matrix, gradient + sign * error).abs()
        assert bool((found >= step * (1 - 1e-9)).all())


@pytest.mark.parametrize("alpha", [1e-3, 1.0])
def test_what_a_penalty_holds_counts_the_error(alpha):
    """At q w = 0 the objective's gradient may be the whole error: w is off by error / q then."""
    problem = problem_of(alpha)
    w, error = torch.zeros(3).double(), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    held = held_by_penalty(problem, w, problem.curvature, torch.zeros(3).double(), error)
    assert held is not None
    assert bool((held.box >= error / alpha).all())
    assert held.excess >= float(error.square().sum()) / (2 * alpha)


def test_lines_nearby_count_the_error():
    problem = problem_of(0.0)
    w, error = torch.zeros(3).double(), torch.full((3,), 0.25, dtype=torch.float64)
    excess = nearby(problem, w, torch.zeros(3).double(), error)
    assert excess.bound >= 16 * float(error.sum())  # up to 16 away in each coefficient


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_an_enclosed_gradient_is_not_taken_for_exact(loss):
    """The error that is handed to all of these is never 0 where anything rounds."""
    problem = problem_of(1.0)
    problem.loss = loss_named(loss)
    _, error, _, _ = enclose(problem, drawn(5, 3))
    assert bool((error > 0).all())
    assert math.isfinite(float(error.sum()))
