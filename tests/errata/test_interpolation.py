"""Softmax interpolation: the paper's hard regime, the spectral one, and the bounds of both."""

import itertools
import math

import pytest
import torch

import iceform as ice
from iceform.expressions import ScalarFunction
from iceform.tables import Grid, bounds
from iceform.tables.regimes import fit_values
from tests.errata.common import F64, PAGE, UNIT, assert_on_page, largest, short, whole

DIGITS = 50
# The bounds are evaluated in float64: some twenty operations and the exponential of -c g^2.
ROUNDED = 1e-12


@pytest.fixture
def arb():
    """Balls of 50 digits."""
    flint = pytest.importorskip("flint", reason="50-digit arithmetic needs python-flint")
    before = flint.ctx.dps
    flint.ctx.dps = DIGITS
    yield flint.arb
    flint.ctx.dps = before


def uniform(generator, low, high):
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=F64))


def moments(arb, c, guards, cells, u, powers):
    """sum_k p_k (k - u)^m over k = -g .. P + g, with u in cells, for each m."""
    u, c = arb(u), arb(c)
    steps = [arb(k) - u for k in range(-guards, cells + guards + 1)]
    weights = [(-c * t * t).exp() for t in steps]
    total = sum(weights, arb(0))
    return [sum((w * t**m for w, t in zip(weights, steps, strict=True)), arb(0)) / total
            for m in powers]  # fmt: skip


