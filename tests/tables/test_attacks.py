"""Attacks on what is proven of look-ups, with exact references.

A is evaluated at 50 digits from the table's own numbers, f by its definition; no |A - f| anywhere
may exceed the certified error.
"""

import math
import random
from statistics import median

import mpmath
import pytest
import torch

from iceform import Formula, IceformError, Interpolant
from iceform.errors import PrecisionError
from iceform.expressions import ScalarFunction
from tests.tables.attacks import FAMILIES, Attack, exactly

F64 = torch.float64


def attacked(attack: Attack, draw: random.Random, eps: float | None, tokens: int | None):
    """The certified error and the largest that is found; None where the attack is refused."""
    function = ScalarFunction(attack.f, attack.name, kinks=attack.kinks)
    try:
        it = Interpolant.fit(function, attack.low, attack.high, eps=eps, tokens=tokens)
    except IceformError:
        return None
    assert (it.kind, it.assumptions) == ("proven", ())
    coarse = torch.linspace(attack.low, attack.high, 2001, dtype=F64).clamp(max=attack.high)
    seen = coarse[(it(coarse) - attack.f(coarse)).abs().topk(3).indices].tolist()
    inside = [p for p in attack.places if attack.low <= p <= attack.high]
    drawn = [draw.uniform(attack.low, attack.high) for _ in range(12)]
    worst = max(
        abs(exactly(it, z) - attack.exact(mpmath.mpf(z)))
        for z in (*inside, *seen, *drawn, attack.low, attack.high)
    )
    assert worst <= it.error, f"{attack.name}: certified {it.error:.3e}, off by {float(worst):.3e}"
    return it.error, float(worst)


def run(family: str, seeds: range) -> list[tuple[float, float]]:
    found = []
    for seed in seeds:
        draw = random.Random(f"{family} {seed}")
        with mpmath.workdps(50):
            attack = FAMILIES[family](draw)
            tokens = draw.choice([17, 33, 49])
            result = attacked(attack, draw, None, tokens)
        found += [result] if result is not None else []
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_succeeds(family):
    found = run(family, range(5))
    assert found, "every attack was refused: nothing was tested"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_of_many_succeeds(family):
    assert run(family, range(5, 400))


def largest(it: Interpolant, f, exact) -> float:
    """The largest |A - f| at 50 digits, near where float64 sees the largest."""
    z = it.grid.mesh(40)
    near = z[(it(z) - f(z)).abs().topk(8).indices].tolist()
    with mpmath.workdps(50):
        return float(max(abs(exactly(it, v) - exact(mpmath.mpf(v))) for v in near))


def test_certificates_of_look_ups_are_tight():
    """Certified over actual, at eps from 1e-3 to what float64 holds; one ulp counts as actual."""
    ratios = []
    for seed in range(12):
        draw = random.Random(f"tight {seed}")
        attack = FAMILIES["smooth"](draw)
        eps = draw.choice([1e-3, 1e-5, 1e-7, 1e-9, None])
        it = Interpolant.fit(attack.f, attack.low, attack.high, eps=eps)
        size = float(attack.f(it.grid.mesh(8)).abs().max())
        actual = max(largest(it, attack.f, attack.exact), math.ulp(size))
        ratios.append(it.error / actual)
        assert ratios[-1] >= 1, (attack, eps, it.error, actual)
    print(f"certified/actual of look-ups: median {median(ratios):.2f}, largest {max(ratios):.2f}")
    assert median(ratios) <= 3


@pytest.mark.parametrize(
    "f",
    [
        lambda z: 1 / (z - 0.1234567),
        lambda z: torch.tan(5 * z),
        lambda z: (z - 0.1234567) ** -2,
        lambda z: torch.log((z - 0.1234567).abs()),
        lambda z: (z - 0.1234567) / (1 - (z - 0.1234567).exp()),
    ],
    ids=["1/z", "tan", "z^-2", "log", "0/0"],
)
def test_poles_are_seen_between_the_points_of_every_mesh(f):
    """However the tokens fall: no finite error is proven where f has a pole."""
    for tokens in (9, 17, 33):
        with pytest.raises(IceformError):
            Interpolant.fit(f, -1.0, 1.0, tokens=tokens, kinks=())
    with pytest.raises(PrecisionError, match="is not bounded near"):
        Interpolant.fit(f, -1.0, 1.0, tokens=20, kinks=())


@pytest.mark.parametrize("size", [1e-2, 1e-6])
def test_a_jump_is_refused_or_as_large_as_its_bound(size):
    def f(z):
        return torch.where(z > 0.1234, z + size, z)

    try:
        it = Interpolant.fit(f, -1.0, 1.0, tokens=33, kinks=())
    except IceformError:
        return
    assert it.error >= size / 2


def test_typed_constants_cancel_exactly():
    """In float64 the second is off by 2.8 at z = 1."""
    for text, slope in (("(1e16 + 1 - 1e16)*z", 1), ("1e17*(0.1*z + 0.2*z - 0.3*z)", 0)):
        it = Interpolant.fit(Formula.parse(text).function, -1.0, 1.0)
        with mpmath.workdps(50):
            for z in (-1.0, -0.3, 0.77, 1.0):
                assert abs(exactly(it, z) - slope * mpmath.mpf(z)) <= it.error
        assert it.error <= 1e-13
