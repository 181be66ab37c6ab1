"""Data larger than a chunk: sweeps, moments, memory that does not grow with the rows."""

import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from iceform_estimators import ArraySource
from iceform_estimators.algorithms import Ridge
from iceform_estimators.machine import Machine
from iceform_estimators.machine.problem import Scaling
from iceform_estimators.machine.sources import fold, longest_chain, rows_at_once

UNIT = torch.finfo(torch.float64).eps / 2
CPU = torch.device("cpu")


def data(rows=5000, dim=7, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, dim)) + offset) * np.geomspace(0.1, 10, dim)
    y = x @ rng.standard_normal(dim) + rng.standard_normal(rows) + 2
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize("chunk", [1, 3, 64, 4999, 5000, 9999])
@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6])
def test_moments_of_any_chunks(chunk, offset):
    x, y = data(offset=offset)
    found = ArraySource(x, y, chunk).moments(products=True)
    wide = x.numpy().astype(np.longdouble)
    mean = wide.mean(0)
    moved = wide - mean
    products = (moved.T @ moved).astype(float)
    # A mean rounds relative to itself; products of differences from it to their own size, and to
    # the square of what the mean may be off by.
    slip = longest_chain(len(x)) * 4 * UNIT * np.abs(mean.astype(float))
    assert (np.abs(found.mean.numpy() - mean) <= slip).all()
    size = np.sqrt(np.diag(products))
    allowed = 1e-12 * np.outer(size, size) + len(x) * np.outer(slip, slip)
    allowed += np.outer(size, slip) * len(x) ** 0.5
    assert (np.abs(found.products.numpy() - products) <= allowed + allowed.T).all()
    assert found.rows == len(x)
    assert (found.low, found.high) == (float(y.min()), float(y.max()))
    assert (
        abs(found.label_spread - float((y - y.mean()).square().sum())) <= 1e-9 * found.label_spread
    )


@pytest.mark.parametrize("value", [0.1, 7e5, -3e-9, 0.0])
def test_a_constant_column_has_scale_one(value):
    x, y = data(200_000, 2)
    x[:, 1] = value
    scaling = Scaling.of(ArraySource(x, y), intercept=True)
    assert float(scaling.scale[1]) == 1.0


def test_moments_are_taken_once():
    source = ArraySource(*data())
    assert source.moments(products=True) is source.moments(products=False)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_second_moments_are_those_of_the_scaled_samples(intercept, offset):
    source = ArraySource(*data(offset=offset))
    scaling = Scaling.of(source, intercept=intercept)
    samples = scaling.samples(source.x)
    direct = samples.mT @ samples / source.rows
    found = scaling.second_moments(source)
    assert float((found - direct).abs().max()) <= 1e-11 * (1 + offset)


def test_means_far_from_the_data_are_not_trusted():
    source = ArraySource(*data(offset=1e8))
    assert Scaling.of(source, intercept=True).second_moments(source) is None
    found = Machine(8).run(Ridge(fit_intercept=True), source)
    assert found.certificate.error < 1e-3


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_fold_keeps_the_order_and_its_chain_short(count):
    depths = []

    def combine(first, second):
        longest = torch.maximum(first[1], second[1]) + 1
        depths.append(float(longest))
        return [torch.cat([first[0], second[0]]), longest]

    parts = ([torch.tensor([float(i)]), torch.zeros(())] for i in range(count))
    order, _ = fold(parts, combine)
    assert order.tolist() == list(range(count))
    assert max(depths, default=0) <= longest_chain(count)


def test_sweeps_leave_the_number_of_threads_alone():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen = []
        source = ArraySource(*data())
        source.reduce(lambda x, y: [seen.append(torch.get_num_threads()), x.sum(0)][1:])
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            source.reduce(lambda x, y: [x / (1 // 0)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_pass_is_as_short_as_its_labels_allow():
    """The table covers the labels from the start, so no pass is spent on finding out."""
    x, y = data()
    assert Machine(8).run(Ridge(fit_intercept=True), x, y * 1e6).passes == 2


def test_chunks_stay_in_cache():
    assert rows_at_once(50, CPU) * 50 * 8 <= 1 << 18
    assert rows_at_once(10**6, CPU) == 256


def in_a_process(code):
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_million_rows_within_three_gib():
    code = r"""
        import pathlib, re
        import numpy as np
        from iceform_estimators import InContextRidge
        rng = np.random.default_rng(0)
        x = rng.standard_normal((1_000_000, 50))
        y = x @ np.arange(50.0) + rng.standard_normal(1_000_000)
        found = InContextRidge().fit(x, y)
        # The peak of this process alone: ru_maxrss starts at the parent's.
        status = pathlib.Path("/proc/self/status").read_text()
        print(re.search(r"VmHWM:\s*(\d+)", status)[1], found.certificate_.error)
    """
    kib, error = map(float, in_a_process(code).split())
    assert kib < 3 * 2**20
    assert error < 1e-8


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="no limit on data")
@pytest.mark.skipif(sys.platform != "linux", reason="mapped files count as data elsewhere")
def test_a_mapped_file_is_not_loaded(tmp_path):
    """With 44 MiB to spare, a file of 48 MB is fitted, as a whole and by batches."""
    code = f"""
        import resource
        import numpy as np
        from iceform_estimators import InContextRidge
        rows, dim = 300_000, 20
        x = np.memmap({str(tmp_path / "x")!r}, np.float64, "w+", shape=(rows, dim))
        rng = np.random.default_rng(0)
        for start in range(0, rows, 10_000):
            x[start : start + 10_000] = rng.standard_normal((10_000, dim))
        y = x @ np.arange(float(dim)) + 1
        x.flush()
        small = InContextRidge().fit(x[:1000], y[:1000])  # everything is imported
        for line in open("/proc/self/status"):
            if line.startswith("VmData"):
                used = int(line.split()[1]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + (44 << 20),) * 2)
        try:
            np.ones((rows, dim))
        except MemoryError:
            pass
        else:
            raise SystemExit("the limit does not hold")
        read = np.memmap({str(tmp_path / "x")!r}, np.float64, "r", shape=(rows, dim))
        found = InContextRidge().fit(read, y)
        batches = InContextRidge()
        for start in range(0, rows, 100_000):
            batches.partial_fit(read[start : start + 100_000], y[start : start + 100_000])
        bound = found.certificate_.error + batches.certificate_.error
        off = np.abs(found.coef_ - batches.coef_).max()
        assert off <= bound, (off, bound)
        off = np.abs(found.predict(read[:1000]) - y[:1000]).max()
        assert off < 1e-3, off
        print(bound)
    """
    assert float(in_a_process(code)) < 1e-7
