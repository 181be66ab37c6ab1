r"""The primitives as Triton kernels, for GPUs (``iceform[gpu]``).

``residual_sum`` reads every sample once: a persistent grid walks over tiles of rows, computes
z = w.x - y, looks it up and adds A(z) x to partial sums that stay in registers. A lane adds at
most :func:`~iceform.backends.registry.sum_block` rows in the data's own precision, then float64
takes over; each program writes one row of partial sums, which a second stage adds up in a fixed
order. So the result does not depend on scheduling.

``project`` is a matrix product whose epilogue is the look-up: keys, queries and values of a head
are written once.

The look-up is that of :mod:`iceform.backends.windowed`; tables with graded tokens are read whole.
With ``TRITON_INTERPRET=1`` in the environment the kernels run on the CPU, slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.backends.registry import sum_block
from iceform.backends.windowed import window_of
from iceform.errors import DeviceError
from iceform.interpolation import Interpolant

__all__ = [
    "Launch",
    "Tiling",
    "advance",
    "can_look_up",
    "can_run",
    "can_sum",
    "interpolate",
    "project",
    "require",
    "residual_sum",
    "should_project",
]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_OLDEST = (7, 0)  # compute capability that Triton supports
_LINE, _TABLE, _GRADED = 0, 1, 2  # how values are found: from j, from a window, from all tokens
_WHOLE_ROW = 4096  # bytes of a sample that a program keeps in registers; wider ones are tiled


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return bool(triton.knobs.runtime.interpret)


def can_run(tensor: Tensor) -> bool:
    """Whether the kernels can run on this tensor: its device and its dtype."""
    if tensor.dtype not in _DTYPES:
        return False
    if interpreted():
        return tensor.device.type in ("cpu", "cuda")
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= _OLDEST


def can_look_up(it: Interpolant, dtype: torch.dtype) -> bool:
    """Whether a table can be read: by a window, or graded and so read whole."""
    return not it.uniform or window_of(it, _wide(dtype)) is not None


def can_sum(x: Tensor, y: Tensor, w: Tensor, it: Interpolant) -> bool:
    """Whether ``residual_sum`` takes these shapes and this table."""
    same = y.dtype == w.dtype == _wide(x.dtype)
    return same and x.ndim <= 3 and y.ndim <= 2 and w.ndim <= 2 and can_look_up(it, x.dtype)


def should_project(x: Tensor) -> bool:
    """Whether ``project`` beats a library's matrix product followed by a look-up.

    Tensor cores multiply bfloat16 as fast here as there; full float32 and float64 products are
    the library's strength.
    """
    return x.dtype == torch.bfloat16


def require(tensor: Tensor, it: Interpolant) -> None:
    """Say why the kernels cannot run, where somebody insists on them."""
    if not can_run(tensor):
        raise DeviceError(
            f"backend='triton' cannot run {tensor.dtype} on {tensor.device}; move the data to a "
            "CUDA device in float32, float64 or bfloat16, set TRITON_INTERPRET=1 to try it on "
            "the CPU, or use backend='fused'"
        )
    if not can_look_up(it, tensor.dtype):
        raise DeviceError(
            f"backend='triton' has no window for a table of sharpness {it.sharpness:.3g}; use "
            "backend='fused'"
        )


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What numbers of this dtype are computed in."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


@dataclass(frozen=True)
class _Table:
    """What kernels read of an interpolant."""

    kind: int
    half: int
    bounded: bool
    tokens: int
    numbers: Tensor  # center, cells per unit, middle, last, sharpness, slope, value
    ratios: Tensor  # e^{-2c(j-1)}, or the slopes of graded keys
    biases: Tensor  # the biases of graded keys
    values: Tensor


@lru_cache(maxsize=512)
def _table(it: Interpolant, dtype: torch.dtype, device: torch.device, out: torch.dtype) -> _Table:
    """The table in the dtype of the computation, its window as wide as the result can tell."""
    window = window_of(it, out)
    if window is not None:
        numbers, ratios, values = window.operands(dtype, device)
        kind = _LINE if window.affine else _TABLE
        return _Table(kind, window.half, window.bounded, it.tokens, numbers, ratios, ratios, values)
    center = torch.full((7,), it.grid.center, dtype=torch.float64)
    parts = (center, it.keys.slopes, it.keys.biases, it.values)
    numbers, slopes, biases, values = (
        t.detach().to(device=device, dtype=dtype).contiguous() for t in parts
    )
    return _Table(_GRADED, 0, False, it.tokens, numbers, slopes, biases, values)


# ---------------------------------------------------------------------------------------------
# the look-up, inside kernels
# ---------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _constants(numbers, ratios, KIND: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """The seven numbers and the ratios as scalars, loaded once before a loop."""
    loaded = (tl.load(numbers),)
    if KIND < 2:
        for i in tl.static_range(1, 7):
            loaded = loaded + (tl.load(numbers + i),)  # type: ignore[assignment]  # noqa: RUF005
        for j in tl.static_range(HALF):
            loaded = loaded + (tl.load(ratios + j),)  # type: ignore[assignment]  # noqa: RUF005
    return loaded


@triton.jit  # type: ignore[untyped-decorator]
def _look_up(  # type: ignore[no-untyped-def]
    z, constants, ratios, biases, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """A(z), and A'(z) where SLOPE asks for it (else zeros)."""
    if KIND == 2:
        looked, slope = _whole(z, constants[0], ratios, biases, values, TOKENS, SLOPE)
    else:
        looked, slope = _window(z, constants, values, TOKENS, KIND, HALF, BOUNDED, SLOPE)
    return looked, slope


