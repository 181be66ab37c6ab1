"""The paper's regime: v_k = f(L_k) at low temperature, with an error that falls as 1/P."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic import Interval
from iceform.errors import PrecisionError
from iceform.functions.scalar import ScalarFunction
from iceform.interpolation import bounds
from iceform.interpolation.interpolant import Grid, Interpolant

__all__ = ["MOST_HARD_CELLS", "hard", "hard_for"]

_UNIT = torch.finfo(torch.float64).eps / 2
_REACHES = 3  # omega_f(m h) is tried for m = 1 .. 3
_PARTS = 16  # parts of a cell at whose multiples omega_f is known
_POINTS = 4  # mesh points in a part, where f is only looked at
_CHUNK = 1 << 14  # parts that are enclosed at once
_HARD_SHARPNESS = 12.0  # T_1 ~ 6e-6: the temperature adds nothing to omega_f(h) worth naming
MOST_HARD_CELLS = 1 << 18  # more tokens per sample than this is no longer a look-up table


def hard(f: ScalarFunction, grid: Grid, sharpness: float | None = None) -> Interpolant:
    """v_k = f(L_k), with the bound min_m omega_f(m h) + 2 B_f T_m."""
    c = _HARD_SHARPNESS if sharpness is None else sharpness
    values = f.extended(grid.nodes, grid.low, grid.high)
    if f.affine is not None and c >= 1:
        error = abs(f.affine[0]) * bounds.hard_identity_error(c, grid.spacing)
        return Interpolant(grid, c, values, "hard", error, f)
    modulus = _modulus(f, grid)
    size = float(values.abs().max())
    whole_cells = modulus.values[_PARTS - 1 :: _PARTS]
    error = min(
        bounds.hard_error(whole_cells, size, c),
        bounds.hard_pair_error(modulus.values[:_PARTS], size, c),
    )
    error += _stored(f, grid, values) if modulus.kind == "proven" else 0.0
    return Interpolant(grid, c, values, "hard", error, f, modulus.assumptions, modulus.kind)


def _stored(f: ScalarFunction, grid: Grid, values: Tensor) -> float:
    """What f(L_k), computed and stored in float64, may be off by."""
    inside = (grid.nodes >= grid.low) & (grid.nodes <= grid.high)
    exact = f.jets(Interval.point(grid.nodes[inside]), 0)[0]
    off = torch.maximum((values[inside] - exact.low).abs(), (values[inside] - exact.high).abs())
    return float(off.max()) * (1 + 4 * _UNIT)


def hard_for(f: ScalarFunction, low: float, high: float, eps: float | None) -> Interpolant:
    """The hard regime with as many cells as ``eps`` takes (None: a hundred)."""
    cells = 100 if eps is None else 64
    while True:
        it = hard(f, Grid(low, high, cells))
        if eps is None or it.error <= eps:
            return it
        # The error falls as 1/cells; one per cent more covers the integer steps.
        needed = max(cells + 1, math.ceil(cells * it.error / eps * 1.01))
        if needed > MOST_HARD_CELLS:
            break
        cells = needed
    raise PrecisionError(
        f"the hard regime needs about {needed:.2g} grid tokens for f ({f.name}) at eps = "
        f"{eps:.3g}, more than {MOST_HARD_CELLS}; use regime='spectral', whose error falls "
        "exponentially",
        best=it.error,
    )


@dataclass(frozen=True)
class _Modulus:
    """omega_f(j h / _PARTS) for j = 1 .. _REACHES * _PARTS, and whether that is proven."""

    values: list[float]
    assumptions: tuple[str, ...] = ()
    kind: str = "proven"


def _modulus(f: ScalarFunction, grid: Grid) -> _Modulus:
    """From extremes over the parts of cells: a window of j parts touches at most j + 1 of them."""
    parts = grid.cells * _PARTS
    obstacle = f.obstacle_on(grid.low, grid.high)
    if obstacle is None:
        lowest, highest = _enclosed_parts(f, grid, parts)
        return _Modulus(_spreads(lowest, highest))
    points = torch.linspace(grid.low, grid.high, parts * _POINTS + 1, dtype=torch.float64)
    values = f(points)
    between = 2 * float(values.diff().abs().max())
    blocks = values.unfold(0, _POINTS + 1, _POINTS)
    spreads = _spreads(blocks.amin(-1), blocks.amax(-1))
    assumed = (
        f"{f.name} is not enclosed ({obstacle}): its modulus of continuity is read off a mesh of "
        f"{len(points)} points"
    )
    return _Modulus([s + between for s in spreads], (assumed,), "estimated")


def _enclosed_parts(f: ScalarFunction, grid: Grid, parts: int) -> tuple[Tensor, Tensor]:
    """Bounds of f on equal parts of the range, each by f(m) + f'(X)(X - m)."""
    edges = torch.linspace(grid.low, grid.high, parts + 1, dtype=torch.float64)
    found = []
    for start in range(0, parts, _CHUNK):
        ends = edges[start : start + _CHUNK + 1]
        cells = Interval(ends[:-1], ends[1:])
        middle = Interval.point(0.5 * (cells.low + cells.high))
        on, at = f.jets(cells, 1), f.jets(middle, 0)
        found.append(on[0].meet(at[0] + on[1] * (cells - middle)))
    return torch.cat([c.low for c in found]), torch.cat([c.high for c in found])


def _spreads(lowest: Tensor, highest: Tensor) -> list[float]:
    """The largest rise within j + 1 neighbouring parts, for every j."""
    out = []
    for j in range(1, _REACHES * _PARTS + 1):
        width = min(j + 1, len(lowest))
        top = torch.nn.functional.max_pool1d(highest[None], width, 1)
        bottom = -torch.nn.functional.max_pool1d(-lowest[None], width, 1)
        rise = float((top - bottom).max())
        out.append(math.nextafter(rise, math.inf) if math.isfinite(rise) else math.inf)
    return out
