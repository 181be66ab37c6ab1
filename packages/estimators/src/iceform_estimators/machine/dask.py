"""Dask collections as a source: the frozen machine goes to the workers, each chunk is a prompt."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.base import compute, persist
from dask.delayed import delayed
from torch import Tensor

from iceform.errors import DtypeError, ShapeError
from iceform.validation import check_size
from iceform_estimators.machine.sources import (
    Combine,
    Source,
    Task,
    fold,
    longest_chain,
    one_thread,
    rows_at_once,
)
from iceform_estimators.tuning import TRIES

_CPU = torch.device("cpu")


class DaskSource(Source):
    """Samples and labels in Dask arrays or dataframes.

    A pass sends one task per chunk to the workers. There the chunk is walked over in pieces that
    stay in cache; what comes back is a gradient's size. Chunks are combined in their order, so that
    the answer does not depend on who computed what when.

    On a cluster the chunks stay on the workers between passes if they take at most half of their
    memory; otherwise, and without a cluster, every pass computes them anew. Dask replaces what a
    dying worker takes with it by computing it again from the collection's own graph. A scheduler
    that is restarted has forgotten all of it: chunks are then kept anew, and the pass begins again.

    Parameters
    ----------
    x, y
        Arrays (rows, dim) and (rows,), or a dataframe and a series. Where the lengths of chunks are
        not known, both must have as many; chunks without rows are passed over. ``y`` may be a NumPy
        array, or None for zeros.
    classes
        Sorted labels, to replace each label by its place among them.
    """

    device = _CPU

    def __init__(self, x: Any, y: Any = None, *, classes: Any = None) -> None:
        samples, labels = _paired(x, y)
        self.dim = check_size("dim", samples.columns)
        self._x, self._y, self._classes = samples.parts, labels, classes
        self._given, self._kept = (self._x, self._y), False
        self._size: float = sum(samples.sizes)  # in rows, NaN until it is known
        self._keep()
        known = self._check_finite()
        self._size = self.rows = int(known.rows)
        self._keep()
        longest = max(samples.sizes)
        pieces = -(-int(self.rows if math.isnan(longest) else longest) // self._piece)
        self.count = longest_chain(len(self._x)) + longest_chain(pieces)

    @property
    def _piece(self) -> int:
        return rows_at_once(self.dim, self.device)

    def _keep(self) -> None:
        """Have the workers of a cluster keep the chunks, if they fit."""
        need = 8 * self._size * (self.dim + 1)
        if not self._kept and need <= _cluster_memory() / 2:
            self._x, labels = persist(self._x, [y for y in self._y if y is not None])
            self._y = labels or self._y
            self._kept = True

    def _check_finite(self) -> Any:
        known = self.moments(products=True)
        sums = torch.cat([known.mean, known.spread, torch.tensor([known.center])])
        if not bool(sums.isfinite().all()):
            for name, count in zip(("X", "y"), self.reduce(_count_bad), strict=True):
                if int(count):
                    raise ValueError(f"Input {name} contains NaN or infinity.")
        return known

    def combine(self, task: Task, combine: Combine) -> list[Tensor]:
        work = _OnWorker(task, combine, self._piece, self.dim, self._classes)
        results = [part for part in self._computed(work) if part is not None]
        if not results:
            raise ShapeError("the collection has no rows")
        return fold(([torch.as_tensor(array) for array in part] for part in results), combine)

    def _computed(self, work: _OnWorker) -> tuple[Any, ...]:
        """What the work makes of every chunk."""
        for left in reversed(range(TRIES)):  # of a scheduler, in one pass
            on_worker = delayed(work, pure=False)
            sent = [on_worker(x, y) for x, y in zip(self._x, self._y, strict=True)]
            try:
                done: tuple[Any, ...] = compute(*sent)
                return done
            except CancelledError:  # the scheduler has forgotten what its workers kept
                if not left:
                    raise
                (self._x, self._y), self._kept = self._given, False
                self._keep()
        raise AssertionError  # the loop returns or raises

    @staticmethod
    def classes(y: Any) -> Any:
        """The distinct labels, sorted."""
        parts = _blocks(y, "y").parts
        found = [part for part in compute(*map(delayed(_distinct), parts)) if len(part)]
        if not found:
            raise ShapeError("the collection has no rows")
        classes = np.unique(np.concatenate(found))
        if classes.dtype.kind == "f" and not np.isfinite(classes).all():
            raise ValueError("Input y contains NaN or infinity.")
        return classes


@dataclass(frozen=True, eq=False)
class _OnWorker:
    """A task on a worker: a chunk in, arrays out, None where it has no rows."""

    task: Task
    combine: Combine
    piece: int
    dim: int
    classes: Any

    def __call__(self, x: Any, y: Any) -> list[Any] | None:
        samples = torch.from_numpy(_numbers(x, "X"))
        labels = torch.from_numpy(self._labels(y, len(samples)))
        if samples.ndim != 2 or samples.shape[1] != self.dim or labels.shape != samples.shape[:1]:
            raise ShapeError(
                f"a chunk must be (rows, {self.dim}) and (rows,), got {tuple(samples.shape)} and "
                f"{tuple(labels.shape)}; chunks of X and y must have the same rows"
            )
        if not len(samples):
            return None
        pieces = zip(torch.split(samples, self.piece), torch.split(labels, self.piece), strict=True)
        with one_thread(_CPU):
            return [part.numpy() for part in fold((self.task(*p) for p in pieces), self.combine)]

    def _labels(self, y: Any, rows: int) -> Any:
        if y is None:
            return np.zeros(rows)
        if self.classes is None:
            return _numbers(y, "y")
        return np.searchsorted(self.classes, np.asarray(y)).astype(np.float64)


def _count_bad(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(~torch.isfinite(x)).sum(), (~torch.isfinite(y)).sum()]


def _distinct(block: Any) -> Any:
    return np.unique(np.asarray(block))


def _numbers(block: Any, name: str) -> Any:
    """A chunk as float64 that torch may share."""
    try:
        if hasattr(block, "to_numpy"):
            block = block.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.require(block, dtype=np.float64, requirements=["C", "W"])
    except (TypeError, ValueError) as error:
        raise DtypeError(f"{name} must be numbers: {error}") from error


# --------------------------------------------------------------------------------- collections


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The chunks of a collection along rows; ``columns`` is None for one that has no columns."""

    parts: list[Any]
    sizes: Sequence[float]  # NaN where not known
    columns: int | None


