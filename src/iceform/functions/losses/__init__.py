"""Losses by their derivatives, one family a file; each owns what a proof needs to know of it."""

# Registered in the order in which they are listed to users.
from iceform.functions.losses import quadratic  # isort: split

from iceform.functions.losses import poisson, rounded
from iceform.functions.losses.loss import LOSSES, Labels, Loss, loss_named, register

__all__ = ["LOSSES", "Labels", "Loss", "loss_named", "poisson", "quadratic", "register", "rounded"]
