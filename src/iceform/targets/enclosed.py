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
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import EXP_UNDERFLOW, OUTWARD_MOST, UNIT
from iceform.heads import Design
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


class Stream(NamedTuple):
    """What the halves differ by, and a bound of ||c|| per token."""

    ball: Ball
    common: Tensor


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
        self.layers = [self._maps(n) for n in range(len(design.layers))] * design.repeats

    def _maps(self, number: int) -> dict[str, tuple[Tensor, Tensor]]:
        """A layer's maps on half of the stream and their biases, as the file holds them."""
        half, biases = self.design.hidden // 2, self.design.biases(number)
        stored = {k: m.to(self.a.dtype).double() for k, m in self.design.matrices(number).items()}
        return {
            k: (2 * stored[k][:, :half], biases[k].to(self.a.dtype).double()) for k in "qkv"
        } | {"o": (stored["o"][:half], biases["q"])}

    # ------------------------------------------------------------------------------------ running

    def run(
        self,
        prompt: Float[Tensor, "1 t h"],
        off: float,
        gone: Sequence[Collection[tuple[int, int]]],
    ) -> Iterator[Ball]:
        """The features of the last layer, for each of these sets of (layer, head) silenced.

        Repeats are counted as layers; ``off`` are units by which the prompt may be off. What runs
        have in common, up to the layer in which they differ, is run once.
        """
        half = prompt[0, :, : self.design.hidden // 2].double()
        ball = Ball(half, off * half.abs())
        start = Stream(ball, math.sqrt(2) * ball.radius.norm(dim=1) * OUTWARD_MOST)
        runs = {frozenset[tuple[int, int]](): self._normed(start) if self.known.norms else start}
        for number in range(len(self.layers)):
            here = {frozenset(one for one in each if one[0] <= number) for each in gone}
            before = {each: frozenset(one for one in each if one[0] < number) for each in here}
            carried = {each: self._carried(number, runs[each]) for each in set(before.values())}
            runs = {
                each: self._written(number, runs[same], carried[same], each - same)
                for each, same in before.items()
            }
        for each in gone:
            yield self._features(runs[frozenset(each)])

    def _features(self, stream: Stream) -> Ball:
        """The stream as it is read, after the last norm."""
        ball = (stream if self.known.norms else self._normed(stream)).ball
        count, rotation = self.design.features.total, self.design.rotation
        if rotation is None:
            return Ball(*(part[:, :count] for part in ball))
        turned = rotation.back(ball.center)
        mixed = rotation.back(torch.eye(ball.center.shape[1], dtype=torch.float64)).abs()
        units = (rotation.size + 3) * self.u
        radius = (ball.radius + units * ball.most) @ mixed * OUTWARD_MOST
        return Ball(turned[:, :count], radius[:, :count])

    def _normed(self, stream: Stream) -> Stream:
        """The identity, but for rounding: of the difference of the halves, and of their mean."""
        most, width = stream.ball.most, self.design.hidden
        off = NORM * self.u * (most + stream.common[:, None] * (most > 0))
        mean = (width + 2) * self.u * most.mean(1)
        added = math.sqrt(width) * (NORM * self.u * most.amax(1) + mean)
        ball = Ball(stream.ball.center, (stream.ball.radius + off) * OUTWARD_MOST)
        return Stream(ball, (stream.common + added) * OUTWARD_MOST)

    def _read(self, rows: Tensor, bias: Tensor, stream: Stream) -> Ball:
        """What rows read of a stream behind its norm."""
        (ball, common), count, size = stream, (rows != 0).sum(1), rows.abs()
        alone = (ball.most > 0).double() @ size.T
        beside = common[:, None] * torch.where(count > 1, size.sum(1), alone)
        held = ball.most @ size.T + beside
        rounded = self.u * ((NORM + 2 * count + 1) * held + (2 * count + 1) * bias.abs())
        radius = (ball.radius @ size.T + rounded) * OUTWARD_MOST
        return Ball(ball.center @ rows.T + bias, radius)

    def _carried(self, number: int, stream: Stream) -> Ball:
        """What all heads of a layer carry to all tokens, before the output map."""
        maps, size = self.layers[number], self.design.head_size
        parts = [self._read(*maps[name], stream) for name in "qkv"]
        out = Ball(*(torch.zeros_like(part) for part in parts[0]))
        heads = self.design.layers[number % len(self.design.layers)]
        for index, head in enumerate(heads):
            at = slice(index * size, (index + 1) * size)
            q, k, v = (Ball(p.center[:, at], p.radius[:, at]) for p in parts)
            out.center[:, at], out.radius[:, at] = self._head(q, k, v, len(head.logit))
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

    def _written(
        self, number: int, stream: Stream, carried: Ball, gone: Collection[tuple[int, int]]
    ) -> Stream:
        """The stream after a layer."""
        rows, size, ball = self.layers[number]["o"][0].clone(), self.design.head_size, stream.ball
        for _, head in gone:
            rows[:, head * size : (head + 1) * size] = 0.0
        held = carried.most @ rows.abs().T
        units = (rows != 0).sum(1) + 2
        off = self.u * (units * held + 2 * (ball.most + held) * (units > 2))
        radius = (ball.radius + carried.radius @ rows.abs().T + off) * OUTWARD_MOST
        grown = (1 + self.u) * stream.common + math.sqrt(2) * off.norm(dim=1)
        out = Stream(Ball(ball.center + carried.center @ rows.T, radius), grown * OUTWARD_MOST)
        for _ in range(self.known.norms):
            out = self._normed(out)
        return out


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
