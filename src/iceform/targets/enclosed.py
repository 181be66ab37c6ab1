r"""What a stock network computes, enclosed: every number with a radius, heads taken out at will.

The layers of a design are run in float64 on the prompt as it is. Beside every number goes a radius
that holds what the stock network's floating point may have done, in its dtype, in any order of
summation, and what float64 did here. u below is the sum of both unit roundoffs.

* *Stream.* (g, -g) with an error is d + c in the first half and -d + c in the second. Rows read
  the difference d; c, which rounding leaves, is subtracted with it, so it costs u |c|. A norm
  takes the mean of c away, which does not make it longer; its length is bounded by what was added.
* *Reads.* A row with k features is off by (2 k + 1) units of sum |row| (|g| + |c|), by NORM units
  of the same for the norm before it, and by |row| times the radii. A row of one feature that is 0
  exactly reads 0 exactly: +c - c.
* *Logits.* |q| r_k + r_q |k| + r_q r_k, and their own sum.
* *Softmax.* With logits off by tau_j, the rounding of s - max and of the exponential included,
  weights are off by factors e^{+-tau_j}; as sum p_j (v_j - o) = 0,

  .. math:: |o' - o| \le e^{\max \tau} \sum_j p_j (e^{\tau_j} - 1) |v_j - o|
      + e^{2 \max \tau} \sum_j p_j r(v_j) + \gamma \sum_j p_j |v_j| .

* *Writes.* As reads: every entry of the stream is a sum of what all heads carry.

Radii are of worst cases, one number at a time, so over many layers they grow faster than errors do.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import EXP_UNDERFLOW, OUTWARD_MOST, UNIT
from iceform.heads import Design, Head
from iceform.targets.architectures import STILL, Architecture
from iceform.targets.rounding import NORM, KernelRounding


class Ball(NamedTuple):
    """Numbers and radii."""

    center: Tensor
    radius: Tensor

    @property
    def most(self) -> Tensor:
        """The largest absolute values."""
        return self.center.abs() + self.radius


class Prompted(NamedTuple):
    """A stream to start from, and the units by which its numbers may be off."""

    stream: Float[Tensor, "1 t h"]
    off: float = 0.0


@dataclass(frozen=True)
class _Layer:
    """A layer's maps on half of the stream, as the file holds them."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    biases: dict[str, Tensor]
    heads: tuple[Head, ...]


