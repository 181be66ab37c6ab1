r"""The language of heads: named features, and heads that read and write them.

A head is softmax(q.k) v followed by an output map. Here it is written by its rows: pairs (query
row, key row) whose products add up to the logit, and moves, each a value row with where it is
added in the stream. A row reads features with coefficients and may add a constant (a bias of a
stock block: exact, whatever the norm does). Every literal network of the package is such a design.

A stream holds features in one of three ways. *Plain*, as the paper's layers and the frozen computer
have it: every feature once, no norm, no padding, no biases. *Mirrored*, for stock blocks: every
feature f twice, as f in the first half of the stream and as -f in the second (``rounding`` says
why). A coefficient c of a row becomes c/2 and -c/2; a coefficient c of a write becomes c and -c.
*Ballasted*, for norms with an epsilon that a trained model could have: every feature once, beside
places that are none. Two hold +C and -C, so large that the norm's root hardly depends on the
features; one, ``nil``, is always 0, and what a row reads is a difference to it, in which any mean
cancels; the last ones, ``balance``, share minus the sum of all features, so that the mean is 0 but
for rounding. Between the heads stock blocks do nothing: the feed-forward maps are zero.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import power_of_four
from iceform.errors import ShapeError
from iceform.heads.head import (
    Head,
    Move,
    Place,
    coefficients,
    describe,
    matrix,
    stacked,
    touched,
)
from iceform.heads.network import Features, SoftmaxAttention
from iceform.heads.rotation import Rotation
from iceform.heads.variants import HeadGroup, HopfieldLayer, ProjectedAttention

_BALANCE = 32  # places that share minus the sum of the features
_OWN = ("ballast", "minus ballast", "nil", "balance")  # after the features


@dataclass(frozen=True)
class Design:
    """Features and layers of heads, and how the stream holds them.

    Parameters
    ----------
    features
        Names of the features of a token.
    layers
        The heads, layer by layer.
    repeats
        How often the layers are applied, one after the other.
    rotation
        The basis of a mirrored stream; None where every feature has a place of its own.
    norm
        The epsilon of the norms, a power of four where the stream is mirrored; 0 where there is
        none: the stream is plain.
    ballast
        C of a ballasted stream, 0 of the others.
    gives
        For each layer of a plain stream the features that come out of it, where they are not the
        stream's; None where what the heads write is added to the stream. Left out, all are added.
    keys
        Features of the tokens that are attended to, where those are not the ones that ask.
    blocks
        Heads of a layer and their size, of stock blocks whose shape is given; None where it follows
        from the features and the heads. With 0 heads there are as many as the widest layer has, and
        they are no slices of the stream (a Llama's), which is as wide as its features need.

    Examples
    --------
    A head that averages x over the tokens whose mark is 1, and its weights:

    >>> from iceform.heads import Design, Features, Head, Row, moves
    >>> at = Features.of(x=2, mark=1, asks=1, mean=2)
    >>> far = Row.of("asks"), Row({("mark", 0): 100.0})
    >>> design = Design(at, ((Head("mean of the marked", (far,), moves(at, {"x": 1.0}, "mean")),),))
    >>> design.matrices(0)["k"]
    tensor([[[  0.,   0., 100.,   0.,   0.,   0.]]], dtype=torch.float64)
    >>> design.edges()["mark"]
    {'read_as_key': [[0, 0]]}
    """

    features: Features
    layers: tuple[tuple[Head, ...], ...]
    repeats: int = 1
    rotation: Rotation | None = None
    norm: float = 0.0
    ballast: float = 0.0
    gives: tuple[Features | None, ...] = ()
    keys: Features | None = None
    blocks: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        every = [head for layer in self.layers for head in layer]
        constants = [r.constant for h in every for pair in h.logit for r in pair]
        constants += [m.value.constant for h in every for m in h.moves]
        if self.is_plain and any(constants):
            raise ShapeError(
                f"a row adds the constant {max(constants, key=abs)}, and plain streams have no "
                "biases; read a feature that is 1 in every token, or give the design a norm"
            )

    @property
    def is_plain(self) -> bool:
        """Whether every feature is held once, and there is no norm."""
        return not self.norm

    @cached_property
    def streams(self) -> tuple[Features, ...]:
        """The features that each layer reads, and last those that the network gives."""
        found = [self.features]
        for given in self.gives or (None,) * len(self.layers):
            found.append(given or found[-1])
        return tuple(found)

    def adds(self, layer: int) -> bool:
        """Whether what a layer's heads write is added to its input."""
        return not self.gives or self.gives[layer] is None

    @property
    def unrolled(self) -> tuple[tuple[Head, ...], ...]:
        """All layers, repeats one by one."""
        return self.layers * self.repeats

    @cached_property
    def head_size(self) -> int:
        """The width of a head; in stock blocks a power of four, whose root scales exactly."""
        if self.blocks is not None:
            return self.blocks[1]
        widest = max(head.width for layer in self.layers for head in layer)
        return widest if self.is_plain else power_of_four(widest)

    @property
    def scaling_units(self) -> int:
        """Roundings of a kernel that scales queries and keys by the root of the logits' scaling."""
        return 0 if math.log(self.head_size, 16).is_integer() else 2

    @cached_property
    def heads(self) -> int:
        """Heads per layer, as many as the widest layer needs, and in stock blocks the features."""
        if self.blocks is not None and self.blocks[0]:
            return self.blocks[0]
        most = max(len(layer) for layer in self.layers)
        if self.is_plain or self.blocks is not None:
            return most
        return max(most, -(-self._needed // self.head_size))

    @property
    def _needed(self) -> int:
        """Places of a stock stream that hold something."""
        held = self.features.total if self.rotation is None else self.rotation.total
        return held + len(_OWN) - 1 + _BALANCE if self.ballast else 2 * held

    @property
    def inner(self) -> int:
        """Numbers that the heads of a stock layer carry together."""
        return self.heads * self.head_size

    @property
    def hidden(self) -> int:
        """The width of the stream; in stock blocks a multiple of the heads."""
        if self.is_plain:
            return self.features.total
        return self.inner if self._is_sliced else -(-self._needed // self.heads) * self.heads

    @property
    def _is_sliced(self) -> bool:
        """Whether the heads of a stock block share its stream out among them."""
        return self.blocks is None or self.blocks[0] > 0

    def place(self, where: Place) -> int:
        """The index of a feature."""
        name, index = where
        start: int = self.features[name].start
        return start + index

    def ground_truth(self) -> list[list[dict[str, object]]]:
        """Per layer, per head: its role, what it reads and where it writes; idle heads too."""
        return [
            [describe(head) for head in layer]
            + [{"role": "idle"}] * (0 if self.is_plain else self.heads - len(layer))
            for layer in self.layers
        ]

    def find(self, role: str) -> list[tuple[int, int]]:
        """The (layer, head) of every head whose role begins with this, in order.

        Layers that are repeated are counted once.

        Examples
        --------
        >>> spec = ice.targets.LinearDescent(dim=2, steps=3)
        >>> [place for place in spec.design.find("momentum") if place[0] == 2]
        [(2, 17), (2, 18)]
        """
        return [
            (number, index)
            for number, layer in enumerate(self.layers)
            for index, head in enumerate(layer)
            if head.role.startswith(role)
        ]

    def edges(self) -> dict[str, dict[str, list[list[int]]]]:
        """Per feature, the heads (layer, head) that write it and that read it, and as what.

        A head reaches a later one through the features that it writes and the other reads, and in
        no other way: all other edges carry nothing.
        """
        out: dict[str, dict[str, list[list[int]]]] = {}
        for number, layer in enumerate(self.layers):
            for index, head in enumerate(layer):
                for kind, names in touched(head).items():
                    for name in names:
                        out.setdefault(name, {}).setdefault(kind, []).append([number, index])
        return out

    def embedded(self, tokens: Float[Tensor, "*b f"]) -> Float[Tensor, "*b h"]:
        """Tokens' features as the stream holds them."""
        if not self.ballast:
            return mirrored(self, tokens)
        out = self.moved(tokens)
        out[..., self._own("ballast")] = self.ballast
        out[..., self._own("minus ballast")] = -self.ballast
        return out

    def moved(self, features: Float[Tensor, "*b f"]) -> Float[Tensor, "*b h"]:
        """Features that are added to a token's: of positions, or by heads."""
        if not self.ballast:
            return mirrored(self, features)
        out = self._padded(features)
        first = self._own("balance")
        out[..., first : first + _BALANCE] = -features.sum(-1, keepdim=True) / _BALANCE
        return out

    def readout(self, scores: Float[Tensor, "*b f"]) -> Float[Tensor, "*b h"]:
        """Rows of coefficients as maps out of the stream."""
        if not self.ballast:
            return mirrored(self, scores) / 2
        out = self._padded(scores)
        out[..., self._own("nil")] = -scores.sum(-1)
        return out

    def _padded(self, features: Float[Tensor, "*b f"]) -> Float[Tensor, "*b h"]:
        out = features.new_zeros(*features.shape[:-1], self.hidden)
        out[..., : features.shape[-1]] = features
        return out

    def own_places(self) -> dict[str, list[int]]:
        """Places of a ballasted stream that hold no feature, by name: first, one past last."""
        widths = dict.fromkeys(_OWN, 1) | {"balance": _BALANCE}
        names = _OWN if self.ballast else ()
        return {name: [self._own(name), self._own(name) + widths[name]] for name in names}

    def _own(self, name: str) -> int:
        return self.features.total + _OWN.index(name)

    @property
    def norm_weight(self) -> float:
        """The weight of every norm, by which features come out as they go in."""
        if self.ballast:
            return self.ballast * math.sqrt(2 / self.hidden)
        return math.sqrt(self.norm)

    def matrices(self, layer: int) -> dict[str, Tensor]:
        """The maps q, k, v and o of a layer, in float64.

        On a plain stream there is a matrix for every head: q, k and v are (heads, size, features),
        o is (heads, features, size). Those of stock blocks are (inner, hidden), heads below each
        other, and o (hidden, inner); their queries carry the root of the head size, which the
        stock scaling takes away.
        """
        heads = self.layers[layer]
        if self.is_plain:
            own, into = self.streams[layer : layer + 2]
            seen = self.keys or own
            read = {"q": own, "k": seen, "v": seen, "o": into}
            return {kind: stacked(heads, kind, names) for kind, names in read.items()}
        h, size, inner = self.hidden, self.head_size, self.inner
        out = {name: torch.zeros(inner, h, dtype=torch.float64) for name in ("q", "k", "v")}
        out["o"] = torch.zeros(h, inner, dtype=torch.float64)
        root = math.sqrt(size)
        for name in out:
            rows = {
                number * size + i: row
                for number, head in enumerate(heads)
                for i, row in enumerate(coefficients(head, name))
                if row or self._is_sliced
            }
            if rows:
                found = self._maps(self.moved if name == "o" else self.readout, rows.values())
                if name == "o":
                    out[name][:, list(rows)] = found.T
                else:
                    out[name][list(rows)] = root * found if name == "q" else found
        return out

    def _maps(
        self, held: Callable[[Tensor], Tensor], combinations: Iterable[Mapping[Place, float]]
    ) -> Float[Tensor, "rows hidden"]:
        """Combinations of features as rows over a stock stream."""
        out = held(matrix(list(combinations), self.features) + 0.0)
        return out if self.ballast else out + 0.0

    def biases(self, layer: int) -> dict[str, Float[Tensor, "hidden"]]:
        """What a stock block adds to its queries, keys and values: the constants of the rows."""
        size = self.head_size
        out = {name: torch.zeros(self.inner, dtype=torch.float64) for name in ("q", "k", "v")}
        root = math.sqrt(size)
        for number, head in enumerate(self.layers[layer]):
            for i, (query, key) in enumerate(head.logit, number * size):
                out["q"][i], out["k"][i] = root * query.constant, key.constant
            for i, move in enumerate(head.moves, number * size):
                out["v"][i] = move.value.constant
        return out

    def cost(self) -> dict[str, int]:
        """Layers, heads of all of them, the head size, the stream's width, weights, nonzero ones.

        Layers that are repeated count as often in the first two, and once in the last two.
        """
        weights = [w for i in range(len(self.layers)) for w in self._weights(i).values()]
        return {
            "layers": len(self.unrolled),
            "heads": sum(len(layer) for layer in self.unrolled),
            "head_size": self.head_size,
            "width": self.hidden,
            "weights": sum(w.numel() for w in weights),
            "nonzero": sum(int(w.count_nonzero()) for w in weights),
        }

    def digest(self) -> str:
        """SHA-256 of the weights of every layer, with their names and shapes, in float64."""
        sha = hashlib.sha256(str(self.repeats).encode())
        for layer in range(len(self.layers)):
            for name, weight in self._weights(layer).items():
                sha.update(f"{layer} {name} {tuple(weight.shape)}\n".encode())
                sha.update(weight.contiguous().numpy().data)
        return sha.hexdigest()

    def _weights(self, layer: int) -> dict[str, Tensor]:
        more = {} if self.is_plain else self.biases(layer)
        return self.matrices(layer) | {f"{name} bias": bias for name, bias in more.items()}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What token ids and positions mean: features that they start with, rows that score them.

    Examples
    --------
    Two words of one feature, one position, and scores that like the word whose feature is larger:

    >>> features = torch.tensor([[0.0], [1.0]])
    >>> words = Vocabulary(features, torch.zeros(1, 1), scores=features)
    >>> len(words)
    2
    """

    tokens: Float[Tensor, "ids f"]
    positions: Float[Tensor, "p f"]
    scores: Float[Tensor, "ids f"]

    def __len__(self) -> int:
        return len(self.tokens)


def in_parts(
    layers: Iterable[Sequence[Head]], size: int | None = None
) -> tuple[tuple[Head, ...], ...]:
    """Heads that carry more than a head's ``size``, as several with the same logit.

    Left out, the size is that of the longest logit.
    """
    layers = tuple(layers)
    most = size or power_of_four(max(len(head.logit) for layer in layers for head in layer))

    def parts(head: Head) -> Iterator[Head]:
        carried = tuple(move for move in head.moves if move.writes)
        for start in range(0, len(carried), most):
            yield replace(head, moves=carried[start : start + most])

    return tuple(tuple(part for head in layer for part in parts(head)) for layer in layers)


def mirrored(design: Design, tokens: Float[Tensor, "*b t f"]) -> Float[Tensor, "*b t h"]:
    """Features as a stock stream holds them: f and -f, each padded with zeros."""
    half = design.hidden // 2
    if design.rotation is not None:
        spare = design.rotation.total - tokens.shape[-1]
        tokens = design.rotation.turn(torch.nn.functional.pad(tokens, (0, spare)))
    out = tokens.new_zeros(*tokens.shape[:-1], design.hidden)
    out[..., : tokens.shape[-1]] = tokens
    out[..., half : half + tokens.shape[-1]] = -tokens
    return out


def unmirrored(design: Design, stream: Float[Tensor, "*b t h"]) -> Float[Tensor, "*b t f"]:
    """Features out of a stream, in float64: (f - (-f))/2.

    Examples
    --------
    >>> design = ice.targets.LinearDescent(dim=1, steps=1).design
    >>> tokens = torch.arange(3.0 * design.features.total).double().view(3, -1)
    >>> torch.equal(unmirrored(design, design.embedded(tokens)), tokens)
    True
    """
    half, count = design.hidden // 2, design.features.total
    wide = stream.double()
    held = (wide[..., :half] - wide[..., half:]) / 2
    return (held if design.rotation is None else design.rotation.back(held))[..., :count]


def hidden_among(
    layer: tuple[Head, ...], idle: int, copies: int, order: torch.Generator
) -> tuple[Head, ...]:
    """The heads of a layer in equal parts, and heads that do nothing, in an order that is drawn."""
    parts = [
        Head(
            head.role if copies == 1 else f"{head.role}, part {part + 1} of {copies}",
            head.logit,
            tuple(Move(m.value, {k: c / copies for k, c in m.writes.items()}) for m in head.moves),
        )
        for head in layer
        for part in range(copies)
    ]
    every = [*parts, *(Head("idle", (), ()) for _ in range(idle))]
    return tuple(every[i] for i in torch.randperm(len(every), generator=order).tolist())


# A design as literal layers: modules whose buffers are the weights that the design says.


def attention(
    design: Design, layer: int, readout: Float[Tensor, "n m"], shared: str = ""
) -> SoftmaxAttention:
    """A layer as def:attn has it, its output on the sequence side.

    Parameters
    ----------
    design, layer
        A plain design, and which of its layers; its input is added where the layer gives nothing
        of its own.
    readout
        W_O, shape (tokens, out_tokens), the same for all heads.
    shared
        Letters of those of k and q that are the same for all heads, and held once.

    Examples
    --------
    >>> at = Features.of(x=1, asks=1)
    >>> head = Head("copy", products(at, {"asks": 1.0}, {"x": 1.0}), moves(at, {"x": 1.0}, "x"))
    >>> layer = attention(Design(at, ((head,),)), 0, torch.eye(3).double())
    >>> tuple(layer.w_v.shape), layer.labels, layer.residual
    ((1, 2, 2), ('copy',), True)
    """
    weights = attention_weights(design, layer, readout, shared)
    roles = [head.role for head in design.layers[layer]]
    return SoftmaxAttention(*weights, labels=roles, residual=design.adds(layer))


def attention_weights(
    design: Design, layer: int, readout: Float[Tensor, "n m"], shared: str = ""
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_K, W_Q, W_V and W_O of a layer as def:attn has it."""
    heads, (own, into) = design.layers[layer], design.streams[layer : layer + 2]
    maps = {}
    for kind in "kqv":
        first = coefficients(heads[0], kind)
        if kind in shared and any(coefficients(head, kind) != first for head in heads):
            raise ShapeError(f"heads of layer {layer} differ in {kind}, which they were to share")
        maps[kind] = stacked(heads[:1] if kind in shared else heads, kind, own)
    written = [
        (number, into[name].start + j, i, c)
        for number, head in enumerate(heads)
        for i, move in enumerate(head.moves)
        for (name, j), c in move.writes.items()
    ]
    if len({place[:2] for place in written}) < len(written):
        raise ShapeError(f"a head of layer {layer} writes one feature twice; add the rows up")
    number, place, row, factor = (list(part) for part in zip(*written, strict=True))
    values = torch.zeros(len(heads), into.total, maps["v"].shape[2], dtype=torch.float64)
    values[number, place] = torch.tensor(factor).double()[:, None] * maps["v"][number, row]
    return maps["k"], maps["q"], values, readout[None]


def projected(design: Design, layer: int, dtype: torch.dtype) -> ProjectedAttention:
    """A layer as transformer libraries have it, heads that carry equally much in one group."""
    own, into = design.streams[layer : layer + 2]

    def group(heads: list[Head]) -> HeadGroup:
        q, k, v = (stacked(heads, kind, own).to(dtype) for kind in "qkv")
        roles = [head.role for head in heads]
        return HeadGroup(q, k, v, stacked(heads, "o", into).to(dtype), roles)

    groups = groupby(design.layers[layer], key=lambda head: len(head.moves))
    return ProjectedAttention([group(list(g)) for _, g in groups], residual=design.adds(layer))


def hopfield(
    design: Design,
    beta: float,
    *,
    patterns: Float[Tensor, "n p"] | None = None,
    stored: int | None = None,
) -> HopfieldLayer:
    """The one head of a design as a Hopfield layer: its value rows are keys that no query meets.

    The logits are ``beta`` times those of the design.
    """
    maps = {name: m[0] for name, m in design.matrices(0).items()}
    unmet = torch.zeros(len(maps["v"]), maps["q"].shape[1], dtype=torch.float64)
    unread = torch.zeros(len(maps["o"]), len(maps["k"]), dtype=torch.float64)
    return HopfieldLayer(
        torch.cat([maps["k"], maps["v"]]), torch.cat([maps["q"], unmet]),
        torch.cat([unread, maps["o"]], 1), beta, patterns=patterns, stored=stored,
    )  # fmt: skip
