r"""What a fitted look-up is off by, proved after the fact, cell by cell.

On an interval of radius r around z_i, with Taylor coefficients :math:`A_j, f_j` there,

.. math:: |A(z) - f(z)| \le \sum_{j<m} |A_j - f_j|\, r^j + (\sup|A_m| + \sup|f_m|)\, r^m

for every m up to 8, where those of f are enclosed by jets, at the middle and on the whole
interval, and those of A are computed with a bound of their rounding. The least is taken: a large
m where both are smooth, m = 1 where f has a kink inside. Where its slope has no bound,

.. math:: |A(z) - f(z)| \le \max_{x} |A_0 - f(x)| + \sup|A - A_0|.

Intervals whose bound is not close to an error that is taken are halved twice, again and again:
what is narrow is found because its jets are large, not because a point fell on it.

**Coefficients of A.** With weights p at a middle z, slopes s and values v (both relative to any
fixed numbers),

.. math:: A(z + t) = \frac{N(t)}{D(t)}, \qquad N_j = \frac{1}{j!} \sum_k p_k v_k s_k^j, \qquad
          D_j = \frac{1}{j!} \sum_k p_k s_k^j,

so the coefficients of A are those of a quotient of power series. On the whole interval, relative
to the moving means, :math:`N_0 = D_1 = 0` and absolute moments bound the others; a quotient whose
signs are all the worst bounds every coefficient there.

**Rounding.** With u = 2^-53 and d = z - m, a logit -c(d/h - k)^2 is computed with five roundings
relative to itself; d/h is off by 2u|d/h|, which moves all tokens alike: it is an error of z. A
logit s d + b of graded tokens is off by 3u(|s d| + |b|). exp is off by four units in the last
place (8u). A weight is then off by a factor within :math:`e^{\pm\tau}`. An addition rounds by u
times the sum, and by no more than the lesser addend; A is summed relative to the value of the
heaviest token. Moments off by :math:`\delta N, \delta D` move the quotient c by
:math:`(\delta N - c\,\delta D)/D`, again a power series.

**Estimates.** Where f cannot be enclosed it is looked at on a mesh, by automatic differentiation
where that has something to offer, and is taken to behave between the mesh points as it does at
them. Nothing of that is a proof, and what comes of it is called an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval
from iceform.arithmetic.intervals import LIBRARY
from iceform.arithmetic.units import OUTWARD, OUTWARD_FEW, UNIT
from iceform.errors import ProgramError
from iceform.expressions.scalar import ScalarFunction
from iceform.tables.interpolant import Interpolant
from iceform.tables.local import (
    LocalWeights,
    RoundingModel,
    local_weights,
    reweighted,
    rounding,
    weights_on,
)

_LOOSE = 1 + 2.0**-10  # bounds of derivatives are computed with far less than this of rounding


def taylor(w: LocalWeights, order: int) -> list[Tensor]:
    """Coefficients 1 .. ``order`` of A at the midpoints."""
    return _taylor(w, order)[0]


def _taylor(w: LocalWeights, order: int) -> tuple[list[Tensor], list[Tensor]]:
    """The same, and D_0 .. D_n."""
    down, up = _moments(w.weights, w.slopes, w.values, order)
    return _quotient(up, down, order), down


def largest(w: LocalWeights, order: int) -> list[Tensor]:
    """Bounds of the absolute coefficients 1 .. ``order`` of A on each interval."""
    s = w.slopes.abs() + w.slope_drift[:, None]
    v = w.values.abs() + w.value_drift[:, None]
    down, up = _moments(w.tilted, s, v, order)
    still = torch.zeros_like(w.middle)
    return _quotient([still, *up[1:]], [still, still, *(-m for m in down[2:])], order)


def _moments(p: Tensor, s: Tensor, v: Tensor, order: int) -> tuple[list[Tensor], list[Tensor]]:
    """D_0 .. D_n and N_0 .. N_n."""
    down, up = [], []
    for j in range(order + 1):
        p = p * s / j if j else p
        down.append(p.sum(-1))
        up.append((p * v).sum(-1))
    return down, up


def _quotient(up: list[Tensor], down: list[Tensor], order: int) -> list[Tensor]:
    """c_1 .. c_n of N/D where N_0 = 0 and D_0 = 1."""
    found: list[Tensor] = []
    for j in range(1, order + 1):
        earlier = zip(down[1:j], reversed(found), strict=True)
        found.append(sum((-d * c for d, c in earlier), up[j]))
    return found


@dataclass(frozen=True)
class Enclosed:
    """A on intervals: its coefficients 0 .. n - 1 at the midpoints, and what each is off by.

    ``largest`` bounds coefficients 1 .. n on the interval; ``movement`` |A(z) - A(midpoint)|.
    """

    values: list[Tensor]
    off: list[Tensor]
    largest: list[Tensor]
    movement: Tensor


def enclosed(it: Interpolant, w: LocalWeights, order: int) -> Enclosed:
    """All of them, rounding included."""
    tau = _logit_error(it, w)
    value, (found, down) = _value_error(it, w, tau), _taylor(w, order - 1)
    _, *bounds = largest(w, order)
    return Enclosed(
        [w.mean, *found],
        [value, *_coefficient_errors(w, tau, value, found, down)],
        [_LOOSE * w.steepest + w.missing / w.radius, *(_LOOSE * bound for bound in bounds)],
        _LOOSE * w.value_drift + w.missing,
    )


def _logit_error(it: Interpolant, w: LocalWeights) -> Tensor:
    """tau: the logits' rounding and that of exp."""
    relative = UNIT * w.logits.abs()
    if it.uniform:
        return 6 * relative + LIBRARY
    distance = (w.middle - it.grid.center).abs()[:, None]
    terms = w.raw_slopes.abs() * distance + w.raw_biases.abs()
    return 4 * UNIT * terms + 2 * relative + LIBRARY


