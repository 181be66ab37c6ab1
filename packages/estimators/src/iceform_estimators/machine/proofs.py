r"""Proofs after the fact: how far an answer can be from the exact optimum.

The gradient at the answer is enclosed in exact arithmetic (its rounding is bounded term by term,
no look-up involved), and the curvature turns it into a distance. With H the Hessian at the answer,
:math:`\nu = \|\nabla F\|_{H^{-1}}` and D the answer's distance to the optimum in the norm of H:

* quadratic: D = nu;
* self-concordant, |l'''| <= s l'': along the way to the optimum l'' falls by e^{-s |dz|} at most,
  so with R = max_i ||x_i||_{H^{-1}}, nu >= (1 - e^{-s R D})/(s R), that is
  D <= -ln(1 - s R nu)/(s R);
* piecewise quadratic: samples that cannot reach a kink within D keep their curvature; the Hessian
  of those alone bounds D, and the ball it was taken on must contain that.

A coefficient a.w is then off by at most D ||a||_{H^{-1}}.

H is a computed sum. An entry is off by at most sqrt(e_j e_k) with e known, so that for any S the
matrix S^{-1} H S^{-1} is off by at most sum_j e_j/S_j^2 in norm, and H with its eigenvalues lowered
by that much lies below the exact one: all of the above holds for it in H's place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import UNIT, at_least, at_most
from iceform.arithmetic.double_double import SUMMED, DoubleDouble, add, dot, mul, pair, sub
from iceform.certificates import Certificate, DerivationStep, Excess
from iceform.expressions import Curvature, ScalarFunction, vouched
from iceform_estimators.machine.convexity_bounds import (
    above_nothing,
    held_by_penalty,
    nearby,
    returned,
)
from iceform_estimators.machine.problem import (
    Encoding,
    LinearProblem,
    Metric,
    metric_of,
    needs_sharpening,
    slip_of,
    spectral_norm,
)
from iceform_estimators.machine.sources import Source, each, split
from iceform_estimators.machine.whitening import Weigh, evenly, exactly_dependent, sharpened
from iceform_estimators.tuning import CLOSE, FAR, GROWTHS, PAIRS, SLACK

Enclosed = tuple[Tensor, Tensor, Tensor, Tensor]  # gradient, its rounding, Hessian, its slips


@dataclass(frozen=True, eq=False)
class Newton:
    """What is left of a quadratic: w - w* = H^{-1} g, H^{-1} = T (I + D) T', |D| <= apart.

    So a coefficient is off by a.TT'g and little else, however far others are.
    """

    gradient: Tensor
    error: Tensor
    apart: float
    whitener: Tensor

    def bounds(self, functionals: Tensor, lengths: Tensor, radius: float) -> Tensor:
        """Of each a.w."""
        turned = functionals @ self.whitener @ self.whitener.mT
        size = self.whitener.abs()
        # Three products of sums of p terms each, relative to the sum of magnitudes.
        rounded = 4 * len(self.error) * UNIT * (functionals.abs() @ size @ size.mT)
        reach = self.gradient.abs() + self.error
        known = (turned @ self.gradient).abs() + turned.abs() @ self.error + rounded @ reach
        return SLACK * (known + self.apart * radius * lengths)


@dataclass(frozen=True, eq=False)
class Proof:
    """d in the norm of a metric, and where it comes from.

    Attributes
    ----------
    radius
        D.
    whitener
        T with T T' the inverse of the metric, shape (coefficients, rank).
    steps, assumptions
        For the certificate.
    newton
        What else is known where the objective is quadratic.
    metric
        What is known, where that is not all directions.
    support
        The coefficients it speaks of, where these are not all; the others are exact.
    kind
        "proven" or "estimated".
    scope
        Over what the optimum is taken, where that is not everything.
    box
        What each coefficient is off by at most, where that is known otherwise too.
    moved
        What w.x is off by on any sample, where nothing but that is known.
    excess
        What is known of the objective where curvature shows nothing.
    """

    radius: float
    whitener: Tensor
    steps: tuple[DerivationStep, ...]
    newton: Newton | None = None
    assumptions: tuple[str, ...] = ()
    metric: Metric | None = None
    support: Tensor | None = None
    kind: str = "proven"
    scope: str | None = None
    box: Tensor | None = None
    moved: float | None = None
    excess: Excess | None = None

    @classmethod
    def of(cls, radius: float, metric: Metric, *steps: DerivationStep, **rest: Any) -> Proof:
        """In the norm of ``metric``."""
        known = None if metric.whole else metric
        return cls(radius, metric.whitener, steps, metric=known, **rest)

    def bounds(self, functionals: Tensor) -> Tensor:
        """What each a.w can be off by, one per row a of ``functionals``."""
        if self.moved is not None:
            return torch.full_like(functionals[:, 0], math.inf)
        if self.box is not None:
            reach = torch.where(functionals == 0, 0.0, functionals.abs() * self.box).sum(1)
            return torch.fmin(SLACK * reach, replace(self, box=None).bounds(functionals))
        if self.support is not None:
            functionals = functionals[:, self.support]
        lengths = lengths_in(functionals, self.whitener)
        if self.metric is not None:
            # Nothing is known of the other directions; harmless only where a has no part in them.
            turned = functionals / self.metric.scale
            seen = self.metric.vectors
            lost = (turned - turned @ seen @ seen.mT).norm(dim=1)
            allowed = _clarity(self.metric) * turned.norm(dim=1)
            lengths = torch.where(lost > allowed, math.inf, lengths)
        bounds: Tensor = SLACK * self.radius * lengths
        if self.newton is None or self.support is not None:
            return bounds
        return torch.fmin(bounds, self.newton.bounds(functionals, lengths, self.radius))

    def movement(self, problem: LinearProblem) -> float:
        """What w.x can be off by on any sample, in scaled units."""
        if self.moved is not None:
            return self.moved
        whitener = self.whitener
        if self.support is not None:
            whitener = whitener.new_zeros(problem.dim, whitener.shape[1])
            whitener[self.support] = self.whitener
        return SLACK * self.radius * longest(problem, whitener)


def lengths_in(rows: Tensor, whitener: Tensor) -> Tensor:
    """||T'x|| of rows x that are differences over a number, the rounding of its sums added."""
    rounded: Tensor = (len(whitener) + 8) * UNIT * (rows.abs() @ whitener.abs())
    found: Tensor = (rows @ whitener).norm(dim=1) + rounded.norm(dim=1)
    return found


