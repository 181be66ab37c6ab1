"""By how much the right block wins, query by query."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iceform.heads import LayerTrace, Trace
from iceform.plots.axes import asked_queries, name_axis, power_of_ten, single, without_frame
from iceform.plots.themes import LIGHT, THIN, WIDTH, Theme

_ROOM = 1.15  # of the largest margin: what an axis of margins shows, and where legends begin
_LEAKS = 5  # powers of ten that an axis of leaks has room for
_VANISHES = 1075 * math.log(2)  # e^-m is 0 in float64 beyond: half of the smallest number


def margins(trace: Trace | LayerTrace, *, theme: Theme = LIGHT) -> Figure:
    """The margin of every query that asks, and on the right the leak that it implies.

    Where a margin is so large that exactly nothing leaks the axis is logarithmic.

    Parameters
    ----------
    trace
        A trace of one instance, or one layer of it.
    theme
        LIGHT or DARK.

    Examples
    --------
    >>> from iceform.paper import GradientStep
    >>> step = GradientStep("squared", 0.5, dim=2, samples=2, eps=1e-2, backend="literal")
    >>> x, y, w = torch.eye(2).double(), torch.ones(2).double(), torch.zeros(2).double()
    >>> len(margins(step.trace(x, y, w)["layers.1"]).axes) > 0
    True
    """
    layers = [trace] if isinstance(trace, LayerTrace) else [x for x in trace if x.labels]
    layers = [single(layer) for layer in layers]
    with theme.applied():
        figure = Figure(figsize=(WIDTH, 3 * len(layers)), layout="constrained")
        panels = figure.subplots(len(layers), 1, squeeze=False)[:, 0]
        for axes, layer in zip(panels, layers, strict=True):
            _margin_panel(axes, layer, theme)
    return figure


def _margin_panel(axes: Axes, layer: LayerTrace, theme: Theme) -> None:
    values = layer.margins[:, layer.asked].detach().cpu().double()
    few = len(values) <= len(theme.lines)
    for head, row in enumerate(values):
        colour = theme.lines[head] if few else theme.spectral
        axes.plot(row.tolist(), "o", color=colour, ms=4, label=layer.labels[head])
    name_axis(axes, "x", [(q.split(",")[0], 1) for q in asked_queries(layer)], theme, "query")
    largest = float(values.nan_to_num(0, 0).max()) or 1.0
    vanishes = largest > _VANISHES
    if vanishes:
        axes.set_yscale("log", base=2)
        axes.set_ylim(1, largest**_ROOM)
    else:
        axes.set_ylim(largest - _ROOM * largest, _ROOM * largest)
    axes.set_ylabel("best key ahead by" if layer.own is None else "own block ahead by")
    axes.grid(axis="y")
    heads = layer.labels[0] if len(values) == 1 else f"{len(values)} heads"
    axes.set_title(f"{layer.name}: {heads}", loc="left")
    if layer.own is not None:
        unit = -math.log(torch.finfo(layer.scores.dtype).eps / 2)
        _line(axes, unit, "unit roundoff leaks", theme)
    if vanishes:
        _line(axes, _VANISHES, "beyond, nothing does", theme)
    beside = _ROOM if not vanishes and _leak_axis(axes, layer) else 1.0
    if few and len(values) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(beside, 0.5), fontsize=9, handletextpad=0)


def _line(axes: Axes, at: float, text: str, theme: Theme) -> None:
    """A margin that means something."""
    axes.axhline(at, color=theme.hard, ls="--", lw=THIN)
    axes.annotate(text, (0, at), (0, -3), textcoords="offset points", va="top",
                  color=theme.hard, fontsize=9)  # fmt: skip


def _leak_axis(axes: Axes, layer: LayerTrace) -> bool:
    """Powers of ten on the right: what leaves the block, or at most misses the best key."""
    bottom, top = axes.get_ylim()
    rivals = 1 if layer.own is not None else layer.scores.shape[-1] - 1
    powers = range(1, math.ceil(top / math.log(10)) + 1)
    within = [k for k in powers if _margin_of(k, rivals) <= top]
    if not within:
        return False
    every = math.ceil(len(within) / _LEAKS)
    shown = within[every - 1 :: every]
    right = axes.twinx()
    right.set_ylim(bottom, top)
    right.set_yticks(
        [_margin_of(k, rivals) for k in shown], labels=[power_of_ten(-k) for k in shown]
    )
    right.set_ylabel("and leaks" if layer.own is not None else "and misses at most")
    without_frame(right)
    return True


def _margin_of(power: int, rivals: int) -> float:
    """The margin over ``rivals`` scores at which 10^-power is lost: rivals e^-m / (1 + ...)."""
    return math.log(max(rivals, 1)) + power * math.log(10) + math.log1p(-(10**-power))
