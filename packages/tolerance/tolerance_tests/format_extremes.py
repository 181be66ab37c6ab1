"""Correct kernels of sums, linear maps and norms on numbers near the ends of their formats.

Every operation of a simulated kernel returns a neighbour of the exact result, drawn at random or
always the same one; it overflows to infinity, and may flush what is subnormal to zero. The exact
answers are decimals of 80 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import torch
import torch.nn.functional as F
from torch import Tensor

import iceform_tolerance as tolerances
from iceform.errors import BoundError
from iceform_tolerance.kernels import round_to
from iceform_tolerance.kind import KernelKind

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NAMES = ("total", "linear", "rms_norm", "layer_norm", "moments")
ROWS = 4
_EXACT = Context(prec=80, Emin=-(10**6), Emax=10**6)
_EPS = (1e-5, 1e-6, 1e-12, 1e-30, 1.2e-38, 1e-38, 1e-44, 1e-300, 1e30)


@dataclass(frozen=True)
class Draw:
    """Numbers for one call, in float64 but of a dtype."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    matrix: Tensor
    eps: float


class Arithmetic:
    """Operations of a kernel that accumulates in a format."""

    def __init__(
        self, kind: KernelKind, mode: str, flush: bool, generator: torch.Generator
    ) -> None:
        self.kind, self.mode, self.flush, self.generator = kind, mode, flush, generator

    def rounded(self, x: Tensor, low: bool = False) -> Tensor:
        form = self.kind.low if low else self.kind.wide
        modes = ("nearest",) if low else ("nearest", "zero", "away")
        if self.mode != "mixed":
            modes = ("nearest",) if low else (self.mode,)
        choices = [round_to(x, form, mode, self.flush) for mode in modes]
        if form.dtype == torch.float64:  # its operations round by themselves
            choices = [x]
        at = torch.randint(len(choices), x.shape, generator=self.generator)
        found = torch.stack(choices).gather(0, at[None])[0]
        return torch.where(found.abs() > form.largest, found.sign() * math.inf, found)

    def read(self, x: Tensor) -> Tensor:
        return round_to(x.to(self.kind.dtype).double(), self.kind.low, "nearest", self.flush)

    def total(self, terms: Tensor) -> Tensor:
        """Added up in a random order, in pairs or one by one."""
        order = torch.randperm(terms.shape[-1], generator=self.generator)
        parts = list(terms[..., order].unbind(-1))
        in_pairs = self.coin()
        while len(parts) > 1:
            first, second = parts.pop(0), parts.pop(0)
            parts.insert(len(parts) if in_pairs else 0, self.rounded(first + second))
        return parts[0]

    def mean(self, terms: Tensor) -> Tensor:
        n = terms.shape[-1]
        if self.coin():
            return self.rounded(self.total(terms) / n)
        share = self.rounded(torch.tensor([1 / n], dtype=torch.float64))
        if self.coin():
            return self.rounded(self.total(terms) * share)
        return self.total(self.rounded(terms * share))

    def coin(self) -> bool:
        return bool(torch.randint(2, (), generator=self.generator))

    def output(self, x: Tensor) -> Tensor:
        return x.to(self.kind.output).double()


def simulated(name: str, a: Arithmetic, drawn: Draw) -> Tensor:
    """What such a kernel returns."""
    fl, x = a.rounded, a.read(drawn.x)
    if name == "total":
        return a.output(a.total(x))
    if name == "linear":
        products = fl(x[:, None, :] * a.read(drawn.matrix))
        added = a.read(drawn.bias[: len(drawn.matrix)]) if drawn.bias is not None else None
        found = a.total(products)
        return a.output(found if added is None else fl(found + added))
    eps = float(fl(torch.tensor([drawn.eps], dtype=torch.float64)))
    away, centred = x, name != "rms_norm"
    if centred:
        mean = a.mean(x)[:, None]
        away = fl(x - mean)
    if name == "moments":
        square = fl(a.mean(fl(x.square()))[:, None] - fl(mean.square())).clamp(min=0.0)
    else:
        square = a.mean(fl(away.square()))[:, None]
    root = fl(fl(square + eps).sqrt())
    found = fl(away / root) if a.coin() else fl(away * fl(1 / root))
    if a.coin():
        found = a.rounded(found, low=True)
    if drawn.weight is not None:
        found = fl(found * a.read(drawn.weight))
    if drawn.bias is not None and centred:
        found = fl(found + a.read(drawn.bias))
    return a.output(found)


