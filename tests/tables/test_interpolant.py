import itertools
import math

import pytest
import torch

from iceform import Interpolant
from iceform.errors import BoundError, PrecisionError, ProgramError
from iceform.expressions import ScalarFunction
from iceform.tables import Grid, RoundingModel, regimes
from tests.tables.measure import CASES, UNIT, function_of, span_of, sup_error

F64 = torch.float64
LINE = ScalarFunction(lambda z: 3 * z - 2, "line", affine=(3.0, -2.0))


def own_rounding(it):
    """What evaluating the look-up in float64 may add to the error in exact arithmetic."""
    reach = abs(it.low) + abs(it.high)
    return it.rounding(RoundingModel(UNIT, it.uniform, reach, 2))


def assert_certified(it, f, per_cell=64):
    seen, where = sup_error(it, f, per_cell)
    bound = it.error + own_rounding(it)
    assert seen <= bound, (
        f"measured {seen:.6e} at z = {where:.9g} exceeds the certified {bound:.6e} "
        f"(tightness {seen / bound:.3f}, {it.tokens} tokens, {it.regime})"
    )
    return seen


# ------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(("f", "tokens", "figure"), [(torch.tanh, 65, 1e-6), (torch.sin, 33, 1e-7)])
def test_smooth_functions_to_seven_digits(f, tokens, figure):
    it = Interpolant.fit(f, -10.0, 10.0, tokens=tokens)
    assert (it.tokens, it.regime) == (tokens, "fitted")
    assert assert_certified(it, f) <= it.error + own_rounding(it) <= figure


@pytest.mark.parametrize("reach", [1e-3, 1.0, 17.0, 1e3, 1e6])
def test_a_line_to_machine_precision_on_any_range(reach):
    it = Interpolant.identity(-reach, reach, eps=1e-13 * reach)
    assert it.regime == "spectral"
    assert it.tokens <= 25
    assert it.error <= 1e-13 * reach
    assert assert_certified(it, lambda z: z, per_cell=4096) <= 1e-13 * reach


def test_a_kink_with_graded_tokens():
    it = Interpolant.fit(torch.relu, -10.0, 10.0, tokens=129)
    assert (it.tokens, it.regime) == (129, "graded")
    assert assert_certified(it, torch.relu) <= it.error <= 1e-5


@pytest.mark.parametrize("name", ["tanh", "sin", "relu"])
def test_hard_look_ups_converge_as_one_over_the_cells(name):
    f = function_of(name)
    low, high = span_of(name)
    cells = [48, 64, 96, 128, 192, 256]
    errors = [sup_error(Interpolant.hard(f, low, high, cells=p), f, 128)[0] for p in cells]
    x, y = torch.tensor(cells).double().log(), torch.tensor(errors).log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert abs(slope + 1) <= 0.1, f"error ~ P^{slope:.3f}: {errors}"


# ------------------------------------------------------------------ the certificate, every regime


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("eps", [1e-2, 1e-4])
def test_fit_holds_the_eps_it_is_asked_for(name, eps):
    f = function_of(name)
    it = Interpolant.fit(f, *span_of(name), eps)
    assert it.error <= eps
    assert it.regime == ("graded" if f.kinks else "fitted")
    seen = assert_certified(it, f)
    assert seen >= 0.05 * it.error, f"tightness {seen / it.error:.4f}: the bound is loose"


@pytest.mark.parametrize("name", ["tanh", "sin", "sigmoid", "exp"])
def test_fit_holds_ten_digits(name):
    it = Interpolant.fit(function_of(name), *span_of(name), eps=1e-10)
    assert it.error <= 1e-10
    assert_certified(it, function_of(name))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cells", [1, 7, 64])
@pytest.mark.parametrize("sharpness", [None, 1.0, 3.0, 60.0])
def test_hard_is_certified_at_every_sharpness(name, cells, sharpness):
    f = function_of(name)
    it = Interpolant.hard(f, *span_of(name), cells=cells, sharpness=sharpness)
    assert (it.tokens, it.regime) == (cells + 1, "hard")
    assert torch.equal(it.values, f(it.grid.nodes))
    seen = assert_certified(it, f)
    if sharpness is None and cells == 64:
        # omega_f(h/2) where the bound allows for the modulus being read off a mesh.
        assert seen >= 0.5 * it.error, f"tightness {seen / it.error:.4f}"


