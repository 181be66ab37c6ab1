"""Ends and radii against exact arithmetic: never inside of the truth, and next to it."""

import itertools
import math
import random
from fractions import Fraction

import mpmath
import pytest
import torch

from iceform.arithmetic import Interval, Jet, intervals
from iceform.arithmetic.double_double import (
    SUMMED,
    UNIT,
    DoubleDouble,
    add,
    div,
    dot,
    exp,
    exponent_of,
    mul,
    pair,
    power_of_two,
    sub,
    sum_last,
    times_power,
    two_prod,
    two_sum,
)
from iceform.arithmetic.doubled import Doubled, softmax_average
from iceform.arithmetic.rounding import (
    compounded,
    format_of,
    fused_steps,
    log_steps,
    sum_steps,
)
from iceform.errors import DtypeError

F64 = torch.float64
ULP = Fraction(2) ** -52
LEAST = Fraction(math.ulp(0.0))


def numbers(count, seed, sizes=(-60, -3, 0, 3, 60)):
    draw = random.Random(seed)
    return [math.ldexp(draw.uniform(-1, 1), draw.choice(sizes)) for _ in range(count)]


def ends(count, seed, sizes=(-3, 0, 3)):
    """Wide, narrow and one-point intervals, either sign and across 0."""
    draw = random.Random(seed)
    found = []
    for low in numbers(count, seed + 1, sizes):
        wide = draw.choice([0.0, 1e-15, 1e-3, 1.0]) * draw.random() * max(abs(low), 1.0)
        found.append((low, low + wide))
    return found


def interval(pairs):
    low, high = zip(*pairs, strict=True)
    return Interval(torch.tensor(low, dtype=F64), torch.tensor(high, dtype=F64))


def assert_next_to(found, exact, units=4, least=2):
    """Each end outside of the exact one, by at most so many units in the last place."""
    ours = zip(found.low.flatten().tolist(), found.high.flatten().tolist(), strict=True)
    for i, ((low, high), (least_exact, most_exact)) in enumerate(zip(ours, exact, strict=True)):
        slack = units * ULP * max(abs(least_exact), abs(most_exact)) + least * LEAST
        assert least_exact - slack <= Fraction(low) <= least_exact, (i, low, float(least_exact))
        assert most_exact <= Fraction(high) <= most_exact + slack, (i, high, float(most_exact))


def corners(op, *pairs):
    return [
        (min(values), max(values))
        for spans in zip(*pairs, strict=True)
        for values in [[op(*map(Fraction, point)) for point in itertools.product(*spans)]]
    ]


# ------------------------------------------------------------------------------------ intervals


def test_wide_intervals_are_the_hull_of_their_corners():
    a, b = ends(400, 0), ends(400, 1)
    x, y = interval(a), interval(b)
    for found, op in (
        (x + y, lambda s, t: s + t), (x - y, lambda s, t: s - t), (x * y, lambda s, t: s * t),
    ):  # fmt: skip
        assert_next_to(found, corners(op, a, b))
    assert_next_to(-x, [(Fraction(-high), Fraction(-low)) for low, high in a], 0, 0)
    assert_next_to(x.times(3.0), corners(lambda s: 3 * s, a))
    assert_next_to(x.over(3.0), corners(lambda s: s / 3, a))
    assert_next_to(x.hull(y), [(min(*p, *q), max(*p, *q)) for p, q in fractions(a, b)], 0, 0)
    across = [(min(p[0], -0.5), max(p[1], 0.5)) for p in a]
    met = [(max(p[0], q[0]), min(p[1], q[1])) for p, q in fractions(across, b) if q[0] <= p[1]]
    kept = [i for i, (p, q) in enumerate(zip(across, b, strict=True)) if q[0] <= p[1]]
    assert_next_to(interval(across).meet(y)[kept], met, 0, 0)
    assert_next_to(x.flipped(), fractions(a[::-1]), 0, 0)


