"""Where data come from: anything that can be walked over in chunks, as often as needed.

What is walked over must be the same every time: a pass that reads other numbers than those before
it is refused (:mod:`iceform.machine.marks`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from iceform.errors import BoundError, DtypeError, IntegrityError, ShapeError
from iceform.machine.marks import Marked, MarkedCombine
from iceform.machine.moments import Moments, MomentsTask, merged
from iceform.validation import check_size

__all__ = [
    "ArraySource",
    "Combine",
    "Source",
    "Task",
    "fold",
    "longest_chain",
    "one_thread",
    "rows_at_once",
]

# One chunk (x, y) to a sequence of tensors, and how those of two chunks become one.
Task = Callable[[Tensor, Tensor], Sequence[Tensor]]
Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]

# Entries of a chunk. On a CPU it and what is computed from it stay in a core's cache.
_ENTRIES = {"cpu": 1 << 15}
_ENTRIES_ELSEWHERE = 1 << 23
_FEWEST_ROWS = 256
_LIGHTEST, _HEAVIEST = 2.0**-100, 2.0**100  # of weights: products stay normal numbers
_GROUP = 64  # chunks that are combined one after the other, before the groups are


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Chunks that fit a core's cache are done by one core.

    Handing parts of them to others takes longer than they do, many times so where another process
    wants the cores too.
    """
    before = torch.get_num_threads()
    alone = device.type == "cpu" and before > 1
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(before)


