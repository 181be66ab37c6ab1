"""The ``iceform`` command. Its parts come with extras; where one is missing it says which.

A package beside iceform adds a command by an entry point of the group ``iceform.commands``: its
name is the command's, its object a function that takes the words after it and returns the exit
status.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from iceform.cli.exits import INTERRUPTED, USAGE, missing_extra

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``iceform`` script."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    for added in entry_points(group="iceform.commands", name=asked):
        raise SystemExit(added.load()(sys.argv[2:]))
    try:
        from iceform.cli.app import app
    except ModuleNotFoundError as missing:
        message = missing_extra(missing)
        if message is None:
            raise
        print(message, file=sys.stderr)
        raise SystemExit(USAGE) from None
    except KeyboardInterrupt:  # while loading
        raise SystemExit(INTERRUPTED) from None
    app(prog_name="iceform")
