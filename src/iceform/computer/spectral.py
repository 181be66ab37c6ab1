r"""Loops that combine vectors by polynomials of H = mean(x x').

Least squares with momentum carries several vectors, and a turn makes of them

.. math:: w_i' = \sum_j q_{ij}(H)\, w_j + b_i,

with numbers in the polynomials q. H is the same symmetric matrix in every turn, with eigenvalues h
in [0, L], L = sup \|x\|^2, so the norm of k turns is at most :math:`\sup_h \|Q(h)^k\|` with the
small matrices :math:`Q(h) = (q_{ij}(h))`. No turn need be a contraction in the Euclidean norm.

[0, L] is cut into cells. In each, with any regular S and the cell's matrices Q = M + D, D within R,

.. math:: \|Q^k\| \le \|S\| \|S^{-1}\| \left(\|S^{-1} M S\| + \| |S^{-1}| R |S| \|\right)^k,

and S is the eigenvectors of M, or a Schur basis of it scaled by powers of a number (near double
eigenvalues): whichever gives least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform import tuning
from iceform.computer.loop_slices import LoopSlice, NotApplicableError, RangesAtParameters
from iceform.program import Node, Range

Polynomial = tuple[Range, ...]  # coefficients of H^0, H^1, ...
Combination = Mapping[Node, Polynomial]  # by state

_MOST = 6  # states, and degree
_SLACK = 2.0**-40  # of norms, for rounding
_ZERO = Range(0.0, 0.0)


@dataclass(frozen=True)
class _Part:
    """A value that depends on the states: p = sum_j q_j(H) w_j, and what samples make of it.

    ``kind`` is "vector" (p), "product" (x * p), "scalar" (x . p a sample) or "sample" (x (x . p)).
    """

    kind: str
    p: Combination

    def times(self, factor: Range) -> _Part:
        return _Part(self.kind, {s: tuple(c * factor for c in q) for s, q in self.p.items()})

    def plus(self, other: _Part) -> _Part:
        if self.kind != other.kind:
            raise NotApplicableError
        both = {s: _sum(self.p.get(s, ()), other.p.get(s, ())) for s in {**self.p, **other.p}}
        return _Part(self.kind, both)


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    size = max(len(a), len(b))
    first, second = ((*p, *(size - len(p)) * (_ZERO,)) for p in (a, b))
    return tuple(u + v for u, v in zip(first, second, strict=True))


_AFTER = {("sum", "product"): "scalar", ("mean", "sample"): "vector"}
_BY_X = {"vector": "product", "scalar": "sample"}


@dataclass
class _SpectralRules:
    values: RangesAtParameters

    def node(self, node: Node, parts: list[_Part | None]) -> _Part:
        present = [p for p in parts if p is not None]
        if node.op == "add":
            return present[0] if len(present) == 1 else present[0].plus(present[1])
        if len(present) != 1:
            raise NotApplicableError
        (part,) = present
        if node.op == "mul":
            factor = node.args[0] if parts[0] is None else node.args[1]
            return self._mul(part, factor)
        if node.op == "apply":
            straight = self.values.line(node)
            if straight is None:
                raise NotApplicableError
            return part.times(straight[0])
        if node.op in ("bounded", "stored"):
            return part
        kind = _AFTER.get((node.op, part.kind))
        if kind is None:
            raise NotApplicableError
        if node.op == "mean":
            return _Part(kind, {s: (_ZERO, *q) for s, q in part.p.items()})
        return _Part(kind, part.p)

    def _mul(self, part: _Part, factor: Node) -> _Part:
        if factor.op == "data" and factor.attr == "x" and part.kind in _BY_X:
            return _Part(_BY_X[part.kind], part.p)
        if factor.samples or factor.width is not None:
            raise NotApplicableError
        return part.times(self.values[factor])


def spectral(part: LoopSlice, values: RangesAtParameters) -> Callable[[int], Tensor] | None:
    """T to bounds of the norms of 0, 1, ..., T turns; None for loops of another form."""
    states = [c.state for c in part.carried]
    if len(states) > _MOST or any(s.width is None or s.samples for s in states):
        return None
    known = {s: _Part("vector", {s: (Range(1.0, 1.0),)}) for s in states}
    try:
        found = part.propagate(known, _SpectralRules(values).node)
    except NotApplicableError:
        return None
    still = _Part("vector", {})
    rows = [found.get(c.next, still) for c in part.carried]
    if any(r.kind != "vector" or len(q) > _MOST for r in rows for q in r.p.values()):
        return None
    entries = [[row.p.get(s, ()) for s in states] for row in rows]
    largest = values.largest_square(states[0].width or 1)
    return Powers(*_bases(*_cells(entries, largest)))


def _cells(entries: list[list[Polynomial]], largest: float) -> tuple[Tensor, Tensor]:
    """Q at the cells' midpoints, and how far from it Q may be in each; cells crowd at 0."""
    edges = largest * torch.linspace(0, 1, tuning.SPECTRAL_CELLS + 1, dtype=torch.float64) ** 2
    low, high = edges[:-1], edges[1:]
    middle = (low + high) / 2
    half = (high - low) * (1 + _SLACK)
    size = len(entries)
    center = torch.zeros(tuning.SPECTRAL_CELLS, size, size, dtype=torch.float64)
    radius = torch.zeros_like(center)
    for i, row in enumerate(entries):
        for j, q in enumerate(row):
            for k, c in enumerate(q):
                mid = (c.low + c.high) / 2
                center[:, i, j] += mid * middle**k
                radius[:, i, j] += (c.high - c.low) * high**k + _SLACK * c.size * high**k
                if k:
                    radius[:, i, j] += k * c.size * high ** (k - 1) * half / 2
    return center, radius * (1 + _SLACK)


