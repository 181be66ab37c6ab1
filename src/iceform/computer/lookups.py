"""Look-ups by softmax over a table's entries, for many arguments at once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["look_up"]

_CHUNK = 1 << 20  # weights held at once: 8 MiB of float64


def look_up(
    z: Float[Tensor, "*b h"],
    slopes: Float[Tensor, "k h"],
    biases: Float[Tensor, "k h"],
    values: Float[Tensor, "k h"],
) -> Float[Tensor, "*b h"]:
    """sum_k softmax_k(slopes z + biases) values, for every argument with the keys of its head."""
    flat = z.reshape(-1, z.shape[-1])
    rows = max(1, _CHUNK // slopes.numel())
    each = [_softmax(part, slopes, biases, values) for part in flat.split(rows)]
    return (each[0] if len(each) == 1 else torch.cat(each)).reshape(z.shape)


def _softmax(z: Tensor, slopes: Tensor, biases: Tensor, values: Tensor) -> Tensor:
    weights = torch.softmax(z[:, None, :] * slopes + biases, 1)
    return (weights * values).sum(1)
