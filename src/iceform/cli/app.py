"""The ``iceform`` app: a table of its commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

import iceform
from iceform.cli.commands.check import check
from iceform.cli.commands.compile import compile_
from iceform.cli.commands.experiments import experiments
from iceform.cli.commands.plan import plan

COMMANDS: Mapping[str, Callable[..., None]] = {
    "compile": compile_,
    "check": check,
    "plan": plan,
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile an algorithm into a prompt, run it through frozen attention, get a proven error.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iceform {iceform.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
# Whatever is asked of it, --help too, it says where the studies are.
app.command(
    "experiments",
    hidden=True,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(experiments)
