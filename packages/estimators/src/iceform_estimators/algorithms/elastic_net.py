r"""The elastic net, and the lasso: a gradient by one prompt, a soft threshold by another.

.. math:: \min_w \frac{1}{2n} \|Xw + b - y\|^2 + \alpha\rho \|w\|_1 + \frac{\alpha(1-\rho)}{2}
   \|w\|^2

On scaled data the threshold t_j of a coefficient is alpha rho over its column's scale. A proximal
step is u = w - eta g followed by u - tau clip(u / tau), tau = eta t: the clip is a look-up with
keys that crowd at its kinks, and u rides along exactly. Momentum is restarted whenever it points
uphill. Once the signs have settled the problem is quadratic on the support, where whitened passes
finish it; the conditions for the optimum are then checked on all coefficients.

Coefficients that must not be negative have their negative part cut off after the threshold; with
t = 0 that is least squares, or ridge regression, with signs.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import UNIT
from iceform.certificates import DerivationStep, Result
from iceform_estimators.algorithms.examples import flats
from iceform_estimators.algorithms.linear import LinearModel, fitted, planned
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.machine import MachineRun, Source
from iceform_estimators.machine.problem import (
    LinearProblem,
    Metric,
    Scaling,
    metric_of,
)
from iceform_estimators.machine.proofs import (
    Dependence,
    Proof,
    enclose,
    norm_of,
    restricted,
    unbounded,
)
from iceform_estimators.machine.solvers import Iterate, Solution, nesterov
from iceform_estimators.machine.stream import CLIP
from iceform_estimators.machine.whitening import evenly
from iceform_estimators.tuning import (
    APART,
    CLOSE,
    FAR,
    PEER_TOLERANCE,
    PENALTY_SLIDER,
    ROUNDED,
    ROUNDS,
    SLACK,
    TRIES,
)

_HOST = (
    "momentum, and where it begins anew",
    "gradients and thresholds that are but a look-up's error, set to 0",
    "u/tau clipped to the table of the soft threshold before it is looked up",
    "steps on the support, cut short where a coefficient would change its sign",
)
_BURST = 25  # proximal passes between attempts to finish on the support
_POLISH = _BURST // TRIES  # passes of one attempt at most
_LEVEL = 2.0**10  # in thresholds: far beyond the kinks, as on the playground's page


@dataclass(frozen=True)
class ElasticNet(LinearModel):
    r"""Elastic net, both penalties, scikit-learn's convention.

    .. math:: \min \frac1{2n} \|Xw + b - y\|^2 + \alpha\Big(\rho\|w\|_1 + \frac{1-\rho}2\|w\|^2\Big)

    Parameters
    ----------
    alpha
        The penalty.
    l1_ratio
        rho.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`; "whiten" finishes on the support.
    positive
        Whether coefficients must not be negative.
    solver, bound, label_bound
        As for :class:`Ridge`; "inside" takes ``max_passes`` steps.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(ElasticNet(alpha=0.1, l1_ratio=0.5), X, y).coef.numpy().round(6))
    [1.790698]
    """

    name: ClassVar[str] = "elastic-net"
    title: ClassVar[str] = "Elastic net"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "Least squares with few and small coefficients."
    objective: ClassVar[str] = (
        "min |Xw + b - y|^2 / 2n + alpha (r |w|_1 + (1 - r) |w|^2 / 2), r = l1_ratio"
    )
    lookup: ClassVar[str] = "the residual, and in a second prompt a clip: the soft threshold"
    estimator: ClassVar[str] = "InContextElasticNet"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.ElasticNet", settings={"tol": PEER_TOLERANCE, "max_iter": 100_000}
    )
    example = staticmethod(flats)
    several: ClassVar[bool] = True

    alpha: float = setting(1.0, "The penalty's weight.", low=0, slider=PENALTY_SLIDER)
    l1_ratio: float = setting(
        0.5, "Share of the absolute values in the penalty, 0 to 1.", low=0, high=1, slider=(0, 1)
    )
    _: KW_ONLY
    positive: bool = setting(False, "Whether coefficients must not be negative.", command=False)
    max_passes: int = setting(
        20000,
        "Most passes of the frozen machine over the data.",
        low=1,
        estimator="max_iter",
    )

    solver: str = field(default="auto")
    bound: float = field(default=1.0)
    label_bound: float = field(default=1.0)

    def l2(self, rows: float) -> float:
        return self.alpha * (1 - self.l1_ratio)

    def thresholds(self, scaling: Scaling) -> Tensor:
        """Of the coefficients' absolute values, on scaled data."""
        return scaling.thresholds(self.alpha * self.l1_ratio)

    def coordinates(self, problem: LinearProblem, w: Tensor) -> None:
        """Thresholds are of scaled coefficients; so are the passes until the support is known."""
        return

    def prove(self, problem: LinearProblem, w: Tensor) -> Proof:
        how = prove_nonnegative if self.positive else prove_sparse
        return how(problem, w, self.thresholds(problem.scaling))

    def stream(self, machine: MachineRun, source: Source) -> Result:
        bounds, l1 = (self.bound, self.label_bound), self.alpha * self.l1_ratio
        inside = planned(self, machine, source, bounds, l1)
        if inside is not None:
            return inside
        problem = self.problem(machine, source)
        return sparse_result(self, problem, self.thresholds(problem.scaling))


@dataclass(frozen=True)
class Lasso(ElasticNet):
    r"""Lasso, :math:`\min \frac{1}{2n} \|Xw + b - y\|^2 + \alpha\|w\|_1`.

    Parameters
    ----------
    alpha
        The penalty.
    positive, fit_intercept, tol, max_passes, precondition, solver, bound, label_bound
        As for :class:`ElasticNet`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Lasso(alpha=0.1), X, y).coef.numpy().round(6))
    [1.85]
    """

    name: ClassVar[str] = "lasso"
    title: ClassVar[str] = "Lasso"
    says: ClassVar[str] = "Least squares with few coefficients."
    objective: ClassVar[str] = "min |Xw + b - y|^2 / 2n + alpha |w|_1"
    estimator: ClassVar[str] = "InContextLasso"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.Lasso", settings={"tol": PEER_TOLERANCE, "max_iter": 100_000}
    )

    l1_ratio: float = field(default=1.0, init=False)


def sparse_result(model: LinearModel, problem: LinearProblem, thresholds: Tensor) -> Result:
    """Proximal passes with these thresholds, and their proof."""
    positive = bool(getattr(model, "positive", False))
    loop = _Proximal(
        problem, thresholds, model.tol, model.max_passes, model.precondition, positive
    )  # fmt: skip
    solution = loop.run(model.start(problem.scaling))
    kept = int((solution.w[: problem.source.dim] != 0).sum())
    parts = {"n_nonzero": kept, "n_thresholds": loop.lookups, "on_support": loop.done}
    how = prove_nonnegative if positive else prove_sparse
    return fitted(model, problem, solution, how(problem, solution.w, thresholds), parts)


class _Proximal:
    """The loop, and what it remembers."""

    def __init__(
        self, problem: LinearProblem, thresholds: Tensor, tol: float, max_passes: int, how: str,
        positive: bool = False,
    ) -> None:  # fmt: skip
        self.problem, self.thresholds, self.tol, self.max_passes = (
            problem, thresholds, tol, max_passes,
        )  # fmt: skip
        what = "lengths of the steps, when to stop, and the support"
        for done in (what, *_HOST):
            problem.machine.ledger.note("host", done)
        self.polish = how == "whiten"
        # Coefficients that may be stopped at zero: by a threshold, or by their sign.
        self.stopped, self.positive = thresholds > 0, positive
        if positive:
            self.stopped = torch.ones_like(thresholds, dtype=torch.bool)
            self.stopped[len(problem.scaling.mean) :] = False
            problem.machine.ledger.note("host", "negative parts of the coefficients cut off")
        self.hessian = problem.hessian(problem.start())
        self.metric = metric_of(self.hessian, problem.source.rows)
        self.eta = 1 / (self.metric.largest or 1.0)
        # What rounding and the look-up leave in directions that the samples do not see.
        self._unseen = APART * float(thresholds.norm()) or math.inf
        self.lookups = 0
        self.done = False
        self.history: list[float] = []

    def run(self, start: Tensor | None = None) -> Solution:
        """Bursts of proximal passes, each followed by an attempt to finish on the support."""
        w = self.problem.start() if start is None else start
        w = self._cut(w)
        length = math.inf
        while self.problem.passes < self.max_passes:
            w, length = self._burst(w)
            if length <= self.tol * max(1.0, self.metric.size(w)):
                return Solution(w, length, self.history)
            if self.polish and self.problem.passes < self.max_passes:
                w, finished = self._finish(w)
                if finished:
                    self.done = True
                    return Solution(w, 0.0, self.history)
        return Solution(w, length, self.history, converged=False)

    # ---------------------------------------------------------------------- proximal passes

    def threshold(self, u: Tensor) -> Tensor:
        """Soft thresholds of all coefficients by one prompt."""
        tau = self.eta * self.thresholds
        self.lookups += bool((tau > 0).any())
        return self._cut(soft_threshold(self.problem.machine, u, tau))

    def _cut(self, w: Tensor) -> Tensor:
        return torch.where(self.stopped, w.clamp(min=0), w) if self.positive else w

    def _burst(self, w: Tensor) -> tuple[Tensor, float]:
        ahead, t, length = w, 1.0, math.inf
        for _ in range(min(_BURST, max(1, self.max_passes - self.problem.passes))):
            gradient = self.problem.gradient(ahead)
            # What is certified to be nothing but the look-up's error is no gradient.
            gradient = torch.where(gradient.abs() <= self.problem.floor, 0.0, gradient)
            after = self.threshold(ahead - self.eta * gradient)
            moved = (ahead - after) / self.eta
            length = float(moved.norm()) * math.sqrt(self.eta)
            self.history.append(length)
            if float(moved @ (after - w)) > 0:
                ahead, w, t = after, after, 1.0
                continue
            (ahead, t), w = nesterov(after, w, t), after
        return w, length

    # --------------------------------------------------------------------- on the support

    def _finish(self, w: Tensor) -> tuple[Tensor, bool]:
        """Solve on the support by whitened passes, letting coefficients leave and enter."""
        free = ~self.stopped
        support, signs = (w != 0) | free, torch.sign(w)
        best = w
        for _ in range(2 * ROUNDS):
            if self.problem.passes >= self.max_passes:
                break
            metric = self._restricted(support)
            w, gradient, crossed = self._solve(best, support, signs, metric)
            best = w
            if crossed:
                support, signs = (w != 0) | free, torch.sign(w)
                continue
            slack = self.tol * float(self.thresholds.max()) + CLOSE
            pull = -gradient if self.positive else gradient.abs()
            outside = ~support & (pull > self.thresholds + slack)
            if not bool(outside.any()):
                return w, True
            # The ones that violate most enter; all at once would make many leave again.
            excess = torch.where(outside, pull - self.thresholds, 0.0)
            enter = excess >= 0.5 * excess.max()
            support = support | (enter & outside)
            signs = torch.where(enter & outside, -torch.sign(gradient), signs)
        return best, False

    def _restricted(self, support: Tensor) -> Metric:
        """The metric of the coefficients on the support; the others stay where they are."""
        part = self.hessian[support][:, support]
        inner = metric_of(part, self.problem.source.rows)
        p, rank = len(support), inner.rank
        everywhere = torch.eye(p, dtype=part.dtype, device=part.device)
        vectors, scale = part.new_zeros(p, len(part)), part.new_ones(p)
        vectors[support] = torch.cat([inner.vectors, inner.null() * inner.scale[:, None]], 1)
        scale[support] = inner.scale
        unknown = torch.cat([vectors[:, rank:], everywhere[:, ~support]], 1)
        return Metric(vectors[:, :rank], inner.eigenvalues, scale, inner.noise, unknown)

    def _solve(
        self, w: Tensor, support: Tensor, signs: Tensor, metric: Metric
    ) -> tuple[Tensor, Tensor, bool]:
        """Whitened passes with fixed signs; stops where a coefficient would change sign."""
        linear = self.thresholds * signs * support
        stand = Iterate.at(self.problem, w, metric, linear)
        for _ in range(_POLISH):
            if self.problem.passes >= self.max_passes:
                return w, stand.gradient - linear, True
            step, length = self._step(stand, support, metric)
            share, leaving = _until_crossing(w, step, signs * self.stopped)
            w = self._cut(w - share * step)
            if leaving is not None:
                w = w.clone()
                w[leaving] = 0.0
                return w, stand.gradient - linear, True
            stand = stand.anew(w, metric)
            if length <= self.tol * max(1.0, stand.size):
                break
        return w, stand.gradient - linear, False

    def _step(self, stand: Iterate, support: Tensor, metric: Metric) -> tuple[Tensor, float]:
        """Towards the least point, or down a direction in which the samples see no change.

        There the penalty alone falls, in a straight line, until a coefficient is zero.
        """
        unseen = metric.unseen(stand.gradient * support) * support
        if float(unseen.norm()) > self._unseen:
            return unseen * (FAR / unseen.abs().max()), math.inf
        return stand.step * support, stand.length


def _until_crossing(w: Tensor, step: Tensor, signs: Tensor) -> tuple[float, int | None]:
    """How much of w - step may be gone before a coefficient crosses zero, and which one does."""
    after = w - step
    crossing = (signs != 0) & (after * signs < 0)
    if not bool(crossing.any()):
        return 1.0, None
    shares = torch.where(crossing, w / step, torch.full_like(w, math.inf))
    first = int(shares.argmin())
    return float(shares[first].clamp(0, 1)), first


def soft_threshold(machine: MachineRun, u: Tensor, tau: Tensor) -> Tensor:
    """u - tau clip(u/tau) by one prompt; entries whose tau is 0 stay as they are.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> u, tau = torch.tensor([2.0, 0.1, -3.0]).double(), torch.tensor([0.5, 0.5, 1.0]).double()
    >>> print(soft_threshold(Machine(3).start(), u, tau).numpy().round(6))
    [ 1.5  0.  -2. ]
    """
    active = tau > 0
    if not bool(active.any()):
        return u
    # Far beyond its kinks the clip is level: what is cut off there is read as the same.
    ratio = (u[active] / tau[active]).clamp(-_LEVEL, _LEVEL)
    table = CLIP.on(float(ratio.abs().max()))
    left = u[active] - tau[active] * machine.look_up(table, ratio)
    # What is certified to be nothing but the look-up's error is zero.
    left = torch.where(left.abs() <= 2 * table.error * tau[active], 0.0, left)
    out = u.clone()
    out[active] = left
    return out


def prove_sparse(problem: LinearProblem, w: Tensor, thresholds: Tensor) -> Proof:
    r"""The duality gap proves coefficients zero; strong convexity bounds the others.

    With g the gradient of the smooth part, s = min(1, t_j/|g_j|) makes the residual dual feasible
    and the gap is :math:`G = \rho (1 - s)^2/2 + \sum_j (t_j |w_j| + s w_j g_j)` with rho the mean
    squared residual. The optimal residual is within sqrt(2 G) in root mean square, so where
    :math:`s |g_j| + \sqrt{H_{jj}} \sqrt{2G} < t_j` the optimum has w_j = 0. On the others the
    distance is at most the least subgradient in the inverse Hessian's norm, and, however features
    depend on each other, at most :math:`|w_j| + T/t_j`: no optimum has more than
    :math:`T = \sum_j t_j |w_j| + \sqrt{2 \rho G}` of the penalty, as its residual is within
    sqrt(2 G). Where rank is open, the fitted values are within sqrt(2 n G) all the same.
    """
    gradient, error, *_ = enclosed = enclose(problem, w)
    gap, zero = _screen(problem, w, thresholds, enclosed)
    kept = ~zero
    computed, metric, _ = restricted(problem, w, enclosed, kept, evenly)
    soft = torch.sign(gradient) * (gradient.abs() - thresholds).clamp(min=0)
    least = torch.where(w == 0, soft, gradient + thresholds * torch.sign(w))
    error = error + 2 * UNIT * thresholds
    steps = (
        DerivationStep(
            "gap", "duality gap", gap, "bounds the residual's distance to the optimum's"
        ),
        DerivationStep("zero", "coefficients proven zero", int(zero.sum()), "gap-safe screening"),
    )
    if metric is not None and metric.whole:
        nu = norm_of(metric, least[kept], error[kept])
        last = (
            DerivationStep(
                "nu", "least subgradient on the others", nu, "in the inverse Hessian's norm"
            ),
            DerivationStep(
                "D", "nu", nu, "strong convexity on the coefficients that may be nonzero"
            ),
        )
        box = _box(problem, w, thresholds, gap, zero)
        return Proof.of(nu, metric, *steps, *last, support=kept, box=box)
    known = None if metric is None else Dependence.of(problem, metric, kept)
    # Not unique, or not known to be: the fitted values are, to within the gap.
    shift = float(gradient[-1].abs() + error[-1]) if problem.scaling.intercept else 0.0
    radius = math.sqrt(2 * gap) + shift
    if (known is None or known.kind == "estimated") and not problem.source.weighed:
        moved = radius * math.sqrt(problem.source.rows) * ROUNDED
        reach = DerivationStep("D", "sqrt(2 gap)", radius, "root mean square of the fitted values")
        return Proof.of(radius, computed, *steps, reach, support=kept, moved=moved)
    if metric is not None and known is not None:
        reach = DerivationStep("D", "sqrt(2 gap)", radius, "root mean square of the fitted values")
        return Proof.of(radius, metric, *steps, reach, support=kept, **vars(known))
    nothing = unbounded(computed, "the least eigenvalue of the Hessian may be zero")
    return replace(nothing, steps=(*steps, *nothing.steps), support=kept)


def _box(
    problem: LinearProblem, w: Tensor, thresholds: Tensor, gap: float, zero: Tensor
) -> Tensor | None:
    """|w_j| + T/t_j; infinite where nothing is penalised."""
    if not gap < math.inf:
        return None
    most = float((thresholds * w.abs()).sum()) + math.sqrt(2 * gap * _mean_square(problem, w))
    far = w.abs() + most / torch.where(thresholds > 0, thresholds, 0.0)
    return torch.where(zero, 0.0, ROUNDED * far)


def prove_nonnegative(problem: LinearProblem, w: Tensor, thresholds: Tensor) -> Proof:
    r"""Strong convexity bounds the distance; then some coefficients are proven zero.

    With v = g + t the gradient of the objective, the least element of its subdifferential under
    w >= 0 is v_j where w_j > 0 or j is free and min(v_j, 0) where w_j = 0, so that
    :math:`D = \|\xi\|_{H^{-1}}` bounds :math:`\|w - w^*\|_H`. The gradient at the optimum is within
    :math:`\sqrt{H_{jj}} D` of v_j: where v_j is larger, w_j* = 0, and the bound of the others is
    taken again without it.
    """
    gradient, error, hessian, slips = enclosed = enclose(problem, w)
    bounded = torch.arange(len(w), device=w.device) < len(problem.scaling.mean)
    slope = gradient + torch.where(bounded, thresholds, 0.0)
    off = error + 2 * UNIT * (thresholds + slope.abs())
    at_zero = bounded & (w == 0)
    least = torch.where(at_zero, slope.clamp(max=0), slope)
    error = torch.where(at_zero & (slope > off), 0.0, off)  # a positive slope counts for nothing
    kept = torch.ones_like(bounded)
    steps: list[DerivationStep] = []
    proof: Proof | None = None
    for _ in range(2):
        computed, metric, _ = restricted(problem, w, enclosed, kept, evenly)
        if metric is None or not metric.whole:
            nothing = unbounded(
                metric or computed, "the least eigenvalue of the Hessian may be zero"
            )
            return proof or replace(nothing, support=kept)
        nu = norm_of(metric, least[kept], error[kept])
        steps.append(DerivationStep("D", "least subgradient under w >= 0", nu, "strong convexity"))
        proof = Proof.of(nu, metric, *steps, support=kept)
        reach = (hessian.diagonal().clamp(min=0) + slips).sqrt() * nu * SLACK
        zero = at_zero & (slope > reach + 2 * off)
        steps.append(
            DerivationStep("zero", "coefficients proven zero", int(zero.sum()), "their slope > 0")
        )
        kept = ~zero
    assert proof is not None
    return proof


def _screen(
    problem: LinearProblem,
    w: Tensor,
    thresholds: Tensor,
    enclosed: tuple[Tensor, Tensor, Tensor, Tensor],
) -> tuple[float, Tensor]:
    """The duality gap at w, its free coefficient moved to where it is best, and proven zeros."""
    gradient, error, hessian, slips = enclosed
    penalised = thresholds > 0
    nothing = torch.zeros_like(penalised)
    if int((~penalised).sum()) > problem.scaling.intercept:
        return math.inf, nothing
    diagonal = hessian.diagonal().clamp(min=0) + slips
    rho = _mean_square(problem, w)
    if problem.scaling.intercept:
        # The free feature is 1: the shift -g_0 of its coefficient makes its gradient zero.
        shift = float(gradient[-1].abs() + error[-1])
        error = error + hessian[:, -1].abs() * error[-1] + shift * (slips * slips[-1]).sqrt()
        error = error + 4 * UNIT * (gradient.abs() + shift * hessian[:, -1].abs())
        gradient = gradient - gradient[-1] * hessian[:, -1]
    size = gradient.abs() + error
    ratios = torch.where(penalised & (size > thresholds), thresholds / size, 1.0)
    s = float(ratios.min()) * (1 - 4 * UNIT)
    terms = torch.where(penalised, thresholds * w.abs() + s * w * gradient, 0.0)
    added = torch.where(penalised, thresholds * w.abs() + (w * gradient).abs(), 0.0)
    lost = float(torch.where(penalised, w.abs() * error, 0.0).sum())
    lost += (len(w) + 8) * UNIT * float(added.sum())
    gap = 0.5 * rho * (1 - s) ** 2 + max(float(terms.sum()), 0.0) + lost
    moved = diagonal.sqrt() * math.sqrt(2 * gap) * ROUNDED
    # Thresholds are products and quotients of what was given: three roundings.
    surely = thresholds * (1 - 8 * UNIT)
    return gap, penalised & (s * size + moved < surely) & (w == 0)


def _mean_square(problem: LinearProblem, w: Tensor) -> float:
    """No less than (1/n) ||r||^2 + sum q w^2."""
    rows, weight = problem.source.rows, problem.source.total
    encoding = problem.encoding

    def squares(x: Tensor, y: Tensor) -> list[Tensor]:
        _, z, slip, _ = encoding.lines(x, y, w)
        return [encoding.weigh(part.square(), y).sum() for part in (z, slip)]

    total, slips = problem.source.reduce(squares)
    root = math.sqrt(float(total) / weight) + math.sqrt(float(slips) / weight)
    return (1 + (rows + len(w) + 8) * UNIT) * (root**2 + float(problem.ridge @ w.square()))
