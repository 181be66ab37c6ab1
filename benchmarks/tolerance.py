"""``python -m benchmarks.tolerance``: proven tolerances of attention, attacked and measured.

Five parts, each printed and kept in one JSON file: *attack* (correct kernels on small hard cases),
*kernels* (PyTorch's, by shape and dtype, on every hard case), *search* (the bound over the largest
error that an adversary among correct kernels finds), *walk* (half precision on a GPU: the bound by
kernels over the bound in float64) and *cost* (in native passes at n = 4096; on a GPU also with the
process on one core beside one that never rests, and how many kernels are launched).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import crowded, wall_ms
from iceform_tolerance import attention, gpu, tolerance
from iceform_tolerance.attack import DTYPES, attacked, row, tightness
from iceform_tolerance.backends import BACKENDS, KernelBackend
from iceform_tolerance.cases import CASES, Shape, draw
from iceform_tolerance.kind import KernelKind

PARTS = ("attack", "kernels", "search", "walk", "cost")
SEARCHED = ("random", "same sign", "paths")
EVERY = list(DTYPES.values())
NATIVE = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]

SHAPES = {
    "cpu": [
        Shape(1, 2, 128, 32),
        Shape(2, 4, 256, 64, kv_heads=2),
        Shape(1, 2, 1024, 64),
        Shape(1, 1, 16, 64, keys=32_768),
    ],
    "cuda": [
        Shape(2, 4, 128, 32),
        Shape(4, 8, 1024, 64, kv_heads=2),
        Shape(4, 8, 1024, 64),
        Shape(2, 8, 2048, 128),
        Shape(1, 8, 64, 64, keys=32_768),
    ],
}
SOUGHT = [Shape(1, 1, 64, 32), Shape(4, 8, 256, 64), Shape(4, 8, 1024, 64), Shape(2, 8, 512, 128)]
WALKED = [Shape(2, 4, 256, 64, kv_heads=2, keys=320), Shape(1, 2, 1024, 128)]
REPEATS, CROWDED = 9, 60
COSTED = {
    "cpu": [(Shape(1, 1, 4096, 64), False)],
    "cuda": [
        (Shape(4, 8, 4096, 64), False),
        (Shape(4, 8, 4096, 64), True),
        (Shape(2, 8, 4096, 128), False),
        (Shape(4, 8, 4096, 64, kv_heads=2), False),
    ],
}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tolerance", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", type=int, default=100_000, help="of the attack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="out/tolerance-DEVICE.json by default")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    saved = asked.out or Path("out") / f"tolerance-{device.type}.json"
    result = {
        "machine": _machine(device),
        "command": " ".join(["python -m benchmarks.tolerance", *sys.argv[1:]]),
    }
    print(result["machine"])
    run = {
        "attack": lambda: _attack(device, asked.cases, asked.seed),
        "kernels": lambda: _kernels(device, asked.seed),
        "search": lambda: _search(device, asked.seed),
        "walk": lambda: _walk(device, asked.seed),
        "cost": lambda: _cost(device),
    }
    saved.parent.mkdir(parents=True, exist_ok=True)
    for part in asked.parts or PARTS:
        start = time.perf_counter()
        for so_far in run[part]():  # kept as it grows: a run may be cut short
            result[part] = {**so_far, "seconds": round(time.perf_counter() - start, 1)}
            text = json.dumps(result, indent=1, allow_nan=False)
            saved.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {saved}")


def _machine(device: torch.device) -> str:
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return f"{place or platform.machine()}, torch {torch.__version__}"


def _backends(device: torch.device) -> list[KernelBackend]:
    names = ("sdpa", "math", "efficient", "flash") if device.type == "cuda" else ("sdpa", "math")
    return [BACKENDS[name] for name in names]


def _attack(device: torch.device, cases: int, seed: int) -> Iterator[dict[str, object]]:
    shown = 0

    def progress(done: int) -> None:
        nonlocal shown
        if done >= shown + cases // 10:
            shown = done
            print(f"attack: {done:,} of {cases:,} cases", flush=True)

    totals = attacked(cases, EVERY, device, _backends(device), seed=seed, progress=progress)
    for total in totals:
        worst = f"largest error/bound {total.ratio:.3g} ({total.case}, {total.shape})"
        print(
            f"{total.kernel:10} {total.dtype:14} {total.cases:8,} cases {total.violations:4} "
            f"violations, {worst}"
        )
    yield {
        "rows": [total.to_dict() for total in totals],
        "cases": sum(total.cases for total in totals),
        "elements": sum(total.elements for total in totals),
        "violations": sum(total.violations for total in totals),
    }


def _kernels(device: torch.device, seed: int) -> Iterator[dict[str, object]]:
    rows = []
    for shape in SHAPES[device.type]:
        for dtype in NATIVE:
            for backend in _backends(device):
                found = row(backend, shape, dtype, device, seed=seed)
                rows.append(found.to_dict())
                print(
                    f"{found.kernel:10} {found.dtype:14} {found.shape:24} {found.cases:4} cases, "
                    f"{found.violations} violations, largest error/bound {found.ratio:.3g} "
                    f"({found.case}); empty rows {found.empty_rows or '-'}; "
                    f"{len(found.skipped)} cases not taken",
                    flush=True,
                )
                violations = sum(int(found["violations"]) for found in rows)
                yield {"rows": rows, "violations": violations}


def _search(device: torch.device, seed: int) -> Iterator[dict[str, object]]:
    rows = []
    for shape in SOUGHT:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            found = tightness(
                shape, dtype, device, _backends(device)[:1], seed=seed, cases=SEARCHED
            )
            rows.append(asdict(found))
            print(
                f"{found.dtype:14} {found.shape:16} bound/worst error {found.factor:6.1f} "
                f"({found.case}), of PyTorch's kernel {found.native or 0:.0f}",
                flush=True,
            )
            median = statistics.median(float(found["factor"]) for found in rows)
            yield {"rows": rows, "median": median}
    print(f"median bound/worst error {median:.1f}")


def _walk(device: torch.device, seed: int) -> Iterator[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for dtype in (torch.bfloat16, torch.float16) if device.type == "cuda" else ():
        generator = torch.Generator().manual_seed(seed)
        for case in CASES:
            for shape in WALKED:
                found = _over_float64(case, shape, dtype, device, generator)
                rows += [] if found is None else [found]
    if rows:
        most = max(rows, key=lambda row: float(str(row["most"])))
        print(f"walk over float64: at most {most['most']:.3f} ({most})")
    yield {"rows": rows}


def _over_float64(
    case: str, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> dict[str, object] | None:
    problem = draw(case, shape, dtype, generator, device).problem()
    kind = KernelKind.of(dtype, device=device)
    if not gpu.supports(problem, kind):
        return None
    fast = gpu.walked(problem, kind)
    if fast is None:
        return None
    with mock.patch.object(attention, "takes", return_value=False):
        slow = attention.bound(problem, kind).reshape(fast.shape)
    if not bool((fast >= slow).all()):
        raise AssertionError(f"the walk is below float64: {case}, {shape}, {dtype}")
    ratio = (fast / slow)[slow > 0]
    name = str(dtype).removeprefix("torch.")
    return {"case": case, "shape": str(shape), "dtype": name, "median": float(ratio.median()),
            "most": float(ratio.max())}  # fmt: skip


def _cost(device: torch.device) -> Iterator[dict[str, object]]:
    rows = []
    for shape, causal in COSTED[device.type]:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            found = cost(shape, dtype, device, causal=causal)
            rows.append(asdict(found))
            print(
                f"cost {found.dtype:10} {found.shape}{', causal' if causal else ''}: "
                f"{found.seconds * 1e3:.2f} ms, {found.passes:.1f} native passes of "
                f"{found.native * 1e3:.2f} ms; on a crowded core {found.crowded or 0:.1f}; "
                f"{found.launches} launches", flush=True,
            )  # fmt: skip
            yield {"rows": rows}


@dataclass(frozen=True)
class Cost:
    """A tolerance in passes of native attention on the same inputs."""

    shape: str
    dtype: str
    causal: bool
    seconds: float
    native: float
    passes: float
    crowded: float | None  # passes, the process sharing one core with another
    launches: int | None


def cost(shape: Shape, dtype: torch.dtype, device: torch.device, *, causal: bool = False) -> Cost:
    """Both timed in turn, the best of each."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(shape.batch, heads, n, shape.dim, generator=generator).to(device, dtype)
        for heads, n in (
            (shape.heads, shape.queries),
            *(((shape.kv_heads or shape.heads), shape.length) for _ in "kv"),
        )
    )
    grouped = shape.kv_heads is not None

    def native() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    def ours() -> torch.Tensor:
        return tolerance(q, k, v, dtype=dtype, causal=causal)

    def turns(count: int) -> Iterator[tuple[float, ...]]:
        both = [[wall_ms(call, device) / 1e3 for call in (native, ours)] for _ in range(count)]
        return zip(*both, strict=True)

    base, took = map(min, turns(REPEATS))
    slow = None
    if device.type == "cuda":
        with crowded():  # which interrupts some calls and not others: all of them count
            there, slower = map(sum, turns(CROWDED))
        slow = slower / there
    return Cost(
        shape=f"{shape}, {shape.kv_heads} key-value heads" if grouped else str(shape),
        dtype=str(dtype).removeprefix("torch."),
        causal=causal,
        seconds=took,
        native=base,
        passes=took / base,
        crowded=slow,
        launches=_launches(ours) if device.type == "cuda" else None,
    )


def _launches(call: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if "LaunchKernel" in event.key)


if __name__ == "__main__":
    main()
