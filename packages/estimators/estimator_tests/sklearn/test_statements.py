"""One certificate of several fits is true of each, and what it prints is checked in balls."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import iceform_estimators as ice
from estimator_tests.attacks.fits import ridge_in_rationals
from estimator_tests.exact import verify
from iceform.certificates import Attestation, Certificate
from iceform.errors import ProgramError
from iceform_estimators.machine.program import attested, together


def unlike():
    """A column that is there twice, once without a penalty and once with a large one."""
    draw = np.random.default_rng(0)
    x = 1e6 * draw.normal(size=(12, 1))
    return np.hstack([x, x]), np.stack([1e-9 * draw.normal(size=12), 1e9 * x[:, 0]], 1)


def test_fits_that_state_different_things_state_what_all_have():
    x, y = unlike()
    model = ice.InContextRidge(alpha=[0.0, 1e12]).fit(x, y)
    kinds = [one.compared for one in model.certificates_]
    assert kinds == ["fitted - optimally fitted", "found - optimal"]
    certificate = model.certificate_
    assert certificate.compared == "fitted - optimally fitted"
    assert certificate.domain["what"].startswith("fitted values")
    worst = Fraction(0)
    for k, best in enumerate(
        (
            [*ridge_in_rationals(x[:, :1], y[:, 0], 0.0)[:1], Fraction(0)],
            ridge_in_rationals(x, y[:, 1], 1e12)[:2],
        )
    ):
        last = [ridge_in_rationals(x[:, :1], y[:, 0], 0.0), ridge_in_rationals(x, y[:, 1], 1e12)]
        for row in x:
            found = sum(Fraction(a) * Fraction(v) for a, v in zip(model.coef_[k], row, strict=True))
            exact = sum(a * Fraction(v) for a, v in zip(best, row, strict=True))
            off = found + Fraction(model.intercept_[k]) - exact - last[k][-1]
            worst = max(worst, abs(off))
    # The bound of the first column alone, which was printed for both, does not hold.
    assert float(worst) > model.certificates_[0].error
    assert float(worst) <= certificate.error
    checked = verify(certificate)
    assert checked
    assert checked.measured == pytest.approx(float(worst), rel=1e-6)
    assert checked.measured > model.certificates_[0].error
    assert not verify(replace(certificate, error=model.certificates_[0].error))


def test_terms_are_those_of_the_worst_and_what_differs_is_said_of_whom():
    one = Certificate.total(
        {"a": 1.0}, domain={"n": 1.0, "optimum": "near"}, dtype=None, backend=""
    )
    two = replace(one, error=2.0, terms={"b": 2.0}, domain={"n": 1.0}, kind="estimated")
    both = together([one, two], "column")
    assert (both.error, dict(both.terms), both.kind) == (2.0, {"b": 2.0}, "estimated")
    assert both.domain["n"] == 1.0
    assert both.domain["optimum of column 0"] == "near"
    assert "optimum" not in both.domain
    with pytest.raises(ProgramError, match="different things"):
        together([one, replace(two, compared="something else")], "column")
    assert together([one, replace(two, error=float("nan"))], "column").error != 1.0


def test_one_class_against_the_rest_is_verified_for_each():
    draw = np.random.default_rng(1)
    x = draw.normal(size=(18, 2))
    y = np.arange(18) % 3
    x[:, 0] += y
    model = ice.InContextLinearSVC(C=0.1).fit(x, y)
    assert len(model.certificates_) == 3
    assert model.certificate_.error == max(one.error for one in model.certificates_)
    measured = [verify(one).measured for one in model.certificates_]
    assert verify(model.certificate_).measured == max(measured)


def test_every_run_is_attested_and_not_only_the_worst():
    x, y = unlike()
    model = ice.InContextRidge(alpha=[0.0, 1e12]).fit(x, y)
    assert model.attestation_.ok
    assert model.digest_ == model.machine_.digest

    class Ran:
        def __init__(self, difference, weights="w"):
            self.attestation = Attestation(weights, "w", "fused", 4, difference, 1.0)

    assert attested([Ran(0.1), Ran(0.2)]).rows == 8
    assert not attested([Ran(0.1), Ran(2.0)]).within
    assert not attested([Ran(0.1), Ran(0.1, "other")]).ok


def test_columns_of_neighbours_are_certified_each():
    """A column of small numbers that differ more than those of the largest one."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(30, 2))
    y = np.stack([np.full(30, 10.0), draw.choice([-9.0, 9.0], 30)], 1)
    model = ice.InContextKNeighborsRegressor(2).fit(x, y)
    alone = [
        ice.InContextKNeighborsRegressor(2).fit(x, column).certificate_.error for column in y.T
    ]
    assert alone[1] > alone[0]
    assert model.certificate_.error == max(alone)
    assert verify(model.certificate_)


def test_votes_are_certified_as_shares():
    """The certificate is of what predict_proba returns, not of a mean of classes' numbers."""
    x = np.random.default_rng(3).normal(size=(12, 2))
    model = ice.InContextKNeighborsClassifier(3).fit(x, np.zeros(12))
    off = np.abs(model.predict_proba(x) - 1).max()
    assert off <= model.certificate_.error
    assert model.certificate_.error >= 2.0**-53, "shares of 1/3 are rounded"
    assert "shares" in model.certificate_.domain["answers"]
    several = ice.InContextKNeighborsClassifier(3).fit(x, np.arange(12) % 4)
    assert verify(several.certificate_)


def test_penalties_of_columns_reach_their_gaps():
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(40, 3)), draw.normal(size=(40, 2))
    model = ice.InContextLasso(alpha=0.1).fit(x, y)
    alone = [ice.InContextLasso(alpha=0.1).fit(x, column).dual_gap_ for column in y.T]
    np.testing.assert_allclose(model.dual_gap_, alone, atol=1e-15)
    assert np.shape(model.n_nonzero_) in ((), (2,))
