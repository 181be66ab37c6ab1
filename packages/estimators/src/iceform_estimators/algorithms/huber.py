r"""Huber regression with its scale, as scikit-learn's ``HuberRegressor`` defines it.

.. math:: \min_{w, b, \sigma > 0} \sum_i \Big(\sigma + \sigma H_\epsilon\big(\tfrac{r_i}{\sigma}
   \big)\Big) + \alpha \|w\|^2, \qquad r = Xw + b - y,

with H the square up to epsilon and a line beyond. For a given sigma the gradient looks up a clip;
labels measured in units of epsilon sigma make it the same clip for every sigma. The scale itself
solves mean min(|r|/sigma, epsilon)^2 = 1, a second look-up on the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import UNIT, at_least
from iceform.certificates import DerivationStep, Excess, Result
from iceform.expressions import Loss, loss_named
from iceform_estimators.algorithms.examples import outliers
from iceform_estimators.algorithms.linear import LinearModel, fitted
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.machine import ArraySource, MachineRun, Source
from iceform_estimators.machine.problem import (
    SCALED,
    Encoding,
    LinearProblem,
    Metric,
    metric_of,
    slip_of,
    spectral_norm,
    swept,
)
from iceform_estimators.machine.proofs import Proof, gram_slip, lengths_in, lower, norm_of
from iceform_estimators.machine.solvers import Solution, minimise
from iceform_estimators.machine.sources import each, joined
from iceform_estimators.machine.stream import CLIP_SQUARED
from iceform_estimators.tuning import (
    CLOSE,
    GROWTHS,
    HUBER_ALPHA,
    HUBER_EPSILON,
    NEARBY,
    PEER_TOLERANCE,
    PENALTY_SLIDER,
    PROGRESS,
    ROOM,
    ROUNDED,
    ROUNDS,
    SLACK,
)

_SMALLEST = 1e-8  # of the scale relative to the labels': below it the fit is exact
_POLISH = 2  # steps to a better one
_NEAR = (1.0, 2.0**8, 2.0**16)  # times the scale: samples that a line may be meant to go through


@dataclass(frozen=True)
class Huber(LinearModel):
    """Linear regression that outliers do not pull, with its scale, as ``HuberRegressor`` has it.

    Parameters
    ----------
    epsilon
        Where squares end and lines begin, in units of the scale; at least 1.
    alpha
        The penalty alpha ||w||^2 beside the sum over samples.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.
    begin_scale
        The scale that is tried first, beside ``begin``.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Huber(), X, y).coef.numpy().round(2))
    [2.]
    """

    name: ClassVar[str] = "huber"
    title: ClassVar[str] = "Huber regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "A line that outliers do not pull."
    objective: ClassVar[str] = (
        "min sum_i (s + s H(r_i / s)) + alpha |w|^2, H a square up to epsilon"
    )
    lookup: ClassVar[str] = "a clip: the residual, but no more than epsilon scales"
    estimator: ClassVar[str] = "InContextHuberRegressor"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.HuberRegressor", settings={"tol": PEER_TOLERANCE, "max_iter": 100_000}
    )
    example = staticmethod(outliers)

    epsilon: float = setting(
        HUBER_EPSILON, "Where squares end, in units of the residuals' scale.", low=1, slider=(1, 5)
    )
    alpha: float = setting(HUBER_ALPHA, "The penalty's weight.", low=0, slider=PENALTY_SLIDER)

    begin_scale: float | None = field(default=None, kw_only=True, compare=False, repr=False)

    def loss(self) -> Loss:
        return loss_named("huber")

    def stream(self, machine: MachineRun, source: Source) -> Result:
        search = _Scale(self, machine, source)
        sigma, solution, problem = search.run()
        proof = _prove(search, solution.w, sigma)
        problem.passes = search.passes
        machine.ledger.note("host", "the search for the scale")
        machine.ledger.note("host", "the proof: gradient and curvature at the answer, enclosed")
        parts = {
            "scale": sigma * search.base.size,
            "n_outliers": search.outliers(problem, solution.w),
        }
        found = fitted(self, problem, solution, proof, parts)
        if not isinstance(source, ArraySource):
            return found
        residual = source.x @ found.coef + found.intercept - source.y
        outside = residual.abs() > self.epsilon * parts["scale"]
        return replace(found, parts={**found.parts, "outliers": outside})

    def problem_at(
        self, machine: MachineRun, source: Source, parts: Mapping[str, Any] | None = None
    ) -> LinearProblem:
        """Labels are in units of epsilon times the scale that is tried first, or that was found."""
        search = _Scale(self, machine, source)
        return search.problem(float(parts["scale"]) / search.base.size if parts else search.first)


class _Scale:
    """The search for sigma, in units of the labels' deviation."""

    def __init__(self, model: Huber, machine: MachineRun, source: Source) -> None:
        self.model, self.machine, self.source = model, machine, source
        self.base = model.scaling(source)
        self.passes = 0
        machine.ledger.note("host", SCALED)
        self.w = model.start(self.base)  # of labels in units of their deviation
        begin = model.begin_scale
        self.first = 0.5 if begin is None else max(begin / self.base.size, _SMALLEST)

    def problem(self, sigma: float) -> LinearProblem:
        """The objective at a given scale, labels in units of epsilon sigma."""
        unit = self.model.epsilon * sigma
        scaling = replace(self.base, size=self.base.size * unit)
        ridge = sigma * scaling.penalty(self.model.alpha * self.base.size / self.source.total)
        return LinearProblem(self.machine, self.source, scaling, self.model.loss(), ridge)

    def excess(self, sigma: float) -> tuple[float, Solution, LinearProblem]:
        """1 - mean min(|r|/sigma, epsilon)^2 at the best coefficients for this scale.

        Not a number where passes ran out.
        """
        problem = self.problem(sigma)
        unit = self.model.epsilon * sigma
        model = self.model
        solution = minimise(
            problem,
            tol=model.tol,
            max_passes=model.max_passes - self.passes,
            precondition=model.precondition,
            start=None if self.w is None else self.w / unit,
        )
        self.w = solution.w * unit
        if self.passes + problem.passes >= model.max_passes:  # none is left to ask how far off
            mean = math.nan
        else:
            mean = self._mean_square(problem, solution.w)
        self.passes += problem.passes
        return 1 - model.epsilon**2 * mean, solution, problem

    def _mean_square(self, problem: LinearProblem, w: Tensor) -> float:
        total, _, passes = swept(
            self.machine, self.source, CLIP_SQUARED, problem.covered,
            partial(problem.encoding.written, w=w), counted=True,
            says="the sum of looked-up clipped squares",
        )  # fmt: skip
        problem.passes += passes
        return float(total) / self.source.total

    def run(self) -> tuple[float, Solution, LinearProblem]:
        """Bracket the root, then close in by regula falsi with halved weights (Illinois).

        Where passes run out first the last scale is returned, as not converged.
        """
        at = self.excess
        low, high = self.first, 2 * self.first
        bottom = at(low)
        if self._spent or abs(bottom[0]) <= self.model.tol:
            return self._ended(low, bottom)
        top = at(high)
        while not self._spent and bottom[0] > 0 and low > _SMALLEST:
            high, top = low, bottom
            low /= 4
            bottom = at(low)
        if self._spent:
            return self._ended(low, bottom)
        while not self._spent and top[0] < 0:
            low, bottom = high, top
            high *= 2
            top = at(high)
        if self._spent:
            return self._ended(high, top)
        if bottom[0] > 0:
            return low, bottom[1], bottom[2]
        a, b, fa, fb = math.log(low), math.log(high), bottom[0], top[0]
        best = (low, *bottom) if -fa < fb else (high, *top)
        for _ in range(ROUNDS):
            if fb == fa or b - a <= CLOSE:
                break
            c = min(max(b - fb * (b - a) / (fb - fa), a), b)
            sigma = math.exp(c)
            fc, solution, problem = at(sigma)
            last, best = best[1], (sigma, fc, solution, problem)
            if abs(fc) <= self.model.tol or (abs(fc) >= PROGRESS * abs(last) and b - a < _SMALLEST):
                break
            if self._spent:
                return self._ended(sigma, (fc, solution, problem))
            if fc > 0:
                b, fb, fa = c, fc, fa / 2 if last > 0 else fa
            else:
                a, fa, fb = c, fc, fb / 2 if last < 0 else fb
        return best[0], best[2], best[3]

    @property
    def _spent(self) -> bool:
        return self.passes >= self.model.max_passes

    def _ended(
        self, sigma: float, found: tuple[float, Solution, LinearProblem]
    ) -> tuple[float, Solution, LinearProblem]:
        _, solution, problem = found
        return sigma, replace(solution, converged=solution.converged and not self._spent), problem

    def outliers(self, problem: LinearProblem, w: Tensor) -> int:
        """Samples beyond epsilon sigma."""
        self.machine.ledger.note("host", "how many samples lie beyond epsilon times the scale")
        encoding = problem.encoding
        (count,) = self.source.reduce(lambda x, y: [(encoding.lines(x, y, w)[1].abs() > 1).sum()])
        return int(count)


