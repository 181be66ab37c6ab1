"""Dask collections: the in-memory answer from workers, one of which is killed on the way."""

import contextlib
import os
import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import iceform_estimators as ice
from iceform.errors import DtypeError, ShapeError
from iceform_estimators.machine.dask import DaskSource

PATIENCE = 150  # seconds until something that takes a few is taken to hang
AGREE = 1e-8  # how far a distributed answer may be from the in-memory one


@contextlib.contextmanager
def within(seconds):
    """Fail instead of waiting for ever."""

    def stop(*_):
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit="2GiB",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as found,
    ):
        yield found


def load(index, rows, dim, folder):
    """One chunk [X, y] from its own seed; leaves a mark each time it is computed."""
    if folder:
        with open(os.path.join(folder, f"{index}"), "a") as marks:
            marks.write("x")
    rng = np.random.default_rng(index)
    scales = np.geomspace(0.1, 10, dim)
    x = (rng.standard_normal((rows, dim)) + 3) * scales
    y = x @ (np.arange(dim) / scales) + rng.standard_normal(rows)
    y[::100] += 50
    return np.hstack([x, y[:, None]])


def recomputable(chunks, rows, dim, folder=""):
    """A collection that is its own recipe."""
    places = da.arange(chunks, chunks=1)

    def block(place):
        return load(int(place[0]), rows, dim, folder)

    table = places.map_blocks(
        block, new_axis=1, chunks=((rows,) * chunks, (dim + 1,)), dtype=np.float64,
        meta=np.empty((0, 0)),
    )  # fmt: skip
    return table[:, :dim], table[:, dim]


def in_memory(chunks, rows, dim):
    table = np.vstack([load(i, rows, dim, "") for i in range(chunks)])
    return table[:, :dim].copy(), table[:, dim].copy()


@contextlib.contextmanager
def killing_a_worker(client, monkeypatch, sweep):
    """SIGKILL one of the workers while it is busy with the given sweep over the data."""
    workers = client.run(os.getpid)
    victim, pid = sorted(workers.items())[0]
    real, sweeps, killed = DaskSource.combine, [], threading.Event()

    def kill():
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if client.processing([victim])[victim]:
                break
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        killed.set()

    def combine(self, *given):
        sweeps.append(0)
        if len(sweeps) == sweep:
            threading.Thread(target=kill).start()
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(DaskSource, "combine", combine)
        yield
    assert killed.wait(60), f"nobody was killed in {len(sweeps)} sweeps"
    client.wait_for_workers(2, timeout=60)
    assert pid not in client.run(os.getpid).values()


def agrees(found, expected):
    """Within both certificates, and within 1e-8."""
    bound = found.certificate_.error + expected.certificate_.error
    off = float(np.abs(found.coef_ - expected.coef_).max())
    assert off <= min(bound, AGREE), f"{off:.3g} apart, certificates {bound:.3g}"
    assert np.abs(found.intercept_ - expected.intercept_).max() <= AGREE
    assert found.digest_ == expected.digest_


# -------------------------------------------------------------------- without a cluster, at edges


def both(x, y, **chunks):
    return da.from_array(x, **chunks), da.from_array(y)


@pytest.fixture
def small():
    x, y = in_memory(1, 300, 3)
    return x, y, ice.InContextRidge().fit(x, y)


def test_chunks_of_unknown_length(small):
    x, y, expected = small
    lazy, labels = da.from_array(x, chunks=(100, 3)), da.from_array(y, chunks=100)
    keep = labels > np.median(y)
    some = ice.InContextRidge().fit(lazy[keep], labels[keep])
    agrees(some, ice.InContextRidge().fit(x[y > np.median(y)], y[y > np.median(y)]))
    predicted = some.predict(lazy[keep]).compute()
    assert predicted.shape == (150,)
    assert np.isnan(lazy[keep].shape[0]), "the caller's collection was changed"
    assert expected.n_features_in_ == 3


def test_chunks_without_rows_are_passed_over(small):
    x, y, expected = small
    frame = pd.DataFrame(x, columns=list("abc")).assign(y=y)
    parts = dd.from_pandas(frame, npartitions=4)
    sparse = parts.map_partitions(lambda part: part[part.index < 100])
    found = ice.InContextRidge().fit(sparse[list("abc")], sparse["y"])
    agrees(found, ice.InContextRidge().fit(x[:100], y[:100]))
    assert found.predict(sparse[list("abc")]).compute().shape == (100,)
    hollow = da.concatenate([da.zeros((0, 3)), da.from_array(x, chunks=(200, 3))])
    agrees(ice.InContextRidge().fit(hollow, da.from_array(y)), expected)


