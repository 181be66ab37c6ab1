"""The appendix on Hopfield layers as printed, and as iceform builds it."""

import math

import pytest
import torch

import iceform as ice
from iceform.tables import bounds
from tests.errata import printed
from tests.errata.common import (
    F64,
    assert_apart,
    assert_certified,
    assert_on_page,
    drawn,
    largest,
    short,
    uniform,
    with_corners,
)


def printed_keys(nodes, a, b):
    """K of thm:hopfield_approx: [2 L a; 2 L b - L^2]."""
    return torch.cat([2 * torch.outer(a, nodes), (2 * b * nodes - nodes.square())[None]])


def states(z):
    return torch.cat([z, torch.ones(1, z.shape[1], dtype=F64)])


# ---------------------------------------------------------------------------------------------
# thm:hopfield_approx
# ---------------------------------------------------------------------------------------------


def test_values_made_from_keys_are_combinations_of_l_and_l_squared():
    """def:hopfield has V = W_V W_K Y = W_V K, so with the printed K every row of V is a combination
    of L and 2 L b - L^2; the proof sets V = f(L). For tanh on [-3, 3] the best one is off by .32 at
    some grid point, whatever W_V is.
    """
    nodes = printed.grid(3, 64)
    keys = printed_keys(nodes, torch.ones(1, dtype=F64), 0.0)
    assert torch.linalg.matrix_rank(torch.cat([keys, torch.tanh(nodes)[None]])) == 3
    # tanh and L are odd, L^2 even: averaging with the mirror image shows that L^2 does not help.
    slopes = torch.linspace(0, 1, 4001, dtype=F64)
    off = (torch.tanh(nodes) - slopes[:, None] * nodes).abs().amax(1)
    assert float(off.min()) == pytest.approx(0.32, abs=5e-3)
    fit = torch.linalg.lstsq(keys.T, torch.tanh(nodes)[:, None]).solution
    assert largest(keys.T @ fit - torch.tanh(nodes)[:, None]) >= float(off.min())


@pytest.mark.parametrize("name", ["tanh", "sin", "relu"])
def test_function_values_as_key_rows_mend_it(name):
    """y_k = [L; L^2; f(L)], W_K = [[2a, 0, 0], [2b, -1, 0], [0, 0, 1]], W_Q = [I; 0],
    W_V = [0, 0, 1]: values are key rows that no state meets.
    """
    f = {"tanh": torch.tanh, "sin": torch.sin, "relu": torch.relu}[name]
    a, b, cells = torch.tensor([0.7, -0.4], dtype=F64), 0.3, 400
    nodes = printed.grid(3, cells)
    stored = torch.stack([nodes, nodes.square(), f(nodes)])
    w_k = torch.zeros(4, 3, dtype=F64)
    w_k[:2, 0], w_k[2, 0], w_k[2, 1], w_k[3, 2] = 2 * a, 2 * b, -1.0, 1.0
    w_q, w_v = torch.eye(4, 3, dtype=F64), torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=F64)
    generator = torch.Generator().manual_seed(0)
    z = uniform(generator, -2, 2, 2, 50)
    spacing = 6 / cells
    out = printed.hopfield(states(z), stored, w_k, w_q, w_v, 12 / spacing**2)[0]
    exact = f(a @ z + b)
    assert largest(out - exact) <= spacing / 2 + 1e-4

    em = ice.paper.HopfieldMap(
        f, a, b, samples=50, bound=2.0, eps=0.02 if name == "relu" else 1e-6, backend="literal"
    )
    assert_certified(em, z.T.contiguous(), exact=exact)
    (layer,) = em.network.layers
    assert torch.equal(layer.w_q[-1], torch.zeros(3, dtype=F64))  # no state meets the value row


def test_tail_bound_takes_the_spacing_for_a_squared_distance():
    """The mass where (z - L)^2 >= DeltaL is bounded by P e^{-beta DeltaL/2}, for which the nearest
    squared distance, up to (DeltaL/2)^2, is taken to be at most DeltaL/2: true for DeltaL <= 2.
    DeltaL = 4, z midway, beta = 5: all mass is there, 9e-5 is claimed. The corrected tail counts
    cells, so it does not change with the units of z.
    """
    nodes = torch.tensor([-4.0, 0.0, 4.0], dtype=F64)
    spacing, beta, z = 4.0, 5.0, 2.0
    weights = torch.softmax(-beta * (z - nodes).square(), 0)
    mass = float(weights[(z - nodes).square() >= spacing].sum())
    claimed = 2 * math.exp(-beta * spacing / 2)
    assert mass == pytest.approx(1.0)
    assert_on_page(f"all mass is there and {claimed:.0e} is claimed".replace("e-0", "e-"))
    c = beta * spacing**2
    beyond = float(weights[(z - nodes).abs() > spacing].sum())
    assert beyond <= bounds.hard_tail(c, 1)


def test_printed_sums_leave_out_the_first_grid_point():
    """sum_{r=1}^P instead of r = 0 .. P: at z = L_0 the answer is f(L_1)."""
    nodes = printed.grid(2, 8)
    z, beta = nodes[0], 12 / 0.25
    kept = torch.softmax(-beta * (z - nodes[1:]).square(), 0) @ torch.sin(2 * nodes[1:])
    whole = torch.softmax(-beta * (z - nodes).square(), 0) @ torch.sin(2 * nodes)
    assert float((kept - torch.sin(2 * z)).abs()) > 0.5
    assert float((whole - torch.sin(2 * z)).abs()) <= 1e-4


