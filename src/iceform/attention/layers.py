"""The literal layers: softmax attention as def:attn has it, and the affine token-expanding map.

The paper writes tokens as columns; here they are rows, as PyTorch has them, so a sequence is a
tensor of shape (*batch, tokens, features). Weights keep the paper's orientation: ``W_K`` is
(head_dim, features) and acts as ``tokens @ W_K.T``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform.errors import ShapeError

__all__ = ["AttentionTrace", "Head", "Lift", "LiftedAttention", "SoftmaxAttention"]


@dataclass(frozen=True)
class Head:
    """One head of a layer: its label and its literal weights."""

    label: str
    w_k: Tensor  # (head_dim, features)
    w_q: Tensor  # (head_dim, features)
    w_v: Tensor  # (out_features, features)
    w_o: Tensor  # (tokens, out_tokens)


@dataclass(frozen=True)
class AttentionTrace:
    """What one attention layer did."""

    scores: Tensor  # (*batch, heads, queries, keys)
    weights: Tensor  # (*batch, heads, queries, keys), rows sum to 1
    output: Tensor  # (*batch, out_tokens, out_features)


class SoftmaxAttention(nn.Module):
    r"""Multi-head softmax attention with frozen weights (def:attn).

    .. math:: \mathrm{Attn}(X) = \sum_h W_V^{(h)} X \,
        \mathrm{Softmax}\big((W_K^{(h)} X)^\top W_Q^{(h)} X\big)\, W_O^{(h)}

    with the softmax over keys, no scaling by the head dimension, and W_O on the sequence side.
    All weights are buffers: no optimiser can touch them.

    Parameters
    ----------
    w_k, w_q
        Shape (heads, head_dim, features).
    w_v
        Shape (heads, out_features, features).
    w_o
        Shape (heads, tokens, out_tokens).
    labels
        What each head is for.
    residual
        Add the input to the output; needs out_features = features and out_tokens = tokens.
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    w_o: Tensor

    def __init__(
        self,
        w_k: Float[Tensor, "h k d"],
        w_q: Float[Tensor, "h k d"],
        w_v: Float[Tensor, "h o d"],
        w_o: Float[Tensor, "h n m"],
        *,
        labels: Sequence[str] | None = None,
        residual: bool = False,
    ) -> None:
        super().__init__()
        _check_weights(w_k, w_q, w_v, w_o, residual)
        self.register_buffer("w_k", w_k)
        self.register_buffer("w_q", w_q)
        self.register_buffer("w_v", w_v)
        self.register_buffer("w_o", w_o)
        self.residual = residual
        self.labels = tuple(labels or (f"head {h}" for h in range(len(w_k))))

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads with their labels."""
        parts = zip(self.labels, self.w_k, self.w_q, self.w_v, self.w_o, strict=True)
        return tuple(Head(*part) for part in parts)

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m o"]:
        """Attend."""
        return self.attend(x).output

    def attend(self, x: Float[Tensor, "*b n d"]) -> AttentionTrace:
        """Attend, and say how."""
        self._check_input(x)
        tokens = self._tokens(x)
        keys = tokens @ self.w_k.mT
        queries = tokens @ self.w_q.mT
        values = tokens @ self.w_v.mT
        scores = queries @ keys.mT
        weights = torch.softmax(scores, -1)
        output = (self.w_o.mT @ (weights @ values)).sum(-3)
        return AttentionTrace(scores, weights, x + output if self.residual else output)

    def _tokens(self, x: Tensor) -> Tensor:
        """What the heads read, shape (*batch, heads or 1, tokens, features)."""
        return x.unsqueeze(-3)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        heads, head_dim, features = self.w_k.shape
        return (
            f"heads={heads}, head_dim={head_dim}, features={features}, tokens={self.w_o.shape[1]}"
        )

    def _check_input(self, x: Tensor) -> None:
        expected = (self.w_o.shape[1], self.w_k.shape[2])
        if x.shape[-2:] != expected:
            raise ShapeError(
                f"this layer takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(x.shape)}"
            )


def _check_weights(w_k: Tensor, w_q: Tensor, w_v: Tensor, w_o: Tensor, residual: bool) -> None:
    shapes = {name: tuple(w.shape) for name, w in
              {"w_k": w_k, "w_q": w_q, "w_v": w_v, "w_o": w_o}.items()}  # fmt: skip
    if not all(len(s) == 3 for s in shapes.values()):
        raise ShapeError(f"attention weights are (heads, rows, columns), got {shapes}")
    if w_k.shape != w_q.shape or w_v.shape[2] != w_k.shape[2]:
        raise ShapeError(f"w_k and w_q must agree, and w_v in its features, got {shapes}")
    if len({s[0] for s in shapes.values()}) != 1:
        raise ShapeError(f"all weights need the same number of heads, got {shapes}")
    if residual and (w_v.shape[1] != w_v.shape[2] or w_o.shape[1] != w_o.shape[2]):
        raise ShapeError(f"a residual layer must keep tokens and features, got {shapes}")


class Lift(nn.Module):
    r"""The affine, token-expanding map that the paper's proofs call Lin.

    .. math:: \mathrm{Lift}(Z) = \sum_l A_l Z R_l + C

    The paper calls it column-wise and strictly linear; its proofs need R_l (new tokens) and C.

    Parameters
    ----------
    feature_maps
        A_l, shape (terms, out_features, in_features).
    token_maps
        R_l, shape (terms, in_tokens, out_tokens).
    constant
        C transposed, shape (out_tokens, out_features).
    """

    feature_maps: Tensor
    token_maps: Tensor
    constant: Tensor

    def __init__(
        self,
        feature_maps: Float[Tensor, "l q p"],
        token_maps: Float[Tensor, "l n m"],
        constant: Float[Tensor, "m q"],
    ) -> None:
        super().__init__()
        terms, rows, _ = feature_maps.shape
        if token_maps.shape[0] != terms or constant.shape != (token_maps.shape[2], rows):
            raise ShapeError(
                f"feature maps {tuple(feature_maps.shape)}, token maps {tuple(token_maps.shape)} "
                f"and constant {tuple(constant.shape)} do not make one map"
            )
        self.register_buffer("feature_maps", feature_maps)
        self.register_buffer("token_maps", token_maps)
        self.register_buffer("constant", constant)

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b m q"]:
        """Expand."""
        expected = (self.token_maps.shape[1], self.feature_maps.shape[2])
        if z.shape[-2:] != expected:
            raise ShapeError(
                f"this map takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(z.shape)}"
            )
        terms = self.token_maps.mT @ (z.unsqueeze(-3) @ self.feature_maps.mT)
        return terms.sum(-3) + self.constant


class LiftedAttention(SoftmaxAttention):
    r"""Attention whose heads each read the input through a map of their own.

    .. math:: \sum_h \mathrm{Attn}_h \Big(\sum_l A_{hl} Z R_{hl} + C_h\Big)

    This is the sum over heads of Attn_h . Lin_h in thm:attn_sim_attn. The input is added to
    nothing: there is no residual.

    Parameters
    ----------
    feature_maps, token_maps, constants
        A, R and C of :class:`Lift` with a leading axis of heads.
    w_k, w_q, w_v, w_o, labels
        As for :class:`SoftmaxAttention`, on the lifted tokens.
    """

    feature_maps: Tensor
    token_maps: Tensor
    constants: Tensor

    def __init__(
        self,
        feature_maps: Float[Tensor, "h l q p"],
        token_maps: Float[Tensor, "h l n m"],
        constants: Float[Tensor, "h m q"],
        *weights: Tensor,
        labels: Sequence[str] | None = None,
    ) -> None:
        super().__init__(*weights, labels=labels)
        self.register_buffer("feature_maps", feature_maps)
        self.register_buffer("token_maps", token_maps)
        self.register_buffer("constants", constants)

    def _tokens(self, x: Tensor) -> Tensor:
        mapped = x[..., None, None, :, :] @ self.feature_maps.mT
        return (self.token_maps.mT @ mapped).sum(-3) + self.constants

    def _check_input(self, x: Tensor) -> None:
        expected = (self.token_maps.shape[2], self.feature_maps.shape[3])
        if x.shape[-2:] != expected:
            raise ShapeError(
                f"this layer takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(x.shape)}"
            )
