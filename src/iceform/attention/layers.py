"""The literal layers: softmax attention as def:attn has it, alone or behind an affine lift.

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

__all__ = [
    "AttentionTrace",
    "Entry",
    "Head",
    "HopfieldLayer",
    "LiftedAttention",
    "SoftmaxAttention",
]


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
        self.register_buffer("w_k", w_k)
        self.register_buffer("w_q", w_q)
        self.register_buffer("w_v", w_v)
        self.register_buffer("w_o", w_o)
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
        expected = (self.w_o.shape[1], self.w_k.shape[2])
        if x.shape[-2:] != expected:
            raise ShapeError(
                f"this layer takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(x.shape)}"
            )


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
        self.register_buffer("shared_map", shared_map)
        self.register_buffer("shared_tokens", shared_tokens)
        self.register_buffer("group_maps", group_maps)
        self.register_buffer("picks", picks)
        self.register_buffer("ramp", ramp)
        self.register_buffer("constant", constant)

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
        expected = (self.shared_tokens.shape[0], self.shared_map.shape[1])
        if x.shape[-2:] != expected:
            raise ShapeError(
                f"this layer takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(x.shape)}"
            )


class HopfieldLayer(nn.Module):
    r"""A modern Hopfield layer with frozen weights (def:hopfield).

    .. math:: \mathrm{Hop}(R; Y) = W_V W_K Y\, \mathrm{Softmax}(\beta (W_K Y)^\top W_Q R)

    Values are made from keys: V = W_V K. Whatever a value needs must therefore be a row of W_K Y,
    against which W_Q R has zeros.

    Parameters
    ----------
    w_k, w_q, w_v
        Shapes (dim, pattern_features), (dim, state_features) and (out_features, dim).
    beta
        The inverse temperature.
    patterns
        Y, shape (stored, pattern_features), where it is part of the module: the input is then the
        states alone. Otherwise the input's first ``stored`` tokens are the patterns.
    stored
        How many tokens of the input are patterns.
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    beta: Tensor
    patterns: Tensor | None

    def __init__(
        self,
        w_k: Float[Tensor, "k p"],
        w_q: Float[Tensor, "k r"],
        w_v: Float[Tensor, "o k"],
        beta: float,
        *,
        patterns: Float[Tensor, "n p"] | None = None,
        stored: int | None = None,
    ) -> None:
        super().__init__()
        if w_k.shape[0] != w_q.shape[0] or w_v.shape[1] != w_k.shape[0]:
            raise ShapeError(
                f"w_k {tuple(w_k.shape)}, w_q {tuple(w_q.shape)} and w_v {tuple(w_v.shape)} do not "
                "make one layer"
            )
        if (patterns is None) == (stored is None):
            raise ShapeError(
                "give either the patterns or how many tokens of the input are patterns"
            )
        self.register_buffer("w_k", w_k)
        self.register_buffer("w_q", w_q)
        self.register_buffer("w_v", w_v)
        self.register_buffer("beta", torch.tensor(beta, dtype=w_k.dtype))
        self.register_buffer("patterns", patterns)
        self.stored = stored
        self.labels = ("retrieval",)

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m o"]:
        """Retrieve."""
        return self.attend(x).output

    def attend(self, x: Float[Tensor, "*b n d"]) -> AttentionTrace:
        """Retrieve, and say how."""
        patterns, states = self._split(x)
        keys = patterns @ self.w_k.mT
        scores = self.beta * (states @ self.w_q.mT @ keys.mT)
        weights = torch.softmax(scores, -1)
        output = weights @ (keys @ self.w_v.mT)
        return AttentionTrace(scores.unsqueeze(-3), weights.unsqueeze(-3), output)

    def entry(self, x: Float[Tensor, "n d"], token: int, feature: int) -> Entry:
        """One number of the output."""
        patterns, states = self._split(x)
        keys, query = patterns @ self.w_k.mT, states[token] @ self.w_q.mT
        return Entry(
            self.beta * (query @ keys.mT)[None, None],
            self.beta.abs() * (query.abs() @ keys.abs().mT)[None, None],
            (keys @ self.w_v[feature])[None],
            torch.ones_like(query[:1])[None],
            sum(self.w_k.shape) + self.w_q.shape[1],
        )

    def entry_work(self, x: Float[Tensor, "n d"], token: int, feature: int) -> int:
        """Multiplications that :meth:`entry` takes."""
        patterns, _ = self._split(x)
        return patterns.shape[-2] * (self.w_k.numel() + 2 * len(self.w_k)) + self.w_q.numel()

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        width = self.w_q.shape[1]
        if x.ndim < 2 or x.shape[-1] != width:
            raise ShapeError(
                f"this layer takes (*batch, tokens, {width} features), got {tuple(x.shape)}"
            )
        if self.patterns is not None:
            return self.patterns, x
        return x[..., : self.stored, :], x[..., self.stored :, :]
