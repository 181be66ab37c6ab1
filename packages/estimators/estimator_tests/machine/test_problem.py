"""One pass of the machine is the gradient."""

import pytest
import torch

from estimator_tests.machine import data
from iceform.errors import PrecisionError
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.machine import problem as problems
from iceform_estimators.machine.problem import Encoding

MODELS = {
    "squared": algorithms.Lasso(0.1),
    "logistic": algorithms.Logistic(1.0),
    "squared_hinge": algorithms.LinearSVM(1.0),
    "poisson": algorithms.Poisson(0.1),
    "quantile": algorithms.Quantile(0.3, width=0.2),
}


def prepared(name: str, chunk: int | None = None):
    g = torch.Generator().manual_seed(1)
    x = data.normal(g, 40, 3)
    y = (x[:, 0] > 0).double()
    y = 2 * y - 1 if name == "squared_hinge" else y
    return MODELS[name].problem(Machine(4).start(), ArraySource(x, y, chunk)), g


def by_autograd(problem, w: torch.Tensor) -> torch.Tensor:
    samples, labels, offsets = problem.encoding(problem.source.x, problem.source.y)
    f = problem.loss.derivative(samples @ w - labels)
    return (f - offsets) @ samples / len(samples) + problem.ridge * w


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_is_the_gradient_within_the_look_ups_error(name):
    problem, g = prepared(name)
    for size in (0.0, 0.3, 2.0):
        w = size * data.normal(g, problem.dim)
        got = problem.gradient(w)
        samples, _, _ = problem.encoding(problem.source.x, problem.source.y)
        allowed = problem.floor * samples.abs().mean(0) + 1e-12
        assert bool(((got - by_autograd(problem, w)).abs() <= allowed).all())


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_is_what_literal_prompts_add_up_to(name):
    """The definition: every chunk written token by token, read by the frozen matrices."""
    problem, g = prepared(name)
    w = 0.3 * data.normal(g, problem.dim)
    fused = problem.gradient(w)
    table = problem.table.on(problem.covered)
    samples, labels, offsets = problem.encoding(problem.source.x, problem.source.y)
    running, total = problem.machine, torch.zeros_like(w)
    for part in torch.split(torch.arange(len(samples)), running.machine.samples):
        asked = running.look_ups(table, samples[part], labels[part], w)
        out = running.machine.network(asked.tokens)[0, : len(part)]
        total = total + out[:, : problem.dim].sum(0) - offsets[part] @ samples[part]
    literal = total / len(samples) + problem.ridge * w
    assert float((fused - literal).abs().max()) <= 1e-7 * float(1 + fused.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_chunks_do_not_change_a_pass(name):
    (whole, g), (parts, _) = prepared(name), prepared(name, chunk=7)
    w = data.normal(g, whole.dim)
    a, b = whole.gradient(w), parts.gradient(w)
    samples, _, _ = whole.encoding(whole.source.x, whole.source.y)
    allowed = 2 * whole.floor * samples.abs().mean(0) + 1e-13
    assert bool(((a - b).abs() <= allowed).all())
    torch.testing.assert_close(whole.hessian(w), parts.hessian(w), rtol=1e-12, atol=1e-13)


def test_tables_widen_with_the_residuals_and_stay_wide_only_when_kept():
    problem, _g = prepared("squared")
    before = problem.covered
    far = 100 * torch.ones(problem.dim).double()
    problem.gradient(far, trial=True)
    assert problem.covered == before
    passes = problem.passes
    problem.gradient(far)
    assert problem.covered > before
    problem.gradient(far)
    assert problem.passes == passes + 3, "a table once widened is not widened again"


def test_a_divergent_iteration_is_refused(monkeypatch):
    problem, _ = prepared("squared")
    monkeypatch.setattr(problems, "_WIDENINGS", 1)
    with pytest.raises(PrecisionError, match="the iteration diverges"):
        problem.gradient(1e9 * torch.ones(problem.dim).double())


def test_encodings():
    g = torch.Generator().manual_seed(0)
    x, y = data.normal(g, 6, 2), torch.tensor([0.0, 1, 2, 2, 1, 0]).double()
    scaling = algorithms.Logistic().scaling(ArraySource(x, y))
    samples, labels, offsets = Encoding(scaling, "glm", positive=2.0)(x, y)
    assert offsets.tolist() == [0, 0, 1, 1, 0, 0]
    assert not labels.any()
    turned, _, none = Encoding(scaling, "margin", positive=2.0)(x, y)
    assert torch.equal(turned, samples * torch.tensor([-1.0, -1, 1, 1, -1, -1])[:, None])
    assert not none.any()
