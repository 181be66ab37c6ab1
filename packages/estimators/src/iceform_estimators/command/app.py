"""The commands that this package adds to ``iceform``: run, list, explain, demo."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import typer

from iceform_estimators.command.commands.demo import demo
from iceform_estimators.command.commands.explain import explain
from iceform_estimators.command.commands.inspect import inspect
from iceform_estimators.command.commands.list import list_
from iceform_estimators.command.commands.run import run

COMMANDS: Mapping[str, Callable[..., None]] = {
    "run": run,
    "list": list_,
    "explain": explain,
    "inspect": inspect,
    "demo": demo,
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Algorithms on a table, by one frozen attention layer, with a proven error.",
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main(words: Sequence[str]) -> int:
    """Run the command that ``iceform`` was called with; never returns."""
    app([sys.argv[1], *words], prog_name="iceform")
    return 0