@pytest.mark.parametrize("cells", [1, 5, 40])
@pytest.mark.parametrize("sharpness", [1.0, 12.0])
def test_hard_lines_are_off_by_half_a_cell(cells, sharpness):
    it = Interpolant.hard(LINE, -1.0, 3.0, cells=cells, sharpness=sharpness)
    assert it.error == pytest.approx(3 * it.grid.spacing / 2, rel=1e-12)
    assert_certified(it, LINE)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1e3), (-7.0, -6.999), (99.0, 101.0)])
@pytest.mark.parametrize("eps", [None, 1e-3, 1e-8])
def test_lines_that_are_known_to_be_lines(low, high, eps):
    it = Interpolant.fit(LINE, low, high, None if eps is None else eps * (high - low))
    assert it.regime == "spectral"
    assert it.tokens <= 27
    assert_certified(it, LINE)
    if eps is not None:
        assert it.error <= eps * (high - low)


def test_lines_that_are_not_known_to_be_lines():
    it = Interpolant.fit(lambda z: 2 * z, -1.0, 1.0, eps=1e-9)
    assert it.error <= 1e-9
    assert_certified(it, lambda z: 2 * z)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e6])
def test_constants_are_carried_exactly(value):
    eps = 1e-9 * max(1.0, abs(value))
    it = Interpolant.fit(lambda z: torch.full_like(z, value), -1.0, 1.0, eps)
    seen, _ = sup_error(it, lambda z: torch.full_like(z, value), 64)
    assert seen <= 16 * UNIT * abs(value)


# --------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("name", ["tanh", "sin", "sigmoid", "relu"])
def test_a_larger_eps_takes_fewer_tokens(name):
    sizes = [
        Interpolant.fit(function_of(name), *span_of(name), eps).tokens
        for eps in (1e-4, 1e-3, 1e-2, 1e-1)
    ]
    assert all(b <= a for a, b in itertools.pairwise(sizes)), sizes
    assert sizes[-1] <= 0.7 * sizes[0], sizes


def test_a_larger_eps_takes_fewer_tokens_for_a_line():
    sizes = [Interpolant.identity(-1.0, 1.0, eps).tokens for eps in (1e-13, 1e-9, 1e-5, 1e-1)]
    assert all(b < a for a, b in itertools.pairwise(sizes)), sizes


def test_spectral_is_far_smaller_than_hard_at_equal_error():
    soft = Interpolant.fit(torch.tanh, -5.0, 5.0, eps=1e-3)
    hard = Interpolant.hard(torch.tanh, -5.0, 5.0, cells=1000)
    assert hard.error > soft.error
    assert soft.tokens < hard.tokens / 20


def test_a_fixed_number_of_tokens_is_kept():
    for tokens in (9, 24, 40):
        assert Interpolant.fit(torch.tanh, -2.0, 2.0, tokens=tokens).tokens == tokens
    assert Interpolant.fit(torch.relu, -2.0, 2.0, tokens=40).tokens == 40


def test_no_eps_is_at_least_as_good_as_any_that_is_held():
    """exp has guards whose values dwarf those on the range: they must not set the standard."""
    asked = Interpolant.fit(torch.exp, -5.0, 5.0, eps=1e-10)
    best = Interpolant.fit(torch.exp, -5.0, 5.0)
    assert best.error <= asked.error, f"eps=None gives {best.error:.3e}, {asked.error:.3e} is known"


# ------------------------------------------------------------------------------------ refusals


def test_precision_error_of_a_line_says_what_can_be_had():
    with pytest.raises(PrecisionError, match=r"float64 holds the line on .* not 1e-30") as caught:
        Interpolant.identity(-1.0, 1.0, eps=1e-30)
    best = caught.value.best
    assert best is not None
    assert Interpolant.identity(-1.0, 1.0, eps=1.001 * best).error <= 1.001 * best


@pytest.mark.parametrize("f", [torch.tanh, torch.relu])
def test_precision_error_of_a_fixed_size_says_what_it_holds(f):
    with pytest.raises(PrecisionError, match=r"certified to .* with 17 grid tokens") as caught:
        Interpolant.fit(f, -10.0, 10.0, eps=1e-9, tokens=17)
    best = caught.value.best
    assert best is not None
    assert 1e-9 < best < 1
    assert Interpolant.fit(f, -10.0, 10.0, eps=1.01 * best, tokens=17).error <= 1.01 * best


@pytest.mark.slow
@pytest.mark.parametrize("f", [torch.sin, torch.exp, torch.relu])
def test_precision_error_of_a_fit_says_what_can_be_had(f):
    with pytest.raises(PrecisionError, match=r"not to eps = 1e-30") as caught:
        Interpolant.fit(f, -5.0, 5.0, eps=1e-30)
    best = caught.value.best
    assert best is not None
    assert 0 < best < 1e-5
    assert Interpolant.fit(f, -5.0, 5.0, eps=1.01 * best).error <= 1.01 * best


