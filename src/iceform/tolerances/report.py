"""Kernels beside their tolerances, by shape and dtype: what is printed and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from iceform.tolerances.attack import Row, attack, compare, search, worst
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
    groups: dict[tuple[str, str], list[Row]] = {}
    done = 0
    for found in attack(cases, dtypes, device, backends, seed=seed):
        done += found.cases
        progress(done)
        groups.setdefault((found.kernel, found.dtype), []).append(found)
    return [Row.of(rows) for _, rows in sorted(groups.items())]


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
