r"""Curves of straight pieces, without a table that is as good as its entries are close to a kink.

A look-up at a kink is off by about the spacing h of its entries there, and logits of size R/h round
by u R/h: no table of one look-up gets below some :math:`\sqrt{u} R`. But with its slopes l and r
left and right of a kink k,

.. math:: c(z) = c(k) + (z - k)\, M(z),\qquad M(z) = l \text{ for } z < k,\; r \text{ for } z > k,

and M is a comparison, looked up twice: :math:`\tanh(s_2 \tanh(s_1 (z - k)))` is off from the sign
only where z - k is as small as :math:`1/(s_1 s_2)`, and there it is multiplied by z - k. So

.. math:: |(z - k)\,(M - \tilde M)| \le \frac{|r - l|}{4 s_1 s_2},

for :math:`|w| (1 - \tanh(s_2 \tanh(s_1 |w|))) \le 2 |w| e^{-1.52 s_1 s_2 |w|} < 1/(2 s_1 s_2)`
where :math:`s_1 |w| \le 1`, and 0 beyond, s_2 being a thousand or more. Nothing is refused near a
tie: it does not matter which side is taken. Further kinks add :math:`(z - k_j) M_j` with slopes 0
and :math:`r_j - l_j`.

Kinks, slopes and c(k) are rational numbers; what is computed with has them rounded to float64. Both
curves are continuous and straight between their kinks, so they are furthest apart at a kink of
either or at an end of the range: that distance is found exactly, and charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from iceform.arithmetic.intervals import above
from iceform.computer.virtual import Curve, JumpCurve, StepCurve
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.calculus import canonical
from iceform.expressions.formulas.pieces import pieces
from iceform.expressions.formulas.polynomials import Polynomial, polynomial, value_at
from iceform.program import Range

STEEPEST = 2.0**20  # the largest logit of a step's table: its gap is a share of the range
_LEAST = 2.0**10  # of the second: e^(-1.52 s_2) is 0
_MOST = 2  # kinks: each takes three instructions
_TABLE = 2.0**-27  # what a graded table is off by at best, relative to its reach


@dataclass(frozen=True)
class Kink:
    """A kink, and the slopes that M has left and right of it."""

    at: float
    left: float
    right: float

    def steps(self, on: Range, eps: float) -> tuple[StepCurve, StepCurve]:
        """M as a comparison of z, and as one of what that gives; neither has a gap.

        The second is as steep as it takes to be within eps.
        """
        reach = max(abs(on.low - self.at), abs(on.high - self.at))
        first = 2.0 ** math.floor(math.log2(STEEPEST / reach))
        offset, height = (self.left + self.right) / 2, (self.right - self.left) / 2
        ends = (offset + height, self.right), (offset - height, self.left)
        off = max(above(abs(Fraction(a) - Fraction(b))) for a, b in ends)
        enough = math.ceil(math.log2(max(abs(height) / (2 * first * eps), _LEAST)))
        return (
            StepCurve(self.at, first, math.inf, 0.0, 1.0),
            StepCurve(0.0, min(2.0**enough, STEEPEST), math.inf, offset, height, off),
        )

    def off(self, on: Range, eps: float) -> tuple[float, float]:
        """What the product is off by: in all, and times the unit roundoff.

        Logits of the first comparison round like a shift of z by 16 u (|z| + |k|) at most; its
        result is off by u times what memory holds, a shift by less than that again up to a size of
        :data:`STEEPEST` (beyond, the budget charges more); M is looked up within 8 u of its size.
        """
        first, second = self.steps(on, eps)
        jump, size = abs(self.right - self.left), max(abs(self.left), abs(self.right))
        reach = on.size + abs(self.at)
        return jump / (4 * first.sharpness * second.sharpness), 64 * (jump + size) * reach

    @property
    def range(self) -> Range:
        """Of M."""
        return Range(min(self.left, self.right), max(self.left, self.right))


@dataclass(frozen=True)
class PiecewiseLinear:
    """c(z) = ``value`` + the sum over the bends of (z - k) M, but for ``off``."""

    value: float
    kinks: tuple[Kink, ...]
    off: float

    def __call__(self, z: Fraction) -> Fraction:
        """What it is at a rational number, exactly."""
        away = ((z - Fraction(b.at), b.left if z < b.at else b.right) for b in self.kinks)
        return Fraction(self.value) + sum(w * Fraction(slope) for w, slope in away)


def piecewise_linear(curve: Curve, on: Range, eps: float) -> PiecewiseLinear | None:
    """The straight pieces of a curve; None where it has others, or where a table will do."""
    if isinstance(curve, JumpCurve) or not on.low < on.high or eps >= _TABLE * on.size:
        return None
    return _pieces(curve, on.low, on.high)


@lru_cache(maxsize=512)
def _pieces(tree: trees.Node, low: float, high: float) -> PiecewiseLinear | None:
    cut = pieces(canonical(tree), low, high) or []
    lines = [p for piece in cut if (p := polynomial(piece.tree)) is not None and len(p) <= 2]
    kinks = [piece.low for piece in cut[1:]]
    apart = all(a < b for a, b in pairwise([low, *map(float, kinks), high]))
    if not (1 <= len(kinks) <= _MOST and len(lines) == len(cut) and apart):
        return None
    if any(
        value_at(a, k) != value_at(b, k) for k, (a, b) in zip(kinks, pairwise(lines), strict=True)
    ):
        return None  # it jumps; its table will refuse it, with the author's line
    slopes = [float(p[1]) if len(p) == 2 else 0.0 for p in lines]
    first = Kink(float(kinks[0]), slopes[0], slopes[1])
    more = (
        Kink(float(k), 0.0, b - a)
        for k, (a, b) in zip(kinks[1:], pairwise(slopes[1:]), strict=True)
    )
    made = PiecewiseLinear(float(value_at(lines[0], kinks[0])), (first, *more), 0.0)
    return replace(made, off=_apart(made, lines, kinks, low, high))


def _apart(
    made: PiecewiseLinear, lines: list[Polynomial], kinks: list[Fraction], low: float, high: float
) -> float:
    """How far it is from the curve itself: on the range, and as far again beyond its ends."""
    width = Fraction(high) - Fraction(low)
    places = [*kinks, *(Fraction(b.at) for b in made.kinks)]
    places += [Fraction(low) - width, Fraction(high) + width]
    exact = (value_at(lines[sum(k < z for k in kinks)], z) for z in places)
    return above(max(abs(made(z) - c) for z, c in zip(places, exact, strict=True)))