@pytest.mark.parametrize("build", [Interpolant.identity, lambda *a: Interpolant.fit(torch.sin, *a)])
@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, 0])
def test_an_eps_that_is_not_positive_is_refused(build, eps):
    with pytest.raises(PrecisionError, match="eps must be positive"):
        build(-1.0, 1.0, eps)


@pytest.mark.parametrize(
    "build",
    [
        Interpolant.identity,
        lambda low, high: Interpolant.fit(torch.sin, low, high, 1e-3),
        lambda low, high: Interpolant.fit(torch.relu, low, high, 1e-1),
        lambda low, high: Interpolant.hard(torch.sin, low, high, cells=4),
    ],
    ids=["identity", "fit", "graded", "hard"],
)
@pytest.mark.parametrize(
    ("low", "high"), [(1.0, -1.0), (1.0, 1.0), (math.nan, 1.0), (-math.inf, 1.0), (0.0, math.inf)]
)
def test_a_range_must_be_finite_and_increasing(build, low, high):
    with pytest.raises(BoundError, match="finite low < high"):
        build(low, high)


@pytest.mark.parametrize("tokens", [1, 2])
def test_too_few_tokens_are_refused(tokens):
    with pytest.raises(PrecisionError, match="too few for f"):
        Interpolant.fit(torch.tanh, -1.0, 1.0, tokens=tokens)


@pytest.mark.parametrize("tokens", [0, -3])
def test_no_tokens_are_refused(tokens):
    with pytest.raises(ProgramError, match="tokens must be a whole number of at least 1"):
        Interpolant.fit(torch.tanh, -1.0, 1.0, tokens=tokens)


def test_a_jump_is_refused():
    with pytest.raises(ProgramError, match="jumps near z"):
        Interpolant.fit(torch.sign, -1.0, 1.0, eps=1e-2)


@pytest.mark.parametrize("regime", ["fitted", "spectral", "hard", "graded"])
@pytest.mark.parametrize("z", [-2.0001, 2.0001, math.nan, math.inf])
def test_z_outside_the_range_is_refused(regime, z):
    it = EXAMPLES[regime]()
    inside = torch.zeros(3, dtype=F64)
    inside[1] = z
    with pytest.raises(BoundError, match=r"lies outside the certified range \[-2, 2\]"):
        it(inside)


# ---------------------------------------------------------------------------------- evaluation

EXAMPLES = {
    "fitted": lambda: Interpolant.fit(torch.tanh, -2.0, 2.0, eps=1e-4),
    "spectral": lambda: Interpolant.identity(-2.0, 2.0, eps=1e-6),
    "hard": lambda: Interpolant.hard(torch.tanh, -2.0, 2.0, cells=16),
    "graded": lambda: Interpolant.fit(torch.relu, -2.0, 2.0, eps=1e-2),
}


@pytest.fixture(params=EXAMPLES)
def it(request):
    return EXAMPLES[request.param]()


def test_weights_are_a_softmax_over_the_tokens(it):
    z = torch.linspace(-2, 2, 41, dtype=F64)
    weights = it.weights(z)
    assert weights.shape == (41, it.tokens)
    assert bool((weights >= 0).all())
    off = float((weights.sum(-1) - 1).abs().max())
    assert off <= it.tokens * UNIT, f"weights sum to 1 up to {off:.3e}"
    # The definition, with keys instead of squared distances.
    literal = torch.softmax((z - it.grid.center)[:, None] * it.keys.slopes + it.keys.biases, -1)
    # Logits of both forms are rounded; their size is that of the keys.
    size = (it.keys.slopes.abs() * 2 + it.keys.biases.abs()).max()
    assert float((weights - literal).abs().max()) <= 16 * UNIT * float(size)
    assert torch.equal(it(z), weights @ it.values)


def test_shapes_pass_through(it):
    z = 4 * torch.rand(2, 3, 5, dtype=F64) - 2
    assert it(z).shape == (2, 3, 5)
    assert it.weights(z).shape == (2, 3, 5, it.tokens)
    flat = it(z.flatten())
    # Products of other shapes may sum in another order.
    assert float((it(z).flatten() - flat).abs().max()) <= it.tokens * UNIT * 4 * it.size
    assert it(z[0, 0, 0]).shape == ()


def test_one_value_per_token(it):
    assert it.values.shape == it.grid.nodes.shape == (it.tokens,)
    assert it.values.dtype == F64
    assert it.size == float(it.values.abs().max())
    assert it.swing == float(it.values.max() - it.values.min())


