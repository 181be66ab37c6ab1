r"""The sharp corner: quantile regression as the linear program it is, proven by its dual.

With z_i = w.x_i - y_i, w minimises :math:`\sum_i p(z_i)`, p'(z) = 1 - q above 0 and -q below, if
and only if there are weights

.. math:: \sum_i a_i x_i = 0, \qquad a_i = p'(z_i) \text{ where } z_i \ne 0, \quad
          -q \le a_i \le 1 - q \text{ where } z_i = 0.

An optimum that is unique goes through as many samples B as there are coefficients, and
:math:`a_B = -X_B^{-\top} s`, s the sum over the others. Rounded corners, ever narrower, show which
samples these are; the frozen machine then fits them alone. Three things are proven of its answer:

* how far it is from the point w* that goes through B exactly: a least-squares proof on B;
* that no other sample changes its side between the two, so that s is known exactly;
* that :math:`a_B` lies strictly between its limits: what is computed of it is off by
  :math:`\|X_B^{-\top} \rho\|`, :math:`\rho = X_B^\top a_B + s` taken in pairs of numbers.

Then w* is the optimum, and the only one. Samples that have weights c_i have the limits -q c_i and
(1 - q) c_i. A sample of B that occurs again, label and all, has the sum of its copies' limits.

**A penalty on absolute values** is two samples for each coefficient:
:math:`|w_j| = p(w_j) + p(-w_j)`, so that samples :math:`\pm e_j` with the label 0 and the
penalty's weight make the penalised problem one without a penalty. Of :math:`-x_i`, :math:`-y_i` the
weight a counts as -a of :math:`x_i`: a coefficient that is 0 has its sample in B, and the limits
:math:`\pm c_j`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.arithmetic import UNIT, exponent_of, times_power
from iceform.arithmetic.double_double import (
    SUMMED,
    DoubleDouble,
    add,
    dot,
    mul,
    pair,
    sub,
    sum_last,
    two_sum,
)
from iceform.certificates import DerivationStep, Excess
from iceform.expressions import loss_named
from iceform_estimators.machine.convexity_bounds import near
from iceform_estimators.machine.problem import LinearProblem
from iceform_estimators.machine.proofs import Proof, prove
from iceform_estimators.machine.solvers import Solution, minimise
from iceform_estimators.machine.sources import ArraySource, each, joined, split
from iceform_estimators.tuning import APART, CLOSE, ROUNDED, SLACK, TRIES

_MORE = 4  # times as many samples are looked at as the answer goes through
BENT = 0.1  # of its largest curvature, or of its width: in the corner
_FEW = _MORE**2  # more than there are coefficients: too many to tell which
_SHARE = _MORE  # one sample in so many may be exchanged: the passes are to find the others
_COPIES = (
    _MORE**3
)  # times as many samples as coefficients may lie on the line, all copies of as many


@dataclass(frozen=True, eq=False)
class Vertex:
    """The line through samples that an answer goes through, and its proof.

    There is none where weights reach their limits, to rounding: then other lines are as good.
    """

    solution: Solution
    proof: Proof | None
    passes: int
    samples: ArraySource


def still_open(problem: LinearProblem, w: Tensor) -> bool:
    """Whether far more samples lie in a rounded corner than a line goes through."""
    facts, encoding = problem.curvature, problem.encoding
    least = BENT * float(facts.steepest or 0.0)
    (bent,) = problem.source.reduce(
        lambda x, y: [(facts.bend(encoding.lines(x, y, w)[1]) > least).sum()]
    )
    return int(bent) > problem.dim + _FEW


def through_samples(problem: LinearProblem, w: Tensor, quantile: float) -> Vertex | None:
    """The line through the samples nearest to w, if it is an optimum."""
    note = "which samples the line goes through, and the weights that prove it"
    problem.machine.ledger.note("host", note)
    near = _nearest(problem, w)
    if near is None:
        return None
    chosen = _exchanged(problem, *near, quantile)
    few = replace(problem, source=chosen, loss=loss_named("squared"), passes=0)
    solution = minimise(few, tol=CLOSE, max_passes=24, start=w)
    _vanish(problem, chosen, solution.w)
    proof = prove(few, solution.w)
    found, room = _optimal(problem, few, solution.w, proof, quantile)
    return Vertex(solution, found, few.passes, chosen) if room > -APART else None


def solved(samples: ArraySource, near: Tensor) -> tuple[DoubleDouble, Tensor] | None:
    """The v with x.v = y of as many samples as unknowns, or x.v + b = y, b the last; its error.

    From one that is near, in pairs of numbers. With R nearly the inverse of A, whose columns are
    scaled, and rho = y - A v, what is left is |e| <= |R| |rho| + q max|e|, q = max |I - R A|.
    """
    a, y, p = samples.x.double(), samples.y.double(), len(near)
    a = torch.cat([a, a.new_ones(p, 1)], 1) if a.shape[1] < p else a
    power = exponent_of(a.abs().amax(0))
    a, v = times_power(a, -power), pair(times_power(near, power))
    inverse, singular = torch.linalg.inv_ex(a)
    rounded = (p + 2) * UNIT * (inverse.abs() @ a.abs())
    apart = ((inverse @ a - torch.eye(p).to(a)).abs() + rounded).sum(1).max()
    if bool(singular) or not float(apart) < 0.5:
        return None
    for last in range(TRIES + 1):
        rows = DoubleDouble(*(part.expand_as(a) for part in v))
        rest = sub(pair(y), dot(pair(a), rows))
        if last < TRIES:
            v = add(v, pair(inverse @ rest.double()))
    lost = 16 * SUMMED * (a.abs() @ v.hi.abs() + y.abs())
    off = inverse.abs() @ (rest.hi.abs() + rest.lo.abs() + lost)
    off = ROUNDED * (off + apart / (1 - apart) * off.max())
    zero = (a[_single(a, y)] != 0).any(0)
    v, off = (
        DoubleDouble(*(torch.where(zero, 0.0, part) for part in v)),
        torch.where(zero, 0.0, off),
    )
    return DoubleDouble(*(times_power(part, -power) for part in v)), times_power(off, -power)


def _vanish(problem: LinearProblem, chosen: ArraySource, w: Tensor) -> None:
    """Coefficients that a sample of one entry and the label 0 says to be 0."""
    if not problem.scaling.intercept:
        w[(chosen.x[_single(chosen.x, chosen.y)] != 0).any(0)] = 0.0


def _single(x: Tensor, y: Tensor) -> Tensor:
    """Which samples have one entry and the label 0: its coefficient is 0."""
    return ((x != 0).sum(1) == 1) & (y == 0)


def magnified(problem: LinearProblem, times: float) -> LinearProblem:
    """The same with labels, and so coefficients, written larger: the corner is narrower by as much.

    Tables stay what they are, so that all problems share them.
    """
    scaling = replace(problem.scaling, size=problem.scaling.size / times)
    return replace(problem, scaling=scaling, passes=0)


# ---------------------------------------------------------------------------------------------
# which samples
# ---------------------------------------------------------------------------------------------


def _nearest(problem: LinearProblem, w: Tensor) -> tuple[Tensor, Tensor] | None:
    """As many independent samples as there are coefficients, the nearest first."""
    return _independent(problem, w, _MORE) or _independent(problem, w, _COPIES)


def _independent(problem: LinearProblem, w: Tensor, more: int) -> tuple[Tensor, Tensor] | None:
    """The same, of so many times as many samples; None where these do not determine a line."""
    p, encoding = problem.dim, problem.encoding
    count = min(more * p + 8, problem.source.rows)

    def nearest(parts: Sequence[Tensor]) -> list[Tensor]:
        at = parts[0].argsort()[:count]
        return [part[at] for part in parts]

    _, x, y = problem.source.combine(
        lambda x, y: nearest([encoding.lines(x, y, w)[1].abs(), x, y]),
        lambda first, second: nearest(each(*[joined] * 3)(first, second)),
    )
    rest = encoding(x, y)[0].clone()
    sizes = rest.norm(dim=1)
    chosen: list[int] = []
    for i in range(len(rest)):
        length = rest[i].norm()
        if float(length) <= APART * float(sizes[i]):
            continue
        chosen.append(i)
        if len(chosen) == p:
            return x[chosen], split(y[chosen])[0]
        unit = rest[i] / length
        rest = rest - (rest @ unit)[:, None] * unit
    return None


def _met(
    problem: LinearProblem, w: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How far along a direction samples are met, how fast their residuals move, x and y."""
    encoding = problem.encoding

    def along(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, z, slip, _ = encoding.lines(x, y, w)
        speed = samples @ direction
        ahead = (z.abs() > 4 * slip) & (z * speed < 0)
        fast = encoding.weigh(speed.abs(), y)[ahead]
        return [-z[ahead] / speed[ahead], fast, x[ahead], split(y)[0][ahead]]

    place, speed, x, y = problem.source.combine(along, each(*[joined] * 4))
    order = place.argsort()
    return place[order], speed[order], x[order], y[order]


def _pulled(problem: LinearProblem, w: Tensor, quantile: float) -> list[Tensor]:
    """What the samples on either side of a line pull it by, and those on neither: x, y, weights."""
    encoding = problem.encoding

    def pulls(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, z, slip, _ = encoding.lines(x, y, w)
        at = z.abs() <= 2 * slip
        heavy = encoding.weigh(torch.ones_like(z), y)
        total = ((z > 0).to(z) - quantile) * heavy * ~at @ samples
        return [total, x[at], split(y)[0][at], heavy[at]]

    return problem.source.combine(pulls, each(torch.add, *[joined] * 3))


def _exchanged(problem: LinearProblem, x: Tensor, y: Tensor, quantile: float) -> ArraySource:
    """A few samples whose weight is beyond its limits go, those that the line then meets come.

    Steps of the simplex method; what they lead to is proven afterwards, so that nothing here has
    to be.
    """
    problem.machine.ledger.note("host", "exchange of a few samples by steps of the simplex method")
    x, y = x.clone(), y.clone()
    samples, labels, _ = problem.encoding(x, y)
    inverse = torch.linalg.pinv(samples)
    for turn in range(2 + problem.dim // _SHARE):
        w = inverse @ labels
        _vanish(problem, ArraySource(x, y), w)
        total, *met = _pulled(problem, w, quantile)
        (low, high), _ = _limits(problem, x, y, met, quantile)
        weights = -inverse.mT @ total
        excess = torch.maximum(weights - high, low - weights)
        k = int(excess.argmax())
        allowed = math.inf if turn < problem.dim // _SHARE else 2 * float(high[k] - low[k])
        if not APART < float(excess[k]) <= allowed:
            break
        direction = inverse[:, k] * (1.0 if float(weights[k]) > float(high[k]) else -1.0)
        _, speed, xs, ys = _met(problem, w, direction)
        next_one = int(torch.searchsorted(speed.cumsum(0), excess[k]))
        if next_one >= len(ys):
            break
        x[k], y[k] = xs[next_one], ys[next_one]
        row, label, _ = problem.encoding(x[k : k + 1], y[k : k + 1])
        inverse = _replaced(inverse, row[0], k)
        labels[k] = label[0]
    return ArraySource(x, y)


def _replaced(inverse: Tensor, row: Tensor, k: int) -> Tensor:
    """The inverse of a matrix whose row k is another one."""
    turned = row @ inverse
    moved = torch.outer(inverse[:, k] / turned[k], turned)
    moved[:, k] -= inverse[:, k] / turned[k]
    return inverse - moved


# ---------------------------------------------------------------------------------------------
# how far any line is above the optimum
# ---------------------------------------------------------------------------------------------


def sharply(problem: LinearProblem, w: Tensor, thresholds: Tensor, quantile: float) -> Excess:
    r"""How far w is above the least value of the sharp problem at most, by its dual.

    Any :math:`-q \le a_i \le 1 - q` make :math:`p(z) \ge a_i z`, so that every line v has

    .. math:: \frac1n \sum_i p(z_i) + \sum_j t_j |v_j| \ge g.v - \frac1n \sum_i a_i y_i
              + \sum_j t_j |v_j|, \qquad g = \frac1n \sum_i a_i x_i,

    and the terms in v_j are no less than 0 once all a_i are shrunk until :math:`|g_j| \le t_j`.
    What is left is the intercept's: the best one is a quantile of the residuals, no larger than
    they are, and no penalty of a best line is larger than what was found. Without a penalty it is
    lines near w that are compared.
    """
    encoding, derivative = problem.encoding, problem.loss.derivative.call

    def dual(x: Tensor, y: Tensor) -> list[Tensor]:
        """Sums of a_i x_i, a_i y_i and the sharp loss, magnitudes first; largest x and y.

        The a_i are what a rounded corner's slope is at w, between the limits of the sharp one:
        chosen numbers, so that nothing of them rounds.
        """
        samples, z, slip, _ = encoding.lines(x, y, w)
        labels, inside = encoding(x, y)[1], 1 - 4 * UNIT
        a = derivative(z).clamp(-quantile * inside, (1 - quantile) * inside)
        heavy = encoding.weigh(a, y)
        loss = torch.maximum((1 - quantile) * z, -quantile * z) + slip
        return [
            heavy.abs() @ samples.abs(), heavy @ samples, heavy.abs() @ labels.abs(),
            heavy @ labels, encoding.weigh(loss, y).sum(), samples.abs().max(), labels.abs().max(),
        ]  # fmt: skip

    sizes, sums, size, inner, losses, widest, largest = problem.source.combine(
        dual, each(*[torch.add] * 5, *[torch.maximum] * 2)
    )
    n, lost = problem.source.total, (problem.source.rows + len(w) + 64) * UNIT
    steep = (sums.abs() + lost * sizes) / n
    value = float((1 + lost) * (losses / n + thresholds @ w.abs()))
    returned = problem.scaling.intercept_slip(*problem.scaling.raw(w)) / problem.scaling.size
    added = lost * (float(size) / n + value + float(widest * w.abs().sum())) + float(returned)
    held = thresholds > 0
    free = steep[~held].sum()
    if int((~held).sum()) > problem.scaling.intercept:
        reach, over = near(w)
        gap = value - float(sums @ w - inner) / n + reach * float(steep.sum())
        added += float(lost * sizes @ w.abs()) / n
    else:
        shrunk = torch.where(held, thresholds / steep, 1.0).clamp(max=1.0).min() * (1 - 4 * UNIT)
        most = float(largest) + float(widest) * value / float(thresholds[held].min())
        gap = value + float(shrunk * inner) / n + most * float(free)
        over = "all lines"
    bound = ROUNDED * (max(gap, 0.0) + added)
    return Excess(bound * problem.scaling.size, f"{over}, the corner of the loss sharp")


# ---------------------------------------------------------------------------------------------
# why it is the optimum
# ---------------------------------------------------------------------------------------------


def _sides(problem: LinearProblem, w: Tensor, proof: Proof) -> list[Tensor]:
    """Sums of the samples above and below a line, in pairs, and which are on neither side.

    A sample is on a side if every line within the proof's radius, and every rounding, leaves it
    there.
    """
    encoding = problem.encoding

    def sides(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, z, slip, _ = encoding.lines(x, y, w)
        low, _ = encoding.lows(x, y)
        moves = SLACK * proof.radius * (samples @ proof.whitener).norm(dim=1) + 2 * slip
        above, below = z > moves, z < -moves
        weights = encoding.weigh(torch.ones_like(z), y)
        rows = mul(DoubleDouble(samples, low), pair(weights[:, None].expand_as(samples)))
        sums = [part for side in (above, below) for part in _sum(rows.hi[side], rows.lo[side])]
        at = ~(above | below)
        apart = torch.where(at, math.inf, z.abs() - moves).amin()
        return [*sums, weights @ samples.abs(), -apart, x[at], split(y)[0][at], weights[at]]

    ways = each(add, add, torch.add, torch.maximum, *[joined] * 3)
    return problem.source.combine(sides, ways)


def _limits(
    problem: LinearProblem, x: Tensor, y: Tensor, met: Sequence[Tensor], quantile: float
) -> tuple[tuple[Tensor, Tensor], bool]:
    """Between what the weights of samples (x, y) lie, whose copies and mirror images (xs, ys) are.

    A sample that is not among them weighs 1. Whether all of (xs, ys) are, and all of (x, y) among
    them, comes second.
    """
    xs, ys, weights = met
    given, on = (torch.cat([a, b[:, None]], 1) for a, b in ((x, y), (xs, ys)))
    rows = torch.cat([given, on, -on]) + 0.0  # no -0
    kinds = torch.unique(rows, dim=0, return_inverse=True)[1]
    mine, theirs, images = kinds.split([len(given), len(on), len(on)])
    same = mine[:, None] == theirs
    other = (mine[:, None] == images) & ~same
    if problem.scaling.intercept:  # of which nothing has a mirror image
        other = torch.zeros_like(same)
    copies, turned = (found.to(weights) @ weights for found in (same, other))
    missing = copies + turned == 0
    copies = torch.where(missing, 1.0, copies)
    high = (1 - quantile) * copies + quantile * turned
    low = -quantile * copies - (1 - quantile) * turned
    return (low, high), bool((same | other).any(0).all()) and not bool(missing.any())


def _sum(samples: Tensor, low: Tensor) -> DoubleDouble:
    """Of rows, in pairs."""
    if not len(samples):
        zero = samples.new_zeros(samples.shape[1])
        return DoubleDouble(zero, zero)
    return sum_last(DoubleDouble(samples.mT, low.mT))


def _optimal(
    problem: LinearProblem, few: LinearProblem, w: Tensor, proof: Proof, quantile: float
) -> tuple[Proof | None, float]:
    """The proof that the line through some samples is the optimum, and the room of its weights."""
    if not proof.radius < math.inf or proof.metric is not None:
        return None, -math.inf
    *sums, size, nearest, xs, ys, weights = _sides(problem, w, proof)
    met = (xs, ys, weights)
    assert isinstance(few.source, ArraySource)
    if len(xs) > _COPIES * problem.dim:
        return None, -math.inf
    limits, all_of_them = _limits(problem, few.source.x, few.source.y, met, quantile)
    if not all_of_them:
        return None, -math.inf
    rounded = problem.source.weighed  # once at most, where a weight is a penalty's
    room = _dual_room(few, proof, sums, size, quantile, limits, rounded)
    nearest_room = -float(nearest)
    if not room > 0:
        return None, room
    steps = (
        DerivationStep("B", "samples that it goes through", problem.dim, "as many as coefficients"),
        *proof.steps,
        DerivationStep(
            "sides", "room of the nearest other sample", nearest_room, "no sample changes sides"
        ),
        DerivationStep(
            "dual", "room of the weights of B", room, "between their limits: this is the optimum"
        ),
    )
    return replace(proof, steps=steps), room


def _dual_room(
    few: LinearProblem, proof: Proof, sums: list[Tensor], size: Tensor, quantile: float,
    limits: tuple[Tensor, Tensor], rounded: bool,
) -> float:  # fmt: skip
    """How far the weights of B stay from their limits, all rounding taken off."""
    assert isinstance(few.source, ArraySource)
    samples = few.encoding(few.source.x, few.source.y)[0]
    rows = DoubleDouble(samples.mT, few.encoding.lows(few.source.x, few.source.y)[0].mT)
    up = two_sum(size.new_tensor(1.0), size.new_tensor(-quantile))
    upper = DoubleDouble(*(part.expand_as(size) for part in up))
    lower = pair(torch.full_like(size, -quantile))
    total = add(mul(upper, DoubleDouble(*sums[:2])), mul(lower, DoubleDouble(*sums[2:])))
    weights = -torch.linalg.solve(samples.mT, total.double())
    left = add(dot(rows, pair(weights.expand_as(samples.mT))), total)
    lost = 16 * SUMMED * (size + samples.abs().mT @ weights.abs()) + 2 * rounded * UNIT * size
    lost = lost + (len(samples) + 8) * UNIT * left.hi.abs()  # in whatever coordinates it is taken
    # |X_B^-T rho| <= |T' rho| / sqrt(p), T T' the inverse of X_B'X_B / p from above.
    reach = (proof.whitener.mT @ left.double()).norm() + (proof.whitener.abs().mT @ lost).norm()
    off = SLACK * float(reach) / math.sqrt(len(samples)) + 4 * UNIT
    low, high = limits
    summed = (len(size) * _COPIES + 8) * UNIT * (high - low)  # limits are sums of copies' weights
    return float((torch.minimum(weights - low, high - weights) - summed).min()) - off
