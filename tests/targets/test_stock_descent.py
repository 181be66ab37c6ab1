"""Programs that are descent, recognised and written as gpt2, llama and a two-layer bert."""

from fractions import Fraction

import pytest
import torch

import iceform as ice
from iceform.computer.library import ALGORITHMS, gradient_descent
from iceform.targets.recognised import recognised

from .stock import data, transformers


@ice.algorithm
def apart(x, y, *, lr=0.25, steps=4):
    """The gradient in two means, everything scaled on the way."""
    b, w = ice.mean(2.0 * x * y), ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - (lr / 4.0) * (4.0 * ice.mean(x * (x * w).sum()) - 2.0 * b)
    return w


@ice.algorithm
def heavy(x, y, *, lr=0.25, beta=0.5, decay=0.0625, steps=4):
    w, v = ice.zeros_like(x), ice.zeros_like(x)
    for _ in ice.repeat(steps):
        v = beta * v - lr * ice.mean(x * ((x * w).sum() - y)) - decay * w
        w = w + v
    return w


@ice.algorithm
def uneven(x, y, *, lr=0.5):
    w = ice.zeros_like(x)
    for rho in (1.0, 1.75, 0.5):
        w = w - rho * lr * ice.mean(x * ((x * w).sum() - y))
    return w


@ice.algorithm
def bent(x, y, *, lr=0.5, steps=2):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * torch.tanh(2.0 * ((x * w).sum() - y)))
    return w


def found(algorithm, **settings):
    return recognised(algorithm.graph(2), algorithm.values(2, settings))


