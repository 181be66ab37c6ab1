r"""What pieces ask of the two frozen layers: to read :math:`\theta \cdot x`, or a number's value.

Either is computed as the layers do, written out for the literal ones, and asked again by entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.certificates.witness import ReplayedEntry
from iceform.networks.frozen import FrozenLayers
from iceform.networks.pieces.base import PieceSettings
from iceform.run import primitives, rounding_of
from iceform.tables import Interpolant


@dataclass(frozen=True, eq=False)
class Reading:
    """Theta . x = z by the reading layer, every entry at its own scale.

    That is the power of two which the entry, and ``least``, are at most: theta is divided by it in
    the prompt.

    Attributes
    ----------
    settings
        Of the piece.
    z
        Shape (..., rows).
    least
        A number, one a row, or one an entry.
    prompt
        Makes x, (..., inputs), and theta, (..., rows, inputs), where they are written out.
    """

    settings: PieceSettings
    z: Tensor
    least: Tensor | float
    prompt: Callable[[], tuple[Tensor, Tensor]]

    def scales(self) -> Tensor:
        """The power of two that every entry is divided by before it is looked up."""
        return primitives.power_of_two(self.z.detach().abs().clamp(min=self.least))

    def run(self) -> tuple[Tensor, Tensor]:
        """The layer's output, and max |z|."""
        z, line = self.z, self.settings.line
        if line is None:
            return self.written(), primitives.largest(z)
        floor = self.least if isinstance(self.least, Tensor) else z.new_full((1,), self.least)
        if floor.ndim > 1:  # one for every entry
            out, largest = primitives.read(z.reshape(-1), line, floor.reshape(-1))
            return out.reshape(z.shape), largest
        return primitives.read(z, line, floor)

    def written(self) -> Tensor:
        """The layer's output, from prompts that are written out."""
        scales, (x, theta) = self.scales(), self.prompt()
        return self.settings.layers.read(x, theta / scales[..., None]) * scales

    def ask(self, row: int, got: Tensor) -> ReplayedEntry:
        """A row of one token's z, to be computed again and compared with ``got``."""
        scale, (x, theta) = self.scales()[row], self.prompt()
        return self.settings.layers.ask_read(x, theta / scale, row, got / scale)


def read_error(settings: PieceSettings, terms: int = 1) -> float:
    """Proven error of one reading of a product of ``terms`` terms, relative to its scale."""
    table = settings.layers.table
    model = rounding_of(settings.backend).model(settings.dtype, table, 1.0, terms)
    return table.error + table.rounding(model)


@dataclass(frozen=True, eq=False)
class TokenChoice:
    """A number by the attending layer: of one query, from tokens that it chooses between."""

    layers: FrozenLayers
    keys: Tensor
    queries: Tensor
    values: Tensor
    margin: float
    tables: tuple[Interpolant, ...] = ()

    @classmethod
    def looked_up(cls, layers: FrozenLayers, table: Interpolant, z: Tensor) -> TokenChoice:
        """In a table: its tokens are the keys."""
        keys, centre = (
            torch.stack([table.keys.slopes, table.keys.biases], -1).to(z),
            table.grid.center,
        )
        queries = torch.stack([z - centre, torch.ones_like(z)], -1)[..., None, :]
        logits = 2 * float((keys[:, 0].abs() * (table.high - centre) + keys[:, 1].abs()).max())
        values, margin = table.values.to(z)[:, None], layers.margin(logits)
        return cls(layers, keys, queries, values, margin, (table,))

    def run(self) -> Tensor:
        """The layer's output, from prompts that are written out."""
        mask = self.values.new_zeros(1, self.keys.shape[-2])
        given = self.keys, self.queries, self.values, mask, self.margin
        return self.layers.attend(*given)[..., 0, 0]

    def ask(self, got: Tensor) -> ReplayedEntry:
        """The one number, to be computed again and compared with ``got``."""
        mask = self.values.new_zeros(1, self.keys.shape[-2])
        given = self.keys, self.queries, self.values, mask, self.margin
        return self.layers.ask_attend(*given, 0, got, self.tables)
