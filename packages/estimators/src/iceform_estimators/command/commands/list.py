"""``iceform list``: the algorithms that run on a table."""

from __future__ import annotations

from rich.console import Console

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform_estimators.algorithms import kinds


def list_(as_json: AsJson = False) -> None:
    """List the algorithms that run on a table, and their options.

    Example: iceform list
    """
    with one_line_errors():
        if as_json:
            print_json({"algorithms": [kind.record() for kind in kinds()]})
            return
        from iceform_estimators.command.console import print_catalogue

        print_catalogue(Console())
