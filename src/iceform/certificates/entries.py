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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Entry, FrozenNetwork, HopfieldLayer, SoftmaxAttention
from iceform.backends import Rounding
from iceform.interpolation import Interpolant
from iceform.validation import unit_roundoff

__all__ = ["Asked", "Compared", "compare_entries", "run_again"]

_NOTHING = 746.0  # e^-746 is 0 in float64, and sooner in others
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


Attending = SoftmaxAttention | HopfieldLayer


@dataclass(frozen=True, eq=False)
class Asked:
    """One entry of what a layer is said to have made of one prompt.

    Attributes
    ----------
    layer, tokens
        The layer, and what it read, shape (tokens, features).
    token, feature
        Which entry.
    got
        What came back.
    tables
        Look-up tables in the weights or in the prompt.
    """

    layer: Attending
    tokens: Tensor
    token: int
    feature: int
    got: Tensor
    tables: Sequence[Interpolant] = ()

    @property
    def seconds(self) -> float:
        """What running it again may take."""
        return self.layer.entry_work(self.tokens, self.token, self.feature) / _RATE

    def compare(self, rounding: Rounding) -> Compared:
        """Run it through the literal matrices; ``rounding`` is that of what came back."""
        entry = self.layer.entry(self.tokens, self.token, self.feature)
        allowed = _allowed(entry, self.tokens.dtype, rounding, self.tables)
        carried = entry.value.new_zeros(())
        if getattr(self.layer, "residual", False):  # what it read is added, and rounded once
            carried = self.tokens[self.token, self.feature]
            size = float(carried.abs() + entry.value.abs())
            allowed += 4 * unit_roundoff(self.tokens.dtype) * size
        off = float((carried + entry.value - self.got).abs())
        return Compared(1, off, allowed)


def run_again(asked: Iterable[Asked], rounding: Rounding, until: float) -> Compared:
    """Compare one after the other, as long as time is left."""
    found = Compared()
    for one in asked:
        left = until - time.perf_counter()
        if one.seconds > left:
            why = f"a literal row takes about {one.seconds:.2g} s, {max(left, 0.0):.2g} s were left"
            return found if found.rows else Compared(note=why)
        found = found.plus(one.compare(rounding))
    return found


def compare_entries(
    network: FrozenNetwork,
    tokens: Tensor,
    written: Sequence[Tensor],
    rounding: Rounding,
    draw: random.Random,
    until: float,
) -> Compared:
    """Entries of every layer, drawn at random, as long as time is left."""
    found, read = Compared(), tokens.detach()
    for layer, output in zip(network.layers, written, strict=True):
        out = output.detach()
        if isinstance(layer, SoftmaxAttention | HopfieldLayer) and out.numel():
            here = layer if layer.w_k.device == read.device else layer.to(read.device)
            places = ([draw.randrange(n) for n in out.shape] for _ in range(_ENTRIES))
            asked = (_at(here, read, out, place, network.tables) for place in places)
            found = found.plus(run_again(asked, rounding, until))
        read = out
    return found


def _at(
    layer: Attending, read: Tensor, out: Tensor, place: list[int], tables: Sequence[Interpolant]
) -> Asked:
    *batch, token, feature = place
    return Asked(layer, read[tuple(batch)], token, feature, out[tuple(place)], tables)


def _settled(gaps: Tensor, tau: Tensor) -> Tensor:
    """Tokens whose weight no rounding changes: hidden ones have 0, and one left alone has 1."""
    top = tau.gather(-1, gaps.argmin(-1, keepdim=True))
    hidden = gaps - tau - top > _NOTHING
    alone = (~hidden).sum(-1, keepdim=True) == 1
    return hidden | alone


def _allowed(
    entry: Entry, dtype: torch.dtype, rounding: Rounding, tables: Sequence[Interpolant]
) -> float:
    unit = unit_roundoff(dtype)
    scores, terms, values, reads = (
        t.double() for t in (entry.scores, entry.terms, entry.values, entry.reads)
    )
    sharpness = max((table.sharpness for table in tables), default=0.0)
    gaps = scores.amax(-1, keepdim=True) - scores
    tau = unit * (2 * (entry.depth + 8) * terms + 16 * gaps + 16 + 12 * sharpness + 6 * _WIDEST)
    tau = tau.masked_fill(_settled(gaps, tau), 0.0)
    weights, sizes = torch.softmax(scores, -1), values.abs()[..., None, :]
    looked = (weights @ values[..., None])[..., 0]
    apart = (values[..., None, :] - looked[..., None]).abs()
    moved = (weights * tau.expm1() * apart).sum(-1) / (weights * (-tau).exp()).sum(-1)
    near = sizes.masked_fill(gaps > 4 * sharpness + 1, 0.0).amax(-1)
    middle = max((abs(float(t.values[t.tokens // 2])) for t in tables), default=0.0)
    carried = (weights * sizes).sum(-1) + looked.abs()
    sums = 4 * (2 * scores.shape[-1] + entry.depth + 16) * unit * carried
    sums = sums + 8 * unit * (near + middle)
    left_out = max((rounding.omitted(dtype, table) for table in tables), default=0.0)
    return float((reads.abs() * (moved + sums + left_out)).sum())