def _clarity(metric: Metric) -> float:
    """How well directions that no sample sees are known."""
    return max(CLOSE, 2 * metric.noise / float(metric.eigenvalues[0])) if metric.rank else CLOSE


def apart_of(metric: Metric, slips: Tensor) -> float:
    """How far T'HT may be from the identity for every such H."""
    if not metric.rank:
        return 0.0
    shift = float((slips / metric.scale.square()).sum()) + metric.lost
    return shift / float(metric.eigenvalues[0])


def lower(metric: Metric, slips: Tensor) -> Metric | None:
    """A metric below every H whose entries are within sqrt(e_j e_k) of the computed one.

    None where the least eigenvalue that is kept may be zero. How eigenvectors were found does not
    matter: for x = S^{-1} V c, x'Hx is c'V'EVc and so at least c'(L - shift)c.
    """
    shift = float((slips / metric.scale.square()).sum()) + metric.lost
    if metric.rank and not float(metric.eigenvalues[0]) > 2 * shift:
        return None
    return replace(metric, eigenvalues=metric.eigenvalues - shift, given=None)


@dataclass(frozen=True, eq=False)
class EnclosureTask:
    """Sums over a chunk: f(z_i) x_i natively and l''(z_i) x_i x_i', each with its rounding.

    ``doubled`` takes z_i and the sums of f(z_i) x_i in pairs of numbers, of what was given: then
    only f itself rounds.
    """

    encoding: Encoding
    w: Tensor
    curvature: Curvature
    derivative: ScalarFunction
    chunks: int
    doubled: bool

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, offsets = self.encoding(x, y)
        rows, z, off = self._residuals(x, y, samples, labels)
        f, f_off, bend, bend_off = self.curvature.enclose(self.derivative, z.hi)
        if self.derivative.affine == (1.0, 0.0):
            f, f_off = z.hi, torch.zeros_like(f_off)
        steepest, concordance = self.curvature.steepest, self.curvature.concordance
        slope = 2 * bend if steepest is None else torch.full_like(f, steepest)
        if steepest is None and concordance is not None:  # l'' grows by e^{s |dz|} at most
            slope = SLACK * bend * torch.exp(concordance * (off + z.lo.abs()))
        looked, lost = self._moved(f, z.lo, slope)
        lookup = slope * off + f_off + lost
        size = samples.abs()
        heavy = self.encoding.weigh(bend, y)
        gram = (samples * heavy[:, None]).mT @ samples
        slip = slip_of(samples, self.w, labels)
        moved = torch.expm1((concordance or 0.0) * slip) + gram_slip(len(x), self.chunks)
        slips = self.encoding.weigh(bend * moved + bend_off, y) @ samples.square()
        heights = add(looked, DoubleDouble(-offsets, torch.zeros_like(offsets)))
        weights = split(y)[1]
        if weights is not None:
            heights = mul(heights, pair(weights))
        total, added = self._summed(heights, rows)
        lookup = lookup + added * (f.abs() + offsets.abs())
        error = self.encoding.weigh(lookup, y) @ size
        return [total.hi, total.lo, error, gram, slips]

    def _residuals(
        self, x: Tensor, y: Tensor, samples: Tensor, labels: Tensor
    ) -> tuple[DoubleDouble, DoubleDouble, Tensor]:
        """Samples, z, and what z may be off by."""
        if not self.doubled:
            z = samples @ self.w - labels
            return pair(samples), pair(z), slip_of(samples, self.w, labels)
        low, label_low = self.encoding.lows(x, y)
        rows = DoubleDouble(samples, low)
        found = sub(dot(rows, pair(self.w.expand_as(samples))), DoubleDouble(labels, label_low))
        return rows, found, 8 * SUMMED * (samples.abs() @ self.w.abs() + labels.abs())

    def _moved(self, f: Tensor, low: Tensor, slope: Tensor) -> tuple[DoubleDouble, Tensor]:
        """f at z + low, and what going there by a straight line may be off by."""
        if not self.doubled:
            return pair(f), torch.zeros_like(f)
        if self.derivative.affine == (1.0, 0.0):
            return DoubleDouble(f, low), torch.zeros_like(f)
        return pair(f), slope * low.abs()

    def _summed(self, heights: DoubleDouble, rows: DoubleDouble) -> tuple[DoubleDouble, float]:
        """Sum of heights times rows, and what it is off by relative to the sum of magnitudes."""
        if not self.doubled:
            total = tree_sum(heights.hi[:, None] * rows.hi)
            return pair(total), (len(rows.hi).bit_length() + self.chunks + 6) * UNIT
        spread = DoubleDouble(*(part[:, None].expand_as(rows.hi).mT for part in heights))
        return dot(spread, DoubleDouble(rows.hi.mT, rows.lo.mT)), SUMMED * (self.chunks + 8)


