"""Level 0: scalar functions as a softmax over a grid of tokens."""

from iceform.tables import storage as storage  # puts its maker of tables in place
from iceform.tables.interpolant import GivenGrid, GradedGrid, Grid, Interpolant, Keys
from iceform.tables.local import RoundingModel
from iceform.tables.posterior import posterior_error, raised
from iceform.tables.regimes import MOST_HARD_CELLS, on_grid
from iceform.tables.storage import SHIPPED

__all__ = [
    "MOST_HARD_CELLS",
    "SHIPPED",
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
