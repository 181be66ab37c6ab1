r"""A curved loss with a penalty on absolute values: Newton's method, its model with the penalty.

.. math:: \min_w F(w) + \sum_j t_j |w_j|, \qquad |l'''| \le s\, l''.

A step goes towards the least point of :math:`g.d + d'Hd/2 + \sum_j t_j |w_j + d_j|`, whose zeros
are zeros: a host's work, as whitening is; g is a pass. Along the way the objective is convex, and
its slope, a pass too, says how much of the step to take.

**Proof.** Let :math:`\xi` be the shortest subgradient at w, S some coefficients that hold all which
are not 0, and v the minimiser among those that are 0 outside S. Both penalties pull inwards, so
that :math:`\xi.(w - v)` is at least :math:`(\nabla F(w) - \nabla F(v)).(w - v)` and the distance D
follows from :math:`\nu = \|\xi\|_{H_{SS}^{-1}}` as it does without a penalty. On the way to v no
curvature grows by more than :math:`e^{s R D}`, hence

.. math:: |\nabla_j F(v) - \nabla_j F(w)| \le e^{s R D} \sqrt{H_{jj}}\, D.

Where this leaves :math:`|\nabla_j F(v)| < t_j` for all j outside S, v is the minimiser everywhere,
and the only one: l is strictly convex, all minimisers have the same fitted values and so the same
gradient, thus zeros outside S, and on S the Hessian is positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.arithmetic import NOISE, UNIT
from iceform.certificates import DerivationStep
from iceform_estimators.machine.convexity_bounds import nearby, of_degree_one
from iceform_estimators.machine.problem import LinearProblem
from iceform_estimators.machine.proofs import (
    Proof,
    enclose,
    norm_of,
    restricted,
    self_concordant,
    unbounded,
    weigh_by,
)
from iceform_estimators.machine.solvers import Solution
from iceform_estimators.tuning import (
    ACCEPT,
    CLOSE,
    FAR,
    GROWTHS,
    PATIENCE,
    PROGRESS,
    SLACK,
    SMALL,
    TRIES,
)

_SAFER = 10  # times the share of a curvature that is safe, where a step was too long
_LEAP = 64  # times the largest residual so far: as far as a step goes
_TURNS = 16  # of the model's signs, for each coefficient
_LEVEL = 2.0**-44  # of a diagonal, added to it: features may depend on each other


def minimise_penalised(
    problem: LinearProblem, thresholds: Tensor, *, tol: float, near: float = 0.0, max_passes: int,
    start: Tensor,
) -> Solution:  # fmt: skip
    """The minimiser of F(w) + sum_j t_j |w_j|.

    To steps of length ``tol`` relative to w (or 1), in the metric of the Hessian, or ``near``.
    """
    what = "the least point of a quadratic with the penalty, and lengths of the steps towards it"
    problem.machine.ledger.note("host", what)
    model = _Model(problem, thresholds, start, problem.gradient(start))
    safe, best, since = 0.0, math.inf, 0
    history: list[float] = []
    while True:
        after, length, size = model.step(safe)
        if safe and length <= max(tol * max(1.0, size), near):
            safe = 0.0
            after, length, size = model.step(safe)
        history.append(length)
        if length <= tol * max(1.0, size):
            return Solution(model.moved(after)[0].w, length, history)
        if length <= near:
            return Solution(model.w, length, history)
        best, since = (length, 0) if length < PROGRESS * best else (best, since + 1)
        if since >= PATIENCE or problem.passes >= max_passes:
            return Solution(model.w, length, history, converged=False)
        model, share = model.moved(after)
        if share < 1 - ACCEPT:
            safe = min(1.0, _SAFER * max(safe, SMALL))
        else:
            safe = safe / _SAFER if safe > 1 / FAR else 0.0


@dataclass(frozen=True, eq=False)
class _Model:
    """The objective near w as a quadratic with the penalty."""

    problem: LinearProblem
    thresholds: Tensor
    w: Tensor
    slope: Tensor

    def step(self, safe: float) -> tuple[Tensor, float, float]:
        """Its least point, how far that is, and the size of w, in its metric.

        Its curvature is the Hessian, and a share of that of a quadratic that lies above F: with
        all of it no step goes up, with none of it steps are Newton's.
        """
        matrix = self.problem.hessian(self.w)
        if safe:
            matrix = matrix + safe * (self.problem.hessian(self.w, majorizer=True) - matrix)
        after = least_point(matrix, self.slope - matrix @ self.w, self.thresholds, self.w)
        way, falls = after - self.w, -self.falls(after)
        terms = float((self.slope.abs() + self.thresholds) @ way.abs())
        if falls <= NOISE * terms:  # along features that depend on each other
            falls = float(way @ matrix @ way)
        size = float(self.w @ matrix @ self.w)
        return after, math.sqrt(max(falls, 0.0)), math.sqrt(max(size, 0.0))

    def falls(self, after: Tensor) -> float:
        """The slope of the objective on the way to a point."""
        way = after - self.w
        return float(self.slope @ way + (self.thresholds * _along(self.w, way)).sum())

    def moved(self, target: Tensor) -> tuple[_Model, float]:
        """After as much of a step as does not go up again, and how much that is.

        Along a step the objective is convex: a pass tells its slope, and a secant where it
        vanishes.
        """
        way = target - self.w
        falls, far = self.falls(target), _LEAP * max(1.0, self.problem.covered)
        if not falls < 0:
            return self, 0.0
        share = min(1.0, far / float(way.abs().sum()))
        for _ in range(TRIES):
            after = target if share == 1.0 else self.w + share * way
            slope = self.problem.gradient(after, trial=True)
            rises = float(slope @ way - (self.thresholds * _along(after, -way)).sum())
            if rises <= 0.5 * abs(falls):  # of its slope at first
                self.problem.keep()
                return replace(self, w=after, slope=slope), share
            share = share * min(max(falls / (falls - rises), 0.02), ACCEPT)
        return self, 0.0


def _along(w: Tensor, way: Tensor) -> Tensor:
    """How fast absolute values grow at w along a way."""
    return torch.where(w == 0, way.abs(), torch.sign(w) * way)


def least_point(hessian: Tensor, linear: Tensor, thresholds: Tensor, start: Tensor) -> Tensor:
    """The minimiser of v'Hv/2 + c.v + sum_j t_j |v_j|, by its signs.

    Given all signs it is a linear system; those that its solution changes on the way are 0, and
    zeros whose gradient is beyond their threshold get a sign, until nothing changes.
    """
    scale = hessian.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, scale.max() if float(scale.max()) else 1.0)
    matrix = hessian / scale / scale[:, None]
    matrix = matrix + _LEVEL * len(scale) * torch.eye(len(scale)).to(matrix)
    c, t, v = linear / scale, thresholds / scale, start * scale
    free, signs = t == 0, torch.sign(v)
    active, alone = free | (v != 0), False
    slack = CLOSE * float(t.max()) + 8 * UNIT * float(c.abs().max())
    for _ in range(_TURNS * len(v)):
        goal = torch.zeros_like(v)
        part = matrix[active][:, active]
        factor = torch.linalg.cholesky_ex(part)[0]
        goal[active] = torch.cholesky_solve(-(c + t * signs)[active, None], factor)[:, 0]
        moved, dropped = _lowest(matrix, c, t, v, goal, active & ~free, signs)
        stuck = bool((moved == v).all())
        v = moved
        if dropped:
            entered = active & ~free & (v == 0)
            active, signs = active & ~entered, torch.where(entered, 0.0, torch.sign(v))
            alone = alone or stuck
            if not (stuck and alone):
                continue
        gradient = matrix @ v + c
        beyond = torch.where(active, 0.0, gradient.abs() - t)
        most = float(beyond.max())
        if most <= slack:
            break
        enter = beyond >= (most if alone else 0.5 * most)
        alone = False
        active, signs = active | enter, torch.where(enter, -torch.sign(gradient), signs)
    return v / scale


def _lowest(
    matrix: Tensor, c: Tensor, t: Tensor, v: Tensor, goal: Tensor, bent: Tensor, signs: Tensor
) -> tuple[Tensor, bool]:
    """The lowest point on the way to a goal, of those where a coefficient changes sign."""
    crossing = bent & (goal * signs <= 0)
    if not bool(crossing.any()):
        return goal, False
    way = goal - v
    shares = torch.cat([torch.where(way == 0, 0.0, -v / way)[crossing].clamp(0, 1), v.new_ones(1)])
    points = v + shares[:, None] * way
    at = crossing.nonzero()[:, 0]
    points[torch.arange(len(at)), at] = 0.0
    rise, bend = float((matrix @ v + c) @ way), float(way @ matrix @ way)
    values = shares * rise + shares.square() * bend / 2 + points.abs() @ t
    best = int(values.argmin())
    if float(values[best]) >= float(v.abs() @ t):
        return v, True
    return points[best], True


def prove_penalised(problem: LinearProblem, w: Tensor, thresholds: Tensor) -> Proof:
    """A bound of the distance from w to the minimiser of F(w) + sum_j t_j |w_j|."""
    facts = problem.curvature
    assert facts.concordance is not None
    gradient, error, hessian, slips = enclosed = enclose(problem, w)
    error = error + 4 * UNIT * thresholds  # a penalty over a scale
    steep = gradient.abs() + error
    least = torch.where(
        w == 0, torch.sign(gradient) * (gradient.abs() - thresholds).clamp(min=0),
        gradient + thresholds * torch.sign(w),
    )  # fmt: skip
    off = torch.where((w == 0) & (steep <= thresholds), 0.0, error)  # 0 is a subgradient there
    excess = of_degree_one(problem, nearby(problem, w, least, off))
    kept = (w != 0) | (steep >= (1 - 1 / FAR) * thresholds)
    for _ in range(GROWTHS):
        metric, below, _ = restricted(problem, w, enclosed, kept, weigh_by(problem, facts))
        if below is None or not below.whole:
            why = "the curvature on the coefficients beside 0 may be zero"
            return replace(unbounded(metric, why), support=kept, excess=excess)
        nu = norm_of(below, least[kept], off[kept])
        first = DerivationStep("nu", "shortest subgradient, in the inverse Hessian", nu, "enclosed")
        far = Proof.of(1.0, below, support=kept).movement(problem)
        found = self_concordant(below, nu, far, first, facts.concordance)
        if not found.radius < math.inf:
            return replace(found, support=kept, excess=excess)
        grown = math.exp(facts.concordance * far * found.radius) * found.radius * SLACK
        moved = (hessian.diagonal().clamp(min=0) + slips).sqrt() * grown
        beside = ~kept & ~(steep + moved < thresholds)
        if not bool(beside.any()):
            told = DerivationStep(
                "zero", "coefficients proven zero", int((~kept).sum()), "|g_j| < t_j"
            )
            return replace(found, steps=(*found.steps, told), support=kept)
        kept = kept | beside
    why = "which coefficients are 0 is open"
    return replace(unbounded(metric, why), support=kept, excess=excess)
