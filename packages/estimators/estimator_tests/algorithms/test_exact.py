"""The exact answer of every fit in ball arithmetic, beside what was returned."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import flint
import numpy as np
import pytest
import torch

from estimator_tests.exact import moved, verify
from iceform.errors import PrecisionError, ProgramError
from iceform.expressions import Curvature, Loss, ScalarFunction
from iceform_estimators import (
    InContextHuberRegressor,
    InContextKernelRegressor,
    InContextLogisticRegression,
    InContextQuantileRegressor,
    InContextRidge,
    Machine,
    algorithms,
)
from iceform_estimators.machine import ArraySource

N, D = 30, 3
F64 = torch.float64


def drawn(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, D, generator=g, dtype=F64)
    line = x @ torch.tensor([1.0, -2.0, 0.5], dtype=F64)
    return x, line + 0.4 * torch.randn(N, generator=g, dtype=F64), g


def labels_for(program, y, g):
    if isinstance(program, algorithms.Logistic | algorithms.KNeighborsVote):
        return (y > 0).double()
    if isinstance(program, algorithms.LinearSVM | algorithms.Perceptron):
        return 2 * (y > 0).double() - 1
    return torch.poisson(y.abs(), generator=g) if isinstance(program, algorithms.Poisson) else y


STREAM = [
    algorithms.LinearRegression(),
    algorithms.LinearRegression(fit_intercept=False),
    algorithms.LinearRegression(positive=True),
    algorithms.Ridge(0.7),
    algorithms.Lasso(0.1),
    algorithms.ElasticNet(0.3, 0.5),
    algorithms.Huber(),
    algorithms.Expectile(0.8),
    algorithms.Quantile(0.3),
    algorithms.Quantile(0.3, width=0.2),
    algorithms.Logistic(2.0),
    algorithms.LinearSVM(),
    algorithms.Poisson(0.1),
    algorithms.Perceptron(max_passes=9),
    algorithms.KernelRegression(1.5),
    algorithms.KNeighbors(4),
    algorithms.KNeighbors(4, weights="distance"),
    algorithms.KNeighborsVote(3),
    algorithms.PCA(2),
]


def check(result) -> None:
    verdict = verify(result)
    assert verdict, verdict
    assert verdict.measured <= verdict.certified < float("inf")


@pytest.mark.parametrize("program", STREAM, ids=lambda p: f"{p.name} {p!r}"[:60])
def test_every_program_of_a_stream_verifies_and_a_moved_answer_does_not(program):
    x, y, g = drawn()
    result = Machine(D + 1).run(program, x, labels_for(program, y, g))
    check(result)
    off = 4 * result.certificate.error + 1e-12
    assert not verify(moved(result.certificate, answer=result.value + off))


def test_dependent_features_are_verified_by_their_fitted_values():
    x, y, _ = drawn()
    x = torch.cat([x, x[:, :1] + x[:, 1:2]], 1)
    x = (x * 1024).round() / 1024
    x[:, 3] = x[:, 0] + x[:, 1]
    result = Machine(5).run(algorithms.LinearRegression(), x, y)
    assert "what" in result.certificate.domain
    check(result)


def test_weights_of_samples_are_part_of_what_is_verified():
    x, y, g = drawn()
    weights = torch.rand(N, generator=g, dtype=F64) + 0.1
    for program in (algorithms.Ridge(1.0), algorithms.Huber(), algorithms.Quantile(0.5)):
        check(Machine(D + 1).run(program, ArraySource(x, y, weights=weights)))


def test_verify_is_not_offered_for_fits():
    """By no way in: of a run, of an estimator, of several fits, of one that was pickled."""
    x, y, _ = drawn()
    run = Machine(D + 1).run(algorithms.Ridge(), x, y)
    fits = [InContextRidge(), InContextKernelRegressor(), InContextLogisticRegression()]
    fits = [fit.fit(x.numpy(), np.round(y.numpy())) for fit in fits]
    again = pickle.loads(pickle.dumps(fits))
    certificates = [run.certificate, *(fit.certificate_ for fit in [*fits, *again])]
    for verifies in [run.verify, *(one.verify for one in certificates)]:
        for given in ((), (x, y)):
            with pytest.raises(ProgramError, match=r"verify\(\) is not offered for fits.*explain"):
                verifies(*given)


def test_batches_are_verified_on_all_of_them():
    x, y, _ = drawn()
    fit = InContextRidge().partial_fit(x[:20].numpy(), y[:20].numpy())
    fit.partial_fit(x[20:].numpy(), y[20:].numpy())
    assert verify(fit.certificate_, x, y)
    assert not verify(fit.certificate_, x[:20], y[:20])


def test_bounds_are_for_the_queries_asked():
    x, y, _ = drawn()
    model = InContextKernelRegressor(gamma=2.0).fit(x.numpy(), y.numpy())
    near, far = x.numpy()[:5] + 0.1, x.numpy()[:5] + 500.0
    assert model.error_bounds(near).max() < 1e-13
    exact = algorithms.KernelRegression(2.0).exact(x, y, torch.from_numpy(far)).numpy()
    assert (abs(model.predict(far) - exact) <= model.error_bounds(far) + 1e-9).all()


def test_labels_that_underflow_round_by_the_least_number():
    x, y, _ = drawn()
    check(Machine(D + 1).run(algorithms.KernelRegression(2.0), x, 1e-320 * y))
    check(Machine(D + 1).run(algorithms.KNeighbors(3), x, 1e-320 * y))


@pytest.mark.parametrize(
    "program", [algorithms.KernelRegression(1.5), algorithms.KNeighbors(4)], ids=["kernel", "knn"]
)
def test_machines_of_float32_are_certified_in_float32(program):
    x, y, _ = drawn()
    machine = Machine(D + 1, layout="stream", dtype=torch.float32)
    check(machine.run(program, x, y))


def test_threads_verify_with_bits_of_their_own():
    """The number of bits is the process's: one that ended left another with too few."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=g, dtype=torch.float64)
    fit = Machine(4).run(algorithms.Ridge(1.0), x, x.sum(1) + 0.2 * x[:, 0].sin())
    before = flint.ctx.prec
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda bits: verify(fit.certificate, bits=bits), [256, 128] * 12))
    assert all(found)
    assert [verdict.bits for verdict in found] == [256, 128] * 12
    assert flint.ctx.prec == before