@pytest.mark.parametrize(
    ("algorithm", "steps", "penalty", "momentum", "f"),
    [
        (ALGORITHMS["least_squares"], [0.25] * 4, 0, 0, None),
        (apart, [0.25] * 4, 0, 0, None),
        (ALGORITHMS["ridge"], [0.25] * 4, Fraction(0.1), 0, None),
        (heavy, [0.25] * 4, 0.25, 0.5, None),
        (uneven, [0.25, 0.4375, 0.125], 0, 0, None),
        (bent, [0.25] * 4, 0, 0, "tanh(2*z)"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_descent_is_recognised_however_it_is_written(algorithm, steps, penalty, momentum, f):
    given = {"lr": 0.25, **({"steps": 4} if "steps" in algorithm.parameters else {})}
    got = found(algorithm, **given)
    assert [float(s) for s in got.steps] == steps
    assert (got.penalty, got.momentum, got.f) == (penalty, momentum, f)


@ice.algorithm
def biased(x, y, *, lr=0.25):
    return ice.zeros_like(x) - lr * ice.mean(x * (0.5 - y))


@ice.algorithm
def upwards(x, y, *, lr=0.25):
    return ice.zeros_like(x) + lr * ice.mean(x * ((x * ice.zeros_like(x)).sum() - y))


@ice.algorithm
def elsewhere(x, y, *, lr=0.25):
    w = lr * ice.mean(x * y)
    return 0.5 * w - lr * ice.mean(x * ((x * w).sum() - y)) + lr * ice.mean(x * (x * w).sum())


@ice.algorithm
def two_rates(x, y, *, lr=0.25):
    w = ice.zeros_like(x)
    for penalty in (0.0, 0.5, 0.25, 0.5):
        w = w - lr * (ice.mean(x * ((x * w).sum() - y)) + penalty * w)
    return w


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (ALGORITHMS["nesterov"], "the gradient taken at w"),
        (ALGORITHMS["lasso"], "no part of a gradient step"),
        (ALGORITHMS["logistic"], "no part of a gradient step"),
        (ALGORITHMS["conjugate_gradients"], "mul of these"),
        (ALGORITHMS["bisection"], "ends when the data say so"),
        (biased, "the mean of x"),
        (upwards, "does not go down"),
        (elsewhere, "does not go down"),
        (two_rates, "one penalty for all steps"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_not_descent_is_refused(algorithm, why):
    with pytest.raises(ice.errors.TargetError, match=why):
        found(algorithm, **({"steps": 4} if "steps" in algorithm.parameters else {}))


@pytest.mark.parametrize(
    ("algorithm", "name", "given", "later", "bound"),
    [
        (heavy, "gpt2", {}, {"beta": 0.25, "lr": 0.125}, 1e-11),
        (uneven, "gpt2", {}, {"lr": 0.375}, 1e-11),
        (heavy, "llama", {"dtype": "float32", "steps": 2}, {"lr": 0.125}, 1e-4),
        (bent, "bert", {"mode": "descent"}, {"lr": 0.25}, 1e-10),
        (bent, "albert", {"mode": "descent"}, {"lr": 0.25}, 1e-10),
    ],
    ids=["gpt2", "uneven", "llama", "bert", "albert"],
)
def test_a_program_that_is_descent_is_written(algorithm, name, given, later, bound, tmp_path):
    program = ice.compile(algorithm, dim=2, samples=9, eps=0.1)
    model = program.to(name, tmp_path, **given)
    network = transformers.AutoModel.from_pretrained(tmp_path)
    assert network.config.model_type == name
    settings = {k: v for k, v in given.items() if k in algorithm.parameters}
    x, y = data()
    for more in ({}, later):
        with torch.no_grad():
            hidden = network(inputs_embeds=model.prompt(x, y, **more)).last_hidden_state
        exact = program.reference(x, y, **{**settings, **more})
        assert float((model.read(hidden) - exact).abs().max()) <= bound
        found = model.check(x, y, **more)
        assert found.ok
        assert found.certificate.error <= bound


def test_numbers_that_are_no_float_are_enclosed_run_by_run(tmp_path):
    pytest.importorskip("flint", reason="runs are enclosed in balls, which needs python-flint")
    model = ice.compile(heavy, dim=2, samples=9, eps=0.1).to("gpt2", tmp_path, steps=3)
    x, y = data()
    before, after = model.check(x, y), model.check(x, y, lr=0.3)  # penalty = 0.0625/0.3
    assert before.enclosure is None
    assert "balls" in after.enclosure.derivation[0].why
    assert before.ok
    assert after.ok
    assert after.enclosure.error <= 1e-13
    assert after.certificate.error >= before.certificate.error


def test_other_steps_than_those_in_the_weights_are_refused(tmp_path):
    model = ice.compile(heavy, dim=2, samples=9, eps=0.1).to("gpt2", tmp_path, steps=2)
    with pytest.raises(ice.errors.TargetError, match="holds 2 steps"):
        model.prompt(*data(), steps=3)


def test_a_penalty_that_the_layers_have_no_place_for_is_refused_later_too(tmp_path):
    """It was left out of the prompt: an answer of another program, called the program's."""

    @ice.algorithm
    def shrinking(x, y, *, lr=0.5, decay=0.0):
        w = ice.zeros_like(x)
        for _ in range(2):
            w = w - lr * ice.mean(x * torch.tanh((x * w).sum() - y)) - decay * w
        return w

    model = ice.compile(shrinking, dim=2, samples=9, eps=0.1).to("bert", tmp_path, mode="descent")
    assert model.check(*data()).ok
    with pytest.raises(ice.errors.TargetError, match="takes steps with a penalty"):
        model.prompt(*data(), decay=0.25)


def test_a_nonlinear_f_is_refused_under_a_causal_mask(tmp_path):
    program = ice.compile(gradient_descent(torch.tanh), dim=2, samples=4, eps=0.1)
    with pytest.raises(ice.errors.TargetError, match="hides the state from the samples"):
        program.to("gpt2", tmp_path / "no", steps=2)
    lasso = ice.compile(ALGORITHMS["lasso"], dim=2, samples=4, eps=0.1)
    with pytest.raises(ice.errors.TargetError, match="never see the state"):
        lasso.to("gpt2", tmp_path / "no", steps=2)
    assert not (tmp_path / "no").exists()
