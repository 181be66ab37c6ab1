"""The demo: six losses by one frozen module, the whole library by another, and a report.

The data are scikit-learn's diabetes set: 442 patients, ten measurements, one score. Every column
is scaled to [-1, 1], and every loss gets the score in the form it asks for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_diabetes
from torch import Tensor

import iceform
from iceform import demo_library, plots, programs
from iceform.constructions import GradientDescent, GradientStep, loss_named
from iceform.demo_library import PATIENTS, Tick
from iceform.errors import IntegrityError, PrecisionError
from iceform.interpolation import GradedGrid, Interpolant
from iceform.interpolation.regimes import on_grid
from iceform.report import Illustration, Library, LossRow, Report, illustrate, render, write

__all__ = [
    "DiabetesData",
    "frozen_step",
    "load_data",
    "run",
    "run_library",
    "run_losses",
    "shared_table",
    "show",
    "ticks",
]

SAMPLES = 64
PASSES = 3
TASKS = {
    "squared": "the score",
    "absolute": "the score, robustly",
    "huber": "the score, robustly",
    "logistic": "above or below the median",
    "hinge": "above or below the median",
    "poisson": "a count: the quartile",
}
_LR = 0.5
_X_NORM = 2.2  # the longest scaled sample has norm 2.11
_W_NORM = 1.0
_START = 0.9  # norm of the first coefficients, which point away from the solution

# The look-up table serves all losses: crowded at the Huber loss's corners, never coarser between
# them than the absolute loss's rounded corner needs. Found by a scan over these five numbers.
_REACH = 2.5  # z is looked up on [-2.5, 2.5]
_CELLS = 90
_GUARDS = 3
_GROWTH = 0.75
_EVEN = 0.4  # share of the cells that are spread evenly
_SHARPNESS = 0.25

_DESCENT_LR = 3.0
_DESCENT_L2 = 0.05
_DESCENT_NORM = 2.0
_DESCENT_PASSES = 40
_DESCENT_EPS = 1e-8
_SHOWN = 6  # samples in the attention map
_SHOWN_EPS = 1e-6
_SHOWN_TOKENS = 33  # grid tokens in the picture of look-up weights


@dataclass(frozen=True)
class DiabetesData:
    """Scaled samples, and labels for every kind of loss."""

    x: Tensor  # (n, 10)
    labels: dict[str, Tensor]  # by name of the loss, each (n,)


def load_data(samples: int = SAMPLES) -> DiabetesData:
    """Patients spread evenly over the set, entries in [-1, 1]."""
    raw, score = map(torch.from_numpy, load_diabetes(return_X_y=True))
    x = raw / raw.abs().amax(0)
    targets = demo_library.targets_of(score)
    labels = {
        "squared": targets["score"],
        "absolute": targets["score"],
        "huber": targets["score"],
        "logistic": targets["above"],
        "hinge": targets["side"],
        "poisson": targets["count"],
    }
    rows = torch.linspace(0, len(x) - 1, samples).long()
    return DiabetesData(x[rows], {name: label[rows] for name, label in labels.items()})


def shared_table() -> Interpolant:
    """The look-up table whose keys every loss shares, with the Huber loss's values."""
    f = loss_named("huber").derivative
    reach = _REACH * (1 + 1e-12)  # a computed z may be rounded past the range
    coarsest = 2 * reach / (_EVEN * _CELLS)
    kinks = f.kinks_in(-reach, reach)
    grid = GradedGrid(-reach, reach, _CELLS, _GUARDS, kinks, _GROWTH, coarsest)
    return on_grid(f, grid, _SHARPNESS, "graded")


def frozen_step(loss: str, table: Interpolant, samples: int, dim: int) -> GradientStep:
    """A gradient step by the literal matrices."""
    return GradientStep(
        loss,
        _LR,
        dim=dim,
        samples=samples,
        eps=None,
        backend="dense",
        x_norm=_X_NORM,
        w_norm=_W_NORM,
        z_range=(-_REACH, _REACH),
        interpolant=table,
    )