def gram_slip(rows: int, chunks: int) -> float:
    """c: a sum of c_i x_ij x_ik over chunks is off by c times the sum of |c_i x_ij x_ik|."""
    return (rows + chunks + 32) * UNIT


def tree_sum(rows: Tensor) -> Tensor:
    """Sum of rows by halves: its rounding grows with the logarithm of their number."""
    while len(rows) > 1:
        half = len(rows) // 2
        folded = rows[:half] + rows[half : 2 * half]
        rows = torch.cat([folded, rows[2 * half :]]) if len(rows) % 2 else folded
    return rows[0]


def longest(problem: LinearProblem, whitener: Tensor) -> float:
    """The largest ||x_i||_{H^{-1}} of all samples."""
    encoding = problem.encoding
    (far,) = problem.source.largest(lambda x, y: [lengths_in(encoding(x, y)[0], whitener).max()])
    return float(far)


def enclose(problem: LinearProblem, w: Tensor, facts: Curvature | None = None) -> Enclosed:
    """Gradient of F at w natively, a bound of its rounding per entry, the Hessian and its slips."""
    rows = problem.source.rows
    problem.machine.ledger.note("host", "the proof: gradient and curvature at the answer, enclosed")
    task = EnclosureTask(
        problem.encoding, w, facts or problem.curvature, problem.loss.derivative,
        problem.source.count, doubled=rows * problem.dim <= PAIRS,
    )  # fmt: skip
    sums = each(add, torch.add, torch.add, torch.add)
    high, low, error, gram, slips = problem.source.combine(task, sums)
    # Sums and penalty may cancel: they are added before anything is rounded.
    weight = problem.source.total
    penalty = mul(pair(weight * problem.ridge), pair(w))
    total = add(DoubleDouble(high, low), penalty)
    gradient = total.double() / weight
    error = error / weight + 8 * UNIT * (problem.ridge * w).abs()
    error = error + (len(w) + 8) * UNIT * gradient.abs()  # in whatever coordinates it is taken
    slips = slips / weight + 8 * UNIT * problem.ridge
    return gradient, error, gram / weight + torch.diag(problem.ridge), slips


