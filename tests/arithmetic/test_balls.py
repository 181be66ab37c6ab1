"""Whole powers of balls: every power of every point, and no square below 0."""

from fractions import Fraction

import pytest
import torch

import iceform as ice
from iceform.arithmetic.balls import balls_of, whole_power


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(("middle", "radius"), [(0.0, 0.5), (0.0, 0.0), (0.125, 0.5), (-2.0, 0.5)])
def test_powers_hold_the_power_of_every_point(middle, radius, exponent):
    with balls_of(80) as flint:
        found = whole_power(flint.arb(middle, radius), exponent)
        assert found.is_finite()
        for k in range(-8, 9):
            exact = (Fraction(middle) + k * Fraction(radius) / 8) ** exponent
            assert found.contains(flint.arb(flint.fmpq(exact.numerator, exact.denominator)))
        largest = (abs(middle) + radius) ** exponent
        assert float(found.upper()) <= max(largest, 1.0 if exponent == 0 else 0.0) * 1.01 + 1e-12
        if exponent % 2 == 0:
            assert not found.lower() < -1e-9 * largest


def test_negative_powers_end_at_0():
    with balls_of(80) as flint:
        assert abs(float(whole_power(flint.arb(2.0), -3)) - 0.125) < 1e-15
        assert not whole_power(flint.arb(0.0, 0.5), -2).is_finite()


def test_differences_of_a_number_with_itself_are_certified():
    """(z_i - z_j)^2 over all pairs, i = j among them: a ball around 0, squared."""

    def spread(x, y, *, steps=3):
        z = [0.5 * ice.mean(x * y)[k] for k in range(2)]
        for _ in ice.repeat(steps):
            push = [sum(((a - b) ** 2 for b in z), 0.0 * a) for a in z]
            z = [0.5 * a + 0.1 * p for a, p in zip(z, push, strict=True)]
        return tuple(z)

    program = ice.compile(ice.algorithm(spread), 2, 5)
    torch.manual_seed(0)
    X, y = 2 * torch.rand(5, 2, dtype=torch.float64) - 1, torch.rand(5, dtype=torch.float64)
    answer = ice.Computer.for_programs([program]).run(program, X, y, backend="fused")
    assert program.enclosed(X, y, answer.parts).distance < 1e-9
