"""The attention map of a literal network."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from iceform.heads import LayerTrace, LookUpLayout
from iceform.paper import ResidualEmulator
from iceform.plots.axes import (
    asked_queries,
    name_axis,
    power_of_ten,
    single,
    token_groups,
    without_frame,
)
from iceform.plots.themes import LIGHT, PAD, WIDTH, Theme

_DECADES = 30  # of attention that a heat map tells apart


def attention(
    source: ResidualEmulator | LayerTrace, *inputs: Tensor, head: int = 0, theme: Theme = LIGHT
) -> Figure:
    """Attention of the queries that ask over all keys; in decades where there are blocks.

    Parameters
    ----------
    source
        Any construction on residuals, of one prompt's samples; or one layer of a trace.
    inputs
        For a construction: one data set and its coefficients (x, y, w).
    head
        Which head of the layer.
    theme
        LIGHT or DARK.

    Examples
    --------
    >>> from iceform.paper import GradientStep
    >>> step = GradientStep("squared", 0.5, dim=2, samples=2, eps=1e-2, backend="literal")
    >>> x, y, w = torch.eye(2).double(), torch.ones(2).double(), torch.zeros(2).double()
    >>> [axes.get_xlabel() for axes in attention(step, x, y, w).axes][:1]
    ['attends to the look-up table of sample']
    """
    layer = single(source if isinstance(source, LayerTrace) else source.trace(*inputs)["layers.1"])
    with theme.applied():
        tall = 4 if isinstance(source, LayerTrace) else 3
        figure = Figure(figsize=(WIDTH, tall), layout="constrained")
        axes = figure.subplots()
        draw = _weights if layer.own is None else _decades
        draw(axes, layer, head, theme)
        if isinstance(source, LayerTrace):
            name_axis(axes, "x", token_groups(layer.keys), theme, "key")
            name_axis(axes, "y", token_groups(asked_queries(layer)), theme, "query")
            axes.set_title(f"{layer.name}: {layer.labels[head]}", loc="left")
        else:
            _block_axes(axes, layer.scores.shape[-1], source.layout, theme)
            axes.set_title(_margin_title(source.layout.margin, layer), loc="left")
        without_frame(axes)
    return figure


def _decades(axes: Axes, layer: LayerTrace, head: int, theme: Theme) -> None:
    """Powers of ten, which show what leaks out of the blocks."""
    decades = torch.log_softmax(layer.scores[head, layer.asked], -1).detach().cpu() / math.log(10)
    image = axes.imshow(
        decades.numpy(), cmap=theme.colormap, vmin=-_DECADES, vmax=0,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    bar = axes.figure.colorbar(image, ax=axes, label="attention weight", pad=PAD, extend="min")
    ticks = range(-_DECADES, 1, 10)
    bar.set_ticks(list(ticks), labels=[power_of_ten(t) for t in ticks])


def _weights(axes: Axes, layer: LayerTrace, head: int, theme: Theme) -> None:
    """The weights themselves, of look-ups that read several keys at once."""
    weights = layer.attention[head, layer.asked].detach().cpu()
    image = axes.imshow(
        weights.numpy(), cmap=theme.colormap, norm=PowerNorm(0.5, 0, 1),
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.figure.colorbar(image, ax=axes, label="attention weight", pad=PAD)


def _margin_title(frozen: float, layer: LayerTrace) -> str:
    """What leaks is 1/(1 + e^margin), so less than e^-margin."""
    power = math.log2(frozen)
    size = rf"$\mathbf{{2^{{{power:.0f}}}}}$" if power == round(power) else f"{frozen:.0f}"
    if layer.largest_leak == 0:
        return f"margin M = {size}: nothing strays"
    strays = math.ceil(-layer.smallest_margin / math.log(10))
    return rf"margin M = {size}: less than $\mathbf{{10^{{{strays}}}}}$ strays"


def _block_axes(axes: Axes, keys: int, layout: LookUpLayout, theme: Theme) -> None:
    """A column per look-up table, and one for the queries where they are keys themselves."""
    samples, block = layout.samples, layout.tokens
    for i in range(1, samples + 1):
        axes.axvline(block * i - 0.5, color=theme.faint, lw=1)
    centres = [block * (i + 0.5) - 0.5 for i in range(samples)]
    numbers = [str(i + 1) for i in range(samples)]
    rest = [(samples * block + keys - 1) / 2] if keys > samples * block else []
    axes.set_xticks([*centres, *rest], labels=[*numbers, *["queries" for _ in rest]])
    axes.set_yticks(range(samples), labels=numbers)
    axes.set_xlabel("attends to the look-up table of sample")
    axes.set_ylabel("query of sample")
