"""``python -m studies``: list, run and report on the paper's numerical studies."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from iceform.cli.failures import one_line_errors
from studies.study import COLUMNS
from studies.sweeps import STUDIES, Group, Request, groups, load_records, run

__all__ = ["app"]

_OUT = Path("out/studies")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The paper's numerical studies: the authors' code, its settings, our own, constructed.",
)


_one_line_errors = partial(one_line_errors, "finished cells are kept; run it again to go on")


@app.command("list")
def list_studies() -> None:
    """What there is to run, at both scales."""
    table = Table("study", "column", "scale", "samples", "epochs", "seeds")
    for study in STUDIES.values():
        for column in COLUMNS:
            for scale in ("smoke", "paper"):
                spec = study.spec(column, scale)
                trained = column != "constructed"
                sizes = [f"{spec.samples:,}", str(spec.epochs)] if trained else ["–", "–"]
                table.add_row(study.name, column, scale, *sizes, str(spec.seeds))
    Console().print(table)


class _Bars:
    """A bar for all groups and one for the group at work."""

    def __init__(self, bars: Progress, count: int) -> None:
        self.bars = bars
        self.all = bars.add_task("groups", total=count)
        self.one: dict[Group, TaskID] = {}

    def __call__(self, group: Group, done: int, total: int) -> None:
        if (done, total) == (1, 1):
            if group in self.one:
                self.bars.remove_task(self.one.pop(group))
            self.bars.advance(self.all)
            return
        if group not in self.one:
            self.one[group] = self.bars.add_task(group.name, total=total)
        self.bars.update(self.one[group], completed=done)


@app.command("run")
def run_studies(
    study: Annotated[str, typer.Argument(help=f"{', '.join(STUDIES)}, or all.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help=f"One or more of {', '.join(COLUMNS)}; all if left out."),
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke or paper.")] = "smoke",
    device: Annotated[
        list[str] | None, typer.Option(help="cpu, cuda, cuda:1 …; several share the work.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many; the study's own if left out.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes on this machine; -1: one per core.")] = 1,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to run on.")] = None,
    their_code: Annotated[
        Path | None, typer.Option(help="A copy of the authors' code, for their_script.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The results folder.")] = _OUT,
) -> None:
    """Run what is not finished; a killed run goes on where it stopped.

    Example: python -m studies run heads --scale smoke --jobs 2
    """
    with _one_line_errors():
        request = Request(
            tuple(STUDIES) if study == "all" else (study,),
            tuple(column) if column else COLUMNS,
            scale,
            out,
            seeds,
            tuple(device) if device else ("cpu",),
            code=their_code,
        )
        todo = groups(request)
        with Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True),
        ) as bars:  # fmt: skip
            done = run(request, jobs=jobs, dask=dask, report=_Bars(bars, len(todo)))
        typer.echo(f"{len(done)} cells computed; results in {out}")


@app.command()
def report(
    out: Annotated[Path, typer.Option(help="A results folder.")] = _OUT,
    into: Annotated[Path | None, typer.Option(help="Where the report goes; OUT/report.")] = None,
) -> None:
    """Write HTML, Markdown and CSV with the published numbers beside ours."""
    with _one_line_errors():
        from studies.report import write

        for path in write(load_records(out), into or out / "report"):
            typer.echo(path)


if __name__ == "__main__":
    app(prog_name="python -m studies")
