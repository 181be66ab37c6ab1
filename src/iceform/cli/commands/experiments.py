"""``iceform experiments``: gone; the studies are run where they stand."""

from __future__ import annotations

from iceform.cli.failures import one_line_errors
from iceform.errors import ProgramError


def experiments() -> None:
    """Say where the studies are."""
    with one_line_errors():
        raise ProgramError(
            "the studies are no part of the package; clone the repository, install it with pip "
            "install '.[experiments]', and run python -m studies in its root"
        )
