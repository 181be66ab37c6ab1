"""What convexity proves where curvature is too weak, against optima and objectives to 60 digits."""

import math

import pytest
import torch
from flint import arb

from estimator_tests.machine import data
from estimator_tests.machine.exact import ExactLoss, ExactModel, apart, numbers
from iceform.expressions import loss_named
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.machine.problem import LinearProblem, Scaling
from iceform_estimators.machine.proofs import prove

LOSSES = {  # l, with its derivative's name and kind, and the penalty beside the mean
    "logistic": (lambda z: z.exp().log1p(), "glm", lambda p, n: arb(1) / (arb(p.C) * n)),
    "poisson": (lambda z: z.exp(), "glm", lambda p, n: arb(p.alpha)),
    "squared_hinge": (
        lambda m: (1 - m).max(arb(0)) ** 2 / 2,
        "margin",
        lambda p, n: arb(1) / (2 * arb(p.C) * n),
    ),
}


def objective(loss, x, y, l2, coef, constant):
    """F at exact numbers."""
    value, kind, _ = LOSSES[loss]
    total = arb(0)
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        z = sum((arb(a) * c for a, c in zip(row, coef, strict=True)), constant)
        total += value(arb(label) * z) if kind == "margin" else value(z) - arb(label) * z
    return total / len(x) + l2 * sum((c * c for c in coef), arb(0)) / 2


def separable(seed, n=40, d=3):
    g = torch.Generator().manual_seed(seed)
    x = data.normal(g, n, d)
    return x, x[:, 0] + 0.5 * x[:, 1] > 0


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(
    ("loss", "program"),
    [
        ("logistic", lambda i: algorithms.Logistic(1e13, fit_intercept=i)),
        ("squared_hinge", lambda i: algorithms.LinearSVM(1e8, fit_intercept=i, max_passes=60)),
    ],
)
def test_separable_classes_are_bounded_by_their_penalty(loss, program, intercept):
    x, right = separable(0)
    y = right.double() if loss == "logistic" else torch.where(right, 1.0, -1.0).double()
    program = program(intercept)
    fit = Machine(4).run(program, x, y)
    certificate = fit.certificate
    _, kind, penalty = LOSSES[loss]
    l2 = penalty(program, len(x))
    model = ExactModel.of(x, y, ExactLoss.named(loss), l2, intercept=intercept, kind=kind)
    coef, constant = model.near(fit.coef, float(fit.intercept))
    assert (certificate.kind, math.isfinite(certificate.error)) == ("proven", True)
    assert apart(fit.coef, coef) <= certificate.error
    if intercept:
        assert apart(fit.intercept.reshape(1), [constant]) <= fit.errors["intercept"]
    found = objective(loss, x, y, l2, numbers(fit.coef), arb(float(fit.intercept)))
    above = found - objective(loss, x, y, l2, coef, constant)
    assert certificate.excess is not None, "curvature was enough: nothing was tested"
    assert not above > certificate.excess.bound, (above, certificate.excess)
    assert certificate.excess.bound <= 1e-8 + 100 * float(above), above
    assert "F(found) - min F <=" in certificate.explain()
    assert '"over": ""' in certificate.to_json()


def test_where_there_is_no_optimum_the_objective_is_bounded():
    """Counts that are zero but at one end: the objective falls for ever, if by little."""
    x = torch.arange(6, dtype=torch.float64)[:, None]
    y = torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    fit = Machine(2).run(algorithms.Poisson(0.0, max_passes=60), x, y)
    least = (2 - 2 * arb(2).log()) / 6
    here = objective("poisson", x, y, arb(0), numbers(fit.coef), arb(float(fit.intercept)))
    assert fit.certificate.excess is not None, fit.certificate
    assert not fit.certificate.excess.over, "of all lines"
    assert not here - least > fit.certificate.excess.bound <= 1e-6, fit.certificate


def test_losses_whose_values_are_not_known_are_compared_with_lines_nearby():
    """By convexity alone: a corner that is rounded, and no penalty."""
    x = torch.ones(4, 1, dtype=torch.float64)
    x[2:] = -1.0
    y = torch.sign(x[:, 0])
    loss = loss_named("hinge")
    machine = Machine(2)
    problem = LinearProblem(
        machine.start(), ArraySource(x, y), Scaling.of(ArraySource(x, y), intercept=False),
        loss, torch.zeros(1, dtype=torch.float64),
    )  # fmt: skip
    proof = prove(problem, torch.full((1,), 30.0, dtype=torch.float64))
    assert "differ from these by at most" in proof.excess.over
    assert proof.excess.bound <= 1e-9
    assert math.isinf(proof.radius)


def test_curvature_that_is_enough_needs_no_excess():
    x, right = separable(3)
    certificate = Machine(4).run(algorithms.Logistic(1.0), x, right.double()).certificate
    assert certificate.excess is None
    assert '"excess": null' in certificate.to_json()
