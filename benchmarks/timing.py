"""How things are timed, and how results are kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "Bench",
    "Row",
    "busy",
    "crowded",
    "interleaved_ms",
    "machine",
    "markdown",
    "median_ms",
    "replayed",
    "wall_ms",
]

_REPEATS = 9  # medians of this many
_LONG = 0.05  # seconds that one timed stretch should last on a GPU, so that launches are hidden
_MOST_CALLS = 50


@dataclass(frozen=True)
class Row:
    """One measurement."""

    suite: str
    case: str
    method: str
    ms: float
    ratio: float | None = None  # to the suite's own yardstick in the same run
    error: float | None = None
    note: str = ""


@dataclass
class Bench:
    """All measurements of a run, printed as they come."""

    device: torch.device
    rows: list[Row] = field(default_factory=list)

    def add(self, *row: object, **rest: object) -> Row:
        """Keep a measurement and print it."""
        kept = Row(*row, **rest)  # type: ignore[arg-type]
        self.rows.append(kept)
        ratio = "" if kept.ratio is None else f"{kept.ratio:8.3f}x"
        error = "" if kept.error is None else f"{kept.error:9.1e}"
        print(
            f"{kept.suite:8} {kept.case:34} {kept.method:26} {kept.ms:10.4f} ms {ratio:>9} "
            f"{error:>9}  {kept.note}",
            flush=True,
        )
        return kept

    def time(self, *calls: Callable[[], object]) -> float:
        """Median milliseconds of a call; several calls (on other inputs) are taken in turn."""
        return median_ms(calls, self.device)

    def side_by_side(self, *calls: Callable[[], object]) -> list[float]:
        """Median milliseconds of each call; on a CPU, which may be shared, repeat by repeat."""
        if self.device.type == "cuda":
            return [self.time(call) for call in calls]
        return interleaved_ms(calls)

    def save(self, path: Path, command: str) -> None:
        """Everything as JSON, with the machine and the command."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"machine": machine(self.device), "command": command}
        text = json.dumps(kept | {"rows": [asdict(r) for r in self.rows]}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def machine(device: torch.device) -> dict[str, str]:
    """Where this was measured."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{_processor()}, {torch.get_num_threads()} threads"
    )
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def markdown(run: dict[str, Any]) -> str:
    """A saved run as tables, one per suite."""
    lines = [f"`{run['command']}`, " + ", ".join(f"{k} {v}" for k, v in run["machine"].items())]
    for suite in dict.fromkeys(row["suite"] for row in run["rows"]):
        lines += ["", f"**{suite}**", "", "| case | method | ms | ratio | error | |"]
        lines += ["|---|---|---:|---:|---:|---|"]
        for row in (r for r in run["rows"] if r["suite"] == suite):
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
            error = "" if row["error"] is None else f"{row['error']:.1e}"
            cells = (row["case"], row["method"], f"{row['ms']:.4f}", ratio, error, row["note"])
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii") as lines:
            return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "CPU"


def median_ms(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Median over repeats; on a GPU by events around enough calls to hide their launches."""
    for call in calls:
        call()
        call()
    if device.type != "cuda":
        return statistics.median(_wall(calls[i % len(calls)]) for i in range(_REPEATS))
    torch.cuda.synchronize(device)
    once = _stretch(calls, 1)
    torch.cuda.synchronize(device)
    count = max(1, min(_MOST_CALLS, int(_LONG / max(once * 1e-3, 1e-6))))
    return statistics.median(_stretch(calls, count) for _ in range(_REPEATS))


def interleaved_ms(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Medians over repeats in which every call has its turn, so that all see the same load."""
    for call in calls:
        call()
        call()
    turns = [[_wall(call) for call in calls] for _ in range(_REPEATS)]
    return [statistics.median(taken) for taken in zip(*turns, strict=True)]


def wall_ms(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call, as it comes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - start)


@contextmanager
def busy(others: int | None = None) -> Iterator[None]:
    """As many other processes as there are cores to run on, each with enough to do."""
    count = len(os.sched_getaffinity(0)) if others is None else others
    loop = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(loop) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for other in running:
            other.kill()
            other.wait()


@contextmanager
def crowded() -> Iterator[None]:
    """This thread on one core, and another process on it that never rests."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with busy(1):
            yield
    finally:
        os.sched_setaffinity(0, cores)


def _wall(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def _stretch(calls: Sequence[Callable[[], object]], count: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for i in range(count):
        calls[i % len(calls)]()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / count


def replayed(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same call as a CUDA graph, so that the host's own time is left out; as is on a CPU."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
