"""``iceform run``: a program on a table, beside scikit-learn."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform.cli.outputs import check_targets, write_all
from iceform_estimators.algorithms import named
from iceform_estimators.command.arguments import (
    DATA_PANEL,
    OUTPUT_PANEL,
    BackendName,
    DataFile,
    Drop,
    Program,
    Scale,
    SchemaFile,
    Strict,
    Target,
    Text,
    Unknown,
    read_tables,
    with_options,
)

if TYPE_CHECKING:
    from iceform_estimators.command.running import Run, Tick


@with_options
def run(
    program: Program,
    data: DataFile,
    target: Target = None,
    test_share: Annotated[
        float, typer.Option(help="Share of the rows to test on.", rich_help_panel=DATA_PANEL)
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split.", rich_help_panel=DATA_PANEL)] = 0,
    drop: Drop = None,
    text: Text = None,
    schema: SchemaFile = None,
    scale: Scale = True,
    unknown: Unknown = "error",
    strict: Strict = False,
    new: Annotated[
        Path | None,
        typer.Option(help="More rows to predict, without a target.", rich_help_panel=DATA_PANEL),
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(help="Certify this error in every entry, or refuse."),
    ] = None,
    backend: BackendName = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Run scikit-learn beside it.")
    ] = True,
    report: Annotated[
        Path | None, typer.Option(help="Write a page about the run.", rich_help_panel=OUTPUT_PANEL)
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Write predictions, as CSV or Parquet.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Run an algorithm on a table by frozen attention, with a proven error, beside scikit-learn.

    Example: iceform run ridge --data houses.csv --target price --alpha 10 --report houses.html
    """
    with one_line_errors():
        from iceform_estimators.command.running import STAGES, Settings
        from iceform_estimators.command.running import run as run_program

        settings = Settings(
            named(program), options, device, eps, test_share, seed, unknown, scale, strict,
            compare, backend,
        )  # fmt: skip
        files = {"report": report, "predictions": predictions}
        targets = {what: path for what, path in files.items() if path is not None}
        inputs = [path for path in (data, new, schema) if path is not None]
        check_targets(targets, inputs)
        with _progress(len(STAGES) + 2) as tick:
            tick("reading")
            tables = read_tables(settings.entry, data, target, new, drop or (), text or (), schema)
            found = run_program(settings, *tables, tick)
            tick("writing")
            again = _command(found, data, new, drop or [], text or [], schema)
            write_all(_contents(found, targets, again))
        for warning in found.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if as_json:
            print_json({**found.to_dict(), "files": {k: str(v) for k, v in targets.items()}})
        else:
            _print_found(found, targets)


def _print_found(found: Run, targets: Mapping[str, Path]) -> None:
    from iceform_estimators.command.console import print_run

    console = Console()
    print_run(console, found)
    for what, path in targets.items():
        console.print(f"Wrote the {what} to {path}", highlight=False, soft_wrap=True)


@contextmanager
def _progress(steps: int) -> Iterator[Tick]:
    """A bar on stderr where that is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<11}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=steps)

        def tick(stage: str) -> None:
            bar.update(task, advance=1, description=stage)

        yield tick


def _contents(found: Run, targets: Mapping[str, Path], command: str) -> dict[Path, bytes]:
    """What goes into each file."""
    contents = {}
    if "report" in targets:
        from iceform_estimators.command.run_page import page

        contents[targets["report"]] = page(found, command).encode()
    if "predictions" in targets:
        contents[targets["predictions"]] = _predictions(found, targets["predictions"])
    return contents


def _predictions(found: Run, path: Path) -> bytes:
    """One line per row: where it is from, what it was, what is predicted."""
    from iceform_estimators.tables import write_rows

    parts = []
    for part in found.parts:
        columns: dict[str, Any] = {"row": part.rows, "part": part.name}
        if found.settings.entry.needs_target():
            columns["actual"] = [None] * len(part.rows) if part.actual is None else part.actual
            columns["predicted"] = part.predicted
        else:
            scores = part.predicted.T
            columns |= {f"component_{k + 1}": values for k, values in enumerate(scores)}
        parts.append(columns)
    return write_rows(parts, path.suffix)


def _command(
    found: Run,
    data: Path,
    new: Path | None,
    drop: Sequence[str],
    text: Sequence[str],
    schema: Path | None,
) -> str:
    """The command that does it again."""
    settings = found.settings
    words = ["iceform", "run", settings.entry.name, "--data", str(data)]
    words += ["--target", found.target] if found.target else []
    for name, value in settings.options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    words += ["--test-share", str(settings.test_share), "--seed", str(settings.seed)]
    for flag, names in (("--drop", drop), ("--text", text)):
        words += [word for name in names for word in (flag, name)]
    words += [] if schema is None else ["--schema", str(schema)]
    words += [] if settings.scale else ["--no-scale"]
    words += ["--strict"] if settings.strict else []
    words += [] if settings.unknown == "error" else ["--unknown", settings.unknown]
    words += [] if new is None else ["--new", str(new)]
    words += [] if settings.eps is None else ["--eps", str(settings.eps)]
    words += [] if settings.backend == "auto" else ["--backend", settings.backend]
    words += [] if settings.device == "cpu" else ["--device", settings.device]
    return shlex.join(words)