# ---------------------------------------------------------------------------------------------
# the proof, in coefficients and scale together
# ---------------------------------------------------------------------------------------------


def _joint(
    search: _Scale, w: Tensor, sigma: float, whitener: Tensor | None, radius: float
) -> list[Tensor]:
    """Means over the samples of the joint problem in (w, sigma), labels in their deviation's units.

    They are the Gram matrix of the samples that stay inside, its slips, how far these turn, and the
    gradient with a bound of its rounding.

    F = mean(sigma/2 + sigma h(z/sigma)) + (1/2) sum q w^2. A sample inside bends F by a a'/sigma
    with a = (x, -z/sigma), one outside not at all.
    """
    encoding, depth = Encoding(search.base, "residual"), search.source.count
    epsilon, weigh = search.model.epsilon, encoding.weigh

    def sums(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, z, off, _ = encoding.lines(x, y, w)
        t = z / sigma
        off = off / sigma + 4 * UNIT * t.abs()
        drift = torch.zeros_like(t)
        if whitener is not None:
            moves = radius * lengths_in(samples, whitener[:-1])
            scale = radius * float(whitener[-1].norm())
            drift = (moves + t.abs() * scale) / max(sigma - scale, UNIT)
        drift = SLACK * drift + off
        rows = torch.cat([samples, -t[:, None]], 1)
        safe = weigh((t.abs() + drift < epsilon).to(t), y)
        gram = (rows * safe[:, None]).mT @ rows / sigma
        # |a_j| c |t| + |a_j| off is at most sqrt(c) |a_j| times sqrt(c) |t| + off/sqrt(c).
        c = gram_slip(len(x), depth)
        last = (math.sqrt(c) * t.abs() + off / math.sqrt(c)).square()
        slips = torch.cat([c * safe @ samples.square(), (safe @ last)[None]]) / sigma
        turn = (safe * drift.square()).sum() / sigma
        clipped = t.clamp(-epsilon, epsilon)
        rounded = (len(t) + depth + 8) * UNIT
        lost = off + rounded * epsilon
        shares = weigh(0.5 - 0.5 * clipped.square(), y).sum()[None]
        lost_share = weigh(lost * epsilon + rounded, y).sum()[None]
        slope = torch.cat([weigh(clipped, y) @ samples, shares])
        return [gram, slips, turn, slope, torch.cat([weigh(lost, y) @ samples.abs(), lost_share])]

    return [part / search.source.total for part in search.source.reduce(sums)]


def _prove(search: _Scale, w: Tensor, sigma: float) -> Proof:
    """The distance of (w, sigma) to the joint optimum, on samples that stay inside."""
    source, model = search.source, search.model
    rows, weight = source.rows, source.total
    unit = model.epsilon * sigma
    inner = w * unit
    q = search.base.penalty(model.alpha * search.base.size / weight)
    ridge = torch.cat([q, q.new_zeros(1)])
    point = torch.cat([inner, inner.new_zeros(1)])

    def metric(gram: Tensor, slips: Tensor) -> Metric | None:
        computed = metric_of(gram + torch.diag(ridge), rows)
        return lower(computed, slips + 8 * UNIT * ridge) if computed.whole else None

    gram, slips, _, gradient, error = _joint(search, inner, sigma, None, 0.0)
    gradient = gradient + ridge * point
    error = error + 8 * UNIT * ((ridge * point).abs() + gradient.abs())
    weakly = _Weakly(search, inner, sigma, q)
    start = metric(gram, slips)
    if start is None:
        return weakly.proof("the samples that are no outliers do not determine the answer")
    found, steps = (
        math.inf,
        [DerivationStep("nu", "joint gradient", start.norm(gradient), "enclosed")],
    )
    radius, safe = 2 * norm_of(start, gradient, error), start
    for _ in range(GROWTHS):
        gram, slips, turn, _, _ = _joint(search, inner, sigma, start.whitener, radius)
        inside = metric(gram, slips)
        if inside is None:
            break
        safe = inside
        scale = radius * float(start.whitener[-1].norm())
        bent = 2 * math.sqrt(float(turn)) * float(safe.whitener[-1].norm())
        kept = (1 - SLACK * bent) / (1 + scale / sigma)
        distance = norm_of(safe, gradient, error) / kept if kept > 0 else math.inf
        stretch = spectral_norm(start.factor.mT @ safe.whitener)
        if distance * stretch * SLACK <= radius:
            found = distance
            break
        radius *= 2
    if math.isinf(found):
        return weakly.proof("too many samples are too near the end of the squares")
    steps.append(
        DerivationStep("D", "nu of the samples that stay inside", found, "coefficients and scale")
    )
    # Functionals act on the coefficients alone, in the problem's units.
    return Proof(found, safe.whitener[:-1] / unit, tuple(steps))


@dataclass(frozen=True, eq=False)
class _Weakly:
    r"""What duality says where curvature does not, or where sigma falls to 0.

    A sample's share of F is the largest :math:`a r + \frac\sigma2 (1 - a^2)` of all
    :math:`|a| \le \epsilon`. So any such :math:`a_i` whose squares are at most 1 in the mean,
    brackets being means over the samples, bound F from below,

    .. math:: F(v, \tau) \ge b_v \langle a\rangle - \langle a y\rangle
       - \sum_j \frac{\langle a x_j\rangle^2}{2 q_j} \quad\text{for all } v \text{ and }
       \tau \ge 0,

    and half of :math:`\|w - v\|_q^2` is no more than what F(w, sigma) is above that. Of samples
    inside, a is as good as free: it is chosen to make :math:`\langle a x_j\rangle + q_j w_j`
    vanish. A sample adds |r| to F at least, so that a line that is no worse has residuals of at
    most F in the mean and :math:`|v_j| \le \sqrt{2 F/q_j}`; b moves by as much as the residuals
    do, and as what the others see of the samples' mean.
    """

    search: _Scale
    w: Tensor  # of labels in units of their deviation
    sigma: float
    ridge: Tensor

    def proof(self, why: str) -> Proof:
        """F above its least value; the distance to where it is least, where all is penalised."""
        search, source = self.search, self.search.source
        eye = torch.eye(len(self.w), dtype=self.w.dtype, device=self.w.device)
        last = DerivationStep("D", "not bounded", math.inf, why)
        if source.rows * len(self.w) > ROOM:
            return Proof(math.inf, eye, (last,))
        encoding = Encoding(search.base, "residual")

        def gathered(x: Tensor, y: Tensor) -> list[Tensor]:
            samples, labels, _ = encoding(x, y)
            return [samples, labels, encoding.weigh(torch.ones_like(labels), y)]

        samples, labels, weights = source.combine(gathered, each(joined, joined, joined))
        shares = weights / source.total
        held = self.ridge > 0
        free = ~held
        level = (shares @ samples).abs() + _round(samples) * (shares @ samples.abs())
        whole = self._whole(samples, labels, shares)
        reach = torch.full_like(
            self.w, 2.0 ** math.ceil(math.log2(NEARBY * (1 + float(self.w.abs().max()))))
        )
        farthest = torch.where(held, (2 * whole / self.ridge).sqrt(), reach)
        if search.base.intercept:
            moved = level * (self.w.abs() + farthest)
            reach[-1] = ROUNDED * (2 * whole + float(moved[:-1].sum()))
            free[-1] = False
        least, epsilon = 0.0, search.model.epsilon  # no loss is below 0
        data = (samples, labels, shares)
        for near in _NEAR:
            a = _multipliers(epsilon, (self.w, self.sigma), self.ridge, data, near)
            least = max(least, self._least(a, samples, labels, shares, reach))
        excess = whole - least + 8 * UNIT * (whole + least)
        step = DerivationStep(
            "F", "above its least value, scaled", excess, "the dual, for sigma >= 0"
        )
        around = at_least(float(reach[0]), ".4g")
        over = f"all lines whose scaled coefficients are within {around} of these"
        # Written in the data's units, and rounded; no sample pulls by more than epsilon.
        base, shift = search.base, 2 * float(slip_of(samples, self.w, labels).max())
        shift += float(base.intercept_slip(*base.raw(self.w))) / base.size * base.intercept
        stored = search.model.epsilon * shift + 16 * UNIT * whole
        told = Excess(2 * base.size * (excess + stored), over if bool(free.any()) else "")
        if bool(free.any()):
            return Proof(math.inf, eye, (last, step), excess=told)
        box = torch.where(held, (2 * excess / self.ridge).sqrt(), reach) * ROUNDED
        unit = search.model.epsilon * self.sigma
        return Proof(
            math.inf, eye, (last, step), box=box / unit, excess=told, scope="over all scales >= 0"
        )

    def _whole(self, samples: Tensor, labels: Tensor, shares: Tensor) -> float:
        """No less than F."""
        z = (samples @ self.w - labels).abs() + slip_of(samples, self.w, labels)
        inside = z.clamp(max=self.search.model.epsilon * self.sigma)
        loss = self.sigma / 2 + inside / self.sigma * (z - inside / 2)
        penalty = float((self.ridge * self.w.square()).sum()) / 2
        return (1 + _round(samples)) * (float(shares @ loss) + penalty)

    def _least(
        self, a: Tensor, samples: Tensor, labels: Tensor, shares: Tensor, reach: Tensor
    ) -> float:
        """A lower bound of F, by the dual point a."""
        held, heavy = self.ridge > 0, a.abs() * shares
        steep = ((a * shares) @ samples).abs() + _round(samples) * (heavy @ samples.abs())
        found = -float((a * shares) @ labels) - _round(samples) * float(heavy @ labels.abs())
        found -= float((steep.square() / (2 * self.ridge))[held].sum()) * ROUNDED
        found -= float((steep * (self.w.abs() + reach))[~held].sum()) * ROUNDED
        return found if found > 0 else 0.0


def _multipliers(
    epsilon: float, point: tuple[Tensor, float], ridge: Tensor,
    data: tuple[Tensor, Tensor, Tensor], near: float,
) -> Tensor:  # fmt: skip
    """The a_i, those of samples within ``near`` times epsilon sigma free: any will do."""
    (w, sigma), (samples, labels, shares) = point, data
    t = (samples @ w - labels) / sigma
    a, inside = t.clamp(-epsilon, epsilon), t.abs() < near * epsilon
    part = (samples * shares[:, None])[inside].mT
    for _ in range(_POLISH if bool(inside.any()) else 0):
        left = (a * shares) @ samples + ridge * w
        a[inside] -= torch.linalg.pinv(part) @ left
    square = float(shares @ a.square()) * (1 + _round(samples))
    most = max(1.0, math.sqrt(square), float(a.abs().max()) / epsilon)
    return a / (most * (1 + 4 * UNIT)) if most > 1 else a


def _round(samples: Tensor) -> float:
    """Relative rounding error of a mean over the samples, in terms of mean magnitudes."""
    return (len(samples) + samples.shape[1] + 32) * UNIT
