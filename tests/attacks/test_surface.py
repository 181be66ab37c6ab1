"""What a few draws over the estimators' options show, and what they found."""

from dataclasses import replace

import numpy as np
import pytest

from iceform.errors import BoundError
from iceform.sklearn import InContextLinearSVC, InContextRidge
from tests.attacks.surface import attack

X = np.random.default_rng(0).normal(size=(12, 2))


@pytest.mark.parametrize("seed", [3, 29, 34, 55, 68, 71])  # intercepts in float32 among them
def test_no_option_of_an_estimator_violates_a_certificate(seed):
    word, told = attack(seed)
    assert word.startswith(("held", "infinite", "estimated", "refused", "open")), (word, told)


def test_of_several_fits_the_weakest_kind_is_told():
    """The largest bound may be proven where a smaller one is only estimated."""
    model = InContextLinearSVC().fit(X, np.arange(12) % 3)
    first = model.certificate_._verifier.found
    proven = replace(first.certificate, error=1.0)
    guessed = replace(first.certificate, kind="estimated", assumptions=("a guess",), error=0.5)
    found = [replace(first, certificate=one, _predict=None) for one in (proven, guessed)]
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
