"""Level 0: scalar functions as a softmax over a grid of tokens."""

from iceform.interpolation import storage as storage  # puts its maker of tables in place
from iceform.interpolation.interpolant import GivenGrid, GradedGrid, Grid, Interpolant, Keys
from iceform.interpolation.local import RoundingModel
from iceform.interpolation.posterior import posterior_error, raised
from iceform.interpolation.regimes import MOST_HARD_CELLS, on_grid

__all__ = [
    "MOST_HARD_CELLS",
    "GivenGrid",
    "GradedGrid",
    "Grid",
    "Interpolant",
    "Keys",
    "RoundingModel",
    "on_grid",
    "posterior_error",
    "raised",
]
