"""``iceform play``: the playground."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from iceform.cli.failures import one_line_errors


def play(
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = 8642,
    workers: Annotated[int, typer.Option(help="Processes that compute.")] = 2,
    queue: Annotated[int, typer.Option(help="Questions that may wait for one.")] = 16,
    time_limit: Annotated[float, typer.Option(help="Seconds that a question may take.")] = 10.0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Show the page in a browser.")
    ] = False,
) -> None:
    """Serve the playground: draw points, swap prompts, look inside.

    Example: iceform play --open
    """
    with one_line_errors():
        from iceform_playground.server import serve
        from iceform_playground.settings import Settings

        settings = Settings(
            host=host, port=port, workers=workers, queue=queue, time_limit=time_limit
        )
        serve(settings, open_browser=open_browser)


app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command("play")(play)


def main(words: Sequence[str]) -> int:
    """Run ``iceform play``; never returns."""
    app(list(words), prog_name="iceform play")
    return 0
