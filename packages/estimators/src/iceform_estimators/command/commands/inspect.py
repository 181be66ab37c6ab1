"""``iceform inspect``: how a table would be read, and a schema to edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform.cli.outputs import check_targets, write_all


def inspect(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the schema to this file, to edit it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a table would be read, column by column, and why.

    Example: iceform inspect houses.csv --write houses.toml
    """
    with one_line_errors():
        from iceform_estimators.tables import inspect as proposal

        targets = {} if write is None else {"schema": write}
        check_targets(targets, [data])
        schema, notes = proposal(data, target)
        if write is not None:
            write_all({write: schema.to_toml(data.name).encode()})
        if as_json:
            columns: list[dict[str, Any]] = [{**c.to_dict(), "why": c.why} for c in schema.columns]
            file = {"encoding": schema.encoding, "separator": schema.separator}
            print_json({"source": data.name, "file": file, "notes": notes, "columns": columns})
            return
        console = Console()
        grid = Table("column", "type", "why", box=None, title=data.name, title_justify="left")
        for column in schema.columns:
            grid.add_row(column.name, column.type, column.why or "")
        console.print(grid)
        for note in notes:
            console.print(f"note: {note}", highlight=False, soft_wrap=True)
        if write is not None:
            console.print(f"Wrote the schema to {write}", highlight=False, soft_wrap=True)
