"""A loss owns its facts: none is looked up by its name, and a new one is one function."""

import math
from dataclasses import replace

import pytest
import torch

from iceform import Formula, algorithms
from iceform.errors import BoundError, ProgramError
from iceform.functions import LOSSES, Loss, ScalarFunction, loss_named
from iceform.functions.losses import Curvature, Labels, register
from iceform.machine import ArraySource, Stream
from iceform.machine.proofs import prove
from iceform.machine.solvers import minimise
from iceform.machine.stream import table_of

# Convex losses that no name of the library fits: l' and l''.
OWN = {
    "steep": (lambda z: torch.tanh(5 * z), lambda z: 5 / torch.cosh(5 * z).square()),
    "bent": (lambda z: z / (1 + z.square()).sqrt(), lambda z: (1 + z.square()) ** -1.5),
    "heavy": (lambda z: 3 * z + z**3, lambda z: 3 + 3 * z.square()),
}


def own(name: str, which: str) -> Loss:
    return Loss(name, "residual", ScalarFunction(OWN[which][0], f"{which}'"))


def optimum(x, y, which):
    """By Newton's method on the loss itself, damped until it is near."""
    slope, bend = OWN[which]
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    for k in range(400):
        z = x @ w - y
        hessian = (x * bend(z)[:, None]).mT @ x / len(x) + 1e-9 * torch.eye(x.shape[1])
        step = torch.linalg.solve(hessian, x.mT @ slope(z) / len(x))
        w = w - step * min(1.0, 0.05 + k / 100, 0.5 / float(step.norm() + 1e-300))
    assert float((x.mT @ slope(x @ w - y)).norm()) < 1e-10 * len(x)
    return w


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("which", sorted(OWN))
def test_a_loss_of_ones_own_is_proven_by_its_own_facts_or_not_at_all(name, which):
    """Whatever it is called: facts of another loss would prove a distance that does not hold."""
    for seed in range(2):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(40, 3, generator=g, dtype=torch.float64)
        y = x @ torch.ones(3).double() + torch.randn(40, generator=g, dtype=torch.float64)
        program = algorithms.Quantile(fit_intercept=False)
        made = program.problem(Stream(4).start(), ArraySource(x, y, chunk=17))
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


TWINS = {
    "log(cosh(4*z))/4": loss_named("absolute", width=0.25),
    "clip(z, -1, 1)*(z - clip(z, -1, 1)/2)": loss_named("huber"),
    "z^2/2": loss_named("squared"),
    "0.1*log(1 + exp(z/0.1)) - 0.3*z": loss_named("quantile", quantile=0.3, width=0.1),
}


@pytest.mark.parametrize("text", TWINS)
def test_a_typed_loss_is_proven_like_its_named_twin(text):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    y = x @ torch.ones(3).double() + torch.randn(60, generator=g, dtype=torch.float64)
    made = algorithms.Quantile(fit_intercept=False).problem(
        Stream(4).start(), ArraySource(x, y, chunk=17)
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


def test_a_loss_that_is_not_convex_is_not_proven():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    made = algorithms.Quantile(fit_intercept=False).problem(
        Stream(4).start(), ArraySource(x, x.sum(1) + 3, chunk=17)
    )
    problem = replace(made, loss=Formula.parse("log(1 + z^2)").loss())
    assert math.isinf(prove(problem, problem.start()).radius)


def test_a_loss_that_cannot_be_followed_is_estimated():
    """With a penalty something can be said if the loss is convex; nobody has proved that."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    made = algorithms.Expectile(fit_intercept=False, alpha=0.1).problem(
        Stream(4).start(), ArraySource(x, x.sum(1), chunk=17)
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
    made = program.problem(Stream(4).start(), ArraySource(x, y, chunk=17))
    problem = replace(made, loss=own("squared", "steep"))
    rows, labels, _ = problem.encoding(x, y)
    found = minimise(problem, tol=1e-6, max_passes=200)
    torch.testing.assert_close(found.w, optimum(rows, labels, "steep"), rtol=0, atol=1e-3)


def test_a_name_is_not_what_is_saved():
    assert own("huber", "steep").to_config() is None
    assert loss_named("huber", delta=2.0).to_config() == {
        "name": "huber", "parameters": {"delta": 2.0},
    }  # fmt: skip


def test_a_name_does_not_decide_where_tokens_crowd():
    assert table_of(loss_named("hinge"), 65).bend == (1.0, 0.25)
    assert table_of(own("hinge", "steep"), 65).bend is None


@pytest.mark.parametrize(
    ("name", "good", "bad", "words"),
    [
        ("logistic", [0.0, 0.5, 1.0], 1.5, "labels in \\[0, 1\\], got 1.5"),
        ("poisson", [0.0, 3.0], -1.0, "counts >= 0, got -1"),
        ("hinge", [-1.0, 1.0], 0.0, "labels -1 and \\+1, got 0"),
    ],
)
def test_labels_are_the_losss_own(name, good, bad, words):
    loss = loss_named(name)
    loss.check_labels(torch.tensor(good))
    with pytest.raises(BoundError, match=words):
        loss.check_labels(torch.tensor([*good, bad]))
    Loss(name, "residual", loss.derivative).check_labels(torch.tensor([*good, bad]))


def test_a_new_loss_is_one_function():
    try:

        @register("smooth_step")
        def _(width: float = 1.0) -> Loss:
            f = ScalarFunction(lambda z: torch.atan(z / width), "smooth_step'")
            facts = Curvature(
                lambda z: 1 / (width * (1 + (z / width).square())), bounds=(0.0, 1 / width)
            )
            return Loss("smooth_step", "residual", f, facts, Labels(lambda y: y < 9, "below 9"))

        loss = loss_named("smooth_step", width=2.0)
        assert loss is loss_named("smooth_step", width=2.0)
        assert Loss.from_config(loss.to_config()) is loss
        assert loss.curvature_on(-1.0, 1.0) == (0.0, 0.5, ())
        with pytest.raises(BoundError, match="below 9, got 9"):
            loss.check_labels(torch.tensor([9.0]))
    finally:
        LOSSES.pop("smooth_step")
    with pytest.raises(ProgramError, match="no loss is called"):
        loss_named("smooth_step")


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_curvature_bounds_are_those_of_the_bend(name):
    facts = loss_named(name).curvature
    z = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    low, high = facts.bounds
    assert bool((facts.bend(z) >= low).all())
    assert bool((facts.bend(z) <= high * (1 + 1e-15)).all())
    assert facts.steepest is None or math.isfinite(facts.steepest)
