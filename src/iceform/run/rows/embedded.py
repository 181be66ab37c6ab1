r"""Layers whose grid is the prompt's own tokens (def:input_attn), read from matrices and tokens.

Token t carries a sample, a ramp of weights :math:`\rho_t \theta`, and its position as a unit
vector. With Q and K what W_Q and W_K make of sample and weights, and q and :math:`k_t` what they
make of positions, head h meets token t with the logit

.. math:: \rho_t \big( x^\top Q^\top K \theta + q^\top K \theta \big) + q^\top k_t,

and its values are read from positions: a look-up of the line in brackets with slopes
:math:`\lambda \rho_t`, as in :mod:`iceform.run.rows.lifted`. The ramp is the prompt's, so
every prompt is looked at: its positions must be unit vectors, and its weights
:math:`\rho_t \theta` bit for bit with :math:`\rho_t = t - (N-1)/2` and theta taken from the token
with :math:`\rho` 1 or 1/2. Tokens that are anything else hold no table, and are attended to one by
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.heads import Features, SoftmaxAttention
from iceform.run import primitives
from iceform.run.primitives import is_transformed
from iceform.run.reading import read_table, refuse, require_zero
from iceform.run.rows.heads import HeadLayer, Readout
from iceform.run.rows.lifted import LiftedForm, columns
from iceform.tables import Interpolant
from iceform.validation import untraced

_FEWEST = 3  # tokens of a table: fewer have no ramp to read theta from


@dataclass(frozen=True, eq=False)
class _EmbeddedHead:
    """One head: the features that it reads as weights, what it looks up, and where it writes."""

    weights: Tensor | slice
    form: LiftedForm
    table: Interpolant
    output: int


@dataclass(frozen=True, eq=False)
class Embedded:
    """The layer as look-ups.

    Attributes
    ----------
    features
        Those of a token that queries read.
    position
        Where its position is.
    heads
        In order.
    ramp
        rho, shape (tokens,); 0 beyond the table.
    at
        The first token right of the table's middle.
    outputs
        How many features the layer writes.
    readout
        W_O.
    plain
        The same layer on any tokens.
    together
        Heads that look up the same form in the same table.
    """

    features: Tensor | slice
    position: slice
    heads: tuple[_EmbeddedHead, ...]
    ramp: Tensor
    at: int
    outputs: int
    readout: Readout
    plain: HeadLayer
    together: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, layer: SoftmaxAttention, features: Features, written: Sequence[Interpolant]
    ) -> Embedded:
        """Recognise the layer, or refuse it."""
        if layer.residual:
            refuse("it has a residual stream")
        position, readout = features["position"], Readout.of(layer.w_o)
        ramp = _ramp(layer.w_o.shape[1], [table.tokens for table in written])
        x = columns(_free(layer.w_q, position).flatten(0, 1))
        known: dict[bytes, Interpolant] = {}
        heads = [
            _read_head(head.w_k, head.w_q, head.w_v, position, x, readout, ramp, written, known)
            for head in layer.heads
        ]
        outputs, at = layer.w_v.shape[1], int((ramp > 0).nonzero()[0])
        plain, groups = HeadLayer.of(layer), _grouped(heads)
        return cls(x, position, tuple(heads), ramp, at, outputs, readout, plain, groups)

    def run(self, tokens: Tensor, name: str) -> Tensor:
        """What the layer makes of the tokens."""
        if not self._is_table(tokens):
            return self.plain.run(tokens, name)
        return self.readout(self._look_up(tokens, name))

    @untraced
    def _is_table(self, tokens: Tensor) -> bool:
        """Whether positions are unit vectors and every head's weights lie on the ramp.

        Inside torch.func nothing can be looked at, and tokens are attended to one by one.
        """
        if is_transformed(tokens):
            return False
        tokens, position = tokens.detach(), tokens[..., self.position].detach()
        if not bool((position == torch.eye(position.shape[-1]).to(position)).all()):
            return False
        ramp = self.ramp.to(tokens)[:, None]
        held = ((tokens[..., h.weights], self._weights(tokens, h)) for h in self.heads)
        return all(torch.equal(a, theta[..., None, :] * ramp) for a, theta in held)

    def _weights(self, tokens: Tensor, head: _EmbeddedHead) -> Tensor:
        """Theta, from the token whose factor is 1 or 1/2; shape (*batch, features)."""
        return tokens[..., self.at, head.weights] / float(self.ramp[self.at])

    def _look_up(self, tokens: Tensor, name: str) -> Tensor:
        """Every head's answer where it belongs."""
        x = tokens[..., self.readout.asked, self.features]
        weights = [self._weights(tokens, head) for head in self.heads]
        if self._alike:
            return primitives.project(x, [torch.stack(weights, -2)], self.heads[0].table, name)[0]
        out = x.new_zeros(*x.shape[:-1], self.outputs)
        for heads in self.together:
            first = self.heads[heads[0]]
            theta = torch.stack([weights[i] for i in heads], -2)
            z, added = x @ first.form.weights(theta).mT, first.form.added(theta)
            z = z if added is None else z + added[..., None, :]
            # z may lie anywhere, and windows are for the range of a table.
            looked = primitives.plain_interpolate(z, first.table)
            places = torch.tensor([self.heads[i].output for i in heads], device=x.device)
            out = out.index_add(-1, places, looked)
        return out

    @property
    def _alike(self) -> bool:
        """One table that was written, and every head has its own place: all rows at once."""
        first = self.heads[0].table
        return (
            math.isfinite(first.error)
            and len(self.heads) == self.outputs
            and all(
                h.table is first and h.output == i and h.form.matrix is None and h.form.line is None
                for i, h in enumerate(self.heads)
            )
        )