def fractions(*pairs):
    """The same ends as exact numbers; of several lists, side by side."""
    exact = [[tuple(map(Fraction, span)) for span in each] for each in pairs]
    return exact[0] if len(exact) == 1 else list(zip(*exact, strict=True))


def test_sizes_and_squares_and_quotients():
    a = ends(400, 2)
    x = interval(a)
    sizes = [
        (Fraction(0) if p[0] <= 0 <= p[1] else min(map(abs, p)), max(map(abs, p)))
        for p in fractions(a)
    ]
    assert_next_to(x.absolute(), sizes, 0, 0)
    assert x.magnitude.tolist() == [float(most) for _, most in sizes]
    assert x.has_zero.tolist() == [low <= 0 <= high for low, high in a]
    assert_next_to(x.square(), [(low * low, high * high) for low, high in sizes])
    some = [p for p in a if not p[0] <= 0 <= p[1]]
    assert_next_to(interval(some).reciprocal(), corners(lambda s: 1 / s, some))
    across = interval([p for p in a if p[0] <= 0 <= p[1]]).reciprocal()
    assert bool((across.low == -math.inf).all() & (across.high == math.inf).all())
    for touching in ((0.0, 1.0), (-1.0, 0.0)):
        assert math.isinf(float(interval([touching]).reciprocal().magnitude))
    ends_of = interval([(2.0, 4.0), (-4.0, -2.0)]).reciprocal()
    assert_next_to(ends_of, [(Fraction(1, 4), Fraction(1, 2)), (-Fraction(1, 2), -Fraction(1, 4))])


def test_sums_hold_whatever_cancels():
    """Terms of any size and sign; the slack follows their magnitudes, one unit apiece."""
    a = [list(p) for p in ends(60, 3, (-40, 0, 50))]
    grid = interval([tuple(p) for p in a])
    low, high = (sum(Fraction(p[i]) for p in a) for i in (0, 1))
    size = sum(max(abs(Fraction(p[0])), abs(Fraction(p[1]))) for p in a)
    found = grid.sum()
    assert low - len(a) * ULP * size <= Fraction(float(found.low)) <= low
    assert high <= Fraction(float(found.high)) <= high + len(a) * ULP * size
    # One large term, and many that rounding to nearest drops: each is half a unit of the large.
    many = Interval.point(torch.tensor([1.0] + [2.0**-53] * 64, dtype=F64)).sum()
    assert Fraction(float(many.low)) <= 1 + 64 * Fraction(2) ** -53 <= Fraction(float(many.high))


def test_choosing_and_cutting():
    a, b = ends(50, 4), ends(50, 5)
    x, y = interval(a), interval(b)
    mask = torch.arange(50) % 3 == 0
    picked = [p if m else q for p, q, m in zip(a, b, mask.tolist(), strict=True)]
    assert_next_to(x.where(mask, y), fractions(picked), 0, 0)
    lost = x.unknown_where(mask)
    for i in range(50):
        want = (-math.inf, math.inf) if mask[i] else a[i]
        assert (float(lost.low[i]), float(lost.high[i])) == want
    cut = [tuple(min(max(e, -1.0), 2.0) for e in p) for p in a]
    assert_next_to(x.clamped(-1.0, 2.0), fractions(cut), 0, 0)
    assert float(Interval.whole(x.low).low.max()) == -math.inf
    assert float(Interval.whole(x.low).high.min()) == math.inf
    assert len(x) == 50


