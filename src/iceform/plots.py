"""Pictures of what a softmax look-up does, as matplotlib figures.

Each function draws what it is given and returns a new :class:`matplotlib.figure.Figure`; nothing
touches pyplot or a display. ``python -m iceform.plots FOLDER`` writes the README's picture.
"""

from __future__ import annotations

import io
import itertools
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
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from torch import Tensor

from iceform.constructions.base import Prompt
from iceform.constructions.residual import ResidualEmulator
from iceform.errors import ShapeError
from iceform.inspection import LayerTrace, Trace
from iceform.interpolation import Interpolant

__all__ = [
    "DARK",
    "LIGHT",
    "ErrorCurve",
    "Theme",
    "attention",
    "error_against_tokens",
    "error_curves",
    "features",
    "lookup_weights",
    "margins",
    "png",
    "trajectories",
]

TOKENS = (17, 25, 33, 49, 65, 97, 129)  # grid sizes of the standard study
_MESH = 20_011  # points at which errors are measured; a prime, so that no node is favoured
_DPI = 160
_DECADES = 30  # of attention that a heat map tells apart
_SIGNED_DECADES = 4  # of either sign that a prompt's picture tells apart; smaller is linear
_COLUMNS = 14  # names of features that fit side by side
_NAMED = 16  # groups of tokens that an axis has room to name
_LEAKS = 5  # powers of ten that an axis of leaks has room for
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
    source: ResidualEmulator | LayerTrace, *inputs: Tensor, head: int = 0, theme: Theme = LIGHT
) -> Figure:
    """Attention of the queries that are read over all keys; in decades where there are blocks.

    Parameters
    ----------
    source
        Any construction on residuals, with few samples; or one layer of a trace.
    inputs
        For a construction: one data set and its coefficients (x, y, w).
    head
        Which head of the layer.
    theme
        LIGHT or DARK.
    """
    layer = source if isinstance(source, LayerTrace) else source.trace(*inputs)["layers.0"]
    _check_single(layer.tokens)
    with theme.applied():
        figure = Figure(figsize=(6.2, 4.2 if layer is source else 3.5), layout="constrained")
        axes = figure.subplots()
        draw = _weights if layer.own is None else _decades
        draw(axes, layer, head, theme)
        if isinstance(source, LayerTrace):
            _name_axis(axes, "x", _groups(layer.keys), theme, "key")
            _name_axis(axes, "y", _groups(_read_queries(layer)), theme, "query")
            axes.set_title(f"{layer.name}: {layer.labels[head]}", loc="left")
        else:
            _block_axes(axes, layer.scores.shape[-1], source, theme)
            axes.set_title(_margin_title(source.margin, layer.smallest_margin), loc="left")
        _bare(axes)
    return figure


