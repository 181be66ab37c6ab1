"""Poisson regression with the logarithm as its link."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from iceform.functions.curvature import Curvature
from iceform.functions.losses.loss import Labels, Loss, register
from iceform.functions.scalar import ScalarFunction

__all__ = ["poisson"]

_ROUNDINGS = 16 * torch.finfo(torch.float64).eps  # of four terms, each within four units


@register("poisson")
def poisson() -> Loss:
    """l(t) = e^t - y t; no quadratic lies above it."""
    counts = Labels(lambda y: y >= 0, "counts >= 0")
    facts = Curvature(torch.exp, None, (0.0, math.inf), concordance=1.0)
    f = ScalarFunction(torch.exp, "poisson'")
    return Loss("poisson", "glm", f, facts, labels=counts, above=_above)


def _above(t: Tensor, y: Tensor) -> Tensor:
    """e^t - y t less its least value, y - y ln y; and what that rounds by."""
    least, mean = y - torch.xlogy(y, y), torch.exp(t)
    size = mean + (y * t).abs() + y + torch.xlogy(y, y).abs()
    return (mean - y * t - least).clamp(min=0) + _ROUNDINGS * size
