"""``python -m studies.lab``: train networks of one shape from several starts, and take them apart.

    python -m studies.lab small                 # a quarter of an hour of one core
    python -m studies.lab d5 --device cuda --backend triton --precision tf32
    python -m studies.lab d10 --device cuda --backend triton --precision tf32

The large ones are of five seeds and three rates, and of three seeds and two, and every seed draws
prompts of its own. On one H200 they take 16 minutes side by side; --profile 20 tells the minutes
of a machine before anything is kept. A run that is killed goes on when the same command is given
again: checkpoints are in OUT/checkpoints, and what comes of it is OUT/NAME.json, with all curves
and tables, and a few networks beside it.

--starts, --lr and --seeds take a part of an experiment; a part is an experiment of its own, with a
file of its own (--name). --profile N takes N steps, tells how long they are, and keeps nothing.
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
    seeds: int | tuple[int, ...]
    reached: float
    kept: tuple[str, ...] = ("random", "compiled")

    @property
    def each_seed(self) -> tuple[int, ...]:
        """Which seeds they are."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


def _plan(dim: int, layers: int, width: int, heads: int, inner: int, examples: int,
          steps: int, batch: int) -> lab.TrainingPlan:  # fmt: skip
    shape = lab.GPT2Shape(dim, layers, width, heads, inner, 2 * examples)
    task = lab.InContextTask("noisy", dim, 0.1)
    return lab.TrainingPlan(task, shape, steps, batch)


EXPERIMENTS = {
    "small": Experiment(
        _plan(2, 4, 40, 4, 64, 12, 2500, 32),
        ("random", "compiled", "copy head", "shuffled"),
        (3e-3,),
        seeds=5,
        reached=0.4,
    ),
    "d5": Experiment(
        _plan(5, 8, 128, 8, 512, 32, 6000, 64),
        _ALL,
        (1e-4, 3e-4, 1e-3),
        seeds=5,
        reached=0.6,
    ),
    # The shape of d5, so that nothing but the dimension differs, for twice as long: ten numbers
    # take longer to be learned. A width of 256 and 12 layers would cost eight times as much.
    "d10": Experiment(
        _plan(10, 8, 128, 8, 512, 32, 12_000, 64),
        _ALL,
        (3e-4, 1e-3),
        seeds=3,
        reached=2.2,
    ),
}


def run(
    name: str,
    out: Path,
    experiment: Experiment,
    *,
    device: str = "cpu",
    every: float = 60,
    backend: str = "plain",
    precision: str = "float32",
) -> Path:
    """Train an experiment, or go on with it, and write what it came to under a name."""
    began, on_the_wall = time.process_time(), time.monotonic()
    cells = lab.train(
        experiment.starts,
        experiment.plan,
        lr=experiment.lr,
        seeds=experiment.seeds,
        folder=out / "checkpoints",
        device=device,
        every=every,
        backend=backend,
        precision=precision,
        progress=_told,
    )
    trained = time.monotonic() - on_the_wall
    tables = tables_of(experiment, cells, device)
    content = {
        "experiment": asdict(experiment),
        "cells": [cell.to_dict() for cell in cells],
        "tables": {key: table.to_dict() for key, table in tables.items()},
        "environment": {"torch": torch.__version__, "python": platform.python_version(),
                        "machine": platform.machine(), "device": _name_of(device),
                        "backend": backend, "precision": precision,
                        "processor_seconds_of_the_last_sitting": time.process_time() - began,
                        "seconds_of_training_in_the_last_sitting": trained,
                        "seconds_of_the_last_sitting": time.monotonic() - on_the_wall},
    }  # fmt: skip
    for start in set(experiment.kept) & set(experiment.starts):
        first = [c for c in cells if c.start == start and c.seed == experiment.each_seed[0]]
        min(first, key=lambda c: c.error).network.save(out / name / start)
    path = out / f"{name}.json"
    store.write_json(path, content, KIND)
    return path


def tables_of(
    experiment: Experiment, cells: Sequence[lab.TrainedCell], device: str = "cpu"
) -> dict[str, lab.LabTable]:
    """Every table of the page: of what was trained at its best rate, and of the constructions.

    All is float32 there, whatever the products of training were.
    """
    plan, chosen = experiment.plan, []
    for start in experiment.starts:
        each = [cell for cell in cells if cell.start == start]
        best = min({c.lr for c in each}, key=lambda lr: sum(c.error for c in each if c.lr == lr))
        chosen += [cell for cell in each if cell.lr == best]
    made = {f"constructed {m}": lab.compiled(m, plan.shape) for m in ("primal", "dual")}
    networks = {n: network.to(device) for n, network in {**made, **lab.named(chosen)}.items()}
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
    first = {c.start: c.network.to(device) for c in chosen if c.seed == experiment.each_seed[0]}
    if {"random", "compiled"} <= first.keys():
        out["line"] = lab.line(first["random"], first["compiled"], plan.task)
    return out


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _told(done: int, total: int) -> None:
    print(f"\r{done} of {total} {_STEPS}", end="" if done < total else "\n", file=sys.stderr)


def _chosen(options: Any) -> Experiment:
    """The experiment, or the part of it that was asked for."""
    whole = EXPERIMENTS[options.experiment]
    parts: dict[str, Any] = {
        n: tuple(v) for n in ("starts", "lr", "seeds") if (v := getattr(options, n))
    }
    plan = whole.plan if options.steps is None else replace(whole.plan, steps=options.steps)
    return replace(whole, plan=plan, **parts)


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
    parser.add_argument("--backend", choices=lab.BACKENDS, default="plain", help="(%(default)s)")
    parser.add_argument("--precision", choices=sorted(lab.PRECISIONS), default="float32",
                        help="of the products of training (%(default)s)")  # fmt: skip
    parser.add_argument("--every", type=float, default=60,
                        help="seconds between checkpoints, or inf (%(default)s)")  # fmt: skip
    parser.add_argument("--steps", type=int, help="fewer or more than the experiment's own")
    parser.add_argument("--starts", nargs="+", choices=lab.STARTS)
    parser.add_argument("--lr", nargs="+", type=float)
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--name", help="of the file, if not the experiment's")
    parser.add_argument("--profile", type=int, metavar="N", help="time N steps and stop")
    options: Any = parser.parse_args(words)
    experiment = _chosen(options)
    by = {"device": options.device, "backend": options.backend, "precision": options.precision}
    with one_line_errors("finished steps are kept; run it again to go on"):
        if options.profile:
            told = lab.profile(
                experiment.starts,
                experiment.plan,
                lr=experiment.lr,
                seeds=experiment.seeds,
                steps=options.profile,
                **by,
            )
            print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                            for k, v in told.items()))  # fmt: skip
        else:
            name = options.name or options.experiment
            print(run(name, options.out, experiment, every=options.every, **by))
    return 0


if __name__ == "__main__":
    sys.exit(main())