def random_look_ups(count, seed):
    """(c, g, P, u): sharpness, guards, cells, and a query in cells, its ends among them."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        c = math.exp(uniform(generator, math.log(0.15), math.log(20.0)))
        guards, cells = whole(generator, 0, 12), whole(generator, 1, 24)
        anywhere = uniform(generator, 0, cells)
        yield c, guards, cells, anywhere if whole(generator, 0, 7) else float(cells)


# ---------------------------------------------------------------------------------------------
# the linear reproduction theorem
# ---------------------------------------------------------------------------------------------


def test_linear_reproduction_bound_is_never_violated_in_fifty_digits(arb):
    """Look-ups of the identity at moderate temperature, which the paper does not consider: the
    error is below ``bounds.linear_reproduction`` cells wherever that is finite.
    """
    spoke = 0
    for c, guards, cells, u in random_look_ups(1500, 0):
        bound = bounds.linear_reproduction(c, guards, cells)
        if math.isinf(bound):
            continue
        spoke += 1
        (bias,) = moments(arb, c, guards, cells, u, (1,))
        assert abs(bias) <= arb(bound * (1 + ROUNDED)), f"c={c} g={guards} P={cells} u={u}"
    assert spoke > 1000


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-8, 1e-12, 1e-16])
def test_linear_reproduction_bound_is_attained(arb, delta):
    """A quarter of the way between two nodes, far from the ends, the aliasing term is the error."""
    c = bounds.spectral_rule(delta).sharpness
    (bias,) = moments(arb, c, 40, 40, 20.25, (1,))
    bound = bounds.linear_reproduction(c, 40, 40)
    ratio = float((abs(bias) / arb(bound)).mid())
    # The aliasing series' second term is q times the first, and its bound has (1-q)(1-q^2).
    assert 1 - 4 * bounds.nome(c) - ROUNDED <= ratio <= 1 + ROUNDED


RULE = {
    1e-2: (1.43, 1), 1e-4: (0.819, 3), 1e-6: (0.581, 5), 1e-8: (0.452, 6),
    1e-10: (0.370, 8), 1e-12: (0.314, 9), 1e-14: (0.273, 11), 1e-16: (0.241, 12),
}  # fmt: skip


@pytest.mark.parametrize("delta", RULE)
def test_spectral_rule_reproduces_its_table(arb, delta):
    """About ln(h/delta)/pi guards a side carry a line to delta, on any range and with one cell."""
    rule = bounds.spectral_rule(delta)
    c, guards = RULE[delta]
    digits = 2 if c > 1 else 3
    assert (round(rule.sharpness, digits), rule.guards) == (c, guards)
    assert abs(rule.guards - math.log(1 / delta) / math.pi) < 1
    assert bounds.aliasing(rule.sharpness) == pytest.approx(0.45 * delta, rel=1e-6)
    assert bounds.linear_reproduction(rule.sharpness, rule.guards, 1) <= delta
    assert bounds.linear_reproduction(rule.sharpness, rule.guards - 1, 1) > delta
    worst = max(
        float(abs(moments(arb, rule.sharpness, rule.guards, 1, j / 16, (1,))[0]).mid())
        for j in range(17)
    )
    assert 0.1 * delta <= worst <= delta


@pytest.mark.parametrize(
    ("dtype", "guards", "tokens", "figure"),
    [(torch.float64, 11, 24, 1.7e-14), (torch.float32, 5, 12, 3e-6)],
)
def test_a_line_needs_two_dozen_tokens_on_any_range(dtype, guards, tokens, figure):
    """The paper's grid needs 10/eps tokens for the identity on [-10, 10]; the spectral one needs
    24 for float64 (at c = .255, to 1.7e-14 before rounding) and 12 for float32, and as many on a
    range a thousand times wider.
    """
    scan = [0.2 + 0.005 * j for j in range(101)]
    c = min(scan, key=lambda c: bounds.linear_reproduction(c, guards, 1))
    if dtype == torch.float64:
        assert round(c, 3) == 0.255
        assert 20 * bounds.linear_reproduction(c, guards, 1) == pytest.approx(figure, rel=0.03)
    for reach in (10.0, 1e4):
        grid = Grid(-reach, reach, 1, guards)
        it = ice.Interpolant(grid, c, grid.nodes, "spectral", 0.0)
        z = torch.linspace(-reach, reach, 4001, dtype=F64).to(dtype)
        off = largest(it(z).double() - z.double())
        assert it.tokens == tokens
        assert off <= 2 * figure * reach / 10
    certified = ice.Interpolant.identity(-10.0, 10.0, eps=1e-12)
    assert certified.error <= 1e-12
    assert certified.tokens <= 24


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not in the package")
def test_a_line_is_certified_to_what_the_page_says():
    """24 tokens need c = .255; what float64 is proven to hold is several times that."""
    sharpness, guards = 0.255, 11
    bound = 20 * bounds.linear_reproduction(sharpness, guards, 1)
    certified = ice.Interpolant.identity(-10.0, 10.0, eps=None)
    with pytest.raises(ice.errors.PrecisionError):
        ice.Interpolant.identity(-10.0, 10.0, eps=1.2e-14)
    assert_on_page(f"at $c = .255$ 24 tokens carry a line on $[-10, 10]$ to {short(bound)}")
    assert_on_page(f"holds it to {short(certified.error)}, with {certified.tokens} tokens")


# ---------------------------------------------------------------------------------------------
# moments
# ---------------------------------------------------------------------------------------------


def test_second_and_fourth_moment_bounds_hold_against_direct_sums(arb):
    """The spreads that the certificates of fitted values use."""
    closest = [0.0, 0.0]
    for c, guards, cells, u in random_look_ups(600, 1):
        limits = bounds.second_moment(c, guards, cells), bounds.fourth_moment(c, guards, cells)
        if math.isinf(limits[0]):
            continue
        for i, moment in enumerate(moments(arb, c, guards, cells, u, (2, 4))):
            assert moment <= arb(limits[i] * (1 + ROUNDED)), f"c={c} g={guards} P={cells} u={u}"
            closest[i] = max(closest[i], float(moment.mid()) / limits[i])
    assert min(closest) > 0.99


def test_unfitted_values_at_moderate_temperature_are_off_by_a_second_difference():
    """v_k = f(L_k) costs about f'' h^2/(4c): the reason to fit values or to stay with lines."""
    cells, guards, c = 64, 6, 0.452
    grid = Grid(-4.0, 4.0, cells, guards)
    it = ice.Interpolant(grid, c, torch.sin(grid.nodes), "spectral", 0.0)
    z = torch.linspace(-4, 4, 2001, dtype=F64)
    off = largest(it(z) - torch.sin(z))
    assert off == pytest.approx(grid.spacing**2 / (4 * c), rel=0.02)
    assert off <= bounds.sampled_error(c, guards, cells, grid.spacing, 1.0, 1.0)


# ---------------------------------------------------------------------------------------------
# hard and fitted, at equal numbers of tokens
# ---------------------------------------------------------------------------------------------

LOW, HIGH = -10.0, 10.0
MESH = torch.linspace(LOW, HIGH, 8001, dtype=F64)
TOKENS = (17, 33, 65, 129)
FLOOR = 256 * UNIT  # of f's size 1: what sums of rounded values leave
SMOOTH = {"tanh": torch.tanh, "logistic": torch.sigmoid, "sin": torch.sin}
HARD = {
    "tanh": (0.54, 0.29, 0.15, 0.075),
    "logistic": (0.15, 0.075, 0.038, 0.019),
    "sin": (0.57, 0.30, 0.15, 0.075),
    "relu": (0.60, 0.30, 0.15, 0.075),
}
FITTED = {
    "tanh": (2.8e-2, 5.8e-4, 2.5e-7, 6e-14),
    "logistic": (4.0e-4, 1.8e-7, 1.8e-13, 6e-16),
    "sin": (1.5e-3, 8.1e-9, 1e-15, 6e-16),
}
KINKED = {"fitted": (0.073, 0.036, 0.018, 0.0089), "graded": (1.4e-2, 8.4e-4, 4.3e-5, 1.7e-6)}


def sup_error(it, f):
    return largest(it(MESH) - f(MESH))


@pytest.mark.parametrize("name", HARD)
def test_hard_look_ups_fall_as_one_over_the_tokens(name):
    """thm:attn_sim_f's own regime, v_k = f(L_k) and beta to infinity: omega_f(h)/2, so 1/P."""
    f = {**SMOOTH, "relu": torch.relu}[name]
    seen = []
    for n, figure in zip(TOKENS, HARD[name], strict=True):
        it = ice.Interpolant.hard(f, LOW, HIGH, cells=n - 1, sharpness=200.0)
        seen.append(sup_error(it, f))
        assert figure / 1.1 <= seen[-1] <= 1.1 * figure
        assert seen[-1] <= it.error
    halvings = [a / b for a, b in itertools.pairwise(seen)]
    assert all(1.8 < r < 2.1 for r in halvings), halvings


