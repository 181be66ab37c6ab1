r"""Where data come from: anything that can be walked over in chunks, as often as needed.

**Marks.** A proof is about one set of numbers, and every pass reads them again: a pass that reads
other numbers than those before it is refused. The mark of a chunk is three sums over its entries v
with fixed factors r in (1/2, 1], multiples of 2^-21:

* of the bits of v as whole numbers modulo 2^64, which any change of one number changes;
* of the bits of fl(r v), which also changes when numbers change places;
* of r with the sign of v, exact in any order up to 2^32 entries, since two changed signs cancel in
  the sums of bits.

Marks of chunks combine in their order as m -> P m + m', P odd. Equal data have equal marks wherever
they lie. A change of any one number changes the mark for certain, a change of several nearly so;
nothing is claimed of changes made to deceive.

**Moments** are found in one sweep. Two sets of n_a and n_b samples with means m_a and m_b and
centred sums of products :math:`M = \sum_i (x_i - m)(x_i - m)^\top` combine, with
:math:`\delta = m_b - m_a`, to

.. math:: m = m_a + \tfrac{n_b}{n} \delta, \qquad
   M = M_a + M_b + \tfrac{n_a n_b}{n} \delta\delta^\top,

which loses nothing to cancellation however far from zero the data lie. Samples that have weights
count by them; weights travel beside the labels: a chunk's y is (n,), or (n, 2) of labels and
weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic.double_double import DoubleDouble, add
from iceform.errors import BoundError, DtypeError, IntegrityError, ShapeError
from iceform.validation import check_size, plain_tensor
from iceform_estimators.tuning import PAIRS

# One chunk (x, y) to a sequence of tensors, and how those of two chunks become one.
Task = Callable[[Tensor, Tensor], Sequence[Tensor]]
Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]

_FACTOR = 0x9E3779B1  # odd: its multiples spread over 32 bits
_STEP = 0x5851F42D4C957F2D  # P
_WHOLE = 1 << 21  # times r is a whole number


def mark_of(x: Tensor, y: Tensor) -> Tensor:
    """The mark of a chunk, int64, shape (3,)."""
    return _sums(x.detach().double()) * _STEP + _sums(y.detach().double().reshape(len(y), -1))


def _sums(values: Tensor) -> Tensor:
    factors = _factors(*values.shape, values.device)
    return torch.stack(
        [
            values.view(torch.int64).sum(),
            (values * factors).view(torch.int64).sum(),
            (torch.copysign(factors, values).sum() * _WHOLE).long(),
        ]
    )


@lru_cache(maxsize=4)
def _factors(rows: int, columns: int, device: torch.device) -> Tensor:
    """r, shape (rows, columns)."""
    places = torch.arange(1, rows * columns + 1, device=device).reshape(rows, columns)
    mixed = ((places * _FACTOR) & 0xFFFFFFFF) >> 12
    return (mixed + _WHOLE // 2 + 1).double() / _WHOLE


@dataclass(frozen=True, eq=False)
class Marked:
    """A task that returns the mark of its chunk before everything else."""

    task: Task

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [mark_of(x, y), *self.task(x, y)]


@dataclass(frozen=True, eq=False)
class MarkedCombine:
    """Marks by their order, the rest as ever."""

    combine: Combine

    def __call__(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
        mark = first[0] * _STEP + second[0]
        return [mark, *self.combine(first[1:], second[1:])]


def split(y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Labels and weights of a chunk; None where it has no weights."""
    return (y, None) if y.ndim == 1 else (y[:, 0], y[:, 1])


