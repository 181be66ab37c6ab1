"""The losses that have a name, and how one is made with its parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from iceform.errors import ProgramError
from iceform.functions.losses.loss import Loss

__all__ = ["LOSSES", "loss_named", "register"]

LOSSES: dict[str, Callable[..., Loss]] = {}

Maker = Callable[..., Loss]


def register(name: str) -> Callable[[Maker], Maker]:
    """Make a loss known by its name; its parameters are those of the function that makes it."""

    def known(maker: Maker) -> Maker:
        LOSSES[name] = maker
        return maker

    return known


def loss_named(name: str, **parameters: float) -> Loss:
    """A loss of the library: ``loss_named("huber", delta=1.35)``."""
    if name not in LOSSES:
        raise ProgramError(f"no loss is called {name!r}; the library has {', '.join(LOSSES)}")
    known = inspect.signature(LOSSES[name]).parameters
    for key, value in parameters.items():
        if key not in known:
            raise ProgramError(
                f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}"
            )
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ProgramError(f"{name}: {key} must be positive and finite, got {value!r}")
    return _made(LOSSES[name], name, tuple(sorted(parameters.items())))


@lru_cache(maxsize=256)
def _made(maker: Maker, name: str, parameters: tuple[tuple[str, float], ...]) -> Loss:
    """The same object for the same loss, so that fits are remembered."""
    return replace(maker(**dict(parameters)), name=name, parameters=parameters)
