"""``iceform experiments``: the studies that stand beside the package, in a clone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from iceform.cli.failures import one_line_errors
from iceform.errors import ProgramError


def experiments(context: typer.Context) -> None:
    """Run the paper's numerical studies, in a clone: python -m studies."""
    with one_line_errors("finished cells are kept; run it again to go on"):
        if not Path("studies/__main__.py").is_file():
            raise ProgramError(
                "the studies are not in the wheel, and there is no folder studies here; clone the "
                "repository and run this in it"
            )
        raise typer.Exit(subprocess.call([sys.executable, "-m", "studies", *context.args]))
