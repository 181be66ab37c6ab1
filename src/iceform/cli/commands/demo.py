"""``iceform demo``: the whole library by frozen attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iceform.cli.failures import one_line_errors

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/report.html"),
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="A few patients instead: losses by literal matrices, 15 programs by the "
            "universal machine.",
        ),
    ] = False,
) -> None:
    """Run the whole library on the Ames houses by frozen attention; write a report."""
    with one_line_errors():
        if small:
            from iceform.demo.patients.page import show as show_patients

            show_patients(out)
            return
        from iceform.demo.ames.page import show

        show(out)
