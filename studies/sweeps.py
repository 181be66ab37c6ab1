"""Running studies: groups of cells, on one machine's processes or on a Dask cluster.

A cell (a variant and a seed) is finished when its record is on disk, and is not computed again. A
group is what trains together: on a GPU every stack of a study, on a CPU one small stack.
"""

from __future__ import annotations

import gc
import json
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from iceform.errors import DeviceError, ProgramError
from iceform.validation import check_choice, check_size
from studies.checkpoints import read_record, write_record
from studies.heads import HeadsStudy
from studies.housing import HousingStudy
from studies.randomness import forget
from studies.residual import ResidualStudy
from studies.script import COMMIT, REPOSITORY
from studies.statistics import StatisticsStudy
from studies.study import COLUMNS, Plan, Record, Spec, Study, Trainable
from studies.theirs import build_theirs, check_copy
from studies.training import Progress, Trainer, full_precision

__all__ = ["STUDIES", "Group", "Request", "environment", "load_records", "run", "run_group"]

STUDIES: dict[str, Study[Any]] = {
    study.name: study
    for study in (ResidualStudy(), HeadsStudy(), StatisticsStudy(), HousingStudy())
}
_THEIRS, _CONSTRUCTED = "their_script", "constructed"
_CPU_MODELS = 6  # models in a stack that fit a core's cache
_GPU_MODELS = 1 << 20  # all of them


@dataclass(frozen=True)
class Request:
    """What to run, and where the results go.

    Attributes
    ----------
    studies, columns, scale
        Names.
    out
        The results folder.
    seeds
        How many; None takes the study's own number.
    devices
        One or several; groups are dealt out to them in turn.
    every
        Seconds between checkpoints.
    code
        A copy of the authors' code; without one ``their_script`` is left out.
    """

    studies: tuple[str, ...]
    columns: tuple[str, ...] = COLUMNS
    scale: str = "smoke"
    out: Path = Path("out/studies")
    seeds: int | None = None
    devices: tuple[str, ...] = ("cpu",)
    every: float = 120.0
    code: Path | None = None

    def __post_init__(self) -> None:
        for name in self.studies:
            check_choice("study", name, tuple(STUDIES))
        if self.seeds is not None:
            check_size("seeds", self.seeds)
        for device in self.devices:
            _check_device(device)
        if self.code is not None:
            check_copy(self.code)
        elif self.columns == (_THEIRS,):
            raise ProgramError(
                f"{_THEIRS} runs the authors' code, which is not part of iceform; clone "
                f"{REPOSITORY} at {COMMIT[:12]} and pass its folder as --their-code"
            )


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"there is no device {name!r}; use cpu, cuda or cuda:0") from None
    count = torch.cuda.device_count()
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"studies run on cpu or cuda, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DeviceError(f"device {name!r} was asked for, {count} CUDA devices are there")


@dataclass(frozen=True)
class Group:
    """Plans that are computed together, on one device."""

    plans: tuple[Plan[Any], ...]
    device: str
    out: Path
    every: float
    code: Path | None = None

    @property
    def name(self) -> str:
        """For progress bars."""
        columns = dict.fromkeys(plan.spec.column for plan in self.plans)
        cells = sum(len(p.seeds) for p in self.plans)
        return f"{self.plans[0].spec.study} {'+'.join(columns)} ({cells} cells)"

    @property
    def identity(self) -> str:
        """A digest of the plans and the kind of device, whose random numbers differ."""
        parts = [plan.identity for plan in self.plans]
        kind = torch.device(self.device).type
        return sha256(json.dumps([parts, kind]).encode()).hexdigest()[:16]

    @property
    def checkpoint(self) -> Path:
        """Where an unfinished run waits."""
        return self.out / "checkpoints" / f"{self.identity}.safetensors"


def groups(request: Request) -> list[Group]:
    """What is left to compute, in order."""
    devices = cycle(request.devices)
    found = []
    for name in request.studies:
        study = STUDIES[name]
        together_on: dict[str, list[Plan[Any]]] = {}
        for spec in study.specs(request.columns, request.scale):
            if spec.column == _THEIRS and request.code is None:
                continue
            seeds = range(request.seeds or spec.seeds)
            device = next(devices)
            on_gpu = torch.device(device).type == "cuda" and spec.column != _CONSTRUCTED
            together = _GPU_MODELS if on_gpu else _CPU_MODELS
            plans = [
                plan
                for plan in study.plans(spec, tuple(seeds), together)
                if not all(_finished(plan, seed, request.out) for seed in plan.seeds)
            ]
            if on_gpu:
                together_on.setdefault(device, []).extend(plans)
            else:
                found += [
                    Group((plan,), device, request.out, request.every, request.code)
                    for plan in plans
                ]
        found += [
            Group(tuple(part), device, request.out, request.every, request.code)
            for device, plans in together_on.items()
            for part in _trainable_together(plans)
        ]
    return found


def _trainable_together(plans: Sequence[Plan[Any]]) -> list[list[Plan[Any]]]:
    """Plans side by side whose epochs are equal, and whose steps are multiples of the fewest."""
    parts: dict[tuple[int, int], list[Plan[Any]]] = {}
    for plan in sorted(plans, key=lambda p: p.length):
        steps, epochs = plan.length
        fits = (at for at in parts if at[1] == epochs and steps % at[0] == 0)
        parts.setdefault(next(fits, plan.length), []).append(plan)
    return list(parts.values())


