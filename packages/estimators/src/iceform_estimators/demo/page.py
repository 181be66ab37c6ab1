"""The demo's table and page: frozen attention on the Ames houses."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import iceform
from iceform import plots
from iceform.arithmetic import at_most
from iceform_estimators.command.console import grid
from iceform_estimators.demo.algorithms import (
    ComparisonRow,
    Tick,
    literal_difference,
    load,
    run_all,
)
from iceform_estimators.demo.program import ProgramDemo, execute
from iceform_estimators.machine import Machine
from iceform_estimators.pages import Illustration, illustrate, render_page, write


@dataclass(frozen=True, eq=False)
class Page:
    """Everything the page shows."""

    program: ProgramDemo
    rows: Sequence[ComparisonRow]
    illustrations: Sequence[Illustration]
    houses: int
    tests: int
    columns: int
    features: int
    repeats: int
    alphas: dict[str, float]
    machine: Machine
    literal: float
    seconds: float
    version: str
    torch_version: str

    @property
    def digest(self) -> str:
        """The digest of all rows but averages."""
        return self.rows[0].digest

    @property
    def weights(self) -> str:
        """Which rows have it, in words."""
        others = [row for row in self.rows if row.digest != self.digest]
        if not others:
            return "the same for every row"
        return (
            f"the same for {len(self.rows) - len(others)} rows; {len(others)} hold all houses in "
            f"one prompt, by a larger layer, {others[0].digest[:12]}"
        )

    @property
    def same(self) -> list[ComparisonRow]:
        """The rows in which both sides compute the same thing."""
        return [row for row in self.rows if row.same]

    @property
    def worst(self) -> float:
        """The largest difference to scikit-learn of those."""
        return max(row.difference for row in self.same)

    @property
    def passes(self) -> int:
        """Passes of all algorithms together."""
        return sum(row.passes for row in self.rows)

    @property
    def parameters(self) -> int:
        """Frozen numbers."""
        return sum(buffer.numel() for buffer in self.machine.network.buffers())


# ---------------------------------------------------------------------------------------------
# pictures
# ---------------------------------------------------------------------------------------------


def _differences(rows: Sequence[ComparisonRow]) -> Illustration:
    def draw(theme: plots.Theme) -> Figure:
        with theme.applied():
            figure = Figure(figsize=(7, 1 + len(rows) / 3), layout="constrained")
            axes = figure.subplots()
            places = np.arange(len(rows))[::-1]
            seen = [max(row.difference, np.finfo(float).eps) for row in rows]
            proven = [row.certified for row in rows]
            axes.hlines(places, seen, proven, color=theme.faint, linewidth=1, alpha=0.5)
            axes.plot(seen, places, "o", color=theme.spectral, label="apart from scikit-learn")
            axes.plot(
                proven, places, "|", color=theme.hard, markersize=13, markeredgewidth=3,
                label="proven: at most this far from exact",
            )  # fmt: skip
            axes.set_xscale("log")
            axes.set_yticks(places, [f"{row.name}, {row.task.rstrip('?')}" for row in rows])
            axes.tick_params(axis="y", length=0)
            axes.set_xlabel("largest difference, relative to the largest entry")
            axes.grid(axis="x")
            axes.spines["left"].set_visible(False)
            figure.legend(loc="outside upper left", ncols=2)
        return figure

    return illustrate(
        draw,
        title="How close is close?",
        text=(
            "A dot is how far the answers of the frozen layer and of scikit-learn are apart, a bar "
            "how far ours can be from the exact one at all. The proof is made for these data after "
            "the run: the gradient at the answer, its rounding bounded, and the curvature there."
        ),
        alt="Differences to scikit-learn and certified bounds of every algorithm",
    )


# ---------------------------------------------------------------------------------------------
# running and showing
# ---------------------------------------------------------------------------------------------


def run(folder: Path, rows: int | None = None, tick: Tick = lambda what: None) -> Page:
    """Run everything.

    Parameters
    ----------
    folder
        Where the GPT-2 goes.
    rows
        Only so many houses, for a quick look.
    tick
        Called with a few words after each piece of work.
    """
    started = time.perf_counter()
    program = execute(folder)
    tick("an algorithm of ten lines")
    data = load(rows)
    table, alphas = run_all(data, tick)
    machine = Machine(data.x.shape[1] + 1, layout="stream")
    literal = literal_difference(data, machine)
    tick("the literal matrices")
    figures = [_differences([r for r in table if r.same])]
    return Page(
        program=program,
        rows=table,
        illustrations=figures,
        houses=len(data.x),
        tests=len(data.x_test),
        columns=data.features,
        features=data.x.shape[1],
        repeats=data.repeats,
        alphas=alphas,
        machine=machine,
        literal=literal,
        seconds=time.perf_counter() - started,
        version=iceform.__version__,
        torch_version=torch.__version__,
    )


def show(out: Path, *, rows: int | None = None) -> Page:
    """Run, telling the stage on standard error; print the table; write the page to ``out``.

    Beside the page is the folder ``descent-gpt2``, the checkpoint that it speaks of.
    """

    def tick(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{what:<60}\r", end="", file=sys.stderr, flush=True)

    page = run(out.parent / "descent-gpt2", rows, tick)
    print(_first(page.program))
    print(_table(page))
    print(_words(page))
    write(out, render_page("demo.html.j2", page=page))
    print(f"{page.seconds:.0f} s; the report is in {out}")
    return page


def _first(ran: ProgramDemo) -> str:
    return (
        f"{ran.source}\n\n"
        f"{ran.instructions} instructions in a prompt of {ran.tokens} tokens. One frozen block of "
        f"four attention layers, weights {ran.digest[:12]},\nexecuted them in {ran.cycles} cycles, "
        f"by its matrices alone: w = {_listed(ran.answer)};\n"
        f"proven {at_most(ran.certified, '.1e')} from the exact result; torch running the same "
        "lines is "
        f"{ran.measured:.1e} away\n\n"
        f"The same lines as a stock GPT-2 of {ran.stock.layers} layers, a step each, loaded by "
        f"AutoModel from {ran.stock.folder}:\nw = {_listed(ran.stock.answer)}; "
        f"proven {at_most(ran.stock.certified, '.1e')} from the exact result, measured "
        f"{ran.stock.measured:.1e}\n"
    )


def _listed(answer: torch.Tensor) -> str:
    return ", ".join(f"{value:.6f}" for value in answer.tolist())


def _table(page: Page) -> str:
    names = [row.name for row in page.rows]
    rows = [["algorithm", "iceform", "sklearn", "apart", "proven", "passes", "sec"]]
    for row in page.rows:
        rows.append(
            [
                row.name if names.count(row.name) == 1 else f"{row.name}, {row.measure}",
                f"{row.score:.4f}",
                f"{row.other_score:.4f}",
                f"{row.difference:.0e}" + ("" if row.same else "*"),
                at_most(row.certified, ".0e"),
                str(row.passes),
                f"{row.seconds:.1f}",
            ]
        )
    title = (
        f"Ames housing by frozen attention: {page.houses} houses to learn from, {page.tests} to "
        "test on"
    )
    return f"{title}\n\n{grid(rows, right=range(1, 7))}"


def _words(page: Page) -> str:
    lines = [
        f"weights {page.digest[:12]}, {page.weights}",
        "scores: test MSE of the log price, test accuracy, share of the test prices below the",
        "        quantile, share of the variance",
        "apart:  largest difference to scikit-learn's coefficients (or fitted values, predictions,",
        "        components), relative to the largest; * not the same algorithm",
        "proven: certified distance to the exact answer, same scale; inf: nothing is proven",
    ]
    return "\n".join(lines) + "\n"
