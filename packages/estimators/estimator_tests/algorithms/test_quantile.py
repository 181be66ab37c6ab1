"""Quantile regression with a sharp corner, against the linear program that it is."""

import flint
import numpy as np
import pytest
import torch
from scipy import special
from scipy.optimize import linprog
from sklearn.linear_model import QuantileRegressor

from estimator_tests.exact import verify
from iceform_estimators import algorithms
from iceform_estimators.algorithms import pinball
from iceform_estimators.machine import ArraySource, Machine


def data(n, d, seed, outliers=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = x @ np.arange(1.0, d + 1) + rng.normal(size=n)
    y[rng.choice(n, n // 50, replace=False)] += outliers
    return torch.from_numpy(x), torch.from_numpy(y)


def program(x, y, q):
    """Coefficients and intercept of the linear program, exact: its active samples, solved."""
    n, d = x.shape
    a = np.c_[x.numpy(), np.ones(n)]
    costs = np.r_[np.zeros(d + 1), np.full(n, q), np.full(n, 1 - q)]
    found = linprog(
        costs, A_eq=np.c_[a, np.eye(n), -np.eye(n)], b_eq=y.numpy(),
        bounds=[(None, None)] * (d + 1) + [(0, None)] * (2 * n), method="highs",
    )  # fmt: skip
    active = np.abs(a @ found.x[: d + 1] - y.numpy()).argsort()[: d + 1]
    flint.ctx.dps = 80
    rows = flint.arb_mat([[flint.arb(float(v)) for v in a[i]] for i in active])
    line = rows.solve(flint.arb_mat([[flint.arb(float(y[i]))] for i in active]))
    return [line[j, 0] for j in range(d + 1)]


def off(fit, exact):
    found = [*fit.coef.tolist(), float(fit.parts["intercept"])]
    return [float(abs(flint.arb(a) - b).abs_upper()) for a, b in zip(found, exact, strict=True)]


def pairwise():
    """Every two of size, quantile and outliers meet; the others are for `make test-all`."""
    for i, (n, d) in enumerate([(120, 1), (301, 9), (200, 4)]):
        for j, q in enumerate([0.5, 0.1, 0.9]):
            for k, outliers in enumerate([0.0, 1e3, 1e5]):
                quick = i < 2 and (i + j + k) % 2 == 0
                yield pytest.param(n, d, q, outliers, marks=() if quick else pytest.mark.slow)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("n", "d", "q", "outliers"), list(pairwise()))
def test_the_answer_is_the_linear_program_s(n, d, q, outliers):
    x, y = data(n, d, seed=n + d, outliers=outliers)
    fit = Machine(d + 1).run(algorithms.Quantile(q), x, y)
    *coef, intercept = off(fit, program(x, y, q))
    assert max(coef) <= fit.certificate.error <= 1e-13 * (1 + outliers)
    assert intercept <= fit.errors["intercept"]
    assert fit.certificate.kind == "proven"
    assert not fit.certificate.assumptions
    assert "objective" not in fit.certificate.domain, "the corner is sharp"
    below = (y < x @ fit.coef + fit.parts["intercept"] - 1e-9 * (1 + outliers)).double().mean()
    assert abs(float(below) - q) <= (d + 1) / n


@pytest.mark.parametrize("away", [0.0, 1e4, -1e6])
@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_the_line_is_known_to_the_last_digit_wherever_the_samples_lie(alpha, away):
    x, y = data(150, 3, seed=5)
    x = x + away
    fit = Machine(4).run(algorithms.Quantile(0.4, alpha=alpha), x, y)
    assert fit.certificate.error <= 2**-52 * float(fit.coef.abs().max())
    assert fit.errors["intercept"] <= 2**-52 * abs(float(fit.intercept))
    assert verify(fit.certificate).holds
    assert (
        fit.certificate.terms["rounding"] > 1e3 * fit.certificate.terms["distance to the optimum"]
    )


def test_what_is_solved_again_is_bounded_by_what_it_is_off_by():
    """Of a matrix that float64 hardly inverts, and of one that it does not."""
    n = 6
    hilbert = [[1.0 / (i + j + 1) for j in range(n)] for i in range(n)]
    x, y = torch.tensor(hilbert, dtype=torch.float64), torch.arange(1.0, n + 1).double()
    flint.ctx.dps = 80
    rows = flint.arb_mat([[flint.arb(v) for v in row] for row in x.tolist()])
    exact = rows.solve(flint.arb_mat([[flint.arb(v)] for v in y.tolist()]))
    found, off = pinball.solved(ArraySource(x, y), torch.zeros(n).double())
    for j in range(n):
        value = flint.arb(float(found.hi[j])) + flint.arb(float(found.lo[j]))
        assert abs(value - exact[j, 0]) <= flint.arb(float(off[j]))
        assert float(off[j]) <= 1e-18 * abs(float(found.hi[j]))
    x[-1] = x[0] + 1e-17 * x[1]
    assert pinball.solved(ArraySource(x, y), torch.zeros(n).double()) is None


def test_a_rounded_corner_is_said_to_be_one():
    x, y = data(100, 2, seed=1)
    machine = Machine(3)
    assert (
        "0.05 deviations"
        in machine.run(algorithms.Quantile(0.5, width=0.05), x, y).certificate.domain["objective"]
    )
    fit = machine.run(algorithms.Quantile(0.5, alpha=0.1, width=0.2), x, y)
    assert "0.2 deviations" in fit.certificate.domain["objective"]
    assert verify(fit.certificate).holds


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("q", "alpha"), [(0.5, 0.1), (0.27, 0.03), (0.9, 0.1), (0.33, 5.0)])
def test_a_penalty_is_on_absolute_values_and_its_zeros_are_proven(q, alpha, intercept):
    x, y = data(121, 4, seed=4)
    y = y - x @ torch.tensor([1.0, 2.0, 0.0, 0.0], dtype=torch.float64)  # two features say nothing
    weights = torch.from_numpy(np.random.default_rng(4).uniform(0.5, 2, len(y)))
    for given in (None, weights):
        model = algorithms.Quantile(q, alpha=alpha, fit_intercept=intercept)
        fit = Machine(5).run(model, ArraySource(x, y, weights=given))
        theirs = QuantileRegressor(quantile=q, alpha=alpha, fit_intercept=intercept)
        theirs.fit(x, y, sample_weight=None if given is None else given.numpy())
        assert "objective" not in fit.certificate.domain
        assert ((fit.coef == 0).numpy() == (np.abs(theirs.coef_) < 1e-12)).all()
        np.testing.assert_allclose(fit.coef.numpy(), theirs.coef_, rtol=0, atol=1e-10)
        assert float(fit.intercept) == pytest.approx(theirs.intercept_, abs=1e-10)
        assert verify(fit.certificate).holds
    assert bool((fit.coef == 0).any())


@pytest.mark.parametrize("kind", ["even", "on a grid"])
def test_where_no_line_is_the_only_one_nothing_is_claimed_of_the_sharp_corner(kind):
    x, y = data(40, 1, seed=3)
    if kind == "even":  # every line between two samples is as good: the feature says nothing
        x = torch.zeros_like(x)
    else:
        x, y = (2 * x).round(), (2 * y).round()
    certificate = Machine(2).run(algorithms.Quantile(), x, y).certificate
    assert "rounded" in certificate.domain["objective"]
    if kind == "even":  # of the other nothing is bounded but the objective
        penalised = Machine(2).run(algorithms.Quantile(alpha=0.05), x, y).certificate
        assert "rounded" in penalised.domain["objective"]
        assert verify(certificate).holds
        assert verify(penalised).holds


def test_samples_that_occur_twice_are_the_same_line():
    x, y = data(41, 1, seed=3)
    once = Machine(2).run(algorithms.Quantile(), x, y)
    twice = Machine(2).run(algorithms.Quantile(), torch.cat([x, x]), torch.cat([y, y]))
    for found in (once, twice):
        assert "objective" not in found.certificate.domain
    apart = float((once.coef - twice.coef).abs().max())
    assert apart <= once.certificate.error + twice.certificate.error


@pytest.mark.parametrize("moved", [1e-3, 0.1, 3.0])
def test_a_line_through_other_samples_is_not_taken_for_the_optimum(moved):
    """It goes through as many samples; only their weights tell."""
    x, y = data(80, 2, seed=5)
    machine = Machine(3)
    problem = algorithms.Quantile().problem(machine.start(), ArraySource(x, y))
    best = machine.run(algorithms.Quantile(), x, y)
    exact = program(x, y, 0.5)
    coef = (best.coef - torch.tensor([0.0, moved], dtype=torch.float64)) * problem.scaling.scale
    constant = best.parts["intercept"] + problem.scaling.mean @ best.coef - problem.scaling.center
    w = torch.cat([coef, constant[None]]) / problem.scaling.size
    vertex = pinball.through_samples(problem, w, 0.5)
    if vertex is not None:  # it was found all the same
        found, _ = problem.scaling.raw(vertex.solution.w)
        assert (
            max(abs(a - float(b.mid())) for a, b in zip(found.tolist(), exact, strict=False))
            < 1e-12
        )
    else:
        assert moved > 1e-3


def odd(kind):
    """Data that a penalised quantile is asked of."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(120, 6))
    y = x @ np.arange(6.0) + rng.normal(size=120)
    match kind:
        case "indicators, labels far from 0":
            x = (rng.random((300, 60)) < rng.uniform(0.02, 0.3, 60)).astype(float)
            y = 12 + 0.1 * x @ rng.normal(size=60) + 0.2 * rng.normal(size=300)
        case "outliers":
            y[:3] += 1e5
        case "a sum of others":
            x = np.c_[x, x[:, 0] + x[:, 1]]
        case "a copy":
            x = np.c_[x, x[:, 5]]
        case "more columns than rows":
            x = rng.normal(size=(30, 60))
            y = 3 * x[:, 0] + rng.normal(size=30)
        case "scales":
            x = x * 10.0 ** np.arange(-4, 2)
        case "on a grid":
            x, y = x.round(), y.round()
    return torch.from_numpy(x), torch.from_numpy(y)


ODD = (
    "indicators, labels far from 0", "outliers", "a sum of others", "a copy",
    "more columns than rows", "scales", "on a grid",
)  # fmt: skip


def value(x, y, coef, intercept, q, alpha):
    z = y - x @ coef - intercept
    return float(torch.maximum(q * z, (q - 1) * z).mean() + alpha * coef.abs().sum())


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(("q", "alpha"), [(0.5, 0.05), (0.9, 0.003)])
def test_a_penalised_line_is_the_best_of_odd_data(kind, q, alpha):
    """Proven of the sharp problem: its coefficients, or how far it is above the least value."""
    x, y = odd(kind)
    fit = Machine(x.shape[1] + 1).run(algorithms.Quantile(q, alpha=alpha), x, y)
    theirs = QuantileRegressor(quantile=q, alpha=alpha).fit(x, y)
    coef, intercept = torch.from_numpy(theirs.coef_), float(theirs.intercept_)
    best = value(x, y, coef, intercept, q, alpha)
    above = value(x, y, fit.coef, fit.intercept, q, alpha) - best
    if "objective" in fit.certificate.domain:
        assert above - 1e-9 * best <= fit.certificate.excess.bound <= 0.01 * best
    else:
        assert abs(above) <= 1e-9 * best
        assert fit.certificate.error <= 1e-12 * (1 + float(fit.coef.abs().max()))
        np.testing.assert_allclose(fit.coef, theirs.coef_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("width", [0.05, 0.005])
def test_a_penalised_line_with_a_rounded_corner_is_proven(kind, width):
    x, y = odd(kind)
    q, alpha = 0.9, 0.003
    fit = Machine(x.shape[1] + 1).run(algorithms.Quantile(q, alpha=alpha, width=width), x, y)
    assert fit.converged
    if kind == "a copy":  # which of the two has how much is open
        assert fit.certificate.excess.bound <= 1e-6
    else:
        assert fit.certificate.error <= 1e-5 * (1 + float(fit.coef.abs().max()))
    # The optimum's conditions, in numpy.
    z, size = (x @ fit.coef + fit.intercept - y).numpy(), y.std(correction=0).item()
    slope = special.expit(z / (width * size)) - q
    gradient = np.r_[x.numpy().T @ slope, slope.sum()] / len(z)
    w, limit = np.r_[fit.coef.numpy(), 0.0], np.r_[np.full(len(fit.coef), alpha), 0.0]
    beyond = np.maximum(np.abs(gradient) - limit, 0)
    pulls = np.where(w == 0, beyond, gradient + limit * np.sign(w))
    scale = np.r_[np.abs(x.numpy()).max(0), 1.0]
    assert np.abs(pulls / scale).max() <= 1e-6 * alpha


def test_the_least_value_of_the_sharp_problem_is_bounded_by_its_dual():
    """Of any line, however bad."""
    x, y = odd("on a grid")
    model, machine = algorithms.Quantile(0.7, alpha=0.01), Machine(7)
    problem = model.problem(machine.start(), ArraySource(x, y))
    thresholds = model.thresholds(problem.scaling)
    theirs = QuantileRegressor(quantile=0.7, alpha=0.01).fit(x, y)
    best = value(x, y, torch.from_numpy(theirs.coef_), theirs.intercept_, 0.7, 0.01)
    for seed in range(20):
        w = torch.from_numpy(np.random.default_rng(seed).normal(size=7)) * 10.0 ** -(seed % 5)
        told = pinball.sharply(problem, w, thresholds, 0.7).bound
        above = value(x, y, *problem.scaling.raw(w), 0.7, 0.01) - best
        assert above <= told * (1 + 1e-9)


def test_an_excess_is_in_units_of_the_labels():
    """Labels c times as large make the loss c times as large, and not c^2."""
    x, y = data(40, 3, 5)
    x = torch.cat([x, x[:, :1] + 1e-9 * y[:, None]], 1)  # no curvature tells the first two apart
    model = algorithms.Quantile(0.5, width=0.05)
    found = [Machine(5).run(model, ArraySource(x, c * y)) for c in (1.0, 2.0**-20)]
    large, small = (run.certificate.excess.bound for run in found)
    assert large > 0
    assert small == large * 2.0**-20