def _value_error(it: Interpolant, w: LocalWeights, tau: Tensor) -> Tensor:
    addends = w.tilted * (w.raw_values - w.base[:, None]).abs()
    size = addends.sum(-1)
    # An addition rounds by u times the sum at most, and by no more than the lesser addend.
    above = torch.minimum(addends, UNIT * size[:, None]).sum(-1)
    below = w.tilted.clamp(max=UNIT).sum(-1) * size
    sums = above + below + 6 * UNIT * size
    level = w.mean.abs() + w.base.abs()
    shift = 3 * UNIT * (w.middle - it.grid.center).abs() if it.uniform else 0.0
    off = reweighted(w, tau) + sums + 2 * UNIT * level + w.steepest * shift
    return _LOOSE * off + w.missing


def _coefficient_errors(
    w: LocalWeights, tau: Tensor, value: Tensor, found: list[Tensor], exact: list[Tensor]
) -> list[Tensor]:
    """By how much the coefficients ``found``, quotients by ``exact``, may be off, all told."""
    order = len(found)
    factor = tau.expm1() * 2 + 2 * (w.weights.shape[-1] + order + 6) * UNIT
    # Keys hold slopes to four roundings of 2 beta l_k; two more make them relative to their mean.
    stored = 7 * UNIT * w.raw_slopes.abs().amax(-1, keepdim=True)
    s, v = w.slopes.abs() + stored, w.values.abs()
    down, up = _moments(w.tilted * factor, s, v, order)
    moved_down, moved_up = _moments(w.tilted * stored, s, v, order)
    down = [torch.zeros_like(value), *(d + m for d, m in zip(down[1:], moved_down, strict=False))]
    up = [value, *(u + m for u, m in zip(up[1:], moved_up, strict=False))]
    sizes = [m.abs() for m in exact]
    off = [value]  # N_0/D_0 is A itself relative to what was computed of it
    for j in range(1, order + 1):
        total = up[j] + down[j] * off[0]
        for i in range(1, j + 1):
            total = total + sizes[i] * off[j - i]
            if i < j:
                total = total + down[i] * (found[j - i - 1].abs() + off[j - i])
        off.append(_LOOSE * total)
    return off[1:]


_FACTOR = 4.0  # on what was seen at mesh points


