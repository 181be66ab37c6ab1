r"""What convexity and a penalty prove where curvature does not.

With :math:`F = L + \frac12 \sum_j q_j w_j^2`, L convex and g the gradient at an answer w,

.. math:: \tfrac12 \|w - v\|_q^2 \le F(w) - F(v) \le g.(w - v)

for the minimiser v of F over any convex set that holds w: on the left since F has the penalty's
curvature at least and does not fall from v towards w.

Where every coefficient is penalised the set is everything, and :math:`\rho = \|w - v\|_q \le
2 \nu`, :math:`\nu = \|g\|_{q^{-1}}`. Where the last one, a constant b, is not, the set is
:math:`\|w - v\|_q \le \rho,\ |b - b_v| \le \beta` with :math:`\rho = \nu + \sqrt{\nu^2 +
2 |g_b| \beta}`: v does not reach the first bound by the inequalities above, nor the second if the
slope along b points inwards at both ends whatever the other coefficients within :math:`\rho` are. A
sample's slope is monotone in b and sees the others through :math:`\|x_i\|_{q^{-1}} \rho` alone, so
that this is two sums over the samples. Inside its set, v is the minimiser everywhere. In all cases
:math:`F(w) - F(v) \le \nu \rho + |g_b| \beta`.

F is above its least value by no more than it is above zero and above the sum of its losses' least
values, which is the better bound where classes are separable: their losses are next to nothing.
Without a penalty, and without those values, there may be no minimiser at all; then the right-hand
side is a bound against every line within a distance that is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.arithmetic import UNIT, at_least
from iceform.certificates import Excess
from iceform.expressions import Curvature
from iceform_estimators.machine.problem import LinearProblem
from iceform_estimators.tuning import NEARBY, ROUNDED, WIDEST

_NARROW = 2.0**-20  # bounds of |b - b_v| that are tried, each 16 times the last


@dataclass(frozen=True, eq=False)
class MinimiserBox:
    """A box around w that holds the minimiser, and what F(w) exceeds the least value by."""

    box: Tensor
    excess: float


def held_by_penalty(
    problem: LinearProblem, w: Tensor, facts: Curvature, gradient: Tensor, error: Tensor
) -> MinimiserBox | None:
    """None where a coefficient other than the intercept is free, or no bound is found for it."""
    ridge, steep = problem.ridge, gradient.abs() + error
    free = ridge == 0
    last = torch.zeros_like(free)
    last[-1] = problem.scaling.intercept
    if not facts.convex or bool((free & ~last).any()):
        return None
    held = ~free
    nu = float((steep[held] / ridge[held].sqrt()).norm()) * ROUNDED
    if not bool(free.any()):
        return MinimiserBox(2 * nu / ridge.sqrt() * ROUNDED, 2 * nu * nu * ROUNDED)
    pull, far = float(steep[-1]), _NARROW
    while far <= WIDEST:
        rho = (nu + math.sqrt(nu * nu + 2 * pull * far)) * ROUNDED
        above, below, added = _inwards(problem, w, facts, rho, far)
        if above > added and below > added:
            box = torch.full_like(w, far)
            box[held] = rho / ridge[held].sqrt() * ROUNDED
            return MinimiserBox(box, (nu * rho + pull * far) * ROUNDED)
        far *= 16
    return None


def _inwards(
    problem: LinearProblem, w: Tensor, facts: Curvature, rho: float, far: float
) -> tuple[float, float, float]:
    """Least slopes along b at b + beta, minus the largest at b - beta, and what sums are off by.

    Sums of c_i s_i (l'(z_i + s_i (beta - rho ||x_i||)) - o_i), s_i being b's own column, 1 or the
    sign of a margin: s l'(z + s t) grows with t for a convex l.
    """
    encoding, ridge = problem.encoding, problem.ridge
    derivative = problem.loss.derivative.call  # unchecked: what overflows compares as false

    def slopes(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, z, slip, offsets = encoding.lines(x, y, w)
        reach = (samples[:, :-1] / ridge[:-1].sqrt()).norm(dim=1) * rho * ROUNDED
        slip = slip + 4 * UNIT * (z.abs() + far + reach)
        out, size = [], z.new_zeros(())
        for end in (1.0, -1.0):
            turned = end * samples[:, -1]
            f, off, _, _ = facts.enclose(derivative, z + turned * (far - reach - slip))
            weighed = encoding.weigh(turned * (f - offsets) - off, y)
            # A sum of n numbers is off by n roundings of their magnitudes at most.
            out.append(weighed.sum() - (len(x) + 8) * UNIT * weighed.abs().sum())
            size = size + weighed.abs().sum()
        return [*out, size]

    above, below, size = map(float, problem.source.reduce(slopes))
    return above, below, (problem.source.count + 8) * UNIT * size


def above_nothing(problem: LinearProblem, w: Tensor) -> float:
    """F(w) less the least values of its losses; infinite where these are not known."""
    loss_above, encoding = problem.loss.above, problem.encoding
    if loss_above is None or problem.loss.known is None:
        return math.inf

    def above(x: Tensor, y: Tensor) -> list[Tensor]:
        _, z, slip, offsets = encoding.lines(x, y, w)
        # A convex function is largest at an end of an interval, wherever z rounds to.
        ends = (loss_above(z + slip, offsets), loss_above(z - slip, offsets))
        return [encoding.weigh(torch.maximum(*ends), y).sum()]

    (total,) = problem.source.reduce(above)
    mean = float(total) / float(problem.source.total)
    rounded = 1 + (problem.source.rows + problem.source.count + 32) * 2 * UNIT
    found = (mean * rounded + float((problem.ridge * w.square()).sum()) / 2) * ROUNDED
    return found if found < math.inf else math.inf  # nor where something overflows


def nearby(problem: LinearProblem, w: Tensor, gradient: Tensor, error: Tensor) -> Excess:
    """Against every line near w, by convexity alone."""
    reach, over = near(w)
    bound = reach * float((gradient.abs() + error).sum()) * ROUNDED + returned(problem, w)
    return Excess(bound * problem.scaling.size**2, over)


def returned(problem: LinearProblem, w: Tensor) -> float:
    """What F may grow by as coefficients are written in the data's units, and rounded."""
    scaling = problem.scaling
    slip = float(scaling.intercept_slip(*scaling.raw(w))) / scaling.size * scaling.intercept
    encoding, derivative = problem.encoding, problem.loss.derivative.call

    def slopes(x: Tensor, y: Tensor) -> list[Tensor]:
        """How far z may move times the largest slope on the way, l' being monotone."""
        _, z, off, offsets = encoding.lines(x, y, w)
        moves = 2 * off + slip
        ends = [(derivative(z + t * moves) - offsets).abs() for t in (1, -1)]
        steep = torch.maximum(*ends) + 16 * UNIT * (1 + offsets.abs())
        return [encoding.weigh(steep * moves, y).sum()]

    (total,) = problem.source.reduce(slopes)
    penalty = float((problem.ridge * w.square()).sum())
    found = (float(total) / float(problem.source.total) + 16 * UNIT * penalty) * ROUNDED
    return found if found < math.inf else math.inf  # nor where something overflows


def of_degree_one(problem: LinearProblem, excess: Excess) -> Excess:
    """The bound for a loss of degree one: labels times c make it c, not c^2, times as large."""
    return replace(excess, bound=excess.bound / problem.scaling.size)


def near(w: Tensor) -> tuple[float, str]:
    """The radius within which lines count as near w, and a description of it."""
    reach = 2.0 ** math.ceil(math.log2(NEARBY * (1 + float(w.abs().max()))))
    most = at_least(reach, ".4g")
    return reach, f"all lines whose scaled coefficients differ from these by at most {most}"
