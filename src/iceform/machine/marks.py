r"""Marks: whether a pass reads the same numbers as the passes before it.

A proof is about one set of numbers, and every pass reads them again. The mark of a chunk is three
sums over its entries v with fixed factors r in (1/2, 1], multiples of 2^-21:

* of the bits of v as whole numbers modulo 2^64, which any change of one number changes;
* of the bits of fl(r v), which also changes when numbers change places;
* of r with the sign of v, exact in any order up to 2^32 entries, since two changed signs cancel in
  the sums of bits.

Marks of chunks combine in their order as m -> P m + m', P odd. Equal data have equal marks wherever
they lie. A change of any one number changes the mark for certain, a change of several nearly so;
nothing is claimed of changes made to deceive.
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
