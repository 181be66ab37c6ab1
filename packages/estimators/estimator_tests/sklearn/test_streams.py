"""Estimators on data that come in batches or lie in files."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge

from iceform_estimators import InContextRidge
from iceform_estimators._base import as_tensor


def data(rows=3000, dim=6, seed=0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, dim)) - 2) * np.geomspace(0.01, 100, dim)
    return x, x @ rng.standard_normal(dim) + rng.standard_normal(rows)


def apart(first, second):
    """Difference of coefficients, and what the certificates allow."""
    off = float(np.abs(first.coef_ - second.coef_).max())
    return off, first.certificate_.error + second.certificate_.error


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.5, 100.0])
@pytest.mark.parametrize("sizes", [(3000,), (1500, 1500), (50, 2950), (1000, 1, 999, 1000)])
def test_partial_fit_is_fit(sizes, alpha, intercept):
    x, y = data()
    estimator = InContextRidge(alpha, fit_intercept=intercept)
    whole, batches = clone(estimator).fit(x, y), clone(estimator)
    ends = np.cumsum(sizes)
    for start, end in zip(ends - sizes, ends, strict=True):
        batches.partial_fit(x[start:end], y[start:end])
    off, allowed = apart(whole, batches)
    assert off <= allowed, f"{off:.3g} apart, certificates {allowed:.3g}"
    assert abs(batches.intercept_ - whole.intercept_) <= 1e-7 * max(1, abs(whole.intercept_))
    exact = Ridge(alpha, fit_intercept=intercept, solver="cholesky").fit(x, y)
    assert np.abs(batches.coef_ - exact.coef_).max() <= 1e-9 * np.abs(exact.coef_).max()


def test_batches_are_drifting():
    """Coordinates are set by the first batch; later ones may lie elsewhere."""
    x, y = data()
    moved = x + 30 * np.geomspace(0.01, 100, x.shape[1])
    labels = y + 30 * (moved - x).sum(1)
    batches = InContextRidge().partial_fit(x, y).partial_fit(moved, labels)
    whole = InContextRidge().fit(np.vstack([x, moved]), np.hstack([y, labels]))
    off, allowed = apart(whole, batches)
    assert off <= allowed, f"{off:.3g} apart, certificates {allowed:.3g}"


def test_fit_forgets_batches():
    x, y = data()
    estimator = InContextRidge().partial_fit(x[:100], y[:100]).fit(x, y)
    assert (estimator.coef_ == InContextRidge().fit(x, y).coef_).all()
    again = estimator.partial_fit(x[:100], y[:100])
    assert (again.coef_ == InContextRidge().partial_fit(x[:100], y[:100]).coef_).all()


def test_a_batch_of_another_width_is_refused():
    x, y = data()
    estimator = InContextRidge().partial_fit(x, y)
    with pytest.raises(ValueError, match="X has 5 features, but InContextRidge is expecting 6"):
        estimator.partial_fit(x[:, :5], y)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_mapped_files_are_shared_not_copied(tmp_path, mode, order):
    x, y = data()
    np.asfortranarray(x).T.tofile(tmp_path / "F")
    x.tofile(tmp_path / "C")
    mapped = np.memmap(tmp_path / order, np.float64, mode, shape=x.shape, order=order)
    assert np.shares_memory(as_tensor(mapped).numpy(), mapped)
    found, expected = InContextRidge().fit(mapped, y), InContextRidge().fit(x, y)
    off, allowed = apart(found, expected)
    assert off <= allowed
    # Sums over columns round differently where columns, not rows, are contiguous.
    scale = np.abs(x) @ np.abs(found.coef_) + abs(found.intercept_)
    slip = np.finfo(float).eps * (x.shape[1] + 64) * scale.max()
    assert np.abs(found.predict(mapped) - found.predict(x)).max() <= slip


def test_read_only_arrays_stay_as_they_are():
    x, y = data()
    x.setflags(write=False)
    y.setflags(write=False)
    before = x.copy()
    InContextRidge().fit(x, y).predict(x)
    assert (x == before).all()
    assert not x.flags.writeable