def run_losses(step: GradientStep, data: DiabetesData, passes: int, tick: Tick) -> list[LossRow]:
    """A few steps of every loss on the frozen weights of ``step``, each checked."""
    before = step.digest
    rows = []
    for loss in TASKS:
        started = time.perf_counter()
        other = step.reprogram(loss)
        error = _largest_error(other, loss, data, passes, tick)
        seconds = time.perf_counter() - started
        row = LossRow(
            loss=loss,
            task=TASKS[loss],
            error=error,
            certified=other.certificate.error,
            grid_tokens=other.plan.grid_tokens,
            seconds=seconds,
            digest=other.digest,
        )
        _check(row, before)
        _check_built_afresh(other, loss, before)
        rows.append(row)
    return rows


def _largest_error(
    step: GradientStep, loss: str, data: DiabetesData, passes: int, tick: Tick
) -> float:
    """Sup error over the passes, each against the exact step from the same place."""
    y, error = data.labels[loss], 0.0
    w = _first_coefficients(data)
    for _ in range(passes):
        stepped = step(data.x, y, w)
        error = max(error, float((stepped - step.reference(data.x, y, w)).abs().max()))
        w = stepped
        tick(f"{loss} loss")
    return error


def _first_coefficients(data: DiabetesData) -> Tensor:
    """A bad start: residuals on both sides of the Huber loss's corners."""
    direction = data.labels["squared"] @ data.x
    return direction * (-_START / float(direction.norm()))


def _check(row: LossRow, digest: str) -> None:
    if row.digest != digest:
        raise IntegrityError(
            f"the {row.loss} loss ran on weights {row.digest[:12]}, the module has {digest[:12]}"
        )
    if not row.error <= row.certified:
        raise PrecisionError(
            f"the {row.loss} loss is off by {row.error:.3g}, certified is {row.certified:.3g}"
        )


def _check_built_afresh(step: GradientStep, loss: str, digest: str) -> None:
    """Weights built for this loss from nothing are the same: they do not depend on the loss."""
    afresh = frozen_step(loss, step.interpolant, step.domain.samples, step.domain.dim).digest
    if afresh != digest:
        raise IntegrityError(
            f"weights built for the {loss} loss are {afresh[:12]}, the module has {digest[:12]}"
        )


# ---------------------------------------------------------------------------------------------
# pictures
# ---------------------------------------------------------------------------------------------


def _errors(tick: Tick) -> Illustration:
    curves = plots.error_curves()
    tick("error against tokens")
    return illustrate(
        lambda theme: plots.error_against_tokens(curves, theme=theme),
        title="Warm beats cold",
        text="A softmax over grid tokens is a smooth look-up table. The usual way is to make it so "
        "cold that it picks the nearest token; then twice the tokens halve the error. At a "
        "moderate temperature, with values fitted to the function, every few tokens bring another "
        "digit, and the bound that is proved lies right on what is measured.",
        alt="Error against grid tokens for tanh. The hard regime falls slowly along the line 1/P, "
        f"from {curves[0].measured[0]:.1g} to {curves[0].measured[-1]:.1g}; the spectral regime "
        f"falls to {curves[1].measured[-1]:.0e} with {curves[1].tokens[-1]} tokens.",
    )


def _weights(tick: Tick) -> Illustration:
    reach = 10.0
    hard = Interpolant.hard(torch.tanh, -reach, reach, cells=_SHOWN_TOKENS - 1)
    spectral = Interpolant.fit(torch.tanh, -reach, reach, tokens=_SHOWN_TOKENS)
    tick("look-up weights")
    return illustrate(
        lambda theme: plots.lookup_weights(hard, spectral, theme=theme),
        title="Where attention looks",
        text="As z moves to the right, attention moves up the grid. Cold attention jumps from one "
        "token to the next, and the result is a staircase. Warm attention blends a handful of "
        "neighbours, and the blend follows the curve.",
        alt="Attention over grid tokens as z moves: a staircase of single tokens in the hard "
        "regime, a soft diagonal band in the spectral one, and tanh as read off by either.",
    )


