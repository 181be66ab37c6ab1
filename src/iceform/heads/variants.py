r"""Affine maps, which the paper calls Lin, attention behind them, and attention as others write it.

A :class:`Lift` makes new tokens out of old ones. In transformer libraries
(:class:`ProjectedAttention`) the output projection is on the feature side,

.. math:: \mathrm{Attn}(X)_q = \sum_h W_O^{(h)} W_V^{(h)} \sum_k x_k
    \,\mathrm{softmax}_k\big(W_Q^{(h)} x_q \cdot W_K^{(h)} x_k\big),

tokens x_q in rows, no scaling by the head dimension. W_V^{(h)} is (rank, features) and W_O^{(h)} is
(features, rank): a value map of low rank is kept as its two factors. No weight depends on the
number of tokens. A Hopfield layer makes its values from its keys (def:hopfield).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform import tuning
from iceform.arithmetic.units import next_power_of_two
from iceform.errors import ShapeError
from iceform.heads.network import (
    EVERY,
    AttentionTrace,
    Entry,
    SoftmaxAttention,
    check_tokens,
    freeze,
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

    Examples
    --------
    Two tokens out of one, the second twice the first, plus a constant:

    >>> lift = Lift(torch.ones(1, 1, 1), torch.tensor([[[1.0, 2.0]]]), torch.zeros(2, 1) + 0.5)
    >>> lift(torch.tensor([[3.0]]))
    tensor([[3.5000],
            [6.5000]])
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
        freeze(
            self, "map", feature_maps=(feature_maps, "terms out features"),
            token_maps=(token_maps, "terms tokens out_tokens"),
            constant=(constant, "out_tokens out"),
        )  # fmt: skip

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b m q"]:
        """Expand."""
        check_tokens("map", z, self.token_maps.shape[1], self.feature_maps.shape[2])
        terms = self.token_maps.mT @ (z.unsqueeze(-3) @ self.feature_maps.mT)
        return terms.sum(-3) + self.constant


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
        freeze(
            self, "group of heads", w_q=(w_q, "heads width features"),
            w_k=(w_k, "heads width features"), w_v=(w_v, "heads rank features"),
            w_o=(w_o, "heads features rank"),
        )  # fmt: skip
        if {len(w) for w in (w_q, w_k, w_v, w_o, labels)} != {len(labels)}:
            raise ShapeError(f"{len(labels)} labels were given for {len(w_q)} heads")
        self.labels = tuple(labels)

    def forward(
        self, queries: Float[Tensor, "*b q d"], keys: Float[Tensor, "*b k d"]
    ) -> Float[Tensor, "*b q d"]:
        """What the heads add to the tokens that ask.

        Attention that is too much to hold comes head by head, its queries in chunks. A row of
        attention needs no other row: answers are those of all at once, to the bit where the number
        of queries is a multiple of eight, else within the rounding of products
        (:func:`chunk_rows`).
        """
        asked, seen = _mapped(queries, self.w_q), _mapped(keys, self.w_k).mT
        values, answering = self.values(keys), keys[..., 0].numel()
        held = tuning.ATTENTION_ENTRIES << 2 * keys.is_cuda
        if asked[..., 0].numel() * keys.shape[-2] <= held:
            return self.project(torch.softmax(asked @ seen, -1) @ values)
        rows = chunk_rows(answering, self.w_q.shape[1], held)
        heads = zip(asked.unbind(-3), seen.unbind(-3), values.unbind(-3), strict=True)
        found = [
            torch.cat([torch.softmax(some @ key, -1) @ value for some in query.split(rows, -2)], -2)
            for query, key, value in heads
        ]
        return self.project(torch.stack(found, -3))

    def weights(
        self, queries: Float[Tensor, "*b q d"], keys: Float[Tensor, "*b k d"]
    ) -> Float[Tensor, "*b h q k"]:
        """How every query's attention is shared out, for every head."""
        return torch.softmax(_mapped(queries, self.w_q) @ _mapped(keys, self.w_k).mT, -1)

    def values(self, keys: Float[Tensor, "*b k d"]) -> Float[Tensor, "*b h k r"]:
        """The values of every head at every key."""
        return _mapped(keys, self.w_v)

    def project(self, looked: Float[Tensor, "*b h q r"]) -> Float[Tensor, "*b q d"]:
        """What the heads found, in the features that it is for, summed over heads."""
        return looked.transpose(-3, -2).flatten(-2) @ self.w_o.mT.flatten(0, 1)


def chunk_rows(entries: int, least: int, held: int) -> int:
    """Rows of a chunk, where one has so many entries and so many are held: a power of two.

    Libraries multiply the rows that are left over from their tiles in another order of summation.
    With powers of two there are such rows in the last chunk alone.
    """
    rows = max(1, held // max(1, entries))
    return int(max(next_power_of_two(least), 1 << (rows.bit_length() - 1)))


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

    Examples
    --------
    Of two stored patterns the state ``(0.9, 0)`` is nearer to the first, which comes back:

    >>> eye = torch.eye(2)
    >>> layer = HopfieldLayer(eye, eye, eye, 200.0, patterns=eye)
    >>> layer(torch.tensor([[0.9, 0.0]]))
    tensor([[1., 0.]])
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
        if (patterns is None) == (stored is None):
            raise ShapeError(
                "give either the patterns or how many tokens of the input are patterns"
            )
        freeze(
            self, "layer", w_k=(w_k, "width pattern_features"), w_q=(w_q, "width state_features"),
            w_v=(w_v, "out width"), beta=(torch.tensor(beta, dtype=w_k.dtype), ""),
            patterns=(patterns, "stored pattern_features"),
        )  # fmt: skip
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

    Examples
    --------
    >>> linear = ice.paper.LinearLayer(2, 2, samples=2, eps=1e-3)
    >>> isinstance(linear.network.layers[0], LiftedAttention)
    True
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
            self, "lift", shared_map=(shared_map, "out features"),
            shared_tokens=(shared_tokens, "tokens out_tokens"),
            group_maps=(group_maps, "groups out features"), picks=(picks, "all_heads tokens"),
            ramp=(ramp, "out_tokens"), constant=(constant, "out_tokens out"),
        )  # fmt: skip

    def _tokens(self, x: Tensor, heads: Tensor | slice = EVERY) -> Tensor:
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
