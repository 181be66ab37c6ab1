r"""A GPT-2 of heads alone, run in float64 with a radius beside every number, edges patched at will.

The feed-forward maps of a case are zero, and its norms have an epsilon so large that all they do
is take a token's mean away: what is read is linear in the stream, and the stream is the sum of what
the embedding and the heads wrote. So every edge, from a writer to one head's queries, keys or
values, can carry another run's value alone.

**Radii.** They enclose what real arithmetic would have given on the weights of the file; u is the
unit roundoff of float64. A row of k numbers is off by (k + 2) u times the sum of absolute products,
and by what its inputs are off. With logits off by :math:`\tau_j` the softmax average o of values v
is off by at most

.. math:: e^{\max \tau} \sum_j p_j (e^{\tau_j} - 1) |v_j - o| + e^{2 \max \tau} \sum_j p_j r(v_j)
    + \gamma \sum_j p_j |v_j|,

since :math:`\sum_j p_j (v_j - o) = 0`. A norm with the epsilon e shrinks a token of variance s by
less than s/(2 e), which is below u here (``check_exact``), one more unit of every read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import UNIT
from iceform.errors import IntegrityError
from iceform.targets.enclosed import Ball

READERS = ("q", "k", "v")
_UP = 1 + 2.0**-20  # far more than float64 does to radii
_LEAST = 2.0**-690  # above every weight that is taken for 0
_CHUNK = 48  # edges at once


@dataclass(frozen=True)
class Edge:
    """From a writer (0 the embedding, then heads in order) to a reader; ``layer`` None: logits."""

    writer: int
    layer: int | None
    reader: int = 0
    head: int = 0


@dataclass(frozen=True, eq=False)
class HeadsNetwork:
    """Weights by head: reads (layers, 3, heads, size, width), writes (layers, heads, size, width).

    Attributes
    ----------
    embedding, places, unembedding
        (words, width), (positions, width), (words, width).
    reads, biases, writes
        What a head's queries, keys and values read and add; what becomes of the values.
    """

    embedding: Tensor
    places: Tensor
    unembedding: Tensor
    reads: Tensor
    biases: Tensor
    writes: Tensor

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], heads: int) -> HeadsNetwork:
        """From the tensors of a GPT2LMHeadModel, in float64; refused if it has more than heads."""
        held = {k.removeprefix("transformer."): v.detach().double() for k, v in tensors.items()}
        layers = 1 + max(int(k.split(".")[1]) for k in held if k.startswith("h."))
        width = held["wte.weight"].shape[1]
        reads, biases, writes = [], [], []
        for number in range(layers):
            at = f"h.{number}."
            for name in ("mlp.c_proj.weight", "mlp.c_proj.bias", "attn.c_proj.bias"):
                if held[at + name].any():
                    raise IntegrityError(f"{at}{name} is not zero: a case is made of heads alone")
            maps = held[at + "attn.c_attn.weight"].T.reshape(3, heads, -1, width)
            reads.append(centred(maps))  # by the norm before it
            biases.append(held[at + "attn.c_attn.bias"].reshape(3, heads, -1))
            writes.append(held[at + "attn.c_proj.weight"].reshape(heads, -1, width))
        return cls(
            held["wte.weight"], held["wpe.weight"], centred(held["lm_head.weight"]),
            torch.stack(reads), torch.stack(biases), torch.stack(writes),
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

    def check_exact(self, epsilon: float, ids: Tensor) -> None:
        """Refuse what radii do not count: a norm that does more than centre, a rounded embedding.

        The norm's epsilon must swallow every variance; words and positions must not add up in any
        place, so that their sum is exact.
        """
        both = (self.embedding != 0).any(0) & (self.places != 0).any(0)
        if bool(both.any()):
            raise IntegrityError(f"words and positions both hold place {int(both.nonzero()[0])}")
        pre = self.streams(self.start(ids))[0]
        largest = max(float(p.center.var(-1).max()) for p in pre)
        if not largest <= UNIT * epsilon:
            raise IntegrityError(
                f"a token has the variance {largest:.3g}, and a norm with epsilon {epsilon:.3g} "
                f"only centres up to {UNIT * epsilon:.3g}; effects could not be enclosed"
            )

    @property
    def layers(self) -> int:
        """Layers."""
        return len(self.reads)

    @property
    def heads(self) -> int:
        """Heads a layer."""
        return self.reads.shape[2]

    @cached_property
    def live(self) -> Tensor:
        """Heads that read values and write them, (layers, heads)."""
        return (self.writes != 0).any(-1).any(-1) & (self.reads[:, 2] != 0).any(-1).any(-1)

    @cached_property
    def loose(self) -> Tensor:
        """Of rows that do not hold c and -c, the sum of sizes: centring is off by u times it."""
        half = self.reads.shape[-1] // 2
        apart = (self.reads[..., :half] + self.reads[..., half:] != 0).any(-1)
        return self.reads.abs().sum(-1) * apart

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
            found += [Edge(u, layer, x, h) for h in heads for x in range(3) for u in writers]
        last = [u for u in range(self.writers) if self.is_live(u)]
        return (*found, *(Edge(u, None) for u in last))

    # ------------------------------------------------------------------------- without radii

    def start(self, ids: Tensor) -> Float[Tensor, "b t d"]:
        """The stream that a prompt is."""
        return self.embedding[ids] + self.places[: ids.shape[-1]]

    def attended(self, layer: int, x: Sequence[Tensor], heads: slice = slice(None)) -> Tensor:
        """What heads carry when queries, keys and values read x[0], x[1], x[2] (..., h, t, d)."""
        q, k, v = (
            torch.einsum("...htd,hed->...hte", x[i], self.reads[layer, i, heads])
            + self.biases[layer, i, heads, None]
            for i in range(3)
        )
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        weights: Tensor = logits.masked_fill(~seen, -math.inf).softmax(-1)
        return weights @ v

    def plain(self, stream: Tensor, start: int = 0) -> Tensor:
        """The last stream, differentiably."""
        for layer in range(start, self.layers):
            wide = stream[..., None, :, :].expand(*stream.shape[:-2], self.heads, -1, -1)
            carried = self.attended(layer, (wide,) * 3)
            stream = stream + torch.einsum("...hte,hed->...td", carried, self.writes[layer])
        return stream

    def logits(self, ids: Tensor) -> Float[Tensor, "b t v"]:
        """As the stock network gives them, in float64."""
        return self.plain(self.start(ids)) @ self.unembedding.T

    # ---------------------------------------------------------------------------- with radii

    def head(self, layer: int, x: Sequence[Ball], heads: slice = slice(None)) -> Ball:
        """What heads write to every token, (..., h, t, d)."""
        q, k, v = (
            _read(
                x[i],
                self.reads[layer, i, heads],
                self.biases[layer, i, heads],
                self.loose[layer, i, heads],
            )
            for i in range(3)
        )
        root, size = math.sqrt(q.center.shape[-1]), q.center.shape[-1]
        logits = q.center @ k.center.mT / root
        tau = (
            q.center.abs() @ k.radius.mT + q.radius @ k.most.mT
            + (size + 3) * UNIT * (q.most @ k.most.mT)
        ) / root  # fmt: skip
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~seen, -math.inf)
        below = (logits.amax(-1, keepdim=True) - logits).masked_fill(~seen, 0.0)
        p = logits.softmax(-1)
        tau = (tau + UNIT * (2 * below + 8)).masked_fill(~seen, 0.0)
        some = below < 2 * tau.amax(-1, keepdim=True) + 700 * math.log(2)
        tau = tau * (some & seen)
        out = p @ v.center
        apart = (v.center[..., None, :, :] - out[..., None, :]).abs()
        moved = ((p * torch.expm1(tau))[..., None] * apart).sum(-2)
        grown = tau.amax(-1, keepdim=True).exp()
        rounded = (3 * p.shape[-1] + 8) * UNIT * (p @ v.most) + _LEAST * v.most.sum(
            -2, keepdim=True
        )
        radius = grown * moved + grown**2 * (p @ v.radius + rounded)
        return _map(Ball(out, radius * _UP), self.writes[layer, heads])

    def streams(self, stream: Tensor) -> tuple[list[Ball], list[Ball]]:
        """The stream before every layer and after the last; what every writer added."""
        pre = [Ball(stream, torch.zeros_like(stream))]
        parts = [pre[0]]
        for layer in range(self.layers):
            each = self.head(layer, [_beside(pre[-1])] * 3)
            parts += [Ball(each.center[..., h, :, :], each.radius[..., h, :, :])
                      for h in range(self.heads)]  # fmt: skip
            pre.append(_added(pre[-1], Ball(each.center.sum(-3), _sum_radius(each))))
        return pre, parts

    def rest(self, stream: Ball, start: int) -> Ball:
        """The last stream, from one before the layer ``start``."""
        for layer in range(start, self.layers):
            each = self.head(layer, [_beside(stream)] * 3)
            stream = _added(stream, Ball(each.center.sum(-3), _sum_radius(each)))
        return stream


def metric_rows(network: HeadsNetwork, words: Tensor) -> Float[Tensor, "b d"]:
    """The logit of the clean run's word less that of the corrupt one, as a row over the stream."""
    return network.unembedding[words[:, 0]] - network.unembedding[words[:, 1]]


