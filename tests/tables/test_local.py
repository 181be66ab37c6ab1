"""Enclosures of look-ups on intervals, and what floating point adds to a look-up."""

import math

import mpmath
import pytest
import torch

from iceform import Interpolant
from iceform.tables import GradedGrid, Grid, RoundingModel
from iceform.tables.local import (
    intervals,
    local_weights,
    rounding,
    significant_tokens,
    steepness,
)
from iceform.tables.regimes import fit_values
from tests.tables.measure import UNIT, assert_below, function_of

F32, F64 = torch.float32, torch.float64
UNITS = {F32: torch.finfo(F32).eps / 2, F64: UNIT}


def on(grid, c, name):
    fit = fit_values(function_of(name), grid, c)
    return Interpolant(grid, c, fit.values, "fitted", math.inf, function_of(name))


LOOK_UPS = {
    "smooth": lambda: on(Grid(-5.0, 5.0, 30, 5), 0.3, "tanh"),
    "off centre": lambda: on(Grid(1.0, 4.0, 12, 3), 0.5, "sin"),
    "hard": lambda: Interpolant.hard(function_of("sin"), -3.0, 3.0, cells=24),
    "line": lambda: Interpolant.identity(-10.0, 10.0),
    "two tokens": lambda: Interpolant.identity(-1.0, 1.0, eps=0.5),
    "wide": lambda: on(Grid(-20.0, 20.0, 200, 6), 0.3, "sin"),
    "graded": lambda: on(GradedGrid(-10.0, 10.0, 40, 2, (0.0,), 0.4), 0.6, "relu"),
    "two kinks": lambda: on(GradedGrid(-3.0, 3.0, 60, 2, (-1.0, 1.0), 0.4, 0.4), 0.6, "clamp"),
}
_built = {}


@pytest.fixture(params=LOOK_UPS)
def it(request):
    if request.param not in _built:
        _built[request.param] = LOOK_UPS[request.param]()
    return _built[request.param]


# ---------------------------------------------------------------------------------- enclosures


def test_intervals_cover_what_lies_between_their_edges():
    edges = torch.cumsum(torch.rand(1000, dtype=F64), 0) - 400
    middle, radius = intervals(edges)
    assert bool((middle - radius <= edges[:-1]).all())
    assert bool((middle + radius >= edges[1:]).all())
    assert bool((radius <= 0.5 * edges.diff() * (1 + 1e-9)).all())


def inside(w, count=9):
    """Points of every interval, both ends among them, shape (intervals, count)."""
    steps = torch.linspace(-1, 1, count, dtype=F64)
    return w.middle[:, None] + steps * w.radius[:, None]


def window_of(it, w):
    """Which tokens a chunk of local weights speaks of: slopes increase, so they tell."""
    return torch.searchsorted(it.keys.slopes, w.raw_slopes.contiguous())


@pytest.mark.parametrize("per_cell", [1, 4])
def test_tilted_weights_bound_the_weights_on_the_interval(it, per_cell):
    for w in local_weights(it, it.grid.mesh(per_cell)):
        z = inside(w)
        true = it.weights(z.flatten()).reshape(*z.shape, -1)
        index = window_of(it, w)[:, None, :].expand(-1, z.shape[1], -1)
        inner = true.gather(-1, index)
        # exp, the sum and both ways to compute a logit round; logits reach a few hundred.
        slack = 1 + 2048 * UNIT
        bound = (w.tilted * slack)[:, None, :].expand_as(inner)
        assert_below(inner, bound, z[..., None], "weights against tilted weights")


@pytest.mark.parametrize("per_cell", [1, 4])
def test_what_the_window_leaves_out_is_accounted_for(it, per_cell):
    for w in local_weights(it, it.grid.mesh(per_cell)):
        z = inside(w)
        true = it.weights(z.flatten()).reshape(*z.shape, -1)
        index = window_of(it, w)[:, None, :].expand(-1, z.shape[1], -1)
        outside = (1 - true.gather(-1, index).sum(-1)).clamp(min=0)
        lost = (outside - it.tokens * UNIT).clamp(min=0) * it.swing
        assert_below(lost, w.missing[:, None].expand_as(lost), z, "mass outside the window")


def test_midpoint_moments_are_the_look_up(it):
    for w in local_weights(it, it.grid.mesh(2)):
        off = (w.mean - it(w.middle)).abs()
        bound = w.missing + 64 * UNIT * it.size
        assert_below(off, bound, w.middle, "value at the midpoint")
        assert float((w.weights * w.slopes).sum(-1).abs().max()) <= 64 * UNIT * float(
            w.raw_slopes.abs().max()
        )


def derivative(it, z):
    z = z.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad((it.weights(z) @ it.values).sum(), z)
    return slope


def test_steepness_bounds_the_slope(it):
    z = it.grid.mesh(64)
    seen = derivative(it, z).abs()
    # Values that are all but equal give a slope of rounding alone.
    noise = 64 * UNIT * it.size * float(it.keys.slopes.abs().max())
    assert_below(seen, it.steepness + noise, z, "slope")
    assert it.steepness == steepness(it)
    tight = float(seen.max()) / it.steepness
    assert tight >= 0.02, f"tightness {tight:.4f}"


