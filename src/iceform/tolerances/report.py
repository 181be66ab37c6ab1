"""Kernels beside their tolerances, by shape and dtype: what is printed and what is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from iceform.tolerances.attack import Finding, attack, compare, search, worst
from iceform.tolerances.attention import tolerance
from iceform.tolerances.backends import Backend
from iceform.tolerances.cases import CASES, Shape

__all__ = ["DTYPES", "Cost", "Row", "Tightness", "Total", "attacked", "cost", "row", "tightness"]

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
QUICK = ("random", "same sign")
_REPEATS = 5


@dataclass(frozen=True)
class Row:
    """One kernel at one shape and dtype, over all cases."""

    kernel: str
    shape: str
    dtype: str
    cases: int
    elements: int
    violations: int
    error: float | None  # where it came nearest to its bound; None: NaN or infinite
    bound: float
    ratio: float | None  # error / bound there
    case: str
    largest_error: float | None
    empty_rows: str
    skipped: tuple[str, ...]  # cases that the kernel does not take, and why


def row(
    backend: Backend,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int = 0,
    causal: bool = False,
    cases: Sequence[str] = tuple(CASES),
) -> Row:
    """Run a kernel on every case of a shape."""
    found = list(compare(backend, shape, dtype, device, seed=seed, causal=causal, cases=cases))
    skipped = tuple(f"{f.case}: {f.skipped}" for f in found if f.skipped)
    ran = [f for f in found if not f.skipped]
    name = str(dtype).removeprefix("torch.")
    if not ran:
        return Row(backend.name, str(shape), name, 0, 0, 0, None, 0.0, None, "", None, "", skipped)
    top = worst(ran)
    return Row(
        kernel=backend.name,
        shape=str(shape),
        dtype=name,
        cases=sum(f.cases for f in ran),
        elements=sum(f.elements for f in ran),
        violations=sum(f.violations for f in ran),
        error=_finite(top.error),
        bound=top.bound,
        ratio=_finite(top.ratio),
        case=top.case,
        largest_error=_finite(max(f.largest_error for f in ran)),
        empty_rows=", ".join(sorted({f.empty_rows for f in ran} - {""})),
        skipped=skipped,
    )


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


@dataclass(frozen=True)
class Tightness:
    """The bound over the largest error that a search among correct kernels found."""

    shape: str
    dtype: str
    factor: float  # bound / error, where that is smallest
    error: float
    bound: float
    case: str
    kernel: str
    native: float | None  # the same over the given kernels alone
    violations: int


def tightness(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    backends: Sequence[Backend] = (),
    *,
    seed: int = 0,
    cases: Sequence[str] | None = None,
) -> Tightness:
    """Search, and say how near the worst came."""
    options = {} if cases is None else {"cases": cases}
    found = search(shape, dtype, device, seed=seed, backends=backends, **options)
    top = worst(found)
    given = [f for f in found if f.kernel != "simulated" and not f.skipped]
    return Tightness(
        shape=str(shape),
        dtype=str(dtype).removeprefix("torch."),
        factor=1 / top.ratio,
        error=top.error,
        bound=top.bound,
        case=top.case,
        kernel=top.kernel,
        native=1 / worst(given).ratio if given and worst(given).ratio > 0 else None,
        violations=sum(f.violations for f in found),
    )


@dataclass(frozen=True)
class Total:
    """An attack, summed up by kernel and dtype."""

    kernel: str
    dtype: str
    cases: int
    elements: int
    violations: int
    ratio: float | None  # the largest error / bound
    case: str
    shape: str


def attacked(
    cases: int,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    backends: Sequence[Backend] = (),
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Total]:
    """Attack the bound with so many cases."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    done = 0
    for finding in attack(cases, dtypes, device, backends, seed=seed):
        done += finding.cases
        progress(done)
        if not finding.skipped:
            groups.setdefault((finding.kernel, finding.dtype), []).append(finding)
    return [_summed(found) for _, found in sorted(groups.items())]


def _summed(found: Sequence[Finding]) -> Total:
    top = worst(found)
    return Total(
        kernel=top.kernel,
        dtype=top.dtype,
        cases=sum(f.cases for f in found),
        elements=sum(f.elements for f in found),
        violations=sum(f.violations for f in found),
        ratio=_finite(top.ratio),
        case=top.case,
        shape=top.shape,
    )


@dataclass(frozen=True)
class Cost:
    """A tolerance in passes of native attention on the same inputs."""

    shape: str
    dtype: str
    seconds: float
    native: float
    passes: float

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def cost(shape: Shape, dtype: torch.dtype, device: torch.device) -> Cost:
    """Both timed in turn, the best of each."""
    generator = torch.Generator().manual_seed(0)
    sizes = (shape.queries, shape.length, shape.length)
    q, k, v = (
        torch.randn(shape.batch, shape.heads, n, shape.dim, generator=generator).to(device, dtype)
        for n in sizes
    )
    ours, native = math.inf, math.inf
    for _ in range(_REPEATS):
        native = min(native, _seconds(lambda: scaled_dot_product_attention(q, k, v), device))
        ours = min(ours, _seconds(lambda: tolerance(q, k, v, dtype=dtype), device))
    name = str(dtype).removeprefix("torch.")
    return Cost(str(shape), name, ours, native, ours / native)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
