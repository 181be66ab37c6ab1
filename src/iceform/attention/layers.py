"""The literal layers: softmax attention as def:attn has it, alone or behind an affine lift.

The paper writes tokens as columns; here they are rows, as PyTorch has them, so a sequence is a
tensor of shape (*batch, tokens, features). Weights keep the paper's orientation: ``W_K`` is
(head_dim, features) and acts as ``tokens @ W_K.T``. The affine maps are those that the paper calls
Lin: new tokens out of old, or where a token's features go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform.errors import ShapeError


@dataclass(frozen=True)
class Features(Mapping[str, slice]):
    """Named, contiguous blocks of the feature axis, in order."""

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **sizes: int) -> Features:
        """Blocks of the given sizes, in the order given."""
        return cls(tuple(sizes.items()))

    @property
    def total(self) -> int:
        """The number of features."""
        return sum(size for _, size in self.sizes)

    def __getitem__(self, name: str) -> slice:
        start = 0
        for other, size in self.sizes:
            if other == name:
                return slice(start, start + size)
            start += size
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def names(self) -> list[str]:
        """One name per feature: ``x[0]``, ``x[1]``, ..."""
        return [
            name if size == 1 else f"{name}[{j}]" for name, size in self.sizes for j in range(size)
        ]


def freeze(module: nn.Module, **weights: Tensor | None) -> None:
    """Give a module its weights, as buffers: no optimiser can touch them."""
    for name, weight in weights.items():
        module.register_buffer(name, weight)


def check_tokens(what: str, x: Tensor, tokens: int, features: int) -> None:
    """Refuse what is not (*batch, tokens, features)."""
    if x.shape[-2:] != (tokens, features):
        raise ShapeError(
            f"this {what} takes (*batch, {tokens} tokens, {features} features), "
            f"got {tuple(x.shape)}"
        )


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
        if (feature_maps.ndim, token_maps.ndim, constant.ndim) != (3, 3, 2):
            raise ShapeError(
                f"feature maps {tuple(feature_maps.shape)}, token maps {tuple(token_maps.shape)} "
                f"and constant {tuple(constant.shape)} do not make one map: they need 3, 3, 2 axes"
            )
        terms, rows, _ = feature_maps.shape
        if token_maps.shape[0] != terms or constant.shape != (token_maps.shape[2], rows):
            raise ShapeError(
                f"feature maps {tuple(feature_maps.shape)}, token maps {tuple(token_maps.shape)} "
                f"and constant {tuple(constant.shape)} do not make one map"
            )
        freeze(self, feature_maps=feature_maps, token_maps=token_maps, constant=constant)

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b m q"]:
        """Expand."""
        check_tokens("map", z, self.token_maps.shape[1], self.feature_maps.shape[2])
        terms = self.token_maps.mT @ (z.unsqueeze(-3) @ self.feature_maps.mT)
        return terms.sum(-3) + self.constant


class Embed(nn.Module):
    r"""The affine map Lin as an embedding: where a token's features go, and its position.

    .. math:: \mathrm{Embed}(Z)_t = A z_t + B p_t + c

    Parameters
    ----------
    features
        A, shape (out_features, in_features).
    places
        Positions p_t, shape (tokens, places).
    spread
        B, shape (out_features, places).
    constant
        c, shape (out_features,).
    names
        Names of the features that it gives.
    """

    features: Tensor
    places: Tensor
    spread: Tensor
    constant: Tensor

    def __init__(
        self,
        features: Float[Tensor, "q p"],
        places: Float[Tensor, "n k"],
        spread: Float[Tensor, "q k"],
        constant: Float[Tensor, "q"],
        *,
        names: Features | None = None,
    ) -> None:
        super().__init__()
        wide = {len(features), len(spread), len(constant)}
        if len(wide) != 1 or places.shape[1] != spread.shape[1]:
            raise ShapeError(
                f"features {tuple(features.shape)}, places {tuple(places.shape)}, spread "
                f"{tuple(spread.shape)} and constant {tuple(constant.shape)} do not make one map"
            )
        freeze(self, features=features, places=places, spread=spread, constant=constant)
        self.names = names

    @property
    def positions(self) -> Float[Tensor, "n q"]:
        """What is added to each token."""
        return self.places @ self.spread.mT + self.constant

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b n q"]:
        """Embed."""
        check_tokens("map", z, len(self.places), self.features.shape[1])
        return z @ self.features.mT + self.positions


_EVERY = slice(None)


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


@dataclass(frozen=True, eq=False)
class Entry:
    """One number of what a layer makes of one prompt, and how it came about.

    Attributes
    ----------
    scores, terms
        Logits and the sums of their absolute products, shape (heads, queries, keys); of the heads
        that write it and the queries that it reads.
    values
        Shape (heads, keys).
    reads
        W_O, shape (1 or heads, queries).
    depth
        Numbers that are added up on the way to a logit, at most.
    """

    scores: Tensor
    terms: Tensor
    values: Tensor
    reads: Tensor
    depth: int

    @property
    def weights(self) -> Float[Tensor, "h q n"]:
        """Attention."""
        return torch.softmax(self.scores, -1)

    @property
    def looked(self) -> Float[Tensor, "h q"]:
        """What every query gets from every head."""
        return (self.weights @ self.values[..., None])[..., 0]

    @property
    def value(self) -> Float[Tensor, ""]:
        """The number."""
        return (self.reads * self.looked).sum()


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
        Shape (heads, tokens, out_tokens). Weights that all heads share may have a first axis of 1.
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
        freeze(self, w_k=w_k, w_q=w_q, w_v=w_v, w_o=w_o)
        self.residual = residual
        count = max(len(w) for w in (w_k, w_q, w_v, w_o))
        self.labels = tuple(labels or (f"head {h}" for h in range(count)))
        if len(self.labels) != count:
            raise ShapeError(f"{len(self.labels)} labels were given for {count} heads")

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads with their labels."""
        count = len(self.labels)
        each = [w.expand(count, -1, -1) for w in (self.w_k, self.w_q, self.w_v, self.w_o)]
        return tuple(Head(*part) for part in zip(self.labels, *each, strict=True))

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m o"]:
        """Attend; queries whose row of W_O is zero in every head are not computed.

        An exported graph computes them: its shapes must not depend on weights.
        """
        self._check_input(x)
        tokens = self._tokens(x)
        asked: Tensor | slice = _EVERY
        if not torch.compiler.is_compiling():  # how many there are depends on the weights
            asked = (self.w_o != 0).any(-1).any(0).nonzero()[:, 0]
        queries = tokens[..., asked, :] @ self.w_q.mT
        weights = torch.softmax(queries @ (tokens @ self.w_k.mT).mT, -1)
        output = self._read(weights @ (tokens @ self.w_v.mT), asked)
        return x + output if self.residual else output

    def attend(self, x: Float[Tensor, "*b n d"]) -> AttentionTrace:
        """Attend, and say how."""
        self._check_input(x)
        tokens = self._tokens(x)
        keys = tokens @ self.w_k.mT
        queries = tokens @ self.w_q.mT
        scores = queries @ keys.mT
        return AttentionTrace(scores, torch.softmax(scores, -1), self.forward(x))

    def entry(self, x: Float[Tensor, "n d"], token: int, feature: int) -> Entry:
        """One number of the output, by the heads that write it and the queries that it reads."""
        self._check_input(x)
        heads, asked = self._written(feature), self._asked(token)
        tokens = self._tokens(x, heads)
        w_k, w_q, w_v, w_o = (_some(w, heads) for w in (self.w_k, self.w_q, self.w_v, self.w_o))
        queries, keys = tokens[..., asked, :] @ w_q.mT, tokens @ w_k.mT
        return Entry(
            queries @ keys.mT,
            queries.abs() @ keys.abs().mT,
            (tokens @ w_v[:, feature, :, None])[..., 0],
            w_o[:, asked, token],
            sum(w_k.shape[-2:]) + self._read_features,
        )

    def entry_work(self, x: Float[Tensor, "n d"], token: int, feature: int) -> int:
        """Multiplications that :meth:`entry` takes."""
        heads, asked = len(self._written(feature)), len(self._asked(token))
        count, (head_dim, wide) = self.w_o.shape[1], self.w_k.shape[1:]
        return self._lift_work(x, heads) + heads * count * (wide + asked) * (head_dim + 1)

    def _written(self, feature: int) -> Tensor:
        """Heads that write a feature."""
        if len(self.w_v) == 1:
            return torch.arange(len(self.labels), device=self.w_v.device)
        return (self.w_v[:, feature] != 0).any(-1).nonzero()[:, 0]

    def _asked(self, token: int) -> Tensor:
        """Queries that an output token reads."""
        return (self.w_o[:, :, token] != 0).any(0).nonzero()[:, 0]

    @property
    def _read_features(self) -> int:
        """Products that are added up in a token before the heads read it."""
        return 0

    def _lift_work(self, x: Tensor, heads: int) -> int:
        return 0

    def _tokens(self, x: Tensor, heads: Tensor | slice = _EVERY) -> Tensor:
        """What the heads read, shape (*batch, heads or 1, tokens, features)."""
        return x.unsqueeze(-3)

    def _read(self, looked: Tensor, rows: Tensor | slice = _EVERY) -> Tensor:
        readout = self.w_o[:, rows].mT
        return readout[0] @ looked.sum(-3) if len(readout) == 1 else (readout @ looked).sum(-3)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        heads, (_, head_dim, features) = len(self.labels), self.w_k.shape
        return (
            f"heads={heads}, head_dim={head_dim}, features={features}, tokens={self.w_o.shape[1]}"
        )

    def _check_input(self, x: Tensor) -> None:
        check_tokens("layer", x, self.w_o.shape[1], self.w_k.shape[2])