def native(name: str, dtype: torch.dtype, drawn: Draw) -> Tensor:
    """What PyTorch returns on a CPU, which adds in float32 or float64."""
    x, n = drawn.x.to(dtype), drawn.x.shape[-1]
    weight, bias = (None if v is None else v.to(dtype) for v in (drawn.weight, drawn.bias))
    if name == "total":
        return x.sum(-1).double()
    if name == "linear":
        added = None if bias is None else bias[: len(drawn.matrix)]
        return F.linear(x, drawn.matrix.to(dtype), added).double()
    return F.rms_norm(x, (n,), weight, drawn.eps).double()


NATIVE = ("total", "linear", "rms_norm")


def exact(name: str, drawn: Draw) -> list[list[Decimal]]:
    """The definition, by row and entry."""
    rows = [[Decimal(v) for v in row] for row in drawn.x.tolist()]
    bias = None if drawn.bias is None else [Decimal(v) for v in drawn.bias.tolist()]
    with localcontext(_EXACT):
        if name == "total":
            return [[sum(row, Decimal(0))] for row in rows]
        if name == "linear":
            matrix = [[Decimal(v) for v in row] for row in drawn.matrix.tolist()]
            shift = bias or [Decimal(0)] * len(matrix)
            return [
                [sum((a * b for a, b in zip(row, w, strict=True)), c)
                 for w, c in zip(matrix, shift, strict=False)]
                for row in rows
            ]  # fmt: skip
        return [_normed(row, drawn, bias, name != "rms_norm") for row in rows]


def _normed(
    row: list[Decimal], drawn: Draw, bias: list[Decimal] | None, centred: bool
) -> list[Decimal]:
    mean = sum(row, Decimal(0)) / len(row) * centred
    away = [v - mean for v in row]
    root = (sum((v * v for v in away), Decimal(0)) / len(row) + Decimal(drawn.eps)).sqrt()
    gains = [1.0] * len(row) if drawn.weight is None else drawn.weight.tolist()
    shifts = bias if bias is not None and centred else [Decimal(0)] * len(row)
    pairs = zip(away, gains, shifts, strict=True)
    return [v / root * Decimal(gain) + shift for v, gain, shift in pairs]