@triton.jit  # type: ignore[untyped-decorator]
def _whole(  # type: ignore[no-untyped-def]
    z, center, slopes, biases, values, TOKENS, SLOPE: tl.constexpr
):
    """Softmax over all tokens with keys (slopes, biases); the largest logit first."""
    t = z - center
    zero = t * 0
    top = zero - float("inf")
    k = 0
    while k < TOKENS:
        top = tl.maximum(top, t * tl.load(slopes + k) + tl.load(biases + k))
        k += 1
    mass, total, ahead, both = zero, zero, zero, zero
    k = 0
    while k < TOKENS:
        slope = tl.load(slopes + k)
        weight = tl.exp(t * slope + tl.load(biases + k) - top)
        value = tl.load(values + k)
        mass += weight
        total += weight * value
        if SLOPE:
            ahead += weight * slope
            both += weight * slope * value
        k += 1
    looked = total / mass
    return looked, both / mass - looked * (ahead / mass)


@triton.jit  # type: ignore[untyped-decorator]
def _window(  # type: ignore[no-untyped-def]
    z, constants, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """The 2 HALF + 1 tokens around z by recurrence; KIND 0 is a line, 1 a table."""
    middle, last, sharpness = constants[2], constants[3], constants[4]
    cells = (z - constants[0]) * constants[1]
    nearest = tl.minimum(tl.maximum(tl.floor(cells + (middle + 0.5)), 0.0), last)
    u = cells - (nearest - middle)
    first = tl.minimum(tl.maximum(nearest.to(tl.int32), 0), TOKENS - 1) + HALF
    own = z * 0
    if KIND == 1:
        own = tl.load(values + first)
    mass, total, ahead, both = _sides(
        u, nearest, first, own, constants, values, KIND, HALF, BOUNDED, SLOPE
    )
    shift = total / mass
    slope = shift
    if KIND == 0:
        looked = constants[6] + constants[5] * ((nearest - TOKENS // 2) + shift)
        if SLOPE:
            slope = both / mass - shift * shift
            slope = slope * (2.0 * sharpness * constants[1] * constants[5])
    elif SLOPE:
        looked = own + shift
        slope = 2.0 * sharpness * constants[1] * (both / mass - shift * (ahead / mass))
    else:
        looked = (own + total) / mass
    return looked, slope


@triton.jit  # type: ignore[untyped-decorator]
def _sides(  # type: ignore[no-untyped-def]
    u, nearest, first, own, constants, values,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Sums over the window of the weights, and of the weights times v, j and j v.

    v counts from the nearest token's own value where slopes are asked for.
    """
    zero = u * 0
    mass, total, ahead, both = zero + 1.0, zero, zero, zero
    for side in tl.static_range(2):
        sign = 1 - 2 * side
        factor = tl.exp(constants[4] * (sign * 2 * u - 1.0))
        room = constants[3] - nearest if side == 0 else nearest
        weight, moment, place, mixed = zero, zero, zero, zero
        for back in tl.static_range(HALF):
            j = HALF - back
            step = factor * constants[6 + HALF - back]
            if BOUNDED:
                step = tl.where(room >= j, step, 0.0)
            weight = step * weight + step
            if KIND == 0:
                # Sums of i - j + 1 over i >= j; with slopes, of their squares as well.
                if SLOPE:
                    mixed = step * (mixed + 2 * moment) + weight
                moment = step * moment + weight
            else:
                value = tl.load(values + (first + sign * j))
                if SLOPE:
                    value = value - own
                    place = step * (place + sign * j)
                    mixed = step * (mixed + value * (sign * j))
                moment = step * (moment + value)
        mass += weight
        both += mixed
        ahead += place
        total += sign * moment if KIND == 0 else moment
    return mass, total, ahead, both


@triton.jit  # type: ignore[untyped-decorator]
def _interpolate_kernel(  # type: ignore[no-untyped-def]
    z_ptr, out_ptr, grad_ptr, count, numbers, ratios, biases, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    wide = numbers.dtype.element_ty
    constants = _constants(numbers, ratios, KIND, HALF)
    z = tl.load(z_ptr + at, mask=inside, other=0.0).to(wide)
    z = tl.where(inside, z, constants[0])
    looked, slope = _look_up(
        z, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, BACKWARD
    )
    if BACKWARD:
        looked = slope * tl.load(grad_ptr + at, mask=inside, other=0.0).to(wide)
    tl.store(out_ptr + at, looked.to(out_ptr.dtype.element_ty), mask=inside)


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
    looked, slope = _look_up(
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


@triton.jit  # type: ignore[untyped-decorator]
def _residual_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, w_ptr, label_ptr, grad_ptr, partial_ptr, row_ptr, weight_ptr,
    samples, x_batch, y_batch, w_batch, label_batch,
    numbers, ratios, biases, values, TOKENS,
    DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    LABELS: tl.constexpr, BACKWARD: tl.constexpr, COPIES: tl.constexpr, AHEAD: tl.constexpr,
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
    constants = _constants(numbers, ratios, KIND, HALF)
    total = tl.zeros((WIDE,), tl.float64)
    tiles = tl.cdiv(samples, ROWS)
    own = x_ptr + batch * x_batch
    tile = pid
    if AHEAD:
        x = _load_rows(own, tile, samples, DIM, WIDE, ROWS)
        while tile < tiles:
            later = _load_rows(own, tile + programs, samples, DIM, WIDE, ROWS)
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
            total += _tile_sums(
                x, tile, batch, y_ptr, label_ptr, row_ptr, weight_ptr, w, g,
                samples, y_batch, label_batch, constants, ratios, biases, values, TOKENS,
                ROWS, EXACT, KIND, HALF, BOUNDED, LABELS, BACKWARD, COPIES,
            )  # fmt: skip
            tile += programs
    tl.store(partial_ptr + (batch * programs + pid) * DIM + at_d, total, mask=in_d)


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
    constants = _constants(numbers, ratios, KIND, HALF)
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
    constants = _constants(numbers, ratios, KIND, HALF)
    z = tl.where(inside, z, constants[0])
    looked, _ = _look_up(z, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, False)
    place = out_ptr + part.to(tl.int64) * rows * outputs + at_m[:, None] * outputs + at_o[None, :]
    tl.store(place, looked.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _advance_kernel(  # type: ignore[no-untyped-def]
    sums_ptr, current_ptr, ahead_ptr, seen_ptr, at_ptr, rates_ptr,
    DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One step of every row of coefficients, its rates read from the device."""
    row = tl.program_id(0)
    at_d = tl.arange(0, WIDE)
    inside = at_d < DIM
    place = row * DIM + at_d
    step = tl.load(at_ptr + row)
    rates = rates_ptr + 4 * step
    gain, shrink, momentum, threshold = (
        tl.load(rates), tl.load(rates + 1), tl.load(rates + 2), tl.load(rates + 3)
    )  # fmt: skip
    dtype = ahead_ptr.dtype.element_ty
    point = tl.load(ahead_ptr + place, mask=inside, other=0.0).to(tl.float64)
    before = tl.load(current_ptr + place, mask=inside, other=0.0)
    moved = (1 - shrink) * point - gain * tl.load(sums_ptr + place, mask=inside, other=0.0)
    size = tl.abs(moved) - threshold
    sign = tl.where(moved < 0, -1.0, 1.0)
    moved = tl.where(threshold > 0, tl.where(size > 0, sign * size, 0.0), moved)
    after = moved.to(dtype)
    tl.store(current_ptr + place, after, mask=inside)
    tl.store(ahead_ptr + place, after + momentum.to(dtype) * (after - before), mask=inside)
    tl.store(at_ptr + row, step + 1)
    # Written so that a size that is not a number is kept, not passed over.
    largest, norm = tl.max(tl.abs(point), 0), tl.sqrt(tl.sum(point * point, 0))
    held = tl.load(seen_ptr + 2 * row)
    tl.store(seen_ptr + 2 * row, tl.where(largest <= held, held, largest))
    held = tl.load(seen_ptr + 2 * row + 1)
    tl.store(seen_ptr + 2 * row + 1, tl.where(norm <= held, held, norm))


# ---------------------------------------------------------------------------------------------
# launches
# ---------------------------------------------------------------------------------------------


def interpolate(z: Tensor, it: Interpolant, out: Tensor | None = None) -> Tensor:
    """Look up each entry of z; ``out`` may be z itself where no gradient is recorded."""
    if out is not None or not (torch.is_grad_enabled() and z.requires_grad):
        return _interpolate(z, it, None, out)
    looked: Tensor = _Interpolate.apply(z, it)  # type: ignore[no-untyped-call]
    return looked


def _interpolate(
    z: Tensor, it: Interpolant, grad: Tensor | None, out: Tensor | None = None
) -> Tensor:
    z = z.contiguous()
    table = _table(it, _wide(z.dtype), z.device, z.dtype)
    out = torch.empty_like(z) if out is None else out
    block = 1024
    given = z if grad is None else grad.contiguous()
    _interpolate_kernel[(triton.cdiv(z.numel(), block),)](
        z, out, given, z.numel(),
        table.numbers, table.ratios, table.biases, table.values, table.tokens,
        KIND=table.kind, HALF=table.half, BOUNDED=table.bounded,
        BACKWARD=grad is not None, BLOCK=block,
    )  # fmt: skip
    return out


class _Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, it: Interpolant) -> Tensor:
        ctx.it = it
        ctx.save_for_backward(z)
        return _interpolate(z, it, None)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return _interpolate(z, ctx.it, grads[0]), None


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


_TILE = 8192  # bytes of x (in the precision of the computation) that a program holds at once
_MOST_ROWS = 128
_NARROW = 128  # bytes of a row (as above) up to which the next tile is loaded early
_REGISTERS = 16384  # of one of the four parts of a multiprocessor
_MOST_RESIDENT = 32
_known_residents: dict[tuple[Any, ...], int] = {}


def _launch(dim: int, dtype: torch.dtype) -> Launch:
    """As measured on an H200: programs of one warp, 64 numbers of x in each of its threads.

    Narrow rows, and those that take few bytes or many registers for what they compute, leave too
    little under way; their next tile is loaded early.
    """
    wide = triton.next_power_of_2(dim)
    size = 8 if dtype == torch.float64 else 4
    if wide * size > _WHOLE_ROW:
        return Launch(32, 256 // size)
    narrow = _NARROW if dtype == torch.float32 else 4 * _NARROW
    rows = min(_MOST_ROWS, max(4, _TILE // (wide * size)))
    return Launch(rows, wide, ahead=wide * size <= narrow)


def _resident(kernel: Any, warps: int) -> int:
    """Programs that a multiprocessor holds at once, by their registers."""
    used = int(getattr(kernel, "n_regs", None) or 0)
    if not used:
        return _MOST_RESIDENT
    granule = 256  # registers are handed out to a warp in such steps
    per_warp = -(-32 * used // granule) * granule
    return max(1, min(_MOST_RESIDENT, 4 * (_REGISTERS // per_warp) // warps))


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2  # in the interpreter: enough to try the second stage
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def residual_sum(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    it: Interpolant,
    labels: Tensor | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """sum_i (A(w.x_i - y_i) - labels_i) x_i in float64, reading x once."""
    inputs = (x, y, w) if labels is None else (x, y, w, labels)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        return _sums(x, y, w, labels, it, launch, None)[0]
    out: Tensor = _ResidualSum.apply(x, y, w, labels, it, launch)  # type: ignore[no-untyped-call]
    return out


def _sums(
    x: Tensor, y: Tensor, w: Tensor, labels: Tensor | None, it: Interpolant,
    launch: Launch | None, grad: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The sums; in the backward pass also each sample's A(z) - label and A'(z) (g.x)."""
    samples, dim = x.shape[-2:]
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-1], w.shape[:-1])
    count = max(1, batch.numel())
    x, y, w = x.contiguous(), y.contiguous(), w.contiguous()
    table = _table(it, w.dtype, x.device, w.dtype)
    if launch is None:
        launch = _launch(dim, x.dtype)
    tiled = launch.wide < dim
    backward = grad is not None
    rows = weights = x  # not written unless backwards
    if backward:
        rows, weights = torch.empty(2, count, samples, dtype=w.dtype, device=x.device)
    offsets = y if labels is None else labels.contiguous()
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
    kernel = _wide_residual_kernel if tiled else _residual_kernel
    key = (x.dtype, x.device, *options.values())
    resident = launch.programs or _known_residents.get(key)
    partial = _partial_sums(launch, resident or 1, x, count, tiled)
    given = w if grad is None else grad.contiguous()
    grid = (partial.shape[1], count)
    built = kernel[grid](
        x, y, w, offsets, given, partial, rows, weights, *sizes, **options
    )  # fmt: skip
    if resident is None:
        # The first call of its kind was as good as any; the next ones fill the device.
        _known_residents[key] = _resident(built, launch.warps)
    return partial.sum(1).reshape(*batch, dim), rows, weights


def _partial_sums(launch: Launch, resident: int, x: Tensor, count: int, tiled: bool) -> Tensor:
    """One row of sums for every program."""
    tiles = triton.cdiv(x.shape[-2], launch.rows)
    programs = min(tiles, max(1, _multiprocessors(x.device) * resident // count))
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


def advance(
    sums: Tensor, current: Tensor, ahead: Tensor, seen: Tensor, at: Tensor, rates: Tensor
) -> None:
    """One step of gradient descent in place, as :func:`iceform.backends.loops.descend` has it.

    ``sums``, ``current`` and ``ahead`` are (rows, d), ``seen`` is (rows, 2) in float64, ``at`` is
    (rows,), and ``rates`` holds (gain/n, shrink, momentum, threshold) for every step.
    """
    rows, dim = current.shape
    _advance_kernel[(rows,)](
        sums, current, ahead, seen, at, rates, DIM=dim, WIDE=triton.next_power_of_2(dim)
    )


@dataclass(frozen=True)
class Tiling:
    """How ``project`` is laid out."""

    rows: int = 128
    outputs: int = 64
    inner: int = 64
    warps: int = 8
    stages: int = 3


def project(x: Tensor, weights: Tensor, it: Interpolant, tiling: Tiling | None = None) -> Tensor:
    """A(x weight') of several weights, without autograd.

    x is (..., d), weights are (parts, outputs, d); the result is (parts, ..., outputs).
    """
    rows, dim = x.numel() // x.shape[-1], x.shape[-1]
    parts, outputs = weights.shape[:2]
    x, weights = x.contiguous(), weights.contiguous()
    table = _table(it, _wide(x.dtype), x.device, x.dtype)
    out = torch.empty(parts, *x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    if tiling is None:
        tiling = Tiling()
    grid = (parts * triton.cdiv(outputs, tiling.outputs), triton.cdiv(rows, tiling.rows))
    _project_kernel[grid](
        x, weights, out, rows, outputs,
        table.numbers, table.ratios, table.biases, table.values, table.tokens,
        KIND=table.kind, HALF=table.half, BOUNDED=table.bounded,
        DIM=dim, ROWS=tiling.rows, OUTPUTS=tiling.outputs, INNER=tiling.inner,
        WIDEN=interpreted(),  # the interpreter multiplies no bfloat16
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out