def restricted(
    problem: LinearProblem, w: Tensor, enclosed: Enclosed, kept: Tensor, weigh: Weigh
) -> tuple[Metric, Metric | None, float]:
    """The metric of some coefficients, one that is surely below it, and how far T'HT is from 1."""
    hessian, slips = enclosed[2], enclosed[3][kept]
    computed = metric_of(hessian[kept][:, kept], problem.source.rows)
    below = lower(computed, slips)
    if below is not None and not needs_sharpening(computed):
        return computed, below, apart_of(computed, slips)
    white = sharpened(problem, w, hessian, weigh, kept)
    return white.metric, white.below, white.apart


def norm_of(metric: Metric, gradient: Tensor, error: Tensor) -> float:
    """||g||_{H^{-1}} for any g within ``error`` of the computed one."""
    spread = float((metric.whitener.abs().mT @ error).norm())
    if metric.rank:  # T'e = L^{-1/2} V'(e/S)
        longest = float((error / metric.scale).norm()) / math.sqrt(float(metric.eigenvalues[0]))
        longest *= metric.stretch
        spread = min(spread, SLACK * longest)
    return metric.norm(gradient) + spread


def prove(problem: LinearProblem, w: Tensor) -> Proof:
    """A bound of the distance from w to the minimiser of F."""
    facts, room = _facts(problem, w)
    stated = problem.loss.facts
    if room is not None and facts.bounds is None and stated is not None:
        return _as_stated(prove(replace(problem, loss=vouched(replace(problem.loss))), w))
    enclosed = enclose(problem, w, facts)
    found = _by_curvature(problem, w, facts, room, enclosed)
    if room is not None or not facts.convex:
        return found
    if found.kind == "estimated":  # what is certain however features depend on each other
        return replace(found, excess=nearby(problem, w, *enclosed[:2]))
    if found.radius < math.inf:
        return found
    return _weakly(problem, w, facts, enclosed, found)


