"""Arguments that commands share: a program, its options, a table; and their completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iceform.cli.catalogue import ENTRIES, OPTIONS, Entry
from iceform.errors import IceformError, ProgramError

if TYPE_CHECKING:
    from iceform.tables import Table

__all__ = [
    "DATA_PANEL",
    "OUTPUT_PANEL",
    "Alpha",
    "Components",
    "DataFile",
    "Drop",
    "Epsilon",
    "Gamma",
    "InversePenalty",
    "L1Ratio",
    "MaxPasses",
    "Neighbors",
    "Precondition",
    "Program",
    "Quantile",
    "Scale",
    "Strict",
    "Target",
    "Text",
    "Tol",
    "Unknown",
    "options_given",
    "read_tables",
]

DATA_PANEL, OUTPUT_PANEL = "Data", "Output"


def _programs(incomplete: str) -> list[tuple[str, str]]:
    """Completions of a program's name."""
    return [(e.name, e.says) for e in ENTRIES.values() if e.name.startswith(incomplete)]


def _columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completions of a column's name, from the file that was named before."""
    path = ctx.params.get("data")
    try:
        from iceform.tables import read

        return [c for c in read(path or "", fewest=0).columns if c.startswith(incomplete)]
    except (IceformError, TypeError, ModuleNotFoundError):
        return []


def _choices(*names: str) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _option(name: str, **more: Any) -> Any:
    """An option of some programs, with its help."""
    owners = ", ".join(entry.name for entry in ENTRIES.values() if name in entry.options)
    text = f"{OPTIONS[name].says} [dim]{owners}[/dim]"
    return typer.Option(OPTIONS[name].flag, help=text, rich_help_panel="Program options", **more)


Program = Annotated[
    str, typer.Argument(help="One of iceform list.", autocompletion=_programs, metavar="PROGRAM")
]
DataFile = Annotated[
    Path, typer.Option("--data", help="CSV or Parquet.", rich_help_panel=DATA_PANEL)
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The column to predict.", autocompletion=_columns, rich_help_panel=DATA_PANEL
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        help="A column to leave out; may be repeated.",
        autocompletion=_columns,
        rich_help_panel=DATA_PANEL,
    ),
]
Text = Annotated[
    list[str] | None,
    typer.Option(
        help="A column of numbers that are names; may be repeated.",
        autocompletion=_columns,
        rich_help_panel=DATA_PANEL,
    ),
]
Scale = Annotated[
    bool,
    typer.Option(
        "--scale/--no-scale",
        help="Centre numbers and divide them by their standard deviation.",
        rich_help_panel=DATA_PANEL,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse columns that would be left out: identifiers, constants in the training rows.",
        rich_help_panel=DATA_PANEL,
    ),
]
Unknown = Annotated[
    str,
    typer.Option(
        help="Texts that no training row has: error, or ignore (zeros).",
        autocompletion=_choices("error", "ignore"),
        rich_help_panel=DATA_PANEL,
    ),
]
Alpha = Annotated[float | None, _option("alpha")]
L1Ratio = Annotated[float | None, _option("l1_ratio")]
InversePenalty = Annotated[float | None, _option("C")]
Epsilon = Annotated[float | None, _option("epsilon")]
Quantile = Annotated[float | None, _option("quantile")]
Neighbors = Annotated[int | None, _option("n_neighbors")]
Gamma = Annotated[float | None, _option("gamma")]
Components = Annotated[int | None, _option("n_components")]
Tol = Annotated[float | None, _option("tol")]
MaxPasses = Annotated[int | None, _option("max_passes")]
Precondition = Annotated[
    str | None, _option("precondition", autocompletion=_choices("whiten", "diagonal", "none"))
]


def options_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The program options among a command's arguments that were given."""
    return {name: values[name] for name in OPTIONS if values[name] is not None}


def read_tables(
    entry: Entry,
    data: Path,
    target: str | None,
    new: Path | None,
    drop: Sequence[str],
    text: Sequence[str],
) -> tuple[Table, Table | None]:
    """The table, and the one with more rows to predict."""
    from iceform.tables import read, read_like

    if entry.target and target is None:
        columns = ", ".join(read(data, fewest=0).columns)
        raise ProgramError(f"{entry.name} needs a --target; {data.name} has the columns {columns}")
    table = read(data, target, drop=drop, text=text)
    return table, None if new is None else read_like(new, table)
