r"""Loops of gradient descent and the like: a turn's derivative is a polynomial of mean(delta x x').

Descent carries vectors w. A turn computes :math:`\tfrac1n \sum_i \varphi(w \cdot x_i) x_i`, whose
derivative by w is :math:`H = \tfrac1n \sum_i \delta_i x_i x_i^\top` with :math:`\delta_i =
\varphi'`. A walk over the turn's graph finds the derivative of every value as a polynomial of such
matrices; of a turn that has another form nothing is said. L is sup \|x\|^2.

**The same H in every turn**, of turns that are linear: :math:`w_i' = \sum_j q_{ij}(H)\, w_j + b_i`,
as of least squares with momentum. Its eigenvalues h are in [0, L], so the norm of k turns is at
most :math:`\sup_h \|Q(h)^k\|` with the small matrices :math:`Q(h) = (q_{ij}(h))`. No turn need be a
contraction in the Euclidean norm. [0, L] is cut into cells. In each, with any regular S and the
cell's matrices Q = M + D, D within R,

.. math:: \|Q^k\| \le \|S\| \|S^{-1}\| \left(\|S^{-1} M S\| + \| |S^{-1}| R |S| \|\right)^k,

and S is the eigenvectors of M, or a Schur basis of it scaled by powers of a number (near double
eigenvalues): whichever gives least.

**Another H in every turn**, of one vector, to the first power: :math:`\alpha I + H` is symmetric,
with eigenvalues in

.. math:: [\alpha_{lo} + \min(\delta_{lo}, 0) L,\; \alpha_{hi} + \max(\delta_{hi}, 0) L],

so its norm is the larger end's size. A function of every entry after it, or a sum of several,
multiplies it by a diagonal matrix of the size of its slopes: a soft threshold, :math:`\max(u - t,
0) - \max(-u - t, 0)`, has slopes 0 and 1 where t >= 0, since its parts are never inclined at once,
and so has a projection onto a box. Gradient descent on a convex loss with a step of at most 2/L is
such a loop, with a proximal step after it too; interval arithmetic on its entries does not see it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import NOISE, OUTWARD_FEW
from iceform.computer.loop_slices import (
    LoopSlice,
    NotApplicableError,
    RangesAtParameters,
    TurnRules,
)
from iceform.expressions.formulas import trees
from iceform.program import Node, Range, slope

Polynomial = tuple[Range, ...]  # coefficients of H^0, H^1, ...

_MOST = 6  # states, degree, and ramps
_ZERO, _ONE, _UNIT = Range(0.0, 0.0), Range(1.0, 1.0), Range(0.0, 1.0)


# ---------------------------------------------------------------------------------------------
# derivatives of a turn's values
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Combined:
    """The derivative sum_j q_j(H) by states w_j, and what samples make of it.

    ``kind`` is "vector" (p), "product" (x * p), "scalar" (x . p a sample) or "sample" (x (x . p)).
    ``linear`` says that H is that of all samples alike, and so the same in every turn.
    """

    kind: str
    p: Mapping[Node, Polynomial]
    linear: bool = True

    def times(self, factor: Range, linear: bool = True) -> _Combined:
        found = {s: tuple(c * factor for c in q) for s, q in self.p.items()}
        return _Combined(self.kind, found, self.linear and linear)

    def plus(self, other: _Combined) -> _Combined:
        if self.kind != other.kind:
            raise NotApplicableError
        both = {s: _sum(self.p.get(s, ()), other.p.get(s, ())) for s in {**self.p, **other.p}}
        return _Combined(self.kind, both, self.linear and other.linear)

    def norm(self, largest: float) -> float:
        """Of a polynomial of the first degree at most, by one state."""
        (q, *others) = self.p.values()
        if others or len(q) > 2:
            raise NotApplicableError
        identity, outer = (*q, _ZERO)[:2]
        low = identity.low + min(outer.low, 0.0) * largest
        high = identity.high + max(outer.high, 0.0) * largest
        return max(abs(low), abs(high)) * OUTWARD_FEW


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return tuple(u + v for u, v in itertools.zip_longest(a, b, fillvalue=_ZERO))


@dataclass(frozen=True)
class _Ramp:
    """``factor`` where the base is above ``at``, or below it, and 0 on the other side."""

    factor: Range
    above: bool
    at: Range


@dataclass(frozen=True)
class _Bent:
    """A function of every entry of a vector: D U with U the derivative of the node ``base``.

    D is diagonal with entries in ``slopes`` and the ramps that are inclined there.
    """

    base: Node
    norm: float  # of U
    slopes: Range = _ZERO
    ramps: tuple[_Ramp, ...] = ()

    def times(self, factor: Range) -> _Bent:
        ramps = tuple(replace(r, factor=r.factor * factor) for r in self.ramps)
        return replace(self, slopes=self.slopes * factor, ramps=ramps)

    def plus(self, other: _Bent) -> _Bent:
        if self.base is not other.base:
            raise NotApplicableError
        return replace(self, slopes=self.slopes + other.slopes, ramps=self.ramps + other.ramps)

    @property
    def size(self) -> float:
        """Of the whole derivative: every set of ramps that may be inclined at one point."""
        if len(self.ramps) > _MOST:
            raise NotApplicableError
        choices = itertools.product((False, True), repeat=len(self.ramps))
        sizes = [self._sum(on).size for on in choices if self._possible(on)]
        return max(sizes) * self.norm * OUTWARD_FEW

    def _sum(self, on: tuple[bool, ...]) -> Range:
        total = self.slopes
        for ramp, inclined in zip(self.ramps, on, strict=True):
            total = total + ramp.factor if inclined else total
        return total

    def _possible(self, on: tuple[bool, ...]) -> bool:
        """Whether some entry may be on these sides of all ends; at an end it is on both."""
        low, high = -math.inf, math.inf
        for ramp, inclined in zip(self.ramps, on, strict=True):
            if ramp.above == inclined:
                low = max(low, ramp.at.low)
            else:
                high = min(high, ramp.at.high)
        return low < high or not any(on)


_Derivative = _Combined | _Bent
_AFTER = {("sum", "product"): "scalar", ("mean", "sample"): "vector"}
_BY_X = {"vector": "product", "scalar": "sample"}


@dataclass
class _VectorRules(TurnRules):
    largest: float  # L
    width: int
    known: dict[Node, _Derivative] = field(default_factory=dict)

    def node(self, node: Node, given: list[_Derivative | None]) -> _Derivative:
        """By the operation; ``given`` are the arguments' derivatives."""
        present = [d for d in given if d is not None]
        if node.op == "add" and len(present) == 2:
            return self._add(*present)
        if len(present) != 1:
            raise NotApplicableError
        (inner,) = present
        at = given.index(inner)
        if node.op in ("add", "bounded", "stored"):
            return inner
        if node.op == "mul":
            return self._mul(inner, node.args[1 - at])
        if node.op == "apply":
            return self._apply(node, inner)
        if node.op in ("maximum", "minimum"):
            return _Bent(node.args[at], self.norm(inner), _UNIT)
        kind = _AFTER.get((node.op, inner.kind)) if isinstance(inner, _Combined) else None
        if kind is None or isinstance(inner, _Bent):
            raise NotApplicableError
        more = (_ZERO,) if node.op == "mean" else ()
        return replace(inner, kind=kind, p={s: (*more, *q) for s, q in inner.p.items()})

    def norm(self, found: _Derivative) -> float:
        """Of a vector's derivative."""
        if isinstance(found, _Bent):
            return found.size
        if found.kind != "vector":
            raise NotApplicableError
        return found.norm(self.largest)

    @staticmethod
    def _add(first: _Derivative, second: _Derivative) -> _Derivative:
        if isinstance(first, _Combined) and isinstance(second, _Combined):
            return first.plus(second)
        if isinstance(first, _Bent) and isinstance(second, _Bent):
            return first.plus(second)
        raise NotApplicableError

    def _mul(self, inner: _Derivative, factor: Node) -> _Derivative:
        kind = inner.kind if isinstance(inner, _Combined) else "vector"
        if factor.op == "data" and factor.attr == "x":
            if isinstance(inner, _Bent) or kind not in _BY_X:
                raise NotApplicableError
            return replace(inner, kind=_BY_X[kind])
        if factor.width is not None or (factor.samples and kind == "vector"):
            raise NotApplicableError
        if isinstance(inner, _Bent):
            return inner.times(self.values[factor])
        return inner.times(self.values[factor], linear=not factor.samples)

    def _apply(self, node: Node, inner: _Derivative) -> _Derivative:
        straight = self.values.line(node)
        if straight is not None:
            return inner.times(straight[0])
        (argument,) = node.args
        if isinstance(inner, _Combined) and inner.kind == "scalar":
            moved = replace(inner, kind="vector").norm(self.largest) * math.sqrt(self.largest)
            return inner.times(self._slopes(node, moved), linear=False)
        if isinstance(node.attr, trees.Operation) and node.attr.name == "relu":
            ramp = self._ramp(argument)
            if ramp is not None and node.attr.arguments == (trees.Variable(),):
                return ramp
        norm = self.norm(inner)
        return _Bent(argument, norm, self._slopes(node, norm))

    def _slopes(self, node: Node, moved: float) -> Range:
        """Of a function whose argument moves by so much of the Euclidean norm of the states."""
        at = self.beyond(node.args[0], moved * math.sqrt(self.width) * OUTWARD_FEW)
        return Range(*slope(node.attr, at.low, at.high))

    def _ramp(self, node: Node) -> _Bent | None:
        """relu(factor base + shift) of a node that is so."""
        factor, shift = _ONE, _ZERO
        while True:
            straight = self.values.line(node)
            kept = [a for a in node.args if a in self.known]
            if straight is not None:
                factor, shift = factor * straight[0], shift + factor * straight[1]
            elif node.op == "add" and len(kept) == 1:
                (other,) = (a for a in node.args if a not in self.known)
                shift = shift + factor * self.values[other]
            else:
                break
            (node,) = kept
        if not (factor.low > 0 or factor.high < 0):
            return None
        ramp = _Ramp(factor, factor.low > 0, _inverse(factor) * -shift)
        return _Bent(node, self.norm(self.known[node]), ramps=(ramp,))


