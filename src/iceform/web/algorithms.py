"""The playground's algorithms: what each minimises, its sliders, and the loss it looks up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from iceform.errors import ProgramError
from iceform.functions import Loss, loss_named
from iceform.functions.formulas import Formula
from iceform.web import questions as asked
from iceform.web.answers import OptionAnswer

__all__ = ["ALGORITHMS", "Entry", "features_of", "labels_of", "loss_of", "options"]

_ROUNDED = 0.1  # width of a rounded corner, on a board of height 2
_PLANE_DEGREE = 3  # of the polynomials in two variables


@dataclass(frozen=True)
class Entry:
    """An algorithm of the playground.

    Attributes
    ----------
    title, says, objective
        In print, in one line, and in symbols.
    task
        "curve" (y from x), "classes" (the group from x and y) or "shape" (neither).
    options
        Its own settings.
    loss
        Name of its loss; None where samples are averaged or the loss is typed.
    """

    title: str
    says: str
    objective: str
    task: str
    options: tuple[str, ...] = ()
    loss: str | None = None

    @property
    def descends(self) -> bool:
        """Whether it is a linear model found by steps."""
        return "degree" in self.options and self.loss != "perceptron"


ALGORITHMS: dict[asked.Algorithm, Entry] = {
    "least_squares": Entry(
        "Least squares", "The curve nearest to the points.", "min Σ (f(x) − y)²",
        "curve", ("degree",), "squared",
    ),
    "ridge": Entry(
        "Ridge", "Least squares that keeps coefficients small.",
        "min mean (f(x) − y)²/2 + α/2 |w|²", "curve", ("degree", "alpha"), "squared",
    ),
    "lasso": Entry(
        "Lasso", "Least squares that leaves most coefficients out.",
        "min mean (f(x) − y)²/2 + α |w|₁", "curve", ("degree", "alpha"), "squared",
    ),
    "elastic_net": Entry(
        "Elastic net", "Between ridge and lasso.",
        "min mean (f(x) − y)²/2 + α (ρ |w|₁ + (1 − ρ)/2 |w|²)",
        "curve", ("degree", "alpha", "l1_ratio"), "squared",
    ),
    "huber": Entry(
        "Huber", "Squares near the curve, straight lines far away: outliers pull less.",
        "min mean H_δ(f(x) − y) + α/2 |w|²", "curve", ("degree", "alpha", "delta"), "huber",
    ),
    "absolute": Entry(
        "Least absolute deviations", "The curve through the median, with a rounded corner.",
        "min mean |f(x) − y| + α/2 |w|²", "curve", ("degree", "alpha"), "absolute",
    ),
    "quantile": Entry(
        "Quantile", "The curve that a given share of the points lies below.",
        "min mean ρ_q(y − f(x)) + α/2 |w|²", "curve", ("degree", "alpha", "quantile"), "quantile",
    ),
    "custom": Entry(
        "Your own loss", "Any loss of the residual z = f(x) − y that you can type.",
        "min mean l(f(x) − y) + α/2 |w|²", "curve", ("degree", "alpha", "formula"),
    ),
    "kernel": Entry(
        "Kernel regression", "The average of the points around, weighted by distance.",
        "Σ e^(−γ|x − xᵢ|²) yᵢ / Σ e^(−γ|x − xᵢ|²)", "curve", ("gamma",),
    ),
    "neighbours": Entry(
        "Nearest neighbours", "The average of the k nearest points.",
        "mean of y over the k nearest xᵢ", "curve", ("neighbours",),
    ),
    "logistic": Entry(
        "Logistic regression", "The probability of the second group.",
        "min mean ln(1 + e^(−s f)) + α/2 |w|²", "classes", ("degree", "alpha"), "logistic",
    ),
    "svm": Entry(
        "Support vectors", "A wide street between the groups, by squared hinges.",
        "min mean max(0, 1 − s f)² / 2 + α/2 |w|²", "classes", ("degree", "alpha"), "squared_hinge",
    ),
    "hinge": Entry(
        "Support vectors, hinge", "The same street by the hinge, its corner rounded.",
        "min mean max(0, 1 − s f) + α/2 |w|²", "classes", ("degree", "alpha"), "hinge",
    ),
    "perceptron": Entry(
        "Perceptron", "Adds what it gets wrong until nothing is.",
        "w ← w + mean of s x over mistakes", "classes", ("degree",), "perceptron",
    ),
    "kernel_classes": Entry(
        "Kernel classifier", "The share of the second group around, weighted by distance.",
        "Σ e^(−γ|p − pᵢ|²) gᵢ / Σ e^(−γ|p − pᵢ|²)", "classes", ("gamma",),
    ),
    "neighbour_classes": Entry(
        "Nearest neighbours, classes", "The vote of the k nearest points.",
        "mean of the group over the k nearest pᵢ", "classes", ("neighbours",),
    ),
    "component": Entry(
        "Principal components", "The directions in which the points vary most.",
        "max |v| = 1: variance of v·p", "shape",
    ),
}  # fmt: skip


def options() -> list[OptionAnswer]:
    """The list for the page."""
    return [
        OptionAnswer(
            name=name,
            title=entry.title,
            task=entry.task,
            says=entry.says,
            objective=entry.objective,
            options=list(entry.options),
        )
        for name, entry in ALGORITHMS.items()
    ]


def loss_of(chosen: asked.Loss) -> Loss:
    """The loss whose derivative is looked up."""
    if chosen.algorithm == "custom":
        return _typed(chosen.formula)
    name = ALGORITHMS[chosen.algorithm].loss
    if name is None or name == "perceptron":
        title = ALGORITHMS[chosen.algorithm].title
        raise ProgramError(f"{title} looks no loss up: it averages samples, or counts mistakes")
    parameters: dict[str, dict[str, float]] = {
        "huber": {"delta": chosen.delta},
        "absolute": {"width": _ROUNDED},
        "quantile": {"quantile": chosen.quantile, "width": _ROUNDED},
    }
    return loss_named(name, **parameters.get(name, {}))


@lru_cache(maxsize=64)
def _typed(text: str) -> Loss:
    """The same object for the same text, so that tables are remembered."""
    return Formula.parse(text).loss()


def labels_of(points: Tensor, groups: Tensor, loss: str | None, task: str) -> Tensor:
    """What a loss takes as labels, shape (n,)."""
    if task == "curve":
        return points[:, 1].clone()
    return groups if loss in (None, "logistic") else 2 * groups - 1


def features_of(points: Tensor, task: str, degree: int) -> Tensor:
    """Legendre polynomials P_1(x), P_2(x), ..., or P_a(x) P_b(y) by total degree; (n, features).

    On points that are spread evenly they are nearly orthogonal, so that plain descent gets on.
    """
    x = legendre(points[:, 0], degree)
    if task == "curve":
        return torch.stack(x[1:], 1)
    y = legendre(points[:, 1], degree)
    most = min(degree, _PLANE_DEGREE)
    return torch.stack(
        [x[total - j] * y[j] for total in range(1, most + 1) for j in range(total + 1)], 1
    )


def legendre(x: Tensor, degree: int) -> list[Tensor]:
    """P_0, ..., P_degree by (j + 1) P_{j+1} = (2 j + 1) x P_j - j P_{j-1}."""
    values = [torch.ones_like(x), x]
    for j in range(1, degree):
        values.append(((2 * j + 1) * x * values[j] - j * values[j - 1]) / (j + 1))
    return values[: degree + 1]
