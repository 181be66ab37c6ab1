"""FrozenNetwork: layers in order, and a digest of their weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform.attention.features import Features
from iceform.attention.layers import HopfieldLayer, SoftmaxAttention
from iceform.attention.projected import ProjectedAttention
from iceform.errors import IntegrityError
from iceform.interpolation import Interpolant
from iceform.validation import full_precision

__all__ = [
    "FrozenNetwork", "digested", "is_checked", "outside_transforms", "unchecked", "weights_digest",
]  # fmt: skip

_CHECKED: ContextVar[bool] = ContextVar("weights are checked before they run", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """For interventions: inside, networks run whatever their weights are.

    Nothing is certified then; a result's attestation still says which weights ran.
    """
    token = _CHECKED.set(False)
    try:
        yield
    finally:
        _CHECKED.reset(token)


@contextmanager
def outside_transforms() -> Iterator[None]:
    """For weights inside torch.func's vmap and grad, whose wrappers they must not get."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


def is_checked() -> bool:
    """Whether weights are checked before they run."""
    return _CHECKED.get()


# What a layer computes with, beside its buffers.
_SETTINGS = ("residual", "stored", "group_sizes")
_WITH_HEADS = SoftmaxAttention | HopfieldLayer | ProjectedAttention


class FrozenNetwork(nn.Module):
    """Layers applied in order. It has buffers and no parameters.

    Parameters
    ----------
    layers
        Attention layers (and, for a readout, affine maps).
    features
        Names of the input's features.
    tables
        Look-up tables that were written into the weights. Whoever reads the weights takes one of
        them only where the weights hold it.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        features: Features,
        tables: Sequence[Interpolant] = (),
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.features = features
        self.tables = tuple(tables)
        self.expected: str | None = None

    @full_precision
    def forward(self, tokens: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m o"]:
        """Run every layer."""
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens

    def stream(self, tokens: Float[Tensor, "*b n d"]) -> Iterator[Tensor]:
        """The tokens after each layer in turn."""
        for layer in self.layers:
            tokens = layer(tokens)
            yield tokens

    @property
    def digest(self) -> str:
        """SHA-256 of every weight, with its name, dtype and shape, as they are now."""
        return weights_digest(self)

    def seal(self) -> Self:
        """Remember the digest as the one that the sizes imply: for whoever has just built it."""
        self.expected = self.digest
        return self

    def check(self) -> str:
        """The digest of the weights as they are now; refused where they are not those built.

        The bytes are hashed every time: no counter sees a write through ``.data``, NumPy or DLPack.
        """
        found = self.digest
        if self.expected is not None and found != self.expected and is_checked():
            raise IntegrityError(
                f"the frozen weights were changed: their SHA-256 is {found[:12]}, their sizes "
                f"imply {self.expected[:12]}; build the network anew, or wrap an intervention in "
                "iceform.attention.unchecked()"
            )
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """A cast is another network of the same sizes; moving it to a device is not."""
        kinds = {b.dtype for b in self.buffers()}
        cast = self.expected is not None and any(fn(torch.zeros(1).to(k)).dtype != k for k in kinds)
        sealed = cast and self.expected == self.digest
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self.seal() if sealed else self

    @property
    def heads(self) -> int:
        """Attention heads in all layers together."""
        layers = [x for x in self.layers if isinstance(x, _WITH_HEADS)]
        return sum(len(x.labels) for x in layers)


def weights_digest(module: nn.Module) -> str:
    """SHA-256 of a module's structure and its buffers, in the order of their names."""
    sha = hashlib.sha256()
    for piece in digested(module):
        sha.update(piece.encode() if isinstance(piece, str) else piece[1])
    return sha.hexdigest()


def digested(module: nn.Module) -> Iterator[str | tuple[str, memoryview]]:
    """What a digest is of, in order: text as UTF-8, and buffers by name with their bytes."""
    for name, part in sorted(module.named_modules(remove_duplicate=False)):
        settings = [f"{key}={getattr(part, key)}" for key in _SETTINGS if hasattr(part, key)]
        yield f"{name} {type(part).__name__} {settings}\n"
    with outside_transforms():
        for name, buffer in sorted(module.named_buffers(remove_duplicate=False)):
            data = buffer.detach().cpu().contiguous()
            yield f"{name} {data.dtype} {tuple(data.shape)}\n"
            yield name, data.reshape(-1).view(torch.uint8).numpy().data
