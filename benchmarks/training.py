"""Training throughput: the stacked engine against the plain loop, same models, same steps.

The plain loop is what one writes first: one model at a time, a DataLoader with shuffling, batch 32,
Adam, every token a query. Both are timed in one run on one device, in model-steps per second; on a
CPU per CPU-second, since the plain loop may use other threads.

    python -m benchmarks.training [--device cuda] [--steps 60] [--json PATH]
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

from iceform.experiments import STUDIES, Trainer
from iceform.experiments.networks import CrossAttention, SelfAttention
from iceform.experiments.plain import PlainCross, PlainSelf
from iceform.experiments.study import Plan
from iceform.experiments.training import Stack, full_precision

CASES = {
    "residual": {"variant": "no-leak"},
    "heads 1": {"heads": 1, "schedule": "constant"},
    "heads 6": {"heads": 6, "schedule": "constant"},
    "heads 12": {"heads": 12, "schedule": "constant"},
    "statistics": {"schedule": "constant"},
    "housing": {"role": "frozen"},
}
CPU_MODELS = 6
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


def plans_of(name: str, labels: dict[str, str | int], device: torch.device) -> list[Plan]:
    study = STUDIES[name.split()[0]]
    spec = study.spec("as_published", "paper")
    together = CPU_MODELS if device.type == "cpu" else 1 << 20
    seeds = tuple(range(spec.seeds))
    plans = study.plans(spec, seeds, together)
    return [p for p in plans if all(p.labels[k] == v for k, v in labels.items())]


def measure(name: str, labels: dict[str, str | int], device: torch.device, steps: int) -> dict:
    plan = plans_of(name, labels, device)[0]
    stack = STUDIES[plan.spec.study].build(plan, device).stack
    with full_precision():
        plain = plain_steps(stack, device, steps)
        plain()  # warm-up
        each = seconds(plain, device) / steps
        trainer = Trainer([stack], device)
        trainer.run(until=5)
        advance = trainer._advance()
        advance(0, 5)
        stacked = seconds(lambda: advance(5, 5 + steps), device) / steps / stack.models
    return {
        "case": name,
        "models": stack.models,
        "plain ms": 1e3 * each,
        "stacked ms": 1e3 * stacked,
        "ratio": each / stacked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"ms per model-step on {device}, batch 32, {arguments.steps} steps each")
    print(f"{'':12} {'models':>6} {'plain':>9} {'stacked':>9} {'ratio':>7}")
    rows = []
    for name in arguments.cases:
        row = measure(name, CASES[name], device, arguments.steps)
        rows.append(row)
        print(
            f"{name:12} {row['models']:6d} {row['plain ms']:9.3f} {row['stacked ms']:9.4f} "
            f"{row['ratio']:7.1f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