def measured(stream: Ball, rows: Tensor) -> Ball:
    """The metric at the last token."""
    last = Ball(stream.center[..., -1, :], stream.radius[..., -1, :])
    center = (last.center * rows).sum(-1)
    size = (last.most * rows.abs()).sum(-1)
    radius = (last.radius * rows.abs()).sum(-1) + (rows.shape[-1] + 3) * UNIT * size
    return Ball(center, radius * _UP)


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
        self.pre, self.parts = network.streams(network.start(clean))
        other, parts = network.streams(network.start(corrupt))
        self.other = parts
        self.delta = [_difference(b, a) for a, b in zip(self.parts, parts, strict=True)]
        self.clean, self.corrupt = measured(self.pre[-1], self.rows), measured(other[-1], self.rows)
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
        groups: dict[tuple[int | None, int, int], list[Edge]] = {}
        for edge in edges:
            groups.setdefault((edge.layer, edge.reader, edge.head), []).append(edge)
        for (layer, reader, head), members in groups.items():
            for start in range(0, len(members), _CHUNK):
                part = members[start : start + _CHUNK]
                found = self.share(self._patched(layer, reader, head, part))
                yield from ((e, Ball(*(t[i] for t in found))) for i, e in enumerate(part))

    def _patched(self, layer: int | None, reader: int, head: int, part: list[Edge]) -> Ball:
        delta = Ball(*(torch.stack([self.delta[e.writer][i] for e in part]) for i in range(2)))
        if layer is None:
            return measured(_added(self.pre[-1], delta), self.rows)
        here, one = _beside(self.pre[layer]), slice(head, head + 1)
        inputs = [here] * 3
        inputs[reader] = _added(here, _beside(delta))
        put = self.network.head(layer, inputs, one)
        out = Ball(*(t[..., 0, :, :] for t in put))
        own = self.parts[1 + layer * self.network.heads + head]
        return measured(
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
            found[writer] = self.share(measured(self.network.rest(stream, after), self.rows))
        return found

    def carried(self, edge: Edge) -> Ball:
        """What the edge's reader reads of the difference between the runs, the largest per pair."""
        delta = self.delta[edge.writer]
        if edge.layer is None:
            change = measured(delta, self.rows)
            return Ball(change.center.abs(), change.radius)
        rows = self.network.reads[edge.layer, edge.reader, edge.head]
        read = _map(delta, rows.mT)
        flat = Ball(*(t.flatten(-2) for t in read))
        at = (flat.center.abs() - flat.radius).argmax(-1, keepdim=True)
        return Ball(flat.center.abs().gather(-1, at)[..., 0], flat.radius.gather(-1, at)[..., 0])


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


def _read(x: Ball, rows: Tensor, bias: Tensor, loose: Tensor) -> Ball:
    """(..., h, t, d) by (h, e, d)."""
    out = _map(x, rows.mT)
    out = replace_radius(out, UNIT * loose[:, None] * x.most.sum(-1, keepdim=True))
    center = out.center + bias[:, None]
    return Ball(center, (out.radius + 2 * UNIT * (center.abs() + bias[:, None].abs())) * _UP)


def _map(x: Ball, matrix: Tensor) -> Ball:
    """Rows times a matrix, whose zeros cost nothing."""
    size = matrix.abs()
    units = (matrix != 0).sum(-2, keepdim=True) + 3
    radius = x.radius @ size + units * UNIT * (x.most @ size)
    return Ball(x.center @ matrix, radius * _UP)
