r"""What every layer of a frozen network did with a prompt: scores, attention, margins, features.

A query's *margin* says how firmly it looks where it should.

Where tokens name blocks (the features ``block`` of queries and ``hidden_from`` of keys, which the
look-up layer's embedding writes), a query's own keys are those whose ``hidden_from`` is 0 at the
query's ``block``, and with own keys O and scores s its margin is

.. math:: \gamma = \log \sum_{k \in O} e^{s_k} - \log \sum_{k \notin O} e^{s_k},

so that exactly :math:`1 / (1 + e^\gamma)` of its attention leaks out of its block, which is 0 where
the exponential is beyond all numbers. Everywhere else
the margin is the gap between the largest and the second largest of m scores, and at most
:math:`(m - 1) / (m - 1 + e^\gamma)` of the attention is off the best key. A soft look-up, which is
meant to read several keys at once, has small margins of the second kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform.arithmetic import at_least, at_most
from iceform.errors import ShapeError
from iceform.heads.network import (
    AttentionTrace,
    Embed,
    Features,
    FrozenNetwork,
    SoftmaxAttention,
)
from iceform.heads.variants import HopfieldLayer, LiftedAttention


@dataclass(frozen=True, eq=False, repr=False)
class LayerTrace:
    """What one layer did.

    An affine map has no heads: its scores, attention and margins are empty along that axis.

    Attributes
    ----------
    name
        Where the layer is in the network: ``layers.0``, ``layers.1``, ...
    labels
        What each head is for.
    tokens
        What came in, shape (*batch, tokens, features).
    scores, attention
        Before and after the softmax over keys, shape (*batch, heads, queries, keys).
    margins
        As the module says, shape (*batch, heads, queries). In a layer with blocks a query that
        belongs to none has NaN.
    output
        What went out, shape (*batch, out_tokens, out_features).
    features, out_features
        Names along the last axis of ``tokens`` and ``output``, where they are known.
    queries, keys
        What each query and each key is, in words.
    read
        Which queries reach the output, shape (queries,).
    own
        Which keys are in the query's own block, shape (*batch, queries, keys); None without blocks.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> x, y, w = torch.ones(2, 1).double(), torch.ones(2).double(), torch.zeros(1).double()
    >>> layer = step.trace(x, y, w)["layers.1"]
    >>> layer.labels == ("read the prompt's table",)
    True
    >>> layer.smallest_margin > 700, layer.largest_leak
    (True, 0.0)
    """

    name: str
    labels: tuple[str, ...]
    tokens: Tensor
    scores: Tensor
    attention: Tensor
    margins: Tensor
    output: Tensor
    features: Features | None
    out_features: Features | None
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    read: Tensor
    own: Tensor | None

    def of(self, *at: int) -> Self:
        """The same of one prompt of a batch."""
        return replace(
            self,
            tokens=self.tokens[at],
            scores=self.scores[at],
            attention=self.attention[at],
            margins=self.margins[at],
            output=self.output[at],
            own=None if self.own is None else self.own[at],
        )

    @property
    def asked(self) -> Tensor:
        """Which queries are read and, where there are blocks, belong to one, shape (queries,)."""
        if self.own is None:
            return self.read
        return self.read & self.own.any(-1).reshape(-1, len(self.read)).all(0)

    def named(self, name: str) -> Tensor:
        """The named features of every token that came in."""
        if self.features is None:
            raise KeyError(f"the features that {self.name} reads have no names")
        return self.tokens[..., self.features[name]]

    @property
    def leak(self) -> Tensor:
        """Attention outside the own block, or off the best key; shape (*batch, heads, queries)."""
        if self.own is not None:
            return torch.sigmoid(-self.margins)
        best = self.attention.argmax(-1, keepdim=True)
        return self.attention.scatter(-1, best, 0.0).sum(-1)

    @property
    def smallest_margin(self) -> float:
        """The smallest margin of a query that is read; NaN without heads."""
        kept = self.margins[..., self.read].detach()
        kept = kept[~kept.isnan()]
        return float(kept.min()) if kept.numel() else math.nan

    @property
    def largest_leak(self) -> float:
        """The largest leak of a query that is read; NaN without heads."""
        kept = self.leak[..., self.read].detach()
        kept = kept[~kept.isnan()]
        return float(kept.max()) if kept.numel() else math.nan

    def __repr__(self) -> str:
        return _table([self])


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What every layer of a network did with a prompt, or with a batch of them.

    Look-ups are a batch of prompts of one data set, a block of samples in each.

    Attributes
    ----------
    layers
        In order; ``trace["layers.0"]`` is the first.
    features
        Names of the prompt's features.
    roles
        What each token of the prompt is, in words.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> x, y, w = torch.ones(2, 1).double(), torch.ones(2).double(), torch.zeros(1).double()
    >>> trace = step.trace(x, y, w)
    >>> len(trace), [layer.name for layer in trace], trace.roles[0]
    (2, ['layers.0', 'layers.1'], 'block 0, token 0')
    """

    layers: tuple[LayerTrace, ...]
    features: Features
    roles: tuple[str, ...]

    @property
    def tokens(self) -> Tensor:
        """The prompt, shape (*batch, tokens, features)."""
        return self.layers[0].tokens

    @property
    def output(self) -> Tensor:
        """What the last layer gave, shape (*batch, out_tokens, out_features)."""
        return self.layers[-1].output

    def of(self, *at: int) -> Self:
        """The same of one prompt of a batch."""
        return replace(self, layers=tuple(layer.of(*at) for layer in self.layers))

    def named(self, name: str) -> Tensor:
        """The named features of every token of the prompt."""
        return self.tokens[..., self.features[name]]

    def __getitem__(self, name: str) -> LayerTrace:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"no layer {name!r}; there are {', '.join(x.name for x in self.layers)}")

    def __iter__(self) -> Iterator[LayerTrace]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        *batch, tokens, features = self.tokens.shape
        many = f"{math.prod(batch)} prompts of " if math.prod(batch) > 1 else ""
        return f"{many}{tokens} tokens of {features} features\n{_table(self.layers)}"


