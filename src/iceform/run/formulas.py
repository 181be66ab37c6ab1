r"""What layers compute, as their designs say it, for weights that are the designs'.

A construction that writes weights knows what they compute: which rows meet which samples, in which
table the products are looked up, which features a head attends to. It says so in one of these, and
a fused run computes by it where the digest of the weights is the one that the design implies
(:class:`~iceform.run.FusedBackend`). What a prompt holds is looked at every time: tokens that are
not what a construction writes are left to the layer itself.

**Rows** (thm:attn_sim_attn). Sample i meets row j of a weight matrix:
:math:`A(\theta_j \cdot x_i)`, A the table's look-up.

**Ramps** (def:input_attn). Token t carries a sample, its position as a unit vector, and
:math:`\rho_t \theta` for all rows theta. That is bit for bit the ramp that the construction writes,
with theta taken from the token whose factor is 1 or 1/2, or it is no table.

**Stored patterns** (def:hopfield). A state (z, 1) is looked up at :math:`a \cdot z + b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from iceform.heads import SoftmaxAttention
from iceform.run import primitives
from iceform.run.primitives import is_transformed
from iceform.tables import Interpolant
from iceform.validation import untraced


@dataclass(frozen=True, eq=False)
class RowLookUps:
    """A(theta . x) for every sample and row, rows of all matrices side by side.

    Attributes
    ----------
    x, samples
        Where a sample's features are, and how many samples there are.
    rows
        Where each matrix is, and how many rows it has.
    table
        Where products are looked up.
    """

    x: slice
    samples: int
    rows: tuple[tuple[slice, int], ...]
    table: Interpolant

    def __call__(self, layer: nn.Module, tokens: Tensor, backend: str) -> Tensor:
        x = tokens[..., : self.samples, self.x]
        weights = [tokens[..., :count, at] for at, count in self.rows]
        return torch.cat(primitives.project(x, weights, self.table, backend), -1)


@dataclass(frozen=True, eq=False)
class RampLookUps:
    """The same of rows along a ramp, and the sum over tables.

    Attributes
    ----------
    x, samples
        As for :class:`RowLookUps`.
    rows
        Where all rows are, one after the other, each as wide as a sample.
    position
        Where a token's position is.
    ramp
        rho, shape (tokens,); 0 beyond the table.
    tables
        Where products are looked up.
    """

    x: slice
    samples: int
    rows: slice
    position: slice
    ramp: Tensor
    tables: tuple[Interpolant, ...]

    def __call__(self, layer: nn.Module, tokens: Tensor, backend: str) -> Tensor:
        if not self._is_ramp(tokens):
            return as_it_stands(layer, tokens)
        x = tokens[..., : self.samples, self.x]
        theta = self._theta(tokens).unflatten(-1, (-1, self.x.stop - self.x.start))
        if len(self.tables) == 1:
            return primitives.project(x, [theta], self.tables[0], backend)[0]
        z = x @ theta.mT
        # z may lie anywhere, and windows are for the range of a table.
        first, *rest = (primitives.plain_interpolate(z, table) for table in self.tables)
        return sum(rest, start=first)

    @untraced
    def _is_ramp(self, tokens: Tensor) -> bool:
        """Whether positions are unit vectors and all rows lie on the ramp.

        Inside torch.func nothing can be looked at, and tokens are attended to one by one.
        """
        if is_transformed(tokens):
            return False
        tokens = tokens.detach()
        position = tokens[..., self.position]
        if not bool((position == torch.eye(position.shape[-1]).to(position)).all()):
            return False
        ramp = self._theta(tokens)[..., None, :] * self.ramp.to(tokens)[:, None]
        return torch.equal(tokens[..., self.rows], ramp)

    def _theta(self, tokens: Tensor) -> Tensor:
        return tokens[..., self._unit, self.rows] / float(self.ramp[self._unit])

    @cached_property
    def _unit(self) -> int:
        """The first token right of the middle, whose factor is 1 or 1/2."""
        return int((self.ramp > 0).nonzero()[0])


@dataclass(frozen=True, eq=False)
class StoredLookUp:
    """A(a.z + b) of every state (z, 1), one number for each table; ``line`` is (a, b)."""

    line: Tensor
    tables: tuple[Interpolant, ...]

    def __call__(self, layer: nn.Module, tokens: Tensor, backend: str) -> Tensor:
        if not _end_with_one(tokens):
            return as_it_stands(layer, tokens)
        z = tokens @ self.line.to(tokens)
        return torch.stack([primitives.interpolate(z, it, backend) for it in self.tables], -1)


@untraced
def _end_with_one(tokens: Tensor) -> bool:
    return not is_transformed(tokens) and bool((tokens[..., -1] == 1).all())


@dataclass(frozen=True, eq=False)
class AttendedFeatures:
    """Heads that take features as they are: where key, query and value of each of them are."""

    heads: tuple[tuple[slice, slice, slice], ...]

    def __call__(self, layer: nn.Module, tokens: Tensor, backend: str) -> Tensor:
        parts = [[tokens[..., at] for at in head] for head in self.heads]
        looked = [primitives.attention(q, k, v) for k, q, v in parts]
        return looked[0] if len(looked) == 1 else torch.stack(looked).sum(0)


def as_it_stands(layer: nn.Module, tokens: Tensor) -> Tensor:
    """What a layer's own matrices make of tokens; on a GPU no scores of attention are held."""
    where = next(layer.buffers()).device
    layer = layer if where == tokens.device else layer.to(tokens.device)
    if type(layer) is not SoftmaxAttention:
        out: Tensor = layer(tokens)
        return out
    asked = (layer.w_o != 0).any(-1).any(0).nonzero()[:, 0]
    weights = (layer.w_q, layer.w_k, layer.w_v, layer.w_o)
    each = (w.expand(len(layer.labels), -1, -1) for w in weights)
    heads = [
        o[asked].mT @ primitives.attention(
            tokens[..., asked, :] @ q.mT, tokens @ k.mT, tokens @ v.mT
        )
        for q, k, v, o in zip(*each, strict=True)
    ]  # fmt: skip
    out = torch.stack(heads).sum(0)
    return tokens + out if layer.residual else out
