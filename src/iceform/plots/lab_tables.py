"""Tables of ``ice.lab``: lines along numbers, bars along names."""

from __future__ import annotations

from matplotlib.figure import Figure

from iceform.lab import LabTable
from iceform.plots.themes import LIGHT, Theme


def lab_table(table: LabTable, *, logarithmic: bool = False, theme: Theme = LIGHT) -> Figure:
    """One line for each of the table's networks, or bars where its x are names.

    Parameters
    ----------
    table
        What was measured.
    logarithmic
        Whether y is drawn by its logarithm.
    theme
        LIGHT or DARK.

    Examples
    --------
    >>> from iceform.lab import LabTable
    >>> rows = (
    ...     {"network": "a", "step": 0, "error": 1.0},
    ...     {"network": "a", "step": 9, "error": 0.5},
    ... )
    >>> figure = lab_table(LabTable("errors", rows, "step", "error", "network"))
    >>> figure.axes[0].get_ylabel()
    'error'
    """
    along = list(dict.fromkeys(table.column(table.x)))
    groups = list(dict.fromkeys(table.column(table.by)))
    numbers = all(isinstance(value, int | float) for value in along)
    with theme.applied():
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for number, group in enumerate(groups):
            rows = table.where(**{table.by: group})
            colour = theme.lines[number % len(theme.lines)]
            x, y = rows.column(table.x), rows.column(table.y)
            if numbers:
                axes.plot(x, y, "o-", color=colour, ms=3, label=str(group))  # type: ignore[arg-type]
            else:
                width = 1 / (len(groups) + 1)
                at = [along.index(value) + number * width for value in x]
                axes.bar(at, y, width, color=colour, label=str(group))  # type: ignore[arg-type]
        if not numbers:
            middle = (len(groups) - 1) / (2 * (len(groups) + 1))
            axes.set_xticks([i + middle for i in range(len(along))], [str(a) for a in along])
        if logarithmic:
            axes.set_yscale("log")
        axes.set(xlabel=table.x, ylabel=table.y)
        axes.set_title(table.title, loc="left")
        axes.legend(fontsize=8)
    return figure
