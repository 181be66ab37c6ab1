"""``iceform compile``: an algorithm of one's own as a program for the frozen computer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform.errors import IceformError, ProgramError

if TYPE_CHECKING:
    from iceform.computer import Algorithm, Program


def compile_(
    file: Annotated[Path, typer.Argument(help="A Python file with an @ice.algorithm in it.")],
    name: Annotated[str | None, typer.Option(help="Which one, where the file has several.")] = None,
    dim: Annotated[int, typer.Option(help="Features of a sample.")] = 4,
    samples: Annotated[int, typer.Option(help="The most samples.")] = 20,
    bound: Annotated[float, typer.Option(help="|x| and |y| are at most this.")] = 1.0,
    eps: Annotated[float, typer.Option(help="The error that tables are made for.")] = 1e-8,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", help="Of a parameter or of a name that a loop changes: lr=0.1,1."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print instructions, tables and errors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile an algorithm of your own from a Python file, which is run to find it.

    Example: iceform compile lasso.py --explain
    """
    with one_line_errors():
        from iceform import compile

        found = _algorithm(file, name)
        stated = dict(map(_range, ranges or ()))
        given = {n: stated.pop(n) for n in set(stated) & set(found.parameters)}
        program = compile(found, dim, samples, domain=bound, eps=eps, bounds=stated, **given)
        if as_json:
            print_json({"name": program.name, **program.plan})
        else:
            typer.echo(program.explain() if explain else _brief(program))


def _algorithm(file: Path, name: str | None) -> Algorithm:
    import runpy
    import traceback

    from iceform.computer import Algorithm

    if not file.is_file():
        raise ProgramError(f"there is no file {file}")
    try:
        found = runpy.run_path(str(file)).values()
    except IceformError:
        raise
    except Exception as failure:
        at = traceback.extract_tb(failure.__traceback__)[-1]
        line = getattr(failure, "lineno", None) or at.lineno
        raise ProgramError(
            f"{file} does not run: {type(failure).__name__} in line {line}: {failure}"
        ) from None
    made = [v for v in found if isinstance(v, Algorithm)]
    wanted = [a for a in made if name is None or a.name == name]
    if len(wanted) != 1:
        names = ", ".join(a.name for a in made) or "none"
        raise ProgramError(
            f"{file} defines these algorithms: {names}; name one with --name"
            if made
            else f"{file} defines no algorithm; decorate a function with @ice.algorithm"
        )
    return wanted[0]


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(","))
    except ValueError:
        raise ProgramError(f"--range takes name=low,high, such as lr=0.1,1; got {text!r}") from None
    return name.strip(), (low, high)


def _brief(program: Program) -> str:
    plan = program.plan
    lines = [
        f"{program.name}: {plan['instructions']} instructions, {plan['variables']} variables, "
        f"{plan['tables']} tables with {plan['entries']} entries",
        *map(str, program.ranges.assumed.values()),
        "see all of it with --explain",
    ]
    return "\n".join(lines)
