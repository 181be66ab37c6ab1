"""Tables that were fitted before, kept on disk and proven again when they are read.

A file holds tokens, values and the cells of the proof, as few as it takes; nothing in it is
believed. The proof is made anew for the function at hand, on those cells, which takes a small part
of the time that finding tokens, values and cells took. A file that is damaged, or of another
function, proves nothing as good as what was asked for, and the table is fitted as if there were
none.

``ICEFORM_CACHE`` names the folder, or is ``off``; by default it is ``iceform`` in the user's cache.
Tables that estimators and common activations ask for first ship with the library, in the folder
``shipped`` that ``make tables`` writes, and are believed no more. ``off`` passes them over too.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from iceform import store
from iceform.errors import IceformError
from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.posterior import thinned
from iceform.interpolation.storage import describe_table, proved_again, table_from

__all__ = ["SHIPPED", "folder", "recalled"]

_FORM = 2  # of the files; what makes a table may change it too
_PLACES = 257  # where a function is looked at to tell it from others
_MOST_FILES = 4096
_KIND = "table"
SHIPPED = Path(__file__).with_name("shipped")

Asked = tuple[float, float, float | None, int | None]  # low, high, eps, tokens


def folder() -> Path | None:
    """Where tables are kept; None where they are not."""
    named = os.environ.get("ICEFORM_CACHE")
    if named is not None:
        return None if named.strip().lower() in ("", "off", "0", "none") else Path(named)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "iceform" if base and os.path.isabs(base) else None


def recalled(f: ScalarFunction, asked: Asked, fit: Callable[[], Interpolant]) -> Interpolant:
    """A table that was kept for what is asked, proven for ``f``; else one that is fitted now."""
    place = folder()
    if place is None or f.affine is not None or f.obstacle is not None:
        return fit()
    name = f"table-{_key(f, asked)}.safetensors"
    path = place / name
    for kept in (path, SHIPPED / name):
        found = _read(kept, f, asked) if kept.exists() else None
        if found is not None:
            return found
    made = fit()
    if made.kind == "proven" and made.edges is not None:
        with suppress(OSError):  # a full or read-only disk keeps nothing
            _write(path, replace(made, edges=thinned(made, f)))
    return made


def _key(f: ScalarFunction, asked: Asked) -> str:
    """Tells functions and questions apart; a false match costs time, not truth."""
    low, high, _, _ = asked
    values = f(torch.linspace(low, high, _PLACES, dtype=torch.float64)).detach()
    seen = values.to(torch.float32).numpy().tobytes()  # the last digits differ between machines
    said = json.dumps([_FORM, *asked, f.kinks, bool(f.estimate)])
    return hashlib.sha256(said.encode() + seen).hexdigest()[:40]


def _read(path: Path, f: ScalarFunction, asked: Asked) -> Interpolant | None:
    low, high, eps, tokens = asked
    try:
        kept = store.read_tensors(path, _KIND)
        draft = table_from(kept.content, kept.tensors)
        if not _fits(draft, low, high, tokens) or f.obstacle_on(low, high) is not None:
            return None
        found = proved_again(draft, f, alike=True)
    except (ValueError, KeyError, TypeError, IceformError, RuntimeError):
        return None
    return found if eps is None or found.error <= eps else None


def _fits(it: Interpolant, low: float, high: float, tokens: int | None) -> bool:
    """Whether what was read is a table of the range and size that is asked for."""
    return (it.low, it.high) == (low, high) and tokens in (None, it.tokens) and it.edges is not None


def _write(path: Path, it: Interpolant) -> None:
    _make_room(path.parent)
    store.write_tensors(path, _KIND, *describe_table(it))


def _make_room(place: Path) -> None:
    """Let the half that was written first go where there are too many."""
    files = list(place.glob("table-*.safetensors"))
    if len(files) >= _MOST_FILES:
        for old in sorted(files, key=lambda path: path.stat().st_mtime)[: _MOST_FILES // 2]:
            with suppress(OSError):
                old.unlink()
