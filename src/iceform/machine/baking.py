r"""A prompt's table baked into weights: the task-specific module of a stream.

A look-up prompt is an affine image of the samples, their labels and w, with coefficients that the
table fixes (:mod:`iceform.attention.lookups`). That map is a :class:`Lift`; in front of the frozen
layer it makes a module that reads one token :math:`(x_i, y_i, w, o_i, o_i x_i)` per sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iceform.attention import Features, FrozenNetwork, Lift, LookUps
from iceform.attention.lookups import HIDDEN

__all__ = ["baked", "data_tokens"]


def _features(dim: int) -> Features:
    return Features.of(x=dim, y=1, w=dim, offset=1, offset_x=dim)


def baked(prompt: LookUps, dtype: torch.dtype) -> FrozenNetwork:
    """The layer behind a lift that holds the prompt's table."""
    layout = prompt.layout
    d, m, g = prompt.x.shape[-1], layout.samples, len(prompt.slopes)
    at, raw = _features(d), layout.raw
    maps = torch.zeros(g + 1, raw.total, at.total, dtype=torch.float64)
    moves = torch.zeros(g + 1, m, layout.count, dtype=torch.float64)
    constant = torch.zeros(layout.count, raw.total, dtype=torch.float64)
    constant[: m * layout.tokens, raw["key_bias"]] = -HIDDEN
    eye, samples = torch.eye(d, dtype=torch.float64), torch.arange(m)
    last = raw["value"].stop - 1
    for k, (slope, bias, value) in enumerate(_rows(prompt)):
        a, places = maps[k], samples * layout.tokens + k
        _block(a, raw["key_x"], at["x"])[:] = slope * eye
        a[raw["key_y"], at["y"]] = slope
        _block(a, raw["value"], at["x"])[:] = prompt.gain * value * eye
        _block(a, raw["value"], at["offset_x"])[:] = -prompt.gain * eye
        _block(a, raw["value"], at["w"])[:] = prompt.keep * eye
        a[last, at["offset"]] = -prompt.gain
        moves[k, samples, places] = 1.0
        constant[places, raw["key_y"]] = slope * prompt.table.grid.center
        constant[places, raw["key_bias"]] = bias
        constant[places, last] = prompt.gain * value
    _block(maps[g], raw["w"], at["w"])[:] = eye
    moves[g, samples, m * layout.tokens + samples] = 1.0
    layers = [Lift(maps, moves, constant), *layout.build().layers]
    return FrozenNetwork(layers, at).to(dtype).seal()


def _rows(prompt: LookUps) -> list[tuple[float, float, float]]:
    parts = (prompt.slopes.tolist(), prompt.biases.tolist(), prompt.values.tolist())
    return list(zip(*parts, strict=True))


def _block(matrix: Tensor, rows: slice, columns: slice) -> Tensor:
    """As many rows as there are columns, from the first of ``rows`` on."""
    width = columns.stop - columns.start
    return matrix[rows.start : rows.start + width, columns]


def data_tokens(prompt: LookUps) -> Tensor:
    """What a baked module reads for one prompt's worth of samples."""
    at, m = _features(prompt.x.shape[-1]), prompt.layout.samples
    tokens = prompt.x.new_zeros(m, at.total)
    rows = tokens[: prompt.count]
    rows[:, at["x"]], rows[:, at["y"]], rows[:, at["w"]] = prompt.x, prompt.y[:, None], prompt.w
    if prompt.offsets is not None:
        rows[:, at["offset"]] = prompt.offsets[:, None]
        rows[:, at["offset_x"]] = prompt.offsets[:, None] * prompt.x
    return tokens