# ---------------------------------------------------------------------------------------------
# thrm:hopfield_sim_f
# ---------------------------------------------------------------------------------------------


def test_sign_of_the_square_is_the_one_of_the_attention_theorem():
    """The key row -L^2 meets the state entry -1 again: with more cells it does not get better."""
    generator = torch.Generator().manual_seed(0)
    x, y, w = (uniform(generator, -1, 1, *s) for s in ((2, 4), (4,), (2,)))
    exact = printed.exact_map(x, y, w, torch.tanh)
    wrong, right = [], []
    for cells in (32, 128):
        nodes, beta = printed.grid(3, cells), 6 * (cells / 6) ** 2
        build = (x, y, w, nodes, torch.tanh, 40.0, beta)  # blocks kept apart either way
        wrong.append(largest(printed.hopfield_residual(*build) - exact))
        right.append(largest(printed.hopfield_residual(*build, square_query=1.0) - exact))
        assert_apart(wrong[-1], 0.3, right[-1], 3 / cells + 1e-3)
    assert short(wrong[0]) == short(wrong[1])
    assert_on_page(
        f"off by {short(wrong[0])} with 32 cells and with 128 (mended: {short(right[0])} and "
        f"{short(right[1])})"
    )
    em = ice.paper.HopfieldResidual(torch.tanh, dim=2, samples=4, eps=1e-6, backend="literal")
    assert_certified(em, x.T.contiguous(), y, w, exact=exact.T)


def test_margin_is_multiplied_by_beta():
    """Here beta multiplies everything, so the margin has to be M / beta, which tends to the largest
    z^2 = (d B^2 + B)^2. Printed is 2 d B^2 + B - ln eps0: for d = 1, B = 3 that is 26 where 144 is
    needed, and all attention leaves the block.
    """
    bound, eps0, reach, cells, c = 3.0, 0.01, 12.0, 96, 4.0
    x, y = torch.tensor([[0.0, 3.0]], dtype=F64), torch.tensor([0.0, -3.0], dtype=F64)
    w = torch.tensor([3.0], dtype=F64)
    nodes, spacing = printed.grid(reach, cells), 2 * reach / cells
    beta = c / spacing**2
    stored_margin = printed.margin(1, bound, eps0)
    needed = bounds.margin(c, spacing, reach, 2, 2, eps0) / beta
    leaks = []
    for own in (stored_margin, needed):
        logits = beta * printed.scores(x, y, w, nodes, own, square_query=1.0)
        leaks.append(float(printed.mass_on_wrong_blocks(logits, 2).max()))
    assert stored_margin == pytest.approx(25.6, abs=0.05)
    assert 144 <= needed <= 145
    assert_apart(leaks[0], 1 - 1e-12, leaks[1], eps0)

    em = ice.paper.HopfieldResidual(
        torch.tanh, dim=1, samples=2, bound=3.0, eps=1e-4, backend="literal"
    )
    exact = printed.exact_map(x, y, w, torch.tanh).T
    assert_certified(em, x.T.contiguous(), y, w, exact=exact, eps=1e-4)


@pytest.mark.parametrize(("d", "n"), [(1, 1), (2, 3)])
def test_corrected_layer_holds_its_certificate(d, n):
    generator = torch.Generator().manual_seed(d)
    em = ice.paper.HopfieldResidual(torch.sin, dim=d, samples=n, eps=1e-7, backend="literal")
    assert_certified(em, *with_corners(drawn(generator, n, d, 40)), eps=1e-7)


# ---------------------------------------------------------------------------------------------
# cor:in-context-GD-hop
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_step_needs_w_among_the_stored_patterns(loss):
    """Y holds x and y only, so the output is made of f(L) x_i: at x = 0 it is 0, but a step leaves
    w where it is. iceform's patterns carry w.
    """
    x, y = torch.zeros(1, 2, dtype=F64), torch.tensor([0.5, -0.5], dtype=F64)
    w, lr = torch.tensor([0.75], dtype=F64), 0.1
    nodes = printed.grid(2, 32)
    out = printed.hopfield_residual(x, y, w, nodes, torch.tanh, 8.0, 100.0, square_query=1.0)
    assert float(out.abs().max()) == 0.0

    em = ice.paper.HopfieldStep(loss, lr, dim=1, samples=2, eps=1e-2, backend="literal")
    assert_certified(em, x.T.contiguous(), y, w, exact=w, eps=1e-2)


def test_corrected_step_holds_its_certificate_on_random_data():
    em = ice.paper.HopfieldStep("squared", 0.2, 0.1, dim=2, samples=4, eps=1e-9, backend="literal")
    generator = torch.Generator().manual_seed(4)
    x, y, w = drawn(generator, 4, 2, 30)
    residual = (x @ w[..., None])[..., 0] - y
    gradient = (residual[..., None] * x).mean(-2)
    exact = w - 0.2 * (gradient + 0.1 * w)
    assert_certified(em, x, y, w, exact=exact, eps=1e-9)
