"""Balls of pairs hold what 60 digits say, and little else."""

import mpmath
import pytest
import torch

from iceform.arithmetic.double_double import DoubleDouble
from iceform.arithmetic.doubled import Doubled, softmax_average

F64 = torch.float64


def drawn(*shape, seed, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=g, dtype=F64)


def inside(ball, exact):
    """Whether every exact number is in its ball; the radii are printed where not."""
    parts = zip(*(p.flatten().tolist() for p in (*ball.mid, ball.off)), exact, strict=True)
    for high, low, off, number in parts:
        apart = abs(mpmath.mpf(high) + mpmath.mpf(low) - number)
        assert apart <= off, (high, low, off, apart)


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1.0, 1e150])
def test_operations_hold_every_number_of_their_balls(scale):
    """Ends and middles of both balls, each taken as the number that is meant."""
    x, y = drawn(40, seed=0, scale=scale), drawn(40, seed=1, scale=scale)
    off = (x.abs() * 1e-20, y.abs() * 1e-25)
    balls = [Doubled(DoubleDouble(v, v * 2.0**-55), o) for v, o in zip((x, y), off, strict=True)]
    with mpmath.workdps(60):
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                p, q = (
                    [mpmath.mpf(v) + mpmath.mpf(v * 2.0**-55) + s * mpmath.mpf(o) for v, o in z]
                    for s, z in zip(
                        (a, b),
                        (list(zip(v.tolist(), o.tolist(), strict=True))
                         for v, o in zip((x, y), off, strict=True)),
                        strict=True,
                    )
                )  # fmt: skip
                both = list(zip(p, q, strict=True))
                inside(balls[0] + balls[1], [s + t for s, t in both])
                inside(balls[0] - balls[1], [s - t for s, t in both])
                inside(balls[0] * balls[1], [s * t for s, t in both])
                inside(balls[0] / balls[1], [s / t for s, t in both])
                inside((balls[0] * balls[1]).sum()[None], [mpmath.fsum(s * t for s, t in both)])


def test_exponentials_and_averages():
    z, values = drawn(5, 9, seed=2, scale=40.0), drawn(9, 2, seed=3)
    logits = Doubled(DoubleDouble(z, z * 2.0**-56), torch.full_like(z, 1e-22))
    average = softmax_average(logits, Doubled.exactly(values))
    with mpmath.workdps(60):
        for sign in (-1, 1):  # weights move most where neighbours move apart
            moved = [
                [mpmath.mpf(v) + mpmath.mpf(v * 2.0**-56) + sign * (-1) ** j * mpmath.mpf(1e-22)
                 for j, v in enumerate(row)]
                for row in z.tolist()
            ]  # fmt: skip
            inside((-logits).exp(), [mpmath.exp(-v) for row in moved for v in row])
            masses = [[mpmath.exp(v) for v in row] for row in moved]
            exact = [
                mpmath.fsum(m * c for m, c in zip(row, column, strict=True)) / mpmath.fsum(row)
                for row in masses
                for column in values.mT.tolist()
            ]
            inside(average, exact)
    assert float(average.off.max()) < 1e-19


def test_what_is_not_a_number_bounds_nothing():
    zero = Doubled(
        DoubleDouble(torch.zeros(1, dtype=F64), torch.zeros(1, dtype=F64)), torch.ones(1)
    )
    one = Doubled.exactly(torch.ones(1, dtype=F64))
    assert (one / zero).off.isinf().all()
    huge = Doubled.exactly(torch.full((1,), 1e300, dtype=F64))
    assert (huge * huge).off.isinf().all()
    gap, off = (huge * huge).apart(torch.ones(1, dtype=F64))
    assert (gap + off).isinf().all()


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-960, 2.0**900])
def test_quotients_of_tiny_and_huge_numbers(scale):
    """Products with the divisor lose nothing that counts, however small it is."""
    x, y = drawn(40, seed=0), drawn(40, seed=1)
    found = Doubled.exactly(x * scale) / Doubled.exactly(y * scale)
    with mpmath.workdps(60):
        pairs = zip((x * scale).tolist(), (y * scale).tolist(), strict=True)
        inside(found, [mpmath.mpf(a) / mpmath.mpf(b) for a, b in pairs])
    assert (found.off <= 2.0**-95 * found.size).all()
