r"""Look-ups by softmax over a table's entries, for many arguments at once.

Few arguments are looked up by the softmax over all entries. For many, equally spaced keys are
recognised by their own numbers: with d the difference of neighbouring slopes and -2c the second
difference of biases, entries sit at :math:`L_k = -(b_{k+1} - b_{k-1})/(s_{k+1} - s_{k-1})`, at a
distance of h = 2c/d. If slopes and biases are those of such a grid, but for a common line and their
last digits, the table is a :class:`~iceform.Interpolant` and is looked up in a window around each
argument, by the certified code of :mod:`iceform.backends`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.backends import primitives
from iceform.interpolation import Grid, Interpolant

__all__ = ["GRID_UNITS", "TableLookup", "look_up", "uniform"]

_CHUNK = 1 << 20  # weights held at once: 8 MiB of float64
_MANY = 1 << 14  # arguments from which a window pays
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


@dataclass(frozen=True, eq=False)
class TableLookup:
    """One table as the heads of a block see it: keys and values, shape (entries, heads).

    ``windows`` has for every group of heads with equal columns the table they share, or is None
    where one of them is not on an even grid.
    """

    slopes: Tensor
    biases: Tensor
    values: Tensor
    windows: tuple[tuple[list[int], Interpolant], ...] | None

    @classmethod
    def of(cls, slopes: Tensor, biases: Tensor, values: Tensor) -> TableLookup:
        """Look at the columns once."""
        found = []
        for heads in _equal(torch.cat([slopes, biases, values])):
            first = heads[0]
            table = uniform(slopes[:, first], biases[:, first], values[:, first])
            if table is None:
                return cls(slopes, biases, values, None)
            found.append((heads, table))
        return cls(slopes, biases, values, tuple(found))

    def __call__(self, z: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        """Look every argument up."""
        if self.windows is None or z.numel() < _MANY:
            return look_up(z, self.slopes, self.biases, self.values)
        if len(self.windows) == 1:
            return primitives.interpolate(z, self.windows[0][1])
        out = torch.empty_like(z)
        for heads, table in self.windows:
            out[..., heads] = primitives.interpolate(z[..., heads].contiguous(), table)
        return out


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
    return list(found.values())