def test_labels_in_memory_and_single_precision(small):
    x, y, expected = small
    agrees(ice.InContextRidge().fit(da.from_array(x, chunks=(70, 2)), y), expected)
    single = ice.InContextRidge().fit(x.astype(np.float32), y)
    agrees(ice.InContextRidge().fit(da.from_array(x.astype(np.float32), chunks=90), y), single)


REFUSED = {
    "NaN in X": (lambda x, y: both(_with_nan(x), y), ValueError, "Input X contains NaN"),
    "NaN in y": (lambda x, y: both(x, _with_nan(y)), ValueError, "Input y contains NaN"),
    "infinity": (lambda x, y: both(x, y / 0), ValueError, "Input y contains NaN or infinity"),
    "lengths": (lambda x, y: both(x, y[1:]), ShapeError, "X has 300 rows, y 299"),
    "y of two columns": (lambda x, y: both(x, x), ShapeError, "take one column"),
    "X of one": (lambda x, y: both(y, y), ValueError, "Expected 2D input"),
    "no y": (lambda x, y: (da.from_array(x), None), ValueError, "requires y to be passed"),
    "no rows": (lambda x, y: both(x[:0], y[:0]), ShapeError, "no rows"),
    "no columns": (lambda x, y: both(x[:, :0], y), ShapeError, "dim must be"),
    "words": (lambda x, y: both(x.astype(str), y), None, None),
}


def _with_nan(values):
    return np.where(np.arange(values.size).reshape(values.shape) == 17, np.nan, values)


@pytest.mark.parametrize("case", REFUSED)
def test_bad_collections_are_refused(small, case):
    x, y, _ = small
    make, error, message = REFUSED[case]
    with np.errstate(divide="ignore"):
        given = make(x, y)
    if error is None:  # words that are numbers are read as numbers, as scikit-learn does
        agrees(ice.InContextRidge().fit(*given), small[2])
        return
    with pytest.raises(error, match=message):
        ice.InContextRidge().fit(*given)


def test_dataframes_that_are_refused(small):
    x, y, _ = small
    frame = pd.DataFrame(x, columns=list("abc")).assign(word="w", y=y)
    parts = dd.from_pandas(frame, npartitions=3)
    with pytest.raises(DtypeError, match="these columns are not: word"):
        ice.InContextRidge().fit(parts[["a", "word"]], parts["y"])
    with pytest.raises(ShapeError, match=r"3 chunks of unknown length and y 2"):
        ice.InContextRidge().fit(parts[["a", "b"]], dd.from_pandas(frame["y"], npartitions=2))
    uneven = dd.from_pandas(frame["y"], npartitions=3).map_partitions(lambda part: part[1:])
    with pytest.raises(ShapeError, match="chunks of X and y must have the same rows"):
        ice.InContextRidge().fit(parts[["a", "b"]], uneven)


def test_predictions_check_their_columns(small):
    x, _, expected = small
    with pytest.raises(ValueError, match="X has 2 features, but InContextRidge is expecting 3"):
        expected.predict(da.from_array(x[:, :2]))


def test_partial_fit_takes_collections():
    x, y = in_memory(4, 500, 3)
    batches = ice.InContextRidge()
    for rows in (slice(0, 1200), slice(1200, None)):
        batches.partial_fit(da.from_array(x[rows], chunks=500), da.from_array(y[rows], chunks=500))
    agrees(batches, ice.InContextRidge().fit(x, y))
    with pytest.raises(ValueError, match="X has 2 features, but InContextRidge is expecting 3"):
        batches.partial_fit(da.from_array(x[:, :2]), da.from_array(y))


# ------------------------------------------------------------------------- the death of a worker


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(client, monkeypatch, tmp_path):
    chunks, rows, dim = 8, 25_000, 20
    x, y = recomputable(chunks, rows, dim, str(tmp_path))
    with within(PATIENCE), killing_a_worker(client, monkeypatch, sweep=3):
        found = ice.InContextRidge().fit(x, y)
    agrees(found, ice.InContextRidge().fit(*in_memory(chunks, rows, dim)))
    loads = [len(mark.read_text()) for mark in tmp_path.iterdir()]
    assert len(loads) == chunks
    # The chunks that the worker held were lost and computed again; the others were kept.
    assert min(loads) == 1
    assert max(loads) > 1
    # Who computed what when does not show.
    with within(PATIENCE):
        again = ice.InContextRidge().fit(x, y)
    assert (again.coef_ == found.coef_).all()
    assert again.intercept_ == found.intercept_
    assert again.certificate_.error == found.certificate_.error


