"""A loss owns its facts: none is looked up by its name, and a new one is one function."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from iceform.arithmetic import Interval
from iceform.arithmetic.balls import balls_of
from iceform.errors import BoundError, ProgramError
from iceform.expressions import LOSSES, Loss, ScalarFunction, loss_named
from iceform.expressions.extremes import concordance, extremes
from iceform.expressions.losses import Curvature, Labels, register

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


TWINS = {
    "log(cosh(4*z))/4": loss_named("absolute", width=0.25),
    "clip(z, -1, 1)*(z - clip(z, -1, 1)/2)": loss_named("huber"),
    "z^2/2": loss_named("squared"),
    "0.1*log(1 + exp(z/0.1)) - 0.3*z": loss_named("quantile", quantile=0.3, width=0.1),
}


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


def vars_of(loss):
    return {"derivative": loss.derivative, "facts": loss.facts}


@pytest.mark.parametrize(
    "loss",
    [loss_named(name) for name in LOSSES]
    + [loss_named("huber", delta=0.37), loss_named("quantile", quantile=0.9, width=0.03)],
    ids=lambda loss: f"{loss.name}{dict(loss.parameters or ())}",
)
def test_what_the_library_states_of_its_losses_is_true(loss):
    check_facts(loss)


def check_facts(loss):
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
    exactly = loss.derivative.balls
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


def test_a_name_is_not_what_is_saved():
    assert own("huber", "steep").to_config() is None
    assert loss_named("huber", delta=2.0).to_config() == {
        "name": "huber", "parameters": {"delta": 2.0},
    }  # fmt: skip


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
