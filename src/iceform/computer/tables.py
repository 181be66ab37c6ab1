r"""Tables: for every instruction a pair of curves F, G becomes values on one grid of keys.

**Polynomials of degree two and less** (sums, products, negations: most instructions) share one grid
on [-R, R], R a power of two: spacing h = R/2, sharpness c = 1/4, 12 guards. With equally spaced
keys the softmax average of L is the argument z and that of L^2 is z^2 + h^2/(2c), both up to
aliasing of order exp(-pi^2/c) = 7e-18, so

.. math:: v_k = a_2 (L_k^2 - h^2/(2c)) + a_1 L_k + a_0

is the polynomial to rounding on any range. Its error is proven once, on [-1, 1], and scales.

**Other curves** are fitted (:class:`iceform.Interpolant`): on a uniform grid where they are smooth,
graded at their kinks. The second curve of a pair is fitted on the grid of the first.

**Comparisons** are two entries with keys +-s: offset + height tanh(s (z - at)), exact for itself.

**Whole numbers** have an entry each, so steep that only the nearest one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_most
from iceform.arithmetic.intervals import above
from iceform.arithmetic.units import OUTWARD_MANY, UNIT
from iceform.computer.graph import refuse
from iceform.computer.instructions import TablePair
from iceform.computer.virtual import (
    Curve,
    JumpCurve,
    StairCurve,
    StepCurve,
    VirtualInstruction,
    steepest,
)
from iceform.errors import IceformError, PrecisionError
from iceform.expressions import ScalarFunction
from iceform.expressions.formulas import Formula, trees
from iceform.expressions.formulas.polynomials import polynomial
from iceform.program import Range, SourceLine, enclosed
from iceform.program.range import BEYOND
from iceform.tables import GradedGrid, Grid, Interpolant
from iceform.tables.bounds import linear_reproduction
from iceform.tables.posterior import posterior_error
from iceform.tables.regimes import Fit, fit_values

SHARE = 2.0**-6  # of a program's eps that one look-up may be off by
_CELLS, _GUARDS, _SHARPNESS = 4, 12, 0.25  # of the grid for polynomials; see above
_ROOM = BEYOND  # of a range, beyond its ends: computed arguments are off by their errors
# Smooth curves: as many cells as it takes to be seen within a share of eps.
_ENOUGH, _SLOW = 76, 0.3  # cells from which a size must bring this factor to go on
_GRADED_SHARPNESS, _GRADED_GUARDS = 0.4, 4
_APART = 1e6 * UNIT  # float64 must tell neighbouring entries apart, with six digits to spare
_LOOKS = 4  # times that the sharpest bend is looked for, ever closer
_INWARD = 0.1  # of the distance to what may be singular beyond an end: where entries crowd
_WORST = BEYOND  # relative to the largest value: a table that is off by more is refused
_FLOOR = 2.0**-48  # relative to the curve's size: what more entries cannot improve in float64

_ZERO = ScalarFunction(torch.zeros_like, "0", affine=(0.0, 0.0))


@dataclass
class ProgramTables:
    """The tables of a program, each made once.

    ``eps`` is the error that a look-up may have, relative to nothing.
    """

    eps: float
    made: dict[tuple[object, ...], TablePair] = field(default_factory=dict)

    def table(self, instruction: VirtualInstruction) -> TablePair:
        """The table of an instruction."""
        f, g = instruction.f, instruction.g
        key: tuple[object, ...]
        if isinstance(f, JumpCurve) or isinstance(g, JumpCurve):
            step = f if isinstance(f, JumpCurve) else g
            span = instruction.plus if isinstance(f, JumpCurve) else instruction.minus
            key = (f, g, _power_of_two(span.size))
            if isinstance(step, StairCurve):
                return self._made(key, lambda name: _stairs(name, f, g, step, span))
            return self._made(key, lambda name: _comparison(name, f, g, step, span))
        span = _needed(instruction)
        if low_degree(f) and low_degree(g):
            size = _power_of_two(span.size * (1 + _ROOM))
            key = (f, g, size)
            return self._made(key, lambda name: _polynomials(name, f, g, size))
        room = _with_room(span, f, g)
        key = (f, g, room.low, room.high)
        return self._made(
            key, lambda name: _fitted_pair(name, f, g, room, self.eps, instruction.place)
        )

    def line(self) -> TablePair:
        """A table that 0 can always be looked up in."""
        return self._made((trees.Variable(), None, 1.0),
                          lambda name: _polynomials(name, trees.Variable(), None, 1.0))  # fmt: skip

    def _made(self, key: tuple[object, ...], make: Callable[[str], TablePair]) -> TablePair:
        if key not in self.made:
            self.made[key] = make(f"T{len(self.made)}")
        return self.made[key]


def _needed(instruction: VirtualInstruction) -> Range:
    """Every argument that is looked up for a value."""
    spans = [
        span
        for span, curve in ((instruction.plus, instruction.f), (instruction.minus, instruction.g))
        if curve is not None
    ]
    return spans[0] if len(spans) == 1 else spans[0].join(spans[1])


def _power_of_two(size: float) -> float:
    """At least this, and no less than 1/32: narrower tables have steeper keys and gain nothing."""
    return 2.0 ** max(-5, math.ceil(math.log2(size))) if size > 0 else 2.0**-5


# ---------------------------------------------------------------------------------------------
# polynomials
# ---------------------------------------------------------------------------------------------


def low_degree(curve: Curve | None) -> bool:
    """Whether it is a polynomial of degree two at most, whose table is one for any range."""
    if curve is None:
        return True
    found = None if isinstance(curve, JumpCurve) else polynomial(curve)
    return found is not None and len(found) <= 3


def _polynomials(name: str, f: Curve | None, g: Curve | None, size: float) -> TablePair:
    grid = Grid(-size, size, _CELLS, _GUARDS)
    keys = grid.keys(_SHARPNESS)
    columns = _column(f, grid), _column(g, grid)
    return _pair(name, (keys.slopes, keys.biases), Range(-size, size), (f, g), columns)


@dataclass(frozen=True)
class _Column:
    values: Tensor
    error: float = 0.0
    interpolant: Interpolant | None = None

    @classmethod
    def of(cls, it: Interpolant | None, like: Tensor) -> _Column:
        """Fitted, or zeros."""
        return cls(torch.zeros_like(like)) if it is None else cls(it.values, it.error, it)


def _pair(
    name: str, keys: tuple[Tensor, Tensor], on: Range, curves: tuple[Curve | None, Curve | None],
    columns: tuple[_Column, _Column], jump: float | None = None, gap: float = 0.0,
) -> TablePair:  # fmt: skip
    f, g = columns
    assumed = [a for c in columns if c.interpolant is not None for a in c.interpolant.assumptions]
    return TablePair(
        name, *keys, f.values, g.values, on.low, on.high, f.error, g.error, _exact(curves[0]),
        _exact(curves[1]), f.interpolant, g.interpolant, tuple(dict.fromkeys(assumed)), jump, gap,
    )  # fmt: skip


def _column(curve: Curve | None, grid: Grid) -> _Column:
    """A polynomial of degree two at the nodes, and the error of its look-up."""
    nodes = grid.nodes
    if curve is None:
        return _Column(torch.zeros_like(nodes))
    assert not isinstance(curve, JumpCurve)
    coefficients = polynomial(curve) or ()
    a0, a1, a2 = (float(c) for c in (*coefficients, *[Fraction(0)] * 3)[:3])
    offset = grid.spacing**2 / (2 * _SHARPNESS)
    values = a2 * (nodes.square() - offset) + a1 * nodes + a0
    line, square = _unit_errors()
    sizes = abs(a2) * (float(nodes.square().max()) + offset) + abs(a1) * float(nodes.abs().max())
    # Coefficients, nodes and values are stored in float64: five roundings at most of any of them.
    stored = 5 * UNIT * _weighted(sizes + abs(a0), a2, a1, a0, grid)
    error = abs(a2) * grid.high**2 * square + abs(a1) * grid.high * line + stored
    function = _exact(curve)
    interpolant = Interpolant(grid, _SHARPNESS, values, "spectral", error, function)
    return _Column(values, math.nextafter(error, math.inf), interpolant)


def _weighted(largest: float, a2: float, a1: float, a0: float, grid: Grid) -> float:
    """Bound of the softmax average of |a2| (L^2 + offset) + |a1 L| + |a0| on the range."""
    offset = grid.spacing**2 / (2 * _SHARPNESS)
    second = grid.high**2 + OUTWARD_MANY * offset
    average = abs(a2) * (second + offset) + abs(a1) * math.sqrt(second) + abs(a0)
    return min(largest, average)


@lru_cache(maxsize=1)
def _unit_errors() -> tuple[float, float]:
    """Proven errors on [-1, 1] of the look-ups of z and of z^2."""
    grid = Grid(-1.0, 1.0, _CELLS, _GUARDS)
    line = grid.spacing * linear_reproduction(_SHARPNESS, _GUARDS, _CELLS)
    nodes = grid.nodes
    values = nodes.square() - grid.spacing**2 / (2 * _SHARPNESS)
    # z * z is correctly rounded: the one thing the certificate takes for granted is true of it.
    square = ScalarFunction(lambda z: z * z, "z^2")
    draft = Interpolant(grid, _SHARPNESS, values, "spectral", math.inf, square)
    return line, posterior_error(draft, square, None).error


def _exact(curve: Curve | None) -> ScalarFunction | None:
    """The function that a column stands for."""
    if curve is None:
        return None
    if isinstance(curve, StepCurve):
        return ScalarFunction(_Jump(curve), "a jump")
    if isinstance(curve, StairCurve):
        return ScalarFunction(_Stairs(curve), "of the nearest whole number")
    formula = Formula(curve, "z")
    return ScalarFunction(formula, str(formula))


@dataclass(frozen=True)
class _Jump:
    step: StepCurve

    def __call__(self, z: Tensor) -> Tensor:
        return self.step.offset + self.step.height * torch.where(z > self.step.at, 1.0, -1.0).to(z)


@dataclass(frozen=True)
class _Stairs:
    stairs: StairCurve

    def __call__(self, z: Tensor) -> Tensor:
        nearest = torch.floor(self.stairs.slope * z + self.stairs.shift + 0.5) - self.stairs.first
        values = torch.tensor(self.stairs.values, dtype=z.dtype)
        found = values[nearest.nan_to_num().clamp(0, len(values) - 1).long()]
        return torch.where(nearest.isnan(), nearest, found)


# ---------------------------------------------------------------------------------------------
# comparisons
# ---------------------------------------------------------------------------------------------


def _stairs(
    name: str, f: Curve | None, g: Curve | None, stairs: StairCurve, span: Range
) -> TablePair:
    """An entry for each whole number, counted from the middle one.

    Logits are rounded like a shift of u by 2 u times their size over 2 c: ``jump`` is four times
    that size over 2 c |slope|, which the budget takes the rounding of.
    """
    middle = stairs.first + len(stairs.values) // 2
    k = torch.arange(len(stairs.values), dtype=torch.float64) + (stairs.first - middle)
    double = 2 * stairs.sharpness * k
    keys = stairs.slope * double, double * (stairs.shift - middle) - stairs.sharpness * k * k
    values = torch.tensor(stairs.values, dtype=torch.float64)
    column = _Column(values, stairs.moved(0.0) + stairs.off), _Column(torch.zeros_like(values))
    size, most = _power_of_two(span.size * (1 + _ROOM)), float(k.abs().max())
    reach = abs(stairs.slope) * size + abs(stairs.shift - middle) + most
    jump = 4 * most * reach / abs(stairs.slope)
    columns = column if g is None else column[::-1]
    return _pair(name, keys, Range(-size, size), (f, g), columns, jump, stairs.gap)


def _comparison(
    name: str, f: Curve | None, g: Curve | None, step: Curve | None, span: Range
) -> TablePair:
    assert isinstance(step, StepCurve)
    slopes = torch.tensor([step.sharpness, -step.sharpness], dtype=torch.float64)
    ends = [Fraction(step.offset) + s * Fraction(step.height) for s in (1, -1)]
    values = torch.tensor([float(end) for end in ends], dtype=torch.float64)
    rounded = max(abs(Fraction(float(end)) - end) for end in ends)
    off = step.beside() + above(rounded + Fraction(step.off))
    columns = _Column(values, off), _Column(torch.zeros_like(values))
    size, keys = _power_of_two(span.size * (1 + _ROOM)), (slopes, -slopes * step.at)
    columns = columns if g is None else columns[::-1]
    return _pair(name, keys, Range(-size, size), (f, g), columns, step.at, step.gap)


# ---------------------------------------------------------------------------------------------
# fitted
# ---------------------------------------------------------------------------------------------


def _with_room(span: Range, f: Curve | None, g: Curve | None) -> Range:
    """The range, and a little more at each end where the curves allow it."""
    low, high = span.low, span.high
    most = _ROOM * max(high - low, BEYOND * span.size, 2.0**-30)
    for room in (most, most / 64, most / 4096, _ROOM * abs(low)):
        if room > 0 and _as_flat(f, g, Range(low - room, high), low, high):
            low = low - room
            break
    step = 2.0 ** (math.floor(math.log2(max(high - low, 2.0**-40))) - 2)
    for room in (most, most / 64, most / 4096, _ROOM * abs(high)):
        if room > 0 and _as_flat(f, g, Range(low, high + room), low, high):
            high = high + room
            break
    # Round ends are met again by other instructions, and their table with them.
    for left, right in ((_down(low, step), _up(high, step)), (low, _up(high, step))):
        near = (low <= 0 or left >= low / 2) and (high >= 0 or right <= high / 2)
        if near and _as_flat(f, g, Range(left, right), low, high):
            return Range(left, right)
    return Range(low, high)


def _down(value: float, step: float) -> float:
    return math.floor(value / step) * step


def _up(value: float, step: float) -> float:
    return math.ceil(value / step) * step


def _bounded(curve: Curve | None, low: float, high: float) -> bool:
    if curve is None or isinstance(curve, JumpCurve):
        return True
    return all(map(math.isfinite, enclosed(curve, low, high)))


def _as_flat(f: Curve | None, g: Curve | None, wider: Range, low: float, high: float) -> bool:
    """Whether curves are not much steeper on a wider range: they may be singular at its end."""
    for curve in (f, g):
        if curve is None or isinstance(curve, JumpCurve):
            continue
        inside = steepest(curve, Range(low, high))
        flat = steepest(
            curve, wider
        ) <= tuning.PROGRAM_TABLES_STEEPER * inside or not math.isfinite(inside)
        if not (flat and _bounded(curve, wider.low, wider.high)):
            return False
    return True


def _fitted_pair(
    name: str, f: Curve | None, g: Curve | None, span: Range, eps: float, place: SourceLine | None
) -> TablePair:
    try:
        first, second = _interpolants(f, g, span, eps)
    except IceformError as error:
        exact = "; a soft threshold is ice.soft_threshold(u, t), a choice ice.where(u > 0, a, b)"
        mend = exact if "jumps from" in str(error) else ""
        raise refuse(f"no table for this function on {span}: {error}{mend}", place) from error
    lead = first if first is not None else second
    assert lead is not None
    for it in (first, second):
        if it is not None and it.error > _WORST * max(it.size, 2.0**-20):
            raise refuse(
                f"the table of {it.function.name if it.function else 'this function'} on {span} is "
                f"off by {at_most(it.error, '.2g')}: the range is too wide for it; give narrower "
                "ranges to "
                "parameters, bounds to names, ice.bounded to a value, or write 1/v as "
                "ice.reciprocal(v, low, high)",
                place,
            )
    keys = lead.keys.slopes, lead.keys.biases - lead.keys.slopes * lead.grid.center
    columns = _Column.of(first, lead.values), _Column.of(second, lead.values)
    return _pair(name, keys, span, (f, g), columns)


def bends_too_much(curve: Curve, span: Range, eps: float) -> bool:
    """Whether a curve has a kink that costs its table more than a program's eps.

    It is then better computed in two look-ups, the kink in one of them. ``eps`` is what one look-up
    may be off by.
    """
    if isinstance(curve, JumpCurve) or not span.low < span.high:
        return False
    if not _function(curve, span).kinks_in(span.low, span.high):
        return False
    try:
        room = _with_room(span, curve, None)
        error = _fit(_tree(curve), room.low, room.high, eps).error
    except IceformError:
        return True
    return error * SHARE > eps * max(1.0, span.of(curve).size)


_NARROWER = (8, 6, 4, 2)  # halvings of a range, from one end, that are tried for a table


def narrower(instruction: VirtualInstruction, eps: float) -> tuple[Range, Range] | None:
    """The arguments of a look-up, and a part of them, as wide as is found, whose table holds eps.

    None where no part that is tried does.
    """
    curve = instruction.f if instruction.f is not None else instruction.g
    span = _needed(instruction)
    if curve is None or isinstance(curve, JumpCurve) or (instruction.f and instruction.g):
        return None
    for halvings in _NARROWER:
        cut = (span.high - span.low) * 2.0**-halvings
        for part in (Range(span.low + cut, span.high), Range(span.low, span.high - cut)):
            room = _with_room(part, curve, None)
            try:
                if _fit(_tree(curve), room.low, room.high, eps).error <= eps:
                    return span, part
            except IceformError:
                continue
    return None


def _interpolants(
    f: Curve | None, g: Curve | None, span: Range, eps: float
) -> tuple[Interpolant | None, Interpolant | None]:
    """Both on one grid: that of the curve that is no polynomial; of f where neither is."""
    if f is None or low_degree(f):
        assert g is not None
        second = _fit(_tree(g), span.low, span.high, eps)
        return None if f is None else second.refit(_function(f, span)), second
    first = _fit(_tree(f), span.low, span.high, eps)
    return first, None if g is None else first.refit(_function(g, span))


def _tree(curve: Curve) -> trees.Node:
    assert not isinstance(curve, JumpCurve)
    return curve


def _function(curve: Curve, span: Range) -> ScalarFunction:
    return Formula(_tree(curve), "z").scalar_function(span.low, span.high)


@lru_cache(maxsize=512)
def _fit(tree: trees.Node, low: float, high: float, eps: float) -> Interpolant:
    """A table that holds ``eps``, or the best there is where none does."""
    if not low < high:
        low, high = low - 2.0**-10, high + 2.0**-10
    function = Formula(tree, "z").scalar_function(low, high)
    if function.kinks_in(low, high):
        return _graded(function, low, high, eps)
    found = _uniform(function, low, high, eps)
    graded = _crowded(function, low, high, eps) if found.error > eps else None
    return found if graded is None or found.error <= graded.error else graded


def _uniform(function: ScalarFunction, low: float, high: float, eps: float) -> Interpolant:
    """Fitted values on as many cells as it takes, certified once."""
    best: tuple[Grid, float, Fit] | None = None
    before = math.inf
    for cells in tuning.PROGRAM_TABLES_TRIED:
        for sharpness, guards in tuning.PROGRAM_TABLES_FITS:
            grid = Grid(low, high, cells, guards)
            fit = fit_values(function, grid, sharpness)
            if best is None or fit.seen < best[2].seen:
                best = (grid, sharpness, fit)
        assert best is not None
        if best[2].seen <= max(eps / 2, _FLOOR * best[2].size):
            break
        usable = best[2].seen <= _WORST * best[2].size
        if cells >= _ENOUGH and usable and best[2].seen > _SLOW * before:
            break  # it may be singular beyond an end
        before = best[2].seen
    assert best is not None
    grid, sharpness, fit = best
    return _proven(Interpolant(grid, sharpness, fit.values, "fitted", math.inf, function), eps)


def _proven(draft: Interpolant, eps: float) -> Interpolant:
    assert draft.function is not None
    found = posterior_error(draft, draft.function, eps)
    return replace(draft, error=found.error, assumptions=found.assumptions, kind=found.kind)


def _crowded(function: ScalarFunction, low: float, high: float, eps: float) -> Interpolant | None:
    """Entries that crowd where the curve bends most: between the ends, or at the steeper one."""
    bend = _bend(function, low, high)
    kink = _beside_an_end(function, low, high) if bend is None else bend
    try:
        return _graded(replace(function, kinks=(kink,)), low, high, eps)
    except IceformError:
        return None


def _bend(function: ScalarFunction, low: float, high: float) -> float | None:
    """Where |f''| is largest, if that is not at an end: 0 for sqrt(z^2 + delta)."""
    left, right = low, high
    for _ in range(_LOOKS):
        points = torch.linspace(left, right, tuning.RANGES_CELLS + 1, dtype=torch.float64)
        found = function.derivatives(points, 2)
        if found is None:
            return None
        place, step = float(points[found[2].abs().argmax()]), (right - left) / tuning.RANGES_CELLS
        left, right = max(low, place - 2 * step), min(high, place + 2 * step)
    return place if low + step < place < high - step else None


def _beside_an_end(function: ScalarFunction, low: float, high: float) -> float:
    """Near the end where the curve is steeper: it may be singular beyond.

    |f'/f''| says how far beyond: z for log z, z/2 for 1/z, 2 z for a root.
    """
    (left, before), (right, after) = (_steep(function, end, high - low) for end in (low, high))
    inward = _INWARD * min(before if left >= right else after, high - low)
    return low + inward if left >= right else high - inward


def _steep(function: ScalarFunction, end: float, length: float) -> tuple[float, float]:
    """|f'| and |f'/f''| at an end; infinity and next to nothing where it is singular there."""
    found = function.derivatives(torch.tensor([end], dtype=torch.float64), 2)
    if found is None:
        return math.inf, 2.0**-30 * length
    slope, bend = (abs(float(d)) for d in found[1:])
    return slope, slope / bend if bend > 0 else math.inf


def _graded(function: ScalarFunction, low: float, high: float, eps: float) -> Interpolant:
    """Fitted values on entries that crowd at the kinks of a curve, certified once."""
    kinks = function.kinks_in(low, high)
    best: tuple[GradedGrid, Fit] | None = None
    for cells in tuning.PROGRAM_TABLES_TRIED_GRADED:
        before = math.inf if best is None else best[1].seen
        for growth, share in tuning.PROGRAM_TABLES_GRADINGS:
            coarsest = (high - low) / (share * cells)
            grid = GradedGrid(low, high, cells, _GRADED_GUARDS, kinks, growth, coarsest)
            if grid.spacing <= _APART * max(abs(low), abs(high)):
                continue
            fit = fit_values(function, grid, _GRADED_SHARPNESS)
            if best is None or fit.seen < min(best[1].seen, before / 2):
                best = (grid, fit)
        if best is not None and (best[1].seen <= eps / 2 or best[1].seen > before / 2):
            break
    if best is None:
        raise PrecisionError(
            f"f ({function.name}) has too many kinks for "
            f"{tuning.PROGRAM_TABLES_TRIED_GRADED[-1]} cells"
        )
    grid, fit = best
    draft = Interpolant(grid, _GRADED_SHARPNESS, fit.values, "graded", math.inf, function)
    return _proven(draft, eps)
