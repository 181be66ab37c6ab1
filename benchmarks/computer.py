"""Cycles per second of the frozen computer: ``python -m benchmarks.computer``.

Gradient descent for the logistic loss, compiled from the language, is run by one frozen block:

* literal, every attention entry, and literal, the entries that can differ from 0;
* fused, beside the same algorithm in plain torch, on long data and on short: a whole call, with
  the digest of the weights and its attestation, and what one more step takes; on short data also
  ``computer.run`` as it is called, which proves its answer after the fact;
* by lanes: seconds a cycle, the exponent of its growth, and the most memory that the process held
  (a process for each size);
* as a folder that transformers loads: its megabytes, layers, units and parameters, what a check of
  it takes, and its forward pass beside as many literal cycles.

Every row prints the distance of its answer from plain torch's.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import machine, wall_ms
from iceform.computer import Computer, ProgramPrompt, library
from iceform.computer.compile import Program, compile

_LR, _SECONDS = 0.5, 2.0
_REPEATS = 5  # side by side; medians are printed
_TICK = 1e-9  # seconds, less than any clock tells
_SIZES = ((64, 4), (256, 8))  # lanes and width
_PROVEN = (
    1024  # samples up to which answers are enclosed in balls here, which takes longer than all
)
_ROWS: list[dict[str, str | float]] = []


def data(samples: int, dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples in [-1, 1] and labels 0 and 1."""
    draw = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(samples, dim, generator=draw, dtype=torch.float64) - 1
    noise = torch.randn(samples, generator=draw, dtype=torch.float64)
    y = (x @ torch.randn(dim, generator=draw, dtype=torch.float64) + 2 * noise > 0).double()
    return x.to(device, dtype), y.to(device, dtype)


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, after one that does not count, until two seconds have passed."""
    call()
    times: list[float] = []
    while not times or sum(times) < _SECONDS:
        times.append(wall_ms(call, device) / 1e3)
    return min(times)


def row(case: str, method: str, rate: float, unit: str, note: str = "") -> None:
    """One line, and kept."""
    _ROWS.append({"case": case, "method": method, "rate": rate, "unit": unit, "note": note})
    print(f"{case:34} {method:30} {rate:12.3f} {unit:18} {note}", flush=True)


def literal(program: Program, lanes: int, width: int, dtype: torch.dtype, device: torch.device,
            batch: int) -> None:  # fmt: skip
    """Cycles per second, all entries and those that are needed."""
    computer = Computer.for_programs([program], lanes=lanes, dtype=dtype)
    x, y = data(lanes, width, dtype, device)
    settings = {"lr": _LR, "steps": 10}
    prompt = computer.prompt(program, x.expand(batch, -1, -1), y.expand(batch, -1), **settings)
    plan = computer.plan(program, lanes, batch=batch)
    case = f"{lanes} lanes of {width}, {str(dtype)[6:]}, batch {batch}"
    print(f"{case}: {plan.tokens} tokens, {plan.features} features, {plan.heads} heads, "
          f"{plan.flops:.2g} of {plan.every_flops:.2g} flops a cycle")  # fmt: skip
    for every in (True, False):
        if every and plan.every_entry > 2**28:
            row(
                case,
                "literal, every entry",
                float("nan"),
                "cycles/s",
                "too many entries to wait for",
            )
            continue
        cycles = 2 if every else 40
        seconds = timed(lambda e=every, c=cycles: computer.execute(prompt, c, every=e), device)
        row(case, f"literal, {'every entry' if every else 'needed entries'}",
            batch * cycles / seconds, "problems x cycles/s")  # fmt: skip
    _agree(computer, program, prompt, x, y)


def _agree(
    computer: Computer, program: Program, prompt: ProgramPrompt, x: Tensor, y: Tensor
) -> None:
    exact = program.reference(x.double().cpu(), y.double().cpu(), lr=_LR, steps=10)
    for backend in ("literal", "fused"):
        run = computer.execute(prompt, backend=backend)
        off = float((run.outputs["value"].double().cpu() - exact).abs().max())
        row("", f"{backend}, whole program", run.cycles, "cycles", f"off by {off:.1e}")


def spent(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, on a CPU of the processor, which others on the machine do not lengthen."""
    if device.type != "cpu":
        return wall_ms(call, device) / 1e3
    begun = time.process_time()
    call()
    return time.process_time() - begun


def fused(samples: int, dim: int, steps: int, dtype: torch.dtype, device: torch.device) -> None:
    """Steps of descent, fused, beside plain torch: a whole call, and what one more step takes."""
    program = compile(library.logistic, dim=dim, samples=samples)
    computer = Computer.for_programs([program], dtype=dtype)
    x, y = data(samples, dim, dtype, device)
    prompts = {n: computer.prompt(program, x, y, lr=_LR, steps=n) for n in (1, steps)}

    def plain(steps: int) -> Tensor:
        w = x.new_zeros(dim)
        for _ in range(steps):
            w = w - _LR * (x.mT @ (torch.sigmoid(x @ w) - y) / samples + 0.1 * w)
        return w

    def run(steps: int) -> Tensor:
        return computer.execute(prompts[steps], backend="fused").outputs["value"]

    off = float((run(steps) - plain(steps)).abs().max())
    times = [
        [spent(partial(call, n), device) for n in (1, steps) for call in (plain, run)]
        for _ in range(_REPEATS + 1)
    ][1:]
    own, whole = (statistics.median(t[k] for t in times) / steps for k in (2, 3))
    more = statistics.median((t[3] - t[1]) / (steps - 1) for t in times)
    ratio = statistics.median(t[3] / t[2] for t in times)
    further = statistics.median((t[3] - t[1]) / max(t[2] - t[0], _TICK) for t in times)
    case = f"{samples} x {dim}, {str(dtype)[6:]}, {steps} steps"
    row(case, "plain torch", 1e3 * own, "ms a step")
    if samples <= _PROVEN:
        run_all = partial(computer.run, program, x, y, lr=_LR, steps=steps)
        called = statistics.median(spent(run_all, device) for _ in range(_REPEATS))
        row(case, "computer.run, as called", 1e3 * called / steps, "ms a step",
            f"{called / steps / own:.1f}x plain, proof in balls included")  # fmt: skip
    row(case, "fused, the whole call", 1e3 * whole, "ms a step",
        f"{ratio:.1f}x plain, off by {off:.1e}")  # fmt: skip
    row(case, "fused, one more step", 1e3 * more, "ms", f"{further:.1f}x plain")


