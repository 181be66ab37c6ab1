"""Every term of the rounding bound, against a count of roundings at one point in long numbers.

At a point (an interval without width) the bound of :func:`iceform.tables.local.rounding_on`
is a sum of roundings that its docstrings name. The same count is made here from the exact weights,
one term at a time; the bound may neither miss one nor hold one twice.
"""

import math

import mpmath
import pytest
import torch

from iceform import Interpolant
from iceform.tables import GradedGrid, Grid, RoundingModel
from iceform.tables.local import line_of, rounding, rounding_on, tail_mass

F64 = torch.float64
SINGLE, DOUBLE = 2.0**-24, 2.0**-53
TINY = {SINGLE: 2.0**-126, DOUBLE: 2.0**-1022}


def table(grid, sharpness, values):
    return Interpolant(grid, sharpness, values.double(), "given", math.inf)


def bumpy(tokens, size=1.0, level=0.0):
    return level + size * torch.cos(2.3 * torch.arange(tokens, dtype=F64))


def graded():
    grid = GradedGrid(-10.0, 10.0, 20, 2, (0.0,), 0.4)
    return table(grid, 0.6, bumpy(grid.tokens))


TABLES = {
    "bumps": lambda: table(Grid(-2.0, 3.0, 10, 3), 0.5, bumpy(17)),
    "bumps on a level": lambda: table(Grid(-2.0, 3.0, 10, 3), 0.5, bumpy(17, 1.0, 50.0)),
    "far from 0": lambda: table(Grid(500.0, 503.0, 10, 3), 0.5, bumpy(17)),
    "sharp": lambda: table(Grid(-2.0, 3.0, 40, 1), 9.0, bumpy(43)),
    "tiny values": lambda: table(Grid(-2.0, 3.0, 10, 3), 0.5, bumpy(17, 2.0**-128)),
    "line": lambda: table(Grid(-1.0, 1.0, 8, 4), 0.4, torch.linspace(-2, 2, 17, dtype=F64)),
    "high line": lambda: table(Grid(-1.0, 1.0, 8, 4), 0.4, torch.linspace(99, 101, 17, dtype=F64)),
    "flat line": lambda: table(Grid(-1.0, 1.0, 8, 4), 0.4, torch.full((17,), 7.0, dtype=F64)),
    "line from 0": lambda: table(Grid(-1.0, 1.0, 8, 4), 0.4, 25 * torch.arange(-4, 13).double()),
    "bare line": lambda: table(Grid(-1.0, 1.0, 8, 0), 0.4, 25 * torch.arange(9).double()),
    "graded": graded,
}


def weighed(it, z):
    """Weights, values, slopes and distances in cells, and the look-up and its steepness."""
    slopes, biases = it.keys.slopes.tolist(), it.keys.biases.tolist()
    t = mpmath.mpf(z) - mpmath.mpf(it.grid.center)
    logits = [s * t + b for s, b in zip(slopes, biases, strict=True)]
    masses = [mpmath.exp(x - max(logits)) for x in logits]
    p = [m / mpmath.fsum(masses) for m in masses]
    v = [mpmath.mpf(x) for x in it.values.tolist()]
    mean = mpmath.fdot(p, v)
    mid = mpmath.fdot(p, slopes)
    steep = mpmath.fsum(
        a * abs(x - mean) * abs(s - mid) for a, x, s in zip(p, v, slopes, strict=True)
    )
    return p, v, slopes, biases, t, mean, steep


def logit_roundings(it, model, z, magnitude):
    """Of each logit, in units of roundoff: how it is made, and what softmax does to it after."""
    p, _, slopes, biases, t, *_ = weighed(it, z)
    # Softmax takes the largest away, and exp may change its base: 3 roundings, and 4 units of exp.
    later = [3 * -mpmath.log(a) + 4 for a in p]
    if model.squared:  # t - k, squared: 2, and c twice, the square itself, one cast
        nodes = it.grid.nodes.tolist()
        far = [(mpmath.mpf(z) - n) / it.grid.spacing for n in nodes]
        own = [6 * it.sharpness * d * d for d in far]
    elif model.summed:  # s and b stored, the product, the sum
        own = [
            2 * abs(s * t) + abs(b) + abs(s * t + b) for s, b in zip(slopes, biases, strict=True)
        ]
    else:  # one inner product of terms of these sizes, whose keys were rounded
        n = (model.dot_terms + 3) * model.unit
        gamma = n / (1 - n) / model.unit
        lost = model.dot_terms * TINY[model.unit] * 2.0**100 / model.unit
        own = [
            gamma * (abs(s) * magnitude + abs(b)) + lost
            for s, b in zip(slopes, biases, strict=True)
        ]
    return [a + b for a, b in zip(own, later, strict=True)]


def query_rounding(it, model, z, magnitude):
    """What z - center is off by where it is made before the logits are."""
    if not (model.squared or model.summed):
        return 0
    u, n = model.unit, (model.dot_terms + 3) * model.unit
    made = n / (1 - n) * magnitude + u * abs(it.grid.center)
    made += (model.dot_terms + 1) * TINY[u]
    away = abs(mpmath.mpf(z) - it.grid.center)
    return made + (3 * u * away + u * it.grid.spacing if model.squared else u * away)


def one_by_one(it, model, z, magnitude):
    p, v, *_, mean, _ = weighed(it, z)
    u = model.unit
    tau = logit_roundings(it, model, z, magnitude)
    moved = mpmath.fsum(a * u * e * abs(x - mean) for a, e, x in zip(p, tau, v, strict=True))
    carried = [a * abs(x) for a, x in zip(p, v, strict=True)]
    most = mpmath.fsum(carried)
    sums = mpmath.fsum(min(c, u * most) for c in carried) + 4 * u * most
    return moved + sums + (mpmath.fsum(min(a, u) for a in p) + 2 * u) * abs(mean)


