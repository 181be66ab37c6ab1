"""``extremes``: the largest entry and the longest row of samples, in one reading."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.run.triton.support import TILE, multiprocessors, wide_dtype
from iceform.validation import written_out

_WIDEST = TILE // 4  # features read at once
_WARPS = 4
_PROGRAMS = 16  # per multiprocessor: enough under way to keep the memory busy


@triton.jit  # type: ignore[untyped-decorator]
def _extremes_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, rows,
    DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Each program's max |x| and max ||x||^2.

    A maximum may pass over what is not a number; a sum of squares does not, so the second tells.
    """
    pid, programs = tl.program_id(0), tl.num_programs(0)
    at_d = tl.arange(0, WIDE)
    largest = tl.zeros((ROWS,), DTYPE)
    longest = tl.zeros((ROWS,), DTYPE)
    tile = pid
    while tile < tl.cdiv(rows, ROWS):
        at_m = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        here = x_ptr + at_m[:, None] * DIM + at_d[None, :]
        squares = tl.zeros((ROWS,), DTYPE)
        for start in range(0, DIM, WIDE):
            inside = (at_m < rows)[:, None] & (start + at_d < DIM)[None, :]
            x = tl.load(here + start, mask=inside, other=0.0).to(DTYPE)
            largest = tl.maximum(largest, tl.max(tl.abs(x), 1))
            squares += tl.sum(x * x, 1)
        longest = tl.maximum(longest, squares, propagate_nan=tl.PropagateNan.ALL)
        tile += programs
    whole = tl.min((longest >= 0).to(tl.int32), 0) > 0
    tl.store(out_ptr + 2 * pid, tl.max(largest, 0))
    tl.store(out_ptr + 2 * pid + 1, tl.where(whole, tl.max(longest, 0), float("nan")))


def extremes(x: Tensor) -> Tensor:
    """(max |x|, max ||x||_2 over rows) in float64 on the device; not a number where x has any."""
    rows, dim = x.numel() // x.shape[-1], x.shape[-1]
    wide = min(_WIDEST, triton.next_power_of_2(dim))
    tile = max(1, TILE // wide)
    programs = min(triton.cdiv(rows, tile), _PROGRAMS * multiprocessors(x.device))
    dtype = wide_dtype(x.dtype)
    found = torch.empty(programs, 2, dtype=dtype, device=x.device)
    _extremes_kernel[(programs,)](
        written_out(x), found, rows, DIM=dim, WIDE=wide, ROWS=tile,
        DTYPE=tl.float64 if dtype == torch.float64 else tl.float32, num_warps=_WARPS,
    )  # fmt: skip
    largest, squares = found.double().amax(0).unbind()
    longest = squares.sqrt()
    return torch.stack([torch.where(longest.isnan(), longest, largest), longest])
