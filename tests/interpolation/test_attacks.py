"""Attacks on what is proven of look-ups, with exact references.

Functions are drawn from families that have broken certificates: narrow, steep, cancelling, kinked,
with poles and infinite slopes, of odd units. A is evaluated at 50 digits from the table's own
numbers, f by its definition; no |A - f| anywhere may exceed the certified error.
"""

import math
import random
from dataclasses import dataclass
from statistics import median

import mpmath
import pytest
import torch

from iceform import Formula, IceformError, Interpolant, PrecisionError, ScalarFunction
from iceform.interpolation.grid import Grid

F64 = torch.float64
mp = mpmath.mp


@dataclass(frozen=True)
class Attack:
    """A function in torch and at 50 digits, a range, and where it is worth looking."""

    name: str
    f: object
    exact: object
    low: float
    high: float
    places: tuple[float, ...] = ()
    kinks: tuple[float, ...] | None = ()


def _bump(draw):
    at, width = draw.uniform(-0.9, 0.9), 10 ** draw.uniform(-8, -1)
    return Attack(
        f"bump of width {width:.1e} at {at:.3f}",
        lambda z: torch.exp(-(((z - at) / width) ** 2)),
        lambda z: mpmath.exp(-(((z - mpmath.mpf(at)) / mpmath.mpf(width)) ** 2)),
        -1.0, 1.0, tuple(at + t * width for t in (0, 0.5, -0.5, 1, 2)),
    )  # fmt: skip


def _tent(draw):
    at, width = draw.uniform(-0.9, 0.9), 10 ** draw.uniform(-7, -1)

    def exact(z):
        away = abs(z - mpmath.mpf(at)) / mpmath.mpf(width)
        return 1 - away if away < 1 else mpmath.mpf(0)

    return Attack(
        f"tent of width {width:.1e} at {at:.3f}",
        lambda z: torch.where(
            (z - at).abs() < width, 1 - (z - at).abs() / width, torch.zeros_like(z)
        ),
        exact, -1.0, 1.0, tuple(at + t * width for t in (0, 0.3, -0.9, 1.1)),
    )  # fmt: skip


def _cancelling(draw):
    big = 10 ** draw.uniform(4, 10)
    return Attack(
        f"sqrt(z^2 + {big:.1e}^2) - {big:.1e}",
        lambda z: torch.sqrt(z * z + big * big) - big,
        lambda z: mpmath.sqrt(z * z + mpmath.mpf(big * big)) - mpmath.mpf(big),
        -1.0, 1.0,
    )  # fmt: skip


def _root(draw):
    power = draw.choice([0.5, 0.3, 0.75])
    return Attack(
        f"z^{power}", lambda z: z**power, lambda z: z ** mpmath.mpf(power),
        0.0, 10 ** draw.uniform(-3, 3), (0.0, 1e-12, 1e-8, 1e-5, 1e-3),
    )  # fmt: skip


def _units(draw):
    """Ordinary functions of arguments and values in odd units."""
    scale, size = 2.0 ** draw.randint(-80, 80), 2.0 ** draw.randint(-300, 300)
    f, exact = draw.choice(
        [(torch.tanh, mpmath.tanh), (torch.sin, mpmath.sin), (torch.erf, mpmath.erf)]
    )
    return Attack(
        f"{f.__name__} in units of {scale:.1e}, {size:.1e}",
        lambda z: size * f(z / scale),
        lambda z: size * exact(z / scale),
        -3.0 * scale, 5.0 * scale,
    )  # fmt: skip


def _steep(draw):
    rate, at = 10 ** draw.uniform(0, 5), draw.uniform(-1, 1)
    return Attack(
        f"tanh of rate {rate:.1e} at {at:.3f}",
        lambda z: torch.tanh(rate * (z - at)),
        lambda z: mpmath.tanh(mpmath.mpf(rate) * (z - mpmath.mpf(at))),
        -2.0, 2.0, tuple(at + t / rate for t in (-2, -0.5, 0, 0.5, 2)),
    )  # fmt: skip


def _pole_near(draw):
    """A pole just outside the range, or off the axis."""
    off = 10 ** draw.uniform(-4, 0)
    return Attack(
        f"1/(z^2 + {off:.1e}^2)",
        lambda z: 1 / (z * z + off * off),
        lambda z: 1 / (z * z + mpmath.mpf(off * off)),
        -1.0, 1.0, (0.0, off, -off, off / 2),
    )  # fmt: skip


def _odd_kink(draw):
    at = draw.uniform(-1, 1)
    return Attack(
        f"|z^2 - {at:.3f}| + |z - {at:.3f}|",
        lambda z: (z * z - at).abs() + torch.relu(z - at),
        lambda z: abs(z * z - mpmath.mpf(at)) + max(z - mpmath.mpf(at), mpmath.mpf(0)),
        -1.5, 1.5, (at, math.sqrt(abs(at)), -math.sqrt(abs(at))),
    )  # fmt: skip


def _smooth(draw):
    """What is ordinary: certificates must be tight here."""
    a, b, c = draw.uniform(0.3, 3), draw.uniform(-2, 2), draw.uniform(0.5, 4)
    kinds = [
        (lambda z: torch.tanh(a * z + b), lambda z: mpmath.tanh(mpmath.mpf(a) * z + mpmath.mpf(b))),
        (lambda z: torch.sin(a * z) + b, lambda z: mpmath.sin(mpmath.mpf(a) * z) + mpmath.mpf(b)),
        (
            lambda z: torch.nn.functional.softplus(a * z) / c,
            lambda z: mpmath.log1p(mpmath.exp(mpmath.mpf(a) * z)) / mpmath.mpf(c),
        ),
        (
            lambda z: z * torch.sigmoid(a * z),
            lambda z: z / (1 + mpmath.exp(-mpmath.mpf(a) * z)),
        ),
        (
            torch.nn.functional.gelu,
            lambda z: z * mpmath.erfc(-z / mpmath.sqrt(2)) / 2,
        ),
    ]
    f, exact = draw.choice(kinds)
    return Attack("smooth", f, exact, -c, c)


FAMILIES = {
    "bump": _bump, "tent": _tent, "cancelling": _cancelling, "root": _root, "units": _units,
    "steep": _steep, "pole near": _pole_near, "odd kink": _odd_kink, "smooth": _smooth,
}  # fmt: skip


def exactly(it: Interpolant, z: float) -> mpmath.mpf:
    """A(z) at 50 digits, from the numbers that define the table."""
    x = mpmath.mpf(z)
    if isinstance(it.grid, Grid):
        t = (x - mpmath.mpf(it.grid.center)) / mpmath.mpf(it.grid.spacing)
        first, middle = -it.grid.guards, mpmath.mpf(it.grid.cells) / 2
        logits = [
            -mpmath.mpf(it.sharpness) * (t - (first + k - middle)) ** 2 for k in range(it.tokens)
        ]
    else:
        keys = zip(it.keys.slopes.tolist(), it.keys.biases.tolist(), strict=True)
        logits = [mpmath.mpf(s) * (x - mpmath.mpf(it.grid.center)) + mpmath.mpf(b) for s, b in keys]
    top = max(logits)
    masses = [mpmath.exp(q - top) if q - top > -200 else mpmath.mpf(0) for q in logits]
    values = it.values.tolist()
    return sum(m * mpmath.mpf(v) for m, v in zip(masses, values, strict=True)) / sum(masses)


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
        attack = _smooth(draw)
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