def _weakly(
    problem: LinearProblem, w: Tensor, facts: Curvature, enclosed: Enclosed, found: Proof
) -> Proof:
    """What convexity and the penalty say where curvature shows nothing."""
    gradient, error, _, _ = enclosed
    units = problem.scaling.size**2
    held = held_by_penalty(problem, w, facts, gradient, error)
    least = above_nothing(problem, w)
    if held is None:
        if not least < math.inf:
            return replace(found, excess=nearby(problem, w, gradient, error))
        return replace(found, excess=Excess((least + returned(problem, w)) * units))
    steps = (
        DerivationStep("penalty's", "F(found) - min F, scaled", held.excess, "nu rho + |g_b| beta"),
        DerivationStep(
            "whole", "F(found) less its losses' least values", least, "none is below these"
        ),
        DerivationStep(
            "box", "largest distance, scaled", float(held.box.max()), "F grows as its penalty"
        ),
    )
    return replace(
        found,
        steps=(*found.steps, *steps),
        box=held.box,
        excess=Excess((min(held.excess, least) + returned(problem, w)) * units),
    )


def _by_curvature(
    problem: LinearProblem, w: Tensor, facts: Curvature, room: _Room | None, enclosed: Enclosed
) -> Proof:
    gradient, error, _, _ = enclosed
    every = torch.ones_like(w, dtype=torch.bool)
    computed, metric, apart = restricted(problem, w, enclosed, every, weigh_by(problem, facts))
    if metric is None:
        return unbounded(computed, "the least eigenvalue of the Hessian may be zero")
    known = Dependence.of(problem, metric)
    if known is None:
        return unbounded(metric, "some features nearly depend on each other, but not quite")
    nu = norm_of(metric, gradient, error)
    first = DerivationStep(
        "nu", "norm of the gradient in the inverse Hessian", nu, "enclosed, not looked up"
    )
    if facts.quadratic:
        last = DerivationStep("D", "nu", nu, "the objective is quadratic")
        newton = None
        if apart < 1:
            newton = Newton(gradient, error, apart / (1 - apart), computed.whitener)
        return Proof.of(nu, metric, first, last, newton=newton, **vars(known))
    if facts.concordance is not None:
        far = longest(problem, metric.whitener)
        found = self_concordant(metric, nu, far, first, facts.concordance, known)
    elif facts.kinks is not None:
        found = _piecewise(problem, w, facts, metric, gradient, error, first)
    else:
        found = _by_penalty(problem, facts, gradient, error, metric)
    return found if room is None else _within(problem, found, metric, room)


def weigh_by(problem: LinearProblem, facts: Curvature) -> Weigh:
    """The curvature of samples, and what it may be off by where z is."""

    def weigh(z: Tensor, slip: Tensor) -> tuple[Tensor, Tensor]:
        _, _, bend, off = facts.enclose(problem.loss.derivative, z)
        return bend, off + torch.expm1(SLACK * (facts.concordance or 0.0) * slip) * bend

    return evenly if facts.quadratic else weigh


@dataclass(frozen=True)
class _Room:
    """The range on which a loss is enclosed, and how far the residuals are from its end."""

    reach: float
    left: float


def _facts(problem: LinearProblem, w: Tensor) -> tuple[Curvature, _Room | None]:
    """What is known of the loss everywhere, or else on twice the range of its residuals."""
    if problem.loss.known is not None:
        return problem.loss.known, None
    encoding = problem.encoding

    def farthest(x: Tensor, y: Tensor) -> list[Tensor]:
        _, z, slip, _ = encoding.lines(x, y, w)
        return [(z.abs() + slip).max()]

    (far,) = problem.source.largest(farthest)
    if not math.isfinite(float(far)):
        return problem.curvature, None
    reach = 2.0 ** math.ceil(math.log2(2 * float(far) + 1))
    return problem.loss.curvature_within(reach), _Room(reach, reach - float(far))


STATED = "what is stated of the loss is true: its curvature, kinks and |l'''|/l''"


def _as_stated(proof: Proof) -> Proof:
    """What the stated facts of a loss would prove that cannot be enclosed: an estimate."""
    assumed = (*proof.assumptions, STATED)
    return replace(proof, kind="estimated", assumptions=assumed, excess=None)


