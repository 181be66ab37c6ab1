"""What was measured, as rows: printed, stored as JSON, drawn by ``ice.plots.lab_table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True)
class LabTable:
    """Rows of names and numbers.

    Attributes
    ----------
    title
        What it is about.
    rows
        One mapping for each, all with the same columns.
    x, y, by
        The columns of a drawing: along, up, and one line or group of bars for each of ``by``.

    Examples
    --------
    >>> rows = (
    ...     {"network": "a", "step": 0, "error": 1.0},
    ...     {"network": "a", "step": 9, "error": 0.5},
    ... )
    >>> table = LabTable("errors", rows, "step", "error", "network")
    >>> table.where(step=9).column("error")
    [0.5]
    >>> print(table)
    errors (error by step)
    network  0    9
    a        1  0.5
    """

    title: str
    rows: tuple[Mapping[str, Cell], ...]
    x: str
    y: str
    by: str

    @property
    def columns(self) -> list[str]:
        """The names of what is compared, along what, of the measure, then of the others."""
        first = dict.fromkeys([self.by, self.x, self.y])
        return list({**first, **dict.fromkeys(self.rows[0])}) if self.rows else []

    def where(self, **values: Cell) -> LabTable:
        """The rows that have these values."""
        kept = [r for r in self.rows if all(r[k] == v for k, v in values.items())]
        return LabTable(self.title, tuple(kept), self.x, self.y, self.by)

    def column(self, name: str) -> list[Cell]:
        """One column."""
        return [row[name] for row in self.rows]

    def pivot(self) -> list[list[str]]:
        """Lines of a table with ``by`` downwards and ``x`` across, the first its head."""
        across = list(dict.fromkeys(row[self.x] for row in self.rows))
        down = list(dict.fromkeys(row[self.by] for row in self.rows))
        found = {(row[self.by], row[self.x]): row[self.y] for row in self.rows}
        head = [self.by, *(_shown(value) for value in across)]
        return [head, *([_shown(d), *(_shown(found.get((d, a))) for a in across)] for d in down)]

    def __str__(self) -> str:
        return "\n".join([f"{self.title} ({self.y} by {self.x})", *_aligned(self.pivot())])

    def listing(self) -> str:
        """Every row with every column."""
        rows = [[_shown(row[name]) for name in self.columns] for row in self.rows]
        return "\n".join(_aligned([self.columns, *rows]))

    def to_dict(self) -> dict[str, Any]:
        """As JSON; :meth:`from_dict` reads it."""
        return {**asdict(self), "rows": [dict(row) for row in self.rows]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> LabTable:
        """What :meth:`to_dict` gave."""
        return cls(**{**stored, "rows": tuple(stored["rows"])})


def _shown(value: Cell) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _aligned(lines: list[list[str]]) -> list[str]:
    """The first column flush left, all others right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    sides = ["<", *">" * (len(widths) - 1)]
    return [
        "  ".join(f"{v:{s}{w}}" for v, s, w in zip(line, sides, widths, strict=True))
        for line in lines
    ]