@pytest.mark.parametrize("name", SMOOTH)
def test_fitted_look_ups_fall_exponentially(name):
    """The same tokens at moderate temperature with fitted values; the best of a scan of c and g."""
    f = SMOOTH[name]
    function = ScalarFunction(f, name)
    for n, figure in zip(TOKENS, FITTED[name], strict=True):
        candidates = []
        for c in (0.15, 0.2, 0.3, 0.35, 0.6, 0.8):
            for guards in (0, 1, 2, 5, 12):
                if n - 1 - 2 * guards < 2:
                    continue
                grid = Grid(LOW, HIGH, n - 1 - 2 * guards, guards)
                fit = fit_values(function, grid, c)
                candidates.append(ice.Interpolant(grid, c, fit.values, "fitted", fit.seen))
        best = min(candidates, key=lambda it: it.error)
        assert sup_error(best, f) <= max(2 * figure, FLOOR)
        hard = HARD[name][TOKENS.index(n)]
        assert sup_error(best, f) <= hard / 10


@pytest.mark.parametrize("name", SMOOTH)
def test_fit_certifies_what_hard_look_ups_cannot_reach(name):
    """``Interpolant.fit`` with 65 tokens: certified, and a thousand times below the hard regime."""
    it = ice.Interpolant.fit(SMOOTH[name], LOW, HIGH, tokens=65)
    assert it.tokens == 65
    assert sup_error(it, SMOOTH[name]) <= it.error <= HARD[name][2] / 1000