def test_signs_and_what_is_no_number():
    """Underflow takes no sign; 0 times infinity is everything."""
    tiny, zero = interval([(1e-300, 2e-300)]), interval([(0.0, 0.0)])
    for a, b, low, high in (
        (tiny, tiny, 0.0, None), (-tiny, -tiny, 0.0, None), (tiny, -tiny, None, 0.0),
        (-tiny, tiny, None, 0.0), (zero, tiny, 0.0, None), (zero, -tiny, None, 0.0),
    ):  # fmt: skip
        found = a * b
        assert low is None or float(found.low) == low
        assert high is None or float(found.high) == high
        assert float(found.low) <= 0 <= float(found.high)
    mixed = interval([(-1e-300, 2e-300)]) * tiny
    assert float(mixed.low) < 0 < float(mixed.high)
    mixed = interval([(-1e-300, 2e-300)]) * -tiny
    assert float(mixed.low) < 0 < float(mixed.high)
    smallest = interval([(5e-324, 5e-324)])
    assert (float(smallest.over(2.0).low), float((-smallest).over(2.0).high)) == (0.0, 0.0)
    infinite = Interval.point(torch.tensor([math.inf], dtype=F64))
    for nothing in (zero * infinite, infinite - infinite, infinite + -infinite):
        assert (float(nothing.low), float(nothing.high)) == (-math.inf, math.inf)
    huge = interval([(1e308, 1.5e308)])
    overflown = huge.times(4.0)
    assert float(overflown.high) == math.inf


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(2) ** 1100, -(Fraction(2) ** 1100)])
def test_the_nearest_numbers_on_either_side(value):
    low, high = intervals.below(value), intervals.above(value)
    assert Fraction(low) <= value if math.isfinite(low) else value < 0
    assert Fraction(high) >= value if math.isfinite(high) else value > 0
    if abs(value) < 1:
        assert math.nextafter(low, math.inf) == high
    else:
        largest = torch.finfo(F64).max
        assert (low, high) == ((largest, math.inf) if value > 0 else (-math.inf, -largest))
    for exact in (0.25, -3.0):
        assert intervals.below(Fraction(exact)) == intervals.above(Fraction(exact)) == exact
        assert intervals.below(exact) == intervals.above(exact) == exact


def extremes(function, low, high, turning):
    """The range of a function that turns only at given points."""
    inside = [point for point in turning if low <= point <= high]
    values = [function(point) for point in (mpmath.mpf(low), mpmath.mpf(high), *inside)]
    return min(values), max(values)


def assert_range(found, i, exact, slack):
    low, high = float(found.low[i]), float(found.high[i])
    assert exact[0] - slack <= mpmath.mpf(low) <= exact[0], (i, low, exact)
    assert exact[1] <= mpmath.mpf(high) <= exact[1] + slack, (i, high, exact)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_reach_their_extremes_and_no_more(name):
    a = [*ends(300, 6, (0, 3, 6)), (-1.0, 60.0), (0.0, 0.0), (-2.0, 0.5), (1.0, 1.9)]
    peak = {"sin": 0.25, "cos": 0.0}[name]
    found = interval(a).wave(getattr(torch, name), peak)
    with mpmath.workdps(60):
        turning = [
            mpmath.pi * (k + (mpmath.mpf(1) / 2 if name == "sin" else 0)) for k in range(-60, 60)
        ]
        for i, (low, high) in enumerate(a):
            exact = extremes(getattr(mpmath, name), low, high, turning)
            assert_range(found, i, exact, 8 * float(ULP))
    far = interval([(1e12, 1e12)]).wave(torch.sin, 0.25)
    assert (float(far.low), float(far.high)) == (-1.0, 1.0)


