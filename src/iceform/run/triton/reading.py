"""``read``, ``longest`` and ``norm``: what a network in context does between its matrix products.

Each is one reading of its input and one writing of its output; what ranges are checked by is
gathered on the way, as the bits of numbers that are not negative: of those the largest integer is
the largest number, and what is not a number is larger still. What is looked up is in range, or
thrown away when that is judged: windows are cut only where those around such z are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.run.triton.look_up import load_constants, look_up
from iceform.run.triton.support import LANES, TILE
from iceform.run.triton.tables import LINE, table_of
from iceform.tables import Interpolant
from iceform.validation import written_out

_BLOCK = 4 * LANES  # entries that a program reads
_NORMED = 3 * _BLOCK  # entries that a program norms
_NORMING = {torch.float32: 8, torch.float64: 4}  # its warps, at least
_ROOM: ContextVar[list[Tensor] | None] = ContextVar("for what kernels see", default=None)
_WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}


@triton.jit  # type: ignore[untyped-decorator]
def _bits(x, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of |x|."""
    return tl.abs(x).to(tl.int64 if DOUBLE else tl.int32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _tell(seen_ptr, x, inside, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Raise a number that all programs see to the largest |x|, of a row or of a tile."""
    found = tl.max(tl.where(inside, _bits(x, DOUBLE), 0))
    tl.atomic_max(seen_ptr, found, mask=found > tl.load(seen_ptr), sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _powers(size, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The least power of two that is no smaller, and its inverse; both of them numbers."""
    if DOUBLE:
        bits = tl.minimum(tl.maximum(_bits(size, True), 8 << 52), 2044 << 52)
        bits = (bits + ((1 << 52) - 1)) >> 52 << 52
        return bits.to(tl.float64, bitcast=True), ((2046 << 52) - bits).to(tl.float64, bitcast=True)
    else:
        bits = tl.minimum(tl.maximum(_bits(size, False), 8 << 23), 252 << 23)
        bits = (bits + ((1 << 23) - 1)) >> 23 << 23
        return bits.to(tl.float32, bitcast=True), ((254 << 23) - bits).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _line(  # type: ignore[no-untyped-def]
    z, floor, constants, ratios, values, TOKENS, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    DOUBLE: tl.constexpr,
):  # fmt: skip
    """A(z / s) s on a line's table, s the power of two that |z| and floor are at most."""
    size = tl.abs(z)
    power, inverse = _powers(tl.where(size < floor, floor, size), DOUBLE)
    looked, _ = look_up(
        z * inverse, constants, ratios, ratios, values, TOKENS, 0, HALF, BOUNDED, False
    )
    return looked * power


@triton.jit  # type: ignore[untyped-decorator]
def _tailed(  # type: ignore[no-untyped-def]
    z, constants, ratios, biases, values, TOKENS, REACH: tl.constexpr, SLOPE: tl.constexpr,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """A(z), and a line of SLOPE beyond REACH; what is not a number stays."""
    held = z
    if REACH > 0:
        held = tl.where(z > REACH, REACH, tl.where(z < -REACH, -REACH, z))
    looked, _ = look_up(held, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, False)
    if REACH > 0:
        looked += tl.where(z > REACH, SLOPE * (z - REACH), 0.0)
    return looked


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(  # type: ignore[no-untyped-def]
    z_ptr, out_ptr, offset_ptr, floor_ptr, up_ptr, by_ptr, seen_ptr, rows,
    numbers, ratios, biases, values, TOKENS,
    next_numbers, next_ratios, next_biases, next_values, NEXT_TOKENS, DIM: tl.constexpr,
    OFFSET: tl.constexpr, FLOOR: tl.constexpr, UP: tl.constexpr, BY: tl.constexpr,
    REACH: tl.constexpr, SLOPE: tl.constexpr,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    NEXT: tl.constexpr, NEXT_REACH: tl.constexpr, NEXT_SLOPE: tl.constexpr,
    NEXT_KIND: tl.constexpr, NEXT_HALF: tl.constexpr, NEXT_BOUNDED: tl.constexpr,
    DOUBLE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    within = feature < DIM
    inside = (row < rows)[:, None] & within[None, :]
    at = row[:, None] * DIM + feature[None, :]
    constants = load_constants(numbers, ratios, KIND, HALF)
    z = tl.load(z_ptr + at, mask=inside, other=0.0)
    if OFFSET:
        z = z + tl.load(offset_ptr + feature, mask=within, other=0.0)[None, :]
    if FLOOR:
        size, floor = tl.abs(z), tl.load(floor_ptr + feature, mask=within, other=1.0)[None, :]
        power, inverse = _powers(tl.where(size < floor, floor, size), DOUBLE)
        looked, _ = look_up(
            z * inverse, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, False
        )
        looked = looked * power
    else:
        looked = _tailed(
            z, constants, ratios, biases, values, TOKENS, REACH, SLOPE, KIND, HALF, BOUNDED
        )
    if UP:
        looked = looked * tl.load(up_ptr + feature, mask=within, other=1.0)[None, :]
    if NEXT:
        following = load_constants(next_numbers, next_ratios, NEXT_KIND, NEXT_HALF)
        out = _tailed(
            looked, following, next_ratios, next_biases, next_values, NEXT_TOKENS, NEXT_REACH,
            NEXT_SLOPE, NEXT_KIND, NEXT_HALF, NEXT_BOUNDED,
        )  # fmt: skip
        tl.store(out_ptr + at, out, mask=inside)
        _tell(seen_ptr + 1, looked, inside, DOUBLE)
    else:
        tl.store(out_ptr + at, looked, mask=inside)
    if BY:
        z = z * tl.load(by_ptr + feature, mask=within, other=0.0)[None, :]
    _tell(seen_ptr, z, inside, DOUBLE)


def read(
    z: Tensor, it: Interpolant, offset: Tensor | None, floor: Tensor | None, up: Tensor | None,
    by: Tensor | None, reach: float, slope: float,
    then: tuple[Interpolant, float, float] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`iceform.run.primitives.read`.

    What comes ``then`` is computed of numbers as they would have been stored: the last step
    before it multiplies by powers of two, which is exact.
    """
    order = _in_memory(z)
    z = written_out(z.permute(order))
    table = table_of(it, z.dtype, z.device, z.dtype)
    after, next_reach, next_slope = (it, 0.0, 0.0) if then is None else then
    later = table_of(after, z.dtype, z.device, z.dtype)
    out, dim = torch.empty_like(z), z.shape[-1]
    seen = _none_seen(1 if then is None else 2, z)
    given = [
        None if t is None else written_out(t.to(z).expand(dim)) for t in (offset, floor, up, by)
    ]
    rows, wide = z.numel() // dim, min(LANES, triton.next_power_of_2(dim))
    tile = max(1, _BLOCK // wide)
    _read_kernel[(triton.cdiv(rows, tile), triton.cdiv(dim, wide))](
        z, out, *(z if t is None else t for t in given), seen, rows,
        table.numbers, table.ratios, table.biases, table.values, table.tokens,
        later.numbers, later.ratios, later.biases, later.values, later.tokens, DIM=dim,
        OFFSET=offset is not None, FLOOR=floor is not None, UP=up is not None, BY=by is not None,
        REACH=_finite(reach), SLOPE=slope,
        KIND=table.kind, HALF=table.half, BOUNDED=table.beyond,
        NEXT=then is not None, NEXT_REACH=_finite(next_reach), NEXT_SLOPE=next_slope,
        NEXT_KIND=later.kind, NEXT_HALF=later.half, NEXT_BOUNDED=later.beyond,
        DOUBLE=z.dtype == torch.float64, ROWS=tile, WIDE=wide,
    )  # fmt: skip
    return _as_before(out, order), seen.view(z.dtype)


def _finite(reach: float) -> float:
    return reach if math.isfinite(reach) else 0.0


@contextmanager
def seen_together() -> Iterator[None]:
    """What kernels see inside lies together: one filling with zeros for many of them."""
    token = _ROOM.set([])
    try:
        yield
    finally:
        _ROOM.reset(token)


def _none_seen(count: int, x: Tensor) -> Tensor:
    """Zeros for what is seen of x."""
    room = _ROOM.get()
    if room is None:
        return torch.zeros(count, dtype=_WORDS[x.dtype], device=x.device)
    fits = room and len(room[0]) >= count and room[0].dtype == _WORDS[x.dtype]
    if not (fits and room[0].device == x.device):
        room[:] = [torch.zeros(LANES, dtype=_WORDS[x.dtype], device=x.device)]
    taken, room[0] = room[0][:count], room[0][count:]
    return taken


def _in_memory(x: Tensor) -> list[int]:
    """The axes but the last in the order in which they lie in memory."""
    return [*sorted(range(x.ndim - 1), key=x.stride, reverse=True), x.ndim - 1]


def _as_before(x: Tensor, order: list[int]) -> Tensor:
    return x.permute([order.index(i) for i in range(x.ndim)])


@triton.jit  # type: ignore[untyped-decorator]
def _longest_kernel(  # type: ignore[no-untyped-def]
    x_ptr, seen_ptr, rows, DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    DOUBLE: tl.constexpr,
):  # fmt: skip
    at_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at_d = tl.arange(0, WIDE)
    squares = tl.zeros((ROWS,), tl.float64 if DOUBLE else tl.float32)
    for start in range(0, DIM, WIDE):
        inside = (at_m < rows)[:, None] & (start + at_d < DIM)[None, :]
        x = tl.load(x_ptr + at_m[:, None] * DIM + (start + at_d)[None, :], mask=inside, other=0.0)
        squares += tl.sum(x * x, 1)
    _tell(seen_ptr, tl.sqrt(squares), at_m < rows, DOUBLE)


def longest(x: Tensor) -> Tensor:
    """As :func:`iceform.run.primitives.longest`."""
    x = written_out(x.permute(_in_memory(x)))
    dim = x.shape[-1]
    rows, wide = x.numel() // dim, min(1024, triton.next_power_of_2(dim))
    tile = max(1, TILE // wide)
    seen = _none_seen(1, x)
    _longest_kernel[(triton.cdiv(rows, tile),)](
        x, seen, rows, DIM=dim, WIDE=wide, ROWS=tile, DOUBLE=x.dtype == torch.float64
    )
    return seen.view(x.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, plus_ptr, out_ptr, weight_ptr, bias_ptr, seen_ptr, rows,
    numbers, ratios, values, TOKENS, root_numbers, root_ratios, root_values, ROOT_TOKENS,
    EPSILON: tl.constexpr, SHARE: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, PARTS: tl.constexpr,
    PLUS: tl.constexpr, CENTRED: tl.constexpr, PLAIN: tl.constexpr,
    HALF: tl.constexpr, BOUNDED: tl.constexpr, ROOT_KIND: tl.constexpr, ROOT_HALF: tl.constexpr,
    ROOT_BOUNDED: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """ROWS tokens: lengths, means, squares, roots, and the two readings of every entry.

    Entries are held in PARTS of WIDE: a power of two alone would be more than there are.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    constants = load_constants(numbers, ratios, 0, HALF)
    roots = load_constants(root_numbers, root_ratios, ROOT_KIND, ROOT_HALF)
    zero = tl.zeros((ROWS, WIDE), tl.float64 if DOUBLE else tl.float32)
    total, squares, held = zero, zero, (zero,)
    for part in tl.static_range(PARTS):
        at = part * WIDE + tl.arange(0, WIDE)
        inside, place = there[:, None] & (at < DIM)[None, :], row[:, None] * DIM + at[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0)
        if PLUS:
            x = x + tl.load(plus_ptr + place, mask=inside, other=0.0)
        held = held + (x,)  # type: ignore[assignment]  # noqa: RUF005
        total, squares = total + x, squares + x * x
    none = tl.zeros((ROWS,), tl.float64 if DOUBLE else tl.float32)
    length, mean = tl.sqrt(tl.sum(squares, 1)), none
    if CENTRED:
        mean = _line(tl.sum(total, 1) / DIM, SHARE * length, constants, ratios, values, TOKENS,
                     HALF, BOUNDED, DOUBLE)  # fmt: skip
        squares = zero
        for part in tl.static_range(PARTS):
            within = (part * WIDE + tl.arange(0, WIDE) < DIM)[None, :]
            x = tl.where(within, held[1 + part] - mean[:, None], 0.0)
            squares = squares + x * x
    spread = tl.sum(squares, 1) / DIM
    spread = _line(spread, none, constants, ratios, values, TOKENS, HALF, BOUNDED, DOUBLE)
    spread = spread + EPSILON
    root = _root(spread, roots, root_ratios, root_values, ROOT_TOKENS, ROOT_KIND, ROOT_HALF,
                 ROOT_BOUNDED, DOUBLE)  # fmt: skip
    for part in tl.static_range(PARTS):
        at = part * WIDE + tl.arange(0, WIDE)
        within = at < DIM
        x = held[1 + part]
        if CENTRED:
            x = tl.where(within[None, :], x - mean[:, None], 0.0)
        y = _line(x * root[:, None], x * 0, constants, ratios, values, TOKENS, HALF, BOUNDED,
                  DOUBLE)  # fmt: skip
        if not PLAIN:
            y = y * tl.load(weight_ptr + at, mask=within, other=0.0)[None, :]
            y = y + tl.load(bias_ptr + at, mask=within, other=0.0)[None, :]
            y = _line(y, x * 0, constants, ratios, values, TOKENS, HALF, BOUNDED, DOUBLE)
        tl.store(out_ptr + row[:, None] * DIM + at[None, :], y,
                 mask=there[:, None] & within[None, :])  # fmt: skip
    _tell(seen_ptr, length, there, DOUBLE)
    _tell(seen_ptr + 1, 1.0 / spread, there, DOUBLE)


@triton.jit  # type: ignore[untyped-decorator]
def _root(  # type: ignore[no-untyped-def]
    spread, constants, ratios, values, TOKENS, KIND: tl.constexpr, HALF: tl.constexpr,
    BOUNDED: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """2^-k times the table's answer at spread / 4^k."""
    if DOUBLE:
        k = ((_bits(spread, True) >> 52) - 1023) >> 1
        down = ((1023 - 2 * k) << 52).to(tl.float64, bitcast=True)
        up = ((1023 - k) << 52).to(tl.float64, bitcast=True)
    else:
        k = ((_bits(spread, False) >> 23) - 127) >> 1
        down = ((127 - 2 * k) << 23).to(tl.float32, bitcast=True)
        up = ((127 - k) << 23).to(tl.float32, bitcast=True)
    looked, _ = look_up(spread * down, constants, ratios, ratios, values, TOKENS, KIND, HALF,
                        BOUNDED, False)  # fmt: skip
    return looked * up


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, share: float,
    line: Interpolant, root: Interpolant, *, centred: bool, plus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The norm of every row, all of it looked up, and (max length, max 1/(v + epsilon)).

    ``line`` and ``root`` are the tables of the identity and of 1/sqrt on [1, 4]; the mean is read
    at no smaller a scale than ``share`` of a row's length. ``plus`` is added to x first, and
    rounded as if the sum had been stored.
    """
    order = _in_memory(x)
    x = written_out(x.permute(order))
    more = x if plus is None else written_out(plus.permute(order))
    dim, out = x.shape[-1], torch.empty_like(x)
    one, other = (table_of(it, x.dtype, x.device, x.dtype) for it in (line, root))
    seen = _none_seen(2, x)
    rows, (wide, parts) = x.numel() // dim, _parts_of(dim)
    tile = 1 << max(0, (_NORMED // (wide * parts)).bit_length() - 1)  # a power of two
    _norm_kernel[(triton.cdiv(rows, tile),)](
        x, more, out, x if weight is None else weight, x if bias is None else bias, seen, rows,
        one.numbers, one.ratios, one.values, one.tokens,
        other.numbers, other.ratios, other.values, other.tokens,
        EPSILON=epsilon, SHARE=share, DIM=dim, ROWS=tile,
        WIDE=wide, PARTS=parts,
        PLUS=plus is not None, CENTRED=centred, PLAIN=weight is None,
        HALF=one.half, BOUNDED=one.beyond, ROOT_KIND=other.kind, ROOT_HALF=other.half,
        ROOT_BOUNDED=other.beyond, DOUBLE=x.dtype == torch.float64,
        num_warps=max(_NORMING[x.dtype], min(8, wide * parts // 512)),
    )  # fmt: skip
    return _as_before(out, order), seen.view(x.dtype)


def _parts_of(dim: int) -> tuple[int, int]:
    """A row in one part, or in three where that leaves less of it empty."""
    whole = triton.next_power_of_2(dim)
    return (whole // 4, 3) if whole >= 4 and 4 * dim <= 3 * whole else (whole, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _count_kernel(words_ptr, found_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(words_ptr + at, mask=at < count, other=0)
    tl.atomic_add(found_ptr, tl.sum((words != 0).to(tl.int64), 0), sem="relaxed")


def count_nonzero(words: Tensor) -> Tensor:
    """How many of them are not 0, shape ()."""
    found = torch.zeros((), dtype=torch.int64, device=words.device)
    _count_kernel[(triton.cdiv(words.numel(), TILE),)](words, found, words.numel(), BLOCK=TILE)
    return found


def can_norm(dim: int, line: Interpolant, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a row is held at once, and the line is read by a window."""
    return dim <= TILE and table_of(line, dtype, device, dtype).kind == LINE
