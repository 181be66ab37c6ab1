"""Where in the author's file something was asked for, and refusals that quote it."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import torch

from iceform.computer.graph import Place
from iceform.errors import CompileError

__all__ = ["here", "raised", "refuse"]

_OURS = Path(__file__).parent
_LIBRARY = str(_OURS / "library")  # is written in the language
_INSIDE = (str(_OURS), str(Path(torch.__file__).parent), "<frozen")


def here() -> Place | None:
    """The line that called into the language."""
    frame = sys._getframe(1)
    while frame is not None and _internal(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else Place(frame.f_code.co_filename, frame.f_lineno)


def raised(error: BaseException) -> Place | None:
    """The author's line in which something went wrong."""
    found, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _internal(file) and "site-packages" not in file:
            found = Place(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _internal(file: str) -> bool:
    return file.startswith(_INSIDE) and not file.startswith(_LIBRARY)


def refuse(message: str, place: Place | None) -> CompileError:
    """The exception for what cannot be compiled, with the line that asks for it."""
    if place is None:
        return CompileError(message)
    source = linecache.getline(place.file, place.line).strip()
    text = f'{message}\n  in "{place.file}", line {place.line}:\n    {source}'
    return CompileError(text, place.file, place.line, source)
