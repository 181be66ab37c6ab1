"""Tables as plain dictionaries and tensors, for files; what a file says of a table is proved again.

A file holds tokens, values, and the edges of the cells on which the error was proved. A proof on
those cells takes a small part of the time that finding them took.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from iceform.errors import IntegrityError
from iceform.functions.scalar import ScalarFunction
from iceform.interpolation import regimes
from iceform.interpolation.grid import GradedGrid, Grid
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.posterior import posterior_error, prove

__all__ = ["AS_GOOD", "describe_grid", "describe_table", "grid_from", "proved_again", "table_from"]

_ALIKE = 1.25  # times what is proved: more is stated of another function
AS_GOOD = 1 + 2.0**-20  # of the error that was proved when it was written, on whatever machine


def describe_table(it: Interpolant) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says of a table, JSON-ready, and its tensors."""
    config = {
        "grid": describe_grid(it.grid),
        "sharpness": it.sharpness,
        "regime": it.regime,
        "error": it.error,
        "assumptions": list(it.assumptions),
        "kind": it.kind,
    }
    return config, {"values": it.values} | ({} if it.edges is None else {"edges": it.edges})


def table_from(config: dict[str, Any], tensors: dict[str, Tensor]) -> Interpolant:
    """The inverse of :func:`describe_table`; it is a table, and nothing that it says is proved."""
    grid, values, edges = grid_from(config["grid"]), tensors["values"], tensors.get("edges")
    plain = all(t.dtype == torch.float64 and t.isfinite().all() for t in tensors.values())
    whole = values.shape == (grid.tokens,) and (edges is None or edges.dim() == 1 < len(edges))
    if not (plain and whole and 0 < float(config["sharpness"]) < math.inf):
        raise IntegrityError(f"{len(values)} values and their cells are no table of {grid.tokens}")
    return Interpolant(
        grid,
        float(config["sharpness"]),
        values,
        str(config["regime"]),
        float(config["error"]),
        assumptions=tuple(config["assumptions"]),
        kind="claimed",
        edges=edges,
    )


def proved_again(it: Interpolant, f: ScalarFunction | None, *, alike: bool = False) -> Interpolant:
    """A table from a file with a bound that was found now; "claimed" where f is not known.

    Raises
    ------
    IntegrityError
        If the bound that the file states is not reached; with ``alike`` also if far less is true:
        then it was made for another function.
    """
    if f is None:
        return it
    if it.edges is not None:
        found = prove(it, f, it.edges)
        if alike and not it.error <= _ALIKE * found.error:
            raise IntegrityError(f"the table states {it.error:.3g} where {found.error:.3g} is true")
    elif it.regime in ("hard", "spectral"):
        again = regimes.on_grid(f, it.grid, it.sharpness, it.regime)
        if not torch.equal(again.values, it.values):
            return it
        return replace(again, error=_reached(it.error, again.error, again.kind))
    else:
        found = posterior_error(it, f, None)
    return replace(
        it, error=_reached(it.error, found.error, found.kind), assumptions=found.assumptions,
        kind=found.kind, function=f, _rounding={}, _windows={},
    )  # fmt: skip


def _reached(stated: float, found: float, kind: str) -> float:
    if kind == "proven" and not found <= AS_GOOD * stated:
        raise IntegrityError(
            f"the table states an error of {stated:.3g}, and {found:.3g} is proved of it: its "
            "values or its error were changed"
        )
    return max(stated, found)


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