@pytest.mark.slow
def test_a_restarted_scheduler_changes_nothing(client, monkeypatch, tmp_path):
    """It forgets the chunks that its workers keep; they are computed again, and kept."""
    x, y = recomputable(4, 2000, 6, str(tmp_path))
    real, sweeps = DaskSource.combine, []

    def combine(self, *given):
        sweeps.append(0)
        if len(sweeps) == 3:
            client.restart()
        return real(self, *given)

    with within(PATIENCE), monkeypatch.context() as patch:
        patch.setattr(DaskSource, "combine", combine)
        found = ice.InContextRidge().fit(x, y)
    assert len(sweeps) >= 3
    agrees(found, ice.InContextRidge().fit(*in_memory(4, 2000, 6)))
    assert [len(mark.read_text()) for mark in tmp_path.iterdir()] == [2] * 4


def test_arrays_in_the_graph_survive_too(client, monkeypatch):
    x, y = in_memory(4, 2000, 6)
    with within(PATIENCE), killing_a_worker(client, monkeypatch, sweep=3):
        found = ice.InContextRidge().fit(da.from_array(x, chunks=(1500, 4)), da.from_array(y))
    agrees(found, ice.InContextRidge().fit(x, y))


# ---------------------------------------------------------------------------- the same estimators

REGRESSORS = [
    ice.InContextLinearRegression(),
    ice.InContextRidge(2.0, fit_intercept=False),
    ice.InContextLasso(0.3),
    ice.InContextElasticNet(0.1),
    pytest.param(ice.InContextHuberRegressor(), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: type(e).__name__)
def test_regressors_on_arrays_and_dataframes(client, estimator):
    x, y = in_memory(3, 300, 4)
    lazy = recomputable(3, 300, 4)
    frame = pd.DataFrame(x, columns=list("abcd"))
    expected = estimator.fit(x, y)
    predicted = expected.predict(x)
    expected = _copy(expected)
    with within(PATIENCE):
        agrees(estimator.fit(*lazy), expected)
        off = np.abs(estimator.predict(lazy[0]).compute() - predicted).max()
        assert off <= AGREE * np.abs(predicted).max()
        labels = dd.from_pandas(pd.Series(y), npartitions=2)
        estimator.fit(dd.from_pandas(frame, npartitions=2), labels)
        agrees(estimator, expected)
    assert list(estimator.feature_names_in_) == list("abcd")


def _copy(estimator):
    """A fit that a later one does not overwrite."""
    copied = type(estimator)()
    copied.__dict__.update(estimator.__dict__)
    return copied


@pytest.mark.parametrize(
    "labels", [["no", "yes"], pytest.param(["a", "b", "c"], marks=pytest.mark.slow)]
)
def test_classifier_with_words_for_labels(client, labels):
    x, y = in_memory(3, 200, 4)
    names = np.array(labels)[
        np.digitize(y, np.quantile(y, np.linspace(0, 1, len(labels) + 1)[1:-1]))
    ]
    expected = ice.InContextLogisticRegression(C=0.01).fit(x, names)
    lazy = da.from_array(x, chunks=(250, 2))
    with within(PATIENCE):
        found = ice.InContextLogisticRegression(C=0.01).fit(lazy, da.from_array(names, chunks=200))
        agrees(found, expected)
        assert (found.predict(lazy).compute() == expected.predict(x)).all()
        for method in ("decision_function", "predict_proba"):
            got, want = getattr(found, method)(lazy), getattr(expected, method)(x)
            assert got.shape == want.shape
            assert np.abs(got.compute() - want).max() <= AGREE * np.abs(want).max()
    assert list(found.classes_) == labels


@pytest.mark.slow
def test_ten_million_rows_with_a_killed_worker(client, monkeypatch, tmp_path):
    chunks, rows, dim = 100, 100_000, 20
    x, y = recomputable(chunks, rows, dim, str(tmp_path))
    with within(1200), killing_a_worker(client, monkeypatch, sweep=3):
        found = ice.InContextRidge().fit(x, y)
    agrees(found, ice.InContextRidge().fit(*in_memory(chunks, rows, dim)))
    assert max(len(mark.read_text()) for mark in tmp_path.iterdir()) > 1
