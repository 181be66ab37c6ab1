"""Axes that pictures share: powers of ten, tokens and features by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from torch import Tensor

from iceform.errors import ShapeError
from iceform.heads import LayerTrace
from iceform.plots.themes import Theme

NAMED = 16  # names that an axis has room for
_APART = 1 / 28  # of the axis, between one name and the next
_SIGNED_DECADES = 4  # of either sign that colours tell apart; smaller is linear
TINY = 1e-17  # where an error of exactly zero is drawn on a logarithmic axis


def positive(values: Sequence[float]) -> list[float]:
    """Values that a logarithmic axis can show."""
    return [max(value, TINY) for value in values]


def power_of_ten(exponent: int) -> str:
    """As a label."""
    return rf"$10^{{{exponent}}}$" if exponent else "1"


def signed_norm(values: Tensor) -> tuple[SymLogNorm, int]:
    """Colours that are logarithmic in either sign, and the largest power of ten that is reached."""
    largest = float(values.nan_to_num().abs().max()) or 1.0
    top = math.floor(math.log10(largest))
    return SymLogNorm(10.0 ** (top - _SIGNED_DECADES), vmin=-largest, vmax=largest), top


def without_frame(axes: Axes) -> None:
    """Take away the ticks and the frame."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def where_single(tokens: Tensor) -> tuple[int, ...]:
    """Where in a batch of one its prompt is; more are refused: a picture is of one."""
    batch = tokens.shape[:-2]
    if math.prod(batch) != 1:
        raise ShapeError(
            f"a figure shows one prompt, got tokens of shape {tuple(tokens.shape)}; "
            f"draw one of them: trace.of({', '.join('0' for _ in batch)}), or tokens"
            f"[{', '.join('0' for _ in batch)}]"
        )
    return tuple(0 for _ in batch)


def single(layer: LayerTrace) -> LayerTrace:
    """One layer's trace of one prompt, without axes of a batch."""
    return layer.of(*where_single(layer.tokens))


def asked_queries(layer: LayerTrace) -> list[str]:
    """Names of the queries that are drawn."""
    return list(itertools.compress(layer.queries, layer.asked.tolist()))


def token_groups(roles: Sequence[str]) -> list[tuple[str, int]]:
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


def _with_room(starts: Sequence[float]) -> list[int]:
    """Groups whose middle is far enough from that of the one before, or as far as all are."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(starts)]
    if len(middles) > NAMED:
        return list(range(len(middles)))
    apart = _APART * (starts[-1] - starts[0])
    shown = [0]
    for i, middle in enumerate(middles):
        if middle - middles[shown[-1]] >= apart:
            shown.append(i)
    return shown


def name_axis(
    axes: Axes, side: str, groups: Sequence[tuple[str, float]], theme: Theme, word: str
) -> None:
    """Name the middle of every group that has room; numbers of one thing name it once."""
    starts = [0.0, *itertools.accumulate(size for _, size in groups)]
    shown = _with_room(starts)[:: math.ceil(len(groups) / NAMED)]
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
    if len(groups) <= NAMED and any(size > 1 for _, size in groups):
        for edge in starts[1:-1]:
            line(edge - 0.5, color=theme.faint, lw=1)