def _within(problem: LinearProblem, proof: Proof, metric: Metric, room: _Room) -> Proof:
    """The same, if no residual leaves the range on the way.

    F is convex where all residuals are within it, and that is a convex set of w: a point of it
    where the gradient vanishes is the minimiser over the set.
    """
    if math.isinf(proof.radius) or proof.kind == "estimated":
        return proof
    moved, reach = proof.movement(problem), at_least(room.reach, ".3g")
    if not moved <= room.left:
        why = f"residuals may move by {at_most(moved, '.3g')} and leave [-R, R], R = {reach}"
        return unbounded(metric, why)
    scope = f"over all w whose residuals are within {reach}, where the loss is convex"
    why = "bounds of l'' and |l'''|/l'' by interval arithmetic"
    step = DerivationStep(
        "R", "range of the residuals on which l is enclosed", room.reach, why, least=True
    )
    return replace(proof, steps=(*proof.steps, step), scope=scope)


DEPENDENT = "combinations of features that vanish on all samples to rounding vanish exactly"


@dataclass(frozen=True)
class Dependence:
    """What is taken for granted of directions that no sample sees: nothing, or that there are."""

    assumptions: tuple[str, ...] = ()
    kind: str = "proven"

    @classmethod
    def of(
        cls, problem: LinearProblem, metric: Metric, kept: Tensor | None = None
    ) -> Dependence | None:
        """None where a sample, or the penalty, sees a direction that the metric does not know.

        The Hessian of n samples has no more than n directions. Where the metric knows as many,
        every u is v + n with v among them and n one that no sample sees, exactly, so that nothing
        is taken for granted: u'Hu = v'Hv, and g.u = g.v for the gradient as for every sample.
        """
        ridge = problem.ridge if kept is None else problem.ridge[kept]
        if metric.whole or (metric.rank >= problem.source.rows and not bool(ridge.any())):
            return cls()
        if not _unseen(problem, metric, kept):
            return None
        return cls() if exactly_dependent(problem, metric, kept) else cls((DEPENDENT,), "estimated")


