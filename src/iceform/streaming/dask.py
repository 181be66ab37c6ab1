"""Dask collections as a source: the frozen machine goes to the workers, each chunk is a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.base import compute
from dask.delayed import delayed
from torch import Tensor

from iceform.errors import ShapeError
from iceform.streaming.sources import Source, Task

__all__ = ["DaskSource"]


class DaskSource(Source):
    """Samples and labels in a Dask array or dataframe.

    A pass sends one task per chunk to the workers and adds the results in the order of the chunks,
    so that the sum does not depend on who computed what. A worker that dies is replaced by
    recomputing its chunks, which is Dask's own doing; results already there are not computed again.

    Parameters
    ----------
    x, y
        Arrays (rows, dim) and (rows,), or a dataframe and a series, chunked alike along rows.
    """

    def __init__(self, x: Any, y: Any) -> None:
        x, y = _as_array(x), _as_array(y)
        if y is None:
            y = da.zeros(x.shape[0], chunks=x.chunks[0])
        if x.ndim != 2 or y.ndim != 1 or x.shape[0] != y.shape[0]:
            raise ShapeError(f"data must be (rows, dim) and (rows,), got {x.shape} and {y.shape}")
        x = x.rechunk({1: -1}).astype(np.float64)
        y = y.rechunk((x.chunks[0],)).astype(np.float64)
        self.rows, self.dim = map(int, x.shape)
        self.device = torch.device("cpu")
        keep = [i for i, size in enumerate(x.chunks[0]) if size]
        self._x = [x.to_delayed().ravel()[i] for i in keep]
        self._y = [y.to_delayed().ravel()[i] for i in keep]
        self.count = len(keep)
        self._check_finite()

    def _check_finite(self) -> None:
        bad = self.reduce(_count_bad)
        if int(bad[0]):
            raise ValueError("Input X contains NaN or infinity.")
        if int(bad[1]):
            raise ValueError("Input y contains NaN or infinity.")

    def results(self, task: Task) -> Iterator[Sequence[Tensor]]:
        send = delayed(_Remote(task))
        parts = [send(x, y) for x, y in zip(self._x, self._y, strict=True)]
        for part in compute(*parts):
            yield [torch.as_tensor(array) for array in part]

    @staticmethod
    def numbered(y: Any) -> tuple[Any, Any]:
        """The distinct labels in order, and the place of each sample's among them."""
        y = _as_array(y)
        classes = np.asarray(da.unique(y).compute())
        return classes, y.map_blocks(_places, classes, dtype=np.float64)


class _Remote:
    """A task on a worker: arrays in, arrays out."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, x: Any, y: Any) -> list[Any]:
        rows = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
        labels = torch.from_numpy(np.ascontiguousarray(y, dtype=np.float64))
        return [part.numpy() for part in self.task(rows, labels)]


def _count_bad(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(~torch.isfinite(x)).sum(), (~torch.isfinite(y)).sum()]


def _places(block: Any, classes: Any) -> Any:
    return np.searchsorted(classes, block).astype(np.float64)


def _as_array(values: Any) -> Any:
    """A Dask array with known chunk sizes."""
    if values is None or isinstance(values, da.Array):
        array = values
    elif hasattr(values, "to_dask_array"):
        array = values.to_dask_array(lengths=True)
    else:
        array = da.from_array(np.asarray(values))
    if array is not None and any(np.isnan(size) for size in array.chunks[0]):
        array.compute_chunk_sizes()
    return array
