r"""Attention as it stands: any layer of heads, on tokens that are in memory.

Nothing is looked up, so nothing need be recognised: keys, queries and values are what W_K, W_Q and
W_V make of the tokens, and where a matrix picks neighbouring features they are those features.
Only queries that W_O reads are asked, and on a GPU no scores are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.heads import SoftmaxAttention
from iceform.run import primitives
from iceform.run.reading import refuse, unless_identity


@dataclass(frozen=True, eq=False)
class Linear:
    """x -> W x, by picking features where W does that.

    Attributes
    ----------
    matrix
        W without the features that it does not read; None where it picks neighbours.
    picked
        The features that it reads.
    """

    matrix: Tensor | None
    picked: slice | Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Linear:
        """The map with these weights."""
        first = int(weight[0].abs().argmax()) if weight.numel() else 0
        picked = slice(first, first + len(weight))
        whole = torch.zeros_like(weight)
        if picked.stop <= weight.shape[1]:
            whole[:, picked] = torch.eye(len(weight), dtype=weight.dtype)
            if torch.equal(whole, weight):
                return cls(None, picked)
        read = (weight != 0).any(0).nonzero()[:, 0]
        return cls(weight[:, read], read)

    def picks(self, features: Sequence[int]) -> bool:
        """Whether it takes these features, in order."""
        if isinstance(self.picked, slice):
            return list(features) == list(range(self.picked.start, self.picked.stop))
        assert self.matrix is not None
        places = {int(feature): i for i, feature in enumerate(self.picked)}
        if len(features) != len(self.matrix) or not all(f in places for f in features):
            return False
        whole = torch.zeros_like(self.matrix)
        whole[torch.arange(len(features)), torch.tensor([places[f] for f in features])] = 1.0
        return torch.equal(whole, self.matrix)

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.picked, slice):
            return x[..., self.picked]
        assert self.matrix is not None
        return x[..., self.picked.to(x.device)] @ self.matrix.to(x).mT


@dataclass(frozen=True, eq=False)
class Readout:
    """W_O: which queries are asked, and what it makes of their rows.

    Attributes
    ----------
    asked
        Queries that are read.
    matrix
        (asked, out_tokens); None for the identity.
    """

    asked: Tensor | slice
    matrix: Tensor | None

    @classmethod
    def of(cls, w_o: Tensor) -> Readout:
        """The readout of these weights, shape (1 or heads, tokens, out_tokens)."""
        weight = w_o[0].detach().double().cpu()
        if not bool((w_o.detach().double().cpu() == weight).all()):
            refuse("its heads are read differently")
        rows = (weight != 0).any(-1).nonzero()[:, 0]
        count = len(rows)
        first = torch.equal(rows, torch.arange(count))
        return cls(slice(0, count) if first else rows, unless_identity(weight[rows]))

    @property
    def rows(self) -> Tensor:
        """The queries that are asked, counted."""
        if isinstance(self.asked, Tensor):
            return self.asked
        return torch.arange(self.asked.stop)

    def __call__(self, looked: Tensor) -> Tensor:
        return looked if self.matrix is None else self.matrix.to(looked).mT @ looked


@dataclass(frozen=True, eq=False)
class HeadLayer:
    """A layer of heads."""

    keys: tuple[Linear, ...]
    queries: tuple[Linear, ...]
    values: tuple[Linear, ...]
    readout: Readout
    residual: bool

    @classmethod
    def of(cls, layer: SoftmaxAttention) -> HeadLayer:
        """As the matrices have it."""
        heads = [(h.w_k, h.w_q, h.w_v) for h in layer.heads]
        maps = [tuple(Linear.of(w.detach().double().cpu()) for w in head) for head in heads]
        keys, queries, values = zip(*maps, strict=True)
        return cls(keys, queries, values, Readout.of(layer.w_o), layer.residual)

    def picks(self, key: Sequence[int], query: Sequence[int], value: Sequence[int]) -> bool:
        """Whether one head takes these features, in order, as key, query and value."""
        if len(self.keys) != 1 or self.residual or self.readout.matrix is not None:
            return False
        pairs = ((self.keys, key), (self.queries, query), (self.values, value))
        return all(maps[0].picks(features) for maps, features in pairs)

    def run(self, tokens: Tensor, name: str) -> Tensor:
        """What the layer makes of the tokens."""
        asked = tokens[..., self.readout.asked, :]
        parts = zip(self.keys, self.queries, self.values, strict=True)
        looked = [primitives.attention(q(asked), k(tokens), v(tokens)) for k, q, v in parts]
        out = self.readout(looked[0] if len(looked) == 1 else torch.stack(looked).sum(0))
        return tokens + out if self.residual else out