def test_tangents_between_their_poles():
    a = [p for p in ends(300, 7, (0, 2)) if p[1] - p[0] < 3]
    found = interval(a).tangent()
    with mpmath.workdps(60):
        poles = [mpmath.pi * (k + mpmath.mpf(1) / 2) for k in range(-9, 9)]
        for i, (low, high) in enumerate(a):
            if any(low <= pole <= high for pole in poles):
                assert math.isinf(float(found.low[i])), a[i]
                assert math.isinf(float(found.high[i])), a[i]
            else:
                exact = mpmath.tan(low), mpmath.tan(high)
                assert_range(found, i, exact, 8 * ULP * max(map(abs, exact)))
    assert math.isinf(float(interval([(1e12, 1e12)]).tangent().high))


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0, -1.0, -2.0, -3.0, 0.5, -1.5])
def test_powers(exponent):
    whole = exponent.is_integer()
    a = [*ends(200, 8), (1.0, 2.0), (-2.0, -1.0), (-1.0, 3.0)]
    found = interval(a).power(exponent)
    with mpmath.workdps(60):
        for i, (low, high) in enumerate(a):
            unknown = (exponent < 0 and low <= 0 <= high) or (not whole and low < 0)
            if unknown:
                assert float(found.high[i]) == math.inf, a[i]
                continue
            exact = extremes(lambda u: mpmath.power(u, exponent), low, high, [mpmath.mpf(0)])
            assert_range(found, i, exact, 16 * ULP * max(map(abs, exact)) + 1e-300)


def test_functions_that_rise_or_fall_away():
    a = ends(200, 9)
    rising = interval(a).increasing(torch.atan, -1.0, 1.0)
    falling = interval(a).falling_away(lambda u: 1 / torch.cosh(u), 1.0)
    with mpmath.workdps(60):
        for i, (low, high) in enumerate(a):
            exact = [min(max(mpmath.atan(e), -1), 1) for e in (low, high)]
            assert_range(rising, i, exact, 8 * float(ULP))
            exact = extremes(mpmath.sech, low, high, [mpmath.mpf(0)])
            assert_range(falling, i, exact, 32 * float(ULP))


# ----------------------------------------------------------------------------------------- jets


def test_the_larger_and_the_smaller_of_two():
    """Cells on either side of the kink, and one across."""
    cells = interval([(-3.0, -2.0), (-0.5, 0.5), (2.0, 3.0)])
    u = Jet.variable(cells, 3)
    v = -u
    for found, sign in ((u.largest(v), 1), (u.smallest(v), -1)):
        slopes = [-sign, None, sign]
        for i, slope in enumerate(slopes):
            want = (slope, slope) if slope is not None else (-1.0, 1.0)
            assert (float(found[1].low[i]), float(found[1].high[i])) == want
    top = u.largest(v)[0]
    assert top.low.tolist() == [2.0, -0.5, 2.0]
    assert top.high.tolist() == [3.0, 0.5, 3.0]
    least = u.smallest(v)[0]
    assert least.low.tolist() == [-3.0, -0.5, -3.0]
    assert least.high.tolist() == [-2.0, 0.5, -2.0]
    one, two = Jet.number(1.0), Jet.number(2.0)
    assert float(one.largest(two).value.low) == 2.0 == float(one.largest(two).value.high)
    assert one.largest(two).constant
    ramp = u.largest(Jet.number(0.0))
    assert ramp[1].low.tolist() == [0.0, 0.0, 1.0]
    assert ramp[1].high.tolist() == [0.0, 1.0, 1.0]
    assert math.isinf(float(ramp[2].magnitude[1]))
    assert ramp[2].magnitude[[0, 2]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 5.0, 16.0, 17.0, -2.0])
def test_powers_of_jets(exponent):
    u = Jet.variable(interval([(1.5, 1.5), (2.0, 2.0)]), 3)
    found = u.power(exponent)
    if exponent == 0:
        assert found.constant
        assert float(found.value.low) == 1.0 == float(found.value.high)
        return
    for i, x in enumerate((Fraction(3, 2), Fraction(2))):
        for k in range(4):
            want = x ** (int(exponent) - k) if exponent >= k or exponent < 0 else Fraction(0)
            for j in range(k):
                want *= Fraction(int(exponent) - j, j + 1)
            low, high = float(found[k].low[i]), float(found[k].high[i])
            assert Fraction(low) <= want <= Fraction(high)
            assert high - low <= 1e-13 * abs(want) + 1e-300


