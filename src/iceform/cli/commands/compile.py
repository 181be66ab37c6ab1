"""``iceform compile``: an algorithm of one's own as a program for the frozen computer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iceform.cli.as_json import add_json, print_json
from iceform.errors import IceformError, ProgramError

if TYPE_CHECKING:
    from iceform.computer import Algorithm, Program


SUMMARY = "Compile an algorithm of your own from a Python file."


def main(words: Sequence[str]) -> int:
    """Compile an algorithm from a Python file, which is run to find it."""
    options = _parser().parse_args(words)
    from iceform import compile

    found = algorithm_in(options.file, options.name)
    given, stated = ranges_of(found, options.ranges)
    program = compile(
        found, options.dim, options.samples, options.bound, options.eps, stated, margin=None,
        **given,
    )  # fmt: skip
    if options.json:
        print_json({"name": program.name, **program.plan})
    else:
        print(program.explain() if options.explain else _brief(program))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iceform compile",
        description="Compile an algorithm of your own from a Python file, which is run to find it.",
        epilog="Example: iceform compile lasso.py --explain",
    )
    add = parser.add_argument
    add_program(parser)
    add("--dim", type=int, default=4, help="features of a sample (%(default)s)")
    add("--samples", type=int, default=20, help="the most samples (%(default)s)")
    add("--bound", type=float, default=1.0, help="|x| and |y| are at most this (%(default)s)")
    add("--explain", action="store_true", help="print instructions, tables and errors")
    add_json(parser)
    return parser


def add_program(parser: argparse.ArgumentParser) -> None:
    """The options that say which program: file, name, eps, ranges."""
    add = parser.add_argument
    add("file", type=Path, help="a Python file with an @ice.algorithm in it")
    add("--name", help="which one, where the file has several")
    add("--eps", type=float, default=1e-8, help="the error that tables are made for (%(default)s)")
    add(
        "--range", dest="ranges", action="append", default=[], metavar="NAME=LOW,HIGH",
        help="of a parameter or of a name that a loop changes, as lr=0.1,1; again for more",
    )  # fmt: skip


def ranges_of(
    found: Algorithm, texts: Sequence[str]
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
    """Stated ranges: those of parameters, and those of names that loops change."""
    stated = dict(map(_range, texts))
    return {n: stated.pop(n) for n in set(stated) & set(found.parameters)}, stated


def algorithm_in(file: Path, name: str | None) -> Algorithm:
    """The algorithm that a Python file defines."""
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
