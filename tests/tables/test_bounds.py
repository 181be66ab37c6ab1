"""Each inequality against the sums it bounds, term by term."""

import itertools
import math

import pytest
import torch

from iceform import Interpolant
from iceform.errors import BoundError, PrecisionError
from iceform.tables import Grid, bounds
from tests.tables.measure import UNIT, assert_below

F64 = torch.float64
SHARP = [0.05, 0.2, 0.45, 0.8, 1.5, 3.0, 8.0, 20.0]
# A bound and the sum it bounds are each computed in float64 from some hundred terms.
ROUNDED = 1 + 512 * UNIT
FAR = 200  # lattice sites either side: e^{-c FAR^2} underflows for every c above


def queries(cells=1):
    """Places in cells, nodes and midpoints among them."""
    return [i / 16 for i in range(16 * cells + 1)]


def lattice(c, u, start=-FAR, stop=FAR, power=0):
    """sum_k (k - u)^power e^{-c (k-u)^2} over start <= k <= stop."""
    return math.fsum((k - u) ** power * math.exp(-c * (k - u) ** 2) for k in range(start, stop + 1))


# ------------------------------------------------------------------------- the infinite lattice


@pytest.mark.parametrize("c", SHARP)
def test_lattice_sum_is_below_every_lattice_sum(c):
    least = min(lattice(c, u) for u in queries())
    assert bounds.lattice_sum(c) <= least * ROUNDED
    assert bounds.lattice_sum(c) >= 0.5 * least, f"{bounds.lattice_sum(c) / least:.3f} of it"


@pytest.mark.parametrize("c", [c for c in SHARP if bounds.aliasing(c) > 1e-12])
def test_aliasing_bounds_the_bias_of_the_whole_lattice(c):
    seen = max(abs(lattice(c, u, power=1)) / lattice(c, u) for u in queries())
    bound = bounds.aliasing(c)
    # Float64 cannot see a bias below a few units of the moments that cancel in it.
    assert seen <= bound * ROUNDED + 64 * UNIT, f"{seen:.3e} against {bound:.3e}"
    if c <= 1.5:
        assert seen >= 0.9 * bound, f"seen/bound = {seen / bound:.3f}"


@pytest.mark.parametrize("c", SHARP)
@pytest.mark.parametrize("x", [0.5, 1.0, 2.5, 6.0])
def test_tail_bounds_one_side_of_the_lattice(c, x):
    seen = math.fsum(math.exp(-c * (x + j) ** 2) for j in range(FAR))
    assert seen <= bounds.tail(c, x) * ROUNDED
    assert bounds.tail(c, x) <= 2 * seen


# ------------------------------------------------------------------------ what guards cut away

CUTS = list(itertools.product([0.2, 0.45, 1.5, 8.0], [0, 1, 4, 9], [1, 3]))


@pytest.mark.parametrize(("c", "guards", "cells"), CUTS)
def test_mass_and_moment_beyond_the_guards(c, guards, cells):
    for u in queries(cells):
        left, right = (-FAR, -guards - 1), (cells + guards + 1, FAR)
        whole = bounds.lattice_sum(c)
        mass = (lattice(c, u, *left) + lattice(c, u, *right)) / whole
        assert mass <= bounds.mass_beyond(c, guards, cells) * ROUNDED, f"u = {u}"
        sides = [lattice(c, u, *left, power=1), lattice(c, u, *right, power=1)]
        moment = abs(math.fsum(sides)) / whole
        assert moment <= bounds.moment_beyond(c, guards) * ROUNDED, f"u = {u}"


def test_more_guards_and_more_cells_never_hurt():
    for c in (0.05, 0.2, 0.8):
        falling = [bounds.linear_reproduction(c, g, 1) for g in range(40)]
        assert all(b <= a for a, b in itertools.pairwise(falling)), f"c = {c}"
        falling = [bounds.linear_reproduction(c, 3, cells) for cells in range(1, 40)]
        assert all(b <= a for a, b in itertools.pairwise(falling)), f"c = {c}"