@dataclass(frozen=True, eq=False)
class Moments:
    """What one sweep tells of samples and labels.

    Attributes
    ----------
    rows
        How many, or what they weigh where they have weights.
    mean
        Of the samples, shape (d,).
    spread
        sum_i (x_i - mean)^2 per column, shape (d,).
    products
        sum_i (x_i - mean)(x_i - mean)', shape (d, d), where asked for.
    center, label_spread
        The same of the labels.
    low, high
        The least and the largest label.
    largest
        max_i |x_i| per column, shape (d,).
    """

    rows: float
    mean: Tensor
    spread: Tensor
    products: Tensor | None
    center: float
    label_spread: float
    low: float
    high: float
    largest: Tensor

    @classmethod
    def of_sums(cls, parts: Sequence[Tensor]) -> Moments:
        """From what :class:`MomentsTask` returned for everything."""
        rows, mean, second, center, label_spread, low, high, largest = parts
        products = second if second.ndim == 2 else None
        spread = second if products is None else products.diagonal()
        return cls(
            float(rows), mean, spread, products,
            float(center), float(label_spread), float(low), float(high), largest,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class MomentsTask:
    """Count, means and centred moments of a chunk, (d, d) or only its diagonal."""

    products: bool

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        y, weights = split(y)
        if weights is not None:
            return self._weighed(x, y, weights)
        mean, center = x.mean(0), y.mean()
        moved, labels = x - mean, y - center
        second = moved.mT @ moved if self.products else moved.square_().sum(0)
        count = mean.new_tensor(float(len(x)))
        least, most = torch.aminmax(x, dim=0)
        largest = torch.maximum(most, -least)
        return [count, mean, second, center, labels @ labels, *torch.aminmax(y), largest]

    def _weighed(self, x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
        count = weights.sum()
        mean, center = weights @ x / count, weights @ y / count
        moved, labels = x - mean, y - center
        second = (
            (moved * weights[:, None]).mT @ moved if self.products else weights @ moved.square()
        )
        spread = weights @ labels.square()
        return [count, mean, second, center, spread, *torch.aminmax(y), x.abs().amax(0)]


def merged(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """The moments of two disjoint sets of samples together."""
    n_a, mean_a, moment_a, center_a, spread_a, low_a, high_a, largest_a = first
    n_b, mean_b, moment_b, center_b, spread_b, low_b, high_b, largest_b = second
    rows = n_a + n_b
    share, weight = n_b / rows, n_a * n_b / rows
    delta, shift = mean_b - mean_a, center_b - center_a
    between = torch.outer(weight * delta, delta) if moment_a.ndim == 2 else weight * delta.square()
    return [
        rows,
        mean_a + share * delta,
        moment_a + moment_b + between,
        center_a + share * shift,
        spread_a + spread_b + weight * shift.square(),
        torch.minimum(low_a, low_b),
        torch.maximum(high_a, high_b),
        torch.maximum(largest_a, largest_b),
    ]


# Entries of a chunk. On a CPU it and what is computed from it stay in a core's cache.
_ENTRIES = {"cpu": 1 << 15}
_ENTRIES_ELSEWHERE = PAIRS // 2
_FEWEST_ROWS = 256
HEAVIEST = 2.0**100  # of weights: products stay normal numbers
_LIGHTEST = 1 / HEAVIEST
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


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Those of one chunk, then those of the next."""
    return torch.cat([first, second])


def each(*ways: Callable[[Any, Any], Any]) -> Combine:
    """Results combined one by one, each its way; ``add`` takes two results, which are pairs."""

    def combined(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
        ours, theirs = iter(first), iter(second)
        out: list[Tensor] = []
        for way in ways:
            if way is add:
                out += add(*(DoubleDouble(next(parts), next(parts)) for parts in (ours, theirs)))
            else:
                out.append(way(next(ours), next(theirs)))
        return out

    return combined


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

    Examples
    --------
    >>> source: Source = ArraySource(torch.eye(2).double(), torch.ones(2).double())
    >>> (total,) = source.reduce(lambda x, y: [x.sum()])
    >>> float(total)
    2.0
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
    if not (float(some.min()) >= _LIGHTEST and float(some.max()) <= HEAVIEST):
        raise BoundError(
            f"weights are 0 and {float(some.min()):.3g} to {float(some.max()):.3g}, certified are "
            f"0 and {_LIGHTEST:.1e} to {HEAVIEST:.1e}; divide them by a power of two, or give 0"
        )
    return weights


class ArraySource(Source):
    """Samples and labels in memory, or in a file that is mapped into it.

    Parameters
    ----------
    x, y
        Shapes (rows, dim) and (rows,), float64. They are not copied, so that a long stream is not
        held twice: a pass that finds them changed since the first is refused.
    chunk
        Rows at a time; as many as stay in cache by default.
    weights
        Of the samples, shape (rows,), none negative. One that weighs nothing is left out: nothing
        is learnt of it, not even a column's mean.

    Examples
    --------
    >>> source = ArraySource(torch.eye(2).double(), torch.ones(2).double())
    >>> source.rows, source.dim
    (2, 2)
    """

    def __init__(
        self, x: Tensor, y: Tensor, chunk: int | None = None, *, weights: Tensor | None = None
    ) -> None:
        x, y = plain_tensor("x", x), plain_tensor("y", y)
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise ShapeError(
                f"data must be (rows, dim) and (rows,), got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        if x.dtype != torch.float64 or y.dtype != torch.float64:
            raise DtypeError(f"streamed data must be float64, got {x.dtype} and {y.dtype}")
        if weights is not None:
            weights = _checked_weights(plain_tensor("weights", weights), y)
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