def _unseen(problem: LinearProblem, metric: Metric, support: Tensor | None) -> bool:
    """Whether no sample, nor the penalty, sees the directions that the metric does not know."""
    null = metric.null()
    ridge, directions = problem.ridge, null
    if support is not None:
        ridge = ridge[support]
        directions = null.new_zeros(problem.dim, null.shape[1])
        directions[support] = null
    if float((ridge[:, None] * null.square()).sum()) > 0:
        return False
    encoding = problem.encoding

    def shares(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, _, _ = encoding(x, y)
        # Given numbers are rounded relative to their size before centring: a deviation, say.
        most = (samples.abs() + 1) @ directions.abs()
        along = (samples @ directions).abs()
        return [torch.where(most > 0, along / most, 0.0).max()]

    (seen,) = problem.source.largest(shares)
    allowed = _clarity(metric)
    return float(seen) <= (allowed if allowed <= 1 / FAR else CLOSE)


def unbounded(metric: Metric, why: str) -> Proof:
    """Nothing is proven, and why."""
    return Proof.of(math.inf, metric, DerivationStep("D", "not bounded", math.inf, why))


def self_concordant(
    metric: Metric, nu: float, far: float, first: DerivationStep, s: float = 1.0,
    known: Dependence | None = None,
) -> Proof:  # fmt: skip
    """d of a loss with |l'''| <= s l'' whose samples are ``far`` long in the inverse metric."""
    product = s * far * SLACK
    if not product * nu < 1:
        return unbounded(
            metric, f"s R nu = {at_most(product * nu, '.3g')} is not below 1: not near enough yet"
        )
    distance = -math.log1p(-product * nu) / product if product * nu > 0 else nu
    return Proof.of(
        distance,
        metric,
        first,
        DerivationStep(
            "s R", "third derivative times the longest sample", product, "|l'''| <= s l''"
        ),
        DerivationStep("D", "-ln(1 - s R nu)/(s R)", distance, "l'' falls by e^{-s |dz|} at most"),
        **vars(known or Dependence()),
    )


def _piecewise(
    problem: LinearProblem, w: Tensor, facts: Curvature, metric: Metric, gradient: Tensor,
    error: Tensor, first: DerivationStep,
) -> Proof:  # fmt: skip
    if not metric.whole:
        return unbounded(metric, "the samples before a kink do not determine the answer")
    radius = 2 * norm_of(metric, gradient, error)
    source, encoding, weight = problem.source, problem.encoding, problem.source.total
    kinks = w.new_tensor(facts.kinks)

    def safe_gram(x: Tensor, y: Tensor) -> list[Tensor]:
        """Of the samples that stay between two kinks within the radius, and its slips."""
        samples, z, slip, _ = encoding.lines(x, y, w)
        moves = SLACK * radius * lengths_in(samples, metric.whitener) + slip
        moves = moves + 4 * UNIT * kinks.abs().max()  # which are rounded, or next to where it is
        distance = (z[:, None] - kinks).abs().amin(1)
        weights = encoding.weigh(facts.bend(z) * (distance > moves), y)
        gram = (samples * weights[:, None]).mT @ samples
        return [gram, gram_slip(len(x), source.count) * weights @ samples.square()]

    for _ in range(GROWTHS):
        gram, slips = source.reduce(safe_gram)
        safe = metric_of(gram / weight + torch.diag(problem.ridge), source.rows)
        below = lower(safe, slips / weight + 8 * UNIT * problem.ridge)
        if below is None or not below.whole:
            break
        distance = norm_of(below, gradient, error)
        # The ball ||d||_safe <= distance must lie in the one the samples were kept safe on.
        stretch = spectral_norm(metric.factor.mT @ below.whitener)
        if distance * stretch * SLACK <= radius:
            why = "samples that cannot reach a kink within D"
            return Proof.of(
                distance, below, first, DerivationStep("D", "nu of those", distance, why)
            )
        radius *= 2
    return unbounded(metric, "too many samples are too near a kink")


def _by_penalty(
    problem: LinearProblem, facts: Curvature, gradient: Tensor, error: Tensor, metric: Metric
) -> Proof:
    if not bool((problem.ridge > 0).all()):
        return unbounded(metric, "nothing is known of this loss's curvature")
    penalty = metric_of(torch.diag(problem.ridge), 1)
    distance = norm_of(penalty, gradient, error)
    step = DerivationStep("D", "gradient in the penalty's metric", distance, "the loss is convex")
    if facts.bounds is not None and facts.bounds[0] >= 0:
        return Proof.of(distance, penalty, step)
    assumed = ("the loss is convex", "its derivative is evaluated to 4 units in the last place")
    return Proof.of(distance, penalty, step, assumptions=assumed, kind="estimated")


def data_of(source: Source) -> str:
    """What a certificate is about."""
    weights = ", by their weights" if source.weighed else ""
    return f"these {source.rows} x {source.dim}, as given{weights}"


def certificate_of(
    proof: Proof,
    functionals: Tensor,
    values: Tensor,
    source: Source,
    *,
    domain: dict[str, float | str] | None = None,
) -> Certificate:
    """A certificate for the numbers a.w, one per row of ``functionals``, as returned in float64."""
    bounds = proof.bounds(functionals)
    worst = float(bounds.max()) if len(bounds) else 0.0
    stored = 4 * UNIT * float(values.abs().max()) if len(values) else 0.0
    described: dict[str, float | str] = {
        "data": data_of(source), **(domain or {})
    }  # fmt: skip
    if proof.scope is not None:
        described["optimum"] = proof.scope
    return Certificate.total(
        {"distance to the optimum": worst, "rounding": stored},
        domain=described,
        dtype=torch.float64,
        backend="fused",
        derivation=proof.steps,
        assumptions=proof.assumptions,
        kind=proof.kind,
        compared="found - optimal",
        excess=proof.excess,
    )
