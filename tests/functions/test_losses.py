"""A loss owns its facts: none is looked up by its name, and a new one is one function."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from iceform import Formula
from iceform.arithmetic import Interval
from iceform.arithmetic.balls import balls_of
from iceform.constructions.verification import ball_function
from iceform.errors import BoundError, ProgramError
from iceform.functions import LOSSES, Loss, ScalarFunction, loss_named
from iceform.functions.extremes import concordance, extremes
from iceform.functions.losses import Curvature, Labels, register
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Stream
from iceform_estimators.machine.objective import above_nothing
from iceform_estimators.machine.proofs import STATED, prove
from iceform_estimators.machine.solvers import minimise
from iceform_estimators.machine.stream import table_of

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


_ONE = torch.ones_like
# What may be said of a loss with the derivative f and l'' = b; true of one of each, or of none.
SAID = {
    "it is a square": lambda f, b: Curvature(_ONE, _ONE, (1.0, 1.0), kinks=()),
    "it hardly bends": lambda f, b: Curvature(b, None, (0.0, 1.0), concordance=0.25),
    "half as flat": lambda f, b: Curvature(lambda z: 2 * b(z), None, (0.0, 1.0), concordance=2.0),
    "the other way": lambda f, b: Curvature(lambda z: -b(z), None, (-1.0, 0.0), concordance=2.0),
    "no kink so near": lambda f, b: Curvature(_ONE, _ONE, (0.0, 1.0), kinks=(-3.0, 3.0)),
    "another function": lambda f, b: Curvature(
        b, _ONE, (0.0, 1.0), concordance=1.0, encloser=ScalarFunction(lambda z: z / 99, "z").jets
    ),
}
OF = {
    "tanh": (torch.tanh, lambda z: 1 / torch.cosh(z).square()),
    "sinh": (torch.sinh, torch.cosh),
    "clip": (lambda z: z.clamp(-0.5, 0.5), lambda z: (z.abs() < 0.5).to(z)),
}


def _known_optimum(f, weigh):
    """A problem whose minimiser is known but for rounding: its gradient there is what it is."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=g, dtype=torch.float64)
    y = x.sum(1) + torch.randn(40, generator=g, dtype=torch.float64)
    made = algorithms.Expectile(fit_intercept=False, alpha=0.1).problem(
        Stream(4).start(), ArraySource(x, y, chunk=17)
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
        register("own")(lambda loss=loss: loss)
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


def vars_of(loss):
    return {"derivative": loss.derivative, "facts": loss.facts}


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
    made = algorithms.LinearSVM(fit_intercept=False).problem(Stream(4).start(), ArraySource(x, y))
    named = replace(made, loss=loss_named("logistic_margin"))
    w = torch.tensor([0.5], dtype=torch.float64)
    assert above_nothing(named, w) > 0.1
    lie = replace(named.loss, above=lambda m, y: torch.zeros_like(m))
    assert math.isinf(above_nothing(replace(named, loss=lie), w))


@pytest.mark.parametrize(
    "loss",
    [loss_named(name) for name in LOSSES]
    + [loss_named("huber", delta=0.37), loss_named("quantile", quantile=0.9, width=0.03)]
    + [algorithms.Expectile(expectile=t).loss() for t in (0.5, 0.9)],
    ids=lambda loss: f"{loss.name}{dict(loss.parameters or ())}",
)
def test_what_the_library_states_of_its_losses_is_true(loss):
    """What :func:`vouched` rests on, enclosed: every fact that a proof uses."""
    facts = loss.known
    assert facts is not None
    assert replace(loss).known is None
    middle, width = facts.corner or (0.0, 1.0)
    low, high = middle - 24 * width, middle + 24 * width
    found = extremes(loss.derivative.jets, low, high, 1)
    assert facts.bounds[0] <= found.seen_low + 1e-9
    assert found.low > facts.bounds[0] - 1e-9
    assert found.seen_high <= facts.bounds[1] * (1 + 1e-12)
    if not math.isinf(facts.bounds[1]):
        assert found.high <= facts.bounds[1] * 1.06
    z = torch.cat(
        [torch.linspace(low, high, 1001).double(), torch.tensor([0.0, 1e-9, 0.4]).double()]
    )
    z = z[[all(abs(t - k) > 1e-12 for k in facts.kinks or ()) for t in z.tolist()]]
    value, off, bend, _ = facts.enclose(loss.derivative.call, z)
    true = loss.derivative.jets(Interval.point(z), 2)
    exactly = ball_function(loss.derivative.call)
    with balls_of(200) as flint:
        for t, said, may in zip(z.tolist(), value.tolist(), off.tolist(), strict=True):
            assert abs(exactly(flint.arb(t)) - flint.arb(said)) <= flint.arb(may), t
    # Lengths in the metric it makes have a thousandth to spare.
    assert bool((bend - true[1].low >= -1e-12 * bend - 1e-300).all())
    assert bool((bend - true[1].high <= 1e-12 * bend + 1e-300).all())
    if facts.concordance is not None:
        third = 2 * true[2].magnitude
        assert bool((third <= facts.concordance * true[1].high * (1 + 1e-9) + 1e-300).all())
        assert concordance(loss.derivative.jets, low, high) <= 1.9 * facts.concordance
    if facts.kinks is not None:  # between them l'' is what it is in the middle
        for a, b in pairwise((low, *facts.kinks, high)):
            inner = extremes(loss.derivative.jets, math.nextafter(a, b), math.nextafter(b, a), 1)
            here = float(facts.bend(torch.tensor([(a + b) / 2], dtype=torch.float64)))
            assert inner.low == pytest.approx(here, abs=1e-15)
            assert inner.high == pytest.approx(here, abs=1e-15)
    if loss.above is not None:
        _check_above(loss, z[(z.abs() < 30) & (z != 0)])  # where autograd has its slope


def _check_above(loss, z):
    """It is at least l less its least value: it falls and grows as l does, and is not below 0."""
    for label in {"logistic": (0.0, 0.3, 1.0), "poisson": (0.0, 2.5, 70.0)}.get(loss.name, (1.0,)):
        y = torch.full_like(z, label)
        above = ScalarFunction(
            lambda t, y=y: loss.above(t, torch.full_like(t, y[0].item())), "above"
        )
        rate = above.derivatives(z, 1)[1]
        pull = loss.derivative(z) - (y if loss.kind == "glm" else 0)
        torch.testing.assert_close(rate, pull, rtol=1e-9, atol=1e-12)
        assert float(loss.above(z, y).min()) >= 0


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
        low, high, assumed = loss.curvature_on(-1.0, 1.0)  # enclosed: what is said is not believed
        assert 0.3 < low <= 0.4
        assert 0.5 <= high < 0.53
        assert not assumed
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