def one_size(lanes: int, width: int) -> tuple[float, float]:
    """Processor seconds of a literal cycle, and the gigabytes that this process held at most."""
    torch.set_num_threads(1)
    program = compile(library.logistic, dim=width, samples=lanes)
    computer = Computer.for_programs([program], lanes=lanes)
    x, y = data(lanes, width, torch.float64, torch.device("cpu"))
    prompt = computer.prompt(program, x, y, lr=_LR, steps=10)

    def cycles(count: int) -> float:
        run = partial(computer.execute, prompt, count, backend="literal")
        return spent(run, torch.device("cpu"))

    cycles(1)
    return cycles(2) - cycles(1), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def by_lanes(sizes: Iterable[int], width: int = 4) -> None:
    """Time and memory of a literal cycle on a CPU, a process for each number of lanes."""
    context, before = multiprocessing.get_context("spawn"), None
    for lanes in sizes:
        with context.Pool(1) as pool:
            seconds, held = pool.apply(one_size, (lanes, width))
        grown = "" if before is None else (
            f", exponent {math.log(seconds / before[1]) / math.log(lanes / before[0]):.2f}"
        )  # fmt: skip
        before = before or (lanes, seconds)
        row(f"{lanes} lanes of {width}, one thread", "literal, needed entries", 1e3 * seconds,
            "ms a cycle", f"{held:.2f} GB at most{grown}")  # fmt: skip


def folders(steps: int = 4, samples: int = 16, dim: int = 4) -> None:
    """What ``program.to`` writes for so many steps, and what running and checking it takes."""
    from transformers import AutoModel

    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    program = compile(library.logistic, dim=dim, samples=samples)
    x, y = data(samples, dim, torch.float64, cpu)
    computer = Computer.for_programs([program])
    prompt = computer.prompt(program, x, y, steps=steps)
    run = partial(computer.execute, prompt, backend="literal")
    cycles = program.interpreted(x, y, steps=steps).cycles
    literal = _typical(partial(run, cycles)) / cycles
    row(f"literal, {steps} steps", "a cycle", 1e3 * literal, "ms", f"{cycles} cycles")
    for name, mode in (("albert", None), ("bert", None), ("bert", "prompt")):
        case = f"{name}, {mode or 'by default'}, {steps} steps"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            written = program.to(name, path, mode=mode, steps=steps)
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            begun = time.process_time()
            found = written.check(x, y)
            checked = time.process_time() - begun
            network, given = AutoModel.from_pretrained(path), written.prompt(x, y)
        with torch.no_grad():
            seconds = _typical(partial(network, inputs_embeds=given))
        count = sum(p.numel() for p in network.parameters())
        layers = config["num_hidden_layers"] * config.get("inner_group_num", 1)
        row(case, "folder", size / 1e6, "MB",
            f"{layers} layers of {config['hidden_size']} units, {count / 1e6:.2g} million "
            f"parameters, checked in {checked:.1f} s, off by {found.measured:.1e}")  # fmt: skip
        row(case, "a forward pass", seconds, "s",
            f"{seconds / cycles / literal:.1f}x the literal cycles")  # fmt: skip


def _typical(call: Callable[[], object]) -> float:
    """Processor seconds of a call: the median of a few."""
    times = [spent(call, torch.device("cpu")) for _ in range(_REPEATS + 1)][1:]
    return statistics.median(times)


def main() -> None:
    """Print every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=100_000, help="of the fused run")
    parser.add_argument("--dim", type=int, default=16, help="of the fused run")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--lanes", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parts = ("literal", "fused", "lanes", "folders")
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    parser.add_argument("--json", type=Path, help="keep the rows in this file")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    print(", ".join(f"{k} {v}" for k, v in machine(device).items()))
    if "literal" in asked.only:
        for lanes, width in _SIZES:
            program = compile(library.logistic, dim=width, samples=lanes)
            for dtype in (torch.float64, torch.float32):
                for batch in asked.batches:
                    literal(program, lanes, width, dtype, device, batch)
    if "fused" in asked.only:
        for lanes, width in _SIZES:
            fused(lanes, width, 100, torch.float64, device)
        for steps in (5, 100):  # what a call costs beside its steps, and what the steps cost
            fused(asked.samples, asked.dim, steps, torch.float64, device)
    if "lanes" in asked.only:
        by_lanes(asked.lanes)
    if "folders" in asked.only:
        folders()
    if asked.json:
        kept = {"machine": machine(device), "rows": _ROWS}
        asked.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
