"""Programs as checkpoints: what a stock transformer that runs a program can do.

Stock transformers are a level below the computer; they make themselves known from there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from iceform.errors import ProgramError


class Checkpoint(Protocol):
    """A folder that transformers loads, with a program for its prompt."""

    @property
    def path(self) -> Path:
        """The folder."""

    def prompt(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Tensor:
        """``inputs_embeds``: the program and these data."""

    def read(self, hidden: Tensor) -> Any:
        """The answer in ``last_hidden_state``, in the form that the algorithm returns."""

    def check(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Any:
        """Load it, attest it, run it, and enclose the distance from the exact program."""


Writer = Callable[..., Checkpoint]
_WRITER: list[Writer] = []


def set_writer(write: Writer) -> None:
    """Say what writes programs as checkpoints."""
    _WRITER[:] = [write]


def writer() -> Writer:
    """What writes programs as checkpoints."""
    if not _WRITER:
        raise ProgramError("nothing that writes checkpoints is known; import iceform.targets")
    return _WRITER[0]
