"""Plain torch, in chunks: a chunk's grid tokens exist only while it is looked up."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from iceform.interpolation import Interpolant

__all__ = ["interpolate", "residual_map", "residual_sum"]

_CHUNK = 1 << 22  # (samples, grid tokens) entries held at once: 32 MiB of float64


def interpolate(z: Float[Tensor, "*b"], it: Interpolant) -> Float[Tensor, "*b"]:
    """Look up each entry of z, without materialising all weights at once."""
    values = it.values.to(z)
    flat = z.reshape(-1)
    rows = max(1, _CHUNK // it.tokens)
    if flat.numel() <= rows:
        return (it.weights(z) @ values).reshape(z.shape)

    def look_up(part: Tensor) -> Tensor:
        return it.weights(part) @ values

    if torch.is_grad_enabled() and z.requires_grad:
        parts = [checkpoint(look_up, part, use_reentrant=False) for part in torch.split(flat, rows)]
    else:
        parts = [look_up(part) for part in torch.split(flat, rows)]
    return torch.cat(parts).reshape(z.shape)


def residual_map(
    x: Float[Tensor, "... n d"],
    y: Float[Tensor, "... n"],
    w: Float[Tensor, "... d"],
    it: Interpolant,
) -> Float[Tensor, "... n d"]:
    """A(w.x_i - y_i) x_i for every sample."""
    return interpolate(_residual(x, y, w), it)[..., None] * x


def residual_sum(
    x: Float[Tensor, "... n d"],
    y: Float[Tensor, "... n"],
    w: Float[Tensor, "... d"],
    it: Interpolant,
    labels: Float[Tensor, "... n"] | None = None,
) -> Float[Tensor, "... d"]:
    """sum_i (A(w.x_i - y_i) - labels_i) x_i in float64, a chunk of samples at a time."""
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-1], w.shape[:-1])
    total = torch.zeros(*batch, x.shape[-1], dtype=torch.float64, device=x.device)
    for rows in _chunks(x.shape[-2], max(1, batch.numel() if batch else 1), it.tokens):
        part = x[..., rows, :]
        looked = interpolate(_residual(part, y[..., rows], w), it).double()
        if labels is not None:
            looked = looked - labels[..., rows].double()
        total = total + (looked[..., None, :] @ part.double())[..., 0, :]
    return total


def _residual(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return (x @ w[..., None])[..., 0] - y


def _chunks(samples: int, batch: int, tokens: int) -> Iterator[slice]:
    rows = max(1, _CHUNK // (tokens * batch))
    for start in range(0, samples, rows):
        yield slice(start, min(start + rows, samples))
