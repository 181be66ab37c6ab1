"""What a sum over samples was added up from, told to whoever is to attest it.

A fast pass adds up tiles of rows in parts, then the parts. Both are told here, so that a part can
be run again by itself and the parts be added up again: of the sum alone nothing could be told
without a second pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PartialSums:
    """Parts that a sum over samples is made of.

    Attributes
    ----------
    sums
        Shape (parts, *batch, d), float64. Part p is the sum over tiles p, p + parts, p + 2 parts
        and so on.
    rows
        Samples of a tile; the last one may have fewer.
    whole
        Whether these are sums of the rows that the network returns; else of (A(z) - o) x alone,
        without what a prompt multiplies and adds.
    """

    sums: Tensor
    rows: int
    whole: bool = False

    def tiles(self, part: int, samples: int) -> list[slice]:
        """Which of so many samples are in a part."""
        count = -(-samples // self.rows)
        return [
            slice(t * self.rows, min(samples, (t + 1) * self.rows))
            for t in range(part, count, len(self.sums))
        ]


_LISTENING: ContextVar[list[PartialSums] | None] = ContextVar("partial sums", default=None)


@contextmanager
def listening() -> Iterator[list[PartialSums]]:
    """Be told the partial sums of what is added up inside."""
    told: list[PartialSums] = []
    token = _LISTENING.set(told)
    try:
        yield told
    finally:
        _LISTENING.reset(token)


def tell(parts: list[Tensor] | Tensor, rows: int, *, whole: bool = False) -> None:
    """Tell whoever listens what a sum was added up from, as :class:`PartialSums` has it."""
    if torch.compiler.is_compiling() or (told := _LISTENING.get()) is None or not len(parts):
        return
    sums = torch.stack(parts) if isinstance(parts, list) else parts
    told.append(PartialSums(sums.detach(), rows, whole))
