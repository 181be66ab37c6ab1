"""Certificates of fitted look-ups against errors on meshes they never saw."""

import math

import pytest
import torch

from iceform import IceformError, Interpolant, tuning
from iceform.arithmetic import Interval
from iceform.expressions import ScalarFunction
from iceform.tables import GradedGrid, Grid, posterior
from iceform.tables.local import local_weights
from iceform.tables.posterior import largest, posterior_error, taylor
from iceform.tables.regimes import fit_values
from tests.tables.measure import UNIT, assert_below, function_of, sup_error

F64 = torch.float64

TABLES = {
    "tanh": (Grid(-10.0, 10.0, 40, 5), 0.3),
    "tanh, off centre": (Grid(-1.0, 7.0, 20, 4), 0.25),
    "sin": (Grid(-10.0, 10.0, 24, 4), 0.4),
    "sigmoid": (Grid(-6.0, 6.0, 14, 2), 0.4),
    "exp": (Grid(-3.0, 2.0, 8, 2), 0.6),
    "steep tanh": (Grid(-2.0, 2.0, 40, 4), 0.3),
    "gelu": (Grid(-4.0, 4.0, 24, 4), 0.3),
    "relu": (GradedGrid(-10.0, 10.0, 32, 2, (0.0,), 0.4), 0.6),
    "clamp": (GradedGrid(-3.0, 3.0, 40, 2, (-1.0, 1.0), 0.4, 0.6), 0.6),
    "abs, off centre": (GradedGrid(-1.0, 5.0, 32, 2, (0.3,), 0.4), 0.9),
}


def look_up(name):
    grid, c = TABLES[name]
    f = function_of(name)
    return Interpolant(grid, c, fit_values(f, grid, c).values, "fitted", math.inf, f), f


@pytest.fixture
def costs(monkeypatch):
    """How many intervals each round of a certificate looked at."""
    seen = []
    errors = posterior._errors

    def spy(it, f, cells):
        seen.append(len(cells))
        return errors(it, f, cells)

    monkeypatch.setattr(posterior, "_errors", spy)
    return seen


@pytest.mark.parametrize("name", TABLES)
def test_no_finer_mesh_finds_a_larger_error(name):
    it, f = look_up(name)
    found = posterior_error(it, f, None)
    assert (found.kind, found.assumptions) == ("proven", ())
    seen, where = sup_error(it, f, 4000)
    assert seen <= found.error, (
        f"{seen:.6e} at z = {where:.9g} exceeds the certified {found.error:.6e} "
        f"(tightness {seen / found.error:.4f})"
    )
    assert seen >= 0.5 * found.error, f"tightness {seen / found.error:.4f}"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("per_cell", [1, 2, 5])
def test_coarse_meshes_are_certified_too(name, per_cell):
    """The remainder does the work here: a handful of points per cell, error bars between them."""
    it, f = look_up(name)
    edges = it.grid.mesh(per_cell)
    cells = Interval(edges[:-1], edges[1:])
    bound, taken = posterior._errors(it, f, cells)
    for t in torch.linspace(0, 1, 41, dtype=F64):
        z = (cells.low + t * (cells.high - cells.low)).clamp(it.low, it.high)
        seen = (it(z) - f(z)).abs() - 256 * UNIT * it.size
        assert_below(seen, bound, z, "|A - f|")
    middle = 0.5 * (cells.low + cells.high)
    assert_below((it(middle) - f(middle)).abs() - 64 * UNIT * it.size, taken, middle, "|e|")


@pytest.mark.parametrize("name", TABLES)
def test_values_that_fit_nothing_are_certified_as_well(name):
    """Random values: the certificate must be as large as the error they make."""
    it, f = look_up(name)
    noise = it.values + 0.3 * it.swing * (2 * torch.rand_like(it.values) - 1)
    bad = it.with_values(noise, math.inf)
    certified = posterior_error(bad, f, None).error
    seen, where = sup_error(bad, f, 400)
    assert seen <= certified, f"{seen:.6e} at z = {where:.9g} exceeds {certified:.6e}"
    assert certified <= 2 * seen, f"tightness {seen / certified:.4f}"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("per_cell", [1, 4])
def test_fourth_derivative_bound_against_automatic_differentiation(name, per_cell):
    it, _ = look_up(name)
    steepest = float(it.keys.slopes.abs().max())
    for w in local_weights(it, it.grid.mesh(per_cell)):
        z = w.middle[:, None] + torch.linspace(-1, 1, 7, dtype=F64) * w.radius[:, None]
        point = z.clamp(it.low, it.high).requires_grad_(True)
        out = it.weights(point) @ it.values
        for _ in range(4):
            (out,) = torch.autograd.grad(out.sum(), point, create_graph=True)
        # Autograd sums terms of this size, each with its rounding.
        spread = (w.weights * w.slopes.abs() ** 4 * w.values.abs()).sum(-1)
        noise = 1e4 * UNIT * (spread + it.size * steepest * w.slopes.abs().amax(-1) ** 3)
        bound = 24 * largest(w, 4)[3] + noise
        assert_below(out.detach().abs(), bound[:, None], z.detach(), "fourth derivative")


