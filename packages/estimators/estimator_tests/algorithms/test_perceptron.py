"""The perceptron against its rule in exact arithmetic."""

import math

import pytest
import torch
from flint import arb

from estimator_tests.machine import data
from estimator_tests.machine.exact import numbers
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine


def by_the_rule(program, x, y, passes: int) -> tuple[list[arb], arb]:
    """w + mean of s x over mistakes, on the program's own scaled samples."""
    scaling = program.scaling(ArraySource(x, y))
    mean, scale = numbers(scaling.mean), numbers(scaling.scale)
    rows = [
        [arb(s) * a for a in [*((arb(v) - m) / c for v, m, c in zip(r, mean, scale, strict=True)),
                              *([arb(1)] if scaling.intercept else [])]]
        for r, s in zip(x.tolist(), y.tolist(), strict=True)
    ]  # fmt: skip
    w = [sum(column, arb(0)) / len(rows) for column in zip(*rows, strict=True)]
    for _ in range(passes - 2):
        margins = [sum((a * b for a, b in zip(row, w, strict=True)), arb(0)) for row in rows]
        wrong = [row for row, m in zip(rows, margins, strict=True) if not m > 0]
        w = [v + sum((row[j] for row in wrong), arb(0)) / len(rows) for j, v in enumerate(w)]
    coef = [a / c for a, c in zip(w, scale, strict=False)]
    shift = sum((c * m for c, m in zip(coef, mean, strict=True)), arb(0))
    return coef, (w[-1] - shift if scaling.intercept else arb(0))


@pytest.mark.parametrize("kind", ["normal", "offset 1e6", "mixed sizes", "heavy tails", "counts"])
@pytest.mark.parametrize("intercept", [True, False])
def test_answers_are_within_their_certificates(kind, intercept):
    g = torch.Generator().manual_seed(3)
    x = data.REGULAR[kind](g)
    score = data.labels(x, g, noise=0.0)
    y = torch.where(score > score.median() - 0.1, 1.0, -1.0).double()
    program = algorithms.Perceptron(max_passes=60, fit_intercept=intercept)
    fit = Machine(x.shape[1] + 1).run(program, x, y)
    bound = fit.certificate.error
    if not math.isfinite(bound):
        assert "least |margin|" in fit.certificate.explain()
        return
    # The last pass of a loop that has not ended moves the coefficients too.
    coef, constant = by_the_rule(program, x, y, fit.passes + (not fit.converged))
    off = max(float(abs(a - b).abs_upper()) for a, b in zip(numbers(fit.coef), coef, strict=True))
    assert off <= bound, (off, bound)
    shift = float(abs(arb(float(fit.intercept)) - constant).abs_upper())
    assert shift <= fit.errors["intercept"], (shift, fit.errors["intercept"])


def test_classes_that_a_plane_separates_are_separated():
    g = torch.Generator().manual_seed(0)
    x = data.normal(g, 80, 3)
    y = torch.where(x @ torch.tensor([1.0, -2.0, 0.5]).double() > 0, 1.0, -1.0).double()
    x = x + 0.2 * y[:, None] * torch.tensor([1.0, -2.0, 0.5]).double()
    fit = Machine(4).run(algorithms.Perceptron(), x, y)
    assert fit.converged
    assert fit.parts["n_mistakes"] == 0
    assert bool(((x @ fit.coef + fit.intercept) * y > 0).all())
    assert fit.certificate.error < 1e-9


def test_a_sample_on_the_plane_is_no_certainty():
    """Its margin is zero: which side it is on is not decided by the rule's sums."""
    x = torch.tensor([[1.0], [-1.0], [0.0]]).double()
    y = torch.tensor([1.0, -1.0, 1.0]).double()
    fit = Machine(2).run(algorithms.Perceptron(fit_intercept=False, max_passes=4), x, y)
    assert fit.certificate.error == math.inf
    assert not fit.converged
