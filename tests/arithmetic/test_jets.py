"""Intervals and jets against 60-digit arithmetic: every coefficient is inside, and tightly."""

import math
import random
from fractions import Fraction

import mpmath
import pytest
import torch

from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.intervals import LIBRARY, above, below

F64 = torch.float64
mpmath.mp.prec = 200

# name: on jets, in mpmath, range
FUNCTIONS = {
    "exp": (Jet.exp, mpmath.exp, (-5, 5)),
    "expm1": (Jet.expm1, mpmath.expm1, (-5, 5)),
    "log": (Jet.log, mpmath.log, (0.1, 5)),
    "log1p": (Jet.log1p, mpmath.log1p, (-0.9, 5)),
    "sqrt": (Jet.sqrt, mpmath.sqrt, (0.1, 5)),
    "sigmoid": (Jet.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), (-30, 30)),
    "tanh": (Jet.tanh, mpmath.tanh, (-12, 12)),
    "softplus": (Jet.softplus, lambda x: mpmath.log(1 + mpmath.exp(x)), (-30, 30)),
    "logcosh": (Jet.logcosh, lambda x: mpmath.log(mpmath.cosh(x)), (-9, 9)),
    "erf": (Jet.erf, mpmath.erf, (-4, 4)),
    "erfc": (Jet.erfc, mpmath.erfc, (-4, 4)),
    "atan": (Jet.atan, mpmath.atan, (-4, 4)),
    "asinh": (Jet.asinh, mpmath.asinh, (-4, 4)),
    "sin": (Jet.sin, mpmath.sin, (-9, 9)),
    "cos": (Jet.cos, mpmath.cos, (-9, 9)),
    "sinh": (Jet.sinh, mpmath.sinh, (-5, 5)),
    "cosh": (Jet.cosh, mpmath.cosh, (-5, 5)),
    "tan": (Jet.tan, mpmath.tan, (-1.5, 1.5)),
    "square": (Jet.square, lambda x: x * x, (-4, 4)),
    "reciprocal": (Jet.reciprocal, lambda x: 1 / x, (0.3, 4)),
    "cube": (lambda j: j.power(3.0), lambda x: x**3, (-4, 4)),
    "power": (lambda j: j.power(-1.5), lambda x: x ** mpmath.mpf(-1.5), (0.3, 4)),
    "product": (lambda j: j.sin() * j.exp(), lambda x: mpmath.sin(x) * mpmath.exp(x), (-4, 4)),
    "quotient": (lambda j: j.cos() / j.exp(), lambda x: mpmath.cos(x) / mpmath.exp(x), (-4, 4)),
    "nested": (lambda j: j.square().exp().log1p(),
               lambda x: mpmath.log1p(mpmath.exp(x * x)), (-3, 3)),
}  # fmt: skip
ORDER = 5


def cells(low: float, high: float, seed: int, count: int = 12) -> Interval:
    draw = random.Random(seed)
    middles = torch.tensor([draw.uniform(low, high) for _ in range(count)], dtype=F64)
    widths = torch.tensor([draw.choice([0, 1e-12, 1e-6, 1e-3, 0.1]) for _ in range(count)])
    return Interval((middles - widths.double()).clamp(min=low), (middles + widths).clamp(max=high))


