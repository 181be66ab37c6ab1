"""Weights of samples: factors of their value rows, in the prompt and in the proof."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn import linear_model, svm

import iceform_estimators as ice
from iceform.errors import BoundError, ParameterError, ProgramError
from iceform.heads import LookUps
from iceform.run import bind
from iceform_estimators import Machine
from iceform_estimators.algorithms import LinearRegression, Quantile
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.proofs import prove
from iceform_estimators.machine.stream import IDENTITY

LINES = [n for n in ice.ESTIMATORS if getattr(ice, n).algorithm.family in ("line", "separator")]


def data(name, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=60) + 1
    family = getattr(ice, name).algorithm.family
    y = (y > 0.5).astype(int) if family == "separator" else y
    y = np.floor(np.abs(y)) if "Poisson" in name else y
    return x, y, rng.integers(0, 4, size=60).astype(float)


def made(name):
    return getattr(ice, name)(**({"max_iter": 10} if "Perceptron" in name else {}))


def both(a, b):
    return a.certificate_.error + b.certificate_.error + 1e-12


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", LINES)
def test_whole_weights_are_copies(name):
    x, y, weights = data(name)
    weighed = made(name).fit(x, y, sample_weight=weights)
    times = weights.astype(int)
    copies = made(name).fit(np.repeat(x, times, 0), np.repeat(y, times))
    assert np.isfinite(weighed.certificate_.error)
    assert weighed.attestation_.within
    np.testing.assert_allclose(weighed.coef_, copies.coef_, rtol=0, atol=both(weighed, copies))
    assert "weights" in weighed.certificate_.domain["data"]
    plain = made(name).fit(x, y)
    assert np.abs(plain.coef_ - weighed.coef_).max() > 1e-3  # weights do matter here


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", LINES)
def test_nothing_is_learnt_of_samples_that_weigh_nothing(name):
    x, y, weights = data(name)
    some = weights > 0
    wild = np.where(some[:, None], x, 1e9)
    weighed = made(name).fit(wild, y, sample_weight=weights)
    rest = made(name).fit(x[some], y[some], sample_weight=weights[some])
    np.testing.assert_array_equal(weighed.coef_, rest.coef_)
    np.testing.assert_array_equal(weighed.intercept_, rest.intercept_)


PEERS = {
    "InContextLinearRegression": linear_model.LinearRegression(),
    "InContextRidge": linear_model.Ridge(),
    "InContextLasso": linear_model.Lasso(tol=1e-12, max_iter=100_000),
    "InContextElasticNet": linear_model.ElasticNet(tol=1e-12, max_iter=100_000),
    "InContextHuberRegressor": linear_model.HuberRegressor(tol=1e-10, max_iter=10_000),
    "InContextPoissonRegressor": linear_model.PoissonRegressor(tol=1e-12, solver="newton-cholesky"),
    "InContextQuantileRegressor": linear_model.QuantileRegressor(alpha=0),
    "InContextLogisticRegression": linear_model.LogisticRegression(
        tol=1e-12, solver="newton-cholesky"
    ),
    "InContextLinearSVC": svm.LinearSVC(tol=1e-12, max_iter=100_000, intercept_scaling=1e3),
}


@pytest.mark.parametrize("name", PEERS)
def test_weights_mean_what_the_peer_means(name):
    x, y, weights = data(name)
    weights = weights * 0.37 + 0.01  # not summing to the number of samples
    ours = made(name).fit(x, y, sample_weight=weights)
    theirs = PEERS[name].fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-5)


def test_the_certificate_is_of_the_weighted_optimum():
    """Against the normal equations in whole fractions."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(25, 1)), rng.normal(size=25)
    weights = rng.uniform(0.1, 5, size=25)
    found = ice.InContextLinearRegression().fit(x, y, sample_weight=weights)
    c, a, b = ([Fraction(float(v)) for v in part] for part in (weights, x[:, 0], y))
    total = sum(c)
    mean_a = sum(u * v for u, v in zip(c, a, strict=True)) / total
    mean_b = sum(u * v for u, v in zip(c, b, strict=True)) / total
    above = sum(k * (u - mean_a) * (v - mean_b) for k, u, v in zip(c, a, b, strict=True))
    slope = above / sum(k * (u - mean_a) ** 2 for k, u in zip(c, a, strict=True))
    assert abs(Fraction(float(found.coef_[0])) - slope) <= Fraction(found.certificate_.error)
    assert found.certificate_.error < 1e-14


