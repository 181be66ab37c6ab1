"""``residual_sum``: the sum over samples of A(w.x - y) x, reading every sample once.

A persistent grid walks over tiles of rows, computes z = w.x - y, looks it up and adds A(z) x to
partial sums that stay in registers. A lane adds at most
:func:`~iceform.run.windowed.sum_block` rows in the data's own precision, then float64
takes over; each program writes one row of partial sums, which a second stage adds up in a fixed
order. So the result does not depend on scheduling. Where somebody watches, the largest entry (and
the longest row) of what is read anyway is kept on the way, so that checking data reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.arithmetic.units import next_power_of_two
from iceform.run.triton.look_up import load_constants, look_up
from iceform.run.triton.support import LANES, TILE, ceil_div, multiprocessors
from iceform.run.triton.tables import LINE, table_of
from iceform.run.windowed import mixed, sum_block, tell
from iceform.tables import Interpolant
from iceform.validation import common_batch, largest_entry, written_out

if TYPE_CHECKING:
    from iceform.run.primitives import SampleMaxima

_TILE = 2 * TILE  # bytes of x (in the precision of the computation) that a program holds at once
_REGISTERS = 4 * TILE  # of one of the four parts of a multiprocessor
_MOST_RESIDENT = 32
_AT_ONCE, _COLUMNS = 4 * LANES, 8  # programs and columns whose findings are put together at once
_known_residents: dict[tuple[Any, ...], int] = {}


@triton.jit  # type: ignore[untyped-decorator]
def _look_up_rows(  # type: ignore[no-untyped-def]
    product, y_ptr, tile, samples, constants, ratios, biases, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
    ROWS: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """A(product - y) for the rows of a tile, where COPIES threads share a row.

    With fewer rows than threads the compiler would give every thread many rows; labels loaded
    once per thread keep one row each.
    """
    rows = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS * COPIES) // COPIES
    inside = rows < samples
    y = tl.load(y_ptr + rows, mask=inside, other=0.0)
    if COPIES > 1:
        product = tl.reshape(tl.broadcast_to(product[:, None], (ROWS, COPIES)), (ROWS * COPIES,))
    z = tl.where(inside, product - y, constants[0])
    looked, slope = look_up(
        z, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, SLOPE
    )
    if COPIES > 1:
        one = tl.arange(0, ROWS) * COPIES
        looked = tl.gather(looked, one, 0)
        slope = tl.gather(slope, one, 0) if SLOPE else looked
    return looked, slope


@triton.jit  # type: ignore[untyped-decorator]
def _load_rows(  # type: ignore[no-untyped-def]
    x_ptr, tile, samples, DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr
):
    """The samples of one tile, zeros beyond the last."""
    at_d = tl.arange(0, WIDE)
    rows = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (rows < samples)[:, None]
    if WIDE != DIM:
        inside = inside & (at_d < DIM)[None, :]
    return tl.load(x_ptr + rows[:, None] * DIM + at_d[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_sums(  # type: ignore[no-untyped-def]
    x, tile, batch, y_ptr, label_ptr, row_ptr, weight_ptr, w, g,
    samples, y_batch, label_batch, constants, ratios, biases, values, TOKENS,
    ROWS: tl.constexpr, EXACT: tl.constexpr,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    LABELS: tl.constexpr, BACKWARD: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """What the rows of one tile add to the sums, float64."""
    rows = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < samples
    x = x.to(w.dtype)
    looked, slope = _look_up_rows(
        tl.sum(x * w[None, :], 1), y_ptr + batch * y_batch, tile, samples,
        constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, BACKWARD, ROWS, COPIES,
    )  # fmt: skip
    if LABELS:
        looked -= tl.load(label_ptr + batch * label_batch + rows, mask=inside, other=0.0)
    if BACKWARD:
        tl.store(row_ptr + batch * samples + rows, looked, mask=inside)
        looked = slope * tl.sum(x * g[None, :], 1)
        tl.store(weight_ptr + batch * samples + rows, looked, mask=inside)
    if EXACT:
        sums = tl.sum((looked[:, None] * x).to(tl.float64), 0)
    else:
        sums = tl.sum(looked[:, None] * x, 0).to(tl.float64)
    return sums


@triton.jit
def _bits(x):  # type: ignore[no-untyped-def]
    """|x| as whole numbers in the same order, what is not a number above all others."""
    if x.dtype == tl.float64:
        found = x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        found = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _watched(  # type: ignore[no-untyped-def]
    x, most, longest, dtype: tl.constexpr, WATCH: tl.constexpr
):
    """The largest entry by column and the longest row of the tiles so far, as whole numbers."""
    if WATCH > 0:
        most = tl.maximum(most, tl.max(_bits(x), 0))
    if WATCH > 1:
        wide = x.to(dtype)
        longest = tl.maximum(longest, _bits(tl.sum(wide * wide, 1)))
    return most, longest


@triton.jit  # type: ignore[untyped-decorator]
def _residual_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, w_ptr, label_ptr, grad_ptr, partial_ptr, row_ptr, weight_ptr, seen_ptr,
    samples, x_batch, y_batch, w_batch, label_batch,
    numbers, ratios, biases, values, TOKENS,
    DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    LABELS: tl.constexpr, BACKWARD: tl.constexpr, COPIES: tl.constexpr, AHEAD: tl.constexpr,
    WATCH: tl.constexpr,
):  # fmt: skip
    """Partial sums of (A(z) - label) x, or of A'(z) (g.x) x; whole rows in registers.

    With AHEAD the next tile is on its way while one is worked on.
    """
    pid, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    programs = tl.num_programs(0)
    at_d = tl.arange(0, WIDE)
    in_d = at_d < DIM
    w = tl.load(w_ptr + batch * w_batch + at_d, mask=in_d, other=0.0)
    g = w
    if BACKWARD:
        g = tl.load(grad_ptr + batch * DIM + at_d, mask=in_d, other=0.0)
    constants = load_constants(numbers, ratios, KIND, HALF)
    total = tl.zeros((WIDE,), tl.float64)
    most = _bits(tl.zeros((WIDE,), w.dtype))
    longest = _bits(tl.zeros((ROWS,), w.dtype))
    tiles = tl.cdiv(samples, ROWS)
    own = x_ptr + batch * x_batch
    tile = pid
    if AHEAD:
        x = _load_rows(own, tile, samples, DIM, WIDE, ROWS)
        while tile < tiles:
            later = _load_rows(own, tile + programs, samples, DIM, WIDE, ROWS)
            most, longest = _watched(x, most, longest, w.dtype, WATCH)
            total += _tile_sums(
                x, tile, batch, y_ptr, label_ptr, row_ptr, weight_ptr, w, g,
                samples, y_batch, label_batch, constants, ratios, biases, values, TOKENS,
                ROWS, EXACT, KIND, HALF, BOUNDED, LABELS, BACKWARD, COPIES,
            )  # fmt: skip
            x = later
            tile += programs
    else:
        while tile < tiles:
            x = _load_rows(own, tile, samples, DIM, WIDE, ROWS)
            most, longest = _watched(x, most, longest, w.dtype, WATCH)
            total += _tile_sums(
                x, tile, batch, y_ptr, label_ptr, row_ptr, weight_ptr, w, g,
                samples, y_batch, label_batch, constants, ratios, biases, values, TOKENS,
                ROWS, EXACT, KIND, HALF, BOUNDED, LABELS, BACKWARD, COPIES,
            )  # fmt: skip
            tile += programs
    tl.store(partial_ptr + (batch * programs + pid) * DIM + at_d, total, mask=in_d)
    if WATCH > 0:
        tl.store(seen_ptr + (batch * programs + pid) * 2, tl.max(most, 0))
        tl.store(seen_ptr + (batch * programs + pid) * 2 + 1, tl.max(longest, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _wide_residual_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, w_ptr, label_ptr, grad_ptr, partial_ptr, row_ptr, weight_ptr,
    samples, x_batch, y_batch, w_batch, label_batch,
    numbers, ratios, biases, values, TOKENS,
    DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    LABELS: tl.constexpr, BACKWARD: tl.constexpr, COPIES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """The same for samples too wide for registers: WIDE features at a time, twice.

    The second reading finds a tile of few rows still in the cache. Partial sums are in memory,
    where only this program touches them.
    """
    pid, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    programs = tl.num_programs(0)
    wide = numbers.dtype.element_ty
    at_d = tl.arange(0, WIDE)
    at_m = tl.arange(0, ROWS)
    tiles = tl.cdiv(samples, ROWS)
    constants = load_constants(numbers, ratios, KIND, HALF)
    own = partial_ptr + (batch * programs + pid) * DIM
    tile = pid
    while tile < tiles:
        rows = tile.to(tl.int64) * ROWS + at_m
        inside = rows < samples
        here = x_ptr + batch * x_batch + rows[:, None] * DIM + at_d[None, :]
        products = tl.zeros((ROWS, WIDE), wide)
        steepest = tl.zeros((ROWS, WIDE), wide)
        for start in range(0, DIM, WIDE):
            in_d = start + at_d < DIM
            x = tl.load(here + start, mask=inside[:, None] & in_d[None, :], other=0.0).to(wide)
            w = tl.load(w_ptr + batch * w_batch + start + at_d, mask=in_d, other=0.0)
            products += x * w[None, :]
            if BACKWARD:
                g = tl.load(grad_ptr + batch * DIM + start + at_d, mask=in_d, other=0.0)
                steepest += x * g[None, :]
        looked, slope = _look_up_rows(
            tl.sum(products, 1), y_ptr + batch * y_batch, tile, samples,
            constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, BACKWARD, ROWS, COPIES,
        )  # fmt: skip
        if LABELS:
            looked -= tl.load(label_ptr + batch * label_batch + rows, mask=inside, other=0.0)
        if BACKWARD:
            tl.store(row_ptr + batch * samples + rows, looked, mask=inside)
            looked = slope * tl.sum(steepest, 1)
            tl.store(weight_ptr + batch * samples + rows, looked, mask=inside)
        for start in range(0, DIM, WIDE):
            in_d = start + at_d < DIM
            x = tl.load(here + start, mask=inside[:, None] & in_d[None, :], other=0.0).to(wide)
            if EXACT:
                sums = tl.sum((looked[:, None] * x).to(tl.float64), 0)
            else:
                sums = tl.sum(looked[:, None] * x, 0).to(tl.float64)
            before = tl.load(own + start + at_d, mask=in_d, other=0.0)
            tl.store(own + start + at_d, before + sums, mask=in_d)
        tile += programs


@triton.jit  # type: ignore[untyped-decorator]
def _number(bits, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What :func:`_bits` were of."""
    return bits.to(tl.float64 if DOUBLE else tl.float32, bitcast=True).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def _end_kernel(  # type: ignore[no-untyped-def]
    partial_ptr, seen_ptr, label_ptr, w_ptr, mix_ptr, total_ptr, out_ptr,
    programs, all_programs, rows, w_batch,
    DIM: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
    DOUBLE: tl.constexpr,
):  # fmt: skip
    """Some columns of one batch's sums, a sum + b w; the first program tells all sizes too."""
    batch, zero = tl.program_id(1).to(tl.int64), tl.program_id(0) * 0
    at, at_c = tl.arange(0, MANY), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_c = at_c < DIM
    sums = tl.zeros((MANY, COLUMNS), tl.float64)
    start = zero
    while start < programs:
        inside = (start + at < programs)[:, None] & in_c[None, :]
        own = (batch * programs + start + at[:, None]) * DIM + at_c[None, :]
        sums += tl.load(partial_ptr + own, mask=inside, other=0.0)
        start += MANY
    w = tl.load(w_ptr + batch * w_batch + at_c, mask=in_c, other=0.0).to(tl.float64)
    mixed = tl.load(mix_ptr) * tl.sum(sums, 0) + tl.load(mix_ptr + 1) * w
    tl.store(total_ptr + batch * DIM + at_c, mixed.to(total_ptr.dtype.element_ty), mask=in_c)
    if tl.program_id(0) + tl.program_id(1) == 0:
        _tell_sizes(
            seen_ptr, label_ptr, w_ptr, out_ptr, all_programs, rows, DIM, WIDE, MANY, DOUBLE
        )