def _attention(data: DiabetesData, tick: Tick) -> Illustration:
    x, y = data.x[:_SHOWN], data.labels["squared"][:_SHOWN]
    w = _first_coefficients(data)
    step = GradientStep(
        "squared",
        _LR,
        dim=x.shape[1],
        samples=len(x),
        eps=_SHOWN_EPS,
        backend="dense",
        x_norm=_X_NORM,
        w_norm=_W_NORM,
    )
    tick("attention map")
    return illustrate(
        lambda theme: plots.attention(step, x, y, w, theme=theme),
        title="Everybody reads their own table",
        text="Each sample brings its own look-up table and one query, and all of them share one "
        "attention head. A margin in the frozen keys keeps every query in its own block: what "
        "strays into the others is far below rounding. The network of this picture has "
        f"{len(x)} samples and {step.plan.tokens} tokens.",
        alt="Attention of the query tokens over all tokens, in powers of ten: bright blocks on the "
        "diagonal, everything else below rounding.",
    )


def _trajectories(data: DiabetesData, tick: Tick) -> Illustration:
    n, d = data.x.shape
    y = data.labels["logistic"]
    top = float(torch.linalg.matrix_norm(data.x, 2) ** 2) / n
    # The logistic loss curves by at most 1/4; the norm is computed to far better than 1e-9.
    hessian = (_DESCENT_L2, 0.25 * top * (1 + 1e-9) + _DESCENT_L2)

    def descent(steps: int, table: Interpolant | None = None) -> GradientDescent:
        return GradientDescent(
            "logistic", steps, _DESCENT_LR, _DESCENT_L2, hessian=hessian, dim=d, samples=n,
            eps=_DESCENT_EPS, backend="dense", x_norm=_X_NORM, w_norm=_DESCENT_NORM,
            w_bound=_DESCENT_NORM, interpolant=table,
        )  # fmt: skip

    whole = descent(_DESCENT_PASSES)
    start = torch.zeros(d, dtype=torch.float64)
    emulated = whole.trajectory(data.x, y, start)
    exact = whole.trajectory(data.x, y, start, exact=True)
    counts = range(1, _DESCENT_PASSES + 1)
    certified = [descent(t, whole.interpolant).certificate.error for t in counts]
    tick("gradient descent")
    return illustrate(
        lambda theme: plots.trajectories(emulated, exact, certified, theme=theme),
        title="Forty passes, no drift",
        text="Logistic regression by gradient descent: the output of each pass goes into the next "
        f"prompt. With {whole.plan.grid_tokens} grid tokens per sample the coefficients follow the "
        "exact ones, and the difference stays below the certificate of that pass.",
        alt="Coefficients over forty passes, exact and emulated on top of each other; below, their "
        f"largest difference, which ends at {float((emulated - exact)[-1].abs().max()):.0e} under "
        f"a certificate of {certified[-1]:.0e}.",
    )


# ---------------------------------------------------------------------------------------------
# the whole
# ---------------------------------------------------------------------------------------------


def run_library(patients: int, tick: Tick) -> Library:
    """Every program on one frozen machine, and one of them by the literal matrices as well."""
    data = demo_library.load_patients(patients)
    jobs = demo_library.programs_for(data)
    machine = demo_library.machine_for(jobs, data)
    tick("building the machine")
    rows = demo_library.run_library(machine, jobs, data, tick)
    literal = demo_library.literal_difference(machine, jobs[0], data)
    tick("literal matrices")
    steps = [j.program.steps for j in jobs if isinstance(j.program, programs.GradientDescent)]
    plan = machine.plan
    return Library(
        rows=rows,
        samples=data.x.shape[0],
        dim=data.x.shape[1],
        tokens=plan.tokens,
        layers=plan.layers,
        heads=plan.heads,
        parameters=plan.parameters,
        descents=(min(steps), max(steps)),
        literal=literal,
    )


