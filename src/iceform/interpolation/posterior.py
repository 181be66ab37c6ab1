r"""What a fitted look-up is off by, proved after the fact.

On an interval of radius r around z_i, with e = A - f,

.. math:: |e(z)| \le |e_i| + |e'_i| r + |e''_i| r^2/2 + |e'''_i| r^3/6
          + (\sup|A''''| + \sup|f''''|)\, r^4/24.

The derivatives of A are joint cumulants of values and slopes under the softmax weights:
A' = E[vs], A'' = E[v s^2], A''' = E[v s^3] - 3 E[s^2] E[vs] and
A'''' = E[v s^4] - 6 E[s^2] E[v s^2] - 4 E[s^3] E[vs], all centred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.local import LocalWeights, RoundingModel, local_weights, rounding

__all__ = ["Posterior", "cumulants", "fourth_cumulant", "posterior_error"]

_UNIT = torch.finfo(torch.float64).eps / 2
_FIRST = 16  # intervals per cell to start with
_LEAST = 4096  # intervals in all: as fine as the mesh on which kinks are looked for
_MOST = 4096  # intervals per cell at most
_WORK = 1 << 25  # intervals times window that one certificate may cost
_POLISH = 1 << 22  # the same once eps is held and only tightness is to be gained
_ESTIMATE = 4.0  # factor on a fourth derivative that was seen, not proved
_GOOD = 1.05  # stop refining when the remainder is this small a share of the whole


@dataclass(frozen=True)
class Posterior:
    """A proven sup-norm error and what it takes for granted."""

    error: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class _Sweep:
    total: float
    leading: float  # the part that refinement cannot reduce


def posterior_error(it: Interpolant, f: ScalarFunction, eps: float | None) -> Posterior:
    """Refine the mesh until refinement no longer pays; less far once ``eps`` is held."""
    per_cell = max(_FIRST, -(-_LEAST // it.grid.cells))
    own = rounding(it, RoundingModel(_UNIT, it.uniform, abs(it.high) + abs(it.low), 2))
    while True:
        sweep = _sweep(it, f, per_cell)
        error = sweep.total + own
        if sweep.total <= _GOOD * sweep.leading + own or math.isinf(sweep.total):
            break
        # The remainder falls at least as the mesh; aim a little past what is needed.
        factor = 4 if sweep.total > 10 * sweep.leading else 2
        held = eps is not None and error <= eps
        work = it.grid.cells * per_cell * factor * 33
        if per_cell * factor > _MOST or work > (_POLISH if held else _WORK):
            break
        per_cell *= factor
    return Posterior(error, _assumptions(f))


def _assumptions(f: ScalarFunction) -> tuple[str, ...]:
    evaluated = f"{f.name} is evaluated to 4 units in the last place"
    if f.fourth is not None:
        return (evaluated,)
    return (
        evaluated,
        f"|f''''| of {f.name} between mesh points is at most {_ESTIMATE:g} times what "
        "automatic differentiation finds at them",
    )


def _sweep(it: Interpolant, f: ScalarFunction, per_cell: int) -> _Sweep:
    edges = it.grid.mesh(per_cell)
    inner = torch.tensor(f.kinks_in(it.low, it.high), dtype=torch.float64)
    edges = torch.unique(torch.cat([edges, inner]))
    total = leading = 0.0
    for w in local_weights(it, edges):
        lead, rest = _interval_error(w, f)
        if not bool((lead + rest).isfinite().all()):
            return _Sweep(math.inf, math.inf)
        leading = max(leading, float(lead.max()))
        total = max(total, float((lead + rest).max()))
    return _Sweep(total, leading)


def _interval_error(w: LocalWeights, f: ScalarFunction) -> tuple[Tensor, Tensor]:
    derivatives = f.derivatives(w.middle, 4)
    if derivatives is None:
        return _rough_error(w, f)
    f0, f1, f2, f3, f4 = derivatives
    r = w.radius
    first, second, third = cumulants(w)
    fourth = fourth_cumulant(w) + _fourth_of_f(f, f4)
    evaluation = 4 * 2 * _UNIT * f0.abs()
    lead = (w.mean - f0).abs() + evaluation + w.missing
    rest = (
        (first - f1).abs() * r
        + (second - f2).abs() * r**2 / 2
        + (third - f3).abs() * r**3 / 6
        + fourth * r**4 / 24
    )
    return lead, rest


def cumulants(w: LocalWeights) -> tuple[Tensor, Tensor, Tensor]:
    """The first three derivatives of A at the midpoints."""
    p, s, v = w.weights, w.slopes, w.values
    first = (p * v * s).sum(-1)
    second = (p * v * s.square()).sum(-1)
    third = (p * v * s**3).sum(-1) - 3 * (p * s.square()).sum(-1) * first
    return first, second, third


def fourth_cumulant(w: LocalWeights) -> Tensor:
    """Bound of |A''''| on each interval: centred at the interval's own moving means."""
    s = w.slopes.abs() + w.slope_drift[:, None]
    v = w.values.abs() + w.value_drift[:, None]
    s2 = s.square()

    def mean(x: Tensor) -> Tensor:
        return (w.tilted * x).sum(-1)

    return mean(v * s2 * s2) + 6 * mean(s2) * mean(v * s2) + 4 * mean(s2 * s) * mean(v * s)


def _fourth_of_f(f: ScalarFunction, seen: Tensor) -> Tensor:
    if f.fourth is not None:
        return torch.full_like(seen, f.fourth)
    padded = torch.nn.functional.pad(seen.abs()[None], (1, 1), mode="replicate")
    return _ESTIMATE * torch.nn.functional.max_pool1d(padded, 3, 1)[0]


def _rough_error(w: LocalWeights, f: ScalarFunction) -> tuple[Tensor, Tensor]:
    """Where f has no derivatives to offer: its rise from the midpoint to either end."""
    values = f(w.middle)
    rise = torch.maximum(
        (f(w.middle + w.radius) - values).abs(), (f(w.middle - w.radius) - values).abs()
    )
    lead = (w.mean - values).abs() + 8 * _UNIT * values.abs() + w.missing
    return lead, w.steepest * w.radius + _ESTIMATE * rise
