"""Fused passes over prompts whose tokens are in memory, recognised layer by layer.

Every layer is read once per digest, one recogniser a file: look-ups through a lift
(:mod:`~iceform.run.rows.lifted`), on the prompt's own tokens
(:mod:`~iceform.run.rows.embedded`), of stored patterns (:mod:`~iceform.run.rows.memory`),
and attention as it stands (:mod:`~iceform.run.rows.heads`).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor, nn

from iceform.heads import (
    Embed,
    Features,
    FrozenNetwork,
    HopfieldLayer,
    Lift,
    LiftedAttention,
    Prompt,
    SoftmaxAttention,
)
from iceform.run.reading import DigestCache, holding, refuse, require_finite
from iceform.run.rows.embedded import Embedded
from iceform.run.rows.heads import HeadLayer
from iceform.run.rows.lifted import Lifted
from iceform.run.rows.memory import StoredLayer
from iceform.tables import Interpolant
from iceform.validation import untraced

__all__ = ["Embedded", "HeadLayer", "Layer", "Lifted", "StoredLayer", "read_network", "stream"]


class Layer(Protocol):
    """What was read of one layer."""

    def run(self, tokens: Tensor, name: str) -> Tensor:
        """What the layer makes of the tokens."""


class _Affine:
    """A map of tokens, as it stands: a copy, since what is read is kept by its digest."""

    def __init__(self, layer: nn.Module) -> None:
        self._copies = {torch.device("cpu"): deepcopy(layer).cpu()}

    def run(self, tokens: Tensor, name: str) -> Tensor:
        """What the layer makes of the tokens."""
        where = tokens.device
        if where not in self._copies:
            self._copies[where] = deepcopy(self._copies[torch.device("cpu")]).to(where)
        out: Tensor = self._copies[where](tokens)
        return out


_readings: DigestCache[tuple[Layer, ...]] = DigestCache()


def stream(
    network: FrozenNetwork, digest: str | None, prompt: Prompt, name: str
) -> Iterator[Tensor]:
    """The tokens after each layer in turn."""
    tokens = prompt.tokens
    for layer in read_network(network, digest):
        tokens = layer.run(tokens, name)
        yield tokens


@untraced
def read_network(network: FrozenNetwork, digest: str | None) -> tuple[Layer, ...]:
    """The layers of a network with this digest; None reads them anew."""
    if digest is None:
        return _read(network)
    # How wide a window must be depends on what a table's error is.
    errors = tuple(table.error for table in network.tables)
    return _readings.get(
        (digest, network.features, errors), lambda: _read(holding(network, digest))
    )


def _read(network: FrozenNetwork) -> tuple[Layer, ...]:
    require_finite(network)
    names: Features | None = network.features
    found = []
    for layer in network.layers:
        found.append(_recognise(layer, names, network.tables))
        names = None  # of what a layer writes
    if not found:
        refuse("it has no layers")
    return tuple(found)


def _recognise(layer: nn.Module, names: Features | None, tables: tuple[Interpolant, ...]) -> Layer:
    if type(layer) in (Embed, Lift):
        return _Affine(layer)
    if type(layer) is LiftedAttention:
        return Lifted.of(layer, tables)
    if type(layer) is HopfieldLayer and names is not None:
        return StoredLayer.of(layer, names, tables)
    if type(layer) is SoftmaxAttention:
        placed = names is not None and "position" in names and "mask" not in names
        return Embedded.of(layer, names, tables) if placed and names else HeadLayer.of(layer)
    refuse(f"one of its layers is {type(layer).__name__}")
