"""scikit-learn's own checks of estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from iceform import sklearn as ice_sklearn

ESTIMATORS = [getattr(ice_sklearn, name)() for name in ice_sklearn.__all__]


# A perceptron whose classes no plane separates goes on to its last pass, and says so.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)
