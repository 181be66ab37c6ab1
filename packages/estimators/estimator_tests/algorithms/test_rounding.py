"""Certificates that are close to rounding, against exact arithmetic."""

from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch

import iceform_estimators


def solved_exactly(x, y, alpha):
    """Ridge with one feature, in fractions."""
    xs, ys = ([Fraction(v) for v in values.tolist()] for values in (x[:, 0], y))
    top = sum(a * b for a, b in zip(xs, ys, strict=True))
    return top / (sum(a * a for a in xs) + alpha)


@pytest.mark.parametrize("alpha", [0, 1])
def test_ridge_to_the_last_digit(alpha):
    machine = iceform_estimators.Machine.for_programs(
        [iceform_estimators.algorithms.Ridge()], dim=1, samples=2
    )
    program = (
        iceform_estimators.algorithms.Ridge(alpha=1.0, tol=1e-13, fit_intercept=False)
        if alpha
        else iceform_estimators.algorithms.LinearRegression(tol=1e-13, fit_intercept=False)
    )
    g = torch.Generator().manual_seed(alpha)
    worst = 0.0
    for _ in range(60):
        x, y = 2 * torch.rand(2, 1, generator=g).double() - 1, torch.rand(2, generator=g).double()
        result = machine.run(program, x, y)
        off = abs(Fraction(float(result.value[0])) - solved_exactly(x, y, alpha))
        assert off <= Fraction(result.certificate.error)
        worst = max(worst, float(off) / result.certificate.error)
    assert worst > 1e-3  # and not loose by orders of magnitude


def component_exactly(x):
    """The leading eigenvector of the 2 x 2 covariance, to fifty digits."""
    columns = [[Decimal(v) for v in column] for column in x.mT.tolist()]
    columns = [[v - sum(column) / len(column) for v in column] for column in columns]
    a, b, c = (
        sum(p * q for p, q in zip(columns[i], columns[j], strict=True))
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    top = ((a + c) + ((a - c) ** 2 + 4 * b * b).sqrt()) / 2
    v = (b, top - a)
    length = (v[0] ** 2 + v[1] ** 2).sqrt()
    return [value / length for value in v]


def test_components_to_the_last_digit():
    machine = iceform_estimators.Machine.for_programs(
        [iceform_estimators.algorithms.PCA()], dim=2, samples=6
    )
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = (2 * torch.rand(6, 2, generator=g).double() - 1) * torch.tensor([1.0, 0.3]).double()
        result = machine.run(iceform_estimators.algorithms.PCA(1), x)
        with localcontext() as context:
            context.prec = 50
            exact = component_exactly(x)
            found = [Decimal(v) for v in result.value[0].tolist()]
            sign = 1 if sum(p * q for p, q in zip(exact, found, strict=True)) > 0 else -1
            off = max(abs(p - sign * q) for p, q in zip(found, exact, strict=True))
            assert off <= Decimal(result.certificate.error)
