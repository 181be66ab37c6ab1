r"""The layer of thm:attn_sim_attn, read from its matrices.

Head h of group g reads the tokens :math:`A_0 Z R_0 + A_g u_h s^\top + C`, where
:math:`u_h = Z e_{r(h)}` is the token that it picks. With :math:`Q = W_Q A_0`,
:math:`K_g = W_K A_g`, and q and :math:`k_t` what the constant adds to queries and to key t, the
logit of the query at x and key t is

.. math:: s_t \big( x^\top Q^\top K_g u_h + q^\top K_g u_h \big) + q^\top k_t,

a look-up of the line in brackets, as long as keys read no sample, queries no picked token, values
neither, and :math:`Q^\top k_t = 0`. Whatever stands in the blocks is taken as it is:
:math:`Q^\top K_g = \lambda F` with lambda its largest entry, so slopes are :math:`\lambda s_t`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.heads import LiftedAttention
from iceform.run import primitives
from iceform.run.reading import read_table, refuse, require_zero, unless_identity, unless_zero
from iceform.run.rows.heads import Readout
from iceform.tables import Interpolant


def columns(matrix: Tensor) -> Tensor | slice:
    """The columns that are not zero; as a slice where they are neighbours."""
    found = (matrix != 0).any(0).nonzero()[:, 0]
    if not len(found):
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1]) + 1
    return slice(first, last) if last - first == len(found) else found


@dataclass(frozen=True, eq=False)
class LiftedForm:
    r"""z = x' F u + f.u, and the factor lambda of the slopes.

    Attributes
    ----------
    scale
        lambda.
    matrix, line
        F and f, None for the identity and for zero.
    """

    scale: float
    matrix: Tensor | None
    line: Tensor | None

    @classmethod
    def of(cls, products: Tensor, line: Tensor) -> LiftedForm:
        """From Q'K and q'K."""
        if not products.numel() or not bool((products != 0).any()):
            refuse("no query meets a key")
        at = int(products.abs().argmax())
        scale = float(products.flatten()[at])
        return cls(scale, unless_identity(products / scale), unless_zero(line / scale))

    def weights(self, u: Tensor) -> Tensor:
        """F u: what a sample is multiplied with."""
        return u if self.matrix is None else u @ self.matrix.to(u).mT

    def added(self, u: Tensor) -> Tensor | None:
        """f.u of every row."""
        return None if self.line is None else u @ self.line.to(u)


@dataclass(frozen=True, eq=False)
class Group:
    """Heads with one map.

    Attributes
    ----------
    count
        How many heads.
    picks
        (heads, tokens); None for the first tokens, one each.
    features
        Those of a picked token that are read.
    form, table
        What is looked up, and where.
    """

    count: int
    picks: Tensor | None
    features: Tensor | slice
    form: LiftedForm
    table: Interpolant

    def picked(self, tokens: Tensor) -> Tensor:
        """u, shape (*batch, heads, features)."""
        rows = (
            tokens[..., : self.count, :] if self.picks is None else self.picks.to(tokens) @ tokens
        )
        return rows[..., self.features]


@dataclass(frozen=True, eq=False)
class Lifted:
    """The layer as look-ups.

    Attributes
    ----------
    samples
        R_0 at the queries that are asked, (tokens, asked); None for the first tokens.
    features
        Those of a sample that are read.
    groups
        Heads by their maps.
    outputs
        (heads, out_features): where a head's answer goes; None for its own place.
    readout
        W_O.
    """

    samples: Tensor | None
    features: Tensor | slice
    groups: tuple[Group, ...]
    outputs: Tensor | None
    readout: Readout

    @classmethod
    def of(cls, layer: LiftedAttention, written: Sequence[Interpolant]) -> Lifted:
        """Recognise the layer, or refuse it."""
        dtype = layer.ramp.dtype
        w_k, w_q = (_shared(n, w) for n, w in (("W_K", layer.w_k), ("W_Q", layer.w_q)))
        shared, ramp, constant = map(_plain, (layer.shared_map, layer.ramp, layer.constant))
        groups = _plain(layer.group_maps)
        read, outputs = _values(layer, len(constant))
        require_zero("what values read of the prompt", shared[read], groups[:, read])
        require_zero("what keys read of samples", w_k @ shared)
        require_zero("what queries read of weights", w_q @ groups)
        readout = Readout.of(layer.w_o)
        asked = readout.rows
        ours, key_at = constant[asked] @ w_q.mT, constant @ w_k.mT
        require_zero("queries that differ from each other", ours - ours[:1])
        queries = w_q @ shared
        require_zero("a bias that depends on the sample", key_at @ queries)
        biases, values = key_at @ ours[0], constant[:, read]
        x = columns(queries)
        found = []
        for picks, a in zip(
            torch.split(_plain(layer.picks), list(layer.group_sizes)), groups, strict=True
        ):
            keys = w_k @ a
            u = columns(keys)
            form = LiftedForm.of(queries[:, x].mT @ keys[:, u], ours[0] @ keys[:, u])
            table = read_table(form.scale * ramp, biases, values, written, dtype)
            found.append(Group(len(picks), unless_identity(picks), u, form, table))
        samples = _plain(layer.shared_tokens)[:, asked]
        return cls(unless_identity(samples), x, tuple(found), outputs, readout)

    @property
    def plain(self) -> Interpolant | None:
        """The one table where every row theta of the prompt gives A(theta.x) in its own place."""
        first = self.groups[0].table
        maps = (self.samples, self.outputs, self.readout.matrix)
        heads = all(
            g.table is first and g.picks is g.form.matrix is g.form.line is None
            for g in self.groups
        )
        written = math.isfinite(first.error)
        return first if heads and written and all(m is None for m in maps) else None

    def run(self, tokens: Tensor, name: str) -> Tensor:
        """What the layer makes of the tokens."""
        x = self._samples(tokens)
        looked = torch.cat(self._look_up(x, tokens, name), -1)
        if self.outputs is not None:
            looked = looked @ self.outputs.to(looked)
        return self.readout(looked)

    def _samples(self, tokens: Tensor) -> Tensor:
        if self.samples is None:
            return tokens[..., : len(self.readout.rows), self.features]
        return self.samples.to(tokens).mT @ tokens[..., self.features]

    def _look_up(self, x: Tensor, tokens: Tensor, name: str) -> list[Tensor]:
        picked = [group.picked(tokens) for group in self.groups]
        first = self.groups[0].table
        plain = all(g.table is first and g.form.line is None for g in self.groups)
        if plain and math.isfinite(first.error):
            weights = [g.form.weights(u) for g, u in zip(self.groups, picked, strict=True)]
            return primitives.project(x, weights, first, name)
        out = []
        for group, u in zip(self.groups, picked, strict=True):
            z, added = x @ group.form.weights(u).mT, group.form.added(u)
            z = z if added is None else z + added[..., None, :]
            # z may lie anywhere, and windows are for the range of a table that was written.
            out.append(primitives.plain_interpolate(z, group.table))
        return out


def _plain(t: Tensor) -> Tensor:
    return t.detach().double().cpu()


def _shared(name: str, weight: Tensor) -> Tensor:
    first = _plain(weight[0])
    if not bool((_plain(weight) == first).all()):
        refuse(f"its heads differ in {name}")
    return first


def _values(layer: LiftedAttention, count: int) -> tuple[int, Tensor | None]:
    """The feature that values are read from, and where every head writes its own."""
    used = (layer.w_v != 0).any(0).any(0).nonzero()[:, 0]
    if len(used) != 1:
        refuse(f"values are read from {len(used)} features, not from one")
    read = int(used[0])
    outputs = _plain(layer.w_v[:, :, read]).expand(len(layer.labels), -1)
    return read, unless_identity(outputs)
