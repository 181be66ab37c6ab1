"""Files that a kill at any moment leaves whole: written beside, flushed, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from iceform.errors import IntegrityError

__all__ = ["read_state", "write_bytes", "write_json", "write_state"]


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step; readers see the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_json(path: Path, content: Any) -> None:
    """JSON, sorted so that the same results are the same bytes."""
    write_bytes(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def write_state(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Tensors and notes as one safetensors file."""
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_bytes(path, save(held, dict(notes)))


def read_state(path: Path, identity: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What :func:`write_state` wrote, if it belongs to the run that asks."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path} is not a checkpoint ({error}); delete it") from None
    if notes.get("identity") != identity:
        raise IntegrityError(
            f"{path} belongs to another run (identity {notes.get('identity')}, wanted {identity}); "
            "delete it or write to another folder"
        )
    return tensors, notes
