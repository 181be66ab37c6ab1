"""scikit-learn's own checks of estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from iceform import sklearn as ice_sklearn

# A perceptron that no plane stops makes all its passes: a few do.
OWN = {"InContextPerceptron": {"max_iter": 10}}
ESTIMATORS = [getattr(ice_sklearn, n)(**OWN.get(n, {})) for n in ice_sklearn.__all__]


# A perceptron whose classes no plane separates goes on to its last pass, and says so.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)
