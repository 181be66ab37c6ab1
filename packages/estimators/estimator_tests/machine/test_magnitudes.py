"""Odd units: certified against exact rationals, or refused by name before any number."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from estimator_tests.attacks.fits import ridge_in_rationals
from estimator_tests.exact import verify
from iceform.errors import BoundError, IceformError
from iceform.expressions import loss_named
from iceform_estimators import (
    InContextLinearRegression,
    InContextLogisticRegression,
    InContextRidge,
    Machine,
    algorithms,
    certify_minimiser,
)
from iceform_estimators.machine import ArraySource, LinearProblem
from iceform_estimators.machine.problem import Scaling, check_magnitudes

ROWS = 9
GOOD = (2.0**-199, 1e-50, 1.0, 1e50, 2.0**199)
BAD = (2.0**-1074, 1e-310, 2.0**-540, 1e-160, 1e-61, 1e61, 1e155, 1e300, 1e308)
MODELS = {
    "least squares": algorithms.LinearRegression(),
    "ridge": algorithms.Ridge(1.0),
    "lasso": algorithms.Lasso(0.1),
    "elastic net": algorithms.ElasticNet(0.1),
    "huber": algorithms.Huber(),
    "expectile": algorithms.Expectile(0.7),
    "quantile": algorithms.Quantile(0.5),
    "logistic": algorithms.Logistic(),
    "svm": algorithms.LinearSVM(),
    "poisson": algorithms.Poisson(),
    "perceptron": algorithms.Perceptron(),
    "components": algorithms.PCA(1),
}


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries of at most 1, no less than 1/8 somewhere in every column."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(ROWS, 2, generator=draw, dtype=torch.float64) - 1
    noise = 0.1 * torch.rand(ROWS, generator=draw, dtype=torch.float64)
    return x, (x[:, 0] - 0.5 * x[:, 1] + noise + 0.25).clamp(-1, 1)


GRID = [
    (columns, label, alpha)
    for columns, label in itertools.product(
        [(1.0, 1.0), (GOOD[0], GOOD[-1]), (GOOD[-1], 1e-50), (GOOD[0], GOOD[0])], GOOD
    )
    for alpha in (0.0, 1.0, 2.0**-250, 2.0**240)
]


@pytest.mark.parametrize("intercept", [True, False])
def test_least_squares_and_ridge_against_rationals(intercept):
    machine = Machine(3, layout="stream")
    for columns, label, alpha in GRID:
        x, y = drawn()
        x, y = x * torch.tensor(columns, dtype=torch.float64), y * label
        kind = {"fit_intercept": intercept}
        model = algorithms.Ridge(alpha, **kind) if alpha else algorithms.LinearRegression(**kind)
        found = machine.run(model, x, y)
        assert found.certificate.compared != "fitted - optimally fitted"
        exact = ridge_in_rationals(x, y, alpha, intercept=intercept)
        case = (columns, label, alpha)
        for got, want in zip(found.coef.tolist(), exact, strict=False):
            off = abs(Fraction(got) - want)
            assert off <= Fraction(found.certificate.error), (case, float(off))
        if intercept:
            off = abs(Fraction(float(found.intercept)) - exact[-1])
            assert off <= Fraction(float(found.errors["intercept"])), (case, float(off))
        if not alpha:  # beside a penalty that swamps the labels the answer is 0, and so certified
            largest = max(abs(float(v)) for v in exact[:2])
            assert found.certificate.error <= 1e-10 * largest, (case, found.certificate.error)


# Every model at both ends; what lies between is the same check of a source's moments.
REFUSED = [(name, size) for name in MODELS for size in (BAD[0], BAD[-1])]
REFUSED += [("ridge", size) for size in BAD[1:-1]]


@pytest.mark.parametrize(("name", "size"), REFUSED)
def test_what_cannot_be_squared_is_refused_by_name(name, size):
    model, machine = MODELS[name], Machine(3, layout="stream")
    x, y = drawn()
    if name in ("logistic", "poisson"):
        y = (y > 0).double()
    if name in ("svm", "perceptron"):
        y = 2 * (y > 0).double() - 1
    odd = x.clone()
    odd[:, 1] *= size
    with pytest.raises(BoundError, match=r"column 1 of the samples: .* divide by a power of two"):
        machine.run(model, odd, y)
    if name not in ("logistic", "svm", "perceptron"):
        with pytest.raises(BoundError, match=r"the labels: .* divide by a power of two"):
            machine.run(model, x, y.abs() * size)


@pytest.mark.parametrize("size", [GOOD[0], GOOD[-1]])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_raw_is_raised_at_the_edge(name, size):
    """Within the limits answers are finite, and what is refused is refused by name."""
    model, machine = MODELS[name], Machine(3, layout="stream")
    x, y = drawn()
    if name in ("logistic", "poisson"):
        y = (y > 0).double()
    if name in ("svm", "perceptron"):
        y = 2 * (y > 0).double() - 1
    x = x * torch.tensor([size, 1 / size], dtype=torch.float64)
    if name in ("least squares", "ridge", "lasso", "elastic net", "huber"):
        y = y * size
    try:
        found = machine.run(model, x, y)
    except IceformError:
        return
    assert bool(found.value.isfinite().all())
    # 0 where the answer itself is proven: the lasso's coefficients here are exactly 0.
    assert found.certificate.error > 0 or verify(found)


def test_the_message_names_the_fix_and_the_fix_works():
    x, y = drawn()
    far = y * 2.0**-540
    with pytest.raises(BoundError, match=r"reaches .*, certified are .* 2\^-539 say"):
        InContextLinearRegression().fit(x.numpy(), far.numpy())
    there = InContextLinearRegression().fit(x.numpy(), (far * 2.0**540).numpy())
    plain = InContextLinearRegression().fit(x.numpy(), y.numpy())
    np.testing.assert_array_equal(there.coef_, plain.coef_)


def test_later_batches_are_looked_at_too():
    x, y = drawn()
    model = InContextRidge().partial_fit(x.numpy(), y.numpy())
    with pytest.raises(BoundError, match="column 0 of the samples"):
        model.partial_fit(1e200 * x.numpy(), y.numpy())


@pytest.mark.parametrize("alpha", [1e-100, 1e90, 1e300])
def test_penalties(alpha):
    x, y = drawn()
    with pytest.raises(BoundError, match="use another penalty"):
        Machine(3, layout="stream").run(algorithms.Ridge(alpha), x, y)


def test_zeros_and_constants_are_of_no_magnitude():
    x, y = drawn()
    check_magnitudes(ArraySource(0 * x, 0 * y))
    scaling = Scaling.of(ArraySource(0 * x, 0 * y), intercept=True)
    assert scaling.scale.tolist() == [1.0, 1.0]


# ------------------------------------------------------- doors beside a run of a stream's model

DOORS = {
    "a given answer": lambda x, y: certify_minimiser(torch.ones(2).double(), x, y),
    "a given answer, penalised": lambda x, y: certify_minimiser(
        torch.ones(2).double(), x, y, alpha=1.0
    ),
    "inside": lambda x, y: Machine(3, layout="stream").run(
        algorithms.Ridge(
            1.0, solver="inside", max_passes=9, bound=float(x.max()), label_bound=float(y.max())
        ), x, y
    ),
    "a problem of one's own": lambda x, y: LinearProblem(
        Machine(3, layout="stream").start(), ArraySource(x, y),
        Scaling(torch.zeros(2).double(), torch.ones(2).double(), 0.0, 1.0, intercept=False),
        loss_named("squared"), torch.zeros(2).double(),
    ),
    "batches": lambda x, y: algorithms.Ridge(1.0).batches().update(
        Machine(3, layout="stream").start(), ArraySource(x, y)
    ),
    "several classes": lambda x, y: InContextLogisticRegression().fit(
        x.numpy(), np.arange(ROWS) % 3
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [2.0**-1060, 2.0**-540, 2.0**-300])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_goes_around_the_border(door, size):
    x, y = (part.abs() for part in drawn())
    DOORS[door](x, y)
    with pytest.raises(BoundError, match="divide by a power of two"):
        DOORS[door](x * size, y * size)


@pytest.mark.parametrize("w", [1e-310, 1e-200, 1e-61, 1e61, 1e300, np.inf, np.nan])
def test_given_coefficients_are_held_to_what_labels_are(w):
    """With labels of 0 a product that underflows would look like the optimum."""
    x, y = drawn()[0], torch.zeros(ROWS, dtype=torch.float64)
    given = torch.tensor([w, 0.0], dtype=torch.float64)
    with pytest.raises(BoundError, match="coefficient 0, times its column"):
        certify_minimiser(given, x, y)
    with pytest.raises(BoundError, match="coefficient 0, times its column"):
        certify_minimiser(given * 1e50, x * 1e-50, y)
    assert certify_minimiser(torch.tensor([1e-40, 0.0]).double(), x, y).error >= 1e-40


def test_penalties_and_stated_bounds_pass_the_same_border():
    x, y = drawn()
    with pytest.raises(BoundError, match="the penalty beside the mean loss"):
        certify_minimiser(torch.ones(2).double(), x, y, alpha=1e-300)
    for given in ({"bound": 1e300}, {"label_bound": 1e300}, {"bound": 1e155}):
        model = algorithms.Ridge(1.0, solver="inside", **given)
        with pytest.raises(BoundError, match="the stated"):
            Machine(3, layout="stream").run(model, x, y)
    zeros = torch.zeros(2).double()
    scaling = Scaling(zeros, torch.ones(2).double(), 0.0, 1e300, intercept=False)
    run, source = Machine(3, layout="stream").start(), ArraySource(x, y)
    with pytest.raises(BoundError, match="would be divided by"):
        LinearProblem(run, source, scaling, loss_named("squared"), zeros)


def test_a_start_is_a_number_that_proofs_cover():
    """Without a pass the answer is where passes begin; with labels of 0 nothing else is seen."""
    x, y = drawn()[0], torch.zeros(ROWS, dtype=torch.float64)
    machine, zero = Machine(3, layout="stream"), torch.zeros(()).double()
    tiny = algorithms.Ridge(1.0, max_passes=0, begin=(torch.full((2,), 1e-310).double(), zero))
    found = machine.run(tiny, x, y)
    assert float(found.coef.abs().max()) <= found.certificate.error
    far = algorithms.Ridge(1.0, begin=(torch.full((2,), 1e300, dtype=torch.float64), zero))
    with pytest.raises(BoundError, match="begin at 0"):
        machine.run(far, x, y)
