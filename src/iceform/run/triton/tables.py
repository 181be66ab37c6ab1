"""A look-up table as kernels read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from iceform.run.windowed import window_of
from iceform.tables import Grid, Interpolant

LINE, TABLE, GRADED = range(3)  # how values are found: from j, from a window, from all tokens


@dataclass(frozen=True)
class DeviceTable:
    """What kernels read of an interpolant."""

    kind: int
    half: int
    bounded: bool
    beyond: int  # the least j whose token a window around z in range may not have, 0 if none
    tokens: int
    numbers: Tensor  # center, cells per unit, middle, last, sharpness, slope, value
    ratios: Tensor  # c_j = e^{-c j (j - 1)} for j = 1 .. J, or the slopes of graded keys
    biases: Tensor  # the biases of graded keys
    values: Tensor


@lru_cache(maxsize=512)
def table_of(
    it: Interpolant, dtype: torch.dtype, device: torch.device, out: torch.dtype
) -> DeviceTable:
    """The table in the dtype of the computation, its window as wide as the result can tell."""
    window = window_of(it, out)
    if window is not None:
        numbers, _, values = window.operands(dtype, device)
        ratios = window.ratios.cumprod(0).to(device=device, dtype=dtype)
        kind = LINE if window.affine else TABLE
        assert isinstance(it.grid, Grid)
        beyond = it.grid.guards + 1 if window.bounded else 0
        return DeviceTable(
            kind, window.half, window.bounded, beyond, it.tokens, numbers, ratios, ratios, values
        )
    center = torch.full((7,), it.grid.center, dtype=torch.float64)
    parts = (center, it.keys.slopes, it.keys.biases, it.values)
    numbers, slopes, biases, values = (
        t.detach().to(device=device, dtype=dtype).contiguous() for t in parts
    )
    return DeviceTable(GRADED, 0, False, 0, it.tokens, numbers, slopes, biases, values)