def trace_network(
    network: FrozenNetwork,
    tokens: Float[Tensor, "*b n d"],
    *,
    features: Features | None = None,
    roles: Sequence[str] | None = None,
) -> Trace:
    """Run a network layer by layer and keep what each layer did.

    Parameters
    ----------
    network
        Its layers run as they are; those with ``attend`` also say how.
    tokens
        The prompt.
    features
        Names of the prompt's features; the network's own by default.
    roles
        What each token is; ``token 0``, ``token 1``, ... by default.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> x, y, w = torch.ones(2, 1).double(), torch.ones(2).double(), torch.zeros(1).double()
    >>> trace = trace_network(step.network, step.prompt(x, y, w).tokens)
    >>> torch.equal(trace.output, step.network(trace.tokens))
    True
    """
    names = network.features if features is None else features
    words = _numbered("token", tokens.shape[-2]) if roles is None else tuple(roles)
    if (len(words), names.total) != tuple(tokens.shape[-2:]):
        raise ShapeError(
            f"{len(words)} roles and {names.total} feature names do not describe tokens of shape "
            f"{tuple(tokens.shape)}"
        )
    layers: list[LayerTrace] = []
    known: Features | None = names
    said, stream = words, tokens
    for index, layer in enumerate(network.layers):
        layers.append(_trace_layer(f"layers.{index}", layer, stream, known, said))
        stream, known = layers[-1].output, layers[-1].out_features
        said = _words_after(layer, layers[-1])
    return Trace(tuple(layers), names, words)


def _trace_layer(
    name: str, layer: nn.Module, x: Tensor, features: Features | None, roles: tuple[str, ...]
) -> LayerTrace:
    done = _attend(layer, x)
    queries, keys = _sides(layer, roles, done)
    own = _own_keys(layer, x, features)
    return LayerTrace(
        name=name,
        labels=tuple(getattr(layer, "labels", ())),
        tokens=x,
        scores=done.scores,
        attention=done.weights,
        margins=_margins(done.scores, own),
        output=done.output,
        features=features,
        out_features=_features_after(layer, features),
        queries=queries,
        keys=keys,
        read=_read(layer, done),
        own=own,
    )


def _attend(layer: nn.Module, x: Tensor) -> AttentionTrace:
    attend = getattr(layer, "attend", None)
    if attend is not None:
        done: AttentionTrace = attend(x)
        return done
    output: Tensor = layer(x)
    none = x.new_zeros(*x.shape[:-2], 0, output.shape[-2], x.shape[-2])
    return AttentionTrace(none, none, output)


# ---------------------------------------------------------------------------------------------
# margins
# ---------------------------------------------------------------------------------------------


def _margins(scores: Tensor, own: Tensor | None) -> Tensor:
    if own is not None:
        return _block_margins(scores, own.unsqueeze(-3))
    if scores.shape[-1] < 2:
        return torch.full_like(scores[..., 0], math.inf)
    first, second = scores.topk(2, -1).values.unbind(-1)
    return first - second


