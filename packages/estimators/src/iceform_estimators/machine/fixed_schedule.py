r"""Inside: fits in which the host only writes prompts and adds answers up.

What a loop needs to know is stated before it starts: a bound B of the samples' entries, a bound of
the labels, the number of samples and the penalty. Means are passes: the look-up of 1 on a line,
times x, added up. Samples less their mean over 2 B lie in [-1, 1], so with d features, a penalty q
and curvatures of the loss up to c the Hessian lies within [min(q, c), c (d + 1) + q]: that fixes
every step, and how many there are.

* **Least squares** (centred, so that the intercept is a direction of its own): Chebyshev's steps.
  The error's polynomial stays within 1, so coefficients stay within twice the solution's length,
  at most :math:`1/\sqrt q`, and residuals within :math:`\sqrt\kappa + 1`: the range of the table.
* **Logistic loss**: Nesterov's constant momentum, stable for every convex loss of that curvature.
  F comes as near as :math:`2 \ln 2\,(1 - \kappa^{-1/2})^k`. Beyond the table a look-up returns its
  end, e^-64 from the curve.
* **Absolute values** in the penalty, with threshold t: proximal steps of length 1/L, the soft
  threshold a second prompt, momentum from anew after 64, 128, 256, ... steps. All points lie within
  the solution's length of the solution, at most 1/(2 t), so residuals within
  :math:`\sqrt{d + 1}/t + 2`.

How far the answer is from the optimum is proven after the fact, by the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from iceform.arithmetic import NOISE, exactly
from iceform.errors import BoundError, ProgramError
from iceform.expressions import Loss
from iceform.validation import check_positive
from iceform_estimators.machine.problem import (
    LinearProblem,
    Scaling,
    check_magnitude,
    check_sizes,
)
from iceform_estimators.machine.solvers import Solution, nesterov
from iceform_estimators.machine.sources import Source
from iceform_estimators.machine.stream import CLIP, IDENTITY, MachineRun
from iceform_estimators.tuning import SATURATED

SOLVERS = ("auto", "inside")

_FIRST = 64  # proximal steps before momentum begins anew
_SUMS = "sums of the samples' gradients, added with factors fixed before the first pass"


@dataclass(frozen=True)
class PlannedDomain:
    """Bounds that the user states of the data.

    Attributes
    ----------
    bound, label_bound
        Of the entries of samples and labels.
    """

    bound: float = 1.0
    label_bound: float = 1.0

    def __post_init__(self) -> None:
        for name in ("bound", "label_bound"):
            check_magnitude(f"the stated {name}", check_positive(name, getattr(self, name)))

    def check(self, source: Source, *, labels: bool) -> None:
        """Refuse data that are not in it."""
        x, y = map(float, source.largest(lambda x, y: [x.abs().max(), y.abs().max()]))
        if not x <= self.bound:
            raise BoundError(
                f"max |x| is {x:.4g}, stated is bound = {exactly(self.bound)}; state a larger "
                "bound, or "
                "scale the samples"
            )
        if labels and not y <= self.label_bound:
            raise BoundError(
                f"max |y| is {y:.4g}, stated is label_bound = {exactly(self.label_bound)}; state a "
                "larger one, or scale the labels"
            )


@dataclass(eq=False)
class InsideProblem(LinearProblem):
    """A linear model whose table is fixed before the first pass.

    Parameters
    ----------
    reach
        How far its table goes.
    thresholds
        Of the absolute values of scaled coefficients, where the penalty has any.
    """

    reach: float = field(default=1.0, kw_only=True)
    thresholds: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_sizes(self.scaling)  # what data may be was refused by whoever has them
        self.machine.check_dim(self.dim)
        what = "samples and labels over their stated bounds, the coefficients, and a table"
        self.machine.ledger.note("prompt", what)
        self._reach = self._tried = self.reach

    def gradient(self, w: Tensor, *, trial: bool = False) -> Tensor:
        """One pass, whatever it meets."""
        machine, table, encoding = self.machine, self.table.on(self.reach), self.encoding
        (total,) = self.source.reduce(
            lambda x, y: [machine.total(machine.look_ups(table, *encoding.written(x, y, w)))]
        )
        self.passes += 1
        self.machine.ledger.note("readout", _SUMS)
        return total / self.source.rows + self.ridge * w


def _scaling(
    machine: MachineRun, source: Source, domain: PlannedDomain, loss: Loss, centred: bool
) -> Scaling:
    """Scaling by the stated bounds, with means computed by passes."""
    labels = loss.kind == "residual"
    mean = torch.zeros(source.dim, dtype=torch.float64, device=source.device)
    center, wide = 0.0, 1.0
    if centred:

        def total(values: Tensor) -> Tensor:
            """The sum by the frozen machine, in units of the bound."""
            minus, none = values.new_full((len(values),), -1.0), values.new_zeros(values.shape[1])
            return machine.total(machine.look_ups(IDENTITY.on(2.0), values, minus, none))

        def means(x: Tensor, y: Tensor) -> list[Tensor]:
            given = [x / domain.bound, y[:, None] / domain.label_bound][: 1 + labels]
            return [total(values) for values in given]

        sums = source.reduce(means)
        mean, wide = domain.bound * sums[0] / source.rows, 2.0
        center = domain.label_bound * float(sums[1]) / source.rows if labels else 0.0
        what = "samples and labels" if labels else "samples"
        machine.ledger.note("readout", f"sums of {what}, divided by their number")
    size = wide * domain.label_bound if labels else 1.0
    return Scaling(mean, torch.full_like(mean, wide * domain.bound), center, size, centred)


def problem_inside(
    machine: MachineRun, source: Source, domain: PlannedDomain, loss: Loss, l2: float, *,
    intercept: bool, positive: float | None = None, l1: float = 0.0,
) -> InsideProblem:  # fmt: skip
    """The objective on data that are scaled by what is stated of them.

    Raises
    ------
    ProgramError
        Without a penalty, where no number of steps could be fixed.
    """
    if not (l2 > 0 or l1 > 0):
        raise ProgramError(
            "solver='inside' fixes its steps by the penalty, which is 0 here; use a penalty, or "
            "solver='auto'"
        )
    scaling = _scaling(machine, source, domain, loss, intercept)
    ridge = scaling.penalty(l2)
    thresholds = scaling.thresholds(l1) if l1 else None
    low, high = _spectrum(scaling, float(ridge[0]), loss)
    if thresholds is not None:
        reach = math.sqrt(source.dim + 1) / float(thresholds[0]) + 2
    else:
        reach = math.sqrt(high / low) + 1 if loss.curvature.quadratic else SATURATED
    problem = InsideProblem(
        machine, source, scaling, loss, ridge, positive, reach=reach, thresholds=thresholds
    )
    problem.passes = int(intercept) * (1 + (loss.kind == "residual"))
    return problem


def _spectrum(scaling: Scaling, penalty: float, loss: Loss) -> tuple[float, float]:
    """Between what the Hessian's eigenvalues lie."""
    bounds = loss.curvature.bounds
    if bounds is None:
        raise ProgramError(
            f"{loss.name} has no largest curvature, by which solver='inside' fixes its steps; use "
            "solver='auto'"
        )
    c = bounds[1]
    features = max(scaling.dim - scaling.intercept, 1)
    if loss.curvature.quadratic:  # centred: the constant feature is a direction of its own
        return min(penalty, 1.0), max(features + penalty, 1.0)
    return min(penalty, c), c * (features + 1) + penalty


