"""The demo on the patients: run, print the tables, write the report."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import iceform
from iceform import algorithms
from iceform.demo.patients.library import (
    PATIENTS,
    Tick,
    literal_difference,
    load_patients,
    machine_for,
    programs_for,
    run_programs,
)
from iceform.demo.patients.losses import (
    SAMPLES,
    TASKS,
    frozen_step,
    load_data,
    run_losses,
    shared_table,
)
from iceform.demo.patients.pictures import (
    attention_picture,
    error_picture,
    trajectory_picture,
    weight_picture,
)
from iceform.demo.patients.report import Library, Report, render
from iceform.pages import write

__all__ = ["run", "run_library", "show", "ticks"]

PASSES = 3


def run_library(patients: int, tick: Tick) -> Library:
    """Every program on one frozen machine, and one of them by the literal matrices as well."""
    data = load_patients(patients)
    jobs = programs_for(data)
    machine = machine_for(jobs, data)
    tick("building the machine")
    rows = run_programs(machine, jobs, data, tick)
    literal = literal_difference(machine, jobs[0], data)
    tick("literal matrices")
    steps = [j.program.steps for j in jobs if isinstance(j.program, algorithms.Descent)]
    plan = machine.plan
    return Library(
        rows=rows,
        samples=data.x.shape[0],
        dim=data.x.shape[1],
        tokens=plan.tokens,
        layers=plan.layers,
        heads=plan.heads,
        parameters=plan.parameters,
        descents=(min(steps), max(steps)),
        literal=literal,
    )


def run(
    samples: int = SAMPLES,
    passes: int = PASSES,
    tick: Tick = lambda what: None,
    *,
    patients: int = PATIENTS,
) -> Report:
    """Everything the report shows.

    Parameters
    ----------
    samples
        Patients in the prompt.
    passes
        Gradient steps of each loss.
    tick
        Called with a few words after each of the ``ticks(passes)`` pieces of work.
    patients
        Patients that the whole library is run on.
    """
    started = time.perf_counter()
    data = load_data(samples)
    step = frozen_step("huber", shared_table(), *data.x.shape)
    rows = run_losses(step, data, passes, tick)
    library = run_library(patients, tick)
    illustrations = [
        error_picture(tick),
        weight_picture(tick),
        attention_picture(data, tick),
        trajectory_picture(data, tick),
    ]
    return Report(
        rows=rows,
        library=library,
        illustrations=illustrations,
        samples=samples,
        dim=data.x.shape[1],
        tokens=step.plan.tokens,
        parameters=step.plan.parameters,
        passes=passes,
        seconds=time.perf_counter() - started,
        version=iceform.__version__,
        torch_version=torch.__version__,
    )


def ticks(passes: int) -> int:
    """How often :func:`run` calls ``tick``: once per step, program and picture, and twice more."""
    jobs = programs_for(load_patients(4))
    return passes * len(TASKS) + len(jobs) + 2 + 4


def show(
    out: Path,
    *,
    samples: int = SAMPLES,
    passes: int = PASSES,
    patients: int = PATIENTS,
    console: Console | None = None,
) -> Report:
    """Run with a progress bar, print the tables, write the report to ``out``."""
    console = console or Console()
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("building", total=ticks(passes))
        report = run(
            samples,
            passes,
            lambda what: progress.update(task, advance=1, description=what),
            patients=patients,
        )
    console.print(_table(report))
    console.print(
        f"one frozen module, {len(report.rows)} losses, the same weights", highlight=False
    )
    console.print()
    console.print(_library_table(report.library))
    console.print(_library_words(report.library), highlight=False, soft_wrap=True)
    write(out, render(report))
    console.print(
        f"{report.seconds:.0f} s; the report is in {out}", highlight=False, soft_wrap=True
    )
    return report


def _table(report: Report) -> Table:
    table = Table(title="gradient steps by one frozen attention layer", title_justify="left")
    table.add_column("loss")
    for heading in ("sup error", "certified", "grid tokens", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("weights")
    for row in report.rows:
        table.add_row(
            row.loss,
            f"{row.error:.1e}",
            f"{row.certified:.1e}",
            str(row.grid_tokens),
            f"{row.seconds:.1f}",
            row.digest[:12],
        )
    return table


def _library_table(library: Library) -> Table:
    table = Table(
        title="the whole library by one frozen machine",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("program", no_wrap=True)
    table.add_column("library")
    for heading in ("to\nexact", "certified", "to\nlibrary", "passes", "sec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in library.rows:
        table.add_row(
            row.program,
            row.library,
            f"{row.error:.1e}",
            f"{row.certified:.1e}",
            f"{row.difference:.1e}" + ("" if row.same else "*"),
            str(row.passes),
            f"{row.seconds:.1f}",
        )
    return table


def _library_words(library: Library) -> str:
    return (
        f"weights {library.digest[:12]}, checked after each of {len(library.rows)} programs\n"
        "to exact:   largest difference to the program's own exact algorithm, which the\n"
        "            certificate bounds; for a loss, the same number of exact gradient steps\n"
        "to library: largest difference to the library's answer; for a loss, its optimum\n"
        "*           another estimator: neighbours by temperature against neighbours in or out\n"
    )
