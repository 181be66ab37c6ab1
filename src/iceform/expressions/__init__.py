"""Scalar functions, losses and typed formulas: each owns what is known about it."""

from iceform.expressions.losses import LOSSES, Loss, loss_named
from iceform.expressions.scalar import ScalarFunction, find_kinks

__all__ = ["LOSSES", "Loss", "ScalarFunction", "find_kinks", "loss_named"]
