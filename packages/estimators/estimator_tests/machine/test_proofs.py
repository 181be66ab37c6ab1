"""Proofs are made after the fact: they must hold wherever they are asked for."""

import math
from dataclasses import replace
from types import SimpleNamespace

import flint
import pytest
import torch

from estimator_tests.algorithms.cases import CASES
from estimator_tests.exact import verify
from estimator_tests.machine import data
from estimator_tests.machine.exact import NoOptimumError, apart, numbers
from iceform_estimators import algorithms
from iceform_estimators.algorithms.elastic_net import prove_sparse
from iceform_estimators.algorithms.huber import _prove, _Scale
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.machine.problem import Metric, metric_of
from iceform_estimators.machine.proofs import DEPENDENT, enclose, lower, prove

SMOOTH = ["LeastSquares", "Ridge", "Quantile", "Logistic", "Poisson", "LinearSVM"]
KINDS = ["normal", "ill 1e4", "offset 1e6", "mixed sizes", "few samples"]
AWAY = [0.0, 1e-12, 1e-8, 1e-5, 1e-3, 0.1, 1.0, 30.0]


def prepared(name: str, kind: str, seed: int):
    g = torch.Generator().manual_seed(1000 * seed + 7)
    x = (data.REGULAR | data.DEPENDENT)[kind](g)
    y = CASES[name].labels(x, g)
    program = replace(CASES[name].program, fit_intercept=True)
    fit = Machine(x.shape[1] + 1).run(program, x, y)
    coef, intercept = CASES[name].exact(program, x, y, fit)
    return g, x, y, program, fit, [*coef, intercept]


def wrong_points(w: torch.Tensor, g: torch.Generator):
    for far in AWAY:
        yield far, w + far * data.normal(g, len(w))
    yield math.inf, torch.zeros_like(w)


def check(proof, scaling, w, exact, what) -> bool:
    coef, intercept = scaling.raw(w)
    bounds = proof.bounds(scaling.functionals()).tolist()
    rounding = [4 * 2.0**-53 * abs(float(c)) for c in coef]
    rounding.append(float(scaling.intercept_slip(coef, intercept)))
    returned = [*numbers(coef), *numbers(intercept)]
    for j, (got, want) in enumerate(zip(returned, exact, strict=True)):
        off = float(abs(got - want).abs_upper())
        assert off <= bounds[j] + rounding[j], (what, j, off, bounds[j])
    return all(map(math.isfinite, bounds))


@pytest.mark.parametrize("name", SMOOTH)
def test_proofs_hold_at_wrong_points(name):
    """And are not empty: near the optimum a bound is always found."""
    found = 0
    for kind in KINDS:
        try:
            g, x, y, program, fit, exact = prepared(name, kind, 0)
        except NoOptimumError:
            continue
        problem = program.problem(Machine(x.shape[1] + 1).start(), ArraySource(x, y, chunk=17))
        for far, w in wrong_points(scaled(problem.scaling, fit), g):
            found += check(prove(problem, w), problem.scaling, w, exact, (name, kind, far))
    assert found >= len(KINDS), found


def scaled(scaling, fit):
    """The coefficients on scaled data."""
    w = fit.coef * scaling.scale / scaling.size
    constant = (fit.intercept - scaling.center + scaling.mean @ fit.coef) / scaling.size
    return torch.cat([w, constant.reshape(1)])


@pytest.mark.parametrize("name", ["Lasso", "ElasticNet"])
def test_sparse_proofs_hold_at_wrong_points(name):
    """A wrong intercept must not prove coefficients zero, nor must a wrong sign."""
    finite = 0
    for kind in [*KINDS, "collinear", "wide"]:
        try:
            g, x, y, program, fit, exact = prepared(name, kind, 0)
        except NoOptimumError:
            continue
        problem = program.problem(Machine(x.shape[1] + 1).start(), ArraySource(x, y, chunk=17))
        scaling = problem.scaling
        t = program.alpha * program.l1_ratio / (scaling.scale * scaling.size)
        thresholds = torch.cat([t, t.new_zeros(1)])
        best = scaled(scaling, fit)
        for far, away in wrong_points(best, g):
            kept = torch.where(best == 0, best, away)  # the zeros stay
            shifted = best.clone()
            shifted[-1] += min(far, 1e3)  # only the intercept is wrong
            for w in (away, kept, shifted):
                proof = prove_sparse(problem, w, thresholds)
                whole = expand(proof, len(w))
                finite += check(whole, scaling, w, exact, (name, kind, far))
    assert finite >= len(KINDS), finite