def _bases(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Condition and rate for every basis (cells, bases)."""
    bases = bases_of(center)
    found = [rate_in(center.to(basis.dtype), radius, basis) for basis in bases]
    conditions, rates = (torch.stack(part, 1) for part in zip(*found, strict=True))
    return conditions, rates


def bases_of(center: Tensor) -> list[Tensor]:
    """Bases in which matrices may have smaller norms: eigenvectors, and scaled Schur bases."""
    _, vectors = torch.linalg.eig(center)
    schur, _ = torch.linalg.qr(vectors)
    steps = torch.arange(center.shape[-1], dtype=torch.float64)
    return [vectors, *(schur * (scale**steps) for scale in tuning.SPECTRAL_SCALES)]


def rate_in(center: Tensor, radius: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """||S|| ||S^-1|| and the norm of S^-1 Q S over a cell, rounding included.

    The computed inverse Z has Z S = I + E, so S^-1 = (I + E)^-1 Z.
    """
    size = center.shape[-1]
    inverse, _ = torch.linalg.inv_ex(basis)
    eye = torch.eye(size, dtype=basis.dtype)
    wide, tall = inverse.abs(), basis.abs()
    off = torch.linalg.matrix_norm(inverse @ basis - eye) + _SLACK * _norm(wide @ tall)
    inside = _two_norm(inverse @ center @ basis) + _SLACK * _norm(wide @ center.abs() @ tall)
    spread = _norm(wide @ radius @ tall)
    regular = (off < 0.5) & torch.isfinite(off)
    factor = torch.where(regular, 1 / (1 - off), math.inf)
    condition = _two_norm(basis) * _two_norm(inverse) * factor * (1 + _SLACK)
    rate = (inside + spread) * factor * (1 + _SLACK)
    usable = regular & torch.isfinite(condition) & torch.isfinite(rate)
    inf = torch.full_like(rate, math.inf)
    return torch.where(usable, condition, inf), torch.where(usable, rate, inf)


def _norm(matrix: Tensor) -> Tensor:
    found: Tensor = torch.linalg.matrix_norm(matrix)
    return found


def _two_norm(matrix: Tensor) -> Tensor:
    """From above: the largest singular value is computed to rounding of the Frobenius norm."""
    finite = torch.nan_to_num(matrix, nan=0.0, posinf=0.0, neginf=0.0)
    found = torch.linalg.matrix_norm(finite, ord=2) + _SLACK * _norm(finite)
    return torch.where(torch.isfinite(_norm(matrix)), found, math.inf)


@dataclass(frozen=True)
class Powers:
    """Bounds of the norms of k turns: in each cell the least over the bases."""

    conditions: Tensor
    rates: Tensor

    def __call__(self, turns: int) -> Tensor:
        """The largest over the cells of the least over the bases, for 0, ..., T turns."""
        out = torch.ones(turns + 1, dtype=torch.float64)
        for k in range(1, turns + 1):
            bound = self.conditions * self.rates**k
            out[k] = bound.amin(1).amax() * (1 + _SLACK)
        return out