def _some(weights: Tensor, heads: Tensor) -> Tensor:
    """The weights of some heads; those that all share, once."""
    return weights if len(weights) == 1 else weights[heads]


def _check_weights(w_k: Tensor, w_q: Tensor, w_v: Tensor, w_o: Tensor, residual: bool) -> None:
    shapes = {name: tuple(w.shape) for name, w in
              {"w_k": w_k, "w_q": w_q, "w_v": w_v, "w_o": w_o}.items()}  # fmt: skip
    if not all(len(s) == 3 for s in shapes.values()):
        raise ShapeError(f"attention weights are (heads, rows, columns), got {shapes}")
    if w_k.shape[1:] != w_q.shape[1:] or w_v.shape[2] != w_k.shape[2]:
        raise ShapeError(f"w_k and w_q must agree, and w_v in its features, got {shapes}")
    if len({s[0] for s in shapes.values()} - {1}) > 1:
        raise ShapeError(f"all weights need the same number of heads, got {shapes}")
    if residual and (w_v.shape[1] != w_v.shape[2] or w_o.shape[1] != w_o.shape[2]):
        raise ShapeError(f"a residual layer must keep tokens and features, got {shapes}")


class LiftedAttention(SoftmaxAttention):
    r"""Attention whose heads each read the input through an affine map of their own.

    .. math:: \sum_h \mathrm{Attn}_h \Big(A_0 Z R_0 + A_{g(h)} Z\, e_{r(h)} s^\top + C\Big)

    This is the sum over heads of Attn_h . Lin_h in thm:attn_sim_attn: head h picks token r(h), maps
    it by its group's A and spreads it over the new tokens with the ramp s. The rank-one map is kept
    as its factors; everything else is literal.

    Parameters
    ----------
    shared_map, shared_tokens
        A_0, shape (new_features, features), and R_0, shape (tokens, new_tokens).
    group_maps, group_sizes
        A_g, shape (groups, new_features, features), and how many heads each group has, in order.
    picks
        One-hot rows e_r, shape (heads, tokens).
    ramp, constant
        s, shape (new_tokens,), and C transposed, shape (new_tokens, new_features).
    weights, labels
        As for :class:`SoftmaxAttention`, on the new tokens.
    """

    shared_map: Tensor
    shared_tokens: Tensor
    group_maps: Tensor
    picks: Tensor
    ramp: Tensor
    constant: Tensor

    def __init__(
        self,
        shared_map: Float[Tensor, "q p"],
        shared_tokens: Float[Tensor, "n m"],
        group_maps: Float[Tensor, "g q p"],
        group_sizes: Sequence[int],
        picks: Float[Tensor, "h n"],
        ramp: Float[Tensor, "m"],
        constant: Float[Tensor, "m q"],
        *weights: Tensor,
        labels: Sequence[str] | None = None,
    ) -> None:
        super().__init__(*weights, labels=labels)
        self.group_sizes = tuple(group_sizes)
        freeze(
            self,
            shared_map=shared_map,
            shared_tokens=shared_tokens,
            group_maps=group_maps,
            picks=picks,
            ramp=ramp,
            constant=constant,
        )

    def _tokens(self, x: Tensor, heads: Tensor | slice = _EVERY) -> Tensor:
        shared = self.shared_tokens.mT @ (x @ self.shared_map.mT) + self.constant
        if isinstance(heads, slice):
            picked = torch.split(self.picks @ x, list(self.group_sizes), -2)
            mapped = [part @ a.mT for part, a in zip(picked, self.group_maps, strict=True)]
        else:
            groups = torch.repeat_interleave(torch.tensor(self.group_sizes).to(heads))[heads]
            rows = (self.picks[heads] @ x)[..., None, :]
            mapped = [(rows @ self.group_maps[groups].mT)[..., 0, :]]
        spread = torch.cat(mapped, -2)[..., None, :] * self.ramp[:, None]
        return shared[..., None, :, :] + spread

    @property
    def _read_features(self) -> int:
        return sum(self.shared_tokens.shape)

    def _lift_work(self, x: Tensor, heads: int) -> int:
        (n, p), (q, m) = x.shape[-2:], (self.shared_map.shape[0], self.shared_tokens.shape[1])
        return n * p * q + m * n * q + heads * (n * p + p * q + m * q)

    def _check_input(self, x: Tensor) -> None:
        check_tokens("layer", x, self.shared_tokens.shape[0], self.shared_map.shape[1])