def test_the_proof_weighs_too():
    """The unweighted answer is as far from the weighted optimum as it is."""
    x, y, weights = data("InContextLinearRegression")
    x, y, weights = (torch.from_numpy(part) for part in (x, y, weights + 0.5))
    machine, model = Machine(4, layout="stream"), LinearRegression()
    plain = machine.run(model, x, y)
    source = ArraySource(x, y, weights=weights)
    best = machine.run(model, source)
    problem = model.problem(machine.start(), source)
    s = problem.scaling
    constant = (plain.intercept + s.mean @ plain.coef - s.center) / s.size
    w = torch.cat([plain.coef * s.scale / s.size, constant[None]])
    bounds = prove(problem, w).bounds(s.functionals())[:-1]
    apart = (plain.coef - best.coef).abs()
    assert bool((apart <= bounds).all())
    assert float(apart.max()) > 1e-3
    assert "weights, as factors of the samples' value rows" in str(best.ledger)


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_a_weight_is_a_factor_of_the_value_rows(backend):
    machine = Machine(3, layout="stream")
    g = torch.Generator().manual_seed(0)
    x, y, w, c = (torch.rand(*s, generator=g).double() for s in ((11, 3), (11,), (3,), (11,)))
    table = IDENTITY.on(4.0)
    prompt = LookUps(machine.geometry, table, x, y, w, offsets=y, factors=c)
    ran = bind(machine.network, backend)
    expected = ((x @ w - y - y) * c)[:, None] * torch.cat([x, torch.ones(11, 1)], 1)
    torch.testing.assert_close(ran.run(prompt), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(ran.total(prompt), expected[:, :-1].sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(ran.count(prompt), expected[:, -1].sum(), rtol=0, atol=1e-12)


def test_copies_of_samples_on_the_line_are_no_obstacle():
    """A quantile's line through samples that occur several times is still proven."""
    x, y, weights = data("InContextQuantileRegressor")
    times = weights.astype(int)
    x, y = torch.from_numpy(np.repeat(x, times, 0)), torch.from_numpy(np.repeat(y, times))
    found = Machine(4, layout="stream").run(Quantile(0.3), x, y)
    assert "objective" not in found.certificate.domain
    assert found.certificate.error < 1e-12


def test_refused_weights():
    x, y, weights = data("InContextRidge")
    source = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    for bad, why in ((-1.0, "negative"), (np.nan, "no number"), (1e-200, "certified")):
        wrong = weights.copy()
        wrong[3] = bad
        with pytest.raises(BoundError, match=why):
            ArraySource(**source, weights=torch.from_numpy(wrong))
    with pytest.raises(BoundError, match="nothing is left"):
        ArraySource(**source, weights=torch.zeros(60).double())
    weighed = ArraySource(**source, weights=torch.from_numpy(weights))
    from iceform_estimators.algorithms import PCA, KNeighbors

    for program in (KNeighbors(3), PCA(1)):
        with pytest.raises(ProgramError, match="no weights"):
            Machine(4, layout="stream").run(program, weighed)


def test_dask_weights_are_refused_by_name():
    da = pytest.importorskip("dask.array")
    x, y, weights = data("InContextRidge")
    with pytest.raises(ParameterError, match="sample_weight of InContextRidge"):
        ice.InContextRidge().fit(da.from_array(x), da.from_array(y), sample_weight=weights)


def test_batches_weigh():
    x, y, weights = data("InContextRidge")
    model = ice.InContextRidge()
    for part in (slice(0, 20), slice(20, 60)):
        model.partial_fit(x[part], y[part], sample_weight=weights[part])
    whole = ice.InContextRidge().fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=0, atol=both(model, whole))