def run(
    samples: int = SAMPLES,
    passes: int = PASSES,
    tick: Tick = lambda what: None,
    *,
    patients: int = PATIENTS,
) -> Report:
    """Everything the report shows.

    Parameters
    ----------
    samples
        Patients in the prompt.
    passes
        Gradient steps of each loss.
    tick
        Called with a few words after each of the ``ticks(passes)`` pieces of work.
    patients
        Patients that the whole library is run on.
    """
    started = time.perf_counter()
    data = load_data(samples)
    step = frozen_step("huber", shared_table(), *data.x.shape)
    rows = run_losses(step, data, passes, tick)
    library = run_library(patients, tick)
    illustrations = [
        _errors(tick),
        _weights(tick),
        _attention(data, tick),
        _trajectories(data, tick),
    ]
    return Report(
        rows=rows,
        library=library,
        illustrations=illustrations,
        samples=samples,
        dim=data.x.shape[1],
        tokens=step.plan.tokens,
        parameters=step.plan.parameters,
        passes=passes,
        seconds=time.perf_counter() - started,
        version=iceform.__version__,
        torch_version=torch.__version__,
    )


def ticks(passes: int) -> int:
    """How often :func:`run` calls ``tick``: once per step, program and picture, and twice more."""
    jobs = demo_library.programs_for(demo_library.load_patients(4))
    return passes * len(TASKS) + len(jobs) + 2 + 4


def show(
    out: Path,
    *,
    samples: int = SAMPLES,
    passes: int = PASSES,
    patients: int = PATIENTS,
    console: Console | None = None,
) -> Report:
    """Run with a progress bar, print the tables, write the report to ``out``."""
    console = console or Console()
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("building", total=ticks(passes))
        report = run(
            samples,
            passes,
            lambda what: progress.update(task, advance=1, description=what),
            patients=patients,
        )
    console.print(_table(report))
    console.print(
        f"one frozen module, {len(report.rows)} losses, the same weights", highlight=False
    )
    console.print()
    console.print(_library_table(report.library))
    console.print(_library_words(report.library), highlight=False, soft_wrap=True)
    write(out, render(report))
    console.print(
        f"{report.seconds:.0f} s; the report is in {out}", highlight=False, soft_wrap=True
    )
    return report


def _table(report: Report) -> Table:
    table = Table(title="gradient steps by one frozen attention layer", title_justify="left")
    table.add_column("loss")
    for heading in ("sup error", "certified", "grid tokens", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("weights")
    for row in report.rows:
        table.add_row(
            row.loss,
            f"{row.error:.1e}",
            f"{row.certified:.1e}",
            str(row.grid_tokens),
            f"{row.seconds:.1f}",
            row.digest[:12],
        )
    return table


def _library_table(library: Library) -> Table:
    table = Table(
        title="the whole library by one frozen machine",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("program", no_wrap=True)
    table.add_column("library")
    for heading in ("to\nexact", "certified", "to\nlibrary", "passes", "sec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in library.rows:
        table.add_row(
            row.program,
            row.library,
            f"{row.error:.1e}",
            f"{row.certified:.1e}",
            f"{row.difference:.1e}" + ("" if row.same else "*"),
            str(row.passes),
            f"{row.seconds:.1f}",
        )
    return table


def _library_words(library: Library) -> str:
    return (
        f"weights {library.digest[:12]}, checked after each of {len(library.rows)} programs\n"
        "to exact:   largest difference to the program's own exact algorithm, which the\n"
        "            certificate bounds; for a loss, the same number of exact gradient steps\n"
        "to library: largest difference to the library's answer; for a loss, its optimum\n"
        "*           another estimator: neighbours by temperature against neighbours in or out\n"
    )
