"""The definition: every token in memory, every matrix multiplied."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from iceform.attention import Average, LookUps, Prompt
from iceform.backends.base import Backend
from iceform.backends.rounding import Rounding

__all__ = ["Literal"]


class Literal(Backend):
    """W_K, W_Q, W_V and W_O on the literal tokens of a prompt."""

    name = "literal"
    rounding = Rounding(literal=True)

    def run(self, prompt: Prompt | LookUps | Average) -> Tensor:
        if isinstance(prompt, LookUps):
            rows = self._rows(prompt.chunks(), slice(0, prompt.layout.samples))
            rows = rows[..., : prompt.count, :]
            return torch.cat([rows[..., : prompt.x.shape[-1]], rows[..., -1:]], -1)
        if isinstance(prompt, Average):
            first = prompt.layout.samples
            rows = self._rows(prompt.chunks(), slice(first, first + prompt.sharing))
            return rows[: len(prompt.points), : prompt.values.shape[1]]
        out: Tensor = self._on(prompt.tokens)(prompt.tokens)
        return out

    def _rows(self, chunks: Iterable[Tensor], queries: slice) -> Tensor:
        """What the given queries of every prompt return, prompts one after the other."""
        parts = [self._on(c)(c)[..., queries, :].flatten(-3, -2) for c in chunks]
        return torch.cat(parts, -2)

    def _on(self, tokens: Tensor) -> torch.nn.Module:
        there = all(b.device == tokens.device for b in self.network.buffers())
        return self.network if there else self.network.to(tokens.device)
