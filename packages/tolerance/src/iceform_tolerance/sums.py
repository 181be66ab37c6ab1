"""Proven tolerances of half-precision inputs in four kernels.

``read``, two of them: norms of keys, extremes and sums of values, and from those the columns that
are summed. ``weighted_sums``: softmax-weighted sums of the columns in one walk over the keys.
Products of q and k are exact in float32 and summed there; exponentials are base two with a running
maximum over blocks of `BLOCK` keys; probabilities are rounded to the format of the columns before
the second product, not before they are added up. ``finished``: the theorem's numbers of each row
and its bound, in float64. What they say is defined by :mod:`iceform_tolerance.theorem`; counts of
steps come from there as tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

BLOCK = 64  # keys in a block
MOST_COLUMNS = 512
WIDEST = 128  # of a query
# What ``finished`` reads of kinds: numbers, and numbers for each count of keys.
FIXED = (
    "scale", "float64_per", "float64_at", "sharp", "touched", "root",
    "own_per_k", "own_argument", "own_underflow", "own_online", "own_rounds", "own_spills",
    "per_k", "argument", "underflow", "online", "rounds", "probability_unit",
    "probability_underflow", "output_unit", "output_underflow",
)  # fmt: skip
STEPS = ("log", *(
    own + name for own in ("own_", "") for name in ("numerator", "denominator", "exp", "count")
))  # fmt: skip
_ROWS, _WARPS, _STAGES = 128, 8, 3  # as measured on an H200
_IN_REGISTERS = MOST_COLUMNS // 2  # columns whose sums of so many rows are kept in registers
_SPARE = 4096  # bytes of shared memory that a compiler may want for itself
_FINISHED = 32  # rows that are finished at once
_LEAST = 16  # the narrowest side of a product
_SHARES = 32  # programs that read one head's keys and values


def _ceil_div(a: int, b: int) -> int:
    """As triton.cdiv, which takes microseconds to find out that it is called by the host."""
    return -(-a // b)


@dataclass(frozen=True, eq=False)
class Shared:
    """Statistics that all queries of a head share."""

    columns: Tensor  # (heads, keys, 4 values): v, |v|, |v - c̄| and ‖k‖|v - c̄| over the longest k
    weights: Tensor  # (heads, keys), float32: ‖k‖ over the longest
    values: Tensor  # (heads, 4, values), float64: c̄, max|v|, Σ|v|, max v - min v
    heads: Tensor  # (heads, 2), float64: the longest ‖k‖, and a sum over all entries


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kernel(  # type: ignore[no-untyped-def]
    k_ptr, v_ptr, norm_ptr, part_ptr, whole_ptr, keys, seen, dim, values,
    DIM: tl.constexpr, VALUES: tl.constexpr, KEYS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A share of one head's keys: their norms; largest, least and summed values."""
    head, share = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at_d, at_v = tl.arange(0, DIM), tl.arange(0, VALUES)
    in_d, in_v = at_d < dim, at_v < values
    longest = tl.zeros((KEYS,), tl.float64)
    whole = tl.zeros((KEYS,), tl.float64)
    high = tl.full((VALUES,), float("-inf"), tl.float32)
    low = tl.full((VALUES,), float("inf"), tl.float32)
    total = tl.zeros((VALUES,), tl.float64)
    size = tl.zeros((VALUES,), tl.float64)
    for block in range(BLOCKS):
        at_n = (share * BLOCKS + block) * KEYS + tl.arange(0, KEYS)
        in_n, shown = at_n < keys, at_n < seen
        k = tl.load(
            k_ptr + (head * keys + at_n[:, None]) * dim + at_d[None, :],
            mask=in_n[:, None] & in_d[None, :], other=0.0,
        ).to(tl.float64)  # fmt: skip
        v = tl.load(
            v_ptr + (head * keys + at_n[:, None]) * values + at_v[None, :],
            mask=in_n[:, None] & in_v[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        squares = tl.sum(k * k, 1)
        whole += squares + tl.sum(tl.abs(v).to(tl.float64), 1)
        norm = tl.sqrt(tl.where(shown, squares, 0.0))
        tl.store(norm_ptr + head * keys + at_n, norm, mask=in_n)
        longest = tl.maximum(longest, norm)
        high = tl.maximum(high, tl.max(tl.where(shown[:, None], v, float("-inf")), 0))
        low = tl.minimum(low, tl.min(tl.where(shown[:, None], v, float("inf")), 0))
        v = tl.where(shown[:, None], v, 0.0).to(tl.float64)
        total += tl.sum(v, 0)
        size += tl.sum(tl.abs(v), 0)
    program = head * tl.num_programs(0) + share
    at = part_ptr + program * 4 * values + at_v
    tl.store(at, total, mask=in_v)
    tl.store(at + values, size, mask=in_v)
    tl.store(at + 2 * values, high.to(tl.float64), mask=in_v)
    tl.store(at + 3 * values, low.to(tl.float64), mask=in_v)
    tl.store(whole_ptr + program * 2, tl.max(longest, 0))
    tl.store(whole_ptr + program * 2 + 1, tl.sum(whole, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _columns_kernel(  # type: ignore[no-untyped-def]
    v_ptr, norm_ptr, part_ptr, whole_ptr, c_ptr, w_ptr, of_ptr, head_ptr,
    keys, seen, values, shares, wider, floor,
    VALUES: tl.constexpr, KEYS: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """One head's block of keys: its columns, rounded upwards but for v, and its weights.

    v and c̄ are numbers of float32: differences and products there are off by 2^-24 of themselves,
    and a factor 1 + 4u before the rounding to nearest, 2 of the smallest number added, keeps the
    last two columns from being below what they stand for.
    """
    head = tl.program_id(1).to(tl.int64)
    at_n = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    at_v, at_s = tl.arange(0, VALUES), tl.arange(0, SHARES)
    in_n, in_v, in_s = at_n < keys, at_v < values, at_s < shares
    parts = part_ptr + (head * shares + at_s[:, None]) * 4 * values + at_v[None, :]
    inside = in_s[:, None] & in_v[None, :]
    total = tl.sum(tl.load(parts, mask=inside, other=0.0), 0)
    centre = (total / seen).to(tl.float32)
    wholes = whole_ptr + (head * shares + at_s) * 2
    longest = tl.max(tl.load(wholes, mask=in_s, other=0.0), 0)
    if tl.program_id(0) == 0:
        size = tl.sum(tl.load(parts + values, mask=inside, other=0.0), 0)
        high = tl.max(tl.load(parts + 2 * values, mask=inside, other=float("-inf")), 0)
        low = tl.min(tl.load(parts + 3 * values, mask=inside, other=float("inf")), 0)
        at = of_ptr + head * 4 * values + at_v
        tl.store(at, centre.to(tl.float64), mask=in_v)
        tl.store(at + values, tl.maximum(tl.abs(high), tl.abs(low)), mask=in_v)
        tl.store(at + 2 * values, size, mask=in_v)
        tl.store(at + 3 * values, high - low, mask=in_v)
        tl.store(head_ptr + head * 2, longest)
        whole = tl.sum(tl.load(wholes + 1, mask=in_s, other=0.0), 0)
        tl.store(head_ptr + head * 2 + 1, whole)
    norm = tl.load(norm_ptr + head * keys + at_n, mask=in_n, other=0.0)
    share = (norm / tl.where(longest > 0, longest, 1.0)).to(tl.float32)
    tl.store(w_ptr + head * keys + at_n, share * (1 + 2.0**-22), mask=in_n)
    inside = in_n[:, None] & in_v[None, :]
    shown = (at_n < seen)[:, None]
    place = (head * keys + at_n[:, None]) * values
    own = tl.load(v_ptr + place + at_v[None, :], mask=inside & shown, other=0.0)
    v = own.to(tl.float32)
    far = tl.abs(v - centre[None, :]) * wider
    k_far = far * share[:, None]
    at = c_ptr + place * 4 + at_v[None, :]
    tl.store(at, own, mask=inside)
    tl.store(at + values, tl.abs(v).to(own.dtype), mask=inside)
    tl.store(at + 2 * values, (far + floor).to(own.dtype), mask=inside)
    tl.store(at + 3 * values, (k_far + floor).to(own.dtype), mask=inside)


def read(k: Tensor, v: Tensor, *, seen: int) -> Shared:
    """Statistics of k (heads, keys, dim) and v (heads, keys, values) in half precision.

    Keys from ``seen`` on count as zero: no query sees them.
    """
    (heads, keys, dim), values = k.shape, v.shape[-1]
    blocks = triton.next_power_of_2(_ceil_div(keys, BLOCK * _SHARES))
    shares = _ceil_div(keys, BLOCK * blocks)
    double = torch.float64
    norms = k.new_empty((heads, keys), dtype=double)
    parts = k.new_empty(heads * shares * (4 * values + 2), dtype=double)
    part, whole = parts.split([heads * shares * 4 * values, heads * shares * 2])
    found = Shared(
        columns=v.new_empty((heads, keys, 4 * values)),
        weights=v.new_empty((heads, keys), dtype=torch.float32),
        values=v.new_empty((heads, 4, values), dtype=double),
        heads=v.new_empty((heads, 2), dtype=double),
    )
    wide = triton.next_power_of_2(values)
    _gather_kernel[(shares, heads)](
        k, v, norms, part, whole, keys, seen, dim, values,
        DIM=triton.next_power_of_2(dim), VALUES=wide, KEYS=BLOCK, BLOCKS=blocks,
    )  # fmt: skip
    low = torch.finfo(v.dtype)
    _columns_kernel[(_ceil_div(keys, BLOCK), heads)](
        v, norms, part, whole, found.columns, found.weights, found.values, found.heads,
        keys, seen, values, shares, 1 + 2 * low.eps, 2 * low.smallest_normal * low.eps,
        VALUES=wide, KEYS=BLOCK, SHARES=_SHARES,
    )  # fmt: skip
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, c_ptr, w_ptr, out_ptr, mean_ptr, top_ptr,
    rows, queries, keys, dim, values, diagonal, scale,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One head's block of queries: Σ p c_j for all columns c, Σ p w_j, max s."""
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
    tl.store(top_ptr + head * rows + at_m, top * 0.6931471805599453, mask=in_m)


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
    _sums_kernel[(_ceil_div(rows, at_once), heads)](
        q, k, columns, weights, out, mean, top,
        rows, queries, keys, dim, values, 0 if diagonal is None else diagonal,
        scale * math.log2(math.e),
        CAUSAL=diagonal is not None,
        DIM=wide[0], VALUES=wide[1],
        ROWS=at_once, KEYS=BLOCK, WIDEN=triton.knobs.runtime.interpret,
        BLOCKS=_ceil_div(keys, BLOCK) if triton.knobs.runtime.interpret else 0, num_warps=_WARPS,
        num_stages=stages,
    )  # fmt: skip
    return out, mean, top


def _fitting(dim: int, values: int, room: float) -> tuple[int, int]:
    """Rows of a program and blocks of keys in flight that ``room`` bytes and registers hold."""
    rows = _ROWS if values <= _IN_REGISTERS else _ROWS // 2
    left = room - 2 * rows * dim - _SPARE  # an entry is two bytes
    return rows, int(max(1, min(_STAGES, left // (2 * BLOCK * (dim + values)))))


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


@triton.jit
def _four(at):  # type: ignore[no-untyped-def]
    """Four numbers in a row."""
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def _expm1(x):  # type: ignore[no-untyped-def]
    """e^x - 1 to a few units: the error of y = e^x cancels in (y - 1) x / log y."""
    y = tl.exp(x)
    told = (y != 1) & (y < float("inf"))
    apart = tl.where(told, y, 2.0)
    return tl.where(told, (apart - 1) * x / tl.log(apart), tl.where(y == 1, x, y))


@triton.jit
def _steps(at, by_n, row):  # type: ignore[no-untyped-def]
    """`_Steps` of the theorem: per_k, t, most, N l, d, λ(2n + R + 8) and Λ."""
    counts, inside, q, longest, top, log, touched = row
    per_k, argument, underflow, online = _four(at)
    per_k *= q
    others = per_k * longest
    reference = argument * (top + others + log + 1)
    numerator = _nth(by_n, 0, counts, inside)
    denominator = _nth(by_n, 1, counts, inside) + reference * online
    t = reference + underflow * touched + _nth(by_n, 2, counts, inside)
    count = _nth(by_n, 3, counts, inside)
    most = others + t
    return per_k, t, most, numerator, denominator, count, count * tl.exp(2 * most + denominator)


@triton.jit
def _sums_error(at, by_n, row):  # type: ignore[no-untyped-def]
    """`sums_error` of the theorem."""
    _, _, most, numerator, denominator, _, lost = _steps(at, by_n, row)
    own = 2 * most + numerator + denominator + tl.load(at + 4) + 2 * lost
    return tl.where(own <= float("inf"), own, float("inf")), 2 * lost * tl.exp(numerator)


@triton.jit
def _factors(at, by_n, row, k):  # type: ignore[no-untyped-def]
    """`rounded_bound`: factors of k_away, away, size, π, output, lost; stray, spilt, drained."""
    per_k, t, most, numerator, denominator, count, lost = _steps(at, by_n, row)
    kappa = tl.exp(-denominator - per_k * k - t) - lost
    divided = tl.where(kappa > 0, 1 / tl.where(kappa > 0, kappa, 1.0), float("inf"))
    moving = _expm1(most) / most * divided
    sharing = tl.exp(most) * divided
    theta = _expm1(numerator)
    drained = count * tl.exp(2 * t + denominator)
    kappa = tl.exp(-denominator - t) - drained
    spilt = tl.where(kappa > 0, tl.exp(numerator) / tl.where(kappa > 0, kappa, 1.0), float("inf"))
    stray = _expm1(numerator + denominator + tl.load(at + 4))
    size, coarse = sharing * theta, sharing * (1 + theta)
    lost = lost * (1 + theta) * divided
    output = sharing * _expm1(denominator)
    return moving * per_k, moving * t, size, coarse, output, lost, stray, spilt, drained * spilt


@triton.jit
def _weighed(  # type: ignore[no-untyped-def]
    by, off, k, k_away, away, size, coarse, output, largest, rounds, spread
):
    """`rounded_bound` of the theorem, before the output is rounded: the smaller of two bounds."""
    bulk = (1 + 2 * largest)[None, :]
    first = by[0][:, None] * (off * k[:, None] + k_away) + by[1][:, None] * (off + away)
    first += by[2][:, None] * size + by[3][:, None] * coarse
    first += by[4][:, None] * output + by[5][:, None] * bulk
    hull = spread[None, :] + by[6][:, None] * largest[None, :] + by[8][:, None] * bulk
    hull += by[7][:, None] * tl.minimum(rounds, largest)[None, :]
    return tl.where(first <= hull, first, hull)  # the second where the first is not a number


@triton.jit
def _asked(  # type: ignore[no-untyped-def]
    at, whole, own, logit, largest, reach
):
    """Keep what the host asks for, a number for each program."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    at += tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(at, whole)
    tl.store(at + programs, own)
    tl.store(at + 2 * programs, logit)
    tl.store(at + 3 * programs, largest)
    tl.store(at + 4 * programs, reach)


@triton.jit  # type: ignore[untyped-decorator]
def _squares(q_ptr, head, rows, dim, at_m, in_m, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """‖q‖² of rows."""
    at_d = tl.arange(0, DIM)
    q = tl.load(
        q_ptr + (head * rows + at_m[:, None]) * dim + at_d[None, :],
        mask=in_m[:, None] & (at_d < dim)[None, :], other=0.0,
    ).to(tl.float64)  # fmt: skip
    return tl.sum(q * q, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _finish_kernel(  # type: ignore[no-untyped-def]
    q_ptr, sums_ptr, mean_ptr, top_ptr, of_ptr, head_ptr, fixed_ptr, by_n_ptr, out_ptr, asked_ptr,
    rows, queries, keys, dim, values, diagonal, counts,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One head's block of rows: `sums_error` and `rounded_bound` of the theorem."""
    head = tl.program_id(1).to(tl.int64)
    at_m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at_v = tl.arange(0, VALUES)
    in_m, in_v = at_m < rows, at_v < values
    seen = in_m[:, None] & in_v[None, :]
    # Of the kinds, as `FIXED` has them.
    scale, per, constant, sharp = _four(fixed_ptr)
    p_unit, p_under, out_unit, out_under = _four(fixed_ptr + 17)
    # Numbers of a column and of a head.
    of = of_ptr + head * 4 * values + at_v
    centre, largest = _nth(of, 0, values, in_v), _nth(of, 1, values, in_v)
    total, spread = _nth(of, 2, values, in_v), _nth(of, 3, values, in_v)
    rounds = p_under * total
    longest = tl.load(head_ptr + head * 2)
    # Numbers of a row. Its largest logit is within the error of a logit of the exact one, which is
    # less than the sums' own, and that is at most `sharp` where they are used at all.
    squares = _squares(q_ptr, head, rows, dim, at_m, in_m, DIM)
    q_norm = tl.sqrt(squares)
    met = tl.load(top_ptr + head * rows + at_m, mask=in_m, other=0.0)
    empty = met == float("-inf")
    top = tl.abs(tl.where(empty, 0.0, met).to(tl.float64)) * (1 + 2.0**-20) + sharp
    by_n = by_n_ptr + tl.zeros((ROWS,), tl.int64)
    if CAUSAL:
        by_n += tl.minimum(tl.maximum(at_m % queries + diagonal, 0), keys - 1)
    touched = tl.load(fixed_ptr + 4) + tl.load(fixed_ptr + 5) * (q_norm + longest)
    row = (counts, in_m, q_norm, longest, top, _nth(by_n, 0, counts, in_m), touched)
    own, lost = _sums_error(fixed_ptr + 6, by_n + counts, row)
    # What underflow may take from sums of the columns |v|, |v - c̄| and ‖k‖|v - c̄|: at most as much
    # as of |v| + |c̄|, twice that being more than columns that were rounded upwards.
    reach = largest + tl.abs(centre)
    under = (tl.load(fixed_ptr + 11) * (total + keys * tl.abs(centre)))[None, :]
    under += lost[:, None] * (1 + 2 * reach)[None, :]
    more = tl.exp(own)
    unsure = _expm1(own) * more
    mean = _nth(mean_ptr + head * rows + at_m, 0, 0, in_m)
    k = (mean + 4 * lost) * (more * longest)
    by = _factors(fixed_ptr + 12, by_n + 5 * counts, row, k)
    whole = tl.exp(per * (scale * q_norm * longest + top) + constant)
    # Every sum at its largest.
    sums = sums_ptr + (head * rows + at_m[:, None]) * 4 * values + at_v[None, :]
    value = _nth(sums, 0, values, seen)
    size = _nth(sums, 1, values, seen) + under
    away = more[:, None] * (_nth(sums, 2, values, seen) + under)
    k_away = (more * longest)[:, None] * (_nth(sums, 3, values, seen) + under)
    # The output is a sum of terms of both signs: its own error is absolute, and what underflows is
    # lost as it is.
    unsure = unsure[:, None] * size + more[:, None] * under
    off = tl.abs(value - centre[None, :]) + (tl.abs(centre) * 2.0**-52)[None, :] + unsure
    output = tl.abs(value) + unsure
    size *= more[:, None]
    coarse = tl.minimum(p_unit * size + rounds[None, :], size)
    least = _weighed(by, off, k, k_away, away, size, coarse, output, largest, rounds, spread)
    bound = (least + out_unit * (least + output) + out_under) * whole[:, None]
    bound = tl.where(empty[:, None], 0.0, tl.where(bound <= float("inf"), bound, float("inf")))
    tl.store(out_ptr + (head * rows + at_m[:, None]) * values + at_v[None, :], bound, mask=seen)
    entries = tl.sum(squares, 0) + tl.load(head_ptr + head * 2 + 1)
    own = tl.max(tl.where(in_m, own, 0.0), 0)
    _asked(
        asked_ptr, entries, own, tl.max(q_norm, 0) * longest, tl.max(largest, 0), tl.max(reach, 0)
    )


def finished(
    q: Tensor, walk: tuple[Tensor, Tensor, Tensor], shared: Shared, fixed: Tensor, by_n: Tensor,
    *, queries: int, diagonal: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The bound (heads, rows, values) in float64, zero for rows that see nothing; what is asked.

    ``walk``: what ``weighted_sums`` returns. ``fixed``: numbers of the kinds, in the order of
    `FIXED`; ``by_n``: (`STEPS`, counts), those of a row that sees n = 1, 2, ... keys, or of all
    keys alone where there is no diagonal. Asked are five numbers: a sum that is finite if all
    entries are, the largest logarithm that the walk may be off by, and the largest ‖q‖‖k‖, |v| and
    max|v| + |c̄|.
    """
    sums, mean, top = walk
    (heads, rows, dim), values = q.shape, shared.values.shape[-1]
    programs = _ceil_div(rows, _FINISHED)
    out = q.new_empty((heads, rows, values), dtype=torch.float64)
    asked = q.new_empty((5, heads * programs), dtype=torch.float64)
    _finish_kernel[(programs, heads)](
        q, sums, mean, top, shared.values, shared.heads, fixed, by_n, out, asked,
        rows, queries, shared.columns.shape[1], dim, values, 0 if diagonal is None else diagonal,
        by_n.shape[1],
        CAUSAL=diagonal is not None, DIM=triton.next_power_of_2(dim),
        VALUES=triton.next_power_of_2(values), ROWS=_FINISHED,
    )  # fmt: skip
    return out, asked.amax(1)
