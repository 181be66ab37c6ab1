r"""A look-up on equally spaced tokens from the few around z, by recurrence; and how it rounds.

With L_k the node nearest to z and :math:`u = (z - L_k)/h`, :math:`|u| \le 1/2`, the token j to the
right weighs, relative to the nearest,

.. math:: e^{-c (j - u)^2 + c u^2} = \prod_{i=1}^{j} a\, e^{-2 c (i - 1)},
    \qquad a = e^{c (2 u - 1)} \le 1,

and the one to the left the same with -u. So two exponentials and Horner's rule give every weight,
without overflow at any temperature; no token beyond J matters, as
:func:`iceform.tables.local.tail_mass` proves. The products stop at the ends of the table.
Values come from the table, or, where they lie on a line, from j itself.

The same formulas run in three ways: as loops in C (``look_up.c``); where those cannot run, a tensor
operation at a time, in chunks that stay in cache; on a GPU as Triton kernels.

**The loops in C** depend on no table, so there is one library for every look-up, compiled once on a
machine and kept beside the tables. It is compiled by the C compiler that is found (``CC``, or one
of the usual names), which takes about a second: the first look-up on a machine waits for it, and
every later process loads the file. Where there is no compiler look-ups run an operation at a time,
several times slower, and say so once.
``ICEFORM_COMPILE=off`` does without, and is quiet.

Samples are shared out in parts that depend on their number alone and summed in order, so an
answer depends neither on the number of threads nor on which was first. Threads are Python's: none
waits by spinning, which on a busy machine costs more than the work (torch's parallel loops do).

**Sums** over samples are told part by part to whoever listens (:class:`PartialSums`), so that a
part can be run again by itself and the parts be added up again: of a sum alone nothing could be
told without a second pass.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import next_power_of_two
from iceform.run.ordered import OrderedWindow
from iceform.tables import Grid, Interpolant
from iceform.tables.local import line_of
from iceform.tables.storage import folder
from iceform.validation import unit_roundoff, written_out


def mixed(total: Tensor, w: Tensor, mix: tuple[float, float], dtype: torch.dtype) -> Tensor:
    """A total + b w in float64, then in ``dtype``."""
    a, b = mix
    total = total if a == 1 else a * total
    return (torch.add(total, w, alpha=b) if b else total).to(dtype)


def sum_block(dtype: torch.dtype, samples: int) -> int:
    """Rows that a fused pass may sum in ``dtype`` before it goes on in float64."""
    return 1 if dtype == torch.float64 or samples <= tuning.WINDOWED_FEW else tuning.WINDOWED_LANES


# ---------------------------------------------------------------------------------------------
# what a sum was added up from, told to whoever is to attest it
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartialSums:
    """Parts that a sum over samples is made of.

    Attributes
    ----------
    sums
        Shape (parts, *batch, d), float64. Part p is the sum over tiles p, p + parts, p + 2 parts
        and so on.
    rows
        Samples of a tile; the last one may have fewer.
    whole
        Whether these are sums of the rows that the network returns; else of (A(z) - o) x alone,
        without what a prompt multiplies and adds.
    """

    sums: Tensor
    rows: int
    whole: bool = False

    def tiles(self, part: int, samples: int) -> list[slice]:
        """Which of so many samples are in a part."""
        count = -(-samples // self.rows)
        return [
            slice(t * self.rows, min(samples, (t + 1) * self.rows))
            for t in range(part, count, len(self.sums))
        ]


_LISTENING: ContextVar[list[PartialSums] | None] = ContextVar("partial sums", default=None)


@contextmanager
def listening() -> Iterator[list[PartialSums]]:
    """Be told the partial sums of what is added up inside."""
    told: list[PartialSums] = []
    token = _LISTENING.set(told)
    try:
        yield told
    finally:
        _LISTENING.reset(token)


def tell(parts: list[Tensor] | Tensor, rows: int, *, whole: bool = False) -> None:
    """Tell whoever listens what a sum was added up from, as :class:`PartialSums` has it."""
    if torch.compiler.is_compiling() or (told := _LISTENING.get()) is None or not len(parts):
        return
    sums = torch.stack(parts) if isinstance(parts, list) else parts
    told.append(PartialSums(sums.detach(), rows, whole))


Formula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Window:
    """What a windowed look-up needs of a table.

    Attributes
    ----------
    half
        J: tokens either side of the nearest.
    affine
        Whether the values lie on a line, so that none need be fetched.
    bounded
        Whether windows can reach past the ends of the table.
    constants, ratios, values
        What the formulas read: seven numbers, e^{-2c(j-1)} for j = 1 .. J, and the values
        with J zeros either side; in float64 on the CPU. The numbers are the grid's center m,
        cells per unit, at which token m sits (a whole or half number), the last token, the
        sharpness c, what neighbours on a line differ by, and the middle token's value.
    """

    half: int
    affine: bool
    bounded: bool
    constants: Tensor
    ratios: Tensor
    values: Tensor

    @property
    def kind(self) -> tuple[int, bool, bool]:
        """What the code of a look-up depends on; all else is data."""
        return self.half, self.affine, self.bounded

    def operands(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Constants, ratios and values where they are needed."""
        return _operands(self, dtype, device)