def violations(name: str, seed: int) -> list[tuple]:
    on_jets, exact, span = FUNCTIONS[name]
    where = cells(*span, seed)
    jet = on_jets(Jet.variable(where, ORDER))
    found = []
    for i, (low, high) in enumerate(zip(where.low.tolist(), where.high.tolist(), strict=True)):
        for t in (0, 0.37, 1):
            x = mpmath.mpf(low) + (mpmath.mpf(high) - mpmath.mpf(low)) * t
            for k, want in enumerate(mpmath.taylor(exact, x, ORDER)):
                # mpmath differentiates numerically, to about 30 digits here.
                slack = mpmath.mpf(10) ** -22 * (1 + abs(want)) if k else 0
                ends = float(jet[k].low[i]), float(jet[k].high[i])
                inside = ends[0] - slack <= want <= ends[1] + slack
                found += [] if inside else [(name, low, high, k, float(want))]
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_coefficient_is_inside(name):
    assert violations(name, 0) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_coefficient_is_inside_of_many(name):
    assert [v for seed in range(1, 100) for v in violations(name, seed)] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_points_a_jet_is_tight(name):
    on_jets, _, span = FUNCTIONS[name]
    z = torch.linspace(*span, 101, dtype=F64)
    jet = on_jets(Jet.variable(Interval.point(z), 4))
    for k in range(5):
        width = jet[k].high - jet[k].low
        allowed = 1e-10 * (1 + jet[k].magnitude)
        assert bool((width <= allowed).all()), (k, float((width / allowed).max()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_narrower_cells_have_narrower_jets(name):
    on_jets, _, (low, high) = FUNCTIONS[name]
    whole = on_jets(Jet.variable(Interval.of(float(low)).hull(Interval.of(float(high))), 4))
    part = on_jets(Jet.variable(cells(low, high, 1), 4))
    assert bool((whole.series.low <= part.series.low).all())
    assert bool((part.series.high <= whole.series.high).all())


def test_sums_and_products_hold_the_exact_ones():
    """Against rational arithmetic, subnormal and huge numbers among them."""
    draw = random.Random(4)
    sizes = [-1074, -1060, -1022, -500, -3, 0, 3, 500, 1000]
    a, b = (
        [math.ldexp(draw.uniform(-1, 1), draw.choice(sizes)) for _ in range(4000)] for _ in range(2)
    )
    x, y = (Interval.point(torch.tensor(v, dtype=F64)) for v in (a, b))
    for found, op in (
        (x + y, lambda s, t: s + t), (x - y, lambda s, t: s - t), (x * y, lambda s, t: s * t),
        (x.square(), lambda s, t: s * s), (x / y, lambda s, t: s / t if t else None),
        (x.over(3.0), lambda s, t: s / 3), (x.times(3.0), lambda s, t: 3 * s),
    ):  # fmt: skip
        for i in range(len(a)):
            want = op(Fraction(a[i]), Fraction(b[i]))
            low, high = float(found.low[i]), float(found.high[i])
            if want is not None:
                assert low == -math.inf or Fraction(low) <= want, (a[i], b[i])
                assert high == math.inf or Fraction(high) >= want, (a[i], b[i])


def test_signs_survive_underflow():
    tiny = Interval.of(1e-200)
    assert float((tiny * tiny).low) == 0.0
    assert float((tiny * -tiny).high) == 0.0
    assert float((Interval.of(0.0) * tiny).low) == 0.0


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(10) ** 400, -Fraction(1, 10**400), 0.1])
def test_a_number_lies_between_its_neighbours(value):
    assert below(value) <= value <= above(value)
    finite = math.isfinite(above(value)) and math.isfinite(below(value))
    assert not finite or above(value) <= math.nextafter(below(value), math.inf)


def test_poles_and_ends_of_domains_are_unknown():
    across = Interval.of(-1.0).hull(Interval.of(1.0))
    for function in (Jet.reciprocal, Jet.log, Jet.sqrt, lambda j: j.power(-2.0)):
        found = function(Jet.variable(across, 2))
        assert math.isinf(float(found[0].magnitude)), function
    quarter = Interval.of(1.5).hull(Interval.of(1.6))
    assert math.isinf(float(Jet.variable(quarter, 1).tan()[0].magnitude))


def test_a_kink_keeps_the_slopes_of_both_sides():
    across = Interval.of(-1.0).hull(Interval.of(2.0))
    found = Jet.variable(across, 3).absolute()
    assert (float(found[0].low), float(found[0].high)) == (0.0, 2.0)
    assert (float(found[1].low), float(found[1].high)) == (-1.0, 1.0)
    assert math.isinf(float(found[2].magnitude))


LIBRARY_FUNCTIONS = {
    "exp": (30, mpmath.exp), "expm1": (3, mpmath.expm1), "sin": (30, mpmath.sin),
    "cos": (30, mpmath.cos), "tan": (5, mpmath.tan), "tanh": (2, mpmath.tanh),
    "sinh": (3, mpmath.sinh), "cosh": (3, mpmath.cosh), "atan": (3, mpmath.atan),
    "asinh": (3, mpmath.asinh), "erf": (1.5, mpmath.erf), "erfc": (1.5, mpmath.erfc),
}  # fmt: skip


@pytest.mark.parametrize("name", LIBRARY_FUNCTIONS)
def test_torch_is_within_the_ulps_it_is_taken_to_be(name):
    """What is assumed of the library, looked at: 4 units in the last place, mostly below one."""
    size, exact = LIBRARY_FUNCTIONS[name]
    g = torch.Generator().manual_seed(6)
    z = size * torch.randn(1000, generator=g, dtype=F64)
    worst = 0.0
    for x, got in zip(z.tolist(), getattr(torch, name)(z).tolist(), strict=True):
        want = exact(mpmath.mpf(x))
        worst = max(worst, float(abs(got - want) / abs(want))) if want else worst
    print(f"{name}: {worst / 2**-52:.2f} units in the last place")
    assert worst <= LIBRARY
