"""Poisson regression with the logarithm as its link."""

from __future__ import annotations

import math

import torch

from iceform.functions.curvature import Curvature
from iceform.functions.losses.loss import Labels, Loss, register
from iceform.functions.scalar import ScalarFunction

__all__ = ["poisson"]


@register("poisson")
def poisson() -> Loss:
    """l(t) = e^t - y t; no quadratic lies above it."""
    counts = Labels(lambda y: y >= 0, "counts >= 0")
    facts = Curvature(torch.exp, None, (0.0, math.inf), concordance=1.0)
    return Loss("poisson", "glm", ScalarFunction(torch.exp, "poisson'"), facts, labels=counts)
