r"""What a fitted look-up is off by, proved after the fact, cell by cell.

On an interval of radius r around z_i, with Taylor coefficients :math:`A_j, f_j` there,

.. math:: |A(z) - f(z)| \le \sum_{j<m} |A_j - f_j|\, r^j + (\sup|A_m| + \sup|f_m|)\, r^m

for every m up to 8, where those of f are enclosed by jets, at the middle and on the whole
interval, and those of A are computed with a bound of their rounding. The least is taken: a large
m where both are smooth, m = 1 where f has a kink inside. Where its slope has no bound,

.. math:: |A(z) - f(z)| \le \max_{x} |A_0 - f(x)| + \sup|A - A_0|.

Intervals whose bound is not close to an error that is taken are halved twice, again and again:
what is narrow is found because its jets are large, not because a point fell on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.arithmetic import Interval
from iceform.errors import ProgramError
from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.enclosures import enclosed
from iceform.interpolation.estimates import assumption, estimated_error
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.local import LocalWeights, weights_on

__all__ = ["Posterior", "posterior_error", "prove", "raised", "thinned"]

_ORDER = 8  # of the expansion: fewer intervals, dearer ones
_FIRST = 4  # intervals per cell to start with
_LEAST = 128  # intervals in all to start with
_SPLIT = 4  # parts of an interval that is refined
_MOST = 1 << 18  # intervals that one certificate may cost
_POLISH = 1 << 15  # the same once eps is held and only tightness is to be gained
_GOOD = 1.5  # no refinement where the bound is within this factor of an error that is taken
_ROUNDING = 2.0**-47  # nor below this share of f's size: a look-up rounds by as much
_NARROW = 8  # units in the last place: no narrower interval is worth splitting,
_FINEST = 2.0**-20  # at places no nearer to 0 than this share of the range
_SLACK = 1 + 2.0**-40  # the bound's own sums


@dataclass(frozen=True)
class Posterior:
    """A sup-norm error, what it takes for granted, and whether it is proven.

    A proven one holds cell by cell: between ``edges``, where :func:`prove` finds it again.
    """

    error: float
    assumptions: tuple[str, ...] = ()
    kind: str = "proven"
    place: float | None = None  # where no error is bounded, if there is such a place
    edges: Tensor | None = None


def posterior_error(it: Interpolant, f: ScalarFunction, eps: float | None) -> Posterior:
    """Proven where f can be enclosed, else estimated; less tight once ``eps`` is held."""
    obstacle = f.obstacle_on(it.low, it.high)
    if obstacle is None:
        return prove(it, f, _refined(it, f, eps))
    return Posterior(estimated_error(it, f, eps), (assumption(f, obstacle),), "estimated")


def prove(it: Interpolant, f: ScalarFunction, edges: Tensor) -> Posterior:
    """The error on the intervals between ``edges``, which must cover the range."""
    if not (edges[0] <= it.low and edges[-1] >= it.high and bool((edges.diff() > 0).all())):
        raise ProgramError("the cells of a proof do not cover the range of its table")
    bound, _ = _errors(it, f, Interval(edges[:-1], edges[1:]))
    error = float(bound.max())
    return Posterior(error, place=None if error < math.inf else float(edges[bound.argmax()]),
                     edges=edges)  # fmt: skip


def raised(it: Interpolant, by: float, f: ScalarFunction) -> Interpolant:
    """The same tokens, every value moved by a constant, with the error that is proven for f.

    Weights of attention add up to 1: what looks f up less the constant then looks f up.
    """
    moved = replace(it, values=it.values + by, function=f, _rounding={}, _windows={})
    found = posterior_error(moved, f, None) if it.edges is None else prove(moved, f, it.edges)
    return replace(moved, error=found.error, assumptions=found.assumptions, kind=found.kind)


def thinned(it: Interpolant, f: ScalarFunction) -> Tensor:
    """Edges of fewer intervals that prove the table's error as well.

    Neighbours become one wherever the bound on both together is no larger than that error.
    """
    edges = it.edges
    assert edges is not None
    before = len(edges) + 1
    while len(edges) < before:
        before = len(edges)
        for first in (1, 2):
            inner = torch.tensor(range(first, len(edges) - 1, 2), dtype=torch.long)
            if len(inner):
                bound, _ = _errors(it, f, Interval(edges[inner - 1], edges[inner + 1]))
                kept = torch.ones(len(edges), dtype=torch.bool)
                kept[inner[bound <= it.error]] = False
                edges = edges[kept]
    return edges


def _refined(it: Interpolant, f: ScalarFunction, eps: float | None) -> Tensor:
    """Edges of cells that are narrow where they need to be."""
    cells, span = _first_cells(it, f), it.high - it.low
    floor = _ROUNDING * float(f(it.grid.mesh(_FIRST)).abs().max())
    settled = leading = 0.0
    kept = [cells.high[-1:]]
    spent = 0
    while True:
        bound, taken = _errors(it, f, cells)
        spent += len(cells)
        leading = max(leading, float(taken.max()))
        total = max(settled, float(bound.max()))
        again = (bound > max(_GOOD * leading, floor)) & ~_narrow(cells, span)
        settled = max([settled, *bound[~again].tolist()])
        held = eps is not None and total <= eps
        parts = _split(cells[again])
        most = _POLISH if held else _MOST
        # What is not bounded on the narrowest interval never will be.
        if not len(parts) or math.isinf(settled) or spent + len(parts) > most:
            return torch.cat([*kept, cells.low]).sort().values
        kept.append(cells.low[~again])
        cells = parts


def _first_cells(it: Interpolant, f: ScalarFunction) -> Interval:
    """The grid's mesh, with the narrowest intervals around kinks that are known."""
    edges = it.grid.mesh(max(_FIRST, -(-_LEAST // it.grid.cells)))
    kinks = torch.tensor(f.kinks_in(it.low, it.high), dtype=torch.float64)
    up, down = torch.full_like(kinks, math.inf), torch.full_like(kinks, -math.inf)
    beside = [torch.nextafter(kinks, up), torch.nextafter(kinks, down)]
    edges = torch.unique(torch.cat([edges, *beside]).clamp(it.low, it.high))
    return Interval(edges[:-1], edges[1:])


def _narrow(cells: Interval, span: float) -> Tensor:
    """Too narrow to be split, for their place or beside the whole range."""
    unit = _NARROW * torch.finfo(torch.float64).eps
    return cells.high - cells.low <= unit * cells.magnitude.clamp(min=_FINEST * span)


def _split(cells: Interval) -> Interval:
    """In four."""
    step = (cells.high - cells.low) / _SPLIT
    inner = [cells.low + k * step for k in range(1, _SPLIT)]
    low = torch.cat([cells.low, *inner])
    return Interval(low, torch.cat([*inner, cells.high]))


def _errors(it: Interpolant, f: ScalarFunction, cells: Interval) -> tuple[Tensor, Tensor]:
    """A bound of |A - f| on each interval, and of what it is at the middle."""
    middle = (cells.low + 0.5 * (cells.high - cells.low)).clamp(cells.low, cells.high)
    radius = torch.maximum(cells.high - middle, middle - cells.low)
    radius = radius * (1 + 2.0**-50) + math.ulp(0.0)
    found, start = [], 0
    for w in weights_on(it, middle, radius):
        part = slice(start, start + len(w.middle))
        found.append(_interval_errors(it, f, w, cells[part]))
        start = part.stop
    bounds, taken = zip(*found, strict=True)
    return torch.cat(bounds), torch.cat(taken)


def _interval_errors(
    it: Interpolant, f: ScalarFunction, w: LocalWeights, cells: Interval
) -> tuple[Tensor, Tensor]:
    a = enclosed(it, w, _ORDER)
    at, on = f.jets(Interval.point(w.middle), _ORDER - 1), f.jets(cells, _ORDER)
    gaps = [_gap(x, at[j]) + off for j, (x, off) in enumerate(zip(a.values, a.off, strict=True))]
    e0, power = gaps[0], torch.ones_like(gaps[0])
    smooth, below = torch.full_like(e0, math.inf), torch.zeros_like(e0)
    for m in range(1, _ORDER + 1):
        power = power * w.radius
        smooth = torch.fmin(smooth, below + (a.largest[m - 1] + on[m].magnitude) * power)
        if m < _ORDER:
            below = below + gaps[m] * power
    torn = _gap(w.mean, on[0]) + a.off[0] + a.movement
    bound = _SLACK * torch.fmin(e0 + smooth, torn)
    return bound.nan_to_num(math.inf, math.inf), torch.where(e0.isfinite(), e0, 0.0)


def _gap(value: Tensor, enclosed: Interval) -> Tensor:
    """The largest |value - x| over an interval."""
    return torch.maximum((value - enclosed.low).abs(), (value - enclosed.high).abs())
