"""Proven tolerances: sums of the theorem in one walk over the keys, and the bound from them.

``weighted_sums``: softmax-weighted sums of several columns of values.
Products of q and k are exact in float32 and summed there; exponentials are base two with a running
maximum over blocks of `BLOCK` keys; probabilities are rounded to the format of the columns before
the second product, not before they are added up. ``finished``: the theorem's last lines, which are
linear in those sums, in float64.
"""

from __future__ import annotations

import math

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.backends.triton.support import interpreted

__all__ = ["BLOCK", "MOST_COLUMNS", "WIDEST", "finished", "weighted_sums"]

BLOCK = 64  # keys in a block
MOST_COLUMNS = 512
WIDEST = 128  # of a query
_ROWS, _WARPS, _STAGES = 128, 8, 3  # as measured on an H200
_IN_REGISTERS = 256  # columns whose sums of so many rows are kept in registers
_HALF = 2  # bytes of an entry
_SPARE = 4096  # bytes of shared memory that a compiler may want for itself
_FINISHED = 16  # rows that are finished at once
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
    wide = max(_LEAST, triton.next_power_of_2(dim)), max(_LEAST, triton.next_power_of_2(values))
    at_once, stages = _fitting(*wide, _shared(q.device))
    out = q.new_empty((heads, rows, values), dtype=torch.float32)
    mean, top = (q.new_empty((heads, rows), dtype=torch.float32) for _ in range(2))
    _sums_kernel[(triton.cdiv(rows, at_once), heads)](
        q, k, columns, weights, out, mean, top,
        rows, queries, keys, dim, values, 0 if diagonal is None else diagonal,
        scale * math.log2(math.e),
        CAUSAL=diagonal is not None,
        DIM=wide[0], VALUES=wide[1],
        ROWS=at_once, KEYS=BLOCK, WIDEN=interpreted(),
        BLOCKS=triton.cdiv(keys, BLOCK) if interpreted() else 0, num_warps=_WARPS,
        num_stages=stages,
    )  # fmt: skip
    return out, mean, top * math.log(2)


def _fitting(dim: int, values: int, room: float) -> tuple[int, int]:
    """Rows of a program and blocks of keys in flight that ``room`` bytes and registers hold."""
    rows = _ROWS if values <= _IN_REGISTERS else _ROWS // 2
    left = room - _HALF * rows * dim - _SPARE
    return rows, int(max(1, min(_STAGES, left // (_HALF * BLOCK * (dim + values)))))


def _shared(device: torch.device) -> float:
    """Bytes of shared memory that a program may ask for."""
    if device.type != "cuda":
        return math.inf
    found = torch.cuda.get_device_properties(device)
    return float(getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block))


@triton.jit  # type: ignore[untyped-decorator]
def _nth(at, n: tl.constexpr, step, inside):  # type: ignore[no-untyped-def]
    """The n-th of several tables of one size, in float64."""
    return tl.load(at + n * step, mask=inside, other=0.0).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def _finish_kernel(  # type: ignore[no-untyped-def]
    sums_ptr, top_ptr, by_ptr, of_ptr, out_ptr, rows, values, all_rows, p_unit, out_unit,
    VALUES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One head's block of rows: `rounded_bound` of the theorem, its sums at their largest."""
    head = tl.program_id(1).to(tl.int64)
    at_m, at_v = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, VALUES)
    in_m, in_v = at_m < rows, at_v < values
    seen = in_m[:, None] & in_v[None, :]
    # Numbers of a row, then of a column.
    at = by_ptr + head * rows + at_m
    under = _nth(at, 0, all_rows, in_m)[:, None]
    more = _nth(at, 1, all_rows, in_m)[:, None]
    unsure = _nth(at, 2, all_rows, in_m)[:, None]
    k = _nth(at, 3, all_rows, in_m)[:, None]
    longest = _nth(at, 4, all_rows, in_m)[:, None]
    by_k_away = _nth(at, 5, all_rows, in_m)[:, None]
    by_away = _nth(at, 6, all_rows, in_m)[:, None]
    by_size = _nth(at, 7, all_rows, in_m)[:, None]
    by_coarse = _nth(at, 8, all_rows, in_m)[:, None]
    by_output = _nth(at, 9, all_rows, in_m)[:, None]
    by_lost = _nth(at, 10, all_rows, in_m)[:, None]
    stray = _nth(at, 11, all_rows, in_m)[:, None]
    spilt = _nth(at, 12, all_rows, in_m)[:, None]
    drained = _nth(at, 13, all_rows, in_m)[:, None]
    own = _nth(at, 14, all_rows, in_m)[:, None]
    top = tl.load(top_ptr + head * rows + at_m, mask=in_m, other=0.0)[:, None]
    at = of_ptr + head * 5 * values + at_v
    centre = _nth(at, 0, values, in_v)[None, :]
    largest = _nth(at, 1, values, in_v)[None, :]
    rounds = _nth(at, 2, values, in_v)[None, :]
    spread = _nth(at, 3, values, in_v)[None, :]
    floor = _nth(at, 4, values, in_v)[None, :]
    at = sums_ptr + (head * rows + at_m[:, None]) * 4 * values + at_v[None, :]
    value = _nth(at, 0, values, seen)
    size = _nth(at, 1, values, seen) + under
    away = _nth(at, 2, values, seen) + under
    k_away = _nth(at, 3, values, seen) + under
    # Every sum at its largest; one of either sign is off by what underflows as it is.
    off_value = unsure * size + more * under
    off = tl.abs(value - centre) + tl.abs(centre) * 2.0**-52 + off_value
    output = tl.abs(value) + off_value
    size = more * size
    coarse = tl.minimum(p_unit * size + rounds, size)
    first = by_k_away * (off * k + longest * k_away) + by_away * (off + more * away)
    first += by_size * size + by_coarse * coarse + by_output * output
    first += by_lost * (1 + 2 * largest)
    hull = spread + stray * largest + spilt * tl.minimum(rounds, largest)
    hull += drained * (1 + 2 * largest)
    least = tl.where(first <= hull, first, hull)  # the second where the first is not a number
    bound = (least + out_unit * (least + output) + floor) * own
    bound = tl.where(bound <= float("inf"), bound, float("inf"))
    bound = tl.where(top == float("-inf"), 0.0, bound)
    tl.store(out_ptr + (head * rows + at_m[:, None]) * values + at_v[None, :], bound, mask=seen)


def finished(
    sums: Tensor, top: Tensor, by_row: list[Tensor], by_column: list[Tensor],
    *, probability_unit: float, output_unit: float,
) -> Tensor:  # fmt: skip
    """The bound (heads, rows, values) in float64, zero for rows that see nothing.

    ``by_row``: fifteen (heads, rows, 1) tensors in the order that the kernel reads them in, the
    theorem's factors among them; ``by_column``: five (heads, 1, values). Units are powers of 2.
    """
    heads, rows, values = *sums.shape[:2], sums.shape[-1] // 4
    row = torch.stack([x.expand(heads, rows, 1) for x in by_row])
    column = torch.stack(by_column, 1)
    out = sums.new_empty((heads, rows, values), dtype=torch.float64)
    _finish_kernel[(triton.cdiv(rows, _FINISHED), heads)](
        sums, top, row, column, out, rows, values, heads * rows, probability_unit, output_unit,
        VALUES=triton.next_power_of_2(values), ROWS=_FINISHED,
    )  # fmt: skip
    return out
