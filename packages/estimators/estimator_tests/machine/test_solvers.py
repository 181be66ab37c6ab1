"""Loops of passes, and that nothing depends on the order or the units of the data."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from estimator_tests.algorithms.cases import CASES
from estimator_tests.machine import data
from iceform.errors import BoundError, IceformError
from iceform_estimators import algorithms
from iceform_estimators.algorithms import kinds
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.machine.solvers import PRECONDITIONERS

# Equal up to the two certificates, that is.
PROGRAMS = {name: replace(case.program, fit_intercept=True) for name, case in CASES.items()}


def fitted(name: str, x: torch.Tensor, y: torch.Tensor, chunk: int | None = None):
    return Machine(x.shape[1] + 1).run(PROGRAMS[name], ArraySource(x, y, chunk))


def table(name: str, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = data.normal(g, 60, 4)
    return x, CASES[name].labels(x, g)


# Huber's search for its scale fits many tables.
LONG = {"Huber": pytest.mark.slow}


def named(names) -> list:
    return [pytest.param(name, marks=LONG.get(name, ())) for name in names]


@pytest.mark.parametrize("name", named(PROGRAMS))
def test_chunks_rows_columns_and_units_do_not_matter(name):
    x, y = table(name)
    g = torch.Generator().manual_seed(9)
    base = fitted(name, x, y)
    bound = base.certificate.error
    assert bound < 1e-6 * float(1 + base.coef.abs().max())

    chunked = fitted(name, x, y, chunk=7)
    assert float((chunked.coef - base.coef).abs().max()) <= bound + chunked.certificate.error

    rows = torch.randperm(60, generator=g)
    mixed = fitted(name, x[rows], y[rows])
    assert float((mixed.coef - base.coef).abs().max()) <= bound + mixed.certificate.error

    columns = torch.randperm(4, generator=g)
    turned = fitted(name, x[:, columns].contiguous(), y)
    off = float((turned.coef - base.coef[columns]).abs().max())
    assert off <= bound + turned.certificate.error


SCALED = {
    "LeastSquares": lambda c: algorithms.LinearRegression(fit_intercept=True),
    "Ridge": lambda c: algorithms.Ridge(2.0, fit_intercept=True),
    "Lasso": lambda c: algorithms.Lasso(0.1 * c),
    "Huber": lambda c: algorithms.Huber(alpha=0.0),
    "Quantile": lambda c: algorithms.Quantile(0.3, width=0.2),
}


@pytest.mark.parametrize("name", named(SCALED))
@pytest.mark.parametrize("c", [1e-7, 37.0])
def test_scaled_labels_scale_the_coefficients(name, c):
    x, y = table("Ridge")
    machine = Machine(5)
    one, other = machine.run(SCALED[name](1.0), x, y), machine.run(SCALED[name](c), x, c * y)
    off = float((c * one.coef - other.coef).abs().max())
    rounding = 1e-14 * c * float(one.coef.abs().max())
    assert off <= c * one.certificate.error + other.certificate.error + rounding


@pytest.mark.parametrize("name", ["LeastSquares", "Quantile"])
def test_scaled_columns_unscale_the_coefficients(name):
    x, y = table(name)
    sizes = torch.tensor([1e-6, 1.0, 1e3, 1e7]).double()
    one, other = fitted(name, x, y), fitted(name, x * sizes, y)
    off = ((one.coef - other.coef * sizes).abs()).max()
    allowed = one.certificate.error * (1 + 1e-6) + 1e-9 * float(one.coef.abs().max())
    assert float(off) <= allowed


@pytest.mark.parametrize("how", PRECONDITIONERS)
@pytest.mark.parametrize("name", ["Ridge", "Lasso", "Logistic"])
def test_every_preconditioner_comes_to_the_same_end(name, how):
    x, y = table(name)
    program = replace(PROGRAMS[name], precondition=how, max_passes=5000)
    found = Machine(5).run(program, x, y)
    best = fitted(name, x, y)
    off = float((found.coef - best.coef).abs().max())
    assert off <= found.certificate.error + best.certificate.error
    assert found.converged
    assert found.certificate.error < 1e-5


def test_whitening_takes_few_passes_where_momentum_takes_many():
    g = torch.Generator().manual_seed(0)
    x = data.REGULAR["ill 1e4"](g)
    y = data.labels(x, g)
    passes = {
        how: Machine(6).run(
            algorithms.LinearRegression(
                fit_intercept=True, precondition=how, max_passes=300, tol=1e-9
            ), x, y,
        )
        for how in ("whiten", "none")
    }  # fmt: skip
    assert passes["whiten"].passes <= 12
    assert passes["whiten"].converged
    assert not passes["none"].converged
    off = float((passes["none"].coef - passes["whiten"].coef).abs().max())
    assert off <= passes["none"].certificate.error + passes["whiten"].certificate.error


def test_steps_across_the_ends_of_squares_are_shortened_to_where_the_objective_is_least():
    """Hardly more samples than coefficients, most of them outliers at the first scales."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 60))
    y = x @ draw.normal(size=60) + draw.standard_t(1.5, size=100)
    fit = Machine(61).run(algorithms.Huber(alpha=1e-6), torch.from_numpy(x), torch.from_numpy(y))
    assert fit.converged
    assert fit.passes < 600  # by halving 314, to another scale
    assert fit.certificate.error < 1e-5