def _inverse(factor: Range) -> Range:
    if factor.low == factor.high and abs(factor.low) == 1:
        return factor
    return Range(
        math.nextafter(1 / factor.high, -math.inf), math.nextafter(1 / factor.low, math.inf)
    )


@dataclass(frozen=True)
class VectorTurn:
    """What is known of a turn of vectors.

    Attributes
    ----------
    rate
        Of its derivative's norm; infinite where nothing is known.
    powers
        T to bounds of the norms of 0, 1, ..., T turns; None where H is another in every turn.
    reach
        Errors of states, in the largest entry, for which the rate holds.
    """

    rate: float
    powers: Powers | None
    reach: float


def vector_turn(part: LoopSlice, values: RangesAtParameters) -> VectorTurn | None:
    """What a turn does to errors as it maps vectors; None for turns of another form."""
    states = [c.state for c in part.carried]
    width = states[0].width
    if width is None or len(states) > _MOST or any(s.width is None or s.samples for s in states):
        return None
    rules = _VectorRules(values, values.largest_square(width), width)
    rules.known |= {s: _Combined("vector", {s: (_ONE,)}) for s in states}
    try:
        part.propagate(rules.known, rules.node)
        still = _Combined("vector", {})
        rows = [rules.known.get(c.next, still) for c in part.carried]
        rate = rules.norm(rows[0]) if _of_one_state(rows, states) else math.inf
    except NotApplicableError:
        return None
    entries = [
        [row.p.get(s, ()) for s in states]
        for row in rows
        if isinstance(row, _Combined) and row.kind == "vector" and row.linear
    ]
    square = len(entries) == len(rows) and all(len(q) <= _MOST for row in entries for q in row)
    powers = Powers(*_bases(*_cells(entries, rules.largest))) if square else None
    return VectorTurn(rate, powers, rules.reach)