def _decades(axes: Axes, layer: LayerTrace, head: int, theme: Theme) -> None:
    """Powers of ten, which show what leaks out of the blocks."""
    decades = torch.log_softmax(layer.scores[head, layer.read], -1).detach().cpu() / math.log(10)
    image = axes.imshow(
        decades.numpy(), cmap=theme.colormap, vmin=-_DECADES, vmax=0,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    bar = axes.figure.colorbar(image, ax=axes, label="attention weight", pad=0.02, extend="min")
    ticks = range(-_DECADES, 1, 10)
    bar.set_ticks(list(ticks), labels=[_power(t) for t in ticks])


def _weights(axes: Axes, layer: LayerTrace, head: int, theme: Theme) -> None:
    """The weights themselves, of look-ups that read several keys at once."""
    weights = layer.attention[head, layer.read].detach().cpu()
    image = axes.imshow(
        weights.numpy(), cmap=theme.colormap, norm=PowerNorm(0.5, 0, 1),
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.figure.colorbar(image, ax=axes, label="attention weight", pad=0.02)


def _power(exponent: int) -> str:
    return rf"$10^{{{exponent}}}$" if exponent else "1"


def _check_single(tokens: Tensor) -> None:
    if tokens.ndim != 2:
        raise ShapeError(
            f"a figure shows one prompt, got tokens of shape {tuple(tokens.shape)}; "
            "draw one instance of the batch"
        )


def _read_queries(layer: LayerTrace) -> list[str]:
    return list(itertools.compress(layer.queries, layer.read.tolist()))


def _margin_title(frozen: float, smallest: float) -> str:
    """What leaks is 1/(1 + e^margin), so less than e^-margin."""
    if math.isinf(smallest):
        return f"margin M = {frozen:.0f}: nothing strays"
    power = math.ceil(-smallest / math.log(10))
    return rf"margin M = {frozen:.0f}: less than $\mathbf{{10^{{{power}}}}}$ strays"


def _block_axes(axes: Axes, keys: int, emulator: ResidualEmulator, theme: Theme) -> None:
    """A column per look-up table, and one for the queries where they are keys themselves."""
    samples, block = emulator.domain.samples, emulator.interpolant.tokens
    edges = [block * i - 0.5 for i in range(1, samples + 1)]
    for edge in edges:
        axes.axvline(edge, color=theme.faint, lw=0.8)
    centres = [block * (i + 0.5) - 0.5 for i in range(samples)]
    numbers = [str(i + 1) for i in range(samples)]
    rest = [(samples * block + keys - 1) / 2] if keys > samples * block else []
    axes.set_xticks([*centres, *rest], labels=[*numbers, *["queries" for _ in rest]])
    axes.set_yticks(range(samples), labels=numbers)
    axes.set_xlabel("attends to the look-up table of sample")
    axes.set_ylabel("query of sample")


def _bare(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


# ---------------------------------------------------------------------------------------------
# axes of tokens and features
# ---------------------------------------------------------------------------------------------


def _groups(roles: Sequence[str]) -> list[tuple[str, int]]:
    """Runs of neighbouring tokens with a name for each run, and their lengths.

    A role is "group, member" or a group of its own. Beside longer runs, numbered groups of one
    token each have no room for a name and become one run.
    """
    firsts = [role.split(",")[0] for role in roles]
    runs = [(name, len(list(run))) for name, run in itertools.groupby(firsts)]
    if all(size == 1 for _, size in runs):
        return runs
    merged = []
    for (word, alone), same in itertools.groupby(runs, lambda run: (_word(run[0]), run[1] == 1)):
        members = list(same)
        if alone and len(members) > 1:
            last = members[-1][0].removeprefix(word).strip()
            merged.append((f"{members[0][0]}–{last}", len(members)))
        else:
            merged.extend(members)
    return merged


def _word(name: str) -> str:
    """A name without the number at its end."""
    return name.rstrip("0123456789").rstrip()


def _name_axis(
    axes: Axes, side: str, groups: Sequence[tuple[str, float]], theme: Theme, word: str
) -> None:
    """Name the middle of every group; where all are numbers of one thing, name that once."""
    starts = [0.0, *itertools.accumulate(size for _, size in groups)]
    shown = range(0, len(groups), math.ceil(len(groups) / _NAMED))
    names = [groups[i][0] for i in shown]
    words = {_word(name) for name, _ in groups}
    axis, line = (axes.xaxis, axes.axvline) if side == "x" else (axes.yaxis, axes.axhline)
    if len(words) == 1 < len(groups):
        names = [name.removeprefix(*words).strip() for name in names]
        word = next(w if " " in w else f"{word} {w}" for w in words)
    middles = [starts[i] + (groups[i][1] - 1) / 2 for i in shown]
    slanted = side == "x" and len(words) > 1
    slant: Any = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": 9} if slanted else {}
    )
    axis.set_ticks(middles, labels=names, **slant)
    axis.set_label_text(word)
    if len(groups) <= _NAMED and any(size > 1 for _, size in groups):
        for edge in starts[1:-1]:
            line(edge - 0.5, color=theme.faint, lw=0.8)


# ---------------------------------------------------------------------------------------------
# what the prompt says
# ---------------------------------------------------------------------------------------------


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
    _check_single(prompt.tokens)
    values = prompt.tokens.detach().cpu().double()
    tokens, count = values.shape
    # Blocks of few features among many are drawn wide enough to be named.
    blocks = [(name, max(size, count / _COLUMNS)) for name, size in prompt.features.sizes]
    with theme.applied():
        figure = Figure(figsize=(6.2, 5.0), layout="constrained")
        axes = figure.subplots()
        _signed_map(axes, values, _edges(prompt.features.sizes, blocks), theme)
        _name_axis(axes, "x", blocks, theme, "feature")
        _name_axis(axes, "y", _groups(prompt.roles), theme, "token")
        _bare(axes)
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
    ticks = [(-(10.0**p), f"−{_power(p)}") for p in powers] + [(0.0, "0")]
    ticks += [(10.0**p, _power(p)) for p in powers]
    bar.set_ticks([at for at, _ in ticks], labels=[text for _, text in ticks])
    bar.minorticks_off()


# ---------------------------------------------------------------------------------------------
# margins
# ---------------------------------------------------------------------------------------------


def margins(trace: Trace | LayerTrace, *, theme: Theme = LIGHT) -> Figure:
    """The margin of every query that is read, and on the right the leak that it implies.

    Parameters
    ----------
    trace
        A trace of one instance, or one layer of it.
    theme
        LIGHT or DARK.
    """
    layers = [trace] if isinstance(trace, LayerTrace) else [x for x in trace if x.labels]
    for layer in layers:
        _check_single(layer.tokens)
    with theme.applied():
        figure = Figure(figsize=(6.2, 0.6 + 2.8 * len(layers)), layout="constrained")
        panels = figure.subplots(len(layers), 1, squeeze=False)[:, 0]
        for axes, layer in zip(panels, layers, strict=True):
            _margin_panel(axes, layer, theme)
    return figure


def _margin_panel(axes: Axes, layer: LayerTrace, theme: Theme) -> None:
    values = layer.margins[:, layer.read].detach().cpu().double()
    few = len(values) <= len(theme.lines)
    for head, row in enumerate(values):
        colour = theme.lines[head] if few else theme.spectral
        axes.plot(row.tolist(), "o", color=colour, ms=4, label=layer.labels[head])
    _name_axis(axes, "x", [(q.split(",")[0], 1) for q in _read_queries(layer)], theme, "query")
    largest = float(values.nan_to_num(0, 0).max()) or 1.0
    axes.set_ylim(-0.05 * largest, 1.15 * largest)
    axes.set_ylabel("best key ahead by" if layer.own is None else "own block ahead by")
    axes.grid(axis="y")
    heads = layer.labels[0] if len(values) == 1 else f"{len(values)} heads"
    axes.set_title(f"{layer.name}: {heads}", loc="left")
    if layer.own is not None:
        _rounding_line(axes, layer, theme)
    beside = 1.16 if _leak_axis(axes, layer) else 1.0
    if few and len(values) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(beside, 0.5), fontsize=9, handletextpad=0.1)


def _rounding_line(axes: Axes, layer: LayerTrace, theme: Theme) -> None:
    """Where what leaks would be the unit roundoff of the layer's dtype."""
    at = -math.log(torch.finfo(layer.scores.dtype).eps / 2)
    axes.axhline(at, color=theme.hard, ls="--", lw=1.3)
    axes.annotate("unit roundoff", (0, at), (0, -3), textcoords="offset points", va="top",
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
    right.set_yticks([_margin_of(k, rivals) for k in shown], labels=[_power(-k) for k in shown])
    right.set_ylabel("and leaks" if layer.own is not None else "and misses at most")
    _bare(right)
    return True


def _margin_of(power: int, rivals: int) -> float:
    """The margin over ``rivals`` scores at which 10^-power is lost: rivals e^-m / (1 + ...)."""
    return math.log(max(rivals, 1)) + power * math.log(10) + math.log1p(-(10.0**-power))


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