@lru_cache(maxsize=512)
def _operands(
    window: Window, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode(False):  # they outlive the call that asks for them first
        a, b, c = (
            t.to(device=device, dtype=dtype)
            for t in (window.constants, window.ratios, window.values)
        )
    return a, b, c


def window_of(it: Interpolant, dtype: torch.dtype) -> Window | None:
    """The window of a table in a dtype; None where every token must be looked at."""
    half = it.half_width(unit_roundoff(dtype))
    return None if half is None else _window(it, half)


@lru_cache(maxsize=512)
def _window(it: Interpolant, half: int) -> Window:
    grid = it.grid
    assert isinstance(grid, Grid)
    line = line_of(it)
    numbers = (
        grid.center, 1 / grid.spacing, 0.5 * grid.cells + grid.guards, float(grid.tokens - 1),
        it.sharpness, 0.0 if line is None else line[0], float(it.values[grid.tokens // 2]),
    )  # fmt: skip
    steps = torch.arange(half, dtype=torch.float64)
    return Window(
        half=half,
        affine=line is not None,
        bounded=grid.guards < half,
        constants=torch.tensor(numbers, dtype=torch.float64),
        ratios=torch.exp(-2 * it.sharpness * steps),
        values=torch.nn.functional.pad(it.values.detach().cpu(), (half, half)),
    )


# ---------------------------------------------------------------------------------------------
# the formulas, as tensor operations
# ---------------------------------------------------------------------------------------------


def _place(z: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The nearest token, what its neighbours right and left weigh, the last token, and ones.

    The ones are not a number where z is not, so that no mask hides it.
    """
    center, per_unit, middle, last, sharpness = numbers[:5].unbind()
    cells = (z - center) * per_unit
    nearest = torch.minimum((cells + middle).round().clamp(min=0), last)
    u = cells - (nearest - middle)
    right = torch.exp(sharpness * (2 * u - 1))
    left = torch.exp(sharpness * (-2 * u - 1))
    return nearest, right, left, last, 1 + 0 * u


def _make_look_up(half: int, affine: bool, bounded: bool) -> Formula:
    """A(z) for one kind of window."""

    def formula(z: Tensor, numbers: Tensor, ratios: Tensor, values: Tensor) -> Tensor:
        nearest, right, left, last, mass = _place(z, numbers)
        first = nearest.to(torch.int64).clamp(0, values.shape[0] - 2 * half - 1)
        total = torch.zeros_like(z)
        for side, factor, room in ((1, right, last - nearest), (-1, left, nearest)):
            weight, moment = torch.zeros_like(z), torch.zeros_like(z)
            for j in range(half, 0, -1):
                step = factor * ratios[j - 1]
                if bounded:
                    step = torch.where(room >= j, step, 0.0)
                weight = step * (weight + 1.0)
                if affine:
                    # Sums of i - j + 1 over i >= j: the step before counts every token once more.
                    moment = step * moment + weight
                else:
                    moment = step * (moment + values[first + (half + side * j)])
            mass, total = mass + weight, total + (side * moment if affine else moment)
        if affine:
            middle = values.shape[0] // 2 - half
            return numbers[6] + numbers[5] * ((nearest - middle) + total / mass)
        return (values[first + half] + total) / mass

    return formula


def _make_derivative(half: int, affine: bool, bounded: bool) -> Formula:
    r"""A'(z) = (2 c / h) Cov(j, v), for one kind of window."""

    def formula(z: Tensor, numbers: Tensor, ratios: Tensor, values: Tensor) -> Tensor:
        nearest, right, left, last, mass = _place(z, numbers)
        first = nearest.to(torch.int64).clamp(0, values.shape[0] - 2 * half - 1)
        own = values[first + half]
        zero = torch.zeros_like(z)
        ahead, total, both = zero, zero, zero
        for side, factor, room in ((1, right, last - nearest), (-1, left, nearest)):
            weight, place, moment, mixed = zero, zero, zero, zero
            for j in range(half, 0, -1):
                step = factor * ratios[j - 1]
                if bounded:
                    step = torch.where(room >= j, step, 0.0)
                value = (
                    numbers[5] * (side * j) if affine else values[first + (half + side * j)] - own
                )
                weight, place = step * (weight + 1.0), step * (place + side * j)
                moment, mixed = step * (moment + value), step * (mixed + side * j * value)
            mass, ahead = mass + weight, ahead + place
            total, both = total + moment, both + mixed
        covariance = both / mass - (total / mass) * (ahead / mass)
        return 2 * numbers[4] * numbers[1] * covariance

    return formula


_SOURCE = Path(__file__).with_name("look_up.c")
_FLAGS = "-O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -shared -fPIC"
_MACHINES = ("-march=native", "-mcpu=native", "")  # the first that the compiler takes
_NAMES = ("cc", "gcc", "clang")
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}

_Operands = tuple[Tensor, Tensor, Tensor]


class _Shape(ctypes.Structure):
    """``shape`` of look_up.c."""

    _fields_ = [(name, ctypes.c_int64) for name in ("half", "affine", "bounded", "tokens")]


class _Side(ctypes.Structure):
    """``side`` of look_up.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("width", "search", "closed")),
        *((name, ctypes.c_double) for name in ("a", "b", "d", "low", "high")),
        *((name, ctypes.c_void_p) for name in ("ends", "origins", "slopes", "offsets", "column")),
        ("first", ctypes.c_void_p),
    ]


class _Axes(ctypes.Structure):
    """``axes`` of look_up.c."""

    _fields_ = [(name, ctypes.c_int64 * 3) for name in ("sizes", "a", "b")]


# ---------------------------------------------------------------------------------------------
# the library of loops in C
# ---------------------------------------------------------------------------------------------


@cache
def _library() -> ctypes.CDLL | None:
    """The library, compiled if it is not yet; why there is none it says once."""
    if os.environ.get("ICEFORM_COMPILE", "").strip().lower() in ("off", "0", "no", "none"):
        return None
    compiler, wanting = _compiler(), "no C compiler was found"
    if compiler is not None:
        path = (folder() or _temporary()) / f"look-up-{_key(compiler)}.so"
        try:
            if not path.exists():
                _compile(compiler, path)
            return ctypes.CDLL(str(path))
        except (OSError, RuntimeError, subprocess.SubprocessError) as failed:
            wanting = f"look_up.c was not compiled ({failed})"
    warnings.warn(
        f"{wanting}; look-ups run an operation at a time, several times slower. Install a C "
        "compiler (or name it by CC=), or set ICEFORM_COMPILE=off to do without",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def ready(z: Tensor) -> bool:
    """Whether the library takes this."""
    return z.device.type == "cpu" and z.dtype in _DTYPES and _library() is not None


def _compiler() -> tuple[str, ...] | None:
    named = shlex.split(os.environ.get("CC", ""))
    if named and shutil.which(named[0]):
        return tuple(named)
    found = next((which for name in _NAMES if (which := shutil.which(name))), None)
    return None if found is None else (found,)


def _key(compiler: Sequence[str]) -> str:
    """Tells sources, compilers and processors apart: code for one may not run on another."""
    program = os.stat(os.path.realpath(str(shutil.which(compiler[0]))))
    said = f"{compiler} {program.st_size} {program.st_mtime_ns} {_FLAGS} {_MACHINES}"
    parts = (_SOURCE.read_bytes(), said.encode(), _processor())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:40]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
        kinds = (b"model name", b"flags", b"Features", b"CPU part")
        return b"\n".join(sorted({line for line in lines if line.startswith(kinds)}))
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}".encode()


def _compile(compiler: Sequence[str], path: Path) -> None:
    """Written elsewhere and moved, so that no process ever loads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    failed = ""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="look-up-") as made:
        built = Path(made) / path.name
        for machine in _MACHINES:
            command = [*compiler, *_FLAGS.split(), *machine.split(), str(_SOURCE), "-o", str(built)]
            done = subprocess.run(
                command, capture_output=True, check=False, timeout=tuning.WINDOWED_LONGEST
            )
            if done.returncode == 0:
                built.replace(path)
                return
            failed = done.stderr.decode(errors="replace").strip()
    raise RuntimeError(failed.splitlines()[-1] if failed else "the compiler said nothing")


def _temporary() -> Path:
    """Where no cache is kept: for this process alone."""
    made = tempfile.TemporaryDirectory(prefix="iceform-")
    atexit.register(made.cleanup)
    return Path(made.name)


# ---------------------------------------------------------------------------------------------
# what it does
# ---------------------------------------------------------------------------------------------


# What each loop takes: pointers and whole numbers.
_TAKES = {
    "look_up": "ppipppp",
    "derivative": "ppipppp",
    "read": "ppiiippppppppp",
    "pass": "ppppiippppiippp",
    "instruct": "ppppppii",
}


@cache
def _loop(what: str, dtype: torch.dtype) -> Any:
    """A loop of the library, which takes numbers as Python has them."""
    call = getattr(_library(), f"{what}_{_DTYPES[dtype]}")
    kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int64}
    call.argtypes, call.restype = [kinds[kind] for kind in _TAKES[what]], None
    return call


def looped(what: str, z: Tensor, kind: tuple[int, bool, bool], operands: _Operands) -> Tensor:
    """A(z) or A'(z), entry by entry; z has one axis."""
    call = _loop(what, z.dtype)
    z = written_out(z)
    out = torch.empty_like(z)
    shape, size = ctypes.byref(_shape(kind, operands)), z.element_size()
    tables = [_at(t) for t in operands]

    def part(start: int) -> None:
        count = min(tuning.WINDOWED_PART, z.numel() - start)
        call(_at(z, start * size), _at(out, start * size), count, shape, *tables)

    _shared_out(part, range(0, z.numel(), tuning.WINDOWED_PART))
    return out


class Side:
    """A column of a table for the loops in C.

    Parameters
    ----------
    window
        Its entries.
    parabola
        Coefficients of z^2, z and 1, and from where to where the column is that parabola.
    """

    def __init__(
        self, window: OrderedWindow, parabola: tuple[float, float, float, float, float] | None
    ) -> None:
        search = next_power_of_two(len(window.first))
        ends = torch.nn.functional.pad(window.ends, (0, search - len(window.first)), value=math.inf)
        held = (
            ends, window.origins, window.slopes, window.offsets, window.column, window.first,
        )  # fmt: skip
        width, closed = window.offsets.shape[1], parabola is not None
        at = _Side(width, search, closed, *(parabola or [0.0] * 5), *(t.data_ptr() for t in held))
        self.held, self.address = held, ctypes.byref(at)


_NO_SIDE = ctypes.byref(_Side())


def instruct(a: Tensor, b: Tensor, plus: Side | None, minus: Side | None) -> Tensor:
    """F(a + b) - G(a - b), shapes (i, j, k) that agree or are 1; a side that is None is 0."""
    shape, count, axes = _axes(a.shape, a.stride(), b.shape, b.stride())
    out = a.new_empty(shape)
    call, at = _loop("instruct", a.dtype), (_at(a), _at(b), _at(out), axes)
    sides = [_NO_SIDE if side is None else side.address for side in (plus, minus)]

    def part(start: int) -> None:
        call(*at, *sides, start, min(tuning.WINDOWED_PART, count - start))

    _shared_out(part, range(0, count, tuning.WINDOWED_PART))
    return out


@lru_cache(maxsize=512)
def _axes(
    first: torch.Size, strides: tuple[int, ...], second: torch.Size, others: tuple[int, ...]
) -> tuple[tuple[int, ...], int, Any]:
    """The shape of an answer, its size, and how operands of these shapes and strides are read.

    Axes that are one run of numbers in both operands are one axis.
    """
    shape = tuple(map(max, first, second))
    axes = [(1, 0, 0)] * 3
    for axis in zip(shape, first, strides, second, others, strict=True):
        size, own, step, other, away = axis
        last, a, b = axes[-1]
        step, away = step * (own > 1), away * (other > 1)
        if last == 1 or (a, b) == (step * size, away * size):
            axes[-1] = (last * size, step, away) if size > 1 else axes[-1]
        elif size > 1:
            axes.append((size, step, away))
    columns = [(ctypes.c_int64 * 3)(*column) for column in zip(*axes[-3:], strict=True)]
    return shape, math.prod(shape), ctypes.byref(_Axes(*columns))


def read(
    z: Tensor, kind: tuple[int, bool, bool], operands: _Operands, floor: Tensor | None,
    up: Tensor | None, by: Tensor | None, reach: float, slope: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`iceform.run.primitives.read`; floor, up and by have one a feature.

    The last axis of z has the features.
    """
    call = _loop("read", z.dtype)
    z, dim = written_out(z), z.shape[-1] if z.ndim else 1
    out, starts = torch.empty_like(z), range(0, z.numel(), tuning.WINDOWED_PART)
    shape, size = ctypes.byref(_shape(kind, operands)), z.element_size()
    beyond = torch.tensor([reach, slope], dtype=z.dtype)
    most = torch.empty(len(starts), dtype=z.dtype)
    scales = [None if t is None else _repeated(t, dim).to(z) for t in (floor, up, by)]
    given = [None if t is None else _at(t) for t in scales]
    tables = [_at(t) for t in operands]

    def part(start: int) -> None:
        count = min(tuning.WINDOWED_PART, z.numel() - start)
        seen = _at(most, start // tuning.WINDOWED_PART * size)
        call(
            _at(z, start * size), _at(out, start * size), count, start % dim, dim, *given,
            _at(beyond), seen, shape, *tables,
        )  # fmt: skip

    _shared_out(part, starts)
    return out, most.amax(0, keepdim=True)


def _repeated(numbers: Tensor, dim: int) -> Tensor:
    """From the beginning again, so that any ``_LANES`` from a feature on can be read."""
    times = 1 + -(-tuning.WINDOWED_LANES // dim)
    return numbers.expand(dim).repeat(times)


def pass_over(
    x: Tensor, y: Tensor, w: Tensor, labels: Tensor | None,
    kind: tuple[int, bool, bool], operands: _Operands, *, exact: bool, lengths: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """sum_i (A(w.x_i - y_i) - labels_i) x_i, and (max |x_ij|, max ||x_i||_2), both float64.

    All of one dtype and written out; x is (n, d). Rows are summed 128 at a time in their own
    precision unless ``exact``; the second size is 0 unless ``lengths``.
    """
    call = _loop("pass", x.dtype)
    rows, dim = x.shape
    starts = range(0, rows, tuning.WINDOWED_PART)
    totals = torch.zeros(len(starts), dim, dtype=torch.float64)
    blocks = torch.empty(len(starts), dim, dtype=x.dtype)
    seen = torch.empty(len(starts), 2, dtype=torch.float64)
    shape, size = ctypes.byref(_shape(kind, operands)), x.element_size()
    tables = [_at(t) for t in operands]

    def part(start: int) -> None:
        i = start // tuning.WINDOWED_PART
        call(
            _at(x, start * dim * size), _at(y, start * size), _at(w),
            None if labels is None else _at(labels, start * size),
            min(tuning.WINDOWED_PART, rows - start), dim, shape, *tables, exact, lengths,
            _at(blocks, i * dim * size), _at(totals, i * dim * 8), _at(seen, i * 16),
        )  # fmt: skip

    _shared_out(part, starts)
    tell(totals, tuning.WINDOWED_PART)
    largest, squares = seen.amax(0).unbind()
    return totals.sum(0), torch.stack([largest, squares.sqrt()])


def _at(t: Tensor, offset: int = 0) -> int:
    return t.data_ptr() + offset


def _shape(kind: tuple[int, bool, bool], operands: _Operands) -> _Shape:
    half, affine, bounded = kind
    return _Shape(half, affine, bounded, len(operands[2]) - 2 * half)


def _shared_out(part: Callable[[int], None], starts: Sequence[int]) -> None:
    """Every part, by as many threads as torch uses; each takes the next part that nobody has."""
    threads = 1 if len(starts) == 1 else min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            part(start)
        return
    left = iter(starts)
    taking = threading.Lock()

    def take() -> None:
        while True:
            with taking:
                start = next(left, None)
            if start is None:
                return
            part(start)

    helpers = [_pool(os.getpid()).submit(take) for _ in range(threads - 1)]
    take()
    for helper in helpers:
        if not helper.cancel():  # one that has not begun has nothing left to do
            helper.result()


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="iceform")


# ---------------------------------------------------------------------------------------------
# by the loops in C, or an operation at a time
# ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _formula(what: str, kind: tuple[int, bool, bool]) -> Formula:
    return _make_look_up(*kind) if what == "look_up" else _make_derivative(*kind)


def look_up(z: Tensor, window: Window) -> Tensor:
    """A(z) entry by entry, without autograd."""
    return _run("look_up", z, window)


def derivative(z: Tensor, window: Window) -> Tensor:
    """A'(z) entry by entry; differentiable itself where gradients are recorded."""
    if torch.is_grad_enabled() and z.requires_grad:
        return _formula("derivative", window.kind)(z, *window.operands(z.dtype, z.device))
    return _run("derivative", z, window)


def _run(what: str, z: Tensor, window: Window) -> Tensor:
    operands, flat = window.operands(z.dtype, z.device), z.detach().reshape(-1)
    if ready(z):
        return looped(what, flat, window.kind, operands).reshape(z.shape)
    formula = _formula(what, window.kind)
    if z.numel() <= tuning.WINDOWED_PART:
        return formula(flat, *operands).reshape(z.shape)
    return torch.cat(
        [formula(part, *operands) for part in flat.split(tuning.WINDOWED_PART)]
    ).reshape(z.shape)


class LookUp(torch.autograd.Function):
    """A(z) with the derivative in closed form; both can be differentiated again."""

    @staticmethod
    def forward(z: Tensor, window: Window) -> Tensor:
        """A(z)."""
        return look_up(z, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: Tensor) -> None:
        """Keep z."""
        z, ctx.window = inputs
        ctx.save_for_backward(z)
        ctx.save_for_forward(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Multiply by A'(z)."""
        (z,) = ctx.saved_tensors
        return grads[0] * derivative(z, ctx.window), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The same forwards."""
        (z,) = ctx.saved_tensors
        along: Tensor = tangents[0] * derivative(z, ctx.window)
        return along
