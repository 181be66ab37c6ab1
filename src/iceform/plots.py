"""Pictures of what a softmax look-up does, as matplotlib figures.

Each function draws what it is given and returns a new :class:`matplotlib.figure.Figure`; nothing
touches pyplot or a display. ``python -m iceform.plots FOLDER`` writes the README's picture.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from torch import Tensor

from iceform.attention import SoftmaxAttention
from iceform.constructions.residual import ResidualEmulator
from iceform.interpolation import Interpolant

__all__ = [
    "DARK",
    "LIGHT",
    "ErrorCurve",
    "Theme",
    "attention",
    "error_against_tokens",
    "error_curves",
    "lookup_weights",
    "png",
    "trajectories",
]

TOKENS = (17, 25, 33, 49, 65, 97, 129)  # grid sizes of the standard study
_MESH = 20_011  # points at which errors are measured; a prime, so that no node is favoured
_DPI = 160
_DECADES = 30  # of attention that a heat map tells apart
_TINY = 1e-17  # where an error of exactly zero is drawn on a logarithmic axis


@dataclass(frozen=True)
class Theme:
    """Colours of a figure: the Okabe-Ito palette, which the colour-blind can tell apart."""

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
            "font.size": 10.5,
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
            "lines.linewidth": 1.8,
            "lines.markersize": 5.0,
            "legend.frameon": False,
            "figure.constrained_layout.h_pad": 0.1,
            "figure.constrained_layout.w_pad": 0.1,
        }
        return matplotlib.rc_context(settings)

    @property
    def colormap(self) -> LinearSegmentedColormap:
        """The ramp, made continuous."""
        return LinearSegmentedColormap.from_list(self.name, self.ramp)


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
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


# ---------------------------------------------------------------------------------------------
# error against grid tokens
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorCurve:
    """Sup errors of one regime over a range of grid sizes."""

    regime: str
    tokens: tuple[int, ...]
    measured: tuple[float, ...]
    certified: tuple[float, ...]


def error_curves(
    f: Callable[[Tensor], Tensor] = torch.tanh,
    low: float = -10.0,
    high: float = 10.0,
    tokens: Sequence[int] = TOKENS,
) -> tuple[ErrorCurve, ErrorCurve]:
    """The hard and the spectral regime on the same numbers of grid tokens."""
    hard = [Interpolant.hard(f, low, high, cells=count - 1) for count in tokens]
    spectral = [Interpolant.fit(f, low, high, tokens=count) for count in tokens]
    return _curve("hard", hard, f), _curve("spectral", spectral, f)


def _curve(regime: str, tables: Sequence[Interpolant], f: Callable[[Tensor], Tensor]) -> ErrorCurve:
    return ErrorCurve(
        regime,
        tuple(it.tokens for it in tables),
        tuple(_measured(it, f) for it in tables),
        tuple(it.error for it in tables),
    )


def _measured(it: Interpolant, f: Callable[[Tensor], Tensor]) -> float:
    z = torch.linspace(it.low, it.high, _MESH, dtype=torch.float64)
    return float((it(z) - f(z)).abs().max())


def error_against_tokens(
    curves: Sequence[ErrorCurve], name: str = "tanh on [−10, 10]", *, theme: Theme = LIGHT
) -> Figure:
    """Measured (markers) and certified (dashed) sup error over the number of grid tokens.

    Parameters
    ----------
    curves
        As :func:`error_curves` returns them; the first is the one that 1/P is drawn through.
    name
        What was looked up, for the title.
    theme
        LIGHT or DARK.
    """
    with theme.applied():
        figure = Figure(figsize=(6.2, 4.3), layout="constrained")
        axes = figure.subplots()
        for curve in curves:
            colour = theme.hard if curve.regime == "hard" else theme.spectral
            axes.loglog(curve.tokens, _positive(curve.certified), "--", color=colour, lw=1.3)
            axes.loglog(curve.tokens, _positive(curve.measured), "o-", color=colour)
        _one_over_p(axes, curves[0], theme)
        _label_regimes(axes, curves, theme)
        _token_axis(axes, curves[0].tokens)
        axes.set_ylabel("largest error")
        axes.set_title(f"{name}: the same tokens, two temperatures", loc="left")
        axes.grid(axis="y")
        axes.legend(handles=_line_styles(theme), loc="lower left")
    return figure


def _positive(values: Sequence[float]) -> list[float]:
    return [max(value, _TINY) for value in values]


def _one_over_p(axes: Axes, curve: ErrorCurve, theme: Theme) -> None:
    """The line of slope -1 a little above what was measured in the hard regime."""
    first = 3 * curve.certified[0] * curve.tokens[0]
    axes.loglog(curve.tokens, [first / n for n in curve.tokens], ":", color=theme.faint)
    at = curve.tokens[-2]
    axes.annotate("1/P", (at, first / at), (0, 6), textcoords="offset points", color=theme.ink)


def _label_regimes(axes: Axes, curves: Sequence[ErrorCurve], theme: Theme) -> None:
    words = {"hard": "hard\n(the paper's)", "spectral": "spectral\n(iceform)"}
    for curve in curves:
        axes.annotate(
            words[curve.regime],
            (curve.tokens[-1], max(curve.measured[-1], _TINY)),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=theme.hard if curve.regime == "hard" else theme.spectral,
            fontweight="bold",
        )


def _token_axis(axes: Axes, tokens: Sequence[int]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(list(tokens)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("grid tokens per sample")


def _line_styles(theme: Theme) -> list[Line2D]:
    return [
        Line2D([], [], color=theme.ink, marker="o", label="measured"),
        Line2D([], [], color=theme.ink, ls="--", lw=1.3, label="certified"),
    ]


# ---------------------------------------------------------------------------------------------
# look-up weights
# ---------------------------------------------------------------------------------------------


def lookup_weights(
    hard: Interpolant,
    spectral: Interpolant,
    f: Callable[[Tensor], Tensor] = torch.tanh,
    span: tuple[float, float] = (-4.0, 4.0),
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """How attention moves over the grid as z moves, and what is read off, in two regimes.

    Parameters
    ----------
    hard, spectral
        Look-up tables to compare, with the same number of tokens for a fair picture.
    f
        The function both of them look up.
    span
        The part of the range to show.
    theme
        LIGHT or DARK.
    """
    z = torch.linspace(*span, 481, dtype=torch.float64)
    with theme.applied():
        figure = Figure(figsize=(6.2, 5.0), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(3, 2))
        tables = (("hard", hard, theme.hard), ("spectral", spectral, theme.spectral))
        for column, (name, it, colour) in enumerate(tables):
            _weight_map(grid[0, column], it, z, theme)
            grid[0, column].set_title(f"{name}, {it.tokens} tokens", loc="left", color=colour)
            _output(grid[1, column], it, z, f, colour, theme)
        grid[0, 0].set_ylabel("where the token sits")
        grid[1, 0].set_ylabel("what is read off")
        mappable = grid[0, 0].collections[0]
        figure.colorbar(mappable, ax=list(grid[0]), label="attention weight", pad=0.02)
    return figure


def _weight_map(axes: Axes, it: Interpolant, z: Tensor, theme: Theme) -> None:
    weights = it.weights(z)
    low, high = float(z[0]), float(z[-1])
    axes.pcolormesh(
        z.numpy(), it.grid.nodes.numpy(), weights.T.numpy(),
        cmap=theme.colormap, norm=PowerNorm(0.5, 0, 1), shading="nearest",
    )  # fmt: skip
    axes.set_ylim(low, high)
    axes.set_xlim(low, high)


def _output(
    axes: Axes, it: Interpolant, z: Tensor, f: Callable[[Tensor], Tensor], colour: str, theme: Theme
) -> None:
    axes.plot(z.numpy(), f(z).numpy(), color=theme.faint, lw=4.5, alpha=0.7, label="exact")
    axes.plot(z.numpy(), it(z).numpy(), color=colour, label="looked up")
    axes.set_xlabel("z")
    axes.legend(loc="upper left", fontsize=9)


# ---------------------------------------------------------------------------------------------
# the attention map of the literal network
# ---------------------------------------------------------------------------------------------


def attention(
    emulator: ResidualEmulator, x: Tensor, y: Tensor, w: Tensor, *, theme: Theme = LIGHT
) -> Figure:
    """Attention of the query tokens over all tokens of the literal network, in decades.

    Parameters
    ----------
    emulator
        Any construction on residuals, with few samples.
    x, y, w
        One data set and its coefficients.
    theme
        LIGHT or DARK.
    """
    decades = _query_rows(emulator, x, y, w)
    samples, block = emulator.domain.samples, emulator.interpolant.tokens
    with theme.applied():
        figure = Figure(figsize=(6.2, 3.5), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(
            decades.numpy(), cmap=theme.colormap, vmin=-_DECADES, vmax=0,
            aspect="auto", interpolation="nearest",
        )  # fmt: skip
        _block_axes(axes, samples, block, theme)
        strayed = math.ceil(math.log10(_strayed(decades, block)))
        axes.set_title(
            rf"margin M = {emulator.margin:.0f}: less than $\mathbf{{10^{{{strayed}}}}}$ strays",
            loc="left",
        )
        bar = figure.colorbar(image, ax=axes, label="attention weight", pad=0.02, extend="min")
        ticks = range(-_DECADES, 1, 10)
        bar.set_ticks(list(ticks), labels=[rf"$10^{{{t}}}$" if t else "1" for t in ticks])
    return figure


def _strayed(decades: Tensor, block: int) -> float:
    """The largest share of a query's attention that falls outside its own block."""
    own = torch.arange(decades.shape[1]) // block == torch.arange(len(decades))[:, None]
    return float((10.0**decades).masked_fill(own, 0.0).sum(1).max())


