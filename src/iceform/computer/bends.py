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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch

from iceform.computer.enclosures import slope
from iceform.computer.ranges import Range
from iceform.computer.virtual import Curve, Step
from iceform.errors import IceformError
from iceform.functions.formulas import Formula, trees
from iceform.functions.formulas.functions import evaluate

__all__ = ["Bend", "Bent", "bent"]

_STEEP = 2.0**20  # the largest logit of either look-up
_LEAST = 2.0**10  # of the second: e^(-1.52 s_2) is 0
_MOST = 2  # kinks: each takes three instructions
_INSIDE = 2.0**-20  # of a piece, left out at its ends
_ULPS = 2.0**-48  # relative: slopes that differ by less are one
_TABLE = 2.0**-27  # what a graded table is off by at best, relative to its reach


@dataclass(frozen=True)
class Bend:
    """A kink, and the slopes that M has left and right of it."""

    at: float
    left: float
    right: float

    def steps(self, on: Range, eps: float) -> tuple[Step, Step]:
        """M as a comparison of z, and as one of what that gives; neither has a gap.

        The second is as steep as it takes to be within eps.
        """
        reach = max(abs(on.low - self.at), abs(on.high - self.at))
        first = 2.0 ** math.floor(math.log2(_STEEP / reach))
        offset, height = (self.left + self.right) / 2, (self.right - self.left) / 2
        enough = math.ceil(math.log2(max(abs(height) / (2 * first * eps), _LEAST)))
        return (
            Step(self.at, first, math.inf, 0.0, 1.0),
            Step(0.0, min(2.0**enough, _STEEP), math.inf, offset, height),
        )

    def off(self, on: Range, eps: float) -> tuple[float, float]:
        """What the product is off by: in all, and times the unit roundoff.

        Logits of the first comparison round like a shift of z by 16 u (|z| + |k|) at most, M by 8 u
        of its size; slopes are known to 32 u of theirs, and the kink to u of its.
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
class Bent:
    """c(z) = ``value`` + the sum over the bends of (z - k) M."""

    value: float
    bends: tuple[Bend, ...]


def bent(curve: Curve, on: Range, eps: float) -> Bent | None:
    """The straight pieces of a curve; None where it has others, or where a table will do."""
    if isinstance(curve, Step) or not on.low < on.high or eps >= _TABLE * on.size:
        return None
    return _pieces(curve, on.low, on.high)


@lru_cache(maxsize=512)
def _pieces(tree: trees.Node, low: float, high: float) -> Bent | None:
    try:
        kinks = Formula(tree, "z").scalar_function(low, high).kinks_in(low, high)
    except IceformError:  # it jumps, say; its table will refuse it, with the author's line
        return None
    if not 1 <= len(kinks) <= _MOST:
        return None
    edges = [low, *kinks, high]
    slopes = [_slope(tree, a, b) for a, b in pairwise(edges)]
    known = [s for s in slopes if s is not None]
    if len(known) < len(slopes):
        return None
    first = Bend(kinks[0], known[0], known[1])
    more = (Bend(k, 0.0, b - a) for k, (a, b) in zip(kinks[1:], pairwise(known[1:]), strict=True))
    value = float(evaluate(tree, torch.tensor([kinks[0]], dtype=torch.float64)))
    return Bent(value, (first, *more))


def _slope(tree: trees.Node, low: float, high: float) -> float | None:
    """Of a straight piece."""
    room = _INSIDE * (high - low)
    least, most = slope(tree, low + room, high - room)
    middle = (least + most) / 2
    straight = most - least <= _ULPS * max(abs(least), abs(most), 1.0)
    return middle if straight else None
