"""Tables that were fitted before, kept on disk and proven again when they are read.

A file holds tokens, values and the cells of the proof; nothing in it is believed. The proof is
made anew for the function at hand, on those cells, which takes a small part of the time that
finding tokens, values and cells took. A file that is damaged, or of another function, proves
nothing as good as what was asked for, and the table is fitted as if there were none.

``ICEFORM_CACHE`` names the folder, or is ``off``; by default it is ``iceform`` in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from iceform.errors import IceformError
from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.posterior import prove
from iceform.interpolation.storage import describe_grid, grid_from

__all__ = ["folder", "recalled"]

_FORM = 1  # of the files; what makes a table may change it too
_PLACES = 257  # where a function is looked at to tell it from others
_MOST_FILES = 4096
_AS_GOOD = 1 + 2.0**-20  # of the error that was proven when it was written

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
    path = place / f"table-{_key(f, asked)}.safetensors"
    found = _read(path, f, asked)
    if found is not None:
        return found
    made = fit()
    if made.kind == "proven" and made.edges is not None:
        with suppress(OSError):  # a full or read-only disk keeps nothing
            _write(path, made)
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
        with safe_open(str(path), "pt") as file:
            kept = json.loads(file.metadata()["table"])
            values, edges = file.get_tensor("values"), file.get_tensor("edges")
        grid = grid_from(kept["grid"])
        draft = Interpolant(
            grid, float(kept["sharpness"]), values, str(kept["regime"]), math.inf, f
        )
        if not _fits(draft, edges, low, high, tokens) or f.obstacle_on(low, high) is not None:
            return None
        proof = prove(draft, f, edges)
        wanted = min(math.inf if eps is None else eps, _AS_GOOD * float(kept["error"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IceformError, RuntimeError):
        return None
    if not proof.error <= wanted:
        return None
    return replace(draft, error=proof.error, edges=edges, _rounding={}, _windows={})


def _fits(it: Interpolant, edges: Tensor, low: float, high: float, tokens: int | None) -> bool:
    """Whether what was read is a table of the range and size that is asked for."""
    return (
        (it.low, it.high) == (low, high)
        and tokens in (None, it.tokens)
        and 0 < it.sharpness < math.inf
        and it.values.shape == (it.tokens,)
        and it.values.dtype == edges.dtype == torch.float64
        and edges.dim() == 1
        and bool(it.values.isfinite().all())
    )


def _write(path: Path, it: Interpolant) -> None:
    """In one step, so that who reads meanwhile sees the old file or the new one."""
    kept = {
        "grid": describe_grid(it.grid),
        "sharpness": it.sharpness,
        "regime": it.regime,
        "error": it.error,
    }
    assert it.edges is not None
    tensors = {"values": it.values.contiguous(), "edges": it.edges.contiguous()}
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path.parent)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(save(tensors, metadata={"table": json.dumps(kept)}))
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _make_room(place: Path) -> None:
    """Let the half that was written first go where there are too many."""
    files = list(place.glob("table-*.safetensors"))
    if len(files) >= _MOST_FILES:
        for old in sorted(files, key=lambda path: path.stat().st_mtime)[: _MOST_FILES // 2]:
            with suppress(OSError):
                old.unlink()
