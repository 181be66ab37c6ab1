r"""Look-up tables as weights hold them, read back.

A head whose logits are :math:`s_k z + b_k` and whose values are :math:`v_k` is a look-up table.
Where its keys are those of a table that the network says was written, to the rounding of the
weights' dtype, and its values are the same bits, it is that table. Otherwise it is read as it
stands: on equally spaced tokens

.. math:: s_k = \sigma + 2 \frac{c}{h} p_k, \qquad b_k = b + (s_0 - s_k) m - c\, p_k^2

with :math:`p_k = k - (N-1)/2`, from which c, h and the centre m follow (a softmax does not see
sigma and b); any other keys are taken one by one.

Tokens that pad a layer have slope and value 0 and a bias so low that they do not count. Two tokens
in the middle of the table have opposite slopes, so one of them has at least the mean of their
biases as its logit, whatever z is: padding that lies :math:`\log(n 2^8/u)` below that adds
:math:`2^{-8}` units of rounding at most, and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from iceform.interpolation import GivenGrid, Grid, Interpolant
from iceform.validation import unit_roundoff

__all__ = ["EVEN_UNITS", "even_grid", "read_table", "rebuild"]

_KEY_UNITS = 4  # roundings of a key on its way into the weights and out: two factors, two products
EVEN_UNITS = 8  # of the largest key, that equally spaced tokens may be off
_LEAK_BITS = 8  # what padding may weigh is this many bits below rounding


def read_table(
    slopes: Tensor,
    biases: Tensor,
    values: Tensor,
    written: Sequence[Interpolant],
    dtype: torch.dtype,
) -> Interpolant:
    """The table of logits s z + b, from keys and values as weights of ``dtype`` hold them."""
    unit = unit_roundoff(dtype)
    kept = len(slopes) - _padding(slopes, biases, values, unit)
    slopes, biases, values = slopes[:kept], biases[:kept], values[:kept]
    for table in written:
        if _holds(table, slopes, biases, values, dtype):
            return table
    return rebuild(slopes, biases, values, unit)


def _padding(slopes: Tensor, biases: Tensor, values: Tensor, unit: float) -> int:
    """How many of the last tokens can be left out."""
    idle = (slopes == 0) & (values == 0)
    count = int(idle.flip(0).long().cumprod(0).sum())
    while count and count < len(slopes):
        kept = len(slopes) - count
        left, right = (kept - 1) // 2, kept // 2
        # Weights of float32 hold a margin to rounding.
        needed = (math.log(count) + _LEAK_BITS * math.log(2) - math.log(unit)) * (1 - 2 * unit)
        floor = 0.5 * float(biases[left] + biases[right]) - needed
        if float(slopes[left] + slopes[right]) == 0 and bool((biases[kept:] <= floor).all()):
            return count
        count -= 1
    return 0


def _holds(
    table: Interpolant, slopes: Tensor, biases: Tensor, values: Tensor, dtype: torch.dtype
) -> bool:
    if table.tokens != len(slopes) or not torch.equal(values, table.values.to(dtype).double()):
        return False
    keys, allowed = table.keys, _KEY_UNITS * unit_roundoff(dtype)
    moved = keys.slopes * table.grid.center
    return bool(
        ((slopes - keys.slopes).abs() <= allowed * keys.slopes.abs()).all()
        and (
            (biases - (keys.biases - moved)).abs() <= allowed * (keys.biases.abs() + moved.abs())
        ).all()
    )


def rebuild(
    slopes: Tensor, biases: Tensor, values: Tensor, unit: float, center: float = 0.0
) -> Interpolant:
    """Any keys, of logits s (z - center) + b: equally spaced tokens where they are that."""
    grid = even_grid(slopes, biases, unit, center)
    if grid is not None:
        return Interpolant(grid[0], grid[1], values, "given", math.inf)
    given = GivenGrid(-math.inf, math.inf, center, slopes, biases)
    return Interpolant(given, 0.0, values, "given", math.inf)  # type: ignore[arg-type]


def even_grid(
    slopes: Tensor, biases: Tensor, unit: float, center: float = 0.0
) -> tuple[Grid, float] | None:
    """Equally spaced tokens and their sharpness, if the keys are theirs to rounding.

    Sharpness and spacing come from the ends and the middle, which is where rounding moves them
    least: by less than a unit, where second differences would be off by the number of tokens.
    """
    last = len(slopes) - 1
    if last < 2:
        return None
    places = torch.arange(last + 1, dtype=torch.float64) - 0.5 * last
    half, inner = 0.5 * last, 0.5 * (last % 2)
    middle = 0.5 * float(biases[last // 2] + biases[(last + 1) // 2])
    sharpness = (middle - 0.5 * float(biases[0] + biases[-1])) / (half**2 - inner**2)
    steep = float(slopes[-1] - slopes[0]) / last
    if not (sharpness > 0 and steep > 0):
        return None
    tilt = float(biases[-1] - biases[0]) / last
    base = 0.5 * float(slopes[0] + slopes[-1])
    even = base + steep * places
    curve = middle + tilt * places - sharpness * (places.square() - inner**2)
    allowed = EVEN_UNITS * unit
    if not bool(((slopes - even).abs() <= allowed * slopes.abs().max()).all()):
        return None
    if not bool(((biases - curve).abs() <= allowed * biases.abs().max()).all()):
        return None
    spacing, middle_at = 2 * sharpness / steep, center - tilt / steep
    grid = Grid(middle_at - half * spacing, middle_at + half * spacing, last)
    return grid, sharpness
