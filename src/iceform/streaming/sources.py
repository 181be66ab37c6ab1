"""Where data come from: anything that can be walked over in chunks, as often as needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from iceform.errors import DtypeError, ShapeError
from iceform.validation import check_size

__all__ = ["ArraySource", "Source", "Task"]

# One chunk (x, y) to a tuple of tensors that are added over chunks.
Task = Callable[[Tensor, Tensor], Sequence[Tensor]]

_CHUNK_BYTES = 1 << 22  # of samples held at once beside the data: stays in a core's cache


class Source(ABC):
    """Samples x_i and labels y_i in chunks of rows.

    A pass over the data is one :meth:`reduce`: a task is run on every chunk and its results are
    combined in the order of the chunks, so that they do not depend on who computed what when.
    """

    rows: int
    dim: int
    count: int  # of chunks
    device: torch.device

    @abstractmethod
    def results(self, task: Task) -> Iterator[Sequence[Tensor]]:
        """The task's results on every chunk, in order."""

    def reduce(self, task: Task) -> list[Tensor]:
        """The task's results, added over all chunks."""
        return self._combine(task, torch.add)

    def largest(self, task: Task) -> list[Tensor]:
        """The task's results, the entrywise largest over all chunks."""
        return self._combine(task, torch.maximum)

    def _combine(self, task: Task, combine: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        total: list[Tensor] = []
        for parts in self.results(task):
            total = list(map(combine, total, parts)) if total else list(parts)
        return total


class ArraySource(Source):
    """Samples and labels in memory, or in a file that is mapped into it.

    Parameters
    ----------
    x, y
        Shapes (rows, dim) and (rows,), float64; nothing is copied.
    chunk
        Rows at a time; as many as stay in cache by default.
    """

    def __init__(self, x: Tensor, y: Tensor, chunk: int | None = None) -> None:
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise ShapeError(
                f"data must be (rows, dim) and (rows,), got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        if x.dtype != torch.float64 or y.dtype != torch.float64:
            raise DtypeError(f"streamed data must be float64, got {x.dtype} and {y.dtype}")
        self.rows, self.dim = check_size("rows", x.shape[0]), check_size("dim", x.shape[1])
        self.x, self.y, self.device = x, y, x.device
        self.chunk = check_size("chunk", chunk or max(256, _CHUNK_BYTES // (8 * self.dim)))

        self.count = -(-self.rows // self.chunk)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The chunks in order."""
        return zip(torch.split(self.x, self.chunk), torch.split(self.y, self.chunk), strict=True)

    def results(self, task: Task) -> Iterator[Sequence[Tensor]]:
        return (task(x, y) for x, y in self.chunks())
