r"""Marks: whether a pass reads the same numbers as the passes before it.

A proof is about one set of numbers, and every pass reads them again. The mark of a chunk is taken
from b_ij and c_i, the bits of its samples and labels as 64-bit whole numbers, those of sign and
exponent folded onto the others (as they are, two changed signs would cancel),

.. math:: \sum_i k_i \sum_j b_{ij} + \sum_j k'_j \sum_i b_{ij} + \sum_i k''_i c_i \mod 2^{64}

with fixed odd factors, and marks of chunks combine in their order as m -> P m + m'. It is exact:
equal data have equal marks wherever they lie. A change of any one number changes it, a change of
several leaves it as it is once in about 2^64 times; nothing is claimed of changes made to deceive.

It costs two sums of whole numbers and a fold over what a pass has in cache anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["Marked", "MarkedCombine", "mark_of"]

Task = Callable[[Tensor, Tensor], Sequence[Tensor]]
Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]

_FACTOR = 0x1E3779B97F4A7C15  # odd, its multiples spread over all bits
_STEP = 0x5851F42D4C957F2D  # P
_FOLD = 29


def mark_of(x: Tensor, y: Tensor) -> Tensor:
    """The mark of a chunk, int64."""
    bits, labels = _bits(x), _bits(y)
    rows, columns = _factors(*x.shape, x.device)
    return (bits.sum(1) * rows + labels * (rows + 2)).sum() + (bits.sum(0) * columns).sum()


def _bits(values: Tensor) -> Tensor:
    bits = values.detach().double().view(torch.int64)
    return (bits >> _FOLD).bitwise_xor_(bits)


@lru_cache(maxsize=16)
def _factors(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Odd factors of the rows and of the columns."""
    first, second = (torch.arange(1, n + 1, device=device) * _FACTOR for n in (rows, columns))
    return first | 1, (second >> 7) | 1


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
