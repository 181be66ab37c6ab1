"""What the theorem needs of given inputs, however its sums were found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform.tolerances.inputs import Problem, rounded
from iceform.tolerances.kind import Kind
from iceform.tolerances.theorem import Norms, Sums, rounded_bound

__all__ = ["CASTS", "Found", "Read", "Row", "norm"]

_U64 = 2.0**-53
# A cast from float64 may pass through float32: a rounding to nearest of 24 bits comes first.
CASTS = 1 + 2.0**-11
_LANES = 8  # float64 in a vector: products with a multiple of it are faster


@dataclass(frozen=True, eq=False)
class Read:
    """What all queries of a head share: keys and values as read, their norms, extremes of v."""

    k: Tensor  # (heads, keys, dim), float64, exact
    v: Tensor  # (heads, keys, values)
    v_read: Tensor  # v̂
    norms: Tensor  # ‖k̂_j‖ (heads, keys)
    moved: Tensor  # ‖k_j - k̂_j‖
    centre: Tensor  # c̄ (heads, 1, values)
    largest: Tensor  # max|v̂| (heads, 1, values)
    total: Tensor  # Σ|v̂|
    spread: Tensor  # max v - min v
    moves: bool  # whether k or v is not what is read

    @classmethod
    def of(cls, problem: Problem, kind: Kind) -> Read:
        k, v = problem.k.double(), problem.v.double()
        hidden = None
        if problem.mask is not None or problem.diagonal is not None:
            hidden = problem.hidden_keys()[..., None]
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        k_read, v_read, low, high = k, v, v, v
        if problem.k.dtype != kind.dtype:
            k_read, v_read = rounded(k, kind.low), rounded(v, kind.low)
            low, high = torch.minimum(v, v_read), torch.maximum(v, v_read)
        if hidden is not None:
            low, high = low.masked_fill(hidden, math.inf), high.masked_fill(hidden, -math.inf)
        spread = high.amax(1, keepdim=True) - low.amin(1, keepdim=True)
        size = v_read.abs()
        moves = bool((k != k_read).any()) or bool((v != v_read).any())
        norms = norm(k_read)
        return cls(
            k=k,
            v=v,
            v_read=v_read,
            norms=norms,
            moved=norm(k - k_read) * CASTS if moves else torch.zeros_like(norms),
            centre=v.mean(1, keepdim=True),
            largest=size.amax(1, keepdim=True),
            total=size.sum(1, keepdim=True),
            spread=spread.clamp(min=0.0),
            moves=moves,
        )

    @property
    def values(self) -> int:
        return self.v.shape[-1]

    @cached_property
    def away(self) -> Tensor:
        """|v - c̄|."""
        return (self.v - self.centre).abs()

    @cached_property
    def columns(self) -> Tensor:
        """(heads, keys, columns): see `_found`."""
        v, k = self.v, self.norms[..., None]
        columns = [v, self.v_read.abs(), self.away, k * self.away, k]
        if self.moves:
            moved = self.moved[..., None]
            columns += [(v - self.v_read).abs() * CASTS, moved * self.away, moved]
        width = sum(column.shape[-1] for column in columns)
        columns.append(v.new_zeros(*v.shape[:2], -width % _LANES))
        return torch.cat(columns, -1)


def norm(x: Tensor) -> Tensor:
    """Of rows, in float64."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)
    return size


@dataclass(frozen=True, eq=False)
class Row:
    """What the theorem needs of a chunk's queries."""

    norms: Norms
    sums: Sums
    value: Tensor  # o, in float64; zero for queries that see nothing
    empty: Tensor
    own: Tensor  # of float64

    def bound(self, kind: Kind) -> Tensor:
        whole = rounded_bound(kind, self.norms, self.sums) * torch.exp(self.own)
        return whole.masked_fill(self.empty, 0.0)


@dataclass(frozen=True, eq=False)
class Found:
    """Sums as they were found, (heads, rows, values) and (heads, rows, 1).

    Those of non-negative terms are off by a factor e^own, upwards or downwards.
    """

    output: Tensor  # Σ p v
    size: Tensor  # Σ p |v̂|
    away: Tensor  # Σ p |v - c̄|
    k_away: Tensor  # Σ p ‖k̂‖ |v - c̄|
    k: Tensor  # Σ p ‖k̂‖
    own: Tensor
    moved: Tensor | float = 0.0  # Σ p |v - v̂|
    moved_away: Tensor | float = 0.0  # Σ p ‖k - k̂‖ |v - c̄|
    k_moved: Tensor | float = 0.0  # Σ p ‖k - k̂‖
    bias_away: Tensor | float = 0.0  # Σ p |b| |v - c̄|
    bias: Tensor | float = 0.0  # Σ p |b|

    def sums(self, read: Read, heads: slice) -> Sums:
        """At their largest."""
        more, centre = torch.exp(self.own), read.centre[heads]
        # The output is a sum of terms of both signs: its own error is absolute.
        unsure = (torch.expm1(self.own) * more) * (self.size + self.moved)
        off = (self.output - centre).abs() + unsure + 2 * _U64 * centre.abs()
        k = more * self.k
        return Sums(
            output=self.output.abs() + unsure,
            size=more * self.size,
            moved=more * self.moved,
            away=more * self.away + off,
            k_away=more * self.k_away + off * k,
            moved_away=more * self.moved_away + off * (more * self.k_moved),
            bias_away=more * self.bias_away + off * (more * self.bias),
            k=k,
            k_moved=more * self.k_moved,
            bias=more * self.bias,
            largest=read.largest[heads],
            total=read.total[heads],
            spread=read.spread[heads],
        )
