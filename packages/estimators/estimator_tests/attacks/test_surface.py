"""What a few draws over the estimators' options show, and what they found."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from estimator_tests.attacks.surface import attack
from estimator_tests.exact import verify
from iceform.errors import BoundError
from iceform_estimators import (
    InContextHuberRegressor,
    InContextLinearSVC,
    InContextPoissonRegressor,
    InContextRidge,
    Machine,
)
from iceform_estimators.algorithms import Perceptron
from iceform_estimators.machine import ArraySource

X = np.random.default_rng(0).normal(size=(12, 2))


@pytest.mark.parametrize("seed", [3, 29, 34, 55, 68, 71])  # intercepts in float32 among them
def test_no_option_of_an_estimator_violates_a_certificate(seed):
    word, told = attack(seed)
    assert word.startswith(("held", "infinite", "estimated", "refused", "open")), (word, told)


@pytest.mark.filterwarnings("ignore:.*before its tolerance")
def test_an_objective_is_bounded_at_the_answer_before_it_was_stored_in_less_precision():
    """Rounded to float32, F(found) was above its bound: this one is tight to nine digits."""
    given = {"sample_weight": [1e-9, 1e25], "X": [[0.4181], [-0.4526]], "y": [2.0, 0.0]}
    for kind, told in ((np.float64, ""), (np.float32, "before it was stored as float32")):
        model = InContextPoissonRegressor(alpha=1e-7, precondition="diagonal", max_iter=50)
        model.fit(**{**given, "X": np.array(given["X"], dtype=kind)})
        assert told in model.certificate_.excess.over
        assert bool(told) == bool(model.certificate_.excess.over)


@pytest.mark.parametrize("far", [0.0, 1e8])
def test_an_objective_is_bounded_at_the_numbers_that_are_returned(far):
    """Of features far from 0 an intercept rounds by more than the bound leaves."""
    x = np.round(8 * np.random.default_rng(0).normal(size=(15, 2))) + far
    y = x @ [3.0, -2.0] + 1.0  # exactly: the best scale is 0
    model = InContextHuberRegressor(alpha=1e-4).fit(x, y)
    w, b = [*map(Fraction, model.coef_.tolist())], Fraction(float(model.intercept_))
    scale, eps, total = Fraction(float(model.scale_)), Fraction(1.35), Fraction(0)
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        r = abs(sum(Fraction(a) * c for a, c in zip(row, w, strict=True)) + b - Fraction(label))
        inside = min(r / scale, eps)
        total += scale + scale * (2 * inside * r / scale - inside**2)
    above = total + Fraction(1e-4) * (sum(c * c for c in w) - 13)
    assert 0 < above / 15 <= Fraction(model.certificate_.excess.bound)


def test_of_several_fits_the_weakest_kind_is_told():
    """The largest bound may be proven where a smaller one is only estimated."""
    model = InContextLinearSVC().fit(X, np.arange(12) % 3)
    first = model.certificate_.verifier.every[0].verifier.found
    proven = replace(first.certificate, error=1.0)
    guessed = replace(first.certificate, kind="estimated", assumptions=("a guess",), error=0.5)
    found = [replace(first, certificate=one, predictor=None) for one in (proven, guessed)]
    model._keep(model.machine_, *found)
    assert model.certificate_.error == 1.0
    assert (model.certificate_.kind, model.certificate_.assumptions) == ("estimated", ("a guess",))


@pytest.mark.parametrize("kind", [np.int64, np.longdouble])
def test_numbers_that_float64_rounds_are_refused(kind):
    """A certificate is of the data as given: they would have been others."""
    wide = (1e18 * X).astype(kind) + kind(1)
    with pytest.raises(BoundError, match="which float64 rounds"):
        InContextRidge().fit(wide, X[:, 0])
    with pytest.raises(BoundError, match="which float64 rounds"):
        InContextRidge().fit(X, wide[:, 0])
    InContextRidge().fit(np.round(4 * X).astype(kind), np.round(X[:, 0]).astype(kind))
    InContextLinearSVC().fit(X, np.where(X[:, 0] > 0, 2**62 + 1, 7))  # names of classes


@pytest.mark.parametrize("size", [1e-46, 3e-45, 1e-60])
def test_what_float32_has_no_number_for_counts_as_stored(size):
    """Coefficients that become 0 when they are stored, or next to it, move by all of themselves."""
    y = (X @ [1.0, -2.0]) * size
    model = InContextRidge(alpha=1e-3).fit(X.astype(np.float32), y)
    found = model.certificate_.verifier.found
    assert model.coef_.dtype == np.float32
    assert model.certificate_.error >= np.abs(2 * size - np.abs(model.coef_[1])) / 2
    assert found.errors["intercept"] > 0
    assert verify(model.certificate_).holds


@pytest.mark.filterwarnings("ignore:.*before its tolerance")
def test_a_perceptron_is_verified_on_columns_as_its_fit_scaled_them():
    """Means of a column that was read in chunks are other numbers, and lead to other passes."""
    x = X + np.array([0.0, 1e6])
    labels = np.where(X @ [1.0, 3.0] > 0.4, 1.0, -1.0)
    heavy = torch.where(torch.arange(12) % 5 > 0, 1.0, 1e9).double()
    for chunk in (1, 5, 12):
        source = ArraySource(*map(torch.from_numpy, (x, labels)), chunk, weights=heavy)
        fit = Machine(dim=3, layout="stream").run(Perceptron(max_passes=20), source)
        assert verify(fit.certificate).holds


def test_a_curvature_beyond_float64_is_one_error():
    model = InContextPoissonRegressor(warm_start=True)
    model.coef_, model.intercept_ = np.full(2, 1e3), 0.0
    with pytest.raises(BoundError, match="is beyond float64"):
        model.fit(X, np.arange(12.0))


def test_a_bound_smaller_than_the_balls_is_no_bound_that_fails():
    """Labels that are all the same: coefficients of 0, an intercept that float32 rounds."""
    model = InContextRidge().fit(X.astype(np.float32), np.full(12, 1.8822))
    assert model.certificate_.error < 1e-300
    assert verify(model.certificate_).holds