def test_constants_stay_constant():
    two = Jet.number(2.0)
    for function, want in (
        (Jet.exp, mpmath.exp(2)), (Jet.sin, mpmath.sin(2)), (Jet.cos, mpmath.cos(2)),
        (Jet.sqrt, mpmath.sqrt(2)), (Jet.square, 4), (Jet.reciprocal, 0.5), (Jet.absolute, 2),
        (Jet.erf, mpmath.erf(2)), (Jet.atan, mpmath.atan(2)), (Jet.log, mpmath.log(2)),
        (lambda j: j.power(3.0), 8), (lambda j: j + j, 4), (lambda j: j * j, 4),
    ):  # fmt: skip
        found = function(two)
        assert found.constant
        assert float(found.value.low) <= want <= float(found.value.high)
        assert float(found.value.high - found.value.low) <= 4e-15 * abs(want)
    u = Jet.variable(interval([(1.0, 1.0)]), 2)
    for mixed in (u + two, two + u, u * two, two * u, u - two):
        assert not mixed.constant
        assert mixed.order == 2
    assert float((two + u).value.low) <= 3.0 <= float((two + u).value.high)
    assert (float((two * u)[1].low), float((u - two)[0].low)) == pytest.approx((2.0, -1.0))


# ---------------------------------------------------------------------------------------- pairs


def exact(x):
    hi, lo = (t.flatten().tolist() for t in x)
    return [Fraction(a) + Fraction(b) for a, b in zip(hi, lo, strict=True)]


def pairs_of(count, seed):
    hi = torch.tensor(numbers(count, seed), dtype=F64)
    lo = torch.tensor(numbers(count, seed + 1, (0,)), dtype=F64) * 2.0**-53 * hi.abs()
    return DoubleDouble(hi, lo)


def test_error_free_transformations_are():
    a, b = (torch.tensor(numbers(300, seed), dtype=F64) for seed in (10, 11))
    sums = exact(two_sum(a, b))
    products = exact(two_prod(a, b))
    for i, (s, t) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        assert sums[i] == Fraction(s) + Fraction(t)
        assert products[i] == Fraction(s) * Fraction(t)


def test_pairs_are_as_long_as_they_say():
    x, y = pairs_of(300, 12), pairs_of(300, 14)
    s, t = exact(x), exact(y)
    for found, op, sized in (
        (add(x, y), lambda p, q: p + q, True), (sub(x, y), lambda p, q: p - q, True),
        (mul(x, y), lambda p, q: p * q, False), (div(x, y), lambda p, q: p / q, False),
    ):  # fmt: skip
        hi, lo = found.hi.tolist(), found.lo.tolist()
        for i, got in enumerate(exact(found)):
            want = op(s[i], t[i])
            size = abs(s[i]) + abs(t[i]) if sized else abs(want)
            assert abs(got - want) <= Fraction(UNIT) * size, (i, float(want))
            assert abs(lo[i]) <= math.ulp(hi[i]), i
    for n in (1, 2, 3, 7, 64, 101):
        some = DoubleDouble(x.hi[:n], x.lo[:n])
        others = DoubleDouble(y.hi[:n], y.lo[:n])
        total, size = sum(s[:n]), sum(map(abs, s[:n]))
        assert abs(exact(sum_last(some))[0] - total) <= Fraction(SUMMED) * size
        total = sum(p * q for p, q in zip(s[:n], t[:n], strict=True))
        size = sum(abs(p * q) for p, q in zip(s[:n], t[:n], strict=True))
        assert abs(exact(dot(some, others))[0] - total) <= Fraction(SUMMED) * size
    assert x.double().tolist() == [float(value) for value in s]
    assert x.span(2, 5).hi.tolist() == x.hi[2:5].tolist()
    assert x.span(2, 5).lo.tolist() == x.lo[2:5].tolist()


