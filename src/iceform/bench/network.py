r"""A stock network of a design, run in float64 with a radius beside every number, edges patched.

The stream is the sum of what the embedding, the heads and the feed-forward maps wrote. So every
edge, from a writer to a feed-forward map or to one head's queries, keys or values, can carry
another run's value alone. Norms are of two kinds. Most have an epsilon so large that all they do is
take a token's mean away; what is read is then linear in the stream. Others are *rooted*: their
epsilon is a trained model's, and they divide by the root that the token has.

A network is a list of blocks: layers of heads, and where there are feed-forward maps each of them
after its layer, as a block of one writer that reads by its first map alone.

**Radii.** They enclose what real arithmetic would have given on the weights of the file; u is the
unit roundoff of float64. A row of k numbers is off by (k + 2) u times the sum of absolute products,
and by what its inputs are off; averages are off by what ``targets.enclosed`` says of a softmax.
A norm with the epsilon e shrinks a token of variance s by
less than s/(2 e), which is below u here (``check_exact``), one more unit of every read; of norms
that the stream itself passes (BERT's) one unit each. A rooted norm divides by r = sqrt(s + e): s is
the square of a length, so that r is off by at most the root mean square of the token's radii.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import UNIT
from iceform.errors import IntegrityError
from iceform.targets.architectures import architecture
from iceform.targets.enclosed import Ball, products, softmax_average
from iceform.targets.rounding import KernelRounding

READERS = ("q", "k", "v")


_UP = 1 + 2.0**-20  # far more than float64 does to radii
_DOUBLE = KernelRounding(torch.float64)
_CHUNK = 48  # edges at once


@dataclass(frozen=True)
class Edge:
    """From a writer (0 the embedding, then heads in order) to a reader; ``layer`` None: logits."""

    writer: int
    layer: int | None
    reader: int = 0
    head: int = 0


class FeedForward(NamedTuple):
    """relu(x up + bias) down: (width, n), (n,), (n, width)."""

    up: Tensor
    bias: Tensor
    down: Tensor


def _norm_of(held: Mapping[str, Tensor], epsilon: float, post: bool) -> StreamNorm:
    """The one norm of a network."""
    gains = {n: t for n, t in held.items() if n.endswith(".weight") and _is_norm(n)}
    gain = float(next(iter(gains.values()))[0])
    for name, tensor in gains.items():
        if bool((tensor != gain).any()) or held[name.replace("weight", "bias")].any():
            raise IntegrityError(f"{name} is not {gain:g} everywhere, or has a bias; all norms are")
    return StreamNorm(epsilon, gain, post)


def _is_norm(name: str) -> bool:
    return "LayerNorm" in name or ".ln_" in name


class StreamNorm(NamedTuple):
    """gain (x - mean)/sqrt(variance + epsilon), where a trained model has it."""

    epsilon: float
    gain: float
    post: bool  # whether the stream itself passes it

    @property
    def rooted(self) -> bool:
        """Whether it does more than take the mean away."""
        return self.gain != math.sqrt(self.epsilon)


@dataclass(frozen=True, eq=False)
class HeadsNetwork:
    """Weights by head: reads (blocks, 3, heads, size, width), writes (blocks, heads, size, width).

    Attributes
    ----------
    embedding, places, unembedding
        (words, width), (positions, width), (words, width).
    reads, biases, writes
        What a head's queries, keys and values read and add; what becomes of the values.
    norm
        All of them are one.
    causal
        Whether a token sees only those before it.
    forward
        Feed-forward maps, by the numbers of their blocks, whose heads are zero.
    """

    embedding: Tensor
    places: Tensor
    unembedding: Tensor
    reads: Tensor
    biases: Tensor
    writes: Tensor
    norm: StreamNorm
    causal: bool = True
    forward: Mapping[int, FeedForward] = field(default_factory=dict)

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> HeadsNetwork:
        """From a GPT2LMHeadModel or a BertForTokenClassification, in float64.

        Refused if it has biases that no edge carries, or norms that differ.
        """
        known = architecture(config["model_type"])
        assert known.ids is not None
        names, prefix = known.names, f"{known.ids.prefix}."
        held = {k: v.detach().double() for k, v in tensors.items()}
        words, places, scores = (
            held[prefix + names.words], held[prefix + names.places],
            held[f"{known.ids.scores}.weight"],
        )  # fmt: skip
        width = words.shape[1]
        heads = int(config["n_head" if known.causal else "num_attention_heads"])
        count = int(config["n_layer" if known.causal else "num_hidden_layers"])
        reads, biases, writes, forward = [], [], [], {}
        for number in range(count):
            at = prefix + names.layer.format(number)
            for name in (names.back, names.down):
                if held[f"{at}{name}.bias"].any():
                    raise IntegrityError(f"{at}{name}.bias is not zero, and no edge carries it")
            *maps, back = names.layer_maps(held, at).values()
            (up,) = names.up
            inner_up, down = (names.turned(held[f"{at}{name}.weight"]) for name in (up, names.down))
            reads.append(centred(torch.cat(maps).reshape(3, heads, -1, width)))  # by its norm
            inner = [held[f"{at}{name}.bias"] for name in names.maps]
            biases.append(torch.cat(inner).reshape(3, heads, -1))
            writes.append(back.T.reshape(heads, -1, width))
            maps_up = FeedForward(centred(inner_up).T, held[f"{at}{up}.bias"], down.T)
            forward[2 * number + 1] = maps_up
        epsilon = float(config["layer_norm_epsilon" if known.causal else "layer_norm_eps"])
        if any(bool(maps.down.any()) for maps in forward.values()):
            reads, biases, writes = (
                [part for each in parts for part in (each, torch.zeros_like(each))]
                for parts in (reads, biases, writes)
            )
        else:
            forward = {}
        return cls(
            words, places, centred(scores),
            torch.stack(reads), torch.stack(biases), torch.stack(writes),
            _norm_of(held, epsilon, not known.causal), known.causal, forward,
        )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        """The heads' weights by the names of a GPT2LMHeadModel."""
        out = {}
        for number in range(self.layers):
            at = f"transformer.h.{number}.attn."
            maps = self.reads[number].reshape(-1, self.reads.shape[-1])
            out[at + "c_attn.weight"] = maps.T.contiguous()
            out[at + "c_attn.bias"] = self.biases[number].reshape(-1)
            out[at + "c_proj.weight"] = self.writes[number].reshape(-1, self.writes.shape[-1])
        return out

    def check_exact(self, ids: Tensor) -> None:
        """Refuse what radii do not count: a norm that is taken for centring and does more."""
        pre = self.streams(self.start(ids))[0]
        largest, most = max(float(p.center.var(-1).max()) for p in pre), UNIT * self.norm.epsilon
        if not self.norm.rooted and not largest <= most:
            raise IntegrityError(
                f"a token has the variance {largest:.3g}, and a norm with epsilon "
                f"{self.norm.epsilon:.3g} only centres up to {most:.3g}; effects could not be "
                "enclosed"
            )

    @property
    def layers(self) -> int:
        """Blocks."""
        return len(self.reads)

    @property
    def heads(self) -> int:
        """Heads a layer."""
        return self.reads.shape[2]

    @cached_property
    def live(self) -> Tensor:
        """Heads that read values and write them, (blocks, heads); feed-forward maps too."""
        found = (self.writes != 0).any(-1).any(-1) & (self.reads[:, 2] != 0).any(-1).any(-1)
        for block, maps in self.forward.items():
            found[block, 0] = bool(maps.down.any())
        return found

    @cached_property
    def loose(self) -> Tensor:
        """Of rows that do not hold c and -c, the sum of sizes.

        Their mean is off by at most twice u times it; that moves what is read by as much, times the
        sum of a token, which is nearly 0 where norms are rooted.
        """
        half = self.reads.shape[-1] // 2
        apart = (self.reads[..., :half] + self.reads[..., half:] != 0).any(-1)
        return 2 * self.reads.abs().sum(-1) * apart

    @property
    def writers(self) -> int:
        """The embedding and all heads."""
        return 1 + self.layers * self.heads

    def is_live(self, writer: int) -> bool:
        """Whether a writer can write anything."""
        return writer == 0 or bool(self.live.reshape(-1)[writer - 1])

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge between what can write and what can read; dead heads have none."""
        found = []
        for layer in range(self.layers):
            writers = [u for u in range(1 + layer * self.heads) if self.is_live(u)]
            heads = self.live[layer].nonzero()[:, 0].tolist()
            kinds = range(1 if layer in self.forward else 3)
            found += [Edge(u, layer, x, h) for h in heads for x in kinds for u in writers]
        last = [u for u in range(self.writers) if self.is_live(u)]
        return (*found, *(Edge(u, None) for u in last))

    def name(self, layer: int, head: int, reader: int | None = None) -> str:
        """Of a writer, or of one of its readers, as MIB has it: ``a0.h1``, ``a0.h1<q>``, ``m1``."""
        if layer in self.forward:
            return f"m{layer // 2}"
        at = f"a{layer // 2 if self.forward else layer}.h{head}"
        return at if reader is None else f"{at}<{READERS[reader]}>"

    def edge_name(self, edge: Edge) -> str:
        """As MIB writes it: ``input->a0.h1<q>``, ``a0.h1->logits``."""
        writer = self.name(*divmod(edge.writer - 1, self.heads)) if edge.writer else "input"
        reader = "logits" if edge.layer is None else self.name(edge.layer, edge.head, edge.reader)
        return f"{writer}->{reader}"

    def rows(self, edge: Edge) -> Float[Tensor, "e d"]:
        """What the reader of an edge reads; not of logits."""
        assert edge.layer is not None
        if edge.layer in self.forward:
            return self.forward[edge.layer].up.T
        return self.reads[edge.layer, edge.reader, edge.head]

    def columns(self, writer: int) -> Float[Tensor, "e d"]:
        """What a writer can write."""
        layer, head = divmod(writer - 1, self.heads)
        if not writer:
            return self.embedding
        return self.forward[layer].down if layer in self.forward else self.writes[layer, head]

    # ------------------------------------------------------------------------- without radii

    def start(self, ids: Tensor) -> Float[Tensor, "b t d"]:
        """The stream that a prompt is."""
        return self.embedding[ids] + self.places[: ids.shape[-1]]

    def normed(self, x: Tensor) -> Tensor:
        """What readers have of a stream, but for its mean, which they do not read."""
        if not self.norm.rooted:
            return x
        root = (x.var(-1, correction=0, keepdim=True) + self.norm.epsilon).sqrt()
        return x * (self.norm.gain / root)

    def outputs(self, layer: int, x: Sequence[Tensor]) -> Tensor:
        """What heads write when queries, keys and values read x[0], x[1], x[2] (..., h, t, d)."""
        x = [self.normed(x[0])] * 3 if x[0] is x[1] is x[2] else [*map(self.normed, x)]
        if layer in self.forward:
            up, bias, down = self.forward[layer]
            own = (x[0][..., :1, :, :] @ up + bias).relu() @ down
            return torch.nn.functional.pad(own, (0, 0, 0, 0, 0, self.heads - 1))
        q, k, v = (
            torch.einsum("...htd,hed->...hte", x[i], self.reads[layer, i])
            + self.biases[layer, i, :, None]
            for i in range(3)
        )
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        weights = logits.masked_fill(~self._seen(logits), -math.inf).softmax(-1)
        return torch.einsum("...hte,hed->...htd", weights @ v, self.writes[layer])

    def _seen(self, logits: Tensor) -> Tensor:
        every = torch.ones(logits.shape[-2:], dtype=torch.bool)
        return every.tril() if self.causal else every

    def plain(self, stream: Tensor, start: int = 0) -> Tensor:
        """The last stream, differentiably."""
        for layer in range(start, self.layers):
            stream = stream + self.outputs(layer, (stream[..., None, :, :],) * 3).sum(-3)
        return stream

    def logits(self, ids: Tensor) -> Float[Tensor, "b t v"]:
        """As the stock network gives them, in float64."""
        return self.normed(self.plain(self.start(ids))) @ self.unembedding.T

    # ---------------------------------------------------------------------------- with radii

    def normed_ball(self, x: Ball) -> Ball:
        """As ``normed``."""
        if not self.norm.rooted:
            return x
        root = (x.center.var(-1, correction=0, keepdim=True) + self.norm.epsilon).sqrt()
        off = x.radius.square().mean(-1, keepdim=True).sqrt()
        # Rounding: of the mean u times the sum of sizes, of all else a unit an operation.
        own = (x.center.shape[-1] + 8) * root + x.most.sum(-1, keepdim=True)
        off = (off + UNIT * own) * _UP
        factor = self.norm.gain / root
        loose = off / (root - off).clamp_min(0) + 4 * UNIT
        return Ball(x.center * factor, (x.radius + x.most * loose) * factor * _UP)

    def head(self, layer: int, x: Sequence[Ball], heads: slice = slice(None)) -> Ball:
        """What heads write to every token, (..., h, t, d)."""
        return _map(self._carried(layer, x, heads), self._columns(layer, heads))

    def layer(self, layer: int, stream: Ball) -> Ball:
        """What all of them write together, (..., t, d)."""
        each = self._carried(layer, [_beside(stream)] * 3, slice(None))
        flat = Ball(*(t.transpose(-3, -2).flatten(-2) for t in each))
        return _map(flat, self._columns(layer, slice(None)).flatten(0, 1), self.heads)

    def _columns(self, layer: int, heads: slice) -> Tensor:
        if layer in self.forward:
            return self.forward[layer].down[None]
        return self.writes[layer, heads]

    def _carried(self, layer: int, x: Sequence[Ball], heads: slice) -> Ball:
        """What heads carry, before it is written: (..., h, t, e)."""
        x = [self.normed_ball(x[0])] * 3 if x[0] is x[1] is x[2] else [*map(self.normed_ball, x)]
        if layer in self.forward:
            return self._fed_forward(layer, x[0])
        q, k, v = (
            _read(
                x[i], self.reads[layer, i, heads], self.biases[layer, i, heads],
                self.loose[layer, i, heads], self._passed,
            )
            for i in range(3)
        )  # fmt: skip
        logits, tau = products(q, k, UNIT, q.center.shape[-1] + 3)
        return softmax_average(logits, tau, v, self._seen(logits), _DOUBLE, UNIT)

    @property
    def _passed(self) -> int:
        """Norms that the stream has passed, each a unit of everything that is read."""
        return 2 * self.layers + 1 if self.norm.post else 0

    def _fed_forward(self, layer: int, x: Ball) -> Ball:
        up, bias, _ = self.forward[layer]
        found = _map(Ball(*(t[..., :1, :, :] for t in x)), up)
        center = found.center + bias
        loose = 2 * UNIT * up.abs().sum(0) * _sum(x)[..., :1, :, :]
        radius = (found.radius + loose + 2 * UNIT * (center.abs() + bias.abs())) * _UP
        return Ball(center.relu(), radius)

    def start_ball(self, ids: Tensor) -> Ball:
        """The stream that a prompt is; words and positions that add up are rounded."""
        center = self.start(ids)
        both = (self.embedding[ids] != 0) & (self.places[: ids.shape[-1]] != 0)
        return Ball(center, UNIT * center.abs() * both)

    def measured(self, stream: Ball, rows: Tensor) -> Ball:
        """A metric at the last token: a row of the unembedding a pair."""
        last = self.normed_ball(Ball(stream.center[..., -1, :], stream.radius[..., -1, :]))
        center = (last.center * rows).sum(-1)
        units = rows.shape[-1] + 3 + self._passed
        size = units * (last.most * rows.abs()).sum(-1)
        if self.norm.rooted:  # rows that hold no c and -c are centred but for rounding
            size = size + 2 * rows.abs().sum(-1) * _sum(last)[..., 0]
        return Ball(center, ((last.radius * rows.abs()).sum(-1) + UNIT * size) * _UP)

    def streams(self, stream: Tensor | Ball) -> tuple[list[Ball], list[Ball]]:
        """The stream before every layer and after the last; what every writer added."""
        pre = [stream if isinstance(stream, Ball) else Ball(stream, torch.zeros_like(stream))]
        parts = [pre[0]]
        for layer in range(self.layers):
            each = self.head(layer, [_beside(pre[-1])] * 3)
            idle = self.heads - each.center.shape[-3]
            each = Ball(*(torch.nn.functional.pad(t, (0, 0, 0, 0, 0, idle)) for t in each))
            parts += [Ball(*(t[..., h, :, :] for t in each)) for h in range(self.heads)]
            pre.append(_added(pre[-1], Ball(each.center.sum(-3), _sum_radius(each))))
        return pre, parts

    def rest(self, stream: Ball, start: int) -> Ball:
        """The last stream, from one before the layer ``start``."""
        for layer in range(start, self.layers):
            stream = _added(stream, self.layer(layer, stream))
        return stream


def metric_rows(network: HeadsNetwork, words: Tensor) -> Float[Tensor, "b d"]:
    """The logit of the clean run's word less that of the corrupt one, as a row over the stream."""
    return network.unembedding[words[:, 0]] - network.unembedding[words[:, 1]]


