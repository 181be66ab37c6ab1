"""How failures read: what a user can mend is one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from iceform.cli.exits import INTERRUPTED, USAGE, missing_extra
from iceform.errors import IceformError


@contextmanager
def one_line_errors(left: str = "nothing was written") -> Iterator[None]:
    """An error a user can mend is one line on stderr and exit status 2; Ctrl-C is 130.

    ``left`` says what an interrupt leaves behind.

    Anything else is a failure of ours: its traceback is what a report of it needs, and Python's
    exit status is 1.
    """
    try:
        yield
    except IceformError as error:
        message = f"error: {error}"
    except ModuleNotFoundError as missing:
        extra = missing_extra(missing)
        if extra is None:
            raise
        message = extra
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {left}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    else:
        return
    typer.echo(" ".join(message.split()), err=True)
    raise typer.Exit(USAGE)
