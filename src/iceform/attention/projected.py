r"""Attention with its output projection on the feature side, as transformer libraries have it.

.. math:: \mathrm{Attn}(X)_q = \sum_h W_O^{(h)} W_V^{(h)} \sum_k x_k
    \,\mathrm{softmax}_k\big(W_Q^{(h)} x_q \cdot W_K^{(h)} x_k\big),

tokens x_q in rows, no scaling by the head dimension. W_V^{(h)} is (rank, features) and W_O^{(h)} is
(features, rank): a value map of low rank is kept as its two factors. No weight depends on the
number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform.errors import ShapeError

__all__ = ["HeadGroup", "ProjectedAttention"]


class HeadGroup(nn.Module):
    """Heads of one shape, evaluated together; their weights are buffers.

    Parameters
    ----------
    w_q, w_k
        Shape (heads, head_dim, features).
    w_v, w_o
        Shapes (heads, rank, features) and (heads, features, rank).
    labels
        What each head is for.
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor

    def __init__(
        self,
        w_q: Float[Tensor, "h k d"],
        w_k: Float[Tensor, "h k d"],
        w_v: Float[Tensor, "h r d"],
        w_o: Float[Tensor, "h d r"],
        labels: Sequence[str],
    ) -> None:
        super().__init__()
        shapes = {"w_q": w_q.shape, "w_k": w_k.shape, "w_v": w_v.shape, "w_o": w_o.shape}
        heads, _, features = w_q.shape
        if w_k.shape != w_q.shape or w_v.shape[2] != features or w_o.mT.shape != w_v.shape:
            raise ShapeError(f"these weights do not make heads: {shapes}")
        if len(labels) != heads or len(w_v) != heads:
            raise ShapeError(f"{len(labels)} labels for heads of shapes {shapes}")
        self.register_buffer("w_q", w_q)
        self.register_buffer("w_k", w_k)
        self.register_buffer("w_v", w_v)
        self.register_buffer("w_o", w_o)
        self.labels = tuple(labels)

    def forward(
        self, queries: Float[Tensor, "*b q d"], keys: Float[Tensor, "*b k d"]
    ) -> Float[Tensor, "*b q d"]:
        """What the heads add to the tokens that ask."""
        return self.project(self.weights(queries, keys) @ self.values(keys))

    def weights(
        self, queries: Float[Tensor, "*b q d"], keys: Float[Tensor, "*b k d"]
    ) -> Float[Tensor, "*b h q k"]:
        """How every query's attention is shared out, for every head."""
        return torch.softmax(_mapped(queries, self.w_q) @ _mapped(keys, self.w_k).mT, -1)

    def values(self, keys: Float[Tensor, "*b k d"]) -> Float[Tensor, "*b h k r"]:
        """What every head can find in the keys."""
        return _mapped(keys, self.w_v)

    def project(self, looked: Float[Tensor, "*b h q r"]) -> Float[Tensor, "*b q d"]:
        """What the heads found, in the features that it is for, summed over heads."""
        return looked.transpose(-3, -2).flatten(-2) @ self.w_o.mT.flatten(0, 1)


def _mapped(tokens: Tensor, weights: Tensor) -> Tensor:
    """Tokens through every head's map, in one product: (*batch, heads, tokens, rows)."""
    heads, rows, features = weights.shape
    product = tokens @ weights.reshape(heads * rows, features).mT
    return product.reshape(*tokens.shape[:-1], heads, rows).transpose(-3, -2)


class ProjectedAttention(nn.Module):
    """One layer: the sum of its heads, and with ``residual`` of its input.

    Parameters
    ----------
    groups
        The heads, in groups of one shape.
    residual
        Add the input to the output.
    """

    def __init__(self, groups: Sequence[HeadGroup], *, residual: bool = False) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)
        self.residual = residual

    @property
    def head_groups(self) -> tuple[HeadGroup, ...]:
        """The heads, in groups of one shape."""
        return tuple(group for group in self.groups if isinstance(group, HeadGroup))

    @property
    def labels(self) -> tuple[str, ...]:
        """What each head is for."""
        return tuple(label for group in self.head_groups for label in group.labels)

    def forward(self, tokens: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """Attend."""
        first, *rest = (group(tokens, tokens) for group in self.head_groups)
        found: Tensor = sum(rest, start=first)
        return tokens + found if self.residual else found

    def attend(self, tokens: Float[Tensor, "*b n d"]) -> dict[str, Float[Tensor, "*b n n"]]:
        """How every token's attention is shared out, head by head."""
        found: dict[str, Tensor] = {}
        for group in self.head_groups:
            weights = group.weights(tokens, tokens).unbind(-3)
            found |= dict(zip(group.labels, weights, strict=True))
        return found