@dataclass(frozen=True)
class _Own(algorithms.LinearModel):
    """ln cosh of scaled residuals, of which something false is said."""

    def loss(self):
        return _LOG_COSH


_FALSE = Curvature(lambda z: 9 + 0 * z, torch.ones_like, (1.0, 1.0), kinks=())
_LOG_COSH = Loss("log-cosh", "residual", ScalarFunction(torch.tanh, "tanh"), _FALSE)


def test_a_loss_of_ones_own_is_verified_on_its_scaled_labels_by_what_it_computes():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=g, dtype=torch.float64)
    y = 7 * x.sum(1) + torch.randn(30, generator=g, dtype=torch.float64)
    found = Machine(4).run(_Own(), x, y)
    assert found.certificate.kind == "proven"
    assert verify(found).holds
    off = 3 * found.certificate.error
    assert not verify(moved(found.certificate, answer=found.value + off))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [True, False])
def test_several_classes_verify_together_and_moved_ones_do_not(dtype, intercept):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(25, 2)).astype(dtype)
    y = np.digitize(x[:, 0] + 0.3 * draw.normal(size=25), [-0.5, 0.5])
    for weights in (None, draw.random(25)):
        model = InContextLogisticRegression(fit_intercept=intercept).fit(x, y, weights)
        certificate = model.certificate_
        assert verify(certificate)
        found = certificate.verifier.found
        assert not verify(moved(certificate, answer=found.value + 3 * certificate.error))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_intercept_is_verified_by_its_own_bound_as_it_is_stored(dtype):
    """In float32 it moves by what coefficients do: its bound was that of float64."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(18, 2)).astype(dtype)
    certificate = InContextRidge().fit(x, x.sum(1) + 1000.1).certificate_
    assert verify(certificate)
    found = certificate.verifier.found
    bound = found.errors["intercept"]
    told = [step.value for step in certificate.derivation if step.symbol == "intercept"]
    assert told[-1] == bound
    parts = {**found.parts, "intercept": found.intercept.double() + 3 * bound}
    assert not verify(moved(certificate, parts=parts))


@pytest.mark.filterwarnings("ignore:.*before its tolerance")
def test_a_corner_that_was_rounded_as_the_fit_went_on_is_verified_as_it_was():
    draw = np.random.default_rng(3)
    x = np.round(2 * draw.normal(size=(20, 2)))
    y = np.round(x @ [1.0, 2.0] + draw.normal(size=20))
    certificate = InContextQuantileRegressor(alpha=0.01, max_iter=12).fit(x, y).certificate_
    assert "rounded" in certificate.domain["objective"]
    assert verify(certificate).measured > 0
    found = certificate.verifier.found
    assert not verify(moved(certificate, answer=found.value + 3 * certificate.error))


@pytest.mark.parametrize("outlier", [0.0, 100.0])
def test_huber_with_a_scale_that_falls_to_0_is_verified_by_duality(outlier):
    """Where no scale is best: the bound that was proven by multipliers, by theirs in balls."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(20, 3))
    y = x @ [1.0, 2.0, 3.0] + 0.5
    y[0] += outlier
    certificate = InContextHuberRegressor(alpha=1e-2).fit(x, y).certificate_
    verdict = verify(certificate)
    assert verdict
    assert 0.9 * verdict.certified < verdict.measured
    found = certificate.verifier.found
    with pytest.raises(PrecisionError):
        verify(moved(certificate, answer=found.value + 3 * certificate.error))