def test_separable_classes_converge_by_their_penalty():
    g = torch.Generator().manual_seed(2)
    x = data.normal(g, 40, 2)
    y = (x[:, 0] > 0).double()
    fit = Machine(3).run(algorithms.Logistic(1e4), x, y)
    assert fit.converged
    assert fit.certificate.error < 1e-6 * float(fit.coef.abs().max())


def test_one_class_alone_has_no_optimum_and_no_certificate():
    """Its intercept runs away, which nothing but the last digit stops."""
    g = torch.Generator().manual_seed(2)
    x = data.normal(g, 30, 2)
    fit = Machine(3).run(algorithms.Logistic(max_passes=40), x, torch.ones(30).double())
    assert fit.errors["intercept"] == math.inf or float(fit.intercept) > 15


def test_exact_fits_and_constant_labels():
    g = torch.Generator().manual_seed(2)
    x = data.normal(g, 30, 2)
    for name in ("LeastSquares", "Ridge", "Lasso", "ElasticNet", "Huber"):
        fit = fitted(name, x, torch.full((30,), 7.0).double())
        assert float(fit.coef.abs().max()) <= 1e-10, name
        assert float(fit.intercept) == pytest.approx(7.0, rel=1e-9), name
    line = fitted("LeastSquares", x, x @ torch.tensor([3.0, -1.0]).double() + 2)
    assert line.coef.tolist() == pytest.approx([3.0, -1.0], rel=1e-14)


def test_a_penalty_that_is_too_large_leaves_nothing():
    x, y = table("Lasso")
    fit = Machine(5).run(algorithms.Lasso(1e3), x, y)
    assert not fit.coef.any()
    assert fit.parts["n_nonzero"] == 0
    assert fit.certificate.error < 1e-12
    bare = Machine(5).run(algorithms.Lasso(1e3, fit_intercept=False), x, y)
    assert not bare.coef.any()
    assert bare.certificate.error < 1e-12


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_options_that_are_out_of_range_are_refused_by_name(kind):
    for name, one in kind.options().items():
        wrong = ["magic"]
        if one.kind in (float, int):
            ends = (one.low, -1, "low"), (one.high, 1, "high")
            wrong += [math.nan, *(end + step for end, step, _ in ends if math.isfinite(end))]
            wrong += [end for end, _, side in ends if math.isfinite(end) and side in one.open]
        for value in wrong:
            with pytest.raises(IceformError, match=f"{name} must be .*got {value!r}"):
                kind(**{name: value})


BAD = {
    "logistic": r"labels in \[0, 1\], got 2.0",
    "svm": "labels -1 and \\+1, got 0.0",
    "perceptron": "labels -1 and \\+1, got 0.0",
    "poisson": "counts >= 0, got -1.0",
}


@pytest.mark.parametrize("name", BAD)
def test_labels_that_a_loss_does_not_take_are_refused(name):
    x = torch.randn(4, 2, dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 2.0, -1.0]).double()
    with pytest.raises(BoundError, match=BAD[name]):
        Machine(3).run(algorithms.named(name)(), x, y.abs() if name == "logistic" else y)


def test_predictions_check_their_samples():
    x, y = table("Ridge")
    fit = fitted("Ridge", x, y)
    with pytest.raises(IceformError, match=r"shape \(n, 4\), got \(60, 3\)"):
        fit.predict(x[:, :3])
    with pytest.raises(BoundError, match="a prediction is nan"):
        fit.predict(x * math.nan)
    assert fit.predict(x[:0]).shape == (0,)
    torch.testing.assert_close(fit.predict(x), x @ fit.coef + fit.intercept, rtol=0, atol=1e-12)
