"""Tables on disk: as plain dictionaries and tensors, proved again when they are read.

A file holds tokens, values and the edges of the cells on which the error was proved, as few as it
takes; nothing in it is believed. The proof is made anew for the function at hand, on those cells,
which takes a small part of the time that finding tokens, values and cells took. A file that is
damaged, or of another function, proves nothing as good as what was asked for, and the table is
fitted as if there were none.

``ICEFORM_CACHE`` names the folder, or is ``off``; by default it is ``iceform`` in the user's cache.
Tables that estimators and common activations ask for first ship with the library, in the folder
``shipped`` that ``make tables`` writes, and are believed no more. ``off`` passes them over too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform import store, tuning
from iceform.arithmetic import at_most
from iceform.arithmetic.units import OUTWARD_MOST
from iceform.codec import decode, encode
from iceform.errors import IceformError, IntegrityError, ProgramError
from iceform.expressions.scalar import ScalarFunction
from iceform.tables import regimes
from iceform.tables.interpolant import MAKERS, Interpolant
from iceform.tables.posterior import posterior_error, prove, thinned

_ALIKE = 1.25  # times what is proved: more is stated of another function


def describe_table(it: Interpolant) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says of a table, JSON-ready, and its tensors."""
    tensors: dict[str, Tensor] = {}
    return encode(it, tensors), tensors


def table_from(config: Mapping[str, Any], tensors: Mapping[str, Tensor] = {}) -> Interpolant:
    """The inverse of :func:`describe_table`; it is a table, and nothing that it says is proved."""
    it = decode(Interpolant, {**config, "kind": "claimed"}, tensors)
    grid, values, edges = it.grid, it.values, it.edges
    held = [values] if edges is None else [values, edges]
    plain = all(t.dtype == torch.float64 and t.isfinite().all() for t in held)
    whole = values.shape == (grid.tokens,) and (edges is None or edges.dim() == 1 < len(edges))
    if not (plain and whole and 0 < it.sharpness < math.inf):
        raise IntegrityError(f"{len(values)} values and their cells are no table of {grid.tokens}")
    return it


def proven_for(it: Interpolant, f: ScalarFunction) -> Interpolant:
    """A table that somebody hands in, with the error that is found for f now.

    Of the table only tokens and values are taken, as they are at this moment: neither its error
    nor what else it says of itself, nor memory that somebody else can write to.
    """
    if not isinstance(it, Interpolant):
        raise ProgramError(
            f"interpolant must be an ice.Interpolant, got {type(it).__name__}; "
            "Interpolant.fit(f, low, high, eps) makes one"
        )
    said, tensors = describe_table(it)
    try:
        draft = table_from(said, {name: t.detach().clone() for name, t in tensors.items()})
    except IntegrityError as broken:
        raise ProgramError(f"the interpolant that was handed in is no table: {broken}") from None
    if draft.regime == "hard" or f.affine is not None:  # by their own theorems, where they apply
        again = regimes.on_grid(f, draft.grid, draft.sharpness, draft.regime)
        if torch.equal(again.values, draft.values):
            return again
    if draft.edges is None or f.obstacle_on(it.low, it.high) is not None:
        found = posterior_error(draft, f, None)
    else:
        found = prove(draft, f, draft.edges)
    return replace(
        draft, error=found.error, assumptions=found.assumptions, kind=found.kind, function=f,
        _rounding={}, _windows={},
    )  # fmt: skip


def proved_again(it: Interpolant, f: ScalarFunction | None, *, alike: bool = False) -> Interpolant:
    """A table from a file with a bound that was found now; "claimed" where f is not known.

    Raises
    ------
    IntegrityError
        If the bound that the file states is not reached; with ``alike`` also if far less is true:
        then it was made for another function.
    """
    if f is None:
        return it
    found = proven_for(it, f)
    if alike and not it.error <= _ALIKE * found.error:
        raise IntegrityError(
            f"the table states {it.error:.3g} where {at_most(found.error, '.3g')} is true"
        )
    return replace(found, error=reached(it.error, found.error, found.kind))


def reached(stated: float, found: float, kind: str) -> float:
    """The larger of two errors of one table.

    Raises
    ------
    IntegrityError
        If what is stated is less than what is proven.
    """
    if kind == "proven" and not found <= OUTWARD_MOST * stated:
        raise IntegrityError(
            f"the table states an error of {stated:.3g}, and {at_most(found, '.3g')} is proved of "
            "it: its "
            "values or its error were changed"
        )
    return max(stated, found)


_FORM = 2  # of the files; what makes a table may change it too
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


def recalled(
    f: ScalarFunction, low: float, high: float, eps: float | None, tokens: int | None
) -> Interpolant:
    """A table that was kept for what is asked, proven for ``f``; else one that is fitted now."""
    place, asked = folder(), (low, high, eps, tokens)
    if place is None or f.affine is not None or f.obstacle is not None:
        return regimes.best(f, *asked)
    name = f"table-{_key(f, asked)}.safetensors"
    path = place / name
    for kept in (path, SHIPPED / name):
        found = _read(kept, f, asked) if kept.exists() else None
        if found is not None:
            return found
    made = regimes.best(f, *asked)
    if made.kind == "proven" and made.edges is not None:
        with suppress(OSError):  # a full or read-only disk keeps nothing
            _write(path, replace(made, edges=thinned(made, f)))
    return made


def _fit(
    f: ScalarFunction, low: float, high: float, eps: float | None, tokens: int | None
) -> Interpolant:
    """The same; refused where ``eps`` is promised of a function that cannot be enclosed."""
    regimes.check_enclosed(f, low, high, eps)
    return recalled(f, low, high, eps, tokens)


MAKERS["fit"] = _fit


def _key(f: ScalarFunction, asked: Asked) -> str:
    """Tells functions and questions apart; a false match costs time, not truth."""
    low, high, _, _ = asked
    values = f(torch.linspace(low, high, tuning.PLACES, dtype=torch.float64)).detach()
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
    if len(files) >= tuning.STORAGE_MOST_FILES:
        for old in sorted(files, key=lambda path: path.stat().st_mtime)[
            : tuning.STORAGE_MOST_FILES // 2
        ]:
            with suppress(OSError):
                old.unlink()