def test_exponentials_of_pairs():
    hi = torch.cat(
        [torch.linspace(-730, 709, 301, dtype=F64), torch.linspace(-1, 1, 40, dtype=F64)]
    )
    x = DoubleDouble(hi, hi * 2.0**-55)
    found = exp(x)
    with mpmath.workdps(60):
        for i, (a, b) in enumerate(zip(hi.tolist(), x.lo.tolist(), strict=True)):
            want = mpmath.exp(mpmath.mpf(a) + mpmath.mpf(b))
            got = mpmath.mpf(float(found.hi[i])) + mpmath.mpf(float(found.lo[i]))
            assert abs(got - want) <= UNIT * want + mpmath.mpf(2) ** -1073, a
    nothing = exp(pair(torch.tensor([-741.0, -1e300, -math.inf], dtype=F64)))
    assert nothing.hi.tolist() == [0.0] * 3 == nothing.lo.tolist()
    last = exp(pair(torch.tensor([-740.0], dtype=F64)))
    assert float(last.hi) > 0


def test_powers_of_two_are_exact():
    exponents = torch.tensor([-1022, -1, 0, 1, 52, 1023])
    assert power_of_two(exponents).tolist() == [math.ldexp(1.0, e) for e in exponents.tolist()]
    x = torch.tensor([1.5, -0.75, 1.0, 5e-324, 0.0], dtype=F64)
    assert exponent_of(x).tolist() == [1, 0, 1, -1073, 0]
    for e in (-2044, -1074, -1030, -1023, -1, 0, 7, 1023):
        got = times_power(x, torch.full((5,), e))
        assert got.tolist() == [math.ldexp(v, e) for v in x.tolist()], e
    assert (
        float(times_power(torch.tensor([2.0**-1000], dtype=F64), torch.tensor([2000]))) == 2.0**1000
    )


# ---------------------------------------------------------------------------------------- balls


def ball(mid, off):
    mid, off = torch.tensor(mid, dtype=F64), torch.tensor(off, dtype=F64)
    return Doubled(pair(mid), off)


def reach(found):
    """The exact ends of balls."""
    offs = map(Fraction, found.off.flatten().tolist())
    return [(mid - off, mid + off) for mid, off in zip(exact(found.mid), offs, strict=True)]


OUTWARD = 1 + Fraction(2) ** -38  # what radii may be rounded up by
TINY = Fraction(2) ** -1014  # and what is added for underflow


def test_radii_are_rounded_up():
    """Middles that are exact leave the radius alone to hold what the radii round away."""
    offs, more = (
        [abs(Fraction(o)) for o in numbers(300, seed, sizes)]
        for seed, sizes in ((20, (0, -2)), (21, (0, -30, -52)))
    )
    a, b = (ball([0.0] * 300, [float(o) for o in each]) for each in (offs, more))
    for found in (a + b, a - b):
        for (_, top), o, m in zip(reach(found), offs, more, strict=True):
            assert o + m <= top <= (o + m) * OUTWARD + TINY
    assert sum(offs) <= reach(a.sum())[0][1] <= sum(offs) * OUTWARD
    low, high = (map(Fraction, end.tolist()) for end in a.ends())
    for bottom, top, off in zip(low, high, offs, strict=True):
        assert bottom <= -off
        assert off <= top <= off * OUTWARD + TINY


def test_intervals_become_balls_that_hold_them():
    a = ends(400, 22, (-3, 0, 3, 500))
    low, high = (torch.tensor(e, dtype=F64) for e in zip(*a, strict=True))
    found = Doubled.between(low, high)
    sizes = map(Fraction, found.size.tolist())
    for (bottom, top), (least, most), size in zip(reach(found), fractions(a), sizes, strict=True):
        assert bottom <= least
        assert most <= top
        rounded = 4 * ULP * max(abs(least), abs(most))
        assert top - bottom <= (most - least) * OUTWARD + rounded + TINY
        assert size >= max(abs(bottom), abs(top))