def expand(proof, dim):
    """Bounds for all functionals: coefficients that are proven zero are exact."""

    def bounds(functionals):
        if not math.isfinite(proof.radius):
            return torch.full((len(functionals),), math.inf, dtype=torch.float64)
        return proof.bounds(functionals)

    return SimpleNamespace(bounds=bounds)


def test_hubers_proof_holds_at_wrong_points_and_scales():
    finite = 0
    for kind in ["normal", "mixed sizes"]:
        g, x, y, program, fit, exact = prepared("Huber", kind, 0)
        search = _Scale(program, Machine(x.shape[1] + 1).start(), ArraySource(x, y, chunk=17))
        sigma = fit.parts["scale"] / search.base.size
        for far in (0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.3):
            moved = sigma * (1 + far * float(data.normal(g, 1)))
            if not moved > 0:
                continue
            problem = search.problem(moved)
            best = scaled(problem.scaling, fit)
            w = best + far * data.normal(g, len(best))
            proof = _prove(search, w, moved)
            finite += check(proof, problem.scaling, w, exact, (kind, far))
    assert finite >= 4, finite


def test_the_gradient_is_enclosed():
    """Against exact arithmetic, at points near and far."""
    from estimator_tests.machine.exact import ExactLoss, ExactModel

    g = torch.Generator().manual_seed(5)
    for kind in ("normal", "offset 1e6", "mixed sizes", "huge 1e8"):
        x = data.REGULAR[kind](g)
        y = CASES["Logistic"].labels(x, g)
        program = algorithms.Logistic(1.0)
        problem = program.problem(Machine(x.shape[1] + 1).start(), ArraySource(x, y, chunk=13))
        for size in (0.0, 1.0, 30.0):
            w = size * data.normal(g, problem.dim)
            gradient, error, hessian, slips = enclose(problem, w)
            model = ExactModel.of(
                x, y, ExactLoss.named("logistic"), 1 / len(x), intercept=True, kind="glm"
            )
            model = rescaled(model, x, problem.scaling)
            exact = model.gradient(numbers(w))
            for j, want in enumerate(exact):
                off = float(abs(numbers(gradient)[j] - want).abs_upper())
                assert off <= float(error[j]), (kind, size, j, off, float(error[j]))
            bent = model.hessian(numbers(w))
            for j in range(problem.dim):
                for k in range(problem.dim):
                    off = float(abs(numbers(hessian[j, k])[0] - bent[j, k]).abs_upper())
                    allowed = float((slips[j] * slips[k]).sqrt())
                    assert off <= allowed, (kind, size, j, k, off, allowed)


def rescaled(model, x, scaling):
    """The exact model in the coordinates of ``scaling``."""
    from flint import arb

    mean, scale = numbers(scaling.mean), numbers(scaling.scale)
    rows = [
        [(arb(v) - m) / c for v, m, c in zip(row, mean, scale, strict=True)] + [arb(1)]
        for row in x.tolist()
    ]
    ridge = [arb(1) / len(x) / c**2 for c in scale] + [arb(0)]
    return replace(model, rows=rows, l2=ridge, mean=mean, scale=scale)


# ------------------------------------------------------------------------------------- metrics


def test_a_metric_is_the_matrix_whatever_the_units():
    g = torch.Generator().manual_seed(0)
    a = data.normal(g, 30, 5) * torch.logspace(-9, 9, 5, dtype=torch.float64)
    h = a.mT @ a / 30
    metric = metric_of(h, 30)
    assert metric.whole
    sizes = h.diagonal().sqrt()
    assert float(((metric.factor @ metric.factor.mT - h).abs() / sizes / sizes[:, None]).max()) < (
        1e-14 * metric.condition
    )
    w = data.normal(g, 5) / sizes
    assert metric.size(w) == pytest.approx(float((a @ w).norm()) / 30**0.5, rel=1e-12)
    gradient = h @ w
    step = metric.whitener @ (metric.whitener.mT @ gradient)
    torch.testing.assert_close(step * sizes, w * sizes, rtol=1e-10, atol=1e-12)
    assert metric.norm(gradient) == pytest.approx(metric.size(w), rel=1e-10)
    assert metric.largest == pytest.approx(float(torch.linalg.eigvalsh(h)[-1]), rel=1e-12)


