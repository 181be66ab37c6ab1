"""Scalar functions, losses and typed formulas: each owns what is known about it."""

from iceform.expressions.losses import LOSSES, Curvature, Loss, loss_named, vouched
from iceform.expressions.scalar import ScalarFunction, find_kinks

__all__ = [
    "LOSSES",
    "Curvature",
    "Loss",
    "ScalarFunction",
    "find_kinks",
    "loss_named",
    "vouched",
]
