"""``iceform list``: the programs that run on a table."""

from __future__ import annotations

from rich.console import Console

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.catalogue import ENTRIES
from iceform.cli.failures import one_line_errors

__all__ = ["list_"]


def list_(as_json: AsJson = False) -> None:
    """List the programs that run on a table, their options and scikit-learn's names for them.

    Example: iceform list
    """
    with one_line_errors():
        if as_json:
            print_json({"programs": [entry.to_dict() for entry in ENTRIES.values()]})
            return
        from iceform.cli.console import print_catalogue

        print_catalogue(Console())