def test_local_steepness_and_drift_bound_slope_and_movement(it):
    noise = 64 * UNIT * it.size * float(it.keys.slopes.abs().max())
    for w in local_weights(it, it.grid.mesh(4)):
        z = inside(w).clamp(it.low, it.high)
        slopes = derivative(it, z.flatten()).reshape(z.shape).abs()
        assert_below(slopes, w.steepest[:, None] + noise, z, "slope on its interval")
        moved = (it(z.flatten()).reshape(z.shape) - w.mean[:, None]).abs()
        slack = (w.missing + 64 * UNIT * it.size)[:, None]
        assert_below(moved, w.value_drift[:, None] + slack, z, "movement on its interval")


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-53])
def test_significant_tokens_count_the_weights_that_can_round(it, unit):
    z = it.grid.mesh(32)
    most = int((it.weights(z) > unit).sum(-1).max())
    bound = it.significant(unit)
    assert bound == significant_tokens(it, unit)
    assert most <= bound <= it.tokens * (1 + 1e-12)
    # No more than half of the bound is made of tokens that never matter, or a couple of them.
    assert bound <= 2 * most + 4, f"{bound:.1f} counted, {most} seen"


# ------------------------------------------------------------------------------------ rounding


def exact_look_up(it, z):
    """A(z) in fifty digits, for a z that is a float64 number."""
    with mpmath.workdps(50):
        t = mpmath.mpf(z) - mpmath.mpf(it.grid.center)
        if isinstance(it.grid, Grid):
            h = (mpmath.mpf(it.high) - mpmath.mpf(it.low)) / it.grid.cells
            center = (mpmath.mpf(it.high) + mpmath.mpf(it.low)) / 2
            first = -it.grid.guards - mpmath.mpf(it.grid.cells) / 2
            u = (mpmath.mpf(z) - center) / h
            logits = [-it.sharpness * (u - first - k) ** 2 for k in range(it.tokens)]
        else:
            keys = zip(it.keys.slopes.tolist(), it.keys.biases.tolist(), strict=True)
            logits = [t * s + b for s, b in keys]
        top = max(logits)
        weights = [mpmath.exp(x - top) for x in logits]
        total = mpmath.fsum(weights)
        return mpmath.fsum(w * v for w, v in zip(weights, it.values.tolist(), strict=True)) / total


