"""The page of ``iceform run --report``: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

import iceform
from iceform.plots import Theme
from iceform_estimators.command.console import SAID, figure, proven, subject
from iceform_estimators.command.running import Coefficient, Part, Run
from iceform_estimators.pages import Illustration, illustrate, render_page

_SHOWN = 18  # coefficients in the picture
_NAME = 30  # characters of a coefficient's name there
_CLASSES = 12  # that a table of confusions has room for
_POINTS = 4000  # in a scatter plot; more only darken it
_LEAST = 1e-18  # where a difference of exactly zero is drawn


@dataclass(frozen=True)
class _Fact:
    label: str
    value: str = ""
    code: str = ""
    bound: float | None = None


def page(run: Run, command: str) -> str:
    """The page as text.

    Parameters
    ----------
    run
        What it shows.
    command
        How to get it again.
    """
    return render_page(
        "run.html.j2",
        figure=figure,
        run=run,
        entry=run.settings.entry,
        title=_title(run),
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


def _title(run: Run) -> str:
    entry = run.settings.entry
    return (
        f"{entry.title} for {run.target}"
        if entry.needs_target()
        else f"{entry.title} of {run.source}"
    )


def _facts(run: Run) -> list[_Fact]:
    score = run.scores[0]
    rows = "rows it never saw" if run.scored == "test" else "the rows it learnt from"
    facts = [_Fact(f"{score.name} on {rows}", figure(score.ours))]
    if score.peer is not None:
        facts.append(_Fact("the same by scikit-learn", figure(score.peer)))
    if math.isfinite(run.certificate.error):
        what = subject(run).split(";")[-1].strip()
        facts.append(
            _Fact(f"{run.certificate.kind}: {what} off by more", bound=run.certificate.error)
        )
    facts.append(_Fact("digest of the frozen weights", code=run.digest[:12]))
    return facts


# ---------------------------------------------------------------------------------------------
# pictures
# ---------------------------------------------------------------------------------------------


def _coefficient_picture(run: Run) -> Illustration | None:
    kept = sorted((c for c in run.coefficients if c.value), key=lambda c: -abs(c.value))[:_SHOWN]
    if not kept:
        return None
    beside = kept[0].peer is not None
    unique = "not unique" not in subject(run)
    certified = run.certificate.error if unique else math.inf
    name = SAID[run.certificate.kind].lower()
    text = (
        f"One dot per coefficient, with a bar as wide as its {name} error; where no bar shows, "
        "it is narrower than the dot."
        if unique
        else "One dot per coefficient. Other coefficients fit the data as well, and what is "
        f"{name} is of the fitted values."
    )
    if beside:
        text += " Rings are those of scikit-learn. On the right, how far the two are apart."
    if beside and max(abs(c.value - (c.peer or 0.0)) for c in kept) > certified:
        peer = run.settings.entry.peer
        differs = peer.differs if peer else ""
        text += (
            f" The {name} line bounds the distance from the exact optimum; where the two are "
            "farther apart, scikit-learn stopped its iteration earlier"
            + (f", or it is that {differs}." if differs else ".")
        )
    return illustrate(
        lambda theme: coefficients(kept, certified, theme, name),
        title="What it found",
        text=text,
        alt="Largest coefficients" + (f" with their {name} errors" if unique else ""),
    )


def coefficients(
    kept: Sequence[Coefficient], certified: float, theme: Theme, name: str = "certified"
) -> Figure:
    """Coefficients with error bars, and beside them the differences to scikit-learn's.

    ``name`` is what the bound is called: "certified" where it is proven, else "estimated".
    """
    names = [c.name if len(c.name) <= _NAME else c.name[: _NAME - 1] + "…" for c in kept]
    places = range(len(kept))
    beside = kept[0].peer is not None
    bar = certified if math.isfinite(certified) else 0.0
    with theme.applied():
        drawn = Figure(
            figsize=(7.4 if beside else 6.2, 1.2 + 0.27 * len(kept)), layout="constrained"
        )
        axes, *rest = np.ravel(
            drawn.subplots(1, 1 + beside, sharey=True, width_ratios=(3, 2) if beside else (1,))
        )
        axes.axvline(0, color=theme.faint, lw=0.8)
        if beside:
            axes.plot(
                [c.peer for c in kept], places, "o", mfc="none", mec=theme.hard, ms=9, mew=1.4
            )
        axes.errorbar([c.value for c in kept], places, xerr=bar, fmt="o", color=theme.spectral,
                      ms=4.5, capsize=3, lw=1.2)  # fmt: skip
        axes.set_yticks(list(places), labels=names)
        axes.invert_yaxis()
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("coefficient")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        for other in rest:
            _differences(other, kept, certified, theme, name)
    return drawn


def _tick(value: float, _: int) -> str:
    return f"{value:,.6g}".replace("-", "−")


def _differences(
    axes: object, kept: Sequence[Coefficient], certified: float, theme: Theme, name: str
) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    apart = [max(abs(c.value - (c.peer or 0.0)), _LEAST) for c in kept]
    axes.semilogx(apart, range(len(kept)), "o", color=theme.spectral, ms=4.5)
    if 0 < certified < math.inf:
        axes.axvline(certified, color=theme.hard, ls="--", lw=1.4)
        axes.annotate(name, (certified, 0), (4, 0), textcoords="offset points",
                      color=theme.hard, fontsize=9, va="center", annotation_clip=False)  # fmt: skip
    low = min([*apart, certified]) / 10
    high = max([*apart, certified if math.isfinite(certified) else 0.0]) * 30
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("apart from scikit-learn")


def _prediction_picture(run: Run) -> Illustration | None:
    part = next((p for p in run.parts if p.name == run.scored), None)
    if part is None:
        return None
    task = run.settings.entry.task
    rows = "rows it never saw" if run.scored == "test" else "the rows it learnt from"
    if task == "regression":
        return illustrate(
            lambda theme: actual_and_predicted(part, str(run.target), theme),
            title="How well it predicts",
            text=f"Each dot is one of {len(part.rows):,} {rows}; on the line, it is right.",
            alt="Predicted against actual values",
        )
    if task == "classification":
        if part.actual is None or len(np.unique(part.actual)) > _CLASSES:
            return None
        return illustrate(
            lambda theme: confusions(part, theme),
            title="How well it predicts",
            text=f"All {len(part.rows):,} {rows}: what they are, and what was predicted.",
            alt="Table of actual and predicted classes",
        )
    if part.predicted.shape[1] < 2:
        return None
    return illustrate(
        lambda theme: first_two(part, theme),
        title="The data along the first two",
        text=f"Each dot is one of {len(part.rows):,} {rows}.",
        alt="Scatter of the first two components",
    )


def actual_and_predicted(part: Part, target: str, theme: Theme) -> Figure:
    """A scatter of predictions over what is so."""
    assert part.actual is not None
    actual, predicted = part.actual[:_POINTS], part.predicted[:_POINTS]
    ends = [float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))]
    with theme.applied():
        drawn = Figure(figsize=(5.6, 4.6), layout="constrained")
        axes = drawn.subplots()
        axes.plot(ends, ends, color=theme.hard, lw=1.2)
        axes.plot(actual, predicted, "o", color=theme.spectral, ms=4, alpha=0.45, mew=0)
        axes.set_xlabel(f"{target}, as it is")
        axes.set_ylabel(f"{target}, as predicted")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
            axis.set_major_formatter(FuncFormatter(_tick))
        axes.grid()
    return drawn


def confusions(part: Part, theme: Theme) -> Figure:
    """Counts of actual and predicted classes."""
    assert part.actual is not None
    labels = np.unique(np.concatenate([part.actual, part.predicted]))
    place = {label: k for k, label in enumerate(labels.tolist())}
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    for was, said in zip(part.actual.tolist(), part.predicted.tolist(), strict=True):
        counts[place[was], place[said]] += 1
    with theme.applied():
        drawn = Figure(figsize=(6.2, 1.2 + 0.42 * len(labels)), layout="constrained")
        axes = drawn.subplots()
        axes.imshow(counts, cmap=theme.colormap, aspect="auto")
        for (i, j), count in np.ndenumerate(counts):
            strong = count > counts.max() / 2
            axes.text(j, i, f"{count:,}" if count else "·", ha="center", va="center",
                      color=theme.paper if strong else theme.ink)  # fmt: skip
        axes.set_xticks(range(len(labels)), labels=[str(n)[:12] for n in labels])
        axes.set_yticks(range(len(labels)), labels=[str(n)[:12] for n in labels])
        axes.tick_params(length=0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("actual")
        for side in axes.spines.values():
            side.set_visible(False)
    return drawn


def first_two(part: Part, theme: Theme) -> Figure:
    """Scores along the first two components."""
    with theme.applied():
        drawn = Figure(figsize=(5.6, 4.6), layout="constrained")
        axes = drawn.subplots()
        shown = part.predicted[:_POINTS]
        axes.plot(shown[:, 0], shown[:, 1], "o", color=theme.spectral, ms=4, alpha=0.45, mew=0)
        axes.set_xlabel("first component")
        axes.set_ylabel("second component")
        axes.grid()
    return drawn
