"""Grids as plain dictionaries, for configuration files."""

from __future__ import annotations

import math
from typing import Any

from iceform.interpolation.grid import GradedGrid, Grid

__all__ = ["describe_grid", "grid_from"]


def describe_grid(grid: Grid | GradedGrid) -> dict[str, Any]:
    """JSON-ready."""
    base = {"low": grid.low, "high": grid.high, "cells": grid.cells, "guards": grid.guards}
    if isinstance(grid, GradedGrid):
        coarsest = None if math.isinf(grid.coarsest) else grid.coarsest
        return {**base, "kinks": list(grid.kinks), "growth": grid.growth, "coarsest": coarsest}
    return base


def grid_from(config: dict[str, Any]) -> Grid | GradedGrid:
    """The inverse of :func:`describe_grid`."""
    base = (config["low"], config["high"], config["cells"], config["guards"])
    if "kinks" not in config:
        return Grid(*base)
    coarsest = math.inf if config["coarsest"] is None else config["coarsest"]
    return GradedGrid(*base, tuple(config["kinks"]), config["growth"], coarsest)
