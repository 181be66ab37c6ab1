"""``iceform explain``: what a program writes into its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform.errors import ProgramError
from iceform_estimators.algorithms import named
from iceform_estimators.command.arguments import (
    DATA_PANEL,
    Drop,
    Program,
    Scale,
    Target,
    Text,
    read_tables,
    with_options,
)


@with_options
def explain(
    program: Program,
    data: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet; twelve flats by default.", rich_help_panel=DATA_PANEL),
    ] = None,
    target: Target = None,
    drop: Drop = None,
    text: Text = None,
    scale: Scale = True,
    full: Annotated[bool, typer.Option("--full", help="Print every token that is seen.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Show an algorithm's prompt, token by token, and the proof of its answer.

    Example: iceform explain lasso
    """
    with one_line_errors():
        from iceform_estimators.command.console import print_explanation
        from iceform_estimators.command.explaining import example
        from iceform_estimators.command.explaining import explain as open_prompts
        from iceform_estimators.command.running import Settings

        settings = Settings(named(program), options, scale=scale)
        if data is None:
            _check_no_columns(target, drop, text)
            table = example(settings.entry)
        else:
            table, _ = read_tables(settings.entry, data, target, None, drop or (), text or ())
        found = open_prompts(settings, table)
        for warning in found.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if as_json:
            print_json(found.to_dict())
        else:
            print_explanation(Console(), found, full=full)


def _check_no_columns(*named: object) -> None:
    if any(named):
        raise ProgramError("--target, --drop and --text name columns; give their file with --data")