@pytest.mark.parametrize("name", ["tanh", "sin", "relu"])
def test_lower_derivatives_are_the_cumulants_they_are_said_to_be(name):
    it, _ = look_up(name)
    (w, *_) = local_weights(it, it.grid.mesh(1))
    p, s = w.weights, w.slopes
    point = w.middle.clone().requires_grad_(True)
    out = it.weights(point) @ it.values
    for order, coefficient in enumerate(taylor(w, 7), start=1):
        want = math.factorial(order) * coefficient
        (out,) = torch.autograd.grad(out.sum(), point, create_graph=True)
        size = float(((p * s.abs() ** order).sum(-1) * it.size).max())
        off = float((out.detach() - want).abs().max())
        assert off <= 1e4 * UNIT * size, f"derivative {order} is off by {off:.3e} of {size:.3e}"


def test_refinement_stops_when_eps_is_held(costs):
    it, f = look_up("sin")
    loose = posterior_error(it, f, 1.0)
    first = sum(costs)
    tight = posterior_error(it, f, None)
    assert tight.error <= loose.error
    assert first <= tuning.POSTERIOR_POLISH
    assert sum(costs) - first <= tuning.POSTERIOR_MOST


def test_refinement_goes_where_f_is_hard(costs):
    """A bump of width 1e-5 costs a few intervals around it, not a mesh as fine as it is."""
    f = ScalarFunction(lambda z: torch.exp(-((z - 0.1234567) / 1e-5).square()), "bump")
    grid = Grid(-1.0, 1.0, 20, 4)
    it = Interpolant(grid, 0.3, torch.zeros(grid.tokens, dtype=F64), "fitted", math.inf)
    assert 1.0 <= posterior_error(it, f, None).error <= 1.06
    assert sum(costs) < 5000, costs


@pytest.mark.parametrize(
    "f",
    [
        lambda z: torch.from_numpy(torch.tanh(z).detach().numpy()),
        lambda z: torch.from_numpy(z.detach().numpy() ** 2 / 9),
    ],
    ids=["tanh", "square"],
)
def test_functions_that_cannot_be_followed_are_estimated_by_their_rise(f):
    function = ScalarFunction(f, "f")
    grid = Grid(-3.0, 3.0, 20, 4)
    it = Interpolant(grid, 0.3, fit_values(function, grid, 0.3).values, "fitted", math.inf)
    found = posterior_error(it, function, 0.05)
    seen, _ = sup_error(it, function, 2000)
    assert seen <= found.error <= 0.05
    assert found.kind == "estimated"
    assert "is not enclosed" in found.assumptions[0]


@pytest.mark.parametrize(("eps", "most"), [(None, 1 << 21), (1e-9, 1 << 21), (1.0, 1 << 20)])
def test_an_estimate_costs_as_much_as_it_may_and_no_more(eps, most, monkeypatch):
    """Intervals times window, of a function whose remainder falls only as the mesh does."""
    f = ScalarFunction(lambda z: torch.from_numpy(torch.tanh(z).detach().numpy()), "f")
    grid = Grid(-3.0, 3.0, 20, 4)
    it = Interpolant(grid, 0.3, fit_values(f, grid, 0.3).values, "fitted", math.inf)
    seen, sweep = [], posterior._mesh_sweep

    def spy(it, f, per_cell):
        seen.append(33 * it.grid.cells * per_cell)
        return sweep(it, f, per_cell)

    monkeypatch.setattr(posterior, "_mesh_sweep", spy)
    monkeypatch.setattr(tuning, "POSTERIOR_MESH_WORK", 1 << 21)
    monkeypatch.setattr(tuning, "POSTERIOR_MESH_POLISH", 1 << 20)  # once eps is held
    posterior.estimated_error(it, f, eps)
    assert seen[0] < most / 4 < seen[-1] <= most, seen


@pytest.mark.parametrize(
    "rate", [300, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (30, 60, 120))]
)
def test_a_narrow_bump_is_not_certified_away(rate):
    """exp(-(rate z)^2) on [-5, 5]: the look for kinks evaluates f where the bump is, so a
    certificate that misses it would contradict what was seen.
    """

    def bump(z):
        return torch.exp(-(rate * (z - 0.01)).square())

    try:
        it = Interpolant.fit(bump, -5.0, 5.0, eps=1e-2)
    except IceformError:
        return
    z = torch.linspace(-0.5, 0.5, 20001, dtype=F64)
    seen = float((it(z) - bump(z)).abs().max())
    assert seen <= it.error, f"certified {it.error:.3e}, off by {seen:.3e}, {it.assumptions}"
