"""``iceform explain``: what a program writes into its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from iceform.cli.arguments import (
    DATA_PANEL,
    Alpha,
    Components,
    Drop,
    Epsilon,
    Gamma,
    InversePenalty,
    L1Ratio,
    MaxPasses,
    Neighbors,
    Precondition,
    Program,
    Quantile,
    Scale,
    Target,
    Text,
    Tol,
    options_given,
    read_tables,
)
from iceform.cli.as_json import AsJson, print_json
from iceform.cli.catalogue import entry_named
from iceform.cli.failures import one_line_errors
from iceform.errors import ProgramError

__all__ = ["explain"]


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
    alpha: Alpha = None,
    l1_ratio: L1Ratio = None,
    C: InversePenalty = None,
    epsilon: Epsilon = None,
    quantile: Quantile = None,
    n_neighbors: Neighbors = None,
    gamma: Gamma = None,
    n_components: Components = None,
    tol: Tol = None,
    max_passes: MaxPasses = None,
    precondition: Precondition = None,
    full: Annotated[bool, typer.Option("--full", help="Print every token that is seen.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a program writes into its prompt, token by token, and the proof of its answer.

    Example: iceform explain lasso
    """
    given = options_given(locals())
    with one_line_errors():
        from iceform.cli.console import print_explanation
        from iceform.cli.explaining import example
        from iceform.cli.explaining import explain as open_prompts
        from iceform.cli.running import Settings

        settings = Settings(entry_named(program), given, scale=scale)
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