def rows_at_once(dim: int, device: torch.device) -> int:
    """Rows of a chunk."""
    return max(_FEWEST_ROWS, _ENTRIES.get(device.type, _ENTRIES_ELSEWHERE) // dim)


def fold(results: Iterable[Sequence[Tensor]], combine: Combine) -> list[Tensor]:
    """Combine results in order, by groups, so that rounding grows little with their number."""
    stream, groups = iter(results), []
    while group := list(islice(stream, _GROUP)):
        groups.append(_in_order(group, combine))
    return _in_order(groups, combine)


def longest_chain(count: int) -> int:
    """Most combinations that one of ``count`` results goes through in :func:`fold`."""
    return min(count, _GROUP) + -(-count // _GROUP)


def _in_order(results: Sequence[Sequence[Tensor]], combine: Combine) -> list[Tensor]:
    total = list(results[0])
    for part in results[1:]:
        total = list(combine(total, part))
    return total


def added(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """Entrywise sums."""
    return list(map(torch.add, first, second))


def larger(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """Entrywise maxima."""
    return list(map(torch.maximum, first, second))


class Source(ABC):
    """Samples x_i and labels y_i in chunks of rows.

    A pass over the data is one :meth:`reduce`: a task is run on every chunk and its results are
    combined in the order of the chunks, so that they do not depend on who computed what when.

    A subclass supplies :meth:`combine`; every call of it checks that the data are still those of
    the first.

    Attributes
    ----------
    rows, dim
        Shape of the samples.
    count
        Most results that are added up one after the other in a :meth:`reduce`.
    device
        Where chunks are.
    weighed
        Whether samples have weights; a chunk's y is then (rows, 2), labels and weights.
    """

    rows: int
    dim: int
    count: int
    device: torch.device
    weighed: bool = False

    @property
    def total(self) -> float:
        """What all samples weigh, their number, or the sum of their weights."""
        return float(self.rows)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "combine" in vars(cls):
            setattr(cls, "combine", _watched(cls.combine))  # noqa: B010 - not a method for mypy

    @abstractmethod
    def combine(self, task: Task, combine: Combine) -> list[Tensor]:
        """The task's results on every chunk, combined in order."""

    def reduce(self, task: Task) -> list[Tensor]:
        """The task's results, added over all chunks."""
        return self.combine(task, added)

    def largest(self, task: Task) -> list[Tensor]:
        """The task's results, the entrywise largest over all chunks."""
        return self.combine(task, larger)

    def moments(self, *, products: bool) -> Moments:
        """Means and second moments, in a sweep that is made once.

        Parameters
        ----------
        products
            Whether products of different columns are asked for too.
        """
        known: Moments | None = self.__dict__.get("_moments")
        if known is None or (products and known.products is None):
            known = Moments.of_sums(self.combine(MomentsTask(products), merged))
            self._moments = known
        return known


def _watched(
    combine: Callable[[Any, Task, Combine], list[Tensor]],
) -> Callable[[Any, Task, Combine], list[Tensor]]:
    """The same pass, refused where it has read other data than the passes before it."""

    @wraps(combine)
    def checked(self: Any, task: Task, how: Combine) -> list[Tensor]:
        if isinstance(task, Marked):  # a source around another: the mark is taken inside
            return combine(self, task, how)
        mark, *results = combine(self, Marked(task), MarkedCombine(how))
        found = mark.tolist()
        first = self.__dict__.setdefault("_mark", found)
        if found != first:
            raise IntegrityError(
                f"the data changed between two passes over them: sums of their bits were {first} "
                f"and are {found}, so nothing is proven of them; copy them before they are fitted, "
                "or make a new source of what they are now"
            )
        return results

    return checked


def _checked_weights(weights: Tensor, y: Tensor) -> Tensor:
    if weights.shape != y.shape:
        raise ShapeError(f"weights must be {tuple(y.shape)}, got {tuple(weights.shape)}")
    weights = weights.to(y)
    for bad, what in ((~torch.isfinite(weights), "no number"), (weights < 0, "negative")):
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            raise BoundError(
                f"weight {at} is {float(weights[at]):g}, {what}: the weighted problem has no "
                "optimum that can be proven; weights must be 0 or more"
            )
    some = weights[weights > 0]
    if not len(some):
        raise BoundError("all weights are 0: nothing is left to learn from; give some above 0")
    if not (float(some.min()) >= _LIGHTEST and float(some.max()) <= _HEAVIEST):
        raise BoundError(
            f"weights are 0 and {float(some.min()):.3g} to {float(some.max()):.3g}, certified are "
            f"0 and {_LIGHTEST:.1e} to {_HEAVIEST:.1e}; divide them by a power of two, or give 0"
        )
    return weights


class ArraySource(Source):
    """Samples and labels in memory, or in a file that is mapped into it.

    Parameters
    ----------
    x, y
        Shapes (rows, dim) and (rows,), float64; nothing is copied.
    chunk
        Rows at a time; as many as stay in cache by default.
    weights
        Of the samples, shape (rows,), none negative. One that weighs nothing is left out: nothing
        is learnt of it, not even a column's mean.
    """

    def __init__(
        self, x: Tensor, y: Tensor, chunk: int | None = None, *, weights: Tensor | None = None
    ) -> None:
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise ShapeError(
                f"data must be (rows, dim) and (rows,), got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        if x.dtype != torch.float64 or y.dtype != torch.float64:
            raise DtypeError(f"streamed data must be float64, got {x.dtype} and {y.dtype}")
        if weights is not None:
            weights = _checked_weights(weights, y)
            some = weights > 0
            if not bool(some.all()):
                x, y, weights = x[some], y[some], weights[some]
        self.weights, self.weighed = weights, weights is not None
        self.rows, self.dim = check_size("rows", x.shape[0]), check_size("dim", x.shape[1])
        self.x, self.y, self.device = x, y, x.device
        self.chunk = check_size("chunk", chunk or rows_at_once(self.dim, self.device))
        self.count = longest_chain(-(-self.rows // self.chunk))

    @property
    def total(self) -> float:
        return float(self.rows) if self.weights is None else math.fsum(self.weights.tolist())

    @cached_property
    def labels(self) -> Tensor:
        """As chunks hold them, with the weights where there are any."""
        return self.y if self.weights is None else torch.stack([self.y, self.weights], 1)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The chunks in order."""
        parts = torch.split(self.x, self.chunk), torch.split(self.labels, self.chunk)
        return zip(*parts, strict=True)

    def combine(self, task: Task, combine: Combine) -> list[Tensor]:
        with one_thread(self.device):
            return fold((task(x, y) for x, y in self.chunks()), combine)
