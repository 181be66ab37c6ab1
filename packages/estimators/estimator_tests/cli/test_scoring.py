"""Figures of merit on the command line, against scikit-learn's."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import metrics

import iceform_estimators as ice
from iceform_estimators.command.running import scores_of


def scored(model, x, y, held_out, wanted):
    model.fit(x, y)
    data = SimpleNamespace(scored="test", x={"train": x, "test": held_out}, y={"test": wanted})
    found = scores_of(model.algorithm, data, model, None)
    return {score.name: score.ours for score in found}, model.predict(held_out)


def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    y = rng.poisson(np.exp(x @ [0.5, -0.3, 0.2] + 1)).astype(float)
    return x[:60], y[:60], x[60:], y[60:]


EVERY = {
    "R²": metrics.r2_score,
    "RMSE": metrics.root_mean_squared_error,
    "MAE": metrics.mean_absolute_error,
    "median error": metrics.median_absolute_error,
}


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (ice.InContextHuberRegressor(), {}),
        (ice.InContextPoissonRegressor(), {"Poisson deviance": metrics.mean_poisson_deviance}),
        (
            ice.InContextQuantileRegressor(quantile=0.8),
            {
                "pinball loss": lambda y, p: metrics.mean_pinball_loss(y, p, alpha=0.8),
                "share below": lambda y, p: (y <= p).mean(),
            },
        ),
        (
            ice.InContextExpectileRegressor(expectile=0.8),
            {"expectile loss": lambda y, p: np.mean(np.where(y > p, 0.8, 0.2) * (y - p) ** 2)},
        ),
    ],
)
def test_regressions_have_scores_that_fit_their_loss(model, more):
    found, predicted = scored(model, *table())
    wanted = table()[3]
    assert found.keys() == {**EVERY, **more}.keys()
    for name, score in {**EVERY, **more}.items():
        assert found[name] == pytest.approx(score(wanted, predicted), rel=1e-12), name


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "model", [ice.InContextLogisticRegression, ice.InContextKNeighborsClassifier]
)
def test_probabilities_are_scored(model, classes):
    x, y, held_out, wanted = table()
    y, wanted = np.minimum(y, classes - 1).astype(int), np.minimum(wanted, classes - 1).astype(int)
    fitted = model()
    found, predicted = scored(fitted, x, y, held_out, wanted)
    chances = fitted.predict_proba(held_out)
    assert found["accuracy"] == (predicted == wanted).mean()
    assert found["log-loss"] == pytest.approx(metrics.log_loss(wanted, chances), rel=1e-9)
    own = np.eye(classes)[wanted]
    brier = ((chances - own) ** 2).sum(1).mean() / (2 if classes == 2 else 1)
    assert found["Brier score"] == pytest.approx(brier, rel=1e-12)
    if classes == 2:
        theirs = metrics.brier_score_loss(wanted, chances[:, 1])
        assert found["Brier score"] == pytest.approx(theirs, rel=1e-9)


def test_a_class_that_was_not_learnt_counts_as_missed():
    x, y, held_out, wanted = table()
    y, wanted = (y > 2).astype(int), np.where(wanted > 4, 7, (wanted > 2).astype(int))
    found, _ = scored(ice.InContextLogisticRegression(), x, y, held_out, wanted)
    assert (wanted == 7).any()
    assert found["log-loss"] > 1
    assert np.isfinite(found["log-loss"])


def test_lines_alone_tell_no_probabilities():
    x, y, held_out, wanted = table()
    found, _ = scored(ice.InContextLinearSVC(), x, y > 2, held_out, wanted > 2)
    assert list(found) == ["accuracy"]
