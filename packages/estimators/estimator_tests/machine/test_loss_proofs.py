"""Losses of one's own in a fit: what is proven of them, and what is not believed."""

import math
from dataclasses import replace

import pytest
import torch

from iceform import Formula
from iceform.expressions import LOSSES, Curvature, Loss, ScalarFunction, loss_named
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.machine.convexity_bounds import above_nothing
from iceform_estimators.machine.proofs import STATED, prove
from iceform_estimators.machine.solvers import minimise
from iceform_estimators.machine.stream import table_of
from tests.expressions.test_losses import (
    _ONE,
    OF,
    OWN,
    SAID,
    TWINS,
    check_facts,
    optimum,
    own,
    vars_of,
)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("which", sorted(OWN))
def test_a_loss_of_ones_own_is_proven_by_its_own_facts_or_not_at_all(name, which):
    """Whatever it is called: facts of another loss would prove a distance that does not hold."""
    for seed in range(2):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(40, 3, generator=g, dtype=torch.float64)
        y = x @ torch.ones(3).double() + torch.randn(40, generator=g, dtype=torch.float64)
        program = algorithms.Quantile(fit_intercept=False)
        made = program.problem(Machine(4).start(), ArraySource(x, y, chunk=17))
        problem = replace(made, loss=own(name, which))
        rows, labels, _ = problem.encoding(x, y)
        best = optimum(rows, labels, which)
        for far in (0.0, 1e-3, 0.1):
            w = best + far * torch.randn(problem.dim, generator=g, dtype=torch.float64)
            bounds = prove(problem, w).bounds(torch.eye(problem.dim, dtype=torch.float64))
            off = (w - best).abs()
            assert bool((off <= bounds + 1e-9).all()), (name, which, seed, far, off, bounds)
            # And it is proven: near the optimum a bound is found, and not a loose one.
            if far == 1e-3:
                assert float(bounds.max()) <= 100 * far, (name, which, seed, bounds)


@pytest.mark.parametrize("text", TWINS)
def test_a_typed_loss_is_proven_like_its_named_twin(text):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    y = x @ torch.ones(3).double() + torch.randn(60, generator=g, dtype=torch.float64)
    made = algorithms.Quantile(fit_intercept=False).problem(
        Machine(4).start(), ArraySource(x, y, chunk=17)
    )
    named = replace(made, loss=TWINS[text])
    typed = replace(made, loss=Formula.parse(text).loss())
    best = minimise(named, tol=1e-9, max_passes=200).w
    for far in (0.0, 1e-6, 1e-4):
        w = best + far * torch.randn(3, generator=g, dtype=torch.float64)
        want, got = prove(named, w), prove(typed, w)
        assert (got.kind, got.assumptions) == ("proven", want.assumptions)
        assert math.isfinite(want.radius)
        assert got.radius <= 1.5 * want.radius + 1e-12, (far, got.radius, want.radius)


