"""The demo's report: one HTML file that needs nothing else, online or off."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from iceform import plots

__all__ = [
    "Illustration",
    "Library",
    "LossRow",
    "ProgramRow",
    "Report",
    "illustrate",
    "render",
    "render_page",
    "write",
]

_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
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
class Illustration:
    """A figure in both themes, with the words around it."""

    title: str
    text: str
    alt: str
    light: str  # data URI
    dark: str  # data URI


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


def illustrate(
    draw: Callable[[plots.Theme], Figure], *, title: str, text: str, alt: str
) -> Illustration:
    """Draw a figure once in each theme."""
    light, dark = (_data_uri(plots.png(draw(theme))) for theme in (plots.LIGHT, plots.DARK))
    return Illustration(title, text, alt, light, dark)


def _data_uri(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")


def render(report: Report) -> str:
    """The page as text."""
    return render_page("report.html.j2", report=report)


def render_page(template: str, **what: Any) -> str:
    """A template of the package, filled in."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("iceform"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(power=_power, word=_word)
    return environment.get_template(template).render(**what)


def _power(value: float) -> Markup:
    """1.2e-05 as 1.2 × 10 to the −5."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return Markup(f"{mantissa} × 10<sup>{int(exponent)}</sup>".replace("-", "−"))


def _word(count: int) -> str:
    """Small numbers as running text spells them."""
    return _WORDS[count] if count < len(_WORDS) else str(count)


def write(path: Path, page: str) -> Path:
    """Write beside the target, then rename: a reader never sees half a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