def test_sizes_and_ends_of_pairs():
    x = pairs_of(400, 24)
    off = x.hi.abs() * torch.tensor([2.0**-70, 2.0**-53, 2.0**-20, 1.0] * 100, dtype=F64)
    some = Doubled(x, off)
    shown = (map(Fraction, t.tolist()) for t in (*some.ends(), some.size))
    for (bottom, top), low, high, size in zip(reach(some), *shown, strict=True):
        most = max(abs(bottom), abs(top))
        assert most <= size <= most * OUTWARD + 4 * ULP * most
        assert low <= bottom
        assert top <= high
        assert high - low <= (top - bottom) * OUTWARD + 8 * ULP * most + TINY
    assert torch.equal(some[3:5].off, off[3:5])
    assert torch.equal(some[3:5].mid.lo, x.lo[3:5])
    assert some.shape == (400,)
    assert exact((-some).mid) == [-value for value in exact(x)]
    wide = Doubled(DoubleDouble(x.hi.reshape(20, 20), x.lo.reshape(20, 20)), off.reshape(20, 20))
    assert torch.equal(wide.mT.off, wide.off.T)
    assert torch.equal(wide.mT.mid.lo, wide.mid.lo.T)


def test_products_and_quotients_of_wide_balls():
    """Every corner is inside; the radius is at most what the corners and their products need."""
    draw = random.Random(25)
    mids = [[draw.choice([-1, 1]) * draw.uniform(0.5, 2) for _ in range(200)] for _ in range(2)]
    wide = [0.0, 2.0**-60, 1e-9, 0.2]
    offs = [[draw.choice(wide) * draw.random() for _ in range(200)] for _ in range(2)]
    a, b = (ball(m, o) for m, o in zip(mids, offs, strict=True))
    for found, op in ((a * b, lambda s, t: s * t), (a / b, lambda s, t: s / t)):
        for (bottom, top), p, q in zip(reach(found), reach(a), reach(b), strict=True):
            values = [op(s, t) for s in p for t in q]
            assert bottom <= min(values)
            assert max(values) <= top
            parts = sum((high - low) / abs(high + low) for low, high in (p, q))
            assert top - bottom <= 8 * max(map(abs, values)) * (parts + Fraction(UNIT)) + TINY
    for off in (1.0, 1.5, math.nan):
        assert math.isinf(float((ball([1.0], [0.0]) / ball([1.0], [off])).off))
    assert math.isfinite(float((ball([1.0], [0.0]) / ball([-1.0], [0.9])).off))


def test_exponentials_of_wide_balls():
    x = torch.linspace(-700, 700, 57, dtype=F64)
    for off in (0.0, 1e-25, 1e-9, 0.5):
        found = Doubled(pair(x), torch.full_like(x, off)).exp()
        with mpmath.workdps(60):
            for i, z in enumerate(x.tolist()):
                middle = mpmath.mpf(float(found.mid.hi[i])) + mpmath.mpf(float(found.mid.lo[i]))
                radius = mpmath.mpf(float(found.off[i]))
                top = mpmath.exp(mpmath.mpf(z) + off)
                assert middle - radius <= mpmath.exp(mpmath.mpf(z) - off)
                assert top <= middle + radius
                assert (
                    radius
                    <= 1.01 * mpmath.exp(z) * (mpmath.expm1(off) + UNIT) + mpmath.mpf(2) ** -1016
                )