def _of_one_state(rows: list[_Derivative], states: list[Node]) -> bool:
    """Whether a rate says it: of the first degree, or bent."""
    (row, *others) = rows
    return not others and (isinstance(row, _Bent) or len(row.p.get(states[0], ())) in (1, 2))


# ---------------------------------------------------------------------------------------------
# powers of matrices
# ---------------------------------------------------------------------------------------------


def _cells(entries: list[list[Polynomial]], largest: float) -> tuple[Tensor, Tensor]:
    """Q at the cells' midpoints, and how far from it Q may be in each; cells crowd at 0."""
    edges = largest * torch.linspace(0, 1, tuning.SPECTRAL_CELLS + 1, dtype=torch.float64) ** 2
    low, high = edges[:-1], edges[1:]
    middle = (low + high) / 2
    half = (high - low) * (1 + NOISE)
    size = len(entries)
    center = torch.zeros(tuning.SPECTRAL_CELLS, size, size, dtype=torch.float64)
    radius = torch.zeros_like(center)
    for i, row in enumerate(entries):
        for j, q in enumerate(row):
            for k, c in enumerate(q):
                mid = (c.low + c.high) / 2
                center[:, i, j] += mid * middle**k
                radius[:, i, j] += (c.high - c.low) * high**k + NOISE * c.size * high**k
                if k:
                    radius[:, i, j] += k * c.size * high ** (k - 1) * half / 2
    return center, radius * (1 + NOISE)


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
    off = torch.linalg.matrix_norm(inverse @ basis - eye) + NOISE * _norm(wide @ tall)
    inside = _two_norm(inverse @ center @ basis) + NOISE * _norm(wide @ center.abs() @ tall)
    spread = _norm(wide @ radius @ tall)
    regular = (off < 0.5) & torch.isfinite(off)
    factor = torch.where(regular, 1 / (1 - off), math.inf)
    condition = _two_norm(basis) * _two_norm(inverse) * factor * (1 + NOISE)
    rate = (inside + spread) * factor * (1 + NOISE)
    usable = regular & torch.isfinite(condition) & torch.isfinite(rate)
    inf = torch.full_like(rate, math.inf)
    return torch.where(usable, condition, inf), torch.where(usable, rate, inf)


def _norm(matrix: Tensor) -> Tensor:
    found: Tensor = torch.linalg.matrix_norm(matrix)
    return found


def _two_norm(matrix: Tensor) -> Tensor:
    """From above: the largest singular value is computed to rounding of the Frobenius norm."""
    finite = torch.nan_to_num(matrix, nan=0.0, posinf=0.0, neginf=0.0)
    found = torch.linalg.matrix_norm(finite, ord=2) + NOISE * _norm(finite)
    return torch.where(torch.isfinite(_norm(matrix)), found, math.inf)


@dataclass(frozen=True)
class Powers:
    """Bounds of the norms of k turns: in each cell the least over the bases."""

    conditions: Tensor
    rates: Tensor

    def __call__(self, turns: int) -> Tensor:
        """The largest over the cells of the least over the bases, for 0, ..., T turns."""
        bounds = self.conditions[..., None] * self.rates[..., None] ** torch.arange(turns + 1)
        out: Tensor = bounds.amin(1).amax(0) * (1 + NOISE)
        out[0] = 1.0
        return out
