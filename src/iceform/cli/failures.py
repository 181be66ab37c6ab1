"""How failures read: what a user can mend is one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
        print(f"interrupted: {left}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    else:
        return
    print(" ".join(message.split()), file=sys.stderr)
    raise SystemExit(USAGE)
