"""Training throughput: the stacked engine against the plain loop, same models, same steps.

The plain loop is what one writes first: one model at a time, a DataLoader with shuffling, batch 32,
Adam, every token a query. Both are timed in one run on one device, in milliseconds per model-step;
on a CPU of CPU time, since the plain loop may use other threads. The engine trains as it does in a
study: on a CPU one stack of up to six models, on a GPU all stacks of a case side by side.

    python -m benchmarks.training [--device cuda] [--steps 60] [--compiled] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from studies import STUDIES, Trainer
from studies.networks import CrossAttention, SelfAttention
from studies.plain import PlainCross, PlainSelf
from studies.sweeps import environment
from studies.training import Stack, full_precision

CASES: dict[str, dict[str, str | int]] = {
    "residual": {},
    "heads 1": {"heads": 1, "schedule": "constant"},
    "heads 6": {"heads": 6, "schedule": "constant"},
    "heads 12": {"heads": 12, "schedule": "constant"},
    "statistics": {"schedule": "constant"},
    "housing": {},
}
CPU_MODELS = 6
WARM_UP = 10  # steps
EXAMPLES = 3200  # of the plain loop's data set: its steps do not depend on how many there are


def plain_module(stack: Stack) -> nn.Module:
    network = stack.network
    if isinstance(network, SelfAttention):
        return PlainSelf(network)
    assert isinstance(network, CrossAttention)
    return PlainCross(network)


def plain_steps(stack: Stack, device: torch.device, steps: int) -> Callable[[], None]:
    """The loop of a first draft, on the first model's own data."""
    index = torch.arange(EXAMPLES, device=device) % stack.examples
    inputs, targets = stack.batch(index.expand(len(stack.orders), -1))
    parts = [t[0].detach().cpu() for t in (*inputs, targets)]
    loader = DataLoader(TensorDataset(*parts), batch_size=stack.training.batch, shuffle=True)
    module = plain_module(stack).to(device)
    adam = torch.optim.Adam(module.parameters(), lr=stack.training.lr)
    loss_of = nn.MSELoss()

    def loop() -> None:
        done = 0
        while done < steps:
            for batch in loader:
                *xs, y = (t.to(device) for t in batch)
                adam.zero_grad()
                loss = loss_of(module(*xs), y)
                loss.backward()
                adam.step()
                loss.item()  # as a loop that logs its loss does
                done += 1
                if done == steps:
                    return

    return loop


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """CPU-seconds on a CPU, wall seconds on a GPU."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def stacks_of(name: str, device: torch.device) -> list[Stack]:
    """What trains together in a case."""
    study = STUDIES[name.split()[0]]
    spec = study.spec("our_reading", "paper")
    on_gpu = device.type == "cuda"
    plans = [
        plan
        for plan in study.plans(spec, tuple(range(spec.seeds)), 1 << 20 if on_gpu else CPU_MODELS)
        if all(plan.labels[k] == v for k, v in CASES[name].items()) and "probe" not in plan.labels
    ]
    return [study.build(plan, device).stack for plan in (plans if on_gpu else plans[:1])]


def measure(
    name: str, device: torch.device, steps: int, *, compiled: bool | None
) -> dict[str, str | int | float]:
    """Milliseconds per model-step of both."""
    stacks = stacks_of(name, device)
    with full_precision():
        began = time.perf_counter()
        trainer = Trainer(stacks, device, compiled=compiled)
        advance = trainer._advance()
        advance(0, WARM_UP)
        ready = time.perf_counter() - began
        stacked = seconds(lambda: advance(WARM_UP, WARM_UP + steps), device)
        plain = 0.0
        for lane in trainer.lanes:
            loop = plain_steps(lane.stack, device, steps)
            loop()  # warm-up
            plain += lane.pace * lane.stack.models * seconds(loop, device)
    model_steps = steps * sum(lane.pace * lane.stack.models for lane in trainer.lanes)
    return {
        "case": name,
        "models": sum(stack.models for stack in stacks),
        "plain ms": 1e3 * plain / model_steps,
        "stacked ms": 1e3 * stacked / model_steps,
        "ratio": plain / stacked,
        "seconds to get ready": ready,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--compiled", action="store_true", help="compile steps of short runs, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"ms per model-step on {device}, batch 32, {arguments.steps} steps each")
    print(f"{'':18} {'models':>6} {'plain':>9} {'stacked':>9} {'ratio':>7} {'ready':>7}")
    rows = []
    for name in arguments.cases:
        row = measure(name, device, arguments.steps, compiled=arguments.compiled or None)
        rows.append(row)
        print(
            f"{name:18} {row['models']:6d} {row['plain ms']:9.3f} {row['stacked ms']:9.4f} "
            f"{row['ratio']:7.1f} {row['seconds to get ready']:6.1f}s",
            flush=True,
        )
    if arguments.json:
        command = f"python -m benchmarks.training --device {device} --steps {arguments.steps}"
        command += " --compiled" if arguments.compiled else ""
        kept = {"command": command, "environment": environment(str(device)), "rows": rows}
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
