"""Look-up tables that grow with the data: the same function on [-R, R] for R = 1, 2, 4, ...

A table lives in the prompt, so a wider one is another prompt to the same frozen weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from iceform.errors import BoundError
from iceform.functions import Loss, ScalarFunction
from iceform.interpolation import Interpolant, raised
from iceform.machine.running import Running
from iceform.machine.stream import Stream

__all__ = ["CLIP", "CLIP_SQUARED", "IDENTITY", "Table", "read_line", "table_of"]

_WIDEST = 2.0**40  # residuals beyond this are a sign of divergence, not of data
_NARROWEST = 2.0**-6
# A function that bends within some width gets tokens that crowd there on ranges wider than this.
_WIDE = 16.0


@dataclass(frozen=True, eq=False)
class Table:
    """A scalar function, tabulated as wide as it is needed.

    Parameters
    ----------
    function
        f.
    tokens
        Grid tokens of a table; None takes as many as a straight line needs (about 25).
    bend
        Where f bends, and within what width; None where it has kinks or bends everywhere.
    raised
        A table and what f is above its function: the same tokens, every value moved by as much.
    """

    function: ScalarFunction
    tokens: int | None
    bend: tuple[float, float] | None = None
    raised: tuple[Table, float] | None = None

    def on(self, reach: float) -> Interpolant:
        """The table on [-R, R], R being the least power of two that covers ``reach``."""
        if not reach <= _WIDEST:
            raise BoundError(
                f"a residual reaches {reach:.3g}, beyond {_WIDEST:.3g}: the iteration diverges or "
                "the data are not scaled"
            )
        return _tabulate(self, 2.0 ** math.ceil(math.log2(max(reach, _NARROWEST))))


@lru_cache(maxsize=256)
def _tabulate(table: Table, reach: float) -> Interpolant:
    f = table.function
    if table.tokens is None:
        return Interpolant.identity(-reach, reach)
    if table.bend is not None and reach > _WIDE * table.bend[1]:
        f = replace(f, kinks=(table.bend[0],))
    if table.raised is not None:
        below, by = table.raised
        return raised(below.on(reach), by, f)
    return Interpolant.fit(f, -reach, reach, tokens=table.tokens)


IDENTITY = Table(ScalarFunction(lambda z: z, "identity", affine=(1.0, 0.0)), None)


def read_line(machine: Running | Stream, z: Tensor) -> Tensor:
    """Z itself, however large, read from the frozen machine's table of a line.

    A line through 0 may be read in any unit: powers of two leave the digits as they are.
    """
    reach = float(z.abs().max()) if z.numel() else 0.0
    if not math.isfinite(reach):
        raise BoundError(
            f"a prediction is {reach}: the samples hold NaN or infinity, or are so large that "
            "products overflow; fill or remove what is missing, and scale the rest down"
        )
    if reach == 0:
        return z
    unit = 2.0 ** math.ceil(math.log2(reach))
    return machine.look_up(IDENTITY.on(1.0), z / unit) * unit


# clip(z, -1, 1): Huber's derivative, and what a soft threshold takes away from z.
CLIP = Table(ScalarFunction(lambda z: z.clamp(-1, 1), "clip", (-1.0, 1.0)), 129)
# Its square, whose mean says how large residuals are.
CLIP_SQUARED = Table(
    ScalarFunction(lambda z: z.clamp(-1, 1).square(), "clip squared", (-1.0, 1.0)), 129
)


@lru_cache(maxsize=64)
def table_of(loss: Loss | Callable[[Tensor], Tensor], tokens: int) -> Table:
    """The table of a loss's derivative, or of a function."""
    if isinstance(loss, Loss):
        derivative = loss.derivative
        wanted = None if derivative.affine == (1.0, 0.0) else tokens
        below = None if loss.raised is None else (table_of(loss.raised[0], tokens), loss.raised[1])
        return Table(derivative, wanted, loss.curvature.corner, below)
    return Table(ScalarFunction(loss, getattr(loss, "__name__", "f")), tokens)
