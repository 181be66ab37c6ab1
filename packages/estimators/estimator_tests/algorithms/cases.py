"""Programs with their exact counterparts, for every kind of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from flint import arb
from torch import Tensor

from estimator_tests.machine import data
from estimator_tests.machine.exact import ExactLoss, ExactModel, apart, numbers
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine


@dataclass(frozen=True)
class Case:
    """A program, the labels it takes, and the exact optimum near an answer."""

    program: Any
    labels: Callable[[Tensor, torch.Generator], Tensor]
    exact: Callable[[Any, Tensor, Tensor, Any], tuple[list[arb], arb]]


def _line(x: Tensor, g: torch.Generator) -> Tensor:
    return data.labels(x, g)


def classes(x: Tensor, g: torch.Generator) -> Tensor:
    score = data.labels(x, g, noise=1.0)
    return (score > score.median()).double()


def _signs(x: Tensor, g: torch.Generator) -> Tensor:
    return 2 * classes(x, g) - 1


def _counts(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.poisson(torch.exp(data.labels(x, g).clamp(-3, 3)), generator=g)


def _smooth(
    loss: str, kind: str, l2: Callable[[Any, int], Any], l1: Callable[[Any], Any] = lambda p: 0
) -> Callable[[Any, Tensor, Tensor, Any], tuple[list[arb], arb]]:
    def exact(program: Any, x: Tensor, y: Tensor, fit: Any) -> tuple[list[arb], arb]:
        model = ExactModel.of(
            x, y, ExactLoss.named(loss), l2(program, len(x)),
            intercept=program.fit_intercept, kind=kind, l1=l1(program),
        )  # fmt: skip
        return model.near(fit.coef, float(fit.intercept))

    return exact


def _quantile(program: Any, x: Tensor, y: Tensor, fit: Any) -> tuple[list[arb], arb]:
    size = program.scaling(ArraySource(x, y)).size
    loss = ExactLoss.named("quantile", width=arb(program.width) * arb(size), quantile=0.3)
    model = ExactModel.of(x, y, loss, 0, intercept=program.fit_intercept)
    return model.near(fit.coef, float(fit.intercept))


def _huber(program: Any, x: Tensor, y: Tensor, fit: Any) -> tuple[list[arb], arb]:
    penalty, loss = arb(program.alpha) / len(y), ExactLoss.named("squared")
    model = ExactModel.of(x, y, loss, penalty, intercept=program.fit_intercept)
    scale = fit.parts["scale"]
    return model.near_with_scale(program.epsilon, fit.coef, float(fit.intercept), scale)


_NET = _smooth(
    "squared", "residual",
    lambda p, n: arb(p.alpha) * (1 - arb(p.l1_ratio)), lambda p: arb(p.alpha) * arb(p.l1_ratio),
)  # fmt: skip

CASES: dict[str, Case] = {
    "LeastSquares": Case(
        algorithms.LinearRegression(tol=1e-9), _line, _smooth("squared", "residual", lambda p, n: 0)
    ),
    "Ridge": Case(
        algorithms.Ridge(1.0, tol=1e-9), _line,
        _smooth("squared", "residual", lambda p, n: arb(p.alpha) / n),
    ),
    "Lasso": Case(algorithms.Lasso(0.1), _line, _NET),
    "ElasticNet": Case(algorithms.ElasticNet(0.1, 0.5), _line, _NET),
    "Huber": Case(algorithms.Huber(1.35, 1e-4), _line, _huber),
    "Quantile": Case(algorithms.Quantile(0.3, width=0.2), _line, _quantile),
    "Logistic": Case(
        algorithms.Logistic(1.0), classes,
        _smooth("logistic", "glm", lambda p, n: arb(1) / (arb(p.C) * n)),
    ),
    "Poisson": Case(
        algorithms.Poisson(0.1), _counts, _smooth("poisson", "glm", lambda p, n: arb(p.alpha))
    ),
    "LinearSVM": Case(
        algorithms.LinearSVM(1.0), _signs,
        _smooth("squared_hinge", "margin", lambda p, n: arb(1) / (2 * arb(p.C) * n)),
    ),
}  # fmt: skip


def run(name: str, kind: str, seed: int, intercept: bool) -> tuple[Any, Tensor, Tensor, Any]:
    """The program, its data and its answer."""
    g = torch.Generator().manual_seed(1000 * seed + 7)
    x = (data.REGULAR | data.DEPENDENT)[kind](g)
    y = CASES[name].labels(x, g)
    program = replace(CASES[name].program, fit_intercept=intercept)
    return program, x, y, Machine(x.shape[1] + 1).run(program, x, y)


def measured(x: Tensor, fit: Any, coef: list[arb], intercept: arb) -> float:
    """What the certificate speaks of: the largest error of a coefficient, or of a fitted value."""
    if "what" not in fit.certificate.domain:
        return apart(fit.coef, coef)
    moved = [a - b for a, b in zip(numbers(fit.coef), coef, strict=True)]
    shift = arb(float(fit.intercept)) - intercept
    rows = ([arb(v) for v in row] for row in x.tolist())
    off = (sum((a * d for a, d in zip(row, moved, strict=True)), shift) for row in rows)
    return max(float(abs(a).abs_upper()) for a in off)
