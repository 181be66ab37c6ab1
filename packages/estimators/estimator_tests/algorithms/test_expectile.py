"""Expectiles: weights are what was asked for, to the last digit."""

from fractions import Fraction

import pytest
import torch

from iceform_estimators.algorithms import Expectile
from iceform_estimators.machine import Machine

F64 = torch.float64


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.9])
def test_the_derivative_has_the_slopes_that_were_asked_for(tau):
    """In float32, which torch.where makes of two plain numbers, 0.1 is off by 1.5e-9."""
    loss = Expectile(expectile=tau).loss()
    z = torch.tensor([-3.7, -0.2, 0.4, 2.9], dtype=F64)
    for at, value in zip(z.tolist(), loss.derivative(z).tolist(), strict=True):
        slope = Fraction(tau) if at < 0 else 1 - Fraction(tau)
        exact = float(slope * Fraction(at))
        assert value == pytest.approx(exact, rel=4e-16)
    assert loss.curvature.bend(z).tolist() == pytest.approx([tau, tau, 1 - tau, 1 - tau], rel=3e-16)


def test_the_answer_is_the_exact_problem_s():
    """Against reweighted least squares in fractions of float64: within the certificate."""
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(25, 2, generator=generator, dtype=F64)
    y = x @ torch.tensor([1.0, -2.0], dtype=F64) + torch.rand(25, generator=generator, dtype=F64)
    model = Expectile(expectile=0.1)
    found = Machine(dim=3, layout="stream").run(model, x, y)
    rows = torch.cat([x, torch.ones(25, 1, dtype=F64)], 1)
    w = torch.cat([found.coef, found.intercept[None]])
    weights = [Fraction(0.1) if r < 0 else 1 - Fraction(0.1) for r in (rows @ w - y).tolist()]
    parts = [
        [Fraction(v) for v in (*row, label)]
        for row, label in zip(rows.tolist(), y.tolist(), strict=True)
    ]

    def mixed(i, j):
        return sum(c * part[i] * part[j] for c, part in zip(weights, parts, strict=True))

    gram = [[mixed(i, j) for j in range(3)] for i in range(3)]
    right = [mixed(i, 3) for i in range(3)]
    exact = _solved(gram, right)
    off = max(abs(float(Fraction(a) - b)) for a, b in zip(found.coef.tolist(), exact, strict=False))
    assert off <= found.certificate.error


def _solved(matrix, right):
    """By elimination, in fractions."""
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for j in range(len(rows)):
            if j != i:
                factor = rows[j][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [line[-1] for line in rows]
