"""Stored weights by what they are for, whatever a stock architecture calls them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from iceform.targets.architectures import Architecture


class StoredWeights:
    """The tensors of a model of token ids, in float64."""

    def __init__(self, tensors: Mapping[str, Tensor], known: Architecture) -> None:
        assert known.ids is not None
        self.names, self.ids = known.names, known.ids
        self.tensors = tensors

    @property
    def words(self) -> Tensor:
        """What words start with."""
        return self.embeddings[0]

    @property
    def scores(self) -> Tensor:
        """The language-model head."""
        return self.tensors[f"{self.ids.scores}.weight"].double()

    @property
    def embeddings(self) -> tuple[Tensor, ...]:
        """All that a token starts with the sum of: of its word, and of its position if any."""
        each = (self.names.words, self.names.places)
        return tuple(self.tensors[f"{self.ids.prefix}.{name}"].double() for name in each if name)

    def _at(self, layer: int) -> str:
        return f"{self.ids.prefix}.{self.names.layer.format(layer)}"

    def maps(self, layer: int) -> dict[str, Tensor]:
        """Queries, keys, values and outputs, each (out, in)."""
        held = self.names.layer_maps(self.tensors, self._at(layer))
        return {kind: stored.double() for kind, stored in held.items()}

    def biases(self, layer: int) -> dict[str, Tensor]:
        """Of queries, keys and values; zeros where the model has none."""
        names = [f"{self._at(layer)}{name}.bias" for name in self.names.maps]
        if any(name.endswith(self.ids.lacks) for name in names):
            return {kind: torch.zeros(len(m)).double() for kind, m in self.maps(layer).items()
                    if kind != "o"}  # fmt: skip
        parts = torch.cat([self.tensors[name].double() for name in names]).chunk(3)
        return dict(zip("qkv", parts, strict=True))

    def required(self, name: str, norm: float) -> float | None:
        """The one number that all entries of this tensor must be, if there is one."""
        owner, _, part = name.rpartition(".")
        if owner.endswith((*self.names.norms, self.names.norm)):
            return norm if part == "weight" else 0.0
        zero = owner.endswith(self.names.down) or name.endswith(f"{self.names.back}.bias")
        return 0.0 if zero or name.endswith(self.ids.lacks) else None
