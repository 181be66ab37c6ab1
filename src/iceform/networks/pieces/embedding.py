"""Embeddings, the row that an id names in the prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic.units import OUTWARD_MANY
from iceform.certificates.witness import ReplayedEntry
from iceform.networks.pieces.base import Bounds, Piece, PieceSettings
from iceform.networks.pieces.linear import powers_of_two
from iceform.networks.pieces.readings import Reading, read_error


class EmbeddingMap(Piece):
    """ids -> rows of a table of vectors, every entry read through the frozen layer.

    The row that an id names is put into the prompt as weights of the input 1 (choosing it is
    indexing, as a tokenizer does); the range is known from the weights.
    """

    kind = "embedding"
    how = "look-up, the id's row in the prompt"
    ranged = 0

    weight: Tensor
    exponents: Tensor
    scale: Tensor

    def __init__(self, name: str, settings: PieceSettings, weight: Tensor) -> None:
        super().__init__(name, settings)
        self.register_buffer("weight", weight.detach().to(settings.dtype))
        self.register_buffer("exponents", powers_of_two(self.weight.abs().amax(0)).to(self.weight))
        self._encode()

    def _encode(self) -> None:
        self.register_buffer("scale", torch.exp2(self.exponents.to(self.weight)), persistent=False)

    def exact(self, *inputs: Tensor) -> Tensor:
        (ids,) = inputs
        return F.embedding(ids, self.weight)

    def _reading(self, rows: Tensor) -> Reading:
        def prompt() -> tuple[Tensor, Tensor]:
            return torch.ones_like(rows[..., :1]), rows[..., None]

        return Reading(self.settings, rows, self.scale, prompt)

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        return self._reading(F.embedding(inputs[0], self.weight)).run()[0], None

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        ids, width = inputs[0].reshape(-1), self.weight.shape[1]
        token, row = draw.randrange(len(ids)), draw.randrange(width)
        got = output.reshape(-1, width)[token, row]
        yield self._reading(self.weight[ids[token]]).ask(row, got)

    def errors(self) -> Tensor:
        """Proven error of every feature."""
        return torch.exp2(self.exponents.double()) * read_error(self.settings)

    @property
    def certified(self) -> float:
        return float(self.errors().max())

    @property
    def range(self) -> float:
        return float(self.scale.max())

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        weight, own = self.weight.double(), self.errors()
        length = (float(weight.norm(dim=-1).max()) + float(own.norm())) * OUTWARD_MANY
        entry = float(weight.abs().max()) + float(own.max())
        return Bounds(entry, length, width=weight.shape[1])

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        return self.certified, float(self.errors().norm())

    def restore(self, ranges: Mapping[str, Any]) -> None:
        super().restore(ranges)
        self._encode()
