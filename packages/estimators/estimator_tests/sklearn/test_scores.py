"""Scores within 1% of scikit-learn's own, on the data sets it ships."""

import warnings
from functools import cache

import numpy as np
import pytest
from sklearn import datasets, linear_model, neighbors
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import iceform_estimators as ice

MARGIN = 0.01

REGRESSORS = {
    "linear": (ice.InContextLinearRegression(), linear_model.LinearRegression()),
    "ridge": (ice.InContextRidge(1.0), linear_model.Ridge(1.0)),
    "lasso": (ice.InContextLasso(0.05), linear_model.Lasso(0.05, tol=1e-8, max_iter=100000)),
    "elastic net": (
        ice.InContextElasticNet(0.05), linear_model.ElasticNet(0.05, tol=1e-8, max_iter=100000)
    ),
    "huber": (
        ice.InContextHuberRegressor(), linear_model.HuberRegressor(tol=1e-9, max_iter=100000)
    ),
    "neighbours": (
        ice.InContextKNeighborsRegressor(), neighbors.KNeighborsRegressor(algorithm="brute")
    ),
}  # fmt: skip
CLASSIFIERS = {
    "logistic": (
        ice.InContextLogisticRegression(),
        LogisticRegression(tol=1e-10, max_iter=100000),
    ),
    "neighbours": (
        ice.InContextKNeighborsClassifier(), neighbors.KNeighborsClassifier(algorithm="brute")
    ),
    "neighbours by distance": (
        ice.InContextKNeighborsClassifier(weights="distance"),
        neighbors.KNeighborsClassifier(algorithm="brute", weights="distance"),
    ),
}  # fmt: skip
SETS = {
    "diabetes": datasets.load_diabetes,
    "wine": datasets.load_wine,
    "breast cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}


@cache
def split(name: str):
    x, y = SETS[name](return_X_y=True)
    return train_test_split(x, y, test_size=0.3, random_state=0)


def scores(ours, theirs, name: str) -> tuple[float, float]:
    x, held_out, y, wanted = split(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=RuntimeWarning)  # of scikit-learn's own solvers
        pair = [make_pipeline(StandardScaler(), model).fit(x, y) for model in (ours, theirs)]
    return tuple(model.score(held_out, wanted) for model in pair)


@pytest.mark.parametrize("algorithm", REGRESSORS)
@pytest.mark.parametrize(
    "name",
    ["diabetes", *(pytest.param(n, marks=pytest.mark.slow) for n in ("wine", "breast cancer"))],
)
def test_regressors_score_as_scikit_learns_do(algorithm, name):
    """Classes are numbers too: a regression on them is one more data set."""
    ours, theirs = scores(*REGRESSORS[algorithm], name)
    assert abs(ours - theirs) <= MARGIN * abs(theirs), (ours, theirs)


@pytest.mark.parametrize("algorithm", ["linear", "ridge", "neighbours"])
def test_regressors_on_digits(algorithm):
    """Three of its columns never vary: coefficients are not unique, predictions are."""
    ours, theirs = scores(*REGRESSORS[algorithm], "digits")
    assert abs(ours - theirs) <= MARGIN * abs(theirs), (ours, theirs)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        pytest.param(n, a, marks=pytest.mark.slow if (n, a) == ("digits", "logistic") else ())
        for n in ("wine", "breast cancer", "digits")
        for a in CLASSIFIERS
    ],
)
def test_classifiers_score_as_scikit_learns_do(algorithm, name):
    ours, theirs = scores(*CLASSIFIERS[algorithm], name)
    assert abs(ours - theirs) <= MARGIN * theirs, (ours, theirs)


@pytest.mark.parametrize("name", ["diabetes", "wine"])
def test_kernel_regression_is_the_average_that_it_says(name):
    x, held_out, y, _ = split(name)
    scale = StandardScaler().fit(x)
    x, held_out = scale.transform(x), scale.transform(held_out)
    model = ice.InContextKernelRegressor(gamma=0.2).fit(x, y)
    kernel = rbf_kernel(held_out, x, gamma=0.2)
    theirs = kernel @ y / kernel.sum(1)
    off = np.abs(model.predict(held_out) - theirs).max()
    # rbf_kernel squares differences of its own: both round.
    assert off <= model.certificate_.error + 1e-12 * np.abs(y).max()


@pytest.mark.parametrize("name", SETS)
def test_components_explain_as_much(name):
    x, held_out, _, _ = split(name)
    scale = StandardScaler().fit(x)
    x, held_out = scale.transform(x), scale.transform(held_out)
    ours, theirs = ice.InContextPCA(3).fit(x), PCA(3).fit(x)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_)
    images = [m.inverse_transform(m.transform(held_out)) for m in (ours, theirs)]
    lost = [((held_out - image) ** 2).mean() for image in images]
    assert abs(lost[0] - lost[1]) <= MARGIN * lost[1]
    for mine, other, error in zip(
        ours.components_, theirs.components_, np.atleast_1d(ours.certificate_.error), strict=False
    ):
        apart = min(np.abs(mine - other).max(), np.abs(mine + other).max())
        assert apart <= error + 1e-10
