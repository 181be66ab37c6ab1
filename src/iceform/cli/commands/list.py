"""``iceform list``: the algorithms that run on a table."""

from __future__ import annotations

from rich.console import Console

from iceform.algorithms import kinds
from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors


def list_(as_json: AsJson = False) -> None:
    """List the algorithms that run on a table, and their options.

    Example: iceform list
    """
    with one_line_errors():
        if as_json:
            print_json({"algorithms": [kind.record() for kind in kinds()]})
            return
        from iceform.cli.console import print_catalogue

        print_catalogue(Console())
