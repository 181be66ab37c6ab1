"""What every recogniser of a frozen layer does: check zeros, name what does not fit, remember."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from iceform.attention import FrozenNetwork
from iceform.attention.network import outside_transforms
from iceform.errors import IntegrityError
from iceform.untraced import untraced

__all__ = [
    "Memory", "holding", "refuse", "require_finite", "require_zero", "unless_identity",
    "unless_zero",
]  # fmt: skip

T = TypeVar("T")

_KEPT = 64  # networks whose readings are remembered


def refuse(why: str) -> NoReturn:
    """A network that is not one of those that are recognised."""
    raise IntegrityError(
        f"the fused backend does not recognise this network: {why}; use backend='literal'"
    )


def require_zero(what: str, *parts: Tensor) -> None:
    """Refuse a network whose ``what`` is not exactly 0."""
    for part in parts:
        if part.numel() and bool((part != 0).any()):
            refuse(f"{what} should be 0 and reaches {float(part.abs().max()):.3g}")


def require_finite(module: nn.Module) -> None:
    """Refuse weights that are not numbers."""
    for name, weight in module.named_buffers():
        if not bool(torch.isfinite(weight).all()):
            refuse(f"{name} holds NaN or infinity")


def unless_identity(matrix: Tensor) -> Tensor | None:
    """The matrix; None where it is the identity, possibly with rows of zeros below."""
    return None if torch.equal(matrix, torch.eye(*matrix.shape, dtype=matrix.dtype)) else matrix


def unless_zero(vector: Tensor) -> Tensor | None:
    """The vector; None where it is zero."""
    return vector if bool((vector != 0).any()) else None


def holding(network: FrozenNetwork, digest: str | None) -> FrozenNetwork:
    """The network, if its weights are those of a digest; under another nothing is remembered."""
    if digest is not None and network.digest != digest:
        network.check()  # says it better
        raise IntegrityError(
            f"the weights hash to {network.digest[:12]} and are read as {digest[:12]}: they were "
            "changed meanwhile"
        )
    return network


class Memory(Generic[T]):
    """What was read of the networks seen last, by the digest of their weights."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """What is known under a key, or made now; None is never remembered."""
        found: T = self._get(key, make)
        return found

    @untraced
    def _get(self, key: Hashable | None, make: Callable[[], T]) -> T:
        if key is None:
            return make()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        with outside_transforms():
            made = make()
        with self._lock:
            self._known[key] = made
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return made
