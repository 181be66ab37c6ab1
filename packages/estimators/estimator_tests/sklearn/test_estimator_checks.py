"""scikit-learn's own checks of estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import iceform_estimators as ice_sklearn

# A perceptron that no plane stops makes all its passes: a few do.
OWN = {"InContextPerceptron": {"max_iter": 10}}
# One check asks for a thousand passes over classes that no plane separates: half a minute.
LONG = ("InContextPerceptron", "check_class_weight_classifiers")
ESTIMATORS = [getattr(ice_sklearn, n)(**OWN.get(n, {})) for n in ice_sklearn.ESTIMATORS]


def checks():
    """scikit-learn's, with the long one marked."""
    made = parametrize_with_checks(ESTIMATORS)
    names, cases = made.args
    marked = [pytest.param(*c, marks=pytest.mark.slow) if is_long(c) else c for c in cases]
    return pytest.mark.parametrize(names, marked, **made.kwargs)


def is_long(case) -> bool:
    estimator, check = getattr(case, "values", case)
    return (type(estimator).__name__, check.func.__name__) == LONG


# A perceptron whose classes no plane separates goes on to its last pass, and says so.
@pytest.mark.sampled(285)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@checks()
def test_scikit_learn_check(estimator, check):
    check(estimator)
