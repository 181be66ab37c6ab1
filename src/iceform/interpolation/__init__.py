"""Level 0: scalar functions as a softmax over a grid of tokens."""

from iceform.interpolation import making
from iceform.interpolation.grid import GivenGrid, GradedGrid, Grid, Keys
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.local import RoundingModel

__all__ = [
    "GivenGrid",
    "GradedGrid",
    "Grid",
    "Interpolant",
    "Keys",
    "RoundingModel",
    "making",
]