def record_path(plan: Plan[Any], seed: int, out: Path) -> Path:
    """The file of one cell."""
    spec: Spec = plan.spec
    return out / "cells" / spec.study / spec.column / spec.scale / f"{plan.cell(seed)}.json"


def _finished(plan: Plan[Any], seed: int, out: Path) -> bool:
    path = record_path(plan, seed, out)
    if not path.exists():
        return False
    wanted = plan.spec.to_dict()
    kept = read_record(path)["spec"]
    # A field that was added since stands at its default, which is what was run.
    return all(kept[name] == wanted[name] for name in kept if name in wanted)


def run_group(group: Group, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Compute a group's cells, or go on where a killed run left off; write and return them."""
    started = time.monotonic()
    made = group.plans[0].spec.column == _CONSTRUCTED
    records = _construct(group) if made else _train(group, progress)
    seconds = time.monotonic() - started
    written = []
    for record in records:
        content = record.to_dict() | {
            "environment": environment(group.device),
            "seconds of the group": seconds,
            "cells of the group": len(records),
        }
        write_record(record_path(record.plan, record.seed, group.out), content)
        written.append(content)
    group.checkpoint.unlink(missing_ok=True)
    return written


def _construct(group: Group) -> list[Record]:
    return [STUDIES[p.spec.study].construct(p, seed) for p in group.plans for seed in p.seeds]


def _train(group: Group, progress: Progress | None) -> list[Record]:
    device = torch.device(group.device)
    built = [_built(plan, device, group.code) for plan in group.plans]
    trainer = Trainer(
        [b.stack for b in built],
        device,
        checkpoint=group.checkpoint,
        identity=group.identity,
        every=group.every,
    )
    trainer.run(progress)
    parameters, curves = trainer.parameters(), trainer.curves()
    with full_precision():
        judged = [b.judge(parameters[b.stack.name], curves[b.stack.name]) for b in built]
    if trainer.compiled:
        torch.compiler.reset()
    del trainer, built
    forget()
    gc.collect()  # graphs, what was compiled and their memory go before the next group comes
    return [record for records in judged for record in records]


def _built(plan: Plan[Any], device: torch.device, code: Path | None) -> Trainable:
    if plan.spec.column == _THEIRS:
        assert code is not None, "groups() leaves the column out where there is no copy"
        return build_theirs(plan, device, code)
    return STUDIES[plan.spec.study].build(plan, device)


def environment(device: str) -> dict[str, str]:
    """Versions and machine, for the record."""
    from iceform import __version__

    kind = torch.device(device)
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else platform.machine()
    return {
        "iceform": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": f"{kind.type}: {name}",
    }


# ---------------------------------------------------------------------------------------------
# many groups
# ---------------------------------------------------------------------------------------------

Report = Callable[[Group, int, int], None]  # group, steps done, steps in all


def run(
    request: Request,
    *,
    jobs: int = 1,
    dask: str | None = None,
    report: Report | None = None,
) -> list[dict[str, Any]]:
    """Run what is left of a request; the records of everything that was computed.

    Parameters
    ----------
    jobs
        Processes on this machine (joblib); -1 for one per core.
    dask
        Address of a Dask scheduler whose workers run the groups instead.
    report
        Called as groups advance, and with (group, 1, 1) when one is done.
    """
    todo = groups(request)
    if jobs == 1 and dask is None:
        return [r for group in todo for r in _alone(group, report)]
    try:
        import joblib
    except ModuleNotFoundError as missing:
        raise ProgramError(
            "sweeps over processes need joblib; run pip install joblib iceform-estimators"
        ) from missing
    with _cluster(dask):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
        results = []
        for place, records in parallel(joblib.delayed(_numbered)(i, g) for i, g in enumerate(todo)):
            if report is not None:
                report(todo[place], 1, 1)
            results += records
    return results


def _alone(group: Group, report: Report | None) -> list[dict[str, Any]]:
    if report is None:
        return run_group(group)
    records = run_group(group, lambda done, total: report(group, done, total))
    report(group, 1, 1)
    return records


def _numbered(place: int, group: Group) -> tuple[int, list[dict[str, Any]]]:
    torch.set_num_threads(1)  # processes share the cores, not the threads
    return place, run_group(group)


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Joblib's default processes, or the workers of a Dask scheduler."""
    if address is None:
        with warnings.catch_warnings():
            # A worker that has grown large is replaced, and says so in a thread of the pool. Where
            # warnings are errors that would end the thread, and the sweep would wait for ever.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            yield
        return
    try:
        import joblib
        from distributed import Client
    except ModuleNotFoundError as missing:
        raise ProgramError(
            f"a Dask cluster needs {missing.name}; run pip install 'iceform-estimators[dask]'"
        ) from missing
    with Client(address), joblib.parallel_config("dask"):  # type: ignore[no-untyped-call]
        yield


def load_records(*folders: Path) -> list[dict[str, Any]]:
    """Every record under the given results folders."""
    return [
        read_record(path)
        for folder in folders
        for path in sorted((folder / "cells").rglob("*.json"))
    ]