class PatchedRuns:
    """A clean and a corrupt run of pairs of prompts, and every edge's effect on the metric.

    Parameters
    ----------
    network
        The weights.
    clean, corrupt
        Token ids (pairs, tokens).
    words
        For every pair the words (clean, corrupt) whose logits' difference is the metric.
    """

    def __init__(self, network: HeadsNetwork, clean: Tensor, corrupt: Tensor, words: Tensor):
        self.network, self.rows = network, metric_rows(network, words)
        self.pre, self.parts = network.streams(network.start_ball(clean))
        other, parts = network.streams(network.start_ball(corrupt))
        self.other = parts
        self.delta = [_difference(b, a) for a, b in zip(self.parts, parts, strict=True)]
        self.clean, self.corrupt = (network.measured(s[-1], self.rows) for s in (self.pre, other))
        self.gap = _difference(self.clean, self.corrupt)

    def share(self, value: Ball) -> Ball:
        """A metric less the clean one's, over the gap between the runs: -1 undoes the answer."""
        change, gap = _difference(value, self.clean), self.gap
        center = change.center / gap.center
        least = (gap.center.abs() - gap.radius).clamp_min(0.0)
        radius = (change.radius + center.abs() * gap.radius) / least + 4 * UNIT * center.abs()
        return Ball(center, radius * _UP)

    def edge_effects(self, edges: Sequence[Edge]) -> Iterator[tuple[Edge, Ball]]:
        """Of every edge that carries the corrupt run's value alone, per pair."""
        for (layer, reader, head), members in self._groups(edges).items():
            for start in range(0, len(members), _CHUNK):
                part = members[start : start + _CHUNK]
                found = self.share(self._patched(layer, reader, head, part))
                yield from ((e, Ball(*(t[i] for t in found))) for i, e in enumerate(part))

    def _patched(self, layer: int | None, reader: int, head: int, part: list[Edge]) -> Ball:
        delta = Ball(*(torch.stack([self.delta[e.writer][i] for e in part]) for i in range(2)))
        if layer is None:
            return self.network.measured(_added(self.pre[-1], delta), self.rows)
        here, one = _beside(self.pre[layer]), slice(head, head + 1)
        inputs = [here] * 3
        inputs[reader] = _added(here, _beside(delta))
        put = self.network.head(layer, inputs, one)
        out = Ball(*(t[..., 0, :, :] for t in put))
        own = self.parts[1 + layer * self.network.heads + head]
        return self.network.measured(
            self.network.rest(_added(self.pre[layer + 1], _difference(out, own)), layer + 1),
            self.rows,
        )

    def node_effects(self, instead: str) -> dict[int, Ball]:
        """Of every live head whose output is zero, its mean over the pairs, or the other run's."""
        found = {}
        for writer in range(1, self.network.writers):
            if not self.network.is_live(writer):
                continue
            own = self.parts[writer]
            if instead == "resample":
                value = self.other[writer]
            elif instead == "mean":
                value = Ball(*(t.mean(0, keepdim=True).expand_as(t) for t in own))
                value = replace_radius(value, UNIT * len(own.center) * own.most.mean(0))
            else:
                value = Ball(*(torch.zeros_like(t) for t in own))
            after = 1 + (writer - 1) // self.network.heads
            stream = _added(self.pre[after], _difference(value, own))
            last = self.network.rest(stream, after)
            found[writer] = self.share(self.network.measured(last, self.rows))
        return found

    def carrying(self) -> Iterator[tuple[Edge, bool]]:
        """Of every edge, whether its reader reads a difference between the runs of some pair."""
        delta = Ball(*(torch.stack([d[i] for d in self.delta]) for i in range(2)))
        last = Ball(*(t[..., -1:, :] for t in delta))
        for key, members in self._groups(self.network.edges).items():
            if key[0] is None:
                read = _map(last, self.rows[..., None])
            else:
                read = _map(delta, self.network.rows(members[0]).mT)
            differs = (read.center.abs() > read.radius).flatten(1).any(1).tolist()
            yield from ((e, differs[e.writer]) for e in members)

    def _groups(self, edges: Sequence[Edge]) -> dict[tuple[int | None, int, int], list[Edge]]:
        """By reader."""
        found: dict[tuple[int | None, int, int], list[Edge]] = {}
        for edge in edges:
            found.setdefault((edge.layer, edge.reader, edge.head), []).append(edge)
        return found