@pytest.mark.parametrize(("c", "guards", "cells"), CUTS)
def test_bias_and_moments_of_the_truncated_lattice(c, guards, cells):
    ends = (-guards, cells + guards)
    limits = {
        1: bounds.linear_reproduction(c, guards, cells),
        2: bounds.second_moment(c, guards, cells),
        4: bounds.fourth_moment(c, guards, cells),
    }
    for u, (power, limit) in itertools.product(queries(cells), limits.items()):
        seen = abs(lattice(c, u, *ends, power=power)) / lattice(c, u, *ends)
        size = lattice(c, u, *ends, power=2 * power) ** 0.5
        assert seen <= limit * ROUNDED + 64 * UNIT * size, f"u = {u}, moment {power}"


# ---------------------------------------------------------------------- derived from the moments


@pytest.mark.parametrize(
    ("f", "first", "second"),
    [(torch.tanh, 1.0, 4 / 27**0.5), (torch.cos, 1.0, 1.0), (torch.atan, 1.0, 27**0.5 / 8)],
    ids=["tanh", "cos", "atan"],
)
@pytest.mark.parametrize("c", [0.3, 0.8, 3.0])
def test_sampled_values_stay_within_their_taylor_bound(f, first, second, c):
    grid = Grid(-3.0, 4.0, 28, 6)
    it = Interpolant(grid, c, f(grid.nodes), "spectral", math.inf)
    z = grid.mesh(64)
    bound = bounds.sampled_error(c, grid.guards, grid.cells, grid.spacing, first, second)
    seen = (it(z) - f(z)).abs()
    assert_below(seen, bound, z, "unfitted values")
    assert float(seen.max()) >= 0.3 * bound, f"tightness {float(seen.max()) / bound:.3f}"


# --------------------------------------------------------------------------------- hard regime


@pytest.mark.parametrize("c", SHARP)
def test_hard_tail_is_the_sum_it_says(c):
    for m in (1, 2, 5):
        own = math.fsum(math.exp(-c * k * k) for k in range(m, FAR))
        other = math.fsum(math.exp(-c * k * (k - 1)) for k in range(m + 1, FAR))
        assert bounds.hard_tail(c, m) == pytest.approx(own + other, rel=1e-13)


def test_hard_errors_of_a_lipschitz_function():
    """With omega(t) = t the pair bound tends to h/2, the other to h, as c grows."""
    modulus = [j / 64 for j in range(1, 65)]
    at_once = [bounds.hard_pair_error(modulus, 1.0, c) for c in (4.0, 16.0, 64.0, 512.0)]
    assert all(b <= a for a, b in itertools.pairwise(at_once))
    assert at_once[-1] == pytest.approx(0.5, abs=1 / 64)
    assert bounds.hard_error([1.0, 2.0, 3.0], 1.0, 64.0) == pytest.approx(1.0, rel=1e-12)
    # At a low sharpness the neighbours count: a larger reach wins over a larger tail.
    assert bounds.hard_error([1.0, 2.0, 3.0], 10.0, 0.5) < bounds.hard_error([1.0], 10.0, 0.5)


def test_half_a_cell_is_refused_below_sharpness_one():
    assert bounds.hard_identity_error(1.0, 0.2) == 0.1
    with pytest.raises(BoundError, match=r"needs sharpness c >= 1, got 0.5"):
        bounds.hard_identity_error(0.5, 0.2)


# --------------------------------------------------------------------------- between the blocks