def _query_rows(emulator: ResidualEmulator, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """log10 of the query tokens' attention, shape (samples, tokens)."""
    layer = emulator.network.layers[0]
    assert isinstance(layer, SoftmaxAttention)
    scores = layer.attend(emulator.prompt(x, y, w).tokens).scores[0]
    rows = torch.log_softmax(scores[-emulator.domain.samples :], -1)
    return rows / math.log(10)


def _block_axes(axes: Axes, samples: int, block: int, theme: Theme) -> None:
    edges = [block * i - 0.5 for i in range(1, samples + 1)]
    for edge in edges:
        axes.axvline(edge, color=theme.faint, lw=0.8)
    centres = [block * (i + 0.5) - 0.5 for i in range(samples)]
    numbers = [str(i + 1) for i in range(samples)]
    axes.set_xticks([*centres, samples * block + samples / 2 - 0.5], labels=[*numbers, "queries"])
    axes.set_yticks(range(samples), labels=numbers)
    axes.set_xlabel("attends to the look-up table of sample")
    axes.set_ylabel("query of sample")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


# ---------------------------------------------------------------------------------------------
# trajectories of gradient descent
# ---------------------------------------------------------------------------------------------


def trajectories(
    emulated: Tensor, exact: Tensor, certified: Sequence[float], *, theme: Theme = LIGHT
) -> Figure:
    """Coefficients over the passes, and below them how far emulated and exact are apart.

    Parameters
    ----------
    emulated, exact
        All iterates, shape (passes + 1, d).
    certified
        The proven error after 1, 2, ... passes.
    theme
        LIGHT or DARK.
    """
    passes = range(len(emulated))
    gap = (emulated - exact).abs().amax(-1)[1:].tolist()
    with theme.applied():
        figure = Figure(figsize=(6.2, 5.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for j in range(emulated.shape[-1]):
            colour = theme.lines[j % len(theme.lines)]
            above.plot(passes, exact[:, j].tolist(), color=colour, lw=1.2)
            above.plot(passes, emulated[:, j].tolist(), "o", color=colour, ms=3.2)
        above.set_ylabel("coefficients")
        above.set_title("exact (lines) and by frozen attention (dots)", loc="left")
        below.semilogy(passes[1:], certified, "--", color=theme.hard, lw=1.3, label="certified")
        below.semilogy(passes[1:], _positive(gap), "o-", color=theme.spectral, ms=3.2,
                       lw=1.2, label="measured")  # fmt: skip
        below.set_ylabel("largest difference")
        below.set_xlabel("passes through the frozen layer")
        below.grid(axis="y")
        below.legend(loc="lower right")
    return figure


def main(folder: str = "docs/images") -> None:
    """Write the README's picture into ``folder``."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    figure = error_against_tokens(error_curves())
    (target / "error_against_tokens.png").write_bytes(png(figure))


if __name__ == "__main__":
    main(*sys.argv[1:2])
