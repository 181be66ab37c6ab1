"""Where attention looks as z moves, and what it reads off."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from iceform.plots.themes import LIGHT, PAD, WIDTH, Theme
from iceform.tables import Interpolant


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

    Examples
    --------
    >>> hard = ice.Interpolant.hard(torch.tanh, -4.0, 4.0, cells=16)
    >>> spectral = ice.Interpolant.fit(torch.tanh, -4.0, 4.0, tokens=17)
    >>> lookup_weights(hard, spectral).axes[0].get_title(loc="left")
    'hard, 17 tokens'
    """
    z = torch.linspace(*span, 481, dtype=torch.float64)
    with theme.applied():
        figure = Figure(figsize=(WIDTH, 5), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(3, 2))
        tables = (("hard", hard, theme.hard), ("spectral", spectral, theme.spectral))
        for column, (name, it, colour) in enumerate(tables):
            _weight_map(grid[0, column], it, z, theme)
            grid[0, column].set_title(f"{name}, {it.tokens} tokens", loc="left", color=colour)
            _output(grid[1, column], it, z, f, colour, theme)
        grid[0, 0].set_ylabel("where the token sits")
        grid[1, 0].set_ylabel("what is read off")
        mappable = grid[0, 0].collections[0]
        figure.colorbar(mappable, ax=list(grid[0]), label="attention weight", pad=PAD)
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
    axes.plot(z.numpy(), f(z).numpy(), color=theme.faint, lw=4, alpha=0.5, label="exact")
    axes.plot(z.numpy(), it(z).numpy(), color=colour, label="looked up")
    axes.set_xlabel("z")
    axes.legend(loc="upper left", fontsize=9)