@triton.jit  # type: ignore[untyped-decorator]
def _tell_sizes(  # type: ignore[no-untyped-def]
    seen_ptr, label_ptr, w_ptr, out_ptr, programs, rows,
    DIM: tl.constexpr, WIDE: tl.constexpr, MANY: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """What is seen of x by all programs, and of w; the largest label is known."""
    at, at_d = tl.arange(0, MANY), tl.arange(0, WIDE)
    word = tl.int64 if DOUBLE else tl.int32
    most, longest = tl.zeros((MANY,), word), tl.zeros((MANY,), word)
    start = tl.program_id(0)  # the first: 0
    while start < programs:
        inside = start + at < programs
        most = tl.maximum(most, tl.load(seen_ptr + (start + at) * 2, mask=inside, other=0))
        longest = tl.maximum(
            longest, tl.load(seen_ptr + (start + at) * 2 + 1, mask=inside, other=0)
        )
        start += MANY
    largest, norm = tl.zeros((WIDE,), tl.int64), tl.zeros((WIDE,), tl.int64)
    row = tl.program_id(0)
    while row < rows:
        w = tl.load(w_ptr + row * DIM + at_d, mask=at_d < DIM, other=0.0).to(tl.float64)
        largest = tl.maximum(largest, _bits(w))
        norm = tl.maximum(norm, _bits(tl.sum(w * w, 0) + at_d * 0.0))
        row += 1
    tl.store(out_ptr, tl.load(label_ptr).to(tl.float64))
    tl.store(out_ptr + 1, _number(tl.max(most, 0), DOUBLE))
    tl.store(out_ptr + 2, tl.sqrt(_number(tl.max(longest, 0), DOUBLE)))
    tl.store(out_ptr + 3, _number(tl.max(largest, 0), True))
    tl.store(out_ptr + 4, tl.sqrt(_number(tl.max(norm, 0), True)))


@dataclass(frozen=True)
class Launch:
    """How ``residual_sum`` is laid out."""

    rows: int  # of a tile
    wide: int  # features read at once
    warps: int = 1
    programs: int | None = None  # per multiprocessor; None for as many as fit
    ahead: bool = False  # whether a program loads its next tile early

    @property
    def copies(self) -> int:
        """Threads that do the same look-up."""
        return max(1, 32 * self.warps // self.rows)


def _launch(dim: int, dtype: torch.dtype, kind: int) -> Launch:
    """As measured on an H200: programs of one warp, 64 numbers of x in each of its threads.

    Narrow rows, and those that take few bytes or many registers for what they compute, leave too
    little under way; their next tile is loaded early. Not so with a line outside float64, whose
    look-up takes so few registers that more programs do better.
    """
    wide = next_power_of_two(dim)
    size = 8 if dtype == torch.float64 else 4
    if wide * size > TILE:
        return Launch(32, 256 // size)
    narrow = LANES if dtype == torch.float32 else 4 * LANES
    light = kind == LINE and dtype != torch.float64
    rows = min(LANES, max(2, _TILE // (wide * size)))
    return Launch(rows, wide, ahead=wide * size <= narrow and not light)


def _resident(kernel: Any, warps: int) -> int:
    """Programs that a multiprocessor holds at once, by their registers."""
    used = int(getattr(kernel, "n_regs", None) or 0)
    if not used:
        return _MOST_RESIDENT
    granule = 256  # registers are handed out to a warp in such steps
    per_warp = -(-32 * used // granule) * granule
    return max(1, min(_MOST_RESIDENT, 4 * (_REGISTERS // per_warp) // warps))


def residual_sum(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    it: Interpolant,
    labels: Tensor | None = None,
    launch: Launch | None = None,
    watch: SampleMaxima | None = None,
    mix: tuple[float, float] = (1.0, 0.0),
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Mix: a sum_i (A(w.x_i - y_i) - labels_i) x_i + b w, reading x once; ``watch`` sees it too."""
    inputs = (x, y, w) if labels is None else (x, y, w, labels)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        return _sums(x, y, w, labels, it, launch, None, watch, mix, dtype)[0]
    if watch is not None:
        watch(x)
    out: Tensor = _ResidualSum.apply(x, y, w, labels, it, launch)  # type: ignore[no-untyped-call]
    return mixed(out, w, mix, dtype)


def _sums(
    x: Tensor, y: Tensor, w: Tensor, labels: Tensor | None, it: Interpolant,
    launch: Launch | None, grad: Tensor | None, watch: SampleMaxima | None = None,
    mix: tuple[float, float] = (1.0, 0.0), dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The sums; in the backward pass also each sample's A(z) - label and A'(z) (g.x)."""
    samples, dim = x.shape[-2:]
    batch = common_batch(x.shape[:-2], y.shape[:-1], w.shape[:-1])
    count = max(1, batch.numel())
    x, y, w = map(written_out, (x, y, w))
    table = table_of(it, w.dtype, x.device, w.dtype)
    if launch is None:
        launch = _launch(dim, x.dtype, table.kind)
    tiled = launch.wide < dim
    backward = grad is not None
    if tiled and watch is not None:
        watch(x)
        watch = None
    rows = weights = x  # not written unless backwards
    if backward:
        rows, weights = torch.empty(2, count, samples, dtype=w.dtype, device=x.device)
    offsets = y if labels is None else written_out(labels)
    sizes = (
        samples, _batch_stride(x, 2), _batch_stride(y, 1), _batch_stride(w, 1),
        _batch_stride(offsets, 1),
        table.numbers, table.ratios, table.biases, table.values, table.tokens,
    )  # fmt: skip
    options = {
        "DIM": dim, "WIDE": launch.wide, "ROWS": launch.rows, "KIND": table.kind,
        "HALF": table.half, "BOUNDED": table.bounded, "LABELS": labels is not None,
        "BACKWARD": backward, "EXACT": sum_block(x.dtype, samples) < launch.rows,
        "COPIES": launch.copies, "AHEAD": launch.ahead,
        "num_warps": launch.warps,
    }  # fmt: skip
    if not tiled:
        options["WATCH"] = 0 if watch is None else 1 + watch.lengths
    kernel = _wide_residual_kernel if tiled else _residual_kernel
    key = (x.dtype, x.device, *options.values())
    resident = launch.programs or _known_residents.get(key)
    partial = _partial_sums(launch, resident or 1, x, count, tiled)
    given = w if grad is None else written_out(grad)
    grid = (partial.shape[1], count)
    outputs = [partial, rows, weights]
    if not tiled:
        outputs.append(partial if watch is None else _unseen(partial, w.dtype))
    built = kernel[grid](x, y, w, offsets, given, *outputs, *sizes, **options)
    if resident is None:
        # The first call of its kind was as good as any; the next ones fill the device.
        _known_residents[key] = _resident(built, launch.warps)
    if not backward:
        tell(partial.movedim(1, 0).reshape(-1, *batch, dim), launch.rows)
    if watch is None:
        return mixed(partial.sum(1).reshape(*batch, dim), w, mix, dtype), rows, weights
    total, seen = _ended(partial, outputs[-1], largest_entry(offsets), w, mix, dtype)
    watch.take_whole(seen)
    return total.reshape(*batch, dim), rows, weights


def _unseen(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for what each program sees of x: the bits of two numbers."""
    words = torch.int64 if dtype == torch.float64 else torch.int32
    return torch.empty(*partial.shape[:2], 2, dtype=words, device=partial.device)


def _ended(
    partial: Tensor, seen: Tensor, labels: Tensor, w: Tensor, mix: tuple[float, float],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What the partial sums come to, and (max |y|, |x|, ||x||, |w|, ||w||) in float64."""
    count, programs, dim = partial.shape
    total = partial.new_empty((count, dim), dtype=dtype)
    sizes = partial.new_empty(5)
    _end_kernel[(ceil_div(dim, _COLUMNS), count)](
        partial, seen, labels, w, _numbers(mix, w.device), total, sizes,
        programs, count * programs, w.numel() // dim, _batch_stride(w, 1),
        DIM=dim, WIDE=next_power_of_two(dim), COLUMNS=_COLUMNS, MANY=_AT_ONCE,
        DOUBLE=w.dtype == torch.float64,
    )  # fmt: skip
    return total, sizes


@lru_cache(maxsize=256)
def _numbers(mix: tuple[float, float], device: torch.device) -> Tensor:
    """In float64: what a kernel is called with is float32."""
    return torch.tensor(mix, dtype=torch.float64, device=device)


def _partial_sums(launch: Launch, resident: int, x: Tensor, count: int, tiled: bool) -> Tensor:
    """One row of sums for every program."""
    tiles = ceil_div(x.shape[-2], launch.rows)
    programs = min(tiles, max(1, multiprocessors(x.device) * resident // count))
    # Wide samples add to their sums in memory, so those must start at zero.
    make = torch.zeros if tiled else torch.empty
    return make(count, programs, x.shape[-1], dtype=torch.float64, device=x.device)


def _batch_stride(t: Tensor, core: int) -> int:
    return t.stride(0) if t.ndim > core and t.shape[0] > 1 else 0


class _ResidualSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        w: Tensor,
        labels: Tensor | None,
        it: Interpolant,
        launch: Launch | None,
    ) -> Tensor:
        ctx.it = it
        ctx.save_for_backward(x, y, w, labels)
        return _sums(x, y, w, labels, it, launch, None)[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        r"""With g given, p_i = g.x_i and q_i = A'(z_i) p_i: the sums of q_i x_i are w's."""
        x, y, w, labels = ctx.saved_tensors
        given = grads[0].to(w.dtype).contiguous()
        sums, rows, weights = _sums(x, y, w, labels, ctx.it, None, given)
        batch, samples = sums.shape[:-1], x.shape[-2]
        rows, weights = (t.reshape(*batch, samples) for t in (rows, weights))
        for_x = for_y = for_w = for_labels = None
        if ctx.needs_input_grad[0]:
            both = weights[..., None] * w[..., None, :] + rows[..., None] * given[..., None, :]
            for_x = both.sum_to_size(x.shape).to(x.dtype)
        if ctx.needs_input_grad[1]:
            for_y = (-weights).sum_to_size(y.shape)
        if ctx.needs_input_grad[2]:
            for_w = sums.sum_to_size(w.shape).to(w.dtype)
        if labels is not None and ctx.needs_input_grad[3]:
            along = (x.to(w.dtype) @ given[..., None])[..., 0]
            for_labels = (-along).sum_to_size(labels.shape)
        return for_x, for_y, for_w, for_labels, None, None