def places(it, count, dtype):
    """Random z of the dtype inside the range, its ends (rounded inwards), nodes and midpoints."""
    span = torch.tensor([it.low, it.high], dtype=F64)
    nodes = it.grid.nodes[(it.grid.nodes > it.low) & (it.grid.nodes < it.high)]
    z = torch.cat(
        [
            span,
            span + torch.tensor([1, -1]) * 1e-7 * (it.high - it.low),
            it.low + (it.high - it.low) * torch.rand(count, dtype=F64),
            nodes[:: max(1, len(nodes) // 8)],
            (0.5 * (nodes[1:] + nodes[:-1]))[:: max(1, len(nodes) // 8)],
        ]
    ).to(dtype)
    return z[(z.double() >= it.low) & (z.double() <= it.high)]


def assert_rounding(it, got, z, bound, what):
    worst, where = 0.0, math.nan
    for value, place in zip(got.tolist(), z.tolist(), strict=True):
        off = float(abs(exact_look_up(it, place) - mpmath.mpf(value)))
        if not off <= worst:
            worst, where = off, place
    assert worst <= bound, (
        f"{what}: off by {worst:.3e} at z = {where:.9g}, bound {bound:.3e} "
        f"(tightness {worst / bound:.3f})"
    )
    return worst / bound


@pytest.mark.parametrize("dtype", [F32, F64])
def test_rounding_bounds_squared_logits(it, dtype):
    """The form that fused passes use; graded keys have none."""
    if not it.uniform:
        pytest.skip("graded keys are not squared distances")
    z = places(it, 40, dtype)
    model = RoundingModel(UNITS[dtype], True, max(abs(it.low), abs(it.high)), 1)
    tight = assert_rounding(it, it(z), z, rounding(it, model), "squared logits")
    assert tight >= 1e-3, f"tightness {tight:.2e}: the bound is a thousand times too large"


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("dim", [1, 6])
def test_rounding_bounds_literal_logits(it, dtype, dim):
    """Keys and queries as a prompt has them: logit_k = sum_j (s_k x_j) w_j - s_k (y + m) + b_k."""
    keys = it.keys
    w = (torch.rand(dim, dtype=F64) + 0.5).to(dtype)
    z = places(it, 24, dtype)
    # x along w with x.w near z, and y takes up the rest, so that z is where it should be.
    x = (z.double()[:, None] * w.double() / w.double().square().sum()).to(dtype)
    x = x + (0.1 * (torch.rand(len(z), dim, dtype=F64) - 0.5)).to(dtype)
    y = ((x.double() * w.double()).sum(-1) - z.double()).to(dtype)
    inner = [
        mpmath.fdot([mpmath.mpf(a) for a in row], [mpmath.mpf(b) for b in w.tolist()])
        for row in x.tolist()
    ]
    exact = [i - mpmath.mpf(b) for i, b in zip(inner, y.tolist(), strict=True)]
    keep = [j for j, e in enumerate(exact) if it.low <= e <= it.high]
    assert len(keep) >= 10
    slopes, biases = keys.slopes.to(dtype), keys.biases.to(dtype)
    center = (slopes.double() * it.grid.center).to(dtype)
    key = torch.cat(
        [
            slopes[:, None, None] * x[None].expand(it.tokens, -1, -1),
            -(slopes[:, None] * y[None] + center[:, None])[..., None],
            biases[:, None, None].expand(it.tokens, len(z), 1),
        ],
        -1,
    )
    query = torch.cat([w, torch.ones(2, dtype=dtype)])
    weights = torch.softmax((key @ query).mT, -1)
    got = weights @ it.values.to(dtype)
    terms = (x.double() * w.double()).abs().sum(-1) + (y.double() + it.grid.center).abs()
    magnitude = float(terms.max()) + abs(it.grid.center) * 2
    model = RoundingModel(UNITS[dtype], False, magnitude, dim + 2)
    bound = rounding(it, model)
    worst, where = 0.0, math.nan
    for j in keep:
        off = float(abs(exact_look_up(it, exact[j]) - mpmath.mpf(got[j].item())))
        if not off <= worst:
            worst, where = off, float(exact[j])
    assert worst <= bound, (
        f"literal logits: off by {worst:.3e} at z = {where:.9g}, bound {bound:.3e} "
        f"(tightness {worst / bound:.3f})"
    )


def random_table():
    low = float(torch.tensor([-1.0, 0.0, -5.0, 3.0, 100.0])[torch.randint(5, ())] * torch.rand(()))
    high = low + 10 ** float(5 * torch.rand(()) - 2)
    cells, guards = int(torch.randint(1, 64, ())), int(torch.randint(0, 12, ()))
    grid = Grid(low, high, cells, guards)
    kinds = [torch.randn(grid.tokens), torch.randn(grid.tokens).sign(), grid.nodes]
    values = kinds[int(torch.randint(3, ()))].double()
    return Interpolant(grid, math.exp(float(5 * torch.rand(()) - 2)), values, "fitted", math.inf)


def test_rounding_holds_for_random_tables_values_and_residuals():
    """z = x w - y in float32 and both logit forms, against float64."""
    tightest = {"squared": 0.0, "literal": 0.0}
    for _ in range(60):
        it = random_table()
        z = it.low + (it.high - it.low) * torch.rand(600, dtype=F64)
        w = torch.rand(600) + 0.5
        y = (torch.rand(600) - 0.5) * (abs(it.low) + abs(it.high))
        x = ((z + y.double()) / w.double()).float()
        z = x.double() * w.double() - y.double()
        kept = (z >= it.low) & (z <= it.high)
        x, y, w, z = x[kept], y[kept], w[kept], z[kept]
        magnitude = float(((x * w).abs() + y.abs()).double().max()) + abs(it.grid.center)
        slopes, biases = it.keys.slopes.float(), it.keys.biases.float()
        center = (it.keys.slopes * it.grid.center).float()
        literal = (slopes * x[:, None]) * w[:, None] - (slopes * y[:, None] + center) + biases
        want = it.weights(z) @ it.values
        for form, terms, weights in [
            ("squared", 2, it.weights(x * w - y)),
            ("literal", 3, torch.softmax(literal, -1)),
        ]:
            off = ((weights @ it.values.float()).double() - want).abs()
            bound = rounding(it, RoundingModel(UNITS[F32], form == "squared", magnitude, terms))
            assert_below(off, bound, z, f"{form} logits of {it.grid}, c = {it.sharpness:.4f}")
            tightest[form] = max(tightest[form], float(off.max()) / bound)
    assert min(tightest.values()) > 0.05, tightest


def test_rounding_grows_with_unit_magnitude_and_terms(it):
    def bound(unit=2.0**-53, magnitude=10.0, terms=4):
        return rounding(it, RoundingModel(unit, False, magnitude, terms))

    assert bound() < bound(magnitude=100.0) <= bound(magnitude=100.0, terms=40)
    assert bound() < bound(unit=2.0**-24)


def test_rounding_is_infinite_where_nothing_can_be_said():
    it = LOOK_UPS["graded"]()
    assert math.isinf(rounding(it, RoundingModel(2.0**-8, False, 1e6, 4)))
    assert math.isinf(RoundingModel(0.5, False, 1.0, 4).gamma)


def test_rounding_is_remembered():
    it = LOOK_UPS["line"]()
    model = RoundingModel(UNIT, True, 10.0, 3)
    assert it.rounding(model) == it.rounding(RoundingModel(UNIT, True, 10.0, 3))
    assert it.rounding(model) == rounding(it, model)
