"""Arguments that commands share: an algorithm, its options, a table; and their completions.

Options come from the records: a command that is decorated by :func:`with_options` has those of
every algorithm that there is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iceform.backends import Backend
from iceform.errors import IceformError, ProgramError
from iceform_estimators.algorithms import Algorithm, Option, kinds

if TYPE_CHECKING:
    from iceform_estimators.tables import Table

DATA_PANEL, OUTPUT_PANEL = "Data", "Output"


def _programs(incomplete: str) -> list[tuple[str, str]]:
    """Completions of a program's name."""
    return [(kind.name, kind.says) for kind in kinds() if kind.name.startswith(incomplete)]


def _columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completions of a column's name, from the file that was named before."""
    path = ctx.params.get("data")
    try:
        from iceform_estimators.tables import columns_of

        return [c for c in columns_of(path or "") if c.startswith(incomplete)]
    except (IceformError, TypeError, ModuleNotFoundError):
        return []


def _choices(*names: str) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def all_options() -> dict[str, Option]:
    """The options of all algorithms by name, as the first that has one describes it."""
    found: dict[str, Option] = {}
    for kind in kinds():
        for name, one in kind.options().items():
            if one.command:
                found.setdefault(name, one)
    return found


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each of the algorithms', in place of ``**options``."""
    signature = inspect.signature(command, eval_str=True)
    *own, rest = signature.parameters.values()
    assert rest.kind is inspect.Parameter.VAR_KEYWORD
    made = [_parameter(one) for one in all_options().values()]

    def called(**values: Any) -> None:
        options = {p.name: values.pop(p.name) for p in made}
        command(**values, **{k: v for k, v in options.items() if v is not None})

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + made
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _parameter(one: Option) -> inspect.Parameter:
    owners = [kind.name for kind in kinds() if one.name in kind.options()]
    shown = typer.Option(
        one.flag,
        help=f"{one.says} [dim]{', '.join(owners)}[/dim]",
        rich_help_panel="Options of algorithms",
        autocompletion=_choices(*one.choices) if one.choices else None,
    )
    kind = str if one.choices else one.kind
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, shown],
    )


Program = Annotated[
    str, typer.Argument(help="One of iceform list.", autocompletion=_programs, metavar="ALGORITHM")
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
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema", help="How to read the file, as iceform inspect writes it.",
        rich_help_panel=DATA_PANEL,
    ),
]  # fmt: skip
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        help="How passes are evaluated: auto, or literal for every matrix multiplied.",
        autocompletion=_choices("auto", *Backend.kinds),
    ),
]


def read_tables(
    entry: type[Algorithm],
    data: Path,
    target: str | None,
    new: Path | None,
    drop: Sequence[str],
    text: Sequence[str],
    schema: Path | None = None,
) -> tuple[Table, Table | None]:
    """The table, and the one with more rows to predict."""
    from iceform_estimators.tables import columns_of, read, read_like, read_schema

    if entry.needs_target() and target is None:
        columns = ", ".join(columns_of(data))
        raise ProgramError(f"{entry.name} needs a --target; {data.name} has the columns {columns}")
    given = None if schema is None else read_schema(schema)
    table = read(data, target, drop=drop, text=text, schema=given)
    return table, None if new is None else read_like(new, table)
