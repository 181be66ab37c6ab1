"""scikit-learn's parameters: with its meaning, or refused by name with the reason."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from sklearn import datasets, linear_model, neighbors
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

import iceform_estimators as ice
from iceform.errors import DeviceError, IceformError, ParameterError, ProgramError
from iceform_estimators import Machine
from iceform_estimators._refusals import REASONS, peer_parameters
from iceform_estimators.algorithms import Lasso, LinearRegression, kinds
from iceform_estimators.algorithms.elastic_net import prove_nonnegative
from iceform_estimators.machine import ArraySource


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(80, 6))
    return x, x @ [1, 2, 0, -1.0, 0.5, -0.3] + rng.normal(size=80) + 1


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_every_parameter_of_the_peer_is_taken_or_refused_with_a_reason(kind):
    ours = inspect.signature(getattr(ice, kind.estimator)).parameters
    for name, theirs in peer_parameters(kind).items():
        if name in ours or name == "random_state":
            continue
        assert name in REASONS, name
        getattr(ice, kind.estimator)(**{name: theirs.default})  # it asks for nothing
        if name in ("copy", "copy_X"):
            continue
        with pytest.raises(ParameterError, match=f"{kind.estimator} refuses {name}='other'"):
            getattr(ice, kind.estimator)(**{name: "other"})


@pytest.mark.parametrize("device", ["meta", "nowhere", "xpu"])
def test_a_device_that_holds_no_numbers_is_refused_by_name(device):
    with pytest.raises(DeviceError, match=f"{device}.*; use cpu"):
        ice.InContextRidge(device=device).fit(*data())


def test_one_exception_names_parameter_value_and_reason():
    with pytest.raises(ParameterError, match="metric='cosine': attention compares") as found:
        ice.InContextKNeighborsRegressor(metric="cosine")
    assert isinstance(found.value, (IceformError, TypeError))
    with pytest.raises(ParameterError, match="precompute=array"):
        ice.InContextLasso().set_params(precompute=np.eye(2))
    ice.InContextLogisticRegression(multi_class="multinomial")
    with pytest.raises(ParameterError, match=r"multi_class='ovr': several classes .* all at once"):
        ice.InContextLogisticRegression(multi_class="ovr")
    ice.InContextLinearSVC(multi_class="ovr")
    with pytest.raises(ParameterError, match=r"'crammer_singer': .* one against the rest"):
        ice.InContextLinearSVC(multi_class="crammer_singer")
    with pytest.raises(ParameterError, match="no parameter 'multi_class'"):
        ice.InContextLasso(multi_class="ovr")
    with pytest.raises(
        ParameterError, match=r"no parameter 'colour', nor has sklearn.*Lasso; it has"
    ):
        ice.InContextLasso(colour=1)
    assert clone(ice.InContextRidge(2.0, solver="auto", copy_X=False)).alpha == 2.0


HINTS = {
    "InContextRidge": {"solver": ["svd", "cholesky", "lsqr", "sag", "lbfgs"], "copy_X": [False]},
    "InContextLasso": {"precompute": [True], "selection": ["random"], "random_state": [3]},
    "InContextLogisticRegression": {
        "solver": ["saga", "newton-cg"], "dual": [True], "l1_ratio": [0, None], "penalty": ["l2"],
    },
    "InContextLinearSVC": {"dual": [True, False, "auto"], "verbose": [1]},
    "InContextPoissonRegressor": {"solver": ["newton-cholesky"]},
    "InContextQuantileRegressor": {"solver": ["highs-ipm"], "solver_options": [{"a": 1}]},
    "InContextKNeighborsRegressor": {"algorithm": ["kd_tree"], "leaf_size": [3], "n_jobs": [-1]},
    "InContextPCA": {
        "svd_solver": ["full", "arpack", "randomized", "covariance_eigh"], "tol": [1e-3],
        "iterated_power": [7], "n_oversamples": [5], "copy": [False],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HINTS)
def test_what_only_says_how_to_compute_is_taken_where_the_peer_knows_it(name):
    for hint, values in HINTS[name].items():
        for value in values:
            assert clone(getattr(ice, name)(**{hint: value})).set_params(**{hint: value})
        with pytest.raises(ParameterError, match=f"{name} refuses {hint}='other'"):
            getattr(ice, name)(**{hint: "other"})
    with pytest.raises(ParameterError, match="refuses solver='liblinear'"):  # another optimum
        ice.InContextLogisticRegression(solver="liblinear")


PEERS = {
    "InContextLinearRegression": linear_model.LinearRegression(),
    "InContextRidge": linear_model.Ridge(tol=1e-12),
    "InContextLasso": linear_model.Lasso(alpha=0.1, tol=1e-14, max_iter=100_000),
    "InContextElasticNet": linear_model.ElasticNet(alpha=0.1, tol=1e-14, max_iter=100_000),
}


def pair_of(name, **settings):
    theirs = clone(PEERS[name]).set_params(**settings)
    alpha = {"alpha": theirs.alpha} if hasattr(theirs, "alpha") else {}
    return getattr(ice, name)(**alpha, **settings), theirs


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", PEERS)
def test_coefficients_that_must_not_be_negative(name, intercept):
    x, y = data()
    ours, theirs = pair_of(name, positive=True, fit_intercept=intercept)
    ours.fit(x, y), theirs.fit(x, y)
    assert (ours.coef_ >= 0).all()
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)
    assert ours.certificate_.error < 1e-8
    assert any("cut off" in str(note) for note in [ours.ledger_])


@pytest.mark.parametrize("moved", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("model", [LinearRegression(positive=True), Lasso(0.1, positive=True)])
def test_the_proof_under_signs_covers_points_beside_the_optimum(model, moved):
    x, y = (torch.from_numpy(part) for part in data(1))
    machine = Machine(7, layout="stream")
    source = ArraySource(x, y)
    best = machine.run(model, source)
    problem = model.problem(machine.start(), source)
    w = problem.scaling.scaled(best.coef, best.intercept)
    away = torch.linspace(-1, 1, len(w), dtype=torch.float64) * moved
    beside = torch.where(w == 0, w, (w + away).clamp(min=0))
    beside[-1] = w[-1] + away[-1]
    level = getattr(model, "thresholds", lambda s: torch.zeros_like(problem.ridge))
    proof = prove_nonnegative(problem, beside, level(problem.scaling))
    bounds = proof.bounds(problem.scaling.functionals())[:-1]
    apart = (problem.scaling.raw(beside)[0] - best.coef).abs()
    assert bool((apart <= bounds + best.certificate.error).all())
    assert float(bounds.max()) <= 30 * moved + 1e-9


def test_signs_need_all_data_at_once():
    x, y = data()
    with pytest.raises(ProgramError, match="not in batches"):
        ice.InContextRidge(positive=True).partial_fit(x, y)


@pytest.mark.parametrize("name", PEERS)
def test_labels_of_several_columns(name):
    x, y = data()
    labels = np.stack([y, x[:, 0] - y**2], 1)
    ours, theirs = pair_of(name)
    weights = np.linspace(0, 2, len(y))
    ours.fit(x, labels, sample_weight=weights), theirs.fit(x, labels, sample_weight=weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), atol=1e-8)
    assert len(ours.certificates_) == 2
    assert ours.certificate_.error == max(c.error for c in ours.certificates_)


def test_a_penalty_for_each_column_and_one_column_of_several():
    x, y = data()
    labels = np.stack([y, x[:, 0] - y**2], 1)
    alphas = np.array([0.5, 20.0])
    ours, theirs = (kind(alpha=alphas, max_iter=None).fit(x, labels)
                    for kind in (ice.InContextRidge, linear_model.Ridge))  # fmt: skip
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-10)
    with pytest.raises(ValueError, match="penalties do not correspond: 2 != 1"):
        ours.fit(x, y)
    for name, peer in PEERS.items():
        ours = getattr(ice, name)().fit(x, y[:, None])
        theirs = clone(peer).fit(x, y[:, None])
        assert ours.coef_.shape == theirs.coef_.shape
        assert ours.predict(x).shape == theirs.predict(x).shape


WARM = [
    n for n in ice.ESTIMATORS if "warm_start" in inspect.signature(getattr(ice, n)).parameters
]  # fmt: skip


@pytest.mark.parametrize("name", ["InContextPoissonRegressor", "InContextLogisticRegression"])
def test_a_warm_start_begins_where_the_last_fit_ended(name):
    x, y = data()
    y = np.abs(np.floor(y)) if "Poisson" in name else y > 1
    model = getattr(ice, name)(warm_start=True)
    first = model.fit(x, y).n_passes_
    coef = model.coef_
    assert model.fit(x, y).n_passes_ < first
    np.testing.assert_allclose(model.coef_, coef, rtol=0, atol=2 * model.certificate_.error)
    cold = getattr(ice, name)().fit(x, y)
    assert cold.fit(x, y).n_passes_ == first


def test_huber_begins_with_the_scale_too():
    x, y = data()
    model = ice.InContextHuberRegressor(warm_start=True).fit(x, y)
    before, cold = model.coef_, model.n_passes_
    assert model.fit(x, y).n_passes_ <= 4 < cold
    np.testing.assert_allclose(model.coef_, before, atol=1e-9)


def test_who_starts_warm():
    peers = {"ElasticNet", "Lasso", "HuberRegressor", "PoissonRegressor", "LogisticRegression"}
    assert {n.removeprefix("InContext") for n in WARM} == peers | {"Perceptron"}


@pytest.mark.parametrize(
    ("name", "most"),
    [("InContextLasso", 3), ("InContextLogisticRegression", 3), ("InContextHuberRegressor", 12)],
)
def test_max_iter_is_the_most_passes(name, most):
    x, y = data()
    y = y > 1 if "Logistic" in name else y
    model = getattr(ice, name)(max_iter=most)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(x, y)
    assert model.n_passes_ <= most + 1


def test_without_passes_the_answer_is_where_they_begin_and_each_one_leads_on():
    x, y = data()
    labels = y > 1
    none = ice.InContextLogisticRegression(max_iter=0)
    with pytest.warns(ConvergenceWarning, match="after 0 passes"):
        none.fit(x, labels)
    assert none.n_iter_ == 0
    assert (none.predict_proba(x) == 0.5).all()
    end = ice.InContextLogisticRegression().fit(x, labels)
    apart = np.abs(none.coef_ - end.coef_).max()
    assert apart <= none.certificate_.error + end.certificate_.error
    one = ice.InContextLogisticRegression(max_iter=1, warm_start=True)
    for _ in range(8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            one.fit(x, labels)
        before, apart = apart, np.abs(one.coef_ - end.coef_).max()
        assert apart < before or apart < 1e-9
    assert apart < 1e-9


def test_a_fit_begins_with_coefficients_that_somebody_has_set():
    x, y = data()
    model = ice.InContextLasso(0.1, warm_start=True)
    model.coef_ = np.full(x.shape[1], 1e3)
    want = ice.InContextLasso(0.1).fit(x, y)
    apart = np.abs(model.fit(x, y).coef_ - want.coef_).max()
    assert apart <= model.certificate_.error + want.certificate_.error


@pytest.mark.parametrize(
    "name", ["InContextRidge", "InContextLasso", "InContextLogisticRegression"]
)
def test_single_precision_stays_and_is_counted(name):
    x, y = data()
    x = x.astype(np.float32)
    y = y > 1 if "Logistic" in name else y
    single = getattr(ice, name)().fit(x, y)
    double = getattr(ice, name)().fit(x.astype(np.float64), y)
    assert single.coef_.dtype == single.intercept_.dtype == np.float32
    apart = np.abs(single.coef_.astype(float) - double.coef_).max()
    assert 0 < apart <= single.certificate_.error + double.certificate_.error
    assert "stored as float32" in single.certificate_.terms
    out = single.decision_function(x) if "Logistic" in name else single.predict(x)
    assert out.dtype == np.float32


@pytest.mark.parametrize("balance", ["balanced", {0: 1.0, 1: 3.0}])
def test_class_weights_are_factors_of_weights(balance):
    x, y = data()
    labels = (y > 2).astype(int)
    ours = ice.InContextLogisticRegression(class_weight=balance).fit(x, labels)
    theirs = linear_model.LogisticRegression(
        class_weight=balance, tol=1e-12, solver="newton-cholesky"
    ).fit(x, labels)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)


# ------------------------------------------------------------------------------ what peers have too


def flowers():
    """Iris, no two distances alike."""
    x, y = datasets.load_iris(return_X_y=True)
    return x + 1e-3 * np.random.default_rng(0).normal(size=x.shape), y


def _closely(distances):
    return 1 / (1 + distances) ** 2


@pytest.mark.parametrize("weights", ["uniform", "distance", _closely, None])
def test_neighbours_of_columns_of_samples_and_by_given_weights(weights):
    x, y = flowers()
    both = np.stack([y, x[:, 0]], 1)
    ours = ice.InContextKNeighborsRegressor(4, weights=weights, algorithm="kd_tree").fit(x, both)
    theirs = neighbors.KNeighborsRegressor(4, weights=weights).fit(x, both)
    for points in (x[::5] + 0.01, None):  # None: the samples, none its own neighbour
        off = np.abs(ours.predict(points) - theirs.predict(points)).max()
        assert off <= ours.certificate_.error + 1e-14
    votes = ice.InContextKNeighborsClassifier(4, weights=weights, n_jobs=2).fit(x, y)
    other = neighbors.KNeighborsClassifier(4, weights=weights).fit(x, y)
    np.testing.assert_allclose(votes.predict_proba(None), other.predict_proba(None), atol=1e-13)
    assert (votes.kneighbors(n_neighbors=3)[1] == other.kneighbors(n_neighbors=3)[1]).all()
    graphs = [m.kneighbors_graph(x[:9], 3, mode="distance") for m in (votes, other)]
    np.testing.assert_allclose(graphs[0].toarray(), graphs[1].toarray(), rtol=1e-14)


def test_neighbours_vote_on_several_columns_of_classes():
    x, y = flowers()
    both = np.stack([y.astype(str), np.where(x[:, 0] > 6, "long", "short")], 1)
    ours = ice.InContextKNeighborsClassifier(4, weights="distance").fit(x, both)
    theirs = neighbors.KNeighborsClassifier(4, weights="distance").fit(x, both)
    for points in (x[::7] + 0.01, None):
        assert (ours.predict(points) == theirs.predict(points)).all()
        for mine, other in zip(
            ours.predict_proba(points), theirs.predict_proba(points), strict=True
        ):
            np.testing.assert_allclose(mine, other, atol=1e-13)
    assert [c.tolist() for c in ours.classes_] == [c.tolist() for c in theirs.classes_]


def test_no_components_leave_the_mean_and_noise():
    x, _ = flowers()
    ours, theirs = (kind(n_components=0).fit(x) for kind in (ice.InContextPCA, PCA))
    assert ours.transform(x).shape == theirs.transform(x).shape == (len(x), 0)
    assert ours.score(x) == pytest.approx(theirs.score(x), rel=1e-12)


def test_refused_weights_of_neighbours():
    x, y = flowers()
    model = ice.InContextKNeighborsClassifier(weights=lambda d: 0 * d).fit(x, y)
    with pytest.raises(ValueError, match="All neighbors of some sample is getting zero weights"):
        model.predict(x)
    model = ice.InContextKNeighborsClassifier(weights=lambda d: d - 1).fit(x, y)
    with pytest.raises(ValueError, match="to as many numbers >= 0"):
        model.predict(x)
    with pytest.raises(ValueError, match="n_neighbors = 150, n_samples_fit = 150"):
        model.kneighbors(n_neighbors=150)


def test_more_neighbours_than_samples_are_refused_when_they_are_asked_for():
    """As scikit-learn does: a fit asks for none."""
    x, y = flowers()
    for kind in (ice.InContextKNeighborsClassifier, ice.InContextKNeighborsRegressor):
        model = kind(n_neighbors=5).fit(x[::40], y[::40])
        with pytest.raises(ValueError, match="n_neighbors = 5, n_samples_fit = 4, n_samples = 150"):
            model.predict(x)
        assert model.kneighbors(x[:1], 4)[1].shape == (1, 4)


def test_how_often_several_classes_were_passed_over_is_one_count():
    x, y = flowers()
    for labels in (y, y == 1):
        model = ice.InContextLogisticRegression().fit(x, labels)
        assert model.n_iter_.shape == (1,)
        assert model.n_iter_[0] == model.n_passes_


def test_labels_of_0_leave_nothing_but_0():
    model = ice.InContextLinearRegression(positive=True).fit([[1]], [0])
    assert model.coef_ == model.intercept_ == model.predict([[1]]) == 0


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("count", [2, 0.95, 0.999, None, "mle"])
def test_components_as_a_model_of_the_samples(count, whiten):
    x, _ = flowers()
    ours, theirs = (kind(count, whiten=whiten).fit(x) for kind in (ice.InContextPCA, PCA))
    assert ours.n_components_ == theirs.n_components_
    z = theirs.transform(x)
    np.testing.assert_allclose(ours.transform(x), z, atol=1e-11)
    np.testing.assert_allclose(ours.inverse_transform(z), theirs.inverse_transform(z), atol=1e-12)
    if whiten:  # of which scikit-learn's densities know in another way
        return
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-12)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), rtol=1e-10)
    np.testing.assert_allclose(ours.score_samples(x), theirs.score_samples(x), rtol=1e-10)
    assert abs(ours.score(x) - theirs.score(x)) < 1e-12
    assert abs(ours.noise_variance_ - theirs.noise_variance_) < 1e-13


def test_minkas_estimate_needs_as_many_samples_as_features():
    with pytest.raises(ValueError, match="n_samples >= n_features; there are 3 samples of 4"):
        ice.InContextPCA("mle").fit(flowers()[0][:3])


@pytest.mark.parametrize("weighed", [False, True])
def test_the_gap_of_sparse_models_is_the_peers(weighed):
    x, y = datasets.load_diabetes(return_X_y=True)
    weights = np.random.default_rng(0).uniform(0.1, 3, len(x)) if weighed else None
    for ours, theirs in (
        (ice.InContextLasso(0.1), linear_model.Lasso(0.1, tol=1e-3)),
        (ice.InContextElasticNet(0.01), linear_model.ElasticNet(0.01, tol=1e-3)),
    ):
        ours.fit(x, y, sample_weight=weights, check_input=False)
        theirs.fit(x, y, sample_weight=weights)
        assert 0 <= ours.dual_gap_ < 1e-5
        ours.coef_ = theirs.coef_
        assert ours._gap(x, y, weights) == pytest.approx(theirs.dual_gap_, rel=1e-9)