def _block_margins(scores: Tensor, own: Tensor) -> Tensor:
    inside = torch.logsumexp(scores.masked_fill(~own, -math.inf), -1)
    outside = torch.logsumexp(scores.masked_fill(own, -math.inf), -1)
    return (inside - outside).masked_fill(~own.any(-1), math.nan)


def _own_keys(layer: nn.Module, x: Tensor, features: Features | None) -> Tensor | None:
    """Keys that are not hidden from the query's block, shape (*batch, queries, keys)."""
    if features is None or not {"block", "hidden_from"} <= set(features):
        return None
    if isinstance(layer, HopfieldLayer) and layer.stored is not None:
        queries, keys = x[..., layer.stored :, :], x[..., : layer.stored, :]
    elif isinstance(layer, SoftmaxAttention) and not isinstance(layer, LiftedAttention):
        queries = keys = x
    else:
        return None
    ours = keys[..., features["hidden_from"]] == 0
    own = queries[..., features["block"]] @ ours.to(x).mT
    return own > 0


def _read(layer: nn.Module, done: AttentionTrace) -> Tensor:
    if isinstance(layer, SoftmaxAttention):
        return (layer.w_o != 0).any(-1).any(0)
    return torch.ones(done.scores.shape[-2], dtype=torch.bool, device=done.scores.device)


# ---------------------------------------------------------------------------------------------
# names
# ---------------------------------------------------------------------------------------------


def _numbered(what: str, count: int) -> tuple[str, ...]:
    return tuple(f"{what} {i}" for i in range(count))


def _sides(
    layer: nn.Module, roles: tuple[str, ...], done: AttentionTrace
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What each query and each key is."""
    queries, keys = done.scores.shape[-2:]
    if isinstance(layer, LiftedAttention):
        new = _numbered("lifted token", keys)
        return _carried(roles, layer.shared_tokens, new), new
    if isinstance(layer, HopfieldLayer) and layer.stored is not None:
        return roles[layer.stored :], roles[: layer.stored]
    if isinstance(layer, HopfieldLayer):
        return roles, _numbered("pattern", keys)
    if isinstance(layer, SoftmaxAttention | Embed):
        return roles, roles
    return _numbered("token", queries), _numbered("token", keys)


def _carried(roles: Sequence[str], token_map: Tensor, new: Sequence[str]) -> tuple[str, ...]:
    """Roles of new tokens: those that read one old token alone keep its role."""
    sources = [column.nonzero().flatten().tolist() for column in token_map.mT]
    pairs = zip(sources, new, strict=True)
    return tuple(roles[source[0]] if len(source) == 1 else word for source, word in pairs)


def _words_after(layer: nn.Module, done: LayerTrace) -> tuple[str, ...]:
    """Roles of the tokens that a layer gives."""
    if getattr(layer, "residual", False) or isinstance(layer, HopfieldLayer | Embed):
        return done.queries
    new = _numbered("token", done.output.shape[-2])
    if isinstance(layer, SoftmaxAttention) and len(layer.w_o) == 1:
        return _carried(done.queries, layer.w_o[0], new)
    return new


def _features_after(layer: nn.Module, features: Features | None) -> Features | None:
    """Output features by the head that writes them, where each is written by one alone."""
    if getattr(layer, "residual", False):
        return features
    if isinstance(layer, Embed):
        return layer.names
    if isinstance(layer, HopfieldLayer):
        return Features(((layer.labels[0], layer.w_v.shape[0]),))
    if not isinstance(layer, SoftmaxAttention) or len(set(layer.labels)) != len(layer.w_v):
        return None
    written = (layer.w_v != 0).any(-1)  # (heads, out_features)
    writer = written.int().argmax(0)
    if not bool((written.sum(0) == 1).all() and (writer.diff() >= 0).all()):
        return None
    sizes = written.sum(1).tolist()
    return Features(tuple(zip(layer.labels, sizes, strict=True)))


# ---------------------------------------------------------------------------------------------
# the table
# ---------------------------------------------------------------------------------------------

_HEADINGS = ("layer", "heads", "queries", "keys", "margin", "between", "leak", "output")


def _table(layers: Sequence[LayerTrace]) -> str:
    rows = [_HEADINGS, *map(_row, layers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _row(layer: LayerTrace) -> tuple[str, ...]:
    _, queries, keys = layer.scores.shape[-3:]
    output = " x ".join(map(str, layer.output.shape))
    if not layer.labels:
        return layer.name, "none", "", "", "", "", "", output
    sizes = (str(len(layer.labels)), str(queries), str(keys))
    between = "keys" if layer.own is None else "blocks"
    margin = at_least(layer.smallest_margin, ".4g")
    leak = at_most(layer.largest_leak, ".1e")
    return layer.name, *sizes, margin, between, leak, output
