"""``project``: a matrix product whose epilogue is the look-up.

Keys, queries and values of a head are written once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.run.triton.look_up import load_constants, look_up
from iceform.run.triton.support import LANES, interpreted, wide_dtype
from iceform.run.triton.tables import table_of
from iceform.tables import Interpolant
from iceform.validation import written_out

_ROWS, _OUTPUTS, _INNER = LANES, LANES // 2, LANES // 2  # of a tile


@triton.jit  # type: ignore[untyped-decorator]
def _project_kernel(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, out_ptr, rows, outputs,
    numbers, ratios, biases, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    DIM: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """out[p] = A(x w[p]') for every part p, a tile of (ROWS, OUTPUTS) at a time.

    Tiles of the same rows are neighbours in time, so that x is read from memory once.
    """
    across = tl.cdiv(outputs, OUTPUTS)
    part, column = tl.program_id(0) // across, tl.program_id(0) % across
    at_m = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at_o = column * OUTPUTS + tl.arange(0, OUTPUTS)
    in_m, in_o = at_m < rows, at_o < outputs
    wide = numbers.dtype.element_ty
    own = w_ptr + part * outputs * DIM
    z = tl.zeros((ROWS, OUTPUTS), wide)
    for start in range(0, DIM, INNER):
        at_d = start + tl.arange(0, INNER)
        in_d = at_d < DIM
        x = tl.load(
            x_ptr + at_m[:, None] * DIM + at_d[None, :],
            mask=in_m[:, None] & in_d[None, :], other=0.0,
        )  # fmt: skip
        w = tl.load(
            own + at_o[None, :] * DIM + at_d[:, None],
            mask=in_o[None, :] & in_d[:, None], other=0.0,
        )  # fmt: skip
        if WIDEN:
            x, w = x.to(wide), w.to(wide)
        z = tl.dot(x, w, z, input_precision="ieee", out_dtype=wide)
    inside = in_m[:, None] & in_o[None, :]
    constants = load_constants(numbers, ratios, KIND, HALF)
    z = tl.where(inside, z, constants[0])
    looked, _ = look_up(z, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, False)
    place = out_ptr + part.to(tl.int64) * rows * outputs + at_m[:, None] * outputs + at_o[None, :]
    tl.store(place, looked.to(out_ptr.dtype.element_ty), mask=inside)


def project(x: Tensor, weights: Tensor, it: Interpolant) -> Tensor:
    """A(x weight') of several weights, without autograd.

    x is (..., d), weights are (parts, outputs, d); the result is (parts, ..., outputs).
    """
    rows, dim = x.numel() // x.shape[-1], x.shape[-1]
    parts, outputs = weights.shape[:2]
    x, weights = written_out(x), written_out(weights)
    table = table_of(it, wide_dtype(x.dtype), x.device, x.dtype)
    out = torch.empty(parts, *x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    grid = (parts * triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, _ROWS))
    _project_kernel[grid](
        x, weights, out, rows, outputs,
        table.numbers, table.ratios, table.biases, table.values, table.tokens,
        KIND=table.kind, HALF=table.half, BOUNDED=table.bounded,
        DIM=dim, ROWS=_ROWS, OUTPUTS=_OUTPUTS, INNER=_INNER,
        WIDEN=interpreted(),  # the interpreter multiplies no bfloat16
        num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
