"""Checkpoints and records of runs, kept by :mod:`iceform.store`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from iceform import store
from iceform.errors import IntegrityError

__all__ = ["read_record", "read_state", "write_record", "write_state"]

_RECORD, _STATE = "record", "checkpoint"
_FIELDS = {"study", "column", "scale", "seed", "spec", "metrics"}  # that every record has


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """What one cell of a study came to."""
    store.write_json(path, content, _RECORD)


def read_record(path: Path) -> dict[str, Any]:
    """What :func:`write_record` wrote, and all of it."""
    try:
        found = store.read_json(path, _RECORD)
        if missing := _FIELDS - found.keys():
            raise IntegrityError(f"it has no {', '.join(sorted(missing))}")
    except IntegrityError as broken:
        why = f"{path} is not a record ({broken}); delete it to compute it again"
        raise IntegrityError(why) from None
    return found


def write_state(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Tensors and notes as one file."""
    store.write_tensors(path, _STATE, notes, tensors)


def read_state(path: Path, identity: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_state` wrote, if it belongs to the run that asks."""
    try:
        stored = store.read_tensors(path, _STATE)
    except IntegrityError as broken:
        raise IntegrityError(f"{path} is not a checkpoint ({broken}); delete it") from None
    found = stored.content.get("identity")
    if found != identity:
        raise IntegrityError(
            f"{path} belongs to another run (identity {found}, wanted {identity}); "
            "delete it or write to another folder"
        )
    return stored.tensors, stored.content
