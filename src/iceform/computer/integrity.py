"""Weights are what the sizes imply, or nothing runs.

The digest is taken from the bytes at every run. Inside ``with unchecked():`` another network may
run: that is for interventions, and what they return is that network's answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from iceform.attention import FrozenNetwork
from iceform.errors import IntegrityError

__all__ = ["check_weights", "unchecked"]

_checking: ContextVar[bool] = ContextVar("iceform_computer_checking", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let a changed network run."""
    token = _checking.set(False)
    try:
        yield
    finally:
        _checking.reset(token)


def check_weights(network: FrozenNetwork, expected: str) -> str:
    """The digest of the weights as they are now; refused where the sizes imply another."""
    found = network.digest
    if found != expected and _checking.get():
        raise IntegrityError(
            f"the weights hash to {found[:16]}, the computer's sizes imply {expected[:16]}; "
            "something has written to them. Build the computer again, or run inside "
            "`with unchecked():` to see what this network does"
        )
    return found
