"""Statistics of the inputs that the theorem needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform.arithmetic import UNIT
from iceform_tolerance.inputs import Problem, rounded
from iceform_tolerance.kind import KernelKind
from iceform_tolerance.theorem import Norms, Sums, rounded_bound

# A cast from float64 may pass through float32: a rounding to nearest of 24 bits comes first.
CASTS = 1 + 2.0**-11
_LANES = 8  # float64 in a vector: products with a multiple of it are faster


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """What all queries of a head share: keys and values as read, their norms, extremes of v."""

    given_k: Tensor  # (heads, keys, dim), as given; hidden ones are zero
    given_v: Tensor  # (heads, keys, values)
    v_read: Tensor  # v̂
    norms: Tensor  # ‖k̂_j‖ (heads, keys)
    moved: Tensor  # ‖k_j - k̂_j‖
    centre: Tensor  # c̄ (heads, 1, values): a number of float32
    largest: Tensor  # max|v̂| (heads, 1, values)
    total: Tensor  # Σ|v̂|
    spread: Tensor  # max v - min v
    moves: bool  # whether k or v is not what is read

    @classmethod
    def of(cls, problem: Problem, kind: KernelKind) -> HeadStatistics:
        exactly = torch.float64 if problem.k.dtype != kind.dtype else _held(kind.dtype)
        k, v = problem.k.to(exactly), problem.v.to(exactly)
        hidden = problem.hidden_keys()
        seen: Tensor | int = problem.keys
        if hidden is not None:
            hidden = hidden[..., None]
            seen = (~hidden).sum(1, keepdim=True).clamp(min=1)
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        k_read, v_read, low, high, moves = k, v, v, v, False
        if problem.k.dtype != kind.dtype:
            k_read, v_read = rounded(k, kind.low), rounded(v, kind.low)
            low, high = torch.minimum(v, v_read), torch.maximum(v, v_read)
            moves = bool((k != k_read).any()) or bool((v != v_read).any())
        if hidden is not None:
            low, high = low.masked_fill(hidden, math.inf), high.masked_fill(hidden, -math.inf)
        spread = high.amax(1, keepdim=True).double() - low.amin(1, keepdim=True).double()
        size = v_read.abs()
        norms = norm(k_read)
        return cls(
            given_k=k,
            given_v=v,
            v_read=v_read,
            norms=norms,
            moved=norm(k - k_read) * CASTS if moves else torch.zeros_like(norms),
            centre=(v.sum(1, keepdim=True, dtype=torch.float64) / seen).float().double(),
            largest=size.amax(1, keepdim=True).double(),
            total=size.sum(1, keepdim=True, dtype=torch.float64),
            spread=spread.clamp(min=0.0),
            moves=moves,
        )

    @cached_property
    def k(self) -> Tensor:
        """Keys in float64, exact."""
        return self.given_k.double()

    @cached_property
    def v(self) -> Tensor:
        """Values in float64, exact."""
        return self.given_v.double()

    @property
    def values(self) -> int:
        return self.given_v.shape[-1]

    @cached_property
    def away(self) -> Tensor:
        """|v - c̄|."""
        return (self.v - self.centre).abs()

    @cached_property
    def columns(self) -> Tensor:
        """(heads, keys, columns): see `_found`."""
        v, k = self.v, self.norms[..., None]
        columns = [v, self.v_read.double().abs(), self.away, k * self.away, k]
        if self.moves:
            moved = self.moved[..., None]
            columns += [(v - self.v_read).abs() * CASTS, moved * self.away, moved]
        width = sum(column.shape[-1] for column in columns)
        columns.append(v.new_zeros(*v.shape[:2], -width % _LANES))
        return torch.cat(columns, -1)


def _held(dtype: torch.dtype) -> torch.dtype:
    """In which its numbers can be computed with: float8 can be stored and little else."""
    return dtype if dtype.itemsize > 1 else torch.float32


def norm(x: Tensor) -> Tensor:
    """Euclidean norms of rows, in float64."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)
    return size


@dataclass(frozen=True, eq=False)
class QueryStatistics:
    """Statistics of a chunk's queries that the theorem needs."""

    norms: Norms
    sums: Sums
    value: Tensor  # o, in float64; zero for queries that see nothing
    empty: Tensor
    own: Tensor  # of float64

    def bound(self, kind: KernelKind) -> Tensor:
        whole = rounded_bound(kind, self.norms, self.sums).mul_(torch.exp(self.own))
        return whole.masked_fill_(self.empty, 0.0)


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums as they were found, (heads, rows, values) and (heads, rows, 1).

    Those of non-negative terms are off by a factor e^own, upwards or downwards.
    """

    output: Tensor  # Σ p v
    size: Tensor  # Σ p |v̂|
    away: Tensor  # Σ p |v - c̄|
    k_away: Tensor  # Σ p ‖k̂‖ |v - c̄|
    k: Tensor  # Σ p ‖k̂‖
    own: Tensor
    moved: Tensor | None = None  # Σ p |v - v̂|; None is 0
    moved_away: Tensor | None = None  # Σ p ‖k - k̂‖ |v - c̄|
    k_moved: Tensor | None = None  # Σ p ‖k - k̂‖
    bias_away: Tensor | None = None  # Σ p |b| |v - c̄|
    bias: Tensor | None = None  # Σ p |b|

    def sums(self, read: HeadStatistics, heads: slice) -> Sums:
        """At their largest."""
        more, centre = torch.exp(self.own), read.centre[heads]
        # The output is a sum of terms of both signs: its own error is absolute.
        unsure = torch.expm1(self.own) * more
        size = self.size if self.moved is None else self.size + self.moved
        off = (self.output - centre).abs_().add_(2 * UNIT * centre.abs()).addcmul_(unsure, size)
        k = more * self.k

        def times(weights: Tensor | None, away: Tensor | None) -> Tensor | None:
            """Σ p x (|v - c̄| + |o - c̄|), of Σ p x and Σ p x |v - c̄|."""
            if weights is None or away is None:
                return None
            return (off * (more * weights)).addcmul_(more, away)

        k_away = times(self.k, self.k_away)
        assert k_away is not None
        return Sums(
            output=self.output.abs().addcmul_(unsure, size),
            size=more * self.size,
            away=torch.addcmul(off, more, self.away),
            k_away=k_away,
            k=k,
            moved=None if self.moved is None else more * self.moved,
            moved_away=times(self.k_moved, self.moved_away),
            bias_away=times(self.bias, self.bias_away),
            k_moved=0.0 if self.k_moved is None else more * self.k_moved,
            bias=0.0 if self.bias is None else more * self.bias,
            largest=read.largest[heads],
            total=read.total[heads],
            spread=read.spread[heads],
        )
