"""Losses that are quadratic between kinks: squared, Huber's and the squared hinge.

Their l'' is 0 or 1, so that a sample which cannot reach a kink keeps its curvature exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iceform.functions.curvature import Curvature
from iceform.functions.losses.loss import Loss, register
from iceform.functions.scalar import ScalarFunction

__all__ = ["huber", "squared", "squared_hinge"]


@register("squared")
def squared() -> Loss:
    """l(z) = z^2/2."""
    line = ScalarFunction(lambda z: z, "squared'", affine=(1.0, 0.0))
    facts = Curvature(torch.ones_like, torch.ones_like, (1.0, 1.0), kinks=())
    return Loss("squared", "residual", line, facts)


@register("huber")
def huber(delta: float = 1.0) -> Loss:
    """l'(z) = clip(z, -delta, delta)."""
    f = ScalarFunction(lambda z: z.clamp(-delta, delta), "huber'", (-delta, delta))

    def bend(z: Tensor) -> Tensor:
        return (z.abs() < delta).to(z)

    def above(z: Tensor) -> Tensor:
        return delta / z.abs().clamp(min=delta)

    facts = Curvature(bend, above, (0.0, 1.0), kinks=(-delta, delta))
    return Loss("huber", "residual", f, facts)


@register("squared_hinge")
def squared_hinge() -> Loss:
    """l(m) = max(0, 1 - m)^2/2."""
    f = ScalarFunction(lambda m: -torch.relu(1 - m), "squared_hinge'", (1.0,))
    facts = Curvature(lambda m: (m < 1).to(m), torch.ones_like, (0.0, 1.0), kinks=(1.0,))
    return Loss(
        "squared_hinge", "margin", f, facts, above=lambda m, y: torch.relu(1 - m).square() / 2
    )
