"""What a prompt says, token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from iceform.attention import Prompt
from iceform.plots.axes import check_single, name_axis, power_of_ten, token_groups, without_frame
from iceform.plots.themes import LIGHT, Theme

__all__ = ["features"]

_SIGNED_DECADES = 4  # of either sign that a prompt's picture tells apart; smaller is linear
_COLUMNS = 14  # names of features that fit side by side


def features(prompt: Prompt, *, theme: Theme = LIGHT) -> Figure:
    """Every number of a prompt: tokens down, by role, and features across, by name.

    Colours are logarithmic in either sign and linear near zero.

    Parameters
    ----------
    prompt
        Of one instance, as ``emulator.prompt(...)`` gives it.
    theme
        LIGHT or DARK.
    """
    check_single(prompt.tokens)
    values = prompt.tokens.detach().cpu().double()
    tokens, count = values.shape
    # Blocks of few features among many are drawn wide enough to be named.
    blocks = [(name, max(size, count / _COLUMNS)) for name, size in prompt.features.sizes]
    with theme.applied():
        figure = Figure(figsize=(6.2, 5.0), layout="constrained")
        axes = figure.subplots()
        _signed_map(axes, values, _edges(prompt.features.sizes, blocks), theme)
        name_axis(axes, "x", blocks, theme, "feature")
        name_axis(axes, "y", token_groups(prompt.roles), theme, "token")
        without_frame(axes)
        axes.set_title(f"{tokens} tokens of {count} features", loc="left")
    return figure


def _edges(sizes: Sequence[tuple[str, int]], widths: Sequence[tuple[str, float]]) -> list[float]:
    """Where columns begin and end when every block of so many is stretched to a width."""
    each = (w / n for (_, n), (_, w) in zip(sizes, widths, strict=True) for _ in range(n))
    return list(itertools.accumulate(each, initial=-0.5))


def _signed_map(axes: Axes, values: Tensor, edges: Sequence[float], theme: Theme) -> None:
    """Logarithmic in either sign: orange below zero, blue above."""
    largest = float(values.abs().max()) or 1.0
    top = math.floor(math.log10(largest))
    norm = SymLogNorm(10.0 ** (top - _SIGNED_DECADES), vmin=-largest, vmax=largest)
    rows = [i - 0.5 for i in range(len(values) + 1)]
    mesh = axes.pcolormesh(edges, rows, values.numpy(), cmap=theme.signed, norm=norm)
    axes.invert_yaxis()
    bar = axes.figure.colorbar(mesh, ax=axes, label="value", pad=0.02)
    powers = range(top, top - _SIGNED_DECADES, -2)
    ticks = [(-(10.0**p), f"−{power_of_ten(p)}") for p in powers] + [(0.0, "0")]
    ticks += [(10.0**p, power_of_ten(p)) for p in powers]
    bar.set_ticks([at for at, _ in ticks], labels=[text for _, text in ticks])
    bar.minorticks_off()
