r"""Look-ups by softmax over a table's entries, for many arguments at once.

Few arguments are looked up by the softmax over all entries. For many, equally spaced keys are
recognised by their own numbers: with d the difference of neighbouring slopes and -2c the second
difference of biases, entries sit at :math:`L_k = -(b_{k+1} - b_{k-1})/(s_{k+1} - s_{k-1})`, at a
distance of h = 2c/d. If slopes and biases are those of such a grid, but for a common line and their
last digits, the table is a :class:`~iceform.Interpolant` and is looked up in a window around each
argument, by the certified code of :mod:`iceform.backends`; and if its values lie on a parabola,
:class:`Quadratic` says what it is. All of this is read off the entries: change one value, and the
table is looked up entry by entry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.backends import primitives
from iceform.interpolation import Grid, Interpolant
from iceform.interpolation.bounds import lattice_sum, linear_reproduction, mass_beyond, nome

__all__ = [
    "CLOSED_UNITS",
    "GRID_UNITS",
    "Quadratic",
    "TableLookup",
    "look_up",
    "quadratic",
    "uniform",
]

_CHUNK = 1 << 20  # weights held at once: 8 MiB of float64
_MANY = 1 << 14  # arguments from which a window pays
CLOSED_UNITS = 16.0  # in the last place, by which a table may miss a parabola
GRID_UNITS = 8.0  # in the last place, by which keys may miss an even grid


def look_up(
    z: Float[Tensor, "*b h"],
    slopes: Float[Tensor, "k h"],
    biases: Float[Tensor, "k h"],
    values: Float[Tensor, "k h"],
) -> Float[Tensor, "*b h"]:
    """sum_k softmax_k(slopes z + biases) values, for every argument with the keys of its head."""
    flat = z.reshape(-1, z.shape[-1])
    rows = max(1, _CHUNK // slopes.numel())
    each = [_softmax(part, slopes, biases, values) for part in flat.split(rows)]
    return (each[0] if len(each) == 1 else torch.cat(each)).reshape(z.shape)


def _softmax(z: Tensor, slopes: Tensor, biases: Tensor, values: Tensor) -> Tensor:
    weights = torch.softmax(z[:, None, :] * slopes + biases, 1)
    return (weights * values).sum(1)


class TableLookup:
    """One table as the heads of a block see it: keys and values, shape (entries, heads).

    Heads with equal columns share a way: a quadratic, a window, or the softmax over all entries.
    ``outside`` is how far an argument has gone beyond where a quadratic is the table.
    """

    def __init__(
        self, slopes: Tensor, biases: Tensor, values: Tensor, *, closed: bool = True
    ) -> None:
        self.columns = slopes, biases, values
        self.outside = values.new_zeros(())
        self.ways: list[tuple[list[int], Interpolant, Quadratic | None]] | None = []
        for heads in _equal(torch.cat([slopes, biases, values])):
            table = uniform(*(column[:, heads[0]] for column in self.columns))
            if table is None:
                self.ways = None
                break
            unit = torch.finfo(values.dtype).eps / 2
            self.ways.append((heads, table, quadratic(table, unit) if closed else None))

    def __call__(self, z: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        """Look every argument up."""
        if self.ways is None or z.numel() < _MANY:
            return look_up(z, *self.columns)
        if len(self.ways) == 1:
            return self._looked(z, *self.ways[0][1:])
        out = torch.empty_like(z)
        for heads, table, curve in self.ways:
            out[..., heads] = self._looked(z[..., heads].contiguous(), table, curve)
        return out

    def pair(self, plus: Tensor, minus: Tensor) -> Tensor | None:
        """F(plus) - G(minus) where heads take turns at them; None where they do not."""
        if self.ways is None or len(self.ways) != 2 or plus.numel() < _MANY:
            return None
        heads = self.columns[0].shape[1]
        if [way[0] for way in self.ways] != [list(range(k, heads, 2)) for k in range(2)]:
            return None
        first, second = (way[1:] for way in self.ways)
        return self._looked(plus, *first).add_(self._looked(minus, *second))

    def _looked(self, z: Tensor, table: Interpolant, curve: Quadratic | None) -> Tensor:
        if curve is None:
            return primitives.interpolate(z, table)
        low, high = z.aminmax()
        beyond = torch.maximum(high - curve.high, curve.low - low)
        self.outside = torch.maximum(self.outside, beyond)
        return curve(z)


@dataclass(frozen=True)
class Quadratic:
    r"""A table whose values lie on a parabola, where its softmax average is that parabola.

    On a lattice of spacing h and sharpness c the average of k - u, with u = z/h, is 0 and that of
    (k - u)^2 is 1/(2c), up to aliasing, b_1 and b_2, and to what is missing beyond the ends:

    .. math:: |E (k - u)^2 - \\tfrac{1}{2c}| \\le b_2 = \\frac{2 \\pi^2}{c^2}
        \\frac{\\sum_m m^2 q^{m^2}}{1 - 2 q}, \\qquad q = e^{-\\pi^2/c},

    minus the logarithmic derivative in c of the theta function. So values a L^2 + b L + d average
    to a z^2 + b z + d + a h^2/(2c), within :func:`quadratic`'s bound.
    """

    coefficients: tuple[float, float, float]
    low: float
    high: float

    def __call__(self, z: Tensor) -> Tensor:
        """The parabola."""
        a, b, d = self.coefficients
        return (z * a).add_(b).mul_(z).add_(d) if a else (z * b).add_(d)


def quadratic(table: Interpolant, unit: float) -> Quadratic | None:
    """The parabola that a table is, if to a few units in the last place it is one."""
    grid, c = table.grid, table.sharpness
    assert isinstance(grid, Grid)
    guards = _guards(c, unit)
    cells = grid.cells - 2 * guards
    if cells < 1:
        return None
    h, weights = grid.spacing, _weights(grid, c, cells)
    (a, b, d), off = _parabola(grid.offsets, table.values, weights)
    reach = cells * h / 2
    first = linear_reproduction(c, guards, cells) * h
    error = off + abs(a) * (2 * reach * first + _bend(c, guards, cells) * h * h) + abs(b) * first
    largest = abs(a) * reach**2 + abs(b) * reach + abs(d)
    if not error <= CLOSED_UNITS * unit * largest:
        return None
    m = grid.center
    shifted = (a, b - 2 * a * m, d - b * m + a * m * m + a * h * h / (2 * c))
    return Quadratic(shifted, m - reach, m + reach)


def _weights(grid: Grid, c: float, cells: int) -> Tensor:
    """The most that every entry can weigh for arguments in the middle cells."""
    beyond = (grid.offsets.abs() / grid.spacing - cells / 2).clamp(min=0)
    return (torch.exp(-c * beyond.square()) / lattice_sum(c)).masked_fill(beyond == 0, 1.0)


def _parabola(
    x: Tensor, values: Tensor, weights: Tensor
) -> tuple[tuple[float, float, float], float]:
    """Coefficients of the parabola nearest to values, and how far an average can be off it."""
    size = float(x.abs().max())
    basis = torch.stack([(x / size) ** p for p in (2, 1, 0)], -1)
    root = weights.sqrt()[:, None]
    fitted = torch.linalg.lstsq(root * basis, root * values[:, None]).solution
    left = (basis @ fitted - values[:, None]).abs()[:, 0]
    inner = weights == 1
    off = float(left[inner].max()) + float((left * weights)[~inner].sum())
    a, b, d = (float(v) / size**p for v, p in zip(fitted[:, 0], (2, 1, 0), strict=True))
    return (a, b, d), off


def _guards(c: float, unit: float) -> int:
    """Entries beyond an argument after which what is missing is below rounding."""
    guards = 1
    while _missing(c, guards) > unit:
        guards += 1
    return guards


def _missing(c: float, guards: int) -> float:
    """Second moment beyond both ends, in cells: a geometric series from the first missing."""
    outer = guards + 1.0
    ratio = math.exp(-2 * c * outer) * (1 + 1 / outer) ** 2
    first = outer**2 * math.exp(-c * outer**2)
    return 2 * first / (1 - ratio) / lattice_sum(c) if ratio < 1 else math.inf


def _bend(c: float, guards: int, cells: int) -> float:
    """How far E (k - u)^2 is from 1/(2c): aliasing, what is missing of it, and of the weights."""
    q = nome(c)
    alias = 2 * math.pi**2 / c**2 * math.fsum(m * m * q ** (m * m) for m in range(1, 9))
    mass = mass_beyond(c, guards, cells)
    return (alias / (1 - 2 * q) + _missing(c, guards) + mass / c) / (1 - mass)


def uniform(
    slopes: Float[Tensor, "k"], biases: Float[Tensor, "k"], values: Float[Tensor, "k"]
) -> Interpolant | None:
    """The table on an even grid that these keys are, or None."""
    s, b, v = (t.detach().double().cpu() for t in (slopes, biases, values))
    if len(s) < 3:
        return None
    step, bend = float(s[-1] - s[0]) / (len(s) - 1), float((b[2:] - 2 * b[1:-1] + b[:-2]).mean())
    if not (step > 0 and bend < 0):
        return None
    c = -bend / 2
    nodes = -(b[2:] - b[:-2]) / (s[2:] - s[:-2])
    h, middle = 2 * c / step, float(nodes.mean())
    half = (len(s) - 1) / 2
    grid = Grid(middle - half * h, middle + half * h, len(s) - 1)
    unit = torch.finfo(slopes.dtype).eps / 2
    return Interpolant(grid, c, v, "fitted", 0.0) if _same(grid, c, s, b, unit) else None


def _same(grid: Grid, c: float, s: Tensor, b: Tensor, unit: float) -> bool:
    """Whether keys are the grid's, but for a line that all have in common and their last digits."""
    keys = grid.keys(c)
    # Keys of t = z - center, as keys of z.
    off_slope = s - keys.slopes
    off_bias = b - (keys.biases - keys.slopes * grid.center)
    logits = float(b.abs().max() + s.abs().max() * max(abs(grid.low), abs(grid.high)))
    allowed = GRID_UNITS * unit
    return bool(
        ((off_slope - off_slope.mean()).abs() <= allowed * s.abs().max()).all()
        and ((off_bias - off_bias.mean()).abs() <= allowed * logits).all()
    )


def _equal(columns: Tensor) -> list[list[int]]:
    """Columns in groups of equal ones."""
    _, numbers = columns.unique(dim=1, return_inverse=True)
    found: dict[int, list[int]] = {}
    for head, number in enumerate(numbers.tolist()):
        found.setdefault(number, []).append(head)
    return sorted(found.values())
