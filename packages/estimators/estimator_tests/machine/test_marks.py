"""Data that change between passes are refused: a proof is about one set of numbers."""

import numpy as np
import pytest
import torch

from iceform.errors import IntegrityError
from iceform_estimators import InContextRidge, Machine, algorithms
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.sources import Source, fold, mark_of


def data(rows: int = 50, dim: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, dim, generator=draw, dtype=torch.float64)
    return x, x.sum(1) + 0.1 * torch.randn(rows, generator=draw, dtype=torch.float64)


def total(x, y):
    return [x.sum(0)]


def _swap(values, i, j):
    values[[i, j]] = values[[j, i]]


CHANGES = {
    "a unit in the last place": lambda x, y: x[41, 1].copy_(
        torch.nextafter(x[41, 1], torch.tensor(9.0).double())
    ),
    "the sign of a zero": lambda x, y: x[0, 0].fill_(-0.0),
    "a label": lambda x, y: y[7].add_(1e-9),
    "two samples swapped": lambda x, y: _swap(x, 3, 4),
    "two labels swapped": lambda x, y: _swap(y, 30, 3),
    "a column swapped": lambda x, y: _swap(x.mT, 0, 2),
    "samples and labels of two chunks": lambda x, y: [_swap(v, 0, 40) for v in (x, y)],
    "NaN": lambda x, y: x[2, 2].fill_(np.nan),
    "everything": lambda x, y: x.mul_(-1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_is_seen(change):
    x, y = data()
    x[0, 0] = 0.0
    source = ArraySource(x, y, chunk=16)
    source.reduce(total)
    source.reduce(total)
    CHANGES[change](x, y)
    with pytest.raises(IntegrityError, match="data changed between two passes"):
        source.reduce(total)
    ArraySource(x, y, chunk=16).reduce(total)  # another source is another promise


def test_equal_data_have_equal_marks_wherever_they_lie():
    x, y = data()
    wide = torch.zeros(50, 9, dtype=torch.float64)
    wide[:, 1:8:3] = x
    there = x.mT.contiguous().mT
    for same in (x.clone(), wide[:, 1:8:3], there):
        assert torch.equal(mark_of(same, y), mark_of(x, y))


class _Drifting(Source):
    """Other labels from the given pass on."""

    def __init__(self, x, y, after):
        self.x, self.y, self.left = x, y, after
        self.rows, self.dim, self.count, self.device = *x.shape, 4, x.device

    def combine(self, task, combine):
        self.left -= 1
        y = self.y + (1e-3 if self.left < 0 else 0.0)
        pieces = zip(self.x.split(20), y.split(20), strict=True)
        return fold((task(*piece) for piece in pieces), combine)


@pytest.mark.parametrize(
    "model",
    [
        algorithms.LinearRegression(),
        algorithms.Ridge(1.0),
        algorithms.Lasso(0.1),
        algorithms.Huber(),
        algorithms.PCA(1),
    ],
    ids=lambda model: model.name,
)
def test_no_run_certifies_a_source_that_drifts(model):
    machine = Machine(4, layout="stream")
    whole = _Drifting(*data(), 10**9)
    machine.run(model, whole)
    passes = 10**9 - whole.left
    assert passes >= 2
    for after in {1, passes // 2, passes - 1}:
        with pytest.raises(IntegrityError, match="data changed"):
            machine.run(model, _Drifting(*data(), after))


def test_a_memory_map_that_is_written_to(tmp_path):
    x, y = data()
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    source = ArraySource(torch.from_numpy(mapped), y)
    source.moments(products=True)
    mapped[3, 1] += 1
    with pytest.raises(IntegrityError, match="data changed"):
        Machine(4, layout="stream").run(algorithms.Ridge(), source)


def test_estimators_read_whatever_is_there_now():
    x, y = (v.numpy() for v in data())
    model = InContextRidge().fit(x, y)
    x *= 2
    np.testing.assert_allclose(model.fit(x, y).coef_.shape, (3,))
