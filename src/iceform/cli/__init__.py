"""The ``iceform`` command, which needs nothing beyond what ``pip install iceform`` brings.

A command is a function that takes the words after its name and returns the exit status: 0 for
success, 1 for an answer that is not where it was proven to be, 2 for what the user can mend. A
package beside iceform adds one by an entry point of the group ``iceform.commands``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from iceform.cli.commands import bench, check, checkpoints, compile, diagnose, plan
from iceform.cli.exits import USAGE
from iceform.cli.failures import one_line_errors
from iceform.errors import ProgramError

__all__ = ["USAGE", "main", "one_line_errors"]

COMMANDS = {
    "compile": compile, "diagnose": diagnose, "check": check, "plan": plan, "bench": bench,
    "checkpoints": checkpoints,
}  # fmt: skip
# Commands that a package brings; where it is not installed, the error names it.
PACKAGES = {
    "run": "iceform-estimators",
    "list": "iceform-estimators",
    "explain": "iceform-estimators",
    "demo": "iceform-estimators",
    "play": "iceform-playground",
    "tolerance": "iceform-tolerance",
}
# Commands of earlier releases, and what to do instead.
GONE = {
    "experiments": "the studies are no part of the package; clone the repository and run python "
    "-m studies in its root",
    "inspect": 'pandas shows what a file holds: python -c "import pandas; '
    "pandas.read_csv('FILE').info()\"; iceform run of the package iceform-estimators fits it",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.

    Parameters
    ----------
    words
        The command and what follows it; those of the process by default.

    Example
    -------
    >>> main(["plan", "--dim", "2", "--samples", "4"])  # doctest: +SKIP
    0
    """
    words = sys.argv[1:] if words is None else words
    name, rest = (words[0], words[1:]) if words else ("", ())
    with one_line_errors():
        command = _command(name)
        if command is not None:
            return command(rest)
        if name in GONE:
            raise ProgramError(f"iceform {name} is gone: {GONE[name]}")
        if name in PACKAGES:
            raise ProgramError(f"iceform {name} is in a package: pip install {PACKAGES[name]}")
    return _without_command(words)


def _command(name: str) -> Callable[[Sequence[str]], int] | None:
    """The function of a command, iceform's own or a package's."""
    run: Callable[[Sequence[str]], int] | None = None
    if name in COMMANDS:
        run = COMMANDS[name].main
    else:
        for added in entry_points(group="iceform.commands", name=name):
            run = added.load()
    return run


def _without_command(words: Sequence[str]) -> int:
    """``--help`` and ``--version``; anything else is a mistake, which argparse explains."""
    from iceform import __version__

    parser = argparse.ArgumentParser(
        prog="iceform",
        description="Compile an algorithm into a prompt or into the weights of a stock "
        "transformer, and get its answer with a proven error.",
        epilog=_listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"iceform {__version__}")
    parser.add_argument("command", nargs="?", help="one of those below; -h after it for its own")
    command = parser.parse_args(words).command
    if command is not None:
        parser.error(f"there is no command {command!r}; iceform --help lists them")
    parser.print_help()
    return 2


def _listed() -> str:
    """Every command that there is, a line each."""
    lines = {name: command.SUMMARY for name, command in COMMANDS.items()}
    for added in sorted(entry_points(group="iceform.commands")):
        package = PACKAGES.get(added.name) or (added.dist.name if added.dist else added.value)
        lines.setdefault(added.name, f"(of {package})")
    return "\n".join(["commands:", *(f"  {name:<10} {says}" for name, says in lines.items())])