def _is_frame(values: Any) -> bool:
    return hasattr(values, "map_partitions") and not isinstance(values, da.Array)


def _blocks(values: Any, name: str) -> _Blocks:
    if _is_frame(values):
        _check_numbers(values, name)
        parts = list(values.to_delayed())
        columns = len(values.columns) if values.ndim == 2 else None
        return _Blocks(parts, [math.nan] * len(parts), columns)
    if values.ndim == 2:
        values = values.rechunk({1: -1})
    # Not optimised one by one: what X and y share is then computed once.
    parts = list(values.to_delayed(optimize_graph=False).ravel())
    return _Blocks(parts, values.chunks[0], values.shape[1] if values.ndim == 2 else None)


def _check_numbers(frame: Any, name: str) -> None:
    """Refuse a dataframe's columns that hold no numbers; labels may be anything."""
    if frame.ndim != 2:
        return
    kinds = {column: np.dtype(getattr(kind, "numpy_dtype", "O")) if not isinstance(kind, np.dtype)
             else kind for column, kind in frame.dtypes.items()}  # fmt: skip
    words = [str(column) for column, kind in kinds.items() if kind.kind not in "biuf"]
    if words:
        raise DtypeError(
            f"{name} must be numbers, but these columns are not: {', '.join(words)}; "
            "encode or drop them"
        )


def _paired(x: Any, y: Any) -> tuple[_Blocks, list[Any]]:
    """Chunks of samples, and of labels beside them."""
    if x.ndim != 2:
        raise ShapeError(f"X must be (rows, dim), got {x.ndim} dimension(s)")
    samples = _blocks(x, "X")
    if y is None:
        return samples, [None] * len(samples.parts)
    if not (isinstance(y, da.Array) or _is_frame(y)):
        y = da.from_array(np.asarray(y), chunks=-1)
    if y.ndim != 1:
        raise ShapeError(f"y must be (rows,), got {y.ndim} dimensions; take one column")
    labels = _blocks(y, "y")
    if any(map(math.isnan, [*samples.sizes, *labels.sizes])):
        if len(samples.parts) != len(labels.parts):
            raise ShapeError(
                f"X has {len(samples.parts)} chunks of unknown length and y {len(labels.parts)}; "
                "chunk both alike, or call compute_chunk_sizes() on arrays that do not know theirs"
            )
        return samples, labels.parts
    if sum(samples.sizes) != sum(labels.sizes):
        raise ShapeError(
            f"X has {sum(samples.sizes)} rows, y {sum(labels.sizes)}; they must have the same"
        )
    if tuple(samples.sizes) != tuple(labels.sizes):
        labels = _blocks(y.rechunk((tuple(samples.sizes),)), "y")
    return samples, labels.parts


def _cluster_memory() -> float:
    """Bytes that the workers of the cluster in use may take; 0 without one."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return 0.0
    try:
        client = distributed.default_client()
    except ValueError:
        return 0.0
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return float(sum(worker["memory_limit"] or math.inf for worker in workers))


# --------------------------------------------------------------------------------- predictions


@dataclass(frozen=True, eq=False)
class _Predict:
    method: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: Any

    def __call__(self, block: Any) -> Any:
        if not len(block):
            return np.empty((0, *self.shape), dtype=self.dtype)
        return self.method(block)


def by_blocks(method: Callable[[Any], Any], x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A method of a fitted estimator on every chunk, as a Dask array that computes when asked.

    Parameters
    ----------
    method
        Takes an array or a dataframe with some rows.
    x
        A Dask array or dataframe.
    shape
        Of what it returns for one row.
    dtype
        Of the same.
    """
    predict = _Predict(method, shape, dtype)
    if _is_frame(x):
        parts = [
            da.from_delayed(delayed(predict)(part), (math.nan, *shape), dtype)
            for part in x.to_delayed()
        ]
        return da.concatenate(parts, allow_unknown_chunksizes=True)
    x = x.rechunk({1: -1})
    meta = np.empty((0,) * (1 + len(shape)), dtype=dtype)
    if not shape:
        return x.map_blocks(predict, drop_axis=1, meta=meta, dtype=dtype)
    return x.map_blocks(predict, chunks=(x.chunks[0], shape), meta=meta, dtype=dtype)