def descend_inside(problem: InsideProblem, tol: float, max_passes: int) -> Solution:
    """As many steps as bring the start ``tol`` of the way to the optimum, or as there may be."""
    low, high = _spectrum(problem.scaling, float(problem.ridge[0]), problem.loss)
    room = max(1, max_passes - problem.passes)
    if problem.thresholds is not None:
        w = _proximal(problem, problem.thresholds, high, room)
        return Solution(w, tol, converged=False)  # no number of passes is known to be enough
    if problem.curvature.quadratic:
        beyond = 2 * low / max(high - low, NOISE * high)  # of 1, however little: acosh(1 + beyond)
        rate = math.log1p(beyond + math.sqrt(beyond * (2 + beyond)))
        needed = max(1, math.ceil(math.acosh(1 / min(tol, 0.5)) / rate))
        w = _chebyshev(problem, low, high, min(needed, room))
    else:
        needed = math.ceil(math.sqrt(high / low) * math.log(2 / min(tol, 0.5) ** 2))
        w = _momentum(problem, low, high, min(needed, room))
    return Solution(w, tol, converged=needed <= room)


def _chebyshev(problem: InsideProblem, low: float, high: float, steps: int) -> Tensor:
    """The error's polynomial is Chebyshev's, by its recurrence."""
    middle, half = (high + low) / 2, max(high - low, NOISE * high) / 2
    w, sigma = problem.start(), middle / half
    rho = 1 / sigma
    step = -problem.gradient(w) / middle
    for _ in range(steps - 1):
        w = w + step
        after = 1 / (2 * sigma - rho)
        step = after * rho * step - (2 * after / half) * problem.gradient(w)
        rho = after
    return w + step


def _momentum(problem: InsideProblem, low: float, high: float, steps: int) -> Tensor:
    """Nesterov's, with the momentum of this condition number."""
    root = math.sqrt(low / high)
    carried = (1 - root) / (1 + root)
    w = ahead = problem.start()
    for _ in range(steps):
        after = ahead - problem.gradient(ahead) / high
        ahead, w = after + carried * (after - w), after
    return w


def _proximal(problem: InsideProblem, thresholds: Tensor, high: float, steps: int) -> Tensor:
    """Proximal steps with Nesterov's momentum, which begins anew after ever more of them."""
    tau = thresholds / high
    active = tau > 0
    table = CLIP.on(SATURATED)

    def shrunk(u: Tensor) -> Tensor:
        out = u.clone()
        # Beyond the table a look-up returns its end, which is 1: all there is to cut off.
        out[active] -= tau[active] * problem.machine.look_up(table, u[active] / tau[active])
        return out

    w = ahead = problem.start()
    t, left, length = 1.0, _FIRST, _FIRST
    for _ in range(steps):
        after = shrunk(ahead - problem.gradient(ahead) / high)
        (ahead, t), w, left = nesterov(after, w, t), after, left - 1
        if not left:
            ahead, t, length = w, 1.0, 2 * length
            left = length
    problem.machine.ledger.note("readout", "u - tau clip(u / tau), the clip looked up", steps)
    problem.machine.ledger.note("host", "what is but a look-up's error, set to 0 at the end")
    return torch.where(active & (w.abs() <= 2 * table.error * tau), 0.0, w)
