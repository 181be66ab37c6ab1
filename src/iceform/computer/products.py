r"""A product that nobody has multiplied out: :math:`v = u f + o`, with f and o of fewer numbers.

What is most often done with a product of samples is adding it up, over components or over lanes,
and that needs no product: :math:`\sum_j u_j f_j` is a matrix times a vector. Sums of k products are
off by :math:`\gamma_k` times their sizes either way (:mod:`iceform.computer.rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Product", "Value", "dense", "part"]


@dataclass(frozen=True, eq=False)
class Product:
    """``of * factor + offset``, shapes (b, lanes, m) or 1 where all are equal; no offset is 0."""

    of: Tensor
    factor: Tensor
    offset: Tensor | None = None

    @cached_property
    def dense(self) -> Float[Tensor, "b lanes m"]:
        """Multiplied out."""
        out = self.of * self.factor
        return out if self.offset is None else out + self.offset

    @property
    def shape(self) -> torch.Size:
        """Of what it stands for."""
        offset = self.factor if self.offset is None else self.offset
        shapes = (self.of.shape, self.factor.shape, offset.shape)
        return torch.Size(map(max, zip(*shapes, strict=True)))

    def mean(self) -> Float[Tensor, "b 1 m"]:
        """Over lanes."""
        u, f, lanes = self.of, self.factor, self.shape[1]
        if u.shape[1] == 1 or f.shape[1] == 1:
            out = u.mean(1, keepdim=True) * f.mean(1, keepdim=True)
        elif f.shape[-1] == 1:
            out = f.mT @ u / lanes
        elif u.shape[-1] == 1:
            out = u.mT @ f / lanes
        else:
            return self.dense.mean(1, keepdim=True)
        return out if self.offset is None else out + self.offset.mean(1, keepdim=True)

    def times(self, matrix: Float[Tensor, "m k"]) -> Float[Tensor, "b lanes k"]:
        """Every lane's row times a matrix."""
        u, f = self.of, self.factor
        if u.shape[-1] != len(matrix) or (self.offset is not None and self.offset.numel() > 1):
            return self.dense.expand(*self.shape[:-1], len(matrix)) @ matrix
        if f.shape[1] == 1:
            out = u @ (f.mT * matrix)
        elif f.shape[-1] == 1:
            out = (u @ matrix) * f
        else:
            return self.dense @ matrix
        return out if self.offset is None else out + self.offset * matrix.sum(0)

    def part(self, rows: slice, lanes: list[int] | None) -> Tensor:
        """Some problems and lanes of it, multiplied out."""
        of, factor = (_cut(t, rows, lanes) for t in (self.of, self.factor))
        offset = None if self.offset is None else _cut(self.offset, rows, lanes)
        return Product(of, factor, offset).dense


Value = Tensor | Product


def dense(value: Value) -> Tensor:
    """As a tensor."""
    return value.dense if isinstance(value, Product) else value


def part(value: Value, rows: slice, lanes: list[int] | None) -> Tensor:
    """Some problems of a value, and of many lanes some."""
    return value.part(rows, lanes) if isinstance(value, Product) else _cut(value, rows, lanes)


def _cut(value: Tensor, rows: slice, lanes: list[int] | None) -> Tensor:
    value = value[rows] if len(value) > 1 else value
    return value if lanes is None or value.shape[1] == 1 else value[:, lanes]
