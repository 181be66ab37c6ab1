"""``iceform demo``: the whole library by frozen attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iceform.cli.failures import one_line_errors


def demo(
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/report.html"),
) -> None:
    """Run every algorithm on the Ames houses by frozen attention; write a report."""
    with one_line_errors():
        from iceform_estimators.demo.page import show

        show(out)
