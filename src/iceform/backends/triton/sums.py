"""``weighted_sums``: softmax-weighted sums of several columns of values in one walk over the keys.

Products of q and k are exact in float32 and summed there; exponentials are base two with a running
maximum over blocks of `BLOCK` keys; probabilities are rounded to the format of the columns before
the second product, not before they are added up.
"""

from __future__ import annotations

import math

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.backends.triton.support import interpreted

__all__ = ["BLOCK", "MOST_COLUMNS", "WIDEST", "weighted_sums"]

BLOCK = 64  # keys in a block
MOST_COLUMNS = 512
WIDEST = 128  # of a query
_ROWS, _WARPS, _STAGES = 128, 8, 3  # as measured on an H200
_LEAST = 16  # the narrowest side of a product


@triton.jit  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, c_ptr, w_ptr, out_ptr, mean_ptr, top_ptr,
    rows, queries, keys, dim, values, diagonal, scale,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One head's block of queries: Σ p c_j for all columns c, Σ p w_j, max s (base two)."""
    head = tl.program_id(1).to(tl.int64)
    at_m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at_d, at_v = tl.arange(0, DIM), tl.arange(0, VALUES)
    in_m, in_d, in_v = at_m < rows, at_d < dim, at_v < values
    last = at_m % queries + diagonal
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, tl.max(tl.where(in_m, last, -1)) + 1)
    q = tl.load(
        q_ptr + head * rows * dim + at_m[:, None] * dim + at_d[None, :],
        mask=in_m[:, None] & in_d[None, :], other=0.0,
    )  # fmt: skip
    if WIDEN:
        q = q.to(tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, VALUES), tl.float32)
    own_k = k_ptr + head * keys * dim
    own_c = c_ptr + head * keys * values
    for block in range(BLOCKS if BLOCKS > 0 else tl.cdiv(end, KEYS)):
        at_n = block * KEYS + tl.arange(0, KEYS)
        in_n = at_n < keys
        k = tl.load(
            own_k + at_n[None, :] * dim + at_d[:, None],
            mask=in_n[None, :] & in_d[:, None], other=0.0,
        )  # fmt: skip
        if WIDEN:
            k = k.to(tl.float32)
        s = tl.dot(q, k, input_precision="ieee") * scale
        seen = in_n[None, :]
        if CAUSAL:
            seen = seen & (at_n[None, :] <= last[:, None])
        s = tl.where(seen, s, float("-inf"))
        moved = tl.maximum(top, tl.max(s, 1))
        base = tl.where(moved == float("-inf"), 0.0, moved)
        factor = tl.exp2(top - base)
        p = tl.exp2(s - base[:, None])
        w = tl.load(w_ptr + head * keys + at_n, mask=in_n, other=0.0)
        total = total * factor + tl.sum(p, 1)
        mean = mean * factor + tl.sum(p * w[None, :], 1)
        top = moved
        low = p.to(c_ptr.dtype.element_ty)
        if WIDEN:
            low = low.to(tl.float32)
        c = tl.load(
            own_c + at_n[:, None] * values + at_v[None, :],
            mask=in_n[:, None] & in_v[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            c = c.to(tl.float32)
        sums = tl.dot(low, c, sums * factor[:, None], input_precision="ieee")
    part = tl.where(total > 0, total, 1.0)
    out = out_ptr + head * rows * values + at_m[:, None] * values + at_v[None, :]
    tl.store(out, sums / part[:, None], mask=in_m[:, None] & in_v[None, :])
    tl.store(mean_ptr + head * rows + at_m, mean / part, mask=in_m)
    tl.store(top_ptr + head * rows + at_m, top, mask=in_m)


def weighted_sums(
    q: Tensor, k: Tensor, columns: Tensor, weights: Tensor,
    *, scale: float, queries: int, diagonal: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Sums of columns (heads, rows, columns) and of weights, and the largest logit of each row.

    q is (heads, rows, dim), k (heads, keys, dim), columns (heads, keys, columns), all of one
    half-precision dtype and contiguous; weights (heads, keys) are float32. Row i sees the keys up
    to i mod ``queries`` + ``diagonal``; None: all. A row that sees nothing has -inf and zeros.
    """
    (heads, rows, dim), keys, values = q.shape, k.shape[1], columns.shape[-1]
    out = q.new_empty((heads, rows, values), dtype=torch.float32)
    mean, top = (q.new_empty((heads, rows), dtype=torch.float32) for _ in range(2))
    _sums_kernel[(triton.cdiv(rows, _ROWS), heads)](
        q, k, columns, weights, out, mean, top,
        rows, queries, keys, dim, values, 0 if diagonal is None else diagonal,
        scale * math.log2(math.e),
        CAUSAL=diagonal is not None,
        DIM=max(_LEAST, triton.next_power_of_2(dim)),
        VALUES=max(_LEAST, triton.next_power_of_2(values)),
        ROWS=_ROWS, KEYS=BLOCK, WIDEN=interpreted(),
        BLOCKS=triton.cdiv(keys, BLOCK) if interpreted() else 0, num_warps=_WARPS,
        num_stages=_STAGES,
    )  # fmt: skip
    return out, mean, top * math.log(2)
