"""``python -m studies.lab``: train networks of one shape from several starts, and take them apart.

    python -m studies.lab small                 # minutes of one core; what is in results/lab
    python -m studies.lab d5 --device cuda      # five seeds, three rates, every start
    python -m studies.lab d10 --device cuda     # three seeds

A run that is killed goes on when the same command is given again: checkpoints are in
OUT/checkpoints, and what comes of it is OUT/NAME.json, with all curves and tables, and a few
networks beside it.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from iceform import lab, store
from iceform.cli.failures import one_line_errors

__all__ = ["EXPERIMENTS", "Experiment", "main", "run", "tables_of"]

KIND = "lab study"
_ALL = ("random", "compiled", "copy head", "shuffled", "circuit only", "looped", "random looped")
_STEPS = "steps"


@dataclass(frozen=True)
class Experiment:
    """What is trained: a plan, and the starts, rates and seeds that it is crossed with.

    Attributes
    ----------
    plan, starts, lr, seeds
        As :func:`iceform.lab.train` takes them.
    reached
        An error whose first step is noted.
    kept
        Starts whose network of the first seed is stored, at the best rate.
    """

    plan: lab.TrainingPlan
    starts: tuple[str, ...]
    lr: tuple[float, ...]
    seeds: int
    reached: float
    kept: tuple[str, ...] = ("random", "compiled")


def _plan(dim: int, layers: int, width: int, heads: int, inner: int, examples: int,
          steps: int, batch: int) -> lab.TrainingPlan:  # fmt: skip
    shape = lab.GPT2Shape(dim, layers, width, heads, inner, 2 * examples)
    return lab.TrainingPlan(lab.InContextTask("noisy", dim, 0.1), shape, steps, batch)


EXPERIMENTS = {
    "small": Experiment(
        _plan(2, 4, 40, 4, 64, 12, 2500, 32),
        ("random", "compiled", "copy head", "shuffled"),
        (3e-3,),
        seeds=3,
        reached=0.4,
    ),
    "d5": Experiment(
        _plan(5, 8, 128, 8, 512, 32, 6000, 64), _ALL, (1e-4, 3e-4, 1e-3), seeds=5, reached=0.6
    ),
    "d10": Experiment(
        _plan(10, 12, 256, 8, 1024, 48, 20_000, 64), _ALL, (1e-4, 3e-4, 1e-3), seeds=3, reached=1.5
    ),
}


def run(name: str, out: Path, *, device: str = "cpu", steps: int | None = None) -> Path:
    """Train an experiment, or go on with it, and write what it came to."""
    experiment = EXPERIMENTS[name]
    if steps is not None:
        experiment = replace(experiment, plan=replace(experiment.plan, steps=steps))
    began = time.process_time()
    cells = lab.train(
        experiment.starts,
        experiment.plan,
        lr=experiment.lr,
        seeds=experiment.seeds,
        folder=out / "checkpoints",
        device=device,
        progress=_told,
    )
    content = {
        "experiment": asdict(experiment),
        "cells": [cell.to_dict() for cell in cells],
        "tables": {key: table.to_dict() for key, table in tables_of(experiment, cells).items()},
        "environment": {"torch": torch.__version__, "python": platform.python_version(),
                        "machine": platform.machine(), "device": device,
                        "processor_seconds_of_the_last_sitting": time.process_time() - began},
    }  # fmt: skip
    for start in experiment.kept:
        best = min((c for c in cells if c.start == start and c.seed == 0), key=lambda c: c.error)
        best.network.save(out / name / start)
    path = out / f"{name}.json"
    store.write_json(path, content, KIND)
    return path


def tables_of(experiment: Experiment, cells: Sequence[lab.TrainedCell]) -> dict[str, lab.LabTable]:
    """Every table of the page: of what was trained at its best rate, and of the constructions."""
    plan, chosen = experiment.plan, []
    for start in experiment.starts:
        each = [cell for cell in cells if cell.start == start]
        best = min({c.lr for c in each}, key=lambda lr: sum(c.error for c in each if c.lr == lr))
        chosen += [cell for cell in each if cell.lr == best]
    made = {f"constructed {m}": lab.compiled(m, plan.shape) for m in ("primal", "dual")}
    networks = {**made, **lab.named(chosen)}
    prompts = max(1024, 4 * plan.shape.width)
    out = {
        "ends": lab.ends(cells, experiment.reached),
        "by_context": lab.by_context(networks, plan.task),
        "nearest": lab.nearest(networks, plan.task),
        "shifted": lab.shifted(networks, plan.task),
        "probe_w": lab.probe(networks, plan.task, "w", prompts=prompts),
        "probe_prediction": lab.probe(networks, plan.task, "prediction", prompts=prompts),
        "transplant": lab.transplant(networks, plan.task, prompts=1024),
    }
    first = {c.start: c.network for c in chosen if c.seed == 0}
    if {"random", "compiled"} <= first.keys():
        out["line"] = lab.line(first["random"], first["compiled"], plan.task)
    return out


def _told(done: int, total: int) -> None:
    print(f"\r{done} of {total} {_STEPS}", end="" if done < total else "\n", file=sys.stderr)


def main(words: Sequence[str] | None = None) -> int:
    """Run an experiment; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.add_argument("--out", type=Path, default=Path("out/lab"), help="(%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (%(default)s)")
    parser.add_argument("--steps", type=int, help="fewer or more than the experiment's own")
    options: Any = parser.parse_args(words)
    with one_line_errors("finished steps are kept; run it again to go on"):
        path = run(options.experiment, options.out, device=options.device, steps=options.steps)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
