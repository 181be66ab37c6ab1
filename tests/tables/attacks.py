"""Functions that have broken certificates, with what they are at 50 digits.

Families draw them: narrow, steep, cancelling, kinked, with poles and infinite slopes, of odd units.
"""

import math
from dataclasses import dataclass

import mpmath
import torch

from iceform import Interpolant
from iceform.tables.interpolant import Grid


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
