"""Kernels beside their tolerances, by shape and dtype: what is printed and what is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from iceform.tolerances.attack import Finding, attack, compare, search, worst
from iceform.tolerances.backends import Backend
from iceform.tolerances.cases import CASES, Shape

__all__ = ["DTYPES", "Row", "Tightness", "attacked", "row", "tightness"]

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
QUICK = ("random", "same sign")


@dataclass(frozen=True)
class Row:
    """One kernel and dtype, over all cases; where it came nearest to its bound."""

    kernel: str
    dtype: str
    cases: int
    elements: int
    violations: int
    error: float | None  # None: NaN or infinite, or nothing ran
    bound: float
    ratio: float | None  # error / bound
    case: str
    shape: str
    largest_error: float | None
    empty_rows: str
    skipped: tuple[str, ...]  # cases that the kernel does not take, and why

    @classmethod
    def of(cls, found: Sequence[Finding]) -> Row:
        """Findings of one kernel and dtype, summed up."""
        ran = [f for f in found if not f.skipped]
        top = worst(ran or found)
        return cls(
            kernel=top.kernel,
            dtype=top.dtype,
            cases=sum(f.cases for f in ran),
            elements=sum(f.elements for f in ran),
            violations=sum(f.violations for f in ran),
            error=_finite(top.error) if ran else None,
            bound=top.bound,
            ratio=_finite(top.ratio) if ran else None,
            case=top.case if ran else "",
            shape=top.shape,
            largest_error=_finite(max(f.largest_error for f in ran)) if ran else None,
            empty_rows=", ".join(sorted({f.empty_rows for f in ran} - {""})),
            skipped=tuple(f"{f.case}: {f.skipped}" for f in found if f.skipped),
        )


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


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
    found = compare(backend, shape, dtype, device, seed=seed, causal=causal, cases=cases)
    return Row.of(list(found))


def attacked(
    cases: int,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    backends: Sequence[Backend] = (),
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Attack the bound with so many cases; a row for each kernel and dtype."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    done = 0
    for finding in attack(cases, dtypes, device, backends, seed=seed):
        done += finding.cases
        progress(done)
        groups.setdefault((finding.kernel, finding.dtype), []).append(finding)
    return [Row.of(found) for _, found in sorted(groups.items())]


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
        dtype=top.dtype,
        factor=1 / top.ratio,
        error=top.error,
        bound=top.bound,
        case=top.case,
        kernel=top.kernel,
        native=1 / worst(given).ratio if given and worst(given).ratio > 0 else None,
        violations=sum(f.violations for f in found),
    )
