r"""A Hopfield layer whose patterns are part of it, read from its matrices.

A state r meets pattern y_t with the logit :math:`\beta\, r^\top W_Q^\top W_K y_t`. With
:math:`S = W_Q^\top W_K`, that is a look-up where only one feature l of the patterns meets what
varies in a state, :math:`r^\top S_l`, and the constant one meets the rest: slopes are
:math:`\beta l_t` and biases :math:`\beta` times what the one meets. Values are
:math:`W_V W_K y_t`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.heads import Features, HopfieldLayer
from iceform.run import primitives
from iceform.run.primitives import is_transformed
from iceform.run.reading import read_table, refuse
from iceform.tables import Interpolant
from iceform.validation import untraced


@dataclass(frozen=True, eq=False)
class StoredLayer:
    """The layer as a look-up of a.z + b.

    Attributes
    ----------
    line
        (a, b), the constant one last.
    table
        Where it is looked up.
    queries, keys, values
        beta W_Q, W_K Y and W_V W_K Y, for states whose last entry is not one.
    """

    line: Tensor
    table: Interpolant
    queries: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def of(
        cls, layer: HopfieldLayer, features: Features, written: Sequence[Interpolant]
    ) -> StoredLayer:
        """Recognise the layer, or refuse it."""
        if layer.patterns is None or layer.w_v.shape[0] != 1:
            refuse("its patterns are in the prompt, or it retrieves more than one number")
        if list(features)[-1:] != ["one"]:
            refuse(f"a state ends with {list(features)[-1]!r}, not with the constant one")
        dtype = layer.w_k.dtype
        w_k, w_q, w_v, patterns = (
            t.detach().double().cpu() for t in (layer.w_k, layer.w_q, layer.w_v, layer.patterns)
        )
        beta = float(layer.beta)
        meets = w_q.mT @ w_k  # (state features, pattern features)
        varying = (meets[:-1] != 0).any(0)
        if int(varying.sum()) != 1:
            refuse(f"states meet {int(varying.sum())} features of the patterns, not one")
        place = int(varying.nonzero()[0])
        constant = meets[-1].clone()
        constant[place] = 0.0
        slopes, biases = patterns[:, place], beta * (patterns @ constant)
        values = patterns @ (w_v @ w_k)[0]
        line, table = _around(meets[:, place], beta * slopes, biases, values, written, dtype)
        return cls(line, table, beta * w_q, patterns @ w_k.mT, values[:, None])

    def run(self, tokens: Tensor, name: str) -> Tensor:
        """What the layer makes of the states."""
        if not _end_with_one(tokens):
            keys, values = self.keys.to(tokens), self.values.to(tokens)
            return primitives.attention(tokens @ self.queries.to(tokens).mT, keys, values)
        z = tokens @ self.line.to(tokens)
        if math.isinf(self.table.error):  # z may lie anywhere, and windows are for a range
            return primitives.plain_interpolate(z, self.table)[..., None]
        return primitives.interpolate(z, self.table, name)[..., None]


@untraced
def _end_with_one(tokens: Tensor) -> bool:
    return not is_transformed(tokens) and bool((tokens[..., -1] == 1).all())


def _around(
    line: Tensor, slopes: Tensor, biases: Tensor, values: Tensor,
    written: Sequence[Interpolant], dtype: torch.dtype,
) -> tuple[Tensor, Interpolant]:  # fmt: skip
    """The line may be scaled and shifted, as a written table's slopes and centre have it."""
    at = int(slopes.abs().argmax())
    for table in written:
        if len(slopes) != table.tokens or float(slopes[at]) == 0:
            continue
        # The factor that was written is short; what is beyond eight bits is rounding.
        scale = float((table.keys.slopes[at] / slopes[at]).bfloat16())
        scaled, center = scale * slopes, table.grid.center
        if read_table(scaled, biases - scaled * center, values, [table], dtype) is table:
            moved = line / scale
            moved[-1] = moved[-1] + center
            return moved, table
    return line, read_table(slopes, biases, values, (), dtype)