@dataclass(frozen=True)
class _MeshSweep:
    total: float
    leading: float  # the part that refinement cannot reduce


def estimated_error(it: Interpolant, f: ScalarFunction, eps: float | None) -> float:
    """Refine the mesh until refinement no longer pays; less far once ``eps`` is held."""
    per_cell = max(tuning.POSTERIOR_MESH_FIRST, -(-tuning.MESH // it.grid.cells))
    own = rounding(it, RoundingModel(UNIT, it.uniform, abs(it.high) + abs(it.low), 2))
    while True:
        sweep = _mesh_sweep(it, f, per_cell)
        error = sweep.total + own
        if sweep.total <= tuning.TIGHT * sweep.leading + own or math.isinf(sweep.total):
            return error
        # The remainder falls at least as the mesh; aim a little past what is needed.
        factor = 4 if sweep.total > 10 * sweep.leading else 2
        held = eps is not None and error <= eps
        work = it.grid.cells * per_cell * factor * 33
        if per_cell * factor > tuning.MESH or work > (
            tuning.POSTERIOR_MESH_POLISH if held else tuning.POSTERIOR_MESH_WORK
        ):
            return error
        per_cell *= factor


def assumption(f: ScalarFunction, obstacle: str) -> str:
    """What an estimate takes for granted."""
    return (
        f"{f.name} is not enclosed ({obstacle}): it is taken to be evaluated to 4 units in the "
        f"last place, and to bend at most {_FACTOR:g} times as much between the points of a mesh "
        "as at them"
    )


def _mesh_sweep(it: Interpolant, f: ScalarFunction, per_cell: int) -> _MeshSweep:
    edges = it.grid.mesh(per_cell)
    inner = torch.tensor(f.kinks_in(it.low, it.high), dtype=torch.float64)
    edges = torch.unique(torch.cat([edges, inner]))
    total = leading = 0.0
    for w in local_weights(it, edges):
        lead, rest = _mesh_error(w, f)
        if not bool((lead + rest).isfinite().all()):
            return _MeshSweep(math.inf, math.inf)
        leading = max(leading, float(lead.max()))
        total = max(total, float((lead + rest).max()))
    return _MeshSweep(total, leading)


def _mesh_error(w: LocalWeights, f: ScalarFunction) -> tuple[Tensor, Tensor]:
    derivatives = f.derivatives(w.middle, 4)
    if derivatives is None:
        return _rough_error(w, f)
    f0, f1, f2, f3, f4 = derivatives
    r = w.radius
    first, second, third = taylor(w, 3)
    fourth = largest(w, 4)[3] + _around(f4) / 24
    lead = (w.mean - f0).abs() + 8 * UNIT * f0.abs() + w.missing
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
    lead = (w.mean - values).abs() + 8 * UNIT * values.abs() + w.missing
    return lead, w.steepest * w.radius + _FACTOR * rise


_ROUNDING = 2.0**-47  # nor below this share of f's size: a look-up rounds by as much


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
    """A bound of sup |A - f| for a table A that is there already.

    Proven by Taylor expansions on a mesh where f can be enclosed, else estimated at its points.

    Parameters
    ----------
    it, f
        The table, and the function that it is compared with.
    eps
        Once the bound is below this it is not made tighter; None for as tight as it gets.

    Examples
    --------
    >>> sine = ice.expressions.ScalarFunction(torch.sin, "sin")
    >>> table = Interpolant.fit(sine, -3.0, 3.0, eps=1e-6)
    >>> found = posterior_error(table, sine, None)
    >>> found.kind, found.error <= 1e-6
    ('proven', True)
    """
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

    Examples
    --------
    >>> sine = ice.expressions.ScalarFunction(torch.sin, "sin")
    >>> table = Interpolant.fit(sine, -3.0, 3.0, eps=1e-6)
    >>> above = ice.expressions.ScalarFunction(lambda z: torch.sin(z) + 1, "sin + 1")
    >>> raised(table, 1.0, above).error < 1e-5
    True
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
    floor = _ROUNDING * float(f(it.grid.mesh(tuning.POSTERIOR_FIRST)).abs().max())
    settled = leading = 0.0
    kept = [cells.high[-1:]]
    spent = 0
    while True:
        bound, taken = _errors(it, f, cells)
        spent += len(cells)
        leading = max(leading, float(taken.max()))
        total = max(settled, float(bound.max()))
        again = (bound > max(tuning.POSTERIOR_GOOD * leading, floor)) & ~_narrow(cells, span)
        settled = max([settled, *bound[~again].tolist()])
        held = eps is not None and total <= eps
        parts = _split(cells[again])
        most = tuning.POSTERIOR_POLISH if held else tuning.POSTERIOR_MOST
        # What is not bounded on the narrowest interval never will be.
        if not len(parts) or math.isinf(settled) or spent + len(parts) > most:
            return torch.cat([*kept, cells.low]).sort().values
        kept.append(cells.low[~again])
        cells = parts


def _first_cells(it: Interpolant, f: ScalarFunction) -> Interval:
    """The grid's mesh, with the narrowest intervals around kinks that are known."""
    edges = it.grid.mesh(max(tuning.POSTERIOR_FIRST, -(-tuning.POSTERIOR_LEAST // it.grid.cells)))
    kinks = torch.tensor(f.kinks_in(it.low, it.high), dtype=torch.float64)
    up, down = torch.full_like(kinks, math.inf), torch.full_like(kinks, -math.inf)
    beside = [torch.nextafter(kinks, up), torch.nextafter(kinks, down)]
    edges = torch.unique(torch.cat([edges, *beside]).clamp(it.low, it.high))
    return Interval(edges[:-1], edges[1:])


def _narrow(cells: Interval, span: float) -> Tensor:
    """Too narrow to be split, for their place or beside the whole range."""
    unit = tuning.POSTERIOR_NARROW * torch.finfo(torch.float64).eps
    return cells.high - cells.low <= unit * cells.magnitude.clamp(
        min=tuning.POSTERIOR_FINEST * span
    )


def _split(cells: Interval) -> Interval:
    """In four."""
    step = (cells.high - cells.low) / tuning.POSTERIOR_SPLIT
    inner = [cells.low + k * step for k in range(1, tuning.POSTERIOR_SPLIT)]
    low = torch.cat([cells.low, *inner])
    return Interval(low, torch.cat([*inner, cells.high]))


def _errors(it: Interpolant, f: ScalarFunction, cells: Interval) -> tuple[Tensor, Tensor]:
    """A bound of |A - f| on each interval, and of what it is at the middle."""
    middle = (cells.low + 0.5 * (cells.high - cells.low)).clamp(cells.low, cells.high)
    radius = torch.maximum(cells.high - middle, middle - cells.low)
    radius = radius * OUTWARD_FEW + math.ulp(0.0)
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
    a = enclosed(it, w, tuning.POSTERIOR_ORDER)
    at, on = (
        f.jets(Interval.point(w.middle), tuning.POSTERIOR_ORDER - 1),
        f.jets(cells, tuning.POSTERIOR_ORDER),
    )
    gaps = [_gap(x, at[j]) + off for j, (x, off) in enumerate(zip(a.values, a.off, strict=True))]
    e0, power = gaps[0], torch.ones_like(gaps[0])
    smooth, below = torch.full_like(e0, math.inf), torch.zeros_like(e0)
    for m in range(1, tuning.POSTERIOR_ORDER + 1):
        power = power * w.radius
        smooth = torch.fmin(smooth, below + (a.largest[m - 1] + on[m].magnitude) * power)
        if m < tuning.POSTERIOR_ORDER:
            below = below + gaps[m] * power
    torn = _gap(w.mean, on[0]) + a.off[0] + a.movement
    bound = OUTWARD * torch.fmin(e0 + smooth, torn)
    return bound.nan_to_num(math.inf, math.inf), torch.where(e0.isfinite(), e0, 0.0)


def _gap(value: Tensor, enclosed: Interval) -> Tensor:
    """The largest |value - x| over an interval."""
    return torch.maximum((value - enclosed.low).abs(), (value - enclosed.high).abs())
