"""Pipelines, searches, copies, processes, names and messages, as scikit-learn's users expect."""

import gc
import pickle
import re
from collections.abc import Iterator

import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from sklearn import datasets
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import InvalidParameterError

import iceform_estimators as ice
from iceform.certificates import Certificate
from iceform_estimators.machine import Machine

ALL = {name: getattr(ice, name) for name in ice.ESTIMATORS}
LINEAR = [n for n in ALL if n not in ("InContextPCA",) and "Neighbors" not in n and
          "Kernel" not in n]  # fmt: skip


def table(rows: int = 60, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    return x, (x @ [1.0, -2.0, 0.0, 0.5] + 0.1 * rng.normal(size=rows) > 0).astype(int)


@pytest.mark.parametrize("name", ALL)
def test_what_every_fit_leaves_behind(name):
    x, y = table()
    model = ALL[name]().fit(x, y)
    assert isinstance(model.certificate_, Certificate)
    assert re.fullmatch(r"[0-9a-f]{64}", model.digest_)
    assert model.digest_ == model.machine_.digest
    assert model.n_passes_ >= 1
    assert model.n_iter_ == model.n_passes_


def test_all_linear_models_and_components_share_one_machine():
    x, y = table()
    digests = {ALL[name]().fit(x, y).digest_ for name in [*LINEAR, "InContextPCA"]}
    assert digests == {Machine(5).digest}


@pytest.mark.parametrize("name", ALL)
def test_clones_pickles_and_joblib(name, tmp_path):
    x, y = table()
    model = ALL[name]().fit(x, y)
    use = "transform" if name == "InContextPCA" else "predict"
    want = getattr(model, use)(x)
    joblib.dump(model, tmp_path / "model")
    for other in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        assert np.array_equal(getattr(other, use)(x), want)
        assert other.digest_ == model.digest_
        assert other.certificate_.error == model.certificate_.error
    fresh = clone(model)
    assert not hasattr(fresh, "digest_")
    assert np.array_equal(getattr(fresh.fit(x, y), use)(x), want)
    assert fresh.get_params() == model.get_params()


@pytest.fixture
def _no_processes_stay() -> Iterator[None]:
    """joblib's own would end minutes later, and remove their semaphores in another test."""
    yield
    get_reusable_executor(reuse=True).shutdown(wait=True)
    gc.collect()


@pytest.mark.usefixtures("_no_processes_stay")
def test_a_search_over_a_pipeline_in_two_processes():
    x, y = datasets.load_diabetes(return_X_y=True)
    pipe = make_pipeline(StandardScaler(), ice.InContextRidge())
    grid = {"incontextridge__alpha": [0.1, 10.0, 1000.0]}
    search = GridSearchCV(pipe, grid, cv=3, n_jobs=2).fit(x[:120], y[:120])
    assert search.best_params_["incontextridge__alpha"] in grid["incontextridge__alpha"]
    alone = GridSearchCV(pipe, grid, cv=3).fit(x[:120], y[:120])
    assert np.array_equal(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )


BAD_PARAMETERS = [
    (ice.InContextRidge(alpha=-1.0), "alpha"),
    (ice.InContextLasso(alpha="much"), "alpha"),
    (ice.InContextElasticNet(l1_ratio=1.5), "l1_ratio"),
    (ice.InContextHuberRegressor(epsilon=0.5), "epsilon"),
    (ice.InContextLogisticRegression(C=0.0), "C"),
    (ice.InContextLinearRegression(precondition="magic"), "precondition"),
    (ice.InContextLinearRegression(tol=0.0), "tol"),
    (ice.InContextLinearRegression(max_iter=-1), "max_iter"),
    (ice.InContextKernelRegressor(gamma=-2.0), "gamma"),
    (ice.InContextKNeighborsClassifier(n_neighbors=0), "n_neighbors"),
    (ice.InContextKNeighborsRegressor(weights="heavy"), "weights"),
    (ice.InContextPCA(n_components=-1), "n_components"),
]


@pytest.mark.parametrize(("model", "parameter"), BAD_PARAMETERS, ids=lambda v: str(v)[:40])
def test_bad_parameters_are_named(model, parameter):
    with pytest.raises(InvalidParameterError, match=f"The '{parameter}' parameter"):
        model.fit(*table())


def test_too_few_passes_are_a_warning_and_an_honest_certificate():
    x, y = table()
    x = x * [1.0, 1e-3, 10.0, 1e3]
    slow = ice.InContextLinearRegression(precondition="none", max_iter=4)
    with pytest.warns(ConvergenceWarning, match="stopped after .* passes"):
        slow.fit(x, y)
    exact = ice.InContextLinearRegression().fit(x, y)
    off = np.abs(slow.coef_ - exact.coef_).max()
    assert exact.certificate_.error < off <= slow.certificate_.error + exact.certificate_.error


@pytest.mark.parametrize("size", [1e-55, 1e-8, 1e8, 1e15, 1e55])
def test_labels_of_sizes_that_can_be_squared_twice_are_predicted(size):
    x, _ = table()
    y = size * (x @ [1.0, 2.0, 3.0, 4.0] + 5.0)
    model = ice.InContextLinearRegression().fit(x, y)
    np.testing.assert_allclose(model.predict(x), y, rtol=1e-11, atol=1e-12 * size)


def test_batches_and_one_fit_agree():
    x, y = table(90)
    whole = ice.InContextRidge(2.0).fit(x, y)
    parts = ice.InContextRidge(2.0)
    for rows in np.split(np.arange(90), 3):
        parts.partial_fit(x[rows], y[rows])
    off = np.abs(whole.coef_ - parts.coef_).max()
    assert off <= whole.certificate_.error + parts.certificate_.error < 1e-10
    with pytest.raises(ValueError, match="X has 3 features"):
        parts.partial_fit(x[:, :3], y)


def test_neighbours_at_no_distance_decide_alone():
    x, y = table()
    model = ice.InContextKNeighborsRegressor(weights="distance").fit(x, y)
    assert np.array_equal(model.predict(x), y)
    distances, found = model.kneighbors(x)
    assert np.array_equal(found[:, 0], np.arange(60))
    assert not distances[:, 0].any()
