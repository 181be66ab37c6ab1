"""Colours on light and dark paper, and figures as bytes."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

WIDTH = 6.2  # inches of a figure: a column of text
THIN = 1.3  # points of lines that stand beside others: bounds
PAD = 0.02  # of the axes, between them and their colour bar
_DPI = 160


@dataclass(frozen=True)
class Theme:
    """Colours of a figure: the Okabe-Ito palette, which the colour-blind can tell apart.

    Examples
    --------
    >>> from iceform.plots import DARK, LIGHT
    >>> DARK.name, len(DARK.lines)
    ('dark', 6)
    >>> with LIGHT.applied():
    ...     pass  # figures made here are light
    """

    name: str
    paper: str
    ink: str
    faint: str
    hard: str
    spectral: str
    lines: tuple[str, ...]
    ramp: tuple[str, ...]  # from nothing to everything, monotone in lightness

    def applied(self) -> AbstractContextManager[None]:
        """A context in which figures are drawn in this theme."""
        settings: Any = {
            "font.family": "sans-serif",
            "font.size": 10,
            "figure.facecolor": self.paper,
            "savefig.facecolor": self.paper,
            "axes.facecolor": self.paper,
            "axes.edgecolor": self.faint,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "text.color": self.ink,
            "xtick.color": self.ink,
            "ytick.color": self.ink,
            "grid.color": self.faint,
            "grid.alpha": 0.3,
            "lines.linewidth": 2,
            "lines.markersize": 5,
            "legend.frameon": False,
        }
        return matplotlib.rc_context(settings)

    @property
    def colormap(self) -> LinearSegmentedColormap:
        """The ramp, made continuous."""
        return LinearSegmentedColormap.from_list(self.name, self.ramp)

    @property
    def signed(self) -> LinearSegmentedColormap:
        """From negative through nothing to positive."""
        ends = (self.hard, self.ramp[0], self.spectral)
        return LinearSegmentedColormap.from_list(f"signed {self.name}", ends)


LIGHT = Theme(
    name="light",
    paper="#ffffff",
    ink="#1d2733",
    faint="#9aa5b1",
    hard="#d55e00",
    spectral="#0072b2",
    lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    ramp=("#f4f7fa", "#9ecae8", "#2a83bd", "#08306b"),
)
DARK = Theme(
    name="dark",
    paper="#161c24",
    ink="#e3e9f0",
    faint="#5d6b7a",
    hard="#f0883e",
    spectral="#56b4e9",
    lines=("#56b4e9", "#f0883e", "#2fc79a", "#e39bc6", "#f0c24b", "#8fb8ff"),
    ramp=("#1c2530", "#1f5f8b", "#56b4e9", "#f2f8fd"),
)


def png(figure: Figure, dpi: int = _DPI) -> bytes:
    """The figure as the bytes of a PNG file.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> png(Figure(figsize=(1, 1)))[1:4]
    b'PNG'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
