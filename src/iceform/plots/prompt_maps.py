"""What a prompt says, token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from iceform.heads import HIDDEN, LookUps, Prompt
from iceform.plots.axes import (
    NAMED,
    name_axis,
    power_of_ten,
    signed_norm,
    token_groups,
    where_single,
    without_frame,
)
from iceform.plots.themes import LIGHT, PAD, WIDTH, Theme


def features(prompt: Prompt | LookUps, *, theme: Theme = LIGHT) -> Figure:
    """Every number of a prompt: tokens down, by role, and features across, by name.

    Colours are logarithmic in either sign and linear near zero. The bias that hides a token which
    holds nothing is hatched: next to it everything else would be 0.

    Parameters
    ----------
    prompt
        Of one instance, as ``emulator.prompt(...)`` gives it; look-ups that fill one prompt.
    theme
        LIGHT or DARK.

    Examples
    --------
    >>> from iceform.paper import GradientStep
    >>> step = GradientStep("squared", 0.5, dim=2, samples=2, eps=1e-2, backend="literal")
    >>> x, y, w = torch.eye(2).double(), torch.ones(2).double(), torch.zeros(2).double()
    >>> features(step.prompt(x, y, w)).axes[0].get_xlabel()
    'feature'
    """
    values = prompt.tokens.detach().cpu().double()
    values = values[where_single(values)]
    tokens, count = values.shape
    # Blocks of few features among many are drawn wide enough to be named.
    blocks = [(name, max(size, count / NAMED)) for name, size in prompt.features.sizes]
    with theme.applied():
        figure = Figure(figsize=(WIDTH, 5), layout="constrained")
        axes = figure.subplots()
        edges = _edges(prompt.features.sizes, blocks)
        _signed_map(axes, values, edges, theme)
        _hatch(axes, values == -HIDDEN, edges, theme)
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
    values = values.masked_fill(values == -HIDDEN, math.nan)
    norm, top = signed_norm(values)
    rows = [i - 0.5 for i in range(len(values) + 1)]
    mesh = axes.pcolormesh(edges, rows, values.numpy(), cmap=theme.signed, norm=norm)
    axes.invert_yaxis()
    bar = axes.figure.colorbar(mesh, ax=axes, label="value", pad=PAD)
    powers = (top, top - 2)
    ticks = [(-(10**p), f"−{power_of_ten(p)}") for p in powers] + [(0.0, "0")]
    ticks += [(10**p, power_of_ten(p)) for p in powers]
    bar.set_ticks([at for at, _ in ticks], labels=[text for _, text in ticks])
    bar.minorticks_off()


def _hatch(axes: Axes, hidden: Tensor, edges: Sequence[float], theme: Theme) -> None:
    """What hides a token, run by run, with a word for it."""
    for column in hidden.any(0).nonzero()[:, 0].tolist():
        rows, start = hidden[:, column].int().tolist(), 0
        for is_hidden, run in itertools.groupby(rows):
            height = len(list(run))
            if is_hidden:
                corner, width = (edges[column], start - 0.5), edges[column + 1] - edges[column]
                axes.add_patch(
                    Rectangle(corner, width, height, fill=False, hatch="////", lw=0, ec=theme.faint)
                )
            start += height
    if bool(hidden.any()):
        patch = Rectangle((0, 0), 1, 1, fill=False, hatch="////", lw=0, ec=theme.faint)
        word = rf"$-2^{{{math.log2(HIDDEN):.0f}}}$: hidden"
        axes.figure.legend([patch], [word], loc="outside lower right", frameon=False, fontsize=9)