def test_some_logits_are_the_logits_of_some(it):
    z = torch.linspace(-2, 2, 7, dtype=F64)
    index = torch.tensor([0, 2, it.tokens - 1]).expand(7, 3)
    assert torch.equal(it.logits(z, index), it.logits(z)[:, [0, 2, it.tokens - 1]])


def test_look_ups_are_differentiable(it):
    z = torch.tensor([-1.7, -0.3, 0.2, 1.1], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(it, z, eps=1e-7, atol=1e-5)


def test_float32_queries_give_float32_answers(it):
    z = torch.linspace(-2, 2, 101)
    out = it(z)
    assert out.dtype == torch.float32
    model = RoundingModel(torch.finfo(torch.float32).eps / 2, it.uniform, 4.0, 2)
    off = float((out.double() - it(z.double())).abs().max())
    assert off <= it.rounding(model) + own_rounding(it), f"off by {off:.3e}"


# --------------------------------------------------------------------- another program, same keys


@pytest.mark.parametrize("regime", ["fitted", "hard", "graded"])
@pytest.mark.parametrize("f", [torch.sin, torch.sigmoid, torch.relu, LINE])
def test_refit_keeps_the_keys_and_certifies_anew(regime, f):
    it = EXAMPLES[regime]()
    other = it.refit(f)
    assert other.grid is it.grid
    assert other.sharpness == it.sharpness
    assert torch.equal(other.keys.slopes, it.keys.slopes)
    assert_certified(other, f)


def test_values_by_hand():
    it = EXAMPLES["spectral"]()
    doubled = it.with_values(2 * it.values, 2 * it.error)
    z = torch.linspace(-2, 2, 41, dtype=F64)
    assert torch.equal(doubled(z), 2 * it(z))
    assert doubled.size == 2 * it.size
    model = RoundingModel(UNIT, True, 2.0, 2)
    assert doubled.rounding(model) == pytest.approx(2 * it.rounding(model), rel=1e-9)


def test_given_kinks_are_used():
    named = Interpolant.fit(torch.relu, -2.0, 2.0, eps=1e-2, kinks=(0.0,))
    found = Interpolant.fit(torch.relu, -2.0, 2.0, eps=1e-2)
    assert named.grid == found.grid
    assert isinstance(Interpolant.fit(torch.relu, 0.5, 2.0, eps=1e-2).grid, Grid)


def test_nothing_can_be_changed():
    it = EXAMPLES["spectral"]()
    with pytest.raises(AttributeError):
        it.error = 0.0


@pytest.mark.parametrize("span", [(-4.0, 4.0), (-1.0, 3.0)])
@pytest.mark.parametrize("tokens", [20, 21])
@pytest.mark.parametrize("f", [torch.tanh, torch.cos, torch.exp], ids=["odd", "even", "neither"])
def test_even_and_odd_parts_solve_what_the_whole_decomposition_solves(f, tokens, span):
    """v = V diag(sigma / (sigma^2 + (lambda sigma_1)^2)) U' r, as the module says it."""
    grid = Grid(*span, tokens - 5, 2)
    points = grid.mesh(5)
    phi = regimes._weights(grid, grid.keys(0.3), points)
    wanted = f(points - grid.center)
    tame = regimes._LAMBDAS >= 1e-9  # below, rounding is what is amplified
    for matrix, right in ((phi, wanted), (phi[1:], wanted[1:])):
        u, sigma, vt = torch.linalg.svd(matrix, full_matrices=False)
        along = u.T @ right
        first = sigma[along.abs() > 1e-9].max()  # that the right side has a part along
        damping = sigma[:, None] / (sigma[:, None] ** 2 + (regimes._LAMBDAS * first) ** 2)
        whole = vt.T @ (damping * along[:, None])
        found = regimes._damped(matrix, right)
        torch.testing.assert_close(found[:, tame], whole[:, tame], rtol=1e-4, atol=1e-6)


def test_a_first_table_of_many_tokens_is_searched_by_small_decompositions(monkeypatch):
    """The search for tanh on [-64, 64] decomposed 300 matrices of up to 400 columns once."""
    work, svd = [], torch.linalg.svd
    monkeypatch.setenv("ICEFORM_CACHE", "off")
    monkeypatch.setattr(torch.linalg, "svd", lambda a, *k, **o: work.append(a.shape[-1]) or svd(a))
    it = Interpolant.fit(torch.tanh, low=-64, high=64, eps=1e-5)
    assert it.tokens > 200
    assert sum(n**3 for n in work) < 8 * it.tokens**3