def replace_radius(ball: Ball, more: Tensor) -> Ball:
    """The same numbers, less surely known."""
    return Ball(ball.center, ball.radius + more)


def centred(rows: Tensor) -> Tensor:
    """Rows that read a token without its mean; those that hold c and -c stay what they are."""
    half = rows.shape[-1] // 2
    total = (rows[..., :half] + rows[..., half:]).sum(-1, keepdim=True)
    return rows - total / rows.shape[-1]


def _beside(ball: Ball) -> Ball:
    """The same for every head."""
    return Ball(*(t[..., None, :, :] for t in ball))


def _added(a: Ball, b: Ball) -> Ball:
    center = a.center + b.center
    return Ball(center, (a.radius + b.radius + UNIT * center.abs()) * _UP)


def _difference(a: Ball, b: Ball) -> Ball:
    return _added(a, Ball(-b.center, b.radius))


def _sum_radius(each: Ball) -> Tensor:
    return each.radius.sum(-3) + each.center.shape[-3] * UNIT * each.center.abs().sum(-3)


def _sum(x: Ball) -> Tensor:
    """Of a token's numbers, the most that it can be."""
    rounded = x.center.shape[-1] * UNIT * x.most.sum(-1, keepdim=True)
    return x.center.sum(-1, keepdim=True).abs() + x.radius.sum(-1, keepdim=True) + rounded


def _read(x: Ball, rows: Tensor, bias: Tensor, loose: Tensor, units: int) -> Ball:
    """(..., h, t, d) by (h, e, d)."""
    if x.center.shape[-3] == 1:  # all heads read one stream: one product
        flat = _map(Ball(*(t[..., 0, :, :] for t in x)), rows.flatten(0, 1).T, units)
        parts = (t.unflatten(-1, rows.shape[:2]).transpose(-3, -2) for t in flat)
        out = Ball(*parts)
    else:
        out = _map(x, rows.mT, units)
    out = replace_radius(out, UNIT * loose[:, None] * _sum(x))
    center = out.center + bias[:, None]
    return Ball(center, (out.radius + 2 * UNIT * (center.abs() + bias[:, None].abs())) * _UP)


def _map(x: Ball, matrix: Tensor, more: int = 0) -> Ball:
    """Rows times a matrix, whose zeros cost nothing; ``more`` units are of what came before."""
    size = matrix.abs()
    units = (matrix != 0).sum(-2, keepdim=True) + 3 + more
    radius = x.radius @ size + units * UNIT * (x.most @ size)
    return Ball(x.center @ matrix, radius * _UP)
