"""Six losses by one frozen layer: gradient steps on the diabetes data, each checked."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

from iceform.constructions import GradientStep
from iceform.demo.patients.library import Tick, targets_of
from iceform.demo.patients.report import LossRow
from iceform.errors import IntegrityError, PrecisionError
from iceform.functions import loss_named
from iceform.interpolation import GradedGrid, Interpolant, on_grid

__all__ = [
    "LR",
    "SAMPLES",
    "TASKS",
    "W_NORM",
    "X_NORM",
    "DiabetesData",
    "first_coefficients",
    "frozen_step",
    "load_data",
    "run_losses",
    "shared_table",
]

SAMPLES = 64
TASKS = {
    "squared": "the score",
    "absolute": "the score, robustly",
    "huber": "the score, robustly",
    "logistic": "above or below the median",
    "hinge": "above or below the median",
    "poisson": "a count: the quartile",
}
LR = 0.5
X_NORM = 2.2  # the longest scaled sample has norm 2.11
W_NORM = 1.0
_START = 0.9  # norm of the first coefficients, which point away from the solution

# The look-up table serves all losses: crowded at the Huber loss's corners, never coarser between
# them than the absolute loss's rounded corner needs. Found by a scan over these five numbers.
_REACH = 2.5  # z is looked up on [-2.5, 2.5]
_CELLS = 90
_GUARDS = 3
_GROWTH = 0.75
_EVEN = 0.4  # share of the cells that are spread evenly
_SHARPNESS = 0.25


@dataclass(frozen=True)
class DiabetesData:
    """Scaled samples, and labels for every kind of loss."""

    x: Tensor  # (n, 10)
    labels: dict[str, Tensor]  # by name of the loss, each (n,)


def load_data(samples: int = SAMPLES) -> DiabetesData:
    """Patients spread evenly over the set, entries in [-1, 1]."""
    raw, score = map(torch.from_numpy, load_diabetes(return_X_y=True))
    x = raw / raw.abs().amax(0)
    targets = targets_of(score)
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
        LR,
        dim=dim,
        samples=samples,
        eps=None,
        backend="literal",
        x_norm=X_NORM,
        w_norm=W_NORM,
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
    w = first_coefficients(data)
    for _ in range(passes):
        stepped = step(data.x, y, w)
        error = max(error, float((stepped - step.reference(data.x, y, w)).abs().max()))
        w = stepped
        tick(f"{loss} loss")
    return error


def first_coefficients(data: DiabetesData) -> Tensor:
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
