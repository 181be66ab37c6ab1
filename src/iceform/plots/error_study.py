"""Error against grid tokens, in either regime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from torch import Tensor

from iceform.certificates import weakest
from iceform.plots.axes import TINY, positive
from iceform.plots.themes import LIGHT, THIN, WIDTH, Theme
from iceform.tables import Interpolant

TOKENS = (17, 25, 33, 49, 65, 97, 129)  # grid sizes of the standard study
_MESH = 20_011  # points at which errors are measured; a prime, so that no node is favoured


@dataclass(frozen=True)
class ErrorCurve:
    """Largest errors of one regime over a range of grid sizes; ``kind`` is the weakest of all.

    Examples
    --------
    >>> curve = ErrorCurve(
    ...     "spectral", tokens=(9, 17), measured=(1e-2, 1e-5), certified=(2e-2, 3e-5)
    ... )
    >>> curve.kind
    'proven'
    """

    regime: str
    tokens: tuple[int, ...]
    measured: tuple[float, ...]
    certified: tuple[float, ...]
    kind: str = "proven"


def error_curves(
    f: Callable[[Tensor], Tensor] = torch.tanh,
    low: float = -10.0,
    high: float = 10.0,
    tokens: Sequence[int] = TOKENS,
) -> tuple[ErrorCurve, ErrorCurve]:
    """The hard and the spectral regime on the same numbers of grid tokens.

    Examples
    --------
    >>> hard, spectral = error_curves(tokens=(17, 33))
    >>> spectral.certified[-1] < hard.certified[-1]
    True
    """
    hard = [Interpolant.hard(f, low, high, cells=count - 1) for count in tokens]
    spectral = [Interpolant.fit(f, low, high, tokens=count) for count in tokens]
    return _curve("hard", hard, f), _curve("spectral", spectral, f)


def _curve(regime: str, tables: Sequence[Interpolant], f: Callable[[Tensor], Tensor]) -> ErrorCurve:
    return ErrorCurve(
        regime,
        tuple(it.tokens for it in tables),
        tuple(_measured(it, f) for it in tables),
        tuple(it.error for it in tables),
        weakest(it.kind for it in tables),
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

    Examples
    --------
    >>> figure = error_against_tokens(error_curves(tokens=(9, 17)))
    >>> figure.axes[0].get_yscale()
    'log'
    """
    with theme.applied():
        figure = Figure(figsize=(WIDTH, 4), layout="constrained")
        axes = figure.subplots()
        for curve in curves:
            colour = theme.hard if curve.regime == "hard" else theme.spectral
            axes.loglog(curve.tokens, positive(curve.certified), "--", color=colour, lw=THIN)
            axes.loglog(curve.tokens, positive(curve.measured), "o-", color=colour)
        _one_over_p(axes, curves[0], theme)
        _label_regimes(axes, curves, theme)
        _token_axis(axes, curves[0].tokens)
        axes.set_ylabel("largest error")
        axes.set_title(f"{name}: the same tokens, two temperatures", loc="left")
        axes.grid(axis="y")
        axes.legend(handles=_line_styles(theme, weakest(c.kind for c in curves)), loc="lower left")
    return figure


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
            (curve.tokens[-1], max(curve.measured[-1], TINY)),
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


def _line_styles(theme: Theme, kind: str) -> list[Line2D]:
    bound = "certified" if kind == "proven" else kind
    return [
        Line2D([], [], color=theme.ink, marker="o", label="measured"),
        Line2D([], [], color=theme.ink, ls="--", lw=THIN, label=bound),
    ]