def test_kinks_fall_as_one_over_the_tokens_unless_the_keys_are_graded():
    """relu: fitted values on equal spacing gain a factor of eight; tokens that crowd at the kink
    gain orders of magnitude.
    """
    function = ScalarFunction(torch.relu, "relu", kinks=(0.0,))
    for i, n in enumerate(TOKENS):
        grid = Grid(LOW, HIGH, n - 3, 1)
        equal = ice.Interpolant(grid, 2.2, fit_values(function, grid, 2.2).values, "fitted", 0.0)
        graded = ice.Interpolant.fit(function, LOW, HIGH, tokens=n)
        assert KINKED["fitted"][i] / 2 <= sup_error(equal, torch.relu) <= 2 * KINKED["fitted"][i]
        assert graded.regime == "graded"
        assert sup_error(graded, torch.relu) <= 2 * KINKED["graded"][i]
        assert sup_error(graded, torch.relu) <= graded.error


# ---------------------------------------------------------------------------------------------
# the hard regime's bound
# ---------------------------------------------------------------------------------------------


def random_wave(generator):
    """A random trigonometric polynomial: the function, its Lipschitz constant, its size."""
    rates = 6 * torch.rand(4, generator=generator, dtype=F64)
    phases = 6.3 * torch.rand(4, generator=generator, dtype=F64)
    sizes = torch.randn(4, generator=generator, dtype=F64)

    def f(z):
        return (sizes * torch.sin(rates * z[..., None] + phases)).sum(-1)

    return f, float((sizes * rates).abs().sum()), float(sizes.abs().sum())


def test_hard_bounds_hold_on_random_instances():
    """The proof ends with eps_1 + 2 B_f eps_2 for "beta sufficiently large". With numbers: at most
    min_m omega_f(m h) + 2 B_f T_m for every beta, and about omega_f(h/2) for a large one.
    """
    generator = torch.Generator().manual_seed(2)
    u = torch.linspace(0, 1, 801, dtype=F64)
    closest = 0.0
    for _ in range(400):
        f, lipschitz, size = random_wave(generator)
        cells, c = whole(generator, 2, 60), math.exp(uniform(generator, -1.5, 4))
        low = uniform(generator, -3, 3)
        grid = Grid(low, low + uniform(generator, 0.1, 6), cells)
        it = ice.Interpolant(grid, c, f(grid.nodes), "hard", 0.0)
        z = (grid.low + (grid.high - grid.low) * u).clamp(grid.low, grid.high)
        off = largest(it(z) - f(z))
        most = 2 * size  # no modulus of continuity exceeds the oscillation
        whole_cells = [min(lipschitz * m * grid.spacing, most) for m in range(1, 5)]
        parts = [min(lipschitz * j * grid.spacing / 16, most) for j in range(1, 17)]
        for bound in (
            bounds.hard_error(whole_cells, size, c),
            bounds.hard_pair_error(parts, size, c),
        ):
            assert off <= bound * (1 + ROUNDED) + 16 * UNIT * size, f"c={c} P={cells}"
            closest = max(closest, off / bound)
    assert closest > 0.3


def test_hard_tail_bounds_the_mass_of_far_nodes(arb):
    """T_m against the attention that lies more than m cells from the query."""
    for c, _, cells, u in random_look_ups(300, 3):
        weights = [(-arb(c) * (arb(k) - arb(u)) ** 2).exp() for k in range(cells + 1)]
        for m in (1, 2, 3):
            far = sum((w for k, w in enumerate(weights) if abs(k - u) > m), arb(0))
            assert far / sum(weights, arb(0)) <= arb(bounds.hard_tail(c, m) * (1 + ROUNDED))


@pytest.mark.parametrize("c", [1.0, 1.5, 4.0, 40.0])
@pytest.mark.parametrize("cells", [1, 2, 7, 50])
def test_half_a_cell_bounds_the_identity_as_soon_as_beta_is_one_over_h_squared(c, cells):
    """No "sufficiently large" is needed for lines: beta >= 1/h^2 gives h/2 on [L_0, L_P]."""
    grid = Grid(-3.0, 5.0, cells)
    it = ice.Interpolant(grid, c, grid.nodes, "hard", 0.0)
    z = torch.linspace(-3, 5, 4001, dtype=F64)
    off = largest(it(z) - z)
    assert off <= bounds.hard_identity_error(c, grid.spacing) + 64 * UNIT
    with pytest.raises(ice.errors.BoundError, match="c >= 1"):
        bounds.hard_identity_error(0.99, grid.spacing)
