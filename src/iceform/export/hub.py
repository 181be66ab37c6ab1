"""Folders in the layout of the Hugging Face Hub, whatever they hold (:mod:`iceform.pretrained`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Each of these makes its kinds known when it is imported.
from iceform import algorithms, attention, constructions, machine, networks, pretrained

KEPT = (algorithms, attention, constructions, machine, networks)


def save_pretrained(thing: Any, path: str | Path) -> Path:
    """Write a network, machine, emulator, result, program or prompt into the folder ``path``.

    Raises
    ------
    ProgramError
        If it is none of these, or a program with a function of the user's own.
    """
    return pretrained.write(thing, path)


def from_pretrained(path: str | Path, **options: Any) -> Any:
    """Read back what :func:`save_pretrained` wrote.

    Parameters
    ----------
    path
        The folder; nothing outside it is read.
    options
        ``f=`` for an emulator of the user's own function, whose bound is "claimed" without it.

    Raises
    ------
    IntegrityError
        If the weights are missing, or a file is truncated, altered or of another format.
    """
    return pretrained.read(path, **options)