def by_recurrence(it, model, z):
    p, v, *_, mean, _ = weighed(it, z)
    u, first = model.unit, it.grid.nodes.tolist()[0]
    cells = (mpmath.mpf(z) - first) / it.grid.spacing
    nearest = int(mpmath.floor(cells + mpmath.mpf(1) / 2))
    # Tokens j away: 5 roundings of an exponent up to 2c and 6 units a step, 1 for the ratio.
    away = [int(mpmath.floor(abs(k - cells) + mpmath.mpf(1) / 2)) for k in range(it.tokens)]
    tau = [j * (10 * it.sharpness + 6) + 1 for j in away]
    moved = mpmath.fsum(a * e * abs(x - mean) for a, e, x in zip(p, tau, v, strict=True))
    line = line_of(it)
    if line is None:
        sums = mpmath.fsum(
            a * ((2 * j + 6) * abs(x) + (2 * j + 2) * abs(mean))
            for a, j, x in zip(p, away, v, strict=True)
        )
        return u * (moved + sums)
    slope, off = line
    by_j = abs(mean - v[nearest])
    sums = mpmath.fsum(
        a * ((2 * j + 6) * j * abs(slope) + (2 * j + 2) * by_j)
        for a, j in zip(p, away, strict=True)
    )
    middle = abs(v[it.tokens // 2])
    return u * (moved + sums + 3 * (abs(mean) + middle) + middle + abs(mean)) + off


def counted(it, model, z, magnitude):
    looked = one_by_one(it, model, z, magnitude)
    if model.half is not None:
        looked = max(looked, by_recurrence(it, model, z))
    total = looked + weighed(it, z)[-1] * query_rounding(it, model, z, magnitude)
    if model.half is not None and model.half < it.tokens - 1:
        total += tail_mass(it.sharpness, model.half) * (max(it.values) - min(it.values)).item()
    size = max(abs(x) for x in it.values.tolist())
    return total + it.tokens * size * 2.0**-126 + 4 * it.tokens * TINY[model.unit]


MODELS = {
    "squared": {"squared": True, "magnitude": 3.0, "dot_terms": 2},
    "squared, of many terms": {"squared": True, "magnitude": 90.0, "dot_terms": 40},
    "in a window": {"squared": True, "magnitude": 3.0, "dot_terms": 2, "half": 6},
    "in a narrow window": {"squared": True, "magnitude": 3.0, "dot_terms": 2, "half": 2},
    "literal": {"squared": False, "magnitude": 3.0, "dot_terms": 5},
    "literal, of many terms": {"squared": False, "magnitude": 90.0, "dot_terms": 40},
    "summed": {"squared": False, "magnitude": 3.0, "dot_terms": 5, "summed": True},
}


@pytest.mark.parametrize("unit", [SINGLE, DOUBLE])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", TABLES)
def test_the_bound_at_a_point_is_the_count_of_roundings(name, model, unit):
    it, model = TABLES[name](), RoundingModel(unit, **MODELS[model])
    if not it.uniform and model.squared:
        pytest.skip("graded keys are not squared distances")
    if model.dot_terms == 40 and unit == SINGLE:
        pytest.skip("roundings of roundings are no longer small")
    # Not at a node or halfway, where the nearest token, and so the count, jumps.
    z = it.low + (it.high - it.low) * torch.tensor([0.03, 0.2712, 0.518, 0.77, 0.966], dtype=F64)
    sizes = model.magnitude * torch.tensor([1.0, 1.0, 0.5, 1.0, 2.0], dtype=F64)
    found = rounding_on(it, model, z, torch.zeros_like(z), sizes)
    with mpmath.workdps(40):
        for at, size, bound in zip(z.tolist(), sizes.tolist(), found.tolist(), strict=True):
            want = counted(it, model, at, size)
            # First order against what holds: squares of up to 1e5 roundings.
            room = 1e-7 if unit == DOUBLE else 0.02
            assert want * (1 - 1e-12) <= bound <= want * (1 + room), (at, float(want), bound)


@pytest.mark.parametrize("name", TABLES)
def test_the_bound_on_a_range_is_that_of_its_points_and_little_more(name):
    it = TABLES[name]()
    model = RoundingModel(DOUBLE, False, 3.0, 5)
    z = torch.linspace(it.low, it.high, 301, dtype=F64)
    points = float(rounding_on(it, model, z, torch.zeros_like(z), 3.0).max())
    whole = rounding(it, model)
    assert points <= whole * (1 + 1e-12)
    assert whole <= 3 * points, whole / points
    # Wider intervals, and more that goes into z, never have smaller bounds.
    wide = rounding_on(it, model, z, torch.full_like(z, 0.2 * it.grid.spacing), 3.0)
    assert bool((wide >= rounding_on(it, model, z, torch.zeros_like(z), 3.0)).all())


def test_tails_are_the_sum_of_what_is_farther():
    """Both sides, at the z halfway between two nodes, where they are largest."""
    with mpmath.workdps(40):
        for c in (0.05, 0.4, 3.0):
            for half in (0, 1, 2, 5):
                want = mpmath.nsum(
                    lambda j, c=c: mpmath.exp(-c * j * (j - 1)) + mpmath.exp(-c * j * (j + 1)),
                    [half + 1, mpmath.inf],
                )
                assert want <= tail_mass(c, half) <= want * (1 + 2.0**-40) + 1e-320