def test_directions_that_nothing_sees_are_found():
    g = torch.Generator().manual_seed(0)
    x = data.DEPENDENT["collinear"](g) * torch.tensor([1e-3, 1.0, 1e5, 1.0]).double()
    metric = metric_of(x.mT @ x / 40, 40)
    assert (metric.rank, metric.whole) == (3, False)
    null = metric.null()
    assert float((x @ null).abs().max() / (x.abs() @ null.abs()).max()) < 1e-12
    assert float((x @ metric.unseen(data.normal(g, 4))).abs().max()) < 1e-9
    assert metric_of(torch.zeros(0, 0).double(), 5).whole
    assert metric_of(torch.zeros(2, 2).double(), 5).rank == 0


def test_a_lowered_metric_lies_below_every_matrix_it_may_stand_for():
    g = torch.Generator().manual_seed(0)
    a = data.normal(g, 30, 4)
    h = a.mT @ a
    slips = 1e-3 * h.diagonal()
    below = lower(metric_of(h, 30), slips)
    assert isinstance(below, Metric)
    lowered = below.factor @ below.factor.mT
    for _ in range(50):
        noise = (2 * torch.rand(4, 4, generator=g, dtype=torch.float64) - 1).sign()
        noise = torch.triu(noise) + torch.triu(noise, 1).mT
        moved = h + noise * (slips[:, None] * slips).sqrt()
        assert float(torch.linalg.eigvalsh(moved - lowered)[0]) >= -1e-12 * float(h.trace())
    assert lower(metric_of(h, 30), h.diagonal()) is None


@pytest.mark.parametrize("apart_by", [1e-5, 1e-8, 1e-10, 1e-12, 1e-13, 3e-14])
def test_nearly_dependent_features_are_told_apart(apart_by):
    """A Gram matrix hides what is closer than 1e-7; the samples show it."""
    g = torch.Generator().manual_seed(3)
    x = data.normal(g, 50, 3)
    x[:, 2] = x[:, 0] + apart_by * x[:, 2]
    y = data.normal(g, 50)
    fit = Machine(4).run(algorithms.LinearRegression(fit_intercept=True), x, y)
    exact = least_squares(x, y)
    off = apart(fit.coef, exact[:3])
    assert off <= fit.certificate.error <= 100 * off + 1e-12 * float(fit.coef.abs().max())
    assert fit.certificate.kind == "proven"
    assert not fit.certificate.assumptions


def least_squares(x, y):
    """In 120 digits."""
    flint.ctx.dps = 120
    rows = [[*map(flint.arb, row), flint.arb(1)] for row in x.tolist()]
    a, b = flint.arb_mat(rows), flint.arb_mat([[flint.arb(v)] for v in y.tolist()])
    found = (a.transpose() * a).solve(a.transpose() * b)
    return [found[i, 0] for i in range(x.shape[1] + 1)]


def test_features_that_cannot_be_told_apart_are_not_said_to_depend_on_each_other():
    """Whole numbers prove it where it is so; a sum that was rounded is another feature."""
    g = torch.Generator().manual_seed(3)
    x = data.normal(g, 50, 3)
    y = data.normal(g, 50)
    x[:, 2] = x[:, 0] + x[:, 1] / 2
    rounded = Machine(4).run(algorithms.LinearRegression(fit_intercept=True), x, y).certificate
    assert rounded.kind == "estimated"
    assert rounded.assumptions == (DEPENDENT,)
    x = (8 * x).round()
    x[:, 2] = 2 * x[:, 0] + x[:, 1] / 2 - 3
    exact = Machine(4).run(algorithms.LinearRegression(fit_intercept=True), x, y).certificate
    assert exact.kind == "proven"
    assert not exact.assumptions
    assert exact.error < 1e-10
    assert "fitted values" in exact.domain["what"]
    x[0, 2] += 2.0**-47  # one sample, in its last digits
    other = Machine(4).run(algorithms.LinearRegression(fit_intercept=True), x, y).certificate
    assert other.kind == "estimated"


