"""The report of the demo on the patients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iceform.pages import Illustration, render_page

__all__ = ["Library", "LossRow", "ProgramRow", "Report", "render"]

_BAR = (-16.0, -3.0)  # decades that the error bars of the table span


@dataclass(frozen=True)
class LossRow:
    """One loss on the frozen module: what it was off by, and what was promised."""

    loss: str
    task: str
    error: float
    certified: float
    grid_tokens: int
    seconds: float
    digest: str

    @property
    def measured_at(self) -> float:
        """Where the error lies on the table's bar, in per cent."""
        return _percent(self.error)

    @property
    def certified_at(self) -> float:
        """Where the certificate lies on the table's bar, in per cent."""
        return _percent(self.certified)


def _percent(error: float) -> float:
    low, high = _BAR
    decade = math.log10(max(error, 10.0**low))
    return round(100 * min(1.0, (decade - low) / (high - low)), 1)


@dataclass(frozen=True)
class ProgramRow:
    """One program on the frozen machine, beside its exact algorithm and another library."""

    program: str
    library: str
    same: bool  # whether the library computes the same thing
    error: float  # to the program's own exact algorithm
    certified: float
    difference: float  # to the library's answer
    passes: int
    seconds: float
    digest: str


@dataclass(frozen=True)
class Library:
    """The second table: the whole library on one frozen machine."""

    rows: Sequence[ProgramRow]
    samples: int
    dim: int
    tokens: int
    layers: int
    heads: int
    parameters: int
    descents: tuple[int, int]  # fewest and most steps of the gradient descents
    literal: float  # what the literal matrices' first pass differs by

    @property
    def digest(self) -> str:
        """The one digest of all rows."""
        return self.rows[0].digest

    @property
    def passes(self) -> int:
        """Passes of all programs together."""
        return sum(row.passes for row in self.rows)

    @property
    def starred(self) -> bool:
        """Whether a library computes something else than the program."""
        return not all(row.same for row in self.rows)


@dataclass(frozen=True)
class Report:
    """Everything the page shows."""

    rows: Sequence[LossRow]
    library: Library
    illustrations: Sequence[Illustration]
    samples: int
    dim: int
    tokens: int
    parameters: int
    passes: int
    seconds: float
    version: str
    torch_version: str

    @property
    def digest(self) -> str:
        """The one digest of all rows."""
        return self.rows[0].digest

    @property
    def worst_error(self) -> float:
        """The largest error of all rows."""
        return max(row.error for row in self.rows)

    @property
    def worst_certificate(self) -> float:
        """The largest certified error of all rows."""
        return max(row.certified for row in self.rows)


def render(report: Report) -> str:
    """The page as text."""
    return render_page("report.html.j2", report=report)
