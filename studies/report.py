"""The report: tables and figures beside the published numbers, as HTML, Markdown and CSV."""

from __future__ import annotations

import base64
import io
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iceform import store
from iceform.errors import ProgramError
from studies.published import HEADS
from studies.tables import (
    Rates,
    Section,
    Series,
    Table,
    comparisons,
    number,
    rates,
    readers,
    sections,
    summary_csv,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["comparison_figure", "learning_figure", "rate_figure", "training_figure", "write"]

_DPI = 144
_COLOURS = ("#8a8a8a", "#b0413e", "#d98e04", "#7b5ea7", "#2b6777", "#1b998b", "#5a7d2a")
_MARKS = "osD^vPX"
_MOST_HEADS = max(HEADS)  # curves that end here are of trained heads
_LEAST_SHARE = 1e-7  # of the mean predictor's error, where the learning curves are cut off


def _axes(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ProgramError(
            f"the report needs {missing.name}; run pip install joblib iceform-estimators"
        ) from missing
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    return figure, list(axes)


def rate_figure(curves: Sequence[Rates]) -> Figure:
    """Error against heads and grid tokens, with fitted slopes; the trained heads once more."""
    figure, (ax, near) = _axes(12.0, 4.8, 2)
    for curve, colour, mark in zip(curves, _COLOURS, _MARKS, strict=False):
        label = f"{curve.label}: slope {number(curve.slope)}"
        style: dict[str, Any] = {"marker": mark, "color": colour, "linewidth": 1.6}
        ax.loglog(curve.sizes, curve.errors, label=label, **style)
        if curve.sizes[-1] <= _MOST_HEADS:
            near.loglog(curve.sizes, curve.errors, **style)
    ax.set_xlabel("heads (trained) or grid tokens (constructed)")
    ax.set_ylabel("root mean squared error of the head's output")
    ax.set_title("Emulating one attention head: error against size", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8.5, loc="center right")
    near.set_xlabel("heads")
    near.set_xticks(list(HEADS), list(map(str, HEADS)))
    near.minorticks_off()
    near.set_title("the trained ones", loc="left", fontsize=11)
    return figure


_TITLES = {
    "residual": "1: f(w.x - y) x",
    "heads": "2: one head, by heads",
    "statistics": "3: synthetic data",
    "housing": "4: houses",
}


def comparison_figure(studies: dict[str, list[Series]]) -> Figure:
    """The paper's test errors beside ours, with deviations, a panel for every study."""
    figure, axes = _axes(13.0, 4.0, len(studies))
    labels = list(dict.fromkeys(s.label for series in studies.values() for s in series))
    look = {
        label: {"color": colour, "fmt": mark}
        for label, colour, mark in zip(labels, _COLOURS, _MARKS, strict=False)
    }
    for ax, (study, series) in zip(axes, studies.items(), strict=True):
        places = list(dict.fromkeys(place for s in series for place, *_ in s.points))
        for s in series:
            aside = 0.13 * (labels.index(s.label) - (len(labels) - 1) / 2)
            at = [places.index(place) + aside for place, *_ in s.points]
            means = [mean for _, mean, _ in s.points]
            # A bar that would reach below zero has no end on this scale: it is cut off.
            low = [min(deviation, 0.999 * mean) for _, mean, deviation in s.points]
            high = [deviation for *_, deviation in s.points]
            style: dict[str, Any] = look[s.label]
            ax.errorbar(at, means, yerr=[low, high], capsize=3, markersize=4.5, **style)
        ax.set_yscale("log")
        ax.set_xticks(range(len(places)), places)
        ax.set_xlim(-0.5, len(places) - 0.5)
        ax.minorticks_off()
        ax.set_title(_TITLES[study], loc="left", fontsize=10)
    for label, style in look.items():
        axes[1].plot([], [], style["fmt"], color=style["color"], label=label)
    axes[0].set_ylabel("test MSE, mean and deviation")
    axes[1].legend(frameon=False, fontsize=7.5)
    return figure


def training_figure(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Study 2 in our reading: training error by epoch and number of heads, means over seeds."""
    own = [
        r for r in records
        if (r["study"], r["column"]) == ("heads", "our_reading")
        and r["variant"]["schedule"] == "constant" and r["variant"].get("probe") != "xavier"
    ]  # fmt: skip
    if not own:
        return None
    figure, (ax,) = _axes(8.4, 4.2)
    for heads, colour in zip(HEADS, _COLOURS, strict=False):
        for probe, style in ((None, "-"), ("longer", ":")):
            lines = [
                r["curves"]["train"] for r in own
                if (r["variant"]["heads"], r["variant"].get("probe")) == (heads, probe)
            ]  # fmt: skip
            if lines:
                means = [sum(values) / len(values) for values in zip(*lines, strict=True)]
                label = f"{heads} head{'s' * (heads > 1)}" + (
                    ", trained for longer" if probe else ""
                )
                ax.semilogy(range(1, len(means) + 1), means, style, color=colour, label=label)
    ax.set_xlabel("epoch")
    ax.set_ylabel("training MSE of K, Q and V")
    ax.set_title("Study 2 in our reading, constant rate", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8.5)
    return figure


def learning_figure(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Study 1's figure: train and test loss by epoch, with and without the leak."""
    wanted = (
        ("leak", "our reading: the targets are the input"),
        ("no-leak", "the same without the leak"),
        ("asked", "as the theorem asks"),
    )
    found = {
        name: [r for r in records if r["study"] == "residual" and r["variant"]["variant"] == name]
        for name, _ in wanted
    }
    if not all(found.values()):
        return None
    figure, axes = _axes(10.5, 3.6, len(wanted))
    for ax, (name, title) in zip(axes, wanted, strict=True):
        for r in found[name]:
            epochs = range(1, len(r["curves"]["train"]) + 1)
            share = [v / r["metrics"]["trivial mse"] for v in r["curves"]["train"]]
            held = [v / r["metrics"]["trivial mse"] for v in r["curves"]["test"]]
            ax.semilogy(epochs, share, color=_COLOURS[0], alpha=0.8, linewidth=1.2)
            ax.semilogy(epochs, held, color=_COLOURS[1], alpha=0.8, linewidth=1.2)
        ax.set_title(title, loc="left", fontsize=9.5)
        ax.set_xlabel("epoch")
        ax.set_ylim(_LEAST_SHARE, 3)
        ax.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes[0].set_ylabel("MSE over that of the mean")
    axes[0].plot([], [], color=_COLOURS[0], label="train")
    axes[0].plot([], [], color=_COLOURS[1], label="test")
    axes[0].legend(frameon=False, fontsize=8.5, loc="lower left")
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def write(records: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """All files of the report; the paths written."""
    if not records:
        raise ProgramError(
            "there are no results to report on; run `python -m studies run` first, or pass --out"
        )
    chapters = sections(records)
    curves = rates(records)
    figures = {
        "rates.png": rate_figure(curves),
        "heads.png": training_figure(records),
        "learning.png": learning_figure(records),
        "studies.png": comparison_figure(comparisons(records)),
    }
    images = {name: _png(figure) for name, figure in figures.items() if figure is not None}
    content: dict[str, bytes] = {
        **images,
        "report.md": markdown(chapters, tuple(images), records).encode(),
        "report.html": html(chapters, images, records).encode(),
        "summary.csv": summary_csv(records).encode(),
    }
    store.write({folder / name: data for name, data in content.items()})
    return [folder / name for name in content]


_ALT = {
    "studies.png": "Test errors of all studies with deviations, published and ours",
    "rates.png": "Error of an emulated attention head against heads and grid tokens",
    "heads.png": "Study 2: training error by epoch and number of heads, in our reading",
    "learning.png": "Study 1: error by epoch, in our reading and as the theorem asks",
}
_PLACE = {"residual": ("learning.png",), "heads": ("rates.png", "heads.png")}


def _origin(records: Sequence[dict[str, Any]]) -> str:
    """Scale, machines and versions, in a sentence."""
    scales = sorted({r["scale"] for r in records})
    machines = sorted(
        {f"{r['environment']['device']} (torch {r['environment']['torch']})" for r in records}
    )
    return f"Scale: {', '.join(scales)}. {len(records)} cells, computed on {'; '.join(machines)}."


_INTRODUCTION = (
    "The paper's four numerical studies: the numbers it prints; the authors' own code where it was "
    "run (their script); our networks with its data and settings (as published); what we first "
    "made of the text and of a description of the script (our reading); studies of our own on the "
    "same questions (as the theorem asks); and what the constructions give without training "
    "(constructed). Mean ± deviation over seeds."
)


@dataclass(frozen=True)
class _Image:
    name: str


Block = str | tuple[str, ...] | Table | _Image  # a heading or paragraph, a list, ...


def _document(
    chapters: Sequence[Section], images: Container[str], records: Sequence[dict[str, Any]]
) -> Iterator[Block]:
    """The report, whatever it is written in."""
    yield "# Numerical studies"
    yield _INTRODUCTION
    yield _origin(records)
    yield _Image("studies.png")
    yield readers(records)
    for chapter in chapters:
        yield f"## {chapter.title}"
        yield "What the public script does:"
        yield chapter.flaws
        yield f"Our reading differs from it: {chapter.read}."
        yield f"As the theorem asks: {chapter.asked}."
        yield "What was run:"
        yield chapter.ran
        yield from (_Image(name) for name in _PLACE.get(chapter.name, ()) if name in images)
        yield from chapter.tables


def markdown(
    chapters: Sequence[Section], images: Sequence[str], records: Sequence[dict[str, Any]]
) -> str:
    """The report for a repository."""
    lines: list[str] = []
    for block in _document(chapters, images, records):
        match block:
            case str():
                lines.append(block)
            case Table():
                lines += [f"**{block.caption}**", "", *markdown_table(block)]
            case _Image(name):
                lines.append(f"![{_ALT[name]}]({name})")
            case _:
                lines += [f"- {item}" for item in block]
        lines.append("")
    return "\n".join(lines)


def markdown_table(table: Table) -> list[str]:
    """The lines of a table."""

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [row(table.header), row(["---"] * len(table.header)), *map(row, table.rows)]


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.7rem}h2{margin-top:2.6rem;border-bottom:1px solid #ccc;padding-bottom:.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:.4rem 0 1.4rem;font-size:13px}
th,td{padding:.25rem .55rem;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:#f5f5f3;font-weight:600}
td{font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600;padding:.3rem 0}
img{max-width:100%;height:auto}
"""


def html(
    chapters: Sequence[Section], images: dict[str, bytes], records: Sequence[dict[str, Any]]
) -> str:
    """One page that needs nothing else."""

    def tagged(tag: str, text: str) -> str:
        return f"<{tag}>{escape(text)}</{tag}>"

    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(tagged(tag, cell) for cell in cells)}</tr>"

    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Numerical studies</title><style>{_STYLE}</style></head><body>",
    ]
    for block in _document(chapters, images, records):
        match block:
            case str():
                marks, _, text = block.partition(" ") if block[0] == "#" else ("", "", block)
                parts.append(tagged(f"h{len(marks)}" if marks else "p", text))
            case Table():
                body = [row("td", cells) for cells in block.rows]
                parts += ['<div class="wide"><table>', tagged("caption", block.caption)]
                parts += [row("th", block.header), *body, "</table></div>"]
            case _Image(name):
                data = base64.b64encode(images[name]).decode()
                source = f'src="data:image/png;base64,{data}"'
                parts.append(f'<p><img alt="{escape(_ALT[name])}" {source}></p>')
            case _:
                parts.append(f"<ul>{''.join(tagged('li', item) for item in block)}</ul>")
    return "\n".join([*parts, "</body></html>", ""])