def test_a_column_twice_gives_the_solution_of_least_norm():
    g = torch.Generator().manual_seed(4)
    x = data.normal(g, 40, 3)
    twice = torch.cat([x, 4 * x[:, :1]], 1)
    y = data.labels(x, g)
    machine = Machine(5)
    fit = machine.run(algorithms.LinearRegression(fit_intercept=True), twice, y)
    centred = twice - twice.mean(0)
    least = torch.linalg.pinv(centred) @ (y - y.mean())
    assert apart(fit.coef, numbers(least)) < 1e-12


@pytest.mark.parametrize("apart_by", [1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("name", ["Logistic", "Poisson"])
def test_curved_losses_on_nearly_dependent_features(name, apart_by):
    """No penalty to help: only the samples tell the features apart."""
    g = torch.Generator().manual_seed(11)
    x = data.normal(g, 120, 3)
    x[:, 2] = x[:, 0] + apart_by * x[:, 2]
    y = CASES[name].labels(0.3 * x, g)
    plain = replace(CASES[name].program, **({"C": 1e14} if name == "Logistic" else {"alpha": 0.0}))
    fit = Machine(4).run(plain, x, y)
    coef, _ = CASES[name].exact(plain, x, y, fit)
    assert apart(fit.coef, coef) <= fit.certificate.error
    assert fit.certificate.error < math.inf


@pytest.mark.parametrize("name", ["LeastSquares", "Ridge", "Logistic"])
def test_eigenvalues_that_are_wrong_make_no_bound_too_small(name, monkeypatch):
    """They are checked by what their vectors make of the matrix."""
    g = torch.Generator().manual_seed(3)
    x = data.normal(g, 40, 4)
    case = CASES[name]
    y = case.labels(x, g)
    right = torch.linalg.eigh

    def wrong(matrix, *arguments):
        values, vectors = right(matrix, *arguments)
        return values * 1e4, vectors

    fit = Machine(5).run(case.program, x, y)
    problem = case.program.problem(Machine(5).start(), ArraySource(x, y))
    w = problem.scaling.scaled(fit.coef, fit.intercept) + 1e-7
    honest = prove(problem, w).radius
    monkeypatch.setattr(torch.linalg, "eigh", wrong)
    monkeypatch.setattr("iceform_estimators.machine.problem.torch.linalg.eigh", wrong)
    assert prove(problem, w).radius >= 0.5 * honest


@pytest.mark.parametrize("seed", [pytest.param(3007, marks=pytest.mark.slow), 8007])
def test_hubers_scale_that_falls_to_zero(seed):
    """Three coefficients and six samples: the least value is at a scale of 0, by a dual.

    Nor is a zero of the gradient at a negative scale (the second) taken for the optimum.
    """
    g = torch.Generator().manual_seed(seed)
    x = data.REGULAR["few samples"](g)
    y = data.labels(x, g)
    program = algorithms.Huber(1.35, 1e-4)
    fit = Machine(4).run(program, x, y)
    certificate = fit.certificate
    assert certificate.kind == "proven"
    assert certificate.error < 0.1
    assert certificate.excess is not None

    def value(coef, constant, scale):
        t = (x @ coef + constant - y).abs() / scale
        loss = torch.where(t < program.epsilon, t * t, (2 * t - program.epsilon) * program.epsilon)
        return float((scale + scale * loss).mean() + program.alpha / len(x) * coef @ coef)

    scale = float(fit.parts["scale"])
    found = value(fit.coef, fit.intercept, scale)
    best = min(value(fit.coef, fit.intercept, scale * 2.0**-k) for k in range(20))
    for _ in range(500):
        moved = fit.coef + 1e-3 * data.normal(g, 3)
        best = min(best, value(moved, fit.intercept, scale))
    assert found - best <= certificate.excess.bound + 8 * math.ulp(found)
    assert certificate.excess.bound <= 1e-7 * found
    verdict = verify(fit)  # by the dual again
    assert verdict
    assert verdict.measured > 0.5 * verdict.certified
