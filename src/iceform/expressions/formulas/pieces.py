"""A formula with kinks as smooth formulas between places that are known exactly.

What is inside an abs, relu, sign, step, min, max or clip decides between two smooth branches. Where
it is a line its zero is a rational number, and either side of it the tree is rewritten with the
branch that holds there. Where it is not, it must be proved to keep its sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.intervals import above, below
from iceform.arithmetic.jets import chosen
from iceform.expressions.extremes import signed
from iceform.expressions.formulas.algebra import add, divide
from iceform.expressions.formulas.calculus import canonical
from iceform.expressions.formulas.enclosing import jets
from iceform.expressions.formulas.functions import evaluate
from iceform.expressions.formulas.polynomials import polynomial, shortest, value_at
from iceform.expressions.formulas.table import TABLE, ScalarOperation, expanded
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable, parts

_MOST_PIECES = 32


@dataclass(frozen=True)
class SmoothPiece:
    """A tree without kinks, and where it holds."""

    low: Fraction
    high: Fraction
    tree: Node

    @property
    def ends(self) -> tuple[float, float]:
        """In float64, outward where they are not exact."""
        return below(self.low), above(self.high)


def pieces(tree: Node, low: float, high: float) -> list[SmoothPiece] | None:
    """The smooth pieces of a tree on ``[low, high]``; None where they cannot be told exactly."""
    found = cut(tree, low, high)
    return None if found is None else merged(found)


def cut(tree: Node, low: float, high: float) -> list[SmoothPiece] | None:
    """The same, cut wherever a branch changes, even if that changes nothing."""
    written = expanded(tree, lambda row: row.branches is None and _kinked(row))
    found = _split(SmoothPiece(Fraction(low), Fraction(high), written), _MOST_PIECES)
    return None if found is None or len(found) > _MOST_PIECES else found


def _split(piece: SmoothPiece, most: int) -> list[SmoothPiece] | None:
    kink = _innermost(piece.tree)
    if kink is None:
        return [SmoothPiece(piece.low, piece.high, shortest(piece.tree))]
    row = TABLE[kink.name]
    if most == 0 or row.branches is None:
        return None
    switch, positive, negative = row.branches(*kink.arguments)
    pieces: list[SmoothPiece] = []
    for part, known_sign in _by_sign(piece, switch):
        if known_sign is None:
            return None
        branch = positive if known_sign >= 0 else negative
        if row.jumps and known_sign == 0:
            branch = divide(add(positive, negative), Number(Fraction(2)))
        found = _split(_replaced(part, kink, branch), most - 1)
        if found is None:
            return None
        pieces += found
    return pieces


def _innermost(tree: Node) -> Operation | None:
    """A part that has a kink, and no part with one inside."""
    operations = (n for n in parts(tree) if isinstance(n, Operation))
    return next((n for n in operations if _kinked(TABLE[n.name])), None)


def _kinked(row: ScalarOperation) -> bool:
    """Whether a function has kinks: its own, or those of what it is made of."""
    if row.branches is not None or row is TABLE["where"]:
        return True
    if row.definition is None:
        return False
    return _innermost(row.definition(*[Variable()] * row.arity)) is not None


def jumps(tree: Node) -> bool:
    """Whether something in a tree jumps: a sign or a step."""
    return any(isinstance(n, Operation) and TABLE[n.name].jumps for n in parts(tree))


def _replaced(piece: SmoothPiece, old: Node, new: Node) -> SmoothPiece:
    return SmoothPiece(piece.low, piece.high, canonical(piece.tree, {old: new}))


def _by_sign(piece: SmoothPiece, switch: Node) -> list[tuple[SmoothPiece, int | None]]:
    """The piece, cut where ``switch`` changes sign, with its sign on each part."""
    line = polynomial(switch)
    if line is None or len(line) > 2:
        return [(piece, signed(partial(jets, switch), *piece.ends).sign)]
    if len(line) < 2:
        return [(piece, 0 if not line else _sign(line[0]))]
    zero, rising = -line[0] / line[1], _sign(line[1])
    if not piece.low < zero < piece.high:
        return [(piece, rising if zero <= piece.low else -rising)]
    left = SmoothPiece(piece.low, zero, piece.tree)
    return [(left, -rising), (SmoothPiece(zero, piece.high, piece.tree), rising)]


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def merged(parts: list[SmoothPiece]) -> list[SmoothPiece]:
    """Neighbours that are the same function are one piece."""
    out = parts[:1]
    for part in parts[1:]:
        if _same(out[-1].tree, part.tree):
            out[-1] = SmoothPiece(out[-1].low, part.high, out[-1].tree)
        else:
            out.append(part)
    return out


def _same(a: Node, b: Node) -> bool:
    return a == b or (polynomial(a) is not None and polynomial(a) == polynomial(b))


def gap(left: Node, right: Node, at: Fraction) -> Interval:
    """What a function steps up by where its pieces meet; a point where both are polynomials."""
    p, q = polynomial(left), polynomial(right)
    if p is not None and q is not None:
        step = value_at(q, at) - value_at(p, at)
        return Interval(_point(below(step)), _point(above(step)))
    here = Interval(_point(below(at)), _point(above(at)))
    return jets(right, here, 0)[0] - jets(left, here, 0)[0]


def _point(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _meet(left: SmoothPiece, right: SmoothPiece) -> bool:
    step = gap(left.tree, right.tree, right.low)
    return bool((step.low == 0) & (step.high == 0))


# ---------------------------------------------------------------------------------------------
# evaluation
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piecewise:
    """Smooth trees between increasing breaks; the first and the last go on for ever.

    Each tree sees only arguments where it holds, so that autograd meets no corner and nothing
    overflows in a branch that is not taken.
    """

    breaks: tuple[float, ...]
    trees: tuple[Node, ...]
    exact: tuple[Fraction, ...]
    joined: tuple[bool, ...]  # whether the pieces are known to meet at each break

    @classmethod
    def of(cls, parts: list[SmoothPiece], *, continuous: bool) -> Piecewise:
        """From the pieces of a tree; ``continuous`` if nothing in it jumps."""
        exact = tuple(p.low for p in parts[1:])
        joined = tuple(continuous or _meet(a, b) for a, b in pairwise(parts))
        return cls(tuple(map(float, exact)), tuple(p.tree for p in parts), exact, joined)

    def jets(self, cells: Interval, order: int) -> Jet:
        """Taylor coefficients on cells; on a cell with a break, what the pieces on it allow."""
        out = jets(self.trees[0], cells, order)
        for at, joined, tree in zip(self.exact, self.joined, self.trees[1:], strict=True):
            right, left = cells.low >= above(at), cells.high <= below(at)
            after = jets(tree, cells, order)
            out = chosen(right, left, after, out, order + 1, continuous=joined)
        return out

    def __call__(self, z: Tensor) -> Tensor:
        """Elementwise."""
        if not self.breaks:
            return evaluate(self.trees[0], z)
        ends = (None, *self.breaks, None)
        values = [
            evaluate(tree, torch.clamp(z, low, high))
            for tree, (low, high) in zip(self.trees, pairwise(ends), strict=True)
        ]
        out = values[0]
        for end, value in zip(self.breaks, values[1:], strict=True):
            out = torch.where(z < end, out, value)
        return out
