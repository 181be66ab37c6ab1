"""Pairs of heads: their weights, remainder and amplitude, against decimals."""

import math
from decimal import Decimal, localcontext

import pytest
import torch

from iceform.errors import BoundError
from iceform.targets.linear_head_pairs import LinearHeadPairs

CASES = [(1, 0.25), (2, 0.5), (4, 0.1875), (8, 0.0625), (12, 0.21875)]


def combination(pairs, z):
    """sum_j a_j sinh(j delta z) - z, in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        z = Decimal(z)
        total = -z
        for j, a in enumerate(pairs.weights, 1):
            e = (Decimal(j) * Decimal(pairs.delta) * z).exp()
            total += Decimal(a) * (e - 1 / e) / 2
        return float(abs(total))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("count", "delta"), CASES)
def test_the_remainder_is_bounded_and_not_by_much(count, delta, dtype):
    pairs = LinearHeadPairs(count, delta, dtype)
    for z in (1e-3, 0.1, 0.5, 1.0, 3.0, 7.5, 20.0):
        true, bound = combination(pairs, z), pairs.remainder(z)
        assert true <= bound, (z, true, bound)
        unit = torch.finfo(dtype).eps
        # Tight but for rounding of the weights, which the bound takes one by one.
        assert bound <= 4 * math.cosh(count * delta * z) * true + 8 * unit * pairs.amplitude(z) * z


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 10])
def test_even_weights_are_as_far_off_as_is_proven(count):
    pairs = LinearHeadPairs(count, 0.1875, torch.float32, even=True)
    reach = {4: 0.625, 5: 0.875, 6: 0.75, 7: 0.75, 8: 1.0, 10: 0.75}[count] / 0.1875
    for share in (0.01, 0.3, 0.7, 0.9, 0.97, 1.0, 1.2):
        assert combination(pairs, share * reach) <= pairs.remainder(share * reach)
    worst = max(combination(pairs, k / 64 * reach) for k in range(1, 65))
    assert worst <= pairs.remainder(reach) <= 4e-7 * reach


def test_even_weights_amplify_less():
    """What float32 rounds is multiplied by half of what central differences make of it."""
    for reach in (1.5, 4.0):
        found = LinearHeadPairs.tuned(reach, 8, torch.float32)
        assert found.even
        plain = min(
            (
                LinearHeadPairs(7, k * 2.0**-e, torch.float32)
                for k in (4, 5, 6, 7)
                for e in range(3, 9)
            ),
            key=lambda p: p.remainder(reach) + 1e-5 * p.amplitude(reach / 2),
        )
        assert found.amplitude(reach / 2) <= 0.6 * plain.amplitude(reach / 2)
    with pytest.raises(BoundError, match="listed for"):
        LinearHeadPairs(9, 0.25, torch.float32, even=True)


def test_weights_that_are_a_little_off_are_noticed():
    good = LinearHeadPairs(8, 0.0625, torch.float64)
    bad = LinearHeadPairs(8, 0.0625, torch.float64)
    bad.__dict__["weights"] = (good.weights[0] * (1 + 1e-9), *good.weights[1:])
    assert combination(bad, 1.0) > 100 * good.remainder(1.0)
    assert combination(bad, 1.0) <= bad.remainder(1.0)


def test_the_mean_amplitude_bounds_means():
    torch.manual_seed(3)
    pairs = LinearHeadPairs(6, 0.25, torch.float64)
    for _ in range(50):
        z = torch.randn(40, dtype=torch.float64) * 3 * torch.rand(())
        top, rms = float(z.abs().max()), float(z.square().mean().sqrt())
        for power in (0, 1):
            seen = torch.tensor([pairs.amplitude(float(v), power) for v in z]).double()
            assert float(seen.square().mean().sqrt()) <= pairs.mean_amplitude(top, rms, power)


def test_a_reach_gets_the_best_spacing():
    found = LinearHeadPairs.tuned(4.0, 8, torch.float64)
    cost = found.remainder(4.0) + 1e-14 * found.amplitude(2.0)
    for factor in (0.5, 2.0):
        other = LinearHeadPairs(found.count, found.delta * factor, torch.float64)
        assert cost <= other.remainder(4.0) + 1e-14 * other.amplitude(2.0)


@pytest.mark.parametrize("delta", [0.1, 0.0, -0.5, math.nan])
def test_a_spacing_that_does_not_stay_exact_is_refused(delta):
    with pytest.raises(BoundError):
        LinearHeadPairs(3, delta, torch.float64)
