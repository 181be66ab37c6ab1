r"""What a fitted look-up is off by where f cannot be enclosed: an estimate, and called one.

f is looked at on a mesh, by automatic differentiation where that has something to offer, and is
taken to behave between the mesh points as it does at them. Nothing here is a proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.enclosures import largest, taylor
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.local import LocalWeights, RoundingModel, local_weights, rounding

__all__ = ["estimated_error"]

_UNIT = torch.finfo(torch.float64).eps / 2
_FIRST = 16  # intervals per cell to start with
_LEAST = 4096  # intervals in all: as fine as the mesh on which kinks are looked for
_MOST = 4096  # intervals per cell at most
_WORK = 1 << 25  # intervals times window that one estimate may cost
_POLISH = 1 << 22  # the same once eps is held and only tightness is to be gained
_FACTOR = 4.0  # on what was seen at mesh points
_GOOD = 1.05  # stop refining when the remainder is this small a share of the whole


@dataclass(frozen=True)
class _Sweep:
    total: float
    leading: float  # the part that refinement cannot reduce


def estimated_error(it: Interpolant, f: ScalarFunction, eps: float | None) -> float:
    """Refine the mesh until refinement no longer pays; less far once ``eps`` is held."""
    per_cell = max(_FIRST, -(-_LEAST // it.grid.cells))
    own = rounding(it, RoundingModel(_UNIT, it.uniform, abs(it.high) + abs(it.low), 2))
    while True:
        sweep = _sweep(it, f, per_cell)
        error = sweep.total + own
        if sweep.total <= _GOOD * sweep.leading + own or math.isinf(sweep.total):
            return error
        # The remainder falls at least as the mesh; aim a little past what is needed.
        factor = 4 if sweep.total > 10 * sweep.leading else 2
        held = eps is not None and error <= eps
        work = it.grid.cells * per_cell * factor * 33
        if per_cell * factor > _MOST or work > (_POLISH if held else _WORK):
            return error
        per_cell *= factor


def assumption(f: ScalarFunction, obstacle: str) -> str:
    """What an estimate takes for granted."""
    return (
        f"{f.name} is not enclosed ({obstacle}): it is taken to be evaluated to 4 units in the "
        f"last place, and to bend at most {_FACTOR:g} times as much between the points of a mesh "
        "as at them"
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
    first, second, third = taylor(w, 3)
    fourth = largest(w, 4)[3] + _around(f4) / 24
    lead = (w.mean - f0).abs() + 8 * _UNIT * f0.abs() + w.missing
    rest = (
        (first - f1).abs() * r
        + (second - f2 / 2).abs() * r**2
        + (third - f3 / 6).abs() * r**3
        + fourth * r**4
    )
    return lead, rest


def _around(seen: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(seen.abs()[None], (1, 1), mode="replicate")
    return _FACTOR * torch.nn.functional.max_pool1d(padded, 3, 1)[0]


def _rough_error(w: LocalWeights, f: ScalarFunction) -> tuple[Tensor, Tensor]:
    """Where f has no derivatives to offer: its rise from the midpoint to either end."""
    values = f(w.middle)
    rise = torch.maximum(
        (f(w.middle + w.radius) - values).abs(), (f(w.middle - w.radius) - values).abs()
    )
    lead = (w.mean - values).abs() + 8 * _UNIT * values.abs() + w.missing
    return lead, w.steepest * w.radius + _FACTOR * rise