def _grouped(heads: Sequence[_EmbeddedHead]) -> tuple[tuple[int, ...], ...]:
    """Heads whose weights are of one shape, and met as they are in one table, together."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for i, head in enumerate(heads):
        plain = head.form.matrix is None and head.form.line is None
        key = (id(head.table), _width(head.weights), -1 if plain else i)
        groups.setdefault(key, []).append(i)
    return tuple(map(tuple, groups.values()))


def _width(picked: Tensor | slice) -> int:
    return picked.stop - picked.start if isinstance(picked, slice) else len(picked)


def _ramp(tokens: int, sizes: Sequence[int]) -> Tensor:
    """Counted from the middle of the table, which is as long as the one that was written."""
    grid = min(tokens, max(sizes, default=tokens))
    if grid < _FEWEST:
        refuse(f"a table of {grid} tokens has no ramp to read")
    ramp = torch.zeros(tokens, dtype=torch.float64)
    ramp[:grid] = torch.arange(grid, dtype=torch.float64) - 0.5 * (grid - 1)
    return ramp


def _free(weight: Tensor, position: slice) -> Tensor:
    """The weights of everything but positions, zero there."""
    free = weight.detach().double().cpu().clone()
    free[..., position] = 0.0
    return free


def _read_head(
    w_k: Tensor, w_q: Tensor, w_v: Tensor, position: slice, x: Tensor | slice, readout: Readout,
    ramp: Tensor, written: Sequence[Interpolant], known: dict[bytes, Interpolant],
) -> _EmbeddedHead:  # fmt: skip
    dtype = w_k.dtype
    keys, queries, values = (_free(w, position) for w in (w_k, w_q, w_v))
    key_at, query_at, value_at = (w.detach().double().cpu()[:, position] for w in (w_k, w_q, w_v))
    require_zero("what values read beside positions", values)
    ours = query_at[:, readout.rows]
    require_zero("queries that differ from each other", ours - ours[:, :1])
    require_zero("a bias that depends on the sample", queries.mT @ key_at)
    used = (value_at != 0).any(1).nonzero()[:, 0]
    if len(used) != 1:
        refuse(f"a head writes {len(used)} features, not one")
    output, theta = int(used[0]), columns(keys)
    form = LiftedForm.of(queries[:, x].mT @ keys[:, theta], ours[:, 0] @ keys[:, theta])
    biases = key_at.mT @ ours[:, 0]
    held = torch.cat([form.scale * ramp, biases, value_at[output]])
    key = held.numpy().tobytes()
    if key not in known:
        slopes, biases, looked = held.chunk(3)
        known[key] = read_table(slopes, biases, looked, written, dtype)
    return _EmbeddedHead(theta, form, known[key], output)