def allowed(name: str, kind: KernelKind, drawn: Draw) -> Tensor:
    """The tolerance that is stated."""
    form = {"dtype": kind.dtype, "accumulate": kind.accumulate, "output": kind.output}
    if name == "total":
        return tolerances.total(drawn.x, **form)[:, None]
    if name == "linear":
        bias = None if drawn.bias is None else drawn.bias[: len(drawn.matrix)]
        return tolerances.linear(drawn.x, drawn.matrix, bias, **form)
    if name == "rms_norm":
        return tolerances.rms_norm(drawn.x, drawn.weight, eps=drawn.eps, **form)
    return tolerances.layer_norm(
        drawn.x, drawn.weight, drawn.bias, eps=drawn.eps, moments=name == "moments", **form
    )


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Ordinary, huge, tiny, of all sizes, alike, or with zeros among them; numbers of the dtype."""
    info = torch.finfo(dtype)
    low, high = math.log2(info.tiny) + math.log2(info.eps), math.log2(info.max)
    how = int(torch.randint(7, (), generator=generator))
    ends = {
        0: (-2.0, 2.0), 1: (high / 2 - 3, high / 2 + 3), 2: (high - 6, high), 3: (low, low + 30),
        4: (low / 2 - 3, low / 2 + 6), 5: (low, high), 6: (0.0, 8.0),
    }[how]  # fmt: skip
    bits = torch.rand(shape, generator=generator, dtype=torch.float64) * (ends[1] - ends[0])
    signs = 1 - 2 * torch.randint(2, shape, generator=generator).double()
    found = signs * torch.exp2(ends[0] + bits)
    if how == 6:  # nearly constant: the mean is all there is
        found = found[..., :1] * (1 + 2.0**-6 * torch.rand(shape, generator=generator).double())
    zero = torch.rand(shape, generator=generator) < 0.1
    found = torch.where(zero, 0.0, found).clamp(-float(info.max), float(info.max))
    return found.to(dtype).double()


def draw(dtype: torch.dtype, generator: torch.Generator) -> Draw:
    """Numbers for one call."""

    def maybe(shape: tuple[int, ...]) -> Tensor | None:
        drawn = _numbers(shape, dtype, generator)
        return drawn if bool(torch.randint(2, (), generator=generator)) else None

    n = (1, 2, 3, 8, 13)[int(torch.randint(5, (), generator=generator))]
    eps = _EPS[int(torch.randint(len(_EPS), (), generator=generator))]
    return Draw(
        _numbers((ROWS, n), dtype, generator), maybe((n,)), maybe((n,)),
        _numbers((max(1, n // 2), n), dtype, generator), eps,
    )  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One row of one kernel beside its tolerance."""

    name: str
    kernel: str
    dtype: torch.dtype
    ratio: float  # of the largest error to its bound; infinite for NaN
    finite: bool  # whether the bound says anything


def _ratio(out: list[float], want: list[Decimal], bound: list[float]) -> float:
    worst = 0.0
    with localcontext(_EXACT):
        for got, right, most in zip(out, want, bound, strict=True):
            if not math.isfinite(most):
                continue
            off = abs(Decimal(got) - right) if math.isfinite(got) else Decimal("Infinity")
            worst = max(worst, float(off / Decimal(most)) if most else math.inf * float(off > 0))
    return worst


def findings(rows: int, seed: int = 0) -> Iterator[Finding]:
    """Attack until so many rows are done."""
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < rows:
        for dtype in DTYPES:
            drawn = draw(dtype, generator)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            accumulate = wide if torch.rand((), generator=generator) < 0.8 else dtype
            kind = KernelKind.of(dtype, accumulate)
            mode = ("nearest", "zero", "away", "mixed")[
                int(torch.randint(4, (), generator=generator))
            ]
            arithmetic = Arithmetic(kind, mode, bool(torch.rand((), generator=generator) < 0.5),
                                    generator)  # fmt: skip
            for name in NAMES:
                for finding in _compared(name, kind, arithmetic, drawn):
                    done += 1
                    yield finding


def _compared(name: str, kind: KernelKind, a: Arithmetic, drawn: Draw) -> Iterator[Finding]:
    try:
        bounds = allowed(name, kind, drawn)
    except BoundError:  # refused by name: nothing is claimed
        return
    want = exact(name, drawn)
    kernels: dict[str, Callable[[], Tensor]] = {"simulated": lambda: simulated(name, a, drawn)}
    wide = torch.float64 if kind.dtype == torch.float64 else torch.float32
    if name in NATIVE and kind.accumulate == wide:
        kernels["native"] = lambda: native(name, kind.dtype, drawn)
    for kernel, run in kernels.items():
        out = run().reshape(bounds.shape)
        for got, right, most in zip(out.tolist(), want, bounds.tolist(), strict=True):
            finite = all(map(math.isfinite, most))
            yield Finding(name, kernel, kind.dtype, _ratio(got, right, most), finite)
