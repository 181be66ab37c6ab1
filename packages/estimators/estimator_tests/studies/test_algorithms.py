"""Lasso, ridge and least squares of many data sets at once, against scikit-learn."""

import pytest
import torch
from sklearn.linear_model import Lasso, LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold

from studies.algorithms import centered, cross_validated, lasso, least_squares, ridge

ALPHA_LASSO, ALPHA_RIDGE = 0.4, 5.0
SOLVERS = {
    "lasso": (lambda x, y: lasso(x, y, ALPHA_LASSO),
              Lasso(ALPHA_LASSO, fit_intercept=False, tol=1e-14, max_iter=10**6), 1e-7),
    "ridge": (lambda x, y: ridge(x, y, ALPHA_RIDGE),
              Ridge(ALPHA_RIDGE, fit_intercept=False), 1e-12),
    "least squares": (least_squares, LinearRegression(fit_intercept=False), 1e-12),
}  # fmt: skip


def data(batch=4, n=30, d=8):
    x = 2 * torch.randn(batch, n, d, dtype=torch.float64) - 1
    w = torch.randn(batch, d, dtype=torch.float64) * (torch.rand(batch, d) < 0.5)
    return x, (x @ w[..., None])[..., 0] + torch.randn(batch, n, dtype=torch.float64)


@pytest.mark.parametrize("name", SOLVERS)
def test_batched_solvers_agree_with_scikit_learn(name):
    solve, model, tol = SOLVERS[name]
    x, y = data()
    for xi, yi, w in zip(x, y, solve(x, y), strict=True):
        exact = torch.as_tensor(model.fit(xi.numpy(), yi.numpy()).coef_)
        off = (w - exact).abs().max()
        assert off <= tol * exact.abs().max(), f"off by {off:.3g}"


def test_least_squares_without_full_rank_has_the_least_norm():
    x, y = data(n=5, d=8)
    for xi, yi, w in zip(x, y, least_squares(x, y), strict=True):
        exact = torch.linalg.lstsq(xi, yi, driver="gelsd").solution
        assert (w - exact).abs().max() <= 1e-9 * exact.abs().max()


@pytest.mark.parametrize("fit", [lasso, ridge])
def test_cross_validation_picks_as_scikit_learn_does(fit):
    x, y = data(batch=1, n=60)
    grid = [0.01, 0.1, 1.0, 10.0, 100.0] if fit is ridge else [0.01, 0.05, 0.2, 0.8]
    model = Ridge() if fit is ridge else Lasso(tol=1e-10)
    search = GridSearchCV(
        model, {"alpha": grid}, cv=KFold(5), scoring="neg_mean_squared_error"
    ).fit(x[0].numpy(), y[0].numpy() + 3)
    assert cross_validated(fit, x[0], y[0] + 3, grid, 5) == search.best_params_["alpha"]


def test_centering_is_an_intercept():
    x, y = data(batch=1)
    y = y + 7
    xc, yc, x_mean, y_mean = centered(x, y)
    w = ridge(xc, yc, ALPHA_RIDGE)[0]
    model = Ridge(ALPHA_RIDGE).fit(x[0].numpy(), y[0].numpy())
    assert (w - torch.as_tensor(model.coef_)).abs().max() <= 1e-12
    assert float(y_mean[0] - x_mean[0] @ w) == pytest.approx(model.intercept_, rel=1e-12)