def test_total_variation_bounds_softmax_and_is_attained():
    for delta in (1e-3, 0.1, 1.0, 5.0):
        bound = bounds.total_variation(delta)
        logits = 3 * torch.randn(400, 7, dtype=F64)
        moved = logits + delta * (2 * torch.rand_like(logits) - 1).sign()
        tv = 0.5 * (torch.softmax(logits, -1) - torch.softmax(moved, -1)).abs().sum(-1)
        assert float(tv.max()) <= bound
        pair = torch.tensor([[0.0, 0.0], [delta, -delta]], dtype=F64)
        # From two equal logits to 2 delta apart: the mass moves by tanh(delta)/2 from the middle;
        # the worst case starts as far on the other side.
        apart = torch.softmax(0.5 * torch.stack([pair[1], -pair[1]]), -1)
        assert 0.5 * float((apart[0] - apart[1]).abs().sum()) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("c", [0.3, 4.0])
@pytest.mark.parametrize("target", [1e-3, 1e-9])
def test_margin_keeps_the_mass_outside_ones_own_block_below_the_target(samples, c, target):
    grid = Grid(-2.0, 2.0, 6, 4)
    reach, queries_ = 2.0, samples
    m = bounds.margin(c, grid.spacing, reach, samples, queries_, target)
    leak = bounds.leak(c, grid.spacing, reach, samples, queries_, m)
    assert leak == pytest.approx(target, rel=1e-12)
    keys = grid.keys(c)
    ends = torch.tensor([-2.0, 2.0, 0.0, grid.spacing / 2], dtype=F64)
    largest = 0.0
    for _ in range(200):
        z = torch.where(
            torch.rand(samples) < 0.5,
            ends[torch.randint(4, (samples,))],
            4 * torch.rand(samples) - 2,
        )
        mass = torch.logsumexp(z[:, None] * keys.slopes + keys.biases, -1)
        rivals = torch.cat([mass[1:] - m, torch.full((queries_,), -m, dtype=F64)])
        outside = torch.exp(torch.logsumexp(rivals, 0) - mass[0])
        largest = max(largest, float(outside))
    assert largest <= target, f"{largest:.3e} leaks, {target:.3e} may"


def test_rivals_do_not_overflow():
    huge = bounds.rivals(1.0, 1e-4, 10.0, 1000, 1000)
    assert huge == pytest.approx(1e10, rel=1e-6)
    assert bounds.rivals(1.0, 0.1, 1.0, 1, 0) == -math.inf
    assert bounds.leak(1.0, 0.1, 1.0, 1, 0, 5.0) == 0


# ------------------------------------------------------------------------------ choosing c and g


@pytest.mark.parametrize("cells", [1, 4, 24])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-7, 1e-15])
def test_spectral_rule_takes_the_fewest_guards(cells, delta):
    rule = bounds.spectral_rule(delta, cells)
    assert bounds.linear_reproduction(rule.sharpness, rule.guards, cells) <= delta
    if rule.guards:
        assert bounds.linear_reproduction(rule.sharpness, rule.guards - 1, cells) > delta


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.0, math.nan, math.inf])
def test_spectral_rule_refuses(delta):
    with pytest.raises(PrecisionError, match="between 0 and 1 cells"):
        bounds.spectral_rule(delta)


def test_spectral_rule_says_when_guards_run_out():
    with pytest.raises(PrecisionError, match="no number of guards"):
        bounds.spectral_rule(1e-300)


@pytest.mark.parametrize("c", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "bound",
    [
        bounds.nome,
        bounds.aliasing,
        bounds.lattice_sum,
        lambda c: bounds.tail(c, 1.0),
        lambda c: bounds.linear_reproduction(c, 3, 4),
        lambda c: bounds.second_moment(c, 3, 4),
        lambda c: bounds.hard_tail(c, 1),
        lambda c: bounds.rivals(c, 0.1, 1.0, 3, 3),
    ],
    ids=["nome", "aliasing", "lattice_sum", "tail", "linear", "moment", "hard_tail", "rivals"],
)
def test_sharpness_must_be_positive_and_finite(bound, c):
    with pytest.raises(BoundError, match="sharpness must be positive and finite"):
        bound(c)
