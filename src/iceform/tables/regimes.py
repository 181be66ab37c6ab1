r"""The four ways to choose tokens, sharpness and values, and the certificate of each.

hard
    The paper's: v_k = f(L_k), low temperature, error ~ omega_f(h)/2, so 1/P.
spectral
    Moderate temperature, v_k = slope L_k + intercept: exponentially exact for lines.
fitted
    Moderate temperature, fitted v_k: exponentially exact for smooth f.
graded
    Fitted, on tokens that crowd geometrically at the kinks of f.

Values are fitted by regularised least squares: with Phi the weights at sample points and
v0 = f(L_k),

.. math:: v = v_0 + V \, \mathrm{diag}\!\left(\frac{\sigma}{\sigma^2 + (\lambda\sigma_1)^2}\right)
          U^\top (f - \Phi v_0), \qquad \Phi = U \Sigma V^\top.

Regularising toward f(L_k) instead of 0 keeps the values tame where Phi is nearly singular. Every
lambda of a scan is tried, and the best one whose values stay below twice f's size is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval, at_most, exactly
from iceform.arithmetic.units import NOISE, SAFE_MINIMUM, UNIT
from iceform.errors import CapacityError, PrecisionError, ProgramError
from iceform.expressions.scalar import ScalarFunction
from iceform.tables import bounds
from iceform.tables.interpolant import MAKERS, GradedGrid, Grid, Interpolant, Keys
from iceform.tables.posterior import posterior_error

HARD_SHARPNESS = 12.0  # T_1 ~ 6e-6: the temperature adds nothing to omega_f(h) worth naming
MOST_HARD_CELLS = 1 << 18  # more tokens per sample than this is no longer a look-up table


def hard(f: ScalarFunction, grid: Grid, sharpness: float | None = None) -> Interpolant:
    """v_k = f(L_k), with the bound min_m omega_f(m h) + 2 B_f T_m."""
    c = HARD_SHARPNESS if sharpness is None else sharpness
    values = f.extended(grid.nodes, grid.low, grid.high)
    if f.affine is not None and c >= 1:
        error = abs(f.affine[0]) * bounds.hard_identity_error(c, grid.spacing)
        return Interpolant(grid, c, values, "hard", error, f)
    modulus = _modulus(f, grid)
    size = float(values.abs().max())
    whole_cells = modulus.values[tuning.REGIMES_PARTS - 1 :: tuning.REGIMES_PARTS]
    error = min(
        bounds.hard_error(whole_cells, size, c),
        bounds.hard_pair_error(modulus.values[: tuning.REGIMES_PARTS], size, c),
    )
    error += _stored(f, grid, values) if modulus.kind == "proven" else 0.0
    return Interpolant(grid, c, values, "hard", error, f, modulus.assumptions, modulus.kind)


def _stored(f: ScalarFunction, grid: Grid, values: Tensor) -> float:
    """What f(L_k), computed and stored in float64, may be off by."""
    inside = (grid.nodes >= grid.low) & (grid.nodes <= grid.high)
    exact = f.jets(Interval.point(grid.nodes[inside]), 0)[0]
    off = torch.maximum((values[inside] - exact.low).abs(), (values[inside] - exact.high).abs())
    return float(off.max()) * (1 + 4 * UNIT)


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
    parts = grid.cells * tuning.REGIMES_PARTS
    obstacle = f.obstacle_on(grid.low, grid.high)
    if obstacle is None:
        lowest, highest = _enclosed_parts(f, grid, parts)
        return _Modulus(_spreads(lowest, highest))
    points = torch.linspace(
        grid.low, grid.high, parts * tuning.REGIMES_POINTS + 1, dtype=torch.float64
    )
    values = f(points)
    between = 2 * float(values.diff().abs().max())
    blocks = values.unfold(0, tuning.REGIMES_POINTS + 1, tuning.REGIMES_POINTS)
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
    for start in range(0, parts, tuning.REGIMES_CHUNK):
        ends = edges[start : start + tuning.REGIMES_CHUNK + 1]
        cells = Interval(ends[:-1], ends[1:])
        middle = Interval.point(0.5 * (cells.low + cells.high))
        on, at = f.jets(cells, 1), f.jets(middle, 0)
        found.append(on[0].meet(at[0] + on[1] * (cells - middle)))
    return torch.cat([c.low for c in found]), torch.cat([c.high for c in found])


def _spreads(lowest: Tensor, highest: Tensor) -> list[float]:
    """The largest rise within j + 1 neighbouring parts, for every j."""
    out = []
    for j in range(1, tuning.REGIMES_REACHES * tuning.REGIMES_PARTS + 1):
        width = min(j + 1, len(lowest))
        top = torch.nn.functional.max_pool1d(highest[None], width, 1)
        bottom = -torch.nn.functional.max_pool1d(-lowest[None], width, 1)
        rise = float((top - bottom).max())
        out.append(math.nextafter(rise, math.inf) if math.isfinite(rise) else math.inf)
    return out


_LAMBDAS = torch.logspace(-14, 0, 29, dtype=torch.float64, device="cpu")
_TAME = 2.0  # largest |v| allowed, relative to f
_MIRRORED = 2.0**-36  # what logits of 500 tokens round by: weights of tokens that are symmetric


@dataclass(frozen=True)
class Fit:
    """Fitted values and the largest error seen at the check points."""

    values: Tensor
    seen: float
    size: float  # max |f| at the check points


def fit_values(
    f: ScalarFunction, grid: Grid | GradedGrid, sharpness: float, *, rough: bool = False
) -> Fit:
    """Fit f on the grid's range at the given sharpness; ``rough`` is for comparing grids."""
    keys = grid.keys(sharpness)
    start = f.extended(grid.nodes, grid.low, grid.high)
    samples, tried = (
        (tuning.REGIMES_ROUGH_SAMPLES, tuning.REGIMES_CHECKS // 2)
        if rough
        else (tuning.REGIMES_SAMPLES, tuning.REGIMES_CHECKS)
    )
    points = _between(grid.mesh(_per_cell(grid, samples)))
    phi = _weights(grid, keys, points)
    correction = _damped(phi, f(points) - phi @ start)
    candidates = torch.cat([start[:, None] + correction, start[:, None]], 1)

    checks = _between(grid.mesh(_per_cell(grid, tried)))
    errors = (_weights(grid, keys, checks) @ candidates - f(checks)[:, None]).abs().amax(0)
    tame = candidates.abs().amax(0) <= _TAME * max(float(start.abs().max()), SAFE_MINIMUM)
    tame[-1] = True
    errors = errors.masked_fill(~tame | ~errors.isfinite(), torch.inf)
    best = int(errors.argmin())
    size = float(f(checks).abs().max())
    return Fit(candidates[:, best].contiguous(), float(errors[best]), size)


def _damped(phi: Tensor, residual: Tensor) -> Tensor:
    """The damped solution for every lambda of the scan, shape (tokens, lambdas).

    Tokens and points that are their own mirror image fall into an even and an odd part, two
    problems of half the size; an odd function, or an even one, needs one of them. lambda is
    relative to the largest singular value of what is solved.
    """
    mirrored = bool((phi - phi.flip(0, 1)).abs().max() <= _MIRRORED)
    parts = _folded(phi, residual) if mirrored else [(phi, residual)]
    noise = NOISE * float(residual.abs().max())
    solved: list[tuple[Tensor, Tensor, Tensor] | None] = []
    for matrix, wanted in parts:
        if mirrored and float(wanted.abs().max()) <= noise:
            solved.append(None)
            continue
        # R of the QR factorisation holds Q'r in its last column, and its svd is the matrix's.
        triangle = torch.linalg.qr(torch.cat([matrix, wanted[:, None]], 1), mode="r").R
        count = matrix.shape[1]
        u, sigma, vt = torch.linalg.svd(triangle[:count, :count])
        solved.append((sigma, vt, u.T @ triangle[:count, count]))
    largest = max((float(found[0][0]) for found in solved if found), default=1.0)
    found = [
        torch.zeros(matrix.shape[1], len(_LAMBDAS), dtype=torch.float64)
        if part is None
        else part[1].T @ (_damping(part[0], largest) * part[2][:, None])
        for (matrix, _), part in zip(parts, solved, strict=True)
    ]
    return _unfolded(*found) if mirrored else found[0]


def _damping(sigma: Tensor, largest: float) -> Tensor:
    return sigma[:, None] / (sigma[:, None].square() + (_LAMBDAS * largest).square())


def _folded(phi: Tensor, residual: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The even and the odd part of a matrix that is the same read from its other end."""
    even, odd = _fold(phi.T)
    return [(_fold(even.T)[0], _fold(residual)[0]), (_fold(odd.T)[1], _fold(residual)[1])]


def _fold(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates along (e_i + e_-i)/sqrt 2, the middle last, and along (e_i - e_-i)/sqrt 2."""
    half = len(rows) // 2
    left, right = rows[:half], rows.flip(0)[:half]
    middle = rows[half : len(rows) - half]
    return torch.cat([(left + right) * math.sqrt(0.5), middle]), (left - right) * math.sqrt(0.5)


def _unfolded(even: Tensor, odd: Tensor) -> Tensor:
    half = len(odd)
    left, right = even[:half] + odd, even[:half] - odd
    return torch.cat([left * math.sqrt(0.5), even[half:], right.flip(0) * math.sqrt(0.5)])


def _per_cell(grid: Grid | GradedGrid, wanted: int) -> int:
    fewer = wanted // 2 + 1 if grid.cells > tuning.REGIMES_MANY else wanted
    return max(fewer, -(-tuning.FEWEST_POINTS // grid.cells))


def _between(edges: Tensor) -> Tensor:
    return torch.cat([edges[:1], 0.5 * (edges[1:] + edges[:-1]), edges[-1:]])


def _weights(grid: Grid | GradedGrid, keys: Keys, z: Tensor) -> Tensor:
    t = z[:, None] - grid.center
    return torch.softmax(t * keys.slopes + keys.biases, -1)


def check_enclosed(f: ScalarFunction, low: float, high: float, eps: float | None) -> None:
    """``eps`` is a promise: refuse it for a function that cannot be enclosed, unless told not to.

    Raises
    ------
    PrecisionError
        Says why the function cannot be enclosed.
    """
    obstacle = None if eps is None or f.estimate else f.obstacle_on(low, high)
    if obstacle is not None:
        raise PrecisionError(
            f"nothing is proven of f ({f.name}): {obstacle}. Write it with elementwise functions "
            "of torch, or pass estimate=True to accept an error that is only estimated",
            best=math.inf,
        )


# ---------------------------------------------------------------------------------------------
# spectral: straight lines
# ---------------------------------------------------------------------------------------------

_FINEST_DELTA = 1e-16  # cells; below this the bound is under float64's rounding of any range
_LINE = ScalarFunction(lambda z: z, "identity", affine=(1.0, 0.0))


def spectral(
    low: float, high: float, eps: float | None, f: ScalarFunction = _LINE, cells: int = 1
) -> Interpolant:
    """Slope z + intercept with a proven error; the identity unless ``f`` is another line."""
    slope, _ = f.affine or (1.0, 0.0)
    scale = max(abs(slope), math.ulp(0.0)) * Grid(low, high, cells).spacing
    wanted = _FINEST_DELTA if eps is None else max(min(0.5, 0.99 * eps / scale), _FINEST_DELTA)
    # Where eps is close to what float64 stores, the finest rule leaves the most room.
    for delta in (wanted, _FINEST_DELTA):
        rule = bounds.spectral_rule(delta, cells)
        it = _line_on(f, Grid(low, high, cells, rule.guards), rule.sharpness)
        if eps is None or it.error <= eps:
            return it
    if eps is not None:
        raise PrecisionError(
            f"float64 holds the line on [{exactly(low)}, {exactly(high)}] to "
            f"{at_most(it.error, '.3g')}, "
            f"not {eps:.3g}; "
            "ask for a larger eps or a narrower range",
            best=it.error,
        )
    return it


def _line_on(f: ScalarFunction, grid: Grid, sharpness: float) -> Interpolant:
    slope, intercept = f.affine or (1.0, 0.0)
    values = slope * grid.nodes + intercept
    # Nodes, values, slope and intercept are stored in float64: five roundings.
    stored = 5 * UNIT * (float(values.abs().max()) + abs(intercept))
    proven = bounds.linear_reproduction(sharpness, grid.guards, grid.cells)
    error = abs(slope) * grid.spacing * proven + stored
    off, assumed = _off_line(f, grid.low, grid.high)
    kind = "estimated" if assumed else "proven"
    return Interpolant(grid, sharpness, values, "spectral", error + off, f, assumed, kind)


def _off_line(f: ScalarFunction, low: float, high: float) -> tuple[float, tuple[str, ...]]:
    """How far f is from the line it is said to be, and what of that is left to believe.

    Raises
    ------
    ProgramError
        If it is another line, or none.
    """
    slope, intercept = f.affine or (1.0, 0.0)
    if f.obstacle is not None:
        return 0.0, (f"{f.name} is the line {slope:g} z + {intercept:g} as said ({f.obstacle})",)
    whole, end = Interval.of(low).hull(Interval.of(high)), Interval.of(low)
    said = Interval.of(slope) * end + Interval.of(intercept)
    tilt = (f.jets(whole, 1)[1] - Interval.of(slope)) * (whole - end)
    off = float(((f.jets(end, 0)[0] - said) + tilt).magnitude)
    if not off <= NOISE * (abs(slope) * max(abs(low), abs(high)) + abs(intercept)):
        raise ProgramError(f"f ({f.name}) is not the line {slope:g} z + {intercept:g}")
    return off, ()


# ---------------------------------------------------------------------------------------------
# fitted and graded: values by least squares, certified afterwards
# ---------------------------------------------------------------------------------------------

MOST_FITTED_TOKENS = 2048  # far more than any function that float64 resolves needs
_PLATEAU = 32 * UNIT  # relative to f: more tokens than reach this do not help in float64

# Coordinate searches start at the first option of each and try the others in turn.
_FITTED = {"sharpness": (0.3, 0.15, 0.2, 0.25, 0.4, 0.6, 0.8), "guards": (4, 0, 1, 2, 6, 8, 12)}
_GRADED = {
    "growth": (0.4, 0.3, 0.22, 0.5),
    "share": (0.1, 0.0, 0.3, 0.6),
    "sharpness": (0.6, 0.4, 0.9, 1.4, 2.2),
    "guards": (2, 1, 4, 6),
}


@dataclass(frozen=True)
class _Candidate:
    grid: Grid | GradedGrid
    sharpness: float
    fit: Fit
    knobs: tuple[int | float, ...] = ()


@dataclass(frozen=True)
class _Family:
    """The grids of a range: equally spaced, or crowding at kinks, as knobs say."""

    low: float
    high: float
    kinks: tuple[float, ...] = ()

    @property
    def regime(self) -> str:
        return "graded" if self.kinks else "fitted"

    @property
    def options(self) -> Mapping[str, Sequence[int | float]]:
        return _GRADED if self.kinks else _FITTED

    @property
    def first(self) -> dict[str, int | float]:
        return {name: options[0] for name, options in self.options.items()}

    def build(self, tokens: int, knobs: Mapping[str, int | float]) -> Grid | GradedGrid | None:
        """None where the knobs leave too few tokens, or float64 cannot tell them apart."""
        low, high, guards = self.low, self.high, int(knobs["guards"])
        cells = tokens - 1 - 2 * guards
        if cells < 2:
            return None
        if not self.kinks:
            return Grid(low, high, cells, guards)
        share = knobs["share"]
        coarsest = (high - low) / (share * cells) if share else math.inf
        grid = GradedGrid(low, high, cells, guards, self.kinks, knobs["growth"], coarsest)
        # float64 must tell neighbouring tokens apart, with six digits to spare.
        return grid if grid.spacing > 1e6 * UNIT * max(abs(low), abs(high)) else None

    def near(self, found: _Candidate | None, tokens: int) -> tuple[int | float, ...] | None:
        """Knobs to start from: those of many tokens hardly change with the size, but at kinks."""
        return (
            None if found is None or self.kinks or tokens <= tuning.REGIMES_ROUGH else found.knobs
        )


def best(
    f: ScalarFunction, low: float, high: float, eps: float | None, tokens: int | None = None
) -> Interpolant:
    """Pick the regime: a line, a smooth function, or one with kinks."""
    if f.affine is not None and tokens is None:
        return spectral(low, high, eps, f)
    pick = graded if f.kinks_in(low, high) else fitted
    return pick(f, low, high, eps, tokens)


def fitted(
    f: ScalarFunction, low: float, high: float, eps: float | None, tokens: int | None = None
) -> Interpolant:
    """Fitted values on a uniform grid."""
    return _smallest(f, _Family(low, high), eps, tokens)


def graded(
    f: ScalarFunction, low: float, high: float, eps: float | None, tokens: int | None = None
) -> Interpolant:
    """Fitted values on tokens that crowd at the kinks of ``f``."""
    kinks = f.kinks_in(low, high)
    if not kinks:
        raise ProgramError(f"f ({f.name}) has no kink in ({low:.6g}, {high:.6g}) to crowd at")
    return _smallest(f, _Family(low, high, kinks), eps, tokens)


def on_grid(
    f: ScalarFunction, grid: Grid | GradedGrid, sharpness: float, regime: str
) -> Interpolant:
    """The values of a function on tokens that are given, with the error that is proven for them.

    Parameters
    ----------
    f
        The function.
    grid, sharpness
        The tokens and their temperature, as of a table that was made for another function.
    regime
        "hard" for v_k = f(L_k), "fitted" or "graded" for values by least squares. A line keeps its
        own values on equally spaced tokens.

    Examples
    --------
    >>> sine = Interpolant.fit(torch.sin, -3.0, 3.0, eps=1e-6)
    >>> cosine = ice.expressions.ScalarFunction(torch.cos, "cos")
    >>> on_grid(cosine, sine.grid, sine.sharpness, "fitted").error < 1e-4
    True
    """
    if regime == "hard" and isinstance(grid, Grid) and not grid.guards:
        return hard(f, grid, sharpness)
    if f.affine is not None and isinstance(grid, Grid):
        return _line_on(f, grid, sharpness)
    return _certified(f, _Candidate(grid, sharpness, fit_values(f, grid, sharpness)), regime, None)


@lru_cache(maxsize=64)  # another eps asks for the same sizes
def _search(
    f: ScalarFunction, family: _Family, tokens: int, near: tuple[int | float, ...] | None = None
) -> _Candidate | None:
    """Turn one knob at a time, from the first option of each, or by a notch from ``near``."""
    known: dict[tuple[float, ...], _Candidate | None] = {}
    grids: dict[tuple[float, ...], Grid | GradedGrid | None] = {}
    rough = tokens > tuning.REGIMES_ROUGH

    def fit(knobs: dict[str, int | float], rough: bool) -> _Candidate | None:
        c = knobs["sharpness"]
        key = tuple(value for name, value in knobs.items() if name != "sharpness")
        if key not in grids:
            grids[key] = family.build(tokens, knobs)
        if (grid := grids[key]) is None:
            return None
        return _Candidate(grid, c, fit_values(f, grid, c, rough=rough), tuple(knobs.values()))

    def candidate(knobs: dict[str, int | float]) -> _Candidate | None:
        key = tuple(knobs.values())
        if key not in known:
            known[key] = fit(knobs, rough)
        return known[key]

    def seen(knobs: dict[str, int | float]) -> float:
        found = candidate(knobs)
        return math.inf if found is None else found.fit.seen

    knobs, tried = family.first, dict(family.options)
    if near is not None:
        knobs = dict(zip(knobs, near, strict=True))
        tried = {name: _beside(options, knobs[name]) for name, options in tried.items()}
    for _ in range(tuning.REGIMES_ROUNDS if tokens <= tuning.REGIMES_QUICK else 1):
        for name, options in tried.items():
            knobs = min(({**knobs, name: option} for option in options), key=seen)
    return fit(knobs, rough=False) if rough else candidate(knobs)


def _beside(options: Sequence[int | float], chosen: int | float) -> list[int | float]:
    """The option that was chosen, the next smaller and the next larger."""
    ordered = sorted(options)
    at = ordered.index(chosen)
    return [chosen, *ordered[max(at - 1, 0) : at], *ordered[at + 1 : at + 2]]


def _smallest(
    f: ScalarFunction, family: _Family, eps: float | None, tokens: int | None
) -> Interpolant:
    if tokens is not None:
        check_tokens(tokens)
        found = _search(f, family, tokens)
        if found is None:
            raise PrecisionError(f"{tokens} grid tokens are too few for f ({f.name}); use more")
        return _held(_certified(f, found, family.regime, eps), f, eps)
    if eps is None:
        return _most_accurate(f, family)
    if eps < _hopeless(f, family):
        closest = _most_accurate(f, family)
        return _held(closest, f, eps)
    enough, found = _enough_tokens(f, family, tuning.MOST_OF_EPS * eps)
    closest = _certified(f, found, family.regime, eps)
    for _ in range(tuning.REGIMES_RETRIES):
        if (
            closest.error <= eps
            or enough >= tuning.REGIMES_SIZES[-1]
            or found.fit.seen > tuning.MOST_OF_EPS * eps
        ):
            break
        enough = min(tuning.REGIMES_SIZES[-1], max(enough + 2, int(tuning.REGIMES_GROWTH * enough)))
        again = _search(f, family, enough)
        if again is not None:
            found, closest = again, _certified(f, again, family.regime, eps)
    return _held(closest, f, eps)


def _hopeless(f: ScalarFunction, family: _Family) -> float:
    """Below this, values stored in float64 already spoil the look-up."""
    grid = next(
        g for g in (family.build(n, family.first) for n in tuning.REGIMES_SIZES) if g is not None
    )
    return UNIT * float(f(grid.mesh(64)).abs().max())


def check_tokens(tokens: object, most: int | None = None) -> None:
    """A number of grid tokens that a table can have."""
    most = MOST_FITTED_TOKENS if most is None else most
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ProgramError(f"tokens must be a whole number of at least 1, got {tokens!r}")
    if tokens > most:
        bytes_needed = 8 * tuning.REGIMES_SAMPLES * tokens**2
        raise CapacityError(
            f"{tokens} grid tokens would need about {bytes_needed} bytes to fit and certify, and "
            f"{most} are the most a table may have; use fewer tokens"
        )


def _enough_tokens(f: ScalarFunction, family: _Family, target: float) -> tuple[int, _Candidate]:
    """The least number of tokens whose fit is seen to reach ``target``; the best if none does."""
    too_few, closest = 0, None
    for size in tuning.REGIMES_SIZES:
        known = closest[1] if closest and size > tuning.REGIMES_QUICK else None
        found = _search(f, family, size, family.near(known, size))
        if found is None:
            too_few = size
            continue
        if closest is None or found.fit.seen < closest[1].fit.seen:
            closest = (size, found)
        if found.fit.seen <= target:
            break
        too_few = size
    if closest is None:
        raise PrecisionError(
            f"f ({f.name}) has too many kinks for {tuning.REGIMES_SIZES[-1]} grid tokens"
        )
    enough, found = closest
    while found.fit.seen <= target and enough - too_few > 2:
        middle = (enough + too_few) // 2
        trial = _search(f, family, middle, family.near(found, middle))
        if trial is not None and trial.fit.seen <= target:
            enough, found = middle, trial
        else:
            too_few = middle
    return enough, found


def _most_accurate(f: ScalarFunction, family: _Family) -> Interpolant:
    size = 0.0
    closest: _Candidate | None = None
    stalled = 0
    for tokens in tuning.REGIMES_SIZES:
        found = _search(f, family, tokens)
        if found is None:
            continue
        size = max(size, found.fit.size)
        # Tokens that are too few to see where f bends all do equally badly.
        blind = closest is None or closest.fit.seen > tuning.REGIMES_BLIND * size
        better = closest is None or found.fit.seen < closest.fit.seen / 2
        stalled = 0 if blind or better else stalled + 1
        if closest is None or found.fit.seen < closest.fit.seen:
            closest = found
        if closest.fit.seen <= _PLATEAU * size or stalled >= tuning.REGIMES_STALLED:
            break
    if closest is None:
        raise PrecisionError(
            f"f ({f.name}) has too many kinks for {tuning.REGIMES_SIZES[-1]} grid tokens"
        )
    return _certified(f, closest, family.regime, None)


def _certified(f: ScalarFunction, found: _Candidate, regime: str, eps: float | None) -> Interpolant:
    draft = Interpolant(found.grid, found.sharpness, found.fit.values, regime, math.inf, f)
    proof = posterior_error(draft, f, eps)
    if proof.place is not None:
        raise PrecisionError(
            f"f ({f.name}) is not bounded near z = {proof.place:.6g}, so no error is proven on "
            f"[{draft.low:.6g}, {draft.high:.6g}]: it has a pole there, leaves its domain, or its "
            "form cancels; narrow the range, or write it in another form",
            best=math.inf,
        )
    return replace(
        draft, error=proof.error, assumptions=proof.assumptions, kind=proof.kind,
        edges=proof.edges, _rounding={}, _windows={},
    )  # fmt: skip


def _held(it: Interpolant, f: ScalarFunction, eps: float | None) -> Interpolant:
    if eps is not None and not it.error <= eps:
        raise PrecisionError(
            f"f ({f.name}) on [{exactly(it.low)}, {exactly(it.high)}] is certified to "
            f"{at_most(it.error, '.3g')} with "
            f"{it.tokens} grid tokens, not to eps = {eps:.3g}; ask for a larger eps, narrow the "
            "range, or name the kinks of f as kinks=(...)",
            best=it.error,
        )
    return it


MAKERS.update(identity=spectral, hard=hard, refit=on_grid)
