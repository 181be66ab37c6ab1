r"""A residual stream on paper: named features, and heads that read and write them.

A head of a stock block is softmax(q.k) v followed by an output map. Here it is written by its
rows: pairs (query row, key row) whose products add up to the logit, and values, each with where
it is added in the stream. A row reads features with coefficients and may add a constant (a bias:
exact, whatever the norm does).

A stream holds features in one of two ways. *Mirrored*: every feature f twice, as f in the
first half of the stream and as -f in the second (``rounding`` says why). A coefficient c of a row
becomes c/2 and -c/2; a coefficient c of a write becomes c and -c. *Ballasted*, for norms with an
epsilon that a trained model could have: every feature once, beside places that are none.
Two hold +C and -C, so large that the norm's root hardly depends on the features; one, ``nil``, is
always 0, and what a row reads is a difference to it, in which any mean cancels; the last ones,
``balance``, share minus the sum of all features, so that the mean is 0 but for rounding. Between
the heads stock blocks do nothing: the feed-forward maps are zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.attention import Features
from iceform.targets.rotation import Rotation
from iceform.targets.rounding import EPSILON

Place = tuple[str, int]
_BALANCE = 32  # places that share minus the sum of the features
_OWN = ("ballast", "minus ballast", "nil", "balance")  # after the features


@dataclass(frozen=True)
class Row:
    """sum of coefficients times features, plus a constant."""

    reads: Mapping[Place, float] = field(default_factory=dict)
    constant: float = 0.0

    @classmethod
    def of(cls, name: str, index: int = 0, coefficient: float = 1.0) -> Row:
        """One feature, scaled."""
        return cls({(name, index): coefficient})

    @classmethod
    def flags(cls, **coefficients: float) -> Row:
        """A sum of features of width one."""
        return cls({(name, 0): c for name, c in coefficients.items()})


@dataclass(frozen=True)
class Move:
    """One number that a head carries: what is read at the key, where it is added."""

    value: Row
    writes: Mapping[Place, float]


@dataclass(frozen=True)
class Head:
    """One head: what it is for, its logit, and what it carries."""

    role: str
    logit: tuple[tuple[Row, Row], ...]
    moves: tuple[Move, ...]

    @property
    def width(self) -> int:
        """The head size it needs."""
        return max(len(self.logit), len(self.moves))


@dataclass(frozen=True)
class Design:
    """Features and layers; sizes of the stock architecture that holds them.

    ``repeats`` is how often the layers are applied, one after the other; ``rotation`` is the basis
    of the stream, None where every feature has a place of its own; ``norm`` is the epsilon of the
    norms, a power of four where the stream is mirrored (``rounding``); ``ballast`` is C of a
    ballasted stream, 0 of a mirrored one.
    """

    features: Features
    layers: tuple[tuple[Head, ...], ...]
    repeats: int = 1
    rotation: Rotation | None = None
    norm: float = EPSILON
    ballast: float = 0.0

    @property
    def unrolled(self) -> tuple[tuple[Head, ...], ...]:
        """All layers, repeats one by one."""
        return self.layers * self.repeats

    @cached_property
    def head_size(self) -> int:
        """A power of four: its root is a power of two, so the logits' scaling is exact."""
        return power_of_four(max(head.width for layer in self.layers for head in layer))

    @property
    def scaling_units(self) -> int:
        """Roundings of a kernel that scales queries and keys by the root of the logits' scaling."""
        return 0 if math.log(self.head_size, 16).is_integer() else 2

    @cached_property
    def heads(self) -> int:
        """Heads per layer, as many as the widest layer and the mirrored features need."""
        size = self.head_size
        most = max(len(layer) for layer in self.layers)
        held = self.features.total if self.rotation is None else self.rotation.total
        places = held + len(_OWN) - 1 + _BALANCE if self.ballast else 2 * held
        return max(most, -(-places // size))

    @property
    def hidden(self) -> int:
        """The width of the stream; even, since the head size is."""
        return self.heads * self.head_size

    def place(self, where: Place) -> int:
        """The index of a feature."""
        name, index = where
        start: int = self.features[name].start
        return start + index

    def ground_truth(self) -> list[list[dict[str, object]]]:
        """Per layer, per head: its role, what it reads and where it writes; idle heads too."""
        return [
            [_describe(head) for head in layer]
            + [{"role": "idle"} for _ in range(self.heads - len(layer))]
            for layer in self.layers
        ]

    def edges(self) -> dict[str, dict[str, list[list[int]]]]:
        """Per feature, the heads (layer, head) that write it and that read it, and as what.

        A head reaches a later one through the features that it writes and the other reads, and in
        no other way: all other edges carry nothing.
        """
        out: dict[str, dict[str, list[list[int]]]] = {}
        for number, layer in enumerate(self.layers):
            for index, head in enumerate(layer):
                for kind, names in _touched(head).items():
                    for name in names:
                        out.setdefault(name, {}).setdefault(kind, []).append([number, index])
        return out

    def row(self, row: Row) -> Float[Tensor, "hidden"]:
        """The row over the stream."""
        if self.ballast:
            return self.readout(self._once(row.reads))
        half = self.turned(row.reads) / 2
        return torch.cat([half, -half]) + 0.0

    def column(self, writes: Mapping[Place, float]) -> Float[Tensor, "hidden"]:
        """What a head adds to the stream for each unit that it carries."""
        if self.ballast:
            return self.moved(self._once(writes))
        half = self.turned(writes)
        return torch.cat([half, -half]) + 0.0

    def _once(self, coefficients: Mapping[Place, float]) -> Float[Tensor, "f"]:
        out = torch.zeros(self.features.total, dtype=torch.float64)
        for where, c in coefficients.items():
            out[self.place(where)] += c
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
        """Where a ballasted stream holds what is no feature, by name: first place, one past it."""
        widths = dict.fromkeys(_OWN, 1) | {"balance": _BALANCE}
        names = _OWN if self.ballast else ()
        return {name: [self._own(name), self._own(name) + widths[name]] for name in names}

    def _own(self, name: str) -> int:
        return self.features.total + _OWN.index(name)

    @property
    def norm_weight(self) -> float:
        """Of every norm: features come out as they go in."""
        if self.ballast:
            return self.ballast * math.sqrt(2 / self.hidden)
        return math.sqrt(self.norm)

    def turned(self, coefficients: Mapping[Place, float]) -> Float[Tensor, "half"]:
        """A combination of features in half of the stream."""
        out = torch.zeros(self.hidden // 2, dtype=torch.float64)
        for where, c in coefficients.items():
            out[self.place(where)] += c
        return out if self.rotation is None else self.rotation.turn(out)

    def matrices(
        self, layer: tuple[Head, ...]
    ) -> tuple[dict[str, Float[Tensor, "hidden hidden"]], dict[str, Float[Tensor, "hidden"]]]:
        """Query, key, value and output maps (out, in) of one layer, and the first three's biases.

        The queries carry the root of the head size, which the stock scaling takes away again.
        """
        h, size = self.hidden, self.head_size
        maps = {name: torch.zeros(h, h, dtype=torch.float64) for name in ("q", "k", "v", "o")}
        biases = {name: torch.zeros(h, dtype=torch.float64) for name in ("q", "k", "v")}
        root = float(round(size**0.5))
        for number, head in enumerate(layer):
            for i, (query, key) in enumerate(head.logit, number * size):
                maps["q"][i] = root * self.row(query)
                maps["k"][i] = self.row(key)
                biases["q"][i], biases["k"][i] = root * query.constant, key.constant
            for i, move in enumerate(head.moves, number * size):
                maps["v"][i] = self.row(move.value)
                biases["v"][i] = move.value.constant
                maps["o"][:, i] = self.column(move.writes)
        return maps, biases


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What token ids and positions mean: features that they start with, rows that score them."""

    tokens: Float[Tensor, "ids f"]
    positions: Float[Tensor, "p f"]
    scores: Float[Tensor, "ids f"]

    def __len__(self) -> int:
        return len(self.tokens)


def power_of_four(least: int) -> int:
    """The least power of four that is at least this."""
    size = 1
    while size < least:
        size *= 4
    return size


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
    """Features out of a stream, in float64: (f - (-f))/2."""
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


def _touched(head: Head) -> dict[str, list[str]]:
    """What a head reads and writes, by name."""
    reads = {
        "read_as_value": (m.value for m in head.moves),
        "read_as_query": (q for q, _ in head.logit),
        "read_as_key": (k for _, k in head.logit),
    }
    found = {kind: {name for row in rows for name, _ in row.reads} for kind, rows in reads.items()}
    written = {name for m in head.moves for name, _ in m.writes}
    return {kind: sorted(names) for kind, names in {"written": written, **found}.items()}


def _describe(head: Head) -> dict[str, object]:
    touched = _touched(head)
    if not head.moves:
        return {"role": head.role}
    return {
        "role": head.role,
        "reads": touched["read_as_value"],
        "writes": touched["written"],
        "queries": touched["read_as_query"],
        "keys": touched["read_as_key"],
    }