def test_how_far_numbers_are():
    x = pairs_of(200, 26)
    some = Doubled(x, x.hi.abs() * 2.0**-80)
    radii = [Fraction(o) for o in some.off.tolist()]
    for computed in (x.hi, x.hi * (1 + 2.0**-50), -x.hi, (x.hi * 0.3).float()):
        given = map(Fraction, computed.double().tolist())
        gaps, offs = (map(Fraction, t.tolist()) for t in some.apart(computed))
        for mid, number, radius, gap, off in zip(exact(x), given, radii, gaps, offs, strict=True):
            apart, slack = abs(mid - number), Fraction(UNIT) * (abs(mid) + abs(number))
            assert apart + radius <= gap + off
            assert gap <= (apart + slack) * OUTWARD + TINY
            assert radius + slack * (1 - ULP) <= off <= (radius + 2 * slack) * OUTWARD + TINY


def test_averages_of_balls_hold_those_of_their_numbers():
    """Values far from 0 that hardly differ: the radius follows the differences."""
    g = torch.Generator().manual_seed(27)
    z = 3 * torch.randn(3, 6, generator=g, dtype=F64)
    values = 1e6 + torch.randn(6, 2, generator=g, dtype=F64)
    off, moved = 1e-12, 1e-13
    average = softmax_average(
        Doubled(pair(z), torch.full_like(z, off)),
        Doubled(pair(values), torch.full_like(values, moved)),
    )
    with mpmath.workdps(50):
        for row in range(3):
            for column in range(2):
                for signs in itertools.product((-1, 1), repeat=6):
                    masses = [
                        mpmath.exp(mpmath.mpf(v) + s * off)
                        for v, s in zip(z[row].tolist(), signs, strict=True)
                    ]
                    for up in (-1, 1):
                        numbers_of = [
                            mpmath.mpf(v) + up * moved for v in values[:, column].tolist()
                        ]
                        want = mpmath.fdot(masses, numbers_of) / mpmath.fsum(masses)
                        found = average[row, column]
                        middle = mpmath.mpf(float(found.mid.hi)) + mpmath.mpf(float(found.mid.lo))
                        assert abs(middle - want) <= float(found.off)
    assert float(average.off.max()) <= 40 * (off + moved)


# --------------------------------------------------------------------------------- the model


def test_formats():
    for dtype, bits, least, flushes in (
        (torch.float64, 53, -1022, True), (torch.float32, 24, -126, True),
        (torch.bfloat16, 8, -126, True), (torch.float16, 11, -14, False),
        (torch.float8_e4m3fn, 4, -6, False), (torch.float8_e5m2, 3, -14, False),
    ):  # fmt: skip
        found = format_of(dtype)
        assert found.u == 2.0**-bits
        assert found.faithful == 2.0 ** (1 - bits)
        assert found.normal == 2.0**least
        assert found.subnormal == 2.0 ** (least + 1 - bits)
        assert found.flushes is flushes
        assert found.underflow == (found.normal if flushes else found.subnormal)
        assert found.rounded_underflow == (found.normal if flushes else found.subnormal / 2)
        assert found.largest == torch.finfo(dtype).max
        assert found.name == str(dtype).split(".")[1]
    for other in (torch.int32, "float64", None):
        with pytest.raises(DtypeError, match="rounding is modelled"):
            format_of(other)


def test_steps():
    """n + 2 ceil(n/4), or of those that are there; factors within (1 - U)^-k."""
    assert [sum_steps(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 3, 6, 9, 12, 15]
    present = torch.tensor([0, 1, 2, 3, 9])
    assert fused_steps(present, 8).tolist() == [0, 3, 6, 7, 13]
    for unit in (2.0**-53, 2.0**-24, 2.0**-8):
        with mpmath.workdps(60):
            for steps in (1, 7, 100):
                want = (1 - mpmath.mpf(unit)) ** -steps - 1
                assert abs(compounded(steps, unit) - want) <= 4 * float(ULP) * want
            assert abs(log_steps(unit) + mpmath.log1p(-mpmath.mpf(unit))) <= float(ULP) * 2 * unit
    assert log_steps(1.0) == math.inf == log_steps(2.0)
    assert compounded(1e30, 0.5) == math.inf
    assert math.isfinite(compounded(1000, 0.5))
