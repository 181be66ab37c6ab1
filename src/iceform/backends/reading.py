r"""What a fused pass takes out of the look-up layer's matrices.

With :math:`K = W_K A`, :math:`Q = W_Q A`, :math:`V = W_V A` for the embedding's A, and the
positions' part of keys and queries, a query with coefficients w meets the token k of its sample
with the logit

.. math:: s_k \big( w^\top F x + (f_w \cdot w - \lambda)(y + m) + f_x \cdot x \big) + g b_k
   + \text{positions},

F, f, lambda and g being blocks of Q'K. Whatever they are, that is a look-up of
:math:`z = (w^\top F x + \dots)/\lambda - y` in the table with slopes :math:`\lambda s_k` and biases
:math:`g b_k`, as long as the positions' part is 0 for a query's own tokens and below -M/2 for all
others. Where something else stands in the matrices the network is not one of these, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Embed, FrozenNetwork, HopfieldLayer, SoftmaxAttention
from iceform.attention.lookups import HIDDEN, MARGIN, LookUps
from iceform.backends.recognition import (
    Memory,
    holding,
    refuse,
    require_finite,
    require_zero,
    unless_identity,
    unless_zero,
)
from iceform.backends.tables import rebuild
from iceform.interpolation import Interpolant
from iceform.validation import unit_roundoff

__all__ = ["Reading", "read_layer", "read_table"]

_readings: Memory[Reading] = Memory()


@dataclass(frozen=True, eq=False)
class Reading:
    """The look-up layer as a formula; what is None is the identity, or zero.

    Attributes
    ----------
    form
        F / lambda, shape (d, d).
    label, shift
        f_w / lambda and f_x / lambda, shape (d,).
    scale, bias
        lambda and g, of look-ups.
    free, free_shift, free_bias
        F, f_x and g of free queries, whose logits are q'F key + f_x.key + g b.
    values
        V, shape (d + 1, d + 1).
    readout, free_readout
        What W_O makes of the queries' rows, shape (samples, samples).
    """

    form: Tensor | None
    label: Tensor | None
    shift: Tensor | None
    scale: float
    bias: float
    free: Tensor | None
    free_shift: Tensor | None
    free_bias: float
    values: Tensor | None
    readout: Tensor | None
    free_readout: Tensor | None

    def residuals(self, prompt: LookUps) -> Tensor:
        """Z of every sample."""
        x, y, w = prompt.x.to(prompt.w.dtype), prompt.y, prompt.w
        if self.form is not None:
            w = _padded(w, len(self.form)) @ self.form.to(w)
        if self.shift is not None:
            w = _padded(w, len(self.shift)) + self.shift.to(w)
        z = (_padded(x, w.shape[-1]) @ w[..., None])[..., 0] - y
        if self.label is not None:
            factor = _padded(prompt.w, len(self.label)) @ self.label.to(w)
            z = z + factor[..., None] * (y + prompt.table.grid.center)
        return z

    @property
    def plain(self) -> bool:
        """Whether z = w.x - y, and rows are read as they are."""
        parts = (self.form, self.label, self.shift, self.values, self.readout)
        return all(part is None for part in parts)


def _padded(t: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t


def read_layer(network: FrozenNetwork, digest: str | None) -> Reading:
    """The reading of a look-up layer with this digest; None reads it anew."""
    return _readings.get(digest, lambda: _read(holding(network, digest)))


def _read(network: FrozenNetwork) -> Reading:
    embed, w_k, w_q, w_v, w_o, stored = _parts(network)
    at = network.features
    a, positions = (t.detach().double().cpu() for t in (embed.features, embed.positions))
    met = (w_q != 0).any(1)  # rows of a key that queries meet; others may hold values
    w_k, w_q = w_k[met], w_q[met]
    keys, queries, values = w_k @ a, w_q @ a, w_v @ a
    key_at, query_at = positions @ w_k.mT, positions @ w_q.mT
    m = w_o.shape[1] // 2
    asked = slice(len(positions) - 2 * m, None)
    x, y, b, v, w = (at[n] for n in ("key_x", "key_y", "key_bias", "value", "w"))
    require_zero("the query of what is not w", queries[:, : w.start])
    require_zero("a key made of values or of w", keys[:, v.start :])
    require_zero("a value made of keys or of w", values[:, : v.start], values[:, w])
    require_zero("the value of a position", positions @ w_v.mT)
    meets = queries[:, w].mT @ keys  # w' meets raw features
    require_zero("a bias that depends on w", meets[:, b])
    _check_positions(query_at[asked], key_at, queries[:, w], m, stored)
    of_block, free = (_same(query_at[asked][part] @ keys) for part in (slice(0, m), slice(m, None)))
    scale = -float(of_block[y])
    if not scale > 0:
        refuse(f"labels enter z with the factor {-scale:.3g}, which is not negative")
    require_zero("what W_O reads of grid tokens", w_o[: len(positions) - 2 * m])
    last = w_o[asked]
    require_zero("what W_O mixes of look-ups and free queries", last[:m, m:], last[m:, :m])
    return Reading(
        form=unless_identity(meets[:, x] / scale),
        label=unless_zero(meets[:, y][:, 0] / scale),
        shift=unless_zero(of_block[x] / scale),
        scale=scale,
        bias=float(of_block[b]),
        free=unless_identity(meets[:, x]),
        free_shift=unless_zero(free[x]),
        free_bias=float(free[b]),
        values=unless_identity(values[:, v]),
        readout=unless_identity(last[:m, :m]),
        free_readout=unless_identity(last[m:, m:]),
    )


_Matrices = tuple[Embed, Tensor, Tensor, Tensor, Tensor, int]


def _parts(network: FrozenNetwork) -> _Matrices:
    """The embedding, W_K, W_Q, W_V, W_O, and how many tokens are keys."""
    if len(network.layers) != 2 or "key_x" not in network.features:
        refuse(f"its layers are {', '.join(type(x).__name__ for x in network.layers) or 'none'}")
    require_finite(network)
    embed, layer = network.layers
    if type(embed) is Embed and type(layer) is SoftmaxAttention and len(layer.labels) == 1:
        if layer.residual:
            refuse("it has a residual stream")
        weights = (layer.w_k, layer.w_q, layer.w_v, layer.w_o)
        w_k, w_q, w_v, w_o = (w[0].detach().double().cpu() for w in weights)
        return embed, w_k, w_q, w_v, w_o, len(embed.places)
    if type(embed) is Embed and type(layer) is HopfieldLayer and layer.stored is not None:
        w_k, w_q, w_v = (w.detach().double().cpu() for w in (layer.w_k, layer.w_q, layer.w_v))
        states = len(embed.places) - layer.stored
        w_o = torch.zeros(len(embed.places), states, dtype=torch.float64)
        w_o[layer.stored :] = torch.eye(states, dtype=torch.float64)
        return embed, float(layer.beta) * w_k, w_q, w_v @ w_k, w_o, layer.stored
    refuse(f"its layers are {type(embed).__name__} and {type(layer).__name__}")


def _check_positions(
    asked: Tensor, key_at: Tensor, coefficients: Tensor, m: int, stored: int
) -> None:
    """A query sees its own tokens at 0, a free one all, and others not at all."""
    grid = len(key_at) - 2 * m
    require_zero("a position that depends on w", key_at[:grid] @ coefficients)
    meets = asked @ key_at.mT
    blocks = torch.arange(grid) // (grid // m)
    own = blocks == torch.arange(m)[:, None]
    require_zero("a query's own positions", meets[:m, :grid][own], meets[m:, :grid])
    others = meets[:m, :grid][~own]
    if others.numel() and not float(others.max()) <= -MARGIN / 2:
        refuse(f"the margin between blocks is {-float(others.max()):.3g}")
    if stored > grid and not float(meets[:, grid:].max()) <= -HIDDEN / 2:
        refuse(f"the margin of query tokens is {-float(meets[:, grid:].max()):.3g}")


def _same(rows: Tensor) -> Tensor:
    require_zero("queries that differ from each other", rows - rows[:1])
    return rows[0]


def read_table(prompt: LookUps, reading: Reading) -> Interpolant:
    """The table that the tokens hold, as the network's keys see it.

    Where it is bit for bit the one that the prompt was written from, it is that one.
    """
    slopes = prompt.slopes if reading.scale == 1 else reading.scale * prompt.slopes
    biases = prompt.biases if reading.bias == 1 else reading.bias * prompt.biases
    table = prompt.table
    found = (
        (slopes, table.keys.slopes),
        (biases, table.keys.biases),
        (prompt.values, table.values),
    )
    if all(a is b or torch.equal(a, b) for a, b in found):
        return table
    center, unit = table.grid.center, unit_roundoff(torch.float64)
    return rebuild(slopes, biases, prompt.values, unit, center)
