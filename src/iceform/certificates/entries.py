r"""Entries of a prompt's layers, run again through the literal matrices.

Every layer is checked by itself: given what it read, some entries of what it wrote are computed by
W_K, W_Q, W_V and W_O. Such an entry is :math:`\sum_h o_h \sum_k p_k v_k`. With every logit off by
at most :math:`\tau_k/2` in either evaluation, the two can differ by

.. math:: \sum_h |o_h| \frac{\sum_k p_k (e^{\tau_k} - 1) |v_k - A|}{\sum_k p_k e^{-\tau_k}},

the inequality that rounding is certified by. In units of u, :math:`\tau_k` is made of

* :math:`2 (m + 8) t_k`, for logits of m terms whose absolute values add up to :math:`t_k`, or for
  the same error of a query z that is looked up by its distances (the frozen matrices pick and
  scale, so these are the products of keys and queries);
* :math:`16 g_k`, g the gap to the largest logit: squared distances and shifted logits round
  relative to their size, which is g and at most c/4 more, c the sharpness of the table;
* :math:`16 + 12 c + 6 \cdot 32`: exponentials, and the steps of a window of 32 tokens either side.

Sums over n keys add :math:`4 (2 n + m + 16) u (\sum_k p_k |v_k| + |A|)` and, where lines are summed
relative to the nearest token and the middle one, eight units of those; a window leaves out what the
backend declares.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Entry, FrozenNetwork, HopfieldLayer, SoftmaxAttention
from iceform.backends import Rounding
from iceform.validation import unit_roundoff

__all__ = ["Compared", "compare_entries"]

_RATE = 2e9  # multiplications a second that a literal pass may be counted on for
_ENTRIES = 8  # of a layer, at most
_WIDEST = 32  # tokens either side of a window, at most


@dataclass(frozen=True)
class Compared:
    """Entries run again, and of the one nearest to what is allowed, difference and allowance."""

    rows: int = 0
    difference: float = 0.0
    allowed: float = 0.0
    note: str = ""

    def plus(self, other: Compared) -> Compared:
        """Both together."""
        worse = other.rows and (
            not other.difference * self.allowed <= self.difference * other.allowed
            or not self.allowed
        )
        worst = other if worse else self
        rows, note = self.rows + other.rows, self.note or other.note
        return Compared(rows, worst.difference, worst.allowed, note)


def compare_entries(
    network: FrozenNetwork,
    tokens: Tensor,
    written: Sequence[Tensor],
    rounding: Rounding,
    draw: random.Random,
    until: float,
) -> Compared:
    """Entries of every layer, drawn at random, as long as time is left."""
    found, read = Compared(), tokens
    for layer, out in zip(network.layers, written, strict=True):
        if isinstance(layer, SoftmaxAttention | HopfieldLayer) and out.numel():
            found = found.plus(_compare(network, layer, read, out, rounding, draw, until))
        read = out
    return found


def _compare(
    network: FrozenNetwork, layer: SoftmaxAttention | HopfieldLayer, read: Tensor, out: Tensor,
    rounding: Rounding, draw: random.Random, until: float,
) -> Compared:  # fmt: skip
    found = Compared()
    read, out = read.detach(), out.detach()
    layer = layer if layer.w_k.device == read.device else layer.to(read.device)
    for _ in range(_ENTRIES):
        place = [draw.randrange(size) for size in out.shape]
        *batch, token, feature = place
        one = read[tuple(batch)]
        needed = layer.entry_work(one, token, feature) / _RATE
        left = until - time.perf_counter()
        if needed > left:
            if not found.rows:
                why = f"a literal row takes about {needed:.2g} s, {max(left, 0.0):.2g} s were left"
                return Compared(note=why)
            break
        entry = layer.entry(one, token, feature)
        off = float((entry.value - out[tuple(place)]).abs())
        found = found.plus(Compared(1, off, _allowed(network, entry, read, rounding)))
    return found


def _allowed(network: FrozenNetwork, entry: Entry, read: Tensor, rounding: Rounding) -> float:
    unit, tables = unit_roundoff(read.dtype), network.tables
    scores, terms, values, reads = (
        t.double() for t in (entry.scores, entry.terms, entry.values, entry.reads)
    )
    sharpness = max((table.sharpness for table in tables), default=0.0)
    gaps = scores.amax(-1, keepdim=True) - scores
    tau = unit * (2 * (entry.depth + 8) * terms + 16 * gaps + 16 + 12 * sharpness + 6 * _WIDEST)
    weights, sizes = torch.softmax(scores, -1), values.abs()[..., None, :]
    looked = (weights @ values[..., None])[..., 0]
    apart = (values[..., None, :] - looked[..., None]).abs()
    moved = (weights * tau.expm1() * apart).sum(-1) / (weights * (-tau).exp()).sum(-1)
    near = sizes.masked_fill(gaps > 4 * sharpness + 1, 0.0).amax(-1)
    middle = max((abs(float(t.values[t.tokens // 2])) for t in tables), default=0.0)
    carried = (weights * sizes).sum(-1) + looked.abs()
    sums = 4 * (2 * scores.shape[-1] + entry.depth + 16) * unit * carried
    sums = sums + 8 * unit * (near + middle)
    left_out = max((rounding.omitted(read.dtype, table) for table in tables), default=0.0)
    return float((reads.abs() * (moved + sums + left_out)).sum())