def _known_optimum(f, weigh):
    """A problem whose minimiser is known but for rounding: its gradient there is what it is."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=g, dtype=torch.float64)
    y = x.sum(1) + torch.randn(40, generator=g, dtype=torch.float64)
    made = algorithms.Expectile(fit_intercept=False, alpha=0.1).problem(
        Machine(4).start(), ArraySource(x, y, chunk=17)
    )
    rows, labels, _ = made.encoding(x, y)
    w = torch.zeros(3, dtype=torch.float64)
    for k in range(300):
        z = rows @ w - labels
        slope = rows.mT @ f(z) / 40 + made.ridge * w
        bend = (rows * weigh(z)[:, None]).mT @ rows / 40 + torch.diag(made.ridge)
        w = w - min(1.0, 0.1 + k / 50) * torch.linalg.solve(bend, slope)
    assert float((rows.mT @ f(rows @ w - labels) / 40 + made.ridge * w).norm()) < 1e-12
    return made, w, g


@pytest.mark.parametrize("which", OF)
def test_what_is_said_of_a_loss_of_ones_own_proves_nothing(which):
    """Registered under a name or not: a bound that is proven holds, whatever was said."""
    f, weigh = OF[which]
    made, best, g = _known_optimum(f, weigh)
    finite = 0
    for said, facts in SAID.items():
        loss = Loss(None, "residual", ScalarFunction(f, which), facts(f, weigh))
        LOSSES["own"] = lambda loss=loss: loss
        try:
            losses = [loss, loss_named("own"), replace(loss_named("huber"), **vars_of(loss))]
        finally:
            LOSSES.pop("own")
        for loss in losses:
            for far in (1e-4, 1e-2, 0.3):
                w = best + far * torch.randn(3, generator=g, dtype=torch.float64)
                proof = prove(replace(made, loss=loss), w)
                bounds = proof.bounds(torch.eye(3, dtype=torch.float64))
                off = (w - best).abs()
                assert proof.kind == "proven"
                assert bool((off <= bounds + 1e-11).all()), (said, far, off, bounds)
                finite += float(bounds.max()) < 1
    assert finite > 20  # and near the optimum there is a bound


def test_kinks_that_are_named_are_where_to_look():
    """A loss of one's own between kinks is proven like the library's, by what is found there."""
    f, weigh = OF["clip"]
    made, best, _ = _known_optimum(f, weigh)
    said = Curvature(weigh, _ONE, (0.0, 1.0), kinks=(-0.5, 0.5))
    w = best + 1e-4
    for facts, near in ((said, 2.0), (None, 60.0)):
        for kinks in ((), (-0.5, 0.5)):
            own = Loss(None, "residual", ScalarFunction(f, "clip", kinks), facts)
            want = prove(replace(made, loss=loss_named("huber", delta=0.5)), w)
            got = prove(replace(made, loss=own), w)
            assert got.kind == "proven"
            most = near if not kinks else 2.0
            assert float(got.bounds(torch.eye(3).double()).max()) <= most * float(
                want.bounds(torch.eye(3).double()).max()
            )


def test_facts_of_what_cannot_be_followed_are_an_assumption():
    f, weigh = OF["tanh"]
    made, best, _ = _known_optimum(f, weigh)
    hidden = ScalarFunction(lambda z: torch.from_numpy(torch.tanh(z.detach()).numpy()), "hidden")
    said = Curvature(weigh, None, (0.0, 1.0), concordance=2.0)
    proof = prove(replace(made, loss=Loss(None, "residual", hidden, said)), best + 1e-4)
    assert proof.kind == "estimated"
    assert STATED in proof.assumptions
    assert 0 < proof.radius < 1e-2


def test_how_a_loss_of_ones_own_says_it_is_above_its_least_value_is_not_believed():
    """Where curvature shows nothing the objective is bounded, but not by a lie."""
    x = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)  # separable
    made = algorithms.LinearSVM(fit_intercept=False).problem(Machine(4).start(), ArraySource(x, y))
    named = replace(made, loss=loss_named("logistic_margin"))
    w = torch.tensor([0.5], dtype=torch.float64)
    assert above_nothing(named, w) > 0.1
    lie = replace(named.loss, above=lambda m, y: torch.zeros_like(m))
    assert math.isinf(above_nothing(replace(named, loss=lie), w))


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_what_is_stated_of_the_expectiles_loss_is_true(expectile):
    check_facts(algorithms.Expectile(expectile=expectile).loss())


def test_a_loss_that_is_not_convex_is_not_proven():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    made = algorithms.Quantile(fit_intercept=False).problem(
        Machine(4).start(), ArraySource(x, x.sum(1) + 3, chunk=17)
    )
    problem = replace(made, loss=Formula.parse("log(1 + z^2)").loss())
    assert math.isinf(prove(problem, problem.start()).radius)


def test_a_loss_that_cannot_be_followed_is_estimated():
    """With a penalty something can be said if the loss is convex; nobody has proved that."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    made = algorithms.Expectile(fit_intercept=False, alpha=0.1).problem(
        Machine(4).start(), ArraySource(x, x.sum(1), chunk=17)
    )
    hidden = ScalarFunction(lambda z: torch.from_numpy(torch.tanh(z.detach()).numpy()), "hidden")
    for loss, kind in (
        (Loss.of(torch.tanh), "proven"),
        (Loss(None, "residual", hidden), "estimated"),
    ):
        proof = prove(replace(made, loss=loss), made.start())
        assert proof.kind == kind or math.isinf(proof.radius)
        assert proof.kind == kind


def test_a_loss_of_ones_own_is_solved_whatever_it_is_called():
    g = torch.Generator().manual_seed(5)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    y = x @ torch.ones(3).double() + torch.randn(60, generator=g, dtype=torch.float64)
    program = algorithms.Quantile(fit_intercept=False)
    made = program.problem(Machine(4).start(), ArraySource(x, y, chunk=17))
    problem = replace(made, loss=own("squared", "steep"))
    rows, labels, _ = problem.encoding(x, y)
    found = minimise(problem, tol=1e-6, max_passes=200)
    torch.testing.assert_close(found.w, optimum(rows, labels, "steep"), rtol=0, atol=1e-3)


def test_a_name_does_not_decide_where_tokens_crowd():
    assert table_of(loss_named("hinge"), 65).bend == (1.0, 0.25)
    assert table_of(own("hinge", "steep"), 65).bend is None