class EnclosedNetwork:
    """The layers of a design in an architecture and a dtype.

    Parameters
    ----------
    design
        Features and layers.
    known
        The architecture: whether it is causal, and where its norms are.
    a
        The dtype and the attention.
    """

    def __init__(self, design: Design, known: Architecture, a: KernelRounding) -> None:
        self.design, self.known, self.a = design, known, a
        self.u = a.u + UNIT
        layers = [self._layer(number) for number in range(len(design.layers))]
        self.layers = layers * design.repeats

    def _layer(self, number: int) -> _Layer:
        maps, biases = self.design.matrices(number), self.design.biases(number)
        half = self.design.hidden // 2
        dtype = self.a.dtype
        stored = {name: m.to(dtype).double() for name, m in maps.items()}
        reads = {name: 2 * stored[name][:, :half] for name in "qkv"}
        held = {name: b.to(dtype).double() for name, b in biases.items()}
        return _Layer(**reads, o=stored["o"][:half], biases=held, heads=self.design.layers[number])

    # ------------------------------------------------------------------------------------ running

    def start(self, prompt: Prompted) -> tuple[Ball, Tensor]:
        """The stream that a prompt is, and a bound of ||c|| per token."""
        half = prompt.stream[0, :, : self.design.hidden // 2].double()
        stream = Ball(half, prompt.off * half.abs())
        common = math.sqrt(2) * stream.radius.norm(dim=1) * OUTWARD_MOST
        return self._normed(stream, common) if self.known.norms else (stream, common)

    def run(self, prompt: Prompted, without: Collection[tuple[int, int]] = ()) -> Ball:
        """The features of the last layer, (layer, head) silenced; repeats are counted as layers."""
        stream, common = self.start(prompt)
        for number, layer in enumerate(self.layers):
            gone = {head for at, head in without if at == number}
            carried = self.carried(layer, stream, common)
            stream, common = self.written(layer, stream, common, carried, gone)
        return self.features(stream, common)

    def without_each(self, prompt: Prompted) -> tuple[Ball, list[Ball]]:
        """The features of the last layer, and those with each head of that layer silenced."""
        stream, common = self.start(prompt)
        for layer in self.layers[:-1]:
            carried = self.carried(layer, stream, common)
            stream, common = self.written(layer, stream, common, carried, ())
        last = self.layers[-1]
        carried = self.carried(last, stream, common)
        whole, *each = (
            self.features(*self.written(last, stream, common, carried, gone))
            for gone in ((), *((head,) for head in range(self.design.heads)))
        )
        return whole, each

    def features(self, stream: Ball, common: Tensor) -> Ball:
        """The stream as it is read, after the last norm."""
        if not self.known.norms:
            stream, _ = self._normed(stream, common)
        count, rotation = self.design.features.total, self.design.rotation
        if rotation is None:
            return Ball(*(part[:, :count] for part in stream))
        turned = rotation.back(stream.center)
        mixed = rotation.back(torch.eye(stream.center.shape[1], dtype=torch.float64)).abs()
        units = (rotation.size + 3) * self.u
        radius = (stream.radius + units * stream.most) @ mixed * OUTWARD_MOST
        return Ball(turned[:, :count], radius[:, :count])

    def _normed(self, stream: Ball, common: Tensor) -> tuple[Ball, Tensor]:
        """The identity, but for rounding: of the difference of the halves, and of their mean."""
        width = self.design.hidden
        off = NORM * self.u * (stream.most + common[:, None] * (stream.most > 0))
        mean = (width + 2) * self.u * stream.most.mean(1)
        added = math.sqrt(width) * (NORM * self.u * stream.most.amax(1) + mean)
        return Ball(stream.center, (stream.radius + off) * OUTWARD_MOST), (
            common + added
        ) * OUTWARD_MOST

    def _read(self, rows: Tensor, bias: Tensor, stream: Ball, common: Tensor) -> Ball:
        count = (rows != 0).sum(1)
        size = rows.abs()
        alone = stream.most > 0
        beside = torch.where(
            (count > 1)[None], common[:, None] * size.sum(1)[None],
            common[:, None] * (alone.double() @ size.T),
        )  # fmt: skip
        held = stream.most @ size.T + beside
        radius = stream.radius @ size.T
        radius = radius + NORM * self.u * held
        radius = radius + (2 * count + 1) * self.u * (held + bias.abs())
        return Ball(stream.center @ rows.T + bias, radius * OUTWARD_MOST)

    def carried(self, layer: _Layer, stream: Ball, common: Tensor) -> Ball:
        """What all heads carry to all tokens, head by head, before the output map."""
        parts = [
            self._read(rows, layer.biases[name], stream, common)
            for name, rows in (("q", layer.q), ("k", layer.k), ("v", layer.v))
        ]
        size = self.design.head_size
        out = Ball(*(torch.zeros_like(part) for part in parts[0]))
        for number, head in enumerate(layer.heads):
            at = slice(number * size, (number + 1) * size)
            q, k, v = (Ball(p.center[:, at], p.radius[:, at]) for p in parts)
            found = self._head(q, k, v, len(head.logit))
            out.center[:, at], out.radius[:, at] = found
        return out

    def _head(self, q: Ball, k: Ball, v: Ball, terms: int) -> Ball:
        logits, tau = products(q, k, self.u, terms + 2 + self.design.scaling_units)
        # A Llama turns queries and keys by angles of position / STILL.
        turned = q.most.sum(1, keepdim=True) * k.most.sum(1)
        tau = tau + len(logits) / STILL * turned / math.sqrt(self.design.head_size)
        seen = torch.ones_like(logits, dtype=torch.bool)
        if self.known.causal:
            seen = seen.tril()
        return softmax_average(logits, tau, v, seen, self.a, self.u)

    def written(
        self, layer: _Layer, stream: Ball, common: Tensor, carried: Ball, gone: Collection[int]
    ) -> tuple[Ball, Tensor]:
        """The stream after the layer."""
        size = self.design.head_size
        kept = torch.ones(carried.center.shape[1], dtype=torch.float64)
        for head in gone:
            kept[head * size : (head + 1) * size] = 0.0
        rows = layer.o * kept
        added = carried.center @ rows.T
        held = carried.most @ rows.abs().T
        units = (rows != 0).sum(1) + 2
        off = self.u * (units * held + 2 * (stream.most + held) * (units > 2))
        radius = stream.radius + carried.radius @ rows.abs().T + off
        out = Ball(stream.center + added, radius * OUTWARD_MOST)
        grown = common + math.sqrt(2) * off.norm(dim=1) + self.u * common
        for _ in range(self.known.norms):
            out, grown = self._normed(out, grown)
        return out, grown * OUTWARD_MOST


def products(q: Ball, k: Ball, u: float, units: float) -> tuple[Tensor, Tensor]:
    """Logits of queries (..., t, e) and keys, and what they are off by; own sums round by units."""
    root = math.sqrt(q.center.shape[-1])
    off = q.center.abs() @ k.radius.mT + q.radius @ k.most.mT + units * u * (q.most @ k.most.mT)
    return q.center @ k.center.mT / root, off / root


def softmax_average(
    logits: Tensor, tau: Tensor, v: Ball, seen: Tensor, a: KernelRounding, u: float
) -> Ball:
    """The averages of values (..., t, e) whose logits are off by ``tau``, among those ``seen``."""
    logits = logits.masked_fill(~seen, -math.inf)
    below = (logits.amax(-1, keepdim=True) - logits).masked_fill(~seen, 0.0)
    p = (-below).exp() * seen
    p = p / p.sum(-1, keepdim=True)
    tau = tau + u * (2 * below + a.exp + 4)
    # Of a weight that is 0 for sure it does not matter by how much its logit is off.
    some = seen & (below < 2 * tau.amax(-1, keepdim=True) + EXP_UNDERFLOW)
    tau = torch.where(some, tau, 0.0)
    grown, weights, out = tau.amax(-1, keepdim=True).exp(), p * torch.expm1(tau), p @ v.center
    moved = torch.zeros_like(out)
    for j in (v.most.flatten(0, -2).amax(0) > 0).nonzero()[:, 0].tolist():
        apart = (v.center[..., None, :, j] - out[..., :, j, None]).abs()
        moved[..., j] = (weights * apart).sum(-1)
    rounded = (3 * p.shape[-1] + 8) * u * (p @ v.most)
    largest = v.most.amax(-2, keepdim=True)
    tiny = torch.finfo(a.dtype).tiny
    least = (some & (p < tiny)).sum(-1, keepdim=True) * tiny * largest
    radius = grown * moved + grown**2 * (p @ v.radius + rounded)
    # Logits of which nothing is known leave a mean of values, rounded, that may be any of them.
    return Ball(out, (torch.fmin(radius, 3 * largest) + least) * OUTWARD_MOST)
