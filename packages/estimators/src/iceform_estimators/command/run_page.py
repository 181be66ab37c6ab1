"""The page of ``iceform run --report``: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import confusion_matrix

import iceform
from iceform.plots import Theme
from iceform_estimators.command.console import SAID, SHOWN, figure, proven, subject
from iceform_estimators.command.running import Coefficient, Predictions, TableRun
from iceform_estimators.pages import Illustration, illustrate, render_page

_NAME = 30  # characters of a coefficient's name there
_POINTS = 4000  # in a scatter plot; more only darken it


def page(run: TableRun, command: str) -> str:
    """The page as text.

    Parameters
    ----------
    run
        What it shows.
    command
        How to get it again.
    """
    entry = run.settings.entry
    goal = f"for {run.target}" if entry.needs_target() else f"of {run.source}"
    return render_page(
        "run.html.j2",
        figure=figure,
        run=run,
        entry=entry,
        title=f"{entry.title} {goal}",
        facts=_facts(run),
        proven=proven(run),
        peer="" if run.peer is None else run.peer.name.rpartition(".")[2],
        found=_coefficient_picture(run),
        predicted=_prediction_picture(run),
        command=command,
        infinity=math.inf,
        version=iceform.__version__,
        torch_version=torch.__version__.partition("+")[0],
    )


def _facts(run: TableRun) -> list[dict[str, Any]]:
    score = run.scores[0]
    facts: list[dict[str, Any]] = [{"label": f"{score.name} on {_rows(run)}", "value": score.ours}]
    if score.peer is not None:
        facts.append({"label": "the same by scikit-learn", "value": score.peer})
    if math.isfinite(run.certificate.error):
        what = subject(run).split(";")[-1].strip()
        label = f"{run.certificate.kind}: {what} off by more"
        facts.append({"label": label, "bound": run.certificate.error})
    return [*facts, {"label": "digest of the frozen weights", "code": run.model.digest_[:12]}]


def _rows(run: TableRun) -> str:
    return "rows it never saw" if run.data.scored == "test" else "the rows it learnt from"


def _coefficient_picture(run: TableRun) -> Illustration | None:
    kept = sorted((c for c in run.coefficients if c.value), key=lambda c: -abs(c.value))[:SHOWN]
    if not kept:
        return None
    unique = "not unique" not in subject(run)
    name = SAID[run.certificate.kind].lower()
    text = (
        f"One dot per coefficient, with a bar as wide as its {name} error; where no bar shows, it "
        "is narrower than the dot."
        if unique
        else "One dot per coefficient. Other coefficients fit the data as well, and what is "
        f"{name} is of the fitted values."
    )
    if kept[0].peer is not None:
        text += " Rings are those of scikit-learn."
    error = run.certificate.error if unique and math.isfinite(run.certificate.error) else 0.0
    return illustrate(
        lambda theme: coefficients(kept, error, theme),
        title="What it found",
        text=text,
        alt="Largest coefficients" + (f" with their {name} errors" if unique else ""),
    )


def coefficients(kept: list[Coefficient], error: float, theme: Theme) -> Figure:
    """Coefficients with bars of this error, and rings where scikit-learn's are."""
    names = [c.name if len(c.name) <= _NAME else c.name[: _NAME - 1] + "…" for c in kept]
    places = range(len(kept))
    with theme.applied():
        drawn = Figure(figsize=(6, 1 + len(kept) / 4), layout="constrained")
        axes = drawn.subplots()
        axes.axvline(0, color=theme.faint, lw=1)
        if kept[0].peer is not None:
            theirs = [c.peer or 0.0 for c in kept]
            axes.plot(theirs, places, "o", mfc="none", mec=theme.hard, ms=9)
        values = [c.value for c in kept]
        axes.errorbar(values, places, xerr=error, fmt="o", color=theme.spectral, ms=4, capsize=3)
        axes.set_yticks(list(places), labels=names)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        _finish(axes, "coefficient", "")
    return drawn


def _prediction_picture(run: TableRun) -> Illustration | None:
    task = run.settings.entry.task
    part = next(part for part in run.parts if part.name == run.data.scored)
    seen = f"one of {len(part.rows):,} {_rows(run)}"
    if task == "classification":
        if part.actual is None or len(np.unique(part.actual)) > SHOWN:
            return None
        return illustrate(
            lambda theme: confusions(part, theme),
            title="How well it predicts",
            text=f"All {len(part.rows):,} {_rows(run)}: what they are, and what was predicted.",
            alt="Table of actual and predicted classes",
        )
    if task == "regression":
        names = (f"{run.target}, as it is", f"{run.target}, as predicted")
        return illustrate(
            lambda theme: scatter(part.actual, part.predicted, names, theme, diagonal=True),
            title="How well it predicts",
            text=f"Each dot is {seen}; on the line, it is right.",
            alt="Predicted against actual values",
        )
    if part.predicted.shape[1] < 2:
        return None
    x, y = part.predicted[:, :2].T
    return illustrate(
        lambda theme: scatter(x, y, ("first component", "second component"), theme),
        title="The data along the first two",
        text=f"Each dot is {seen}.",
        alt="Scatter of the first two components",
    )


def scatter(
    x: Any, y: Any, names: tuple[str, str], theme: Theme, *, diagonal: bool = False
) -> Figure:
    """Points of the plane, with the line on which y is x where that is asked for."""
    with theme.applied():
        drawn = Figure(figsize=(6, 5), layout="constrained")
        axes = drawn.subplots()
        if diagonal:
            ends = [min(x.min(), y.min()), max(x.max(), y.max())]
            axes.plot(ends, ends, color=theme.hard, lw=1)
        shown = slice(0, _POINTS)
        axes.plot(x[shown], y[shown], "o", color=theme.spectral, ms=4, alpha=0.5, mew=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _finish(axes, *names)
    return drawn


def _finish(axes: Any, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="both" if y else "x")


def confusions(part: Predictions, theme: Theme) -> Figure:
    """Counts of actual and predicted classes."""
    assert part.actual is not None
    labels = np.unique(np.concatenate([part.actual, part.predicted]))
    counts = confusion_matrix(part.actual, part.predicted, labels=labels)
    names = [str(name)[:12] for name in labels]
    with theme.applied():
        drawn = Figure(figsize=(6, 1 + len(labels) / 2), layout="constrained")
        axes = drawn.subplots()
        axes.imshow(counts, cmap=theme.colormap, aspect="auto")
        for (i, j), count in np.ndenumerate(counts):
            color = theme.paper if count > counts.max() / 2 else theme.ink
            axes.text(j, i, f"{count:,}" if count else "·", ha="center", va="center", color=color)
        axes.set_xticks(range(len(labels)), labels=names)
        axes.set_yticks(range(len(labels)), labels=names)
        axes.tick_params(length=0)
        axes.set(xlabel="predicted", ylabel="actual")
        axes.spines[:].set_visible(False)
    return drawn
