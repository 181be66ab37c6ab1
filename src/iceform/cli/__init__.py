"""The ``iceform`` command. Its parts come with extras; where one is missing it says which."""

from __future__ import annotations

import sys

from iceform.cli.exits import INTERRUPTED, USAGE, missing_extra

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``iceform`` script."""
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
