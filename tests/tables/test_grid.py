import json
import math
import random

import pytest
import torch

from iceform import Interpolant
from iceform.codec import decode, encode
from iceform.errors import BoundError, ProgramError
from iceform.tables import GradedGrid, Grid
from tests.tables.measure import UNIT

F64 = torch.float64

UNIFORM = [
    Grid(-1.0, 1.0, 1),
    Grid(-10.0, 10.0, 64, 5),
    Grid(0.25, 0.75, 7, 2),
    Grid(-1e6, 1e6, 1, 12),
    Grid(1e-3, 2e-3, 9, 3),
]
GRADED = [
    GradedGrid(-10.0, 10.0, 32, 2, (0.0,), 0.4),
    GradedGrid(-1.0, 5.0, 40, 3, (0.3,), 0.3, 0.5),
    GradedGrid(-3.0, 3.0, 60, 1, (-1.0, 1.0), 0.5, 0.4),
    GradedGrid(-2.0, 8.0, 90, 4, (-1.5, 0.0, 6.0), 0.22, 0.7),
]
GRIDS = UNIFORM + GRADED


# ------------------------------------------------------------------------------ equal spacing


@pytest.mark.parametrize("grid", UNIFORM)
def test_uniform_nodes_are_low_plus_k_h(grid):
    h = (grid.high - grid.low) / grid.cells
    k = torch.arange(-grid.guards, grid.cells + grid.guards + 1, dtype=F64)
    off = (grid.nodes - (grid.low + k * h)).abs().max()
    # Three roundings of numbers no larger than the outermost node, on either side.
    assert off <= 6 * UNIT * grid.nodes.abs().max(), f"nodes are off by {float(off):.3e}"
    assert grid.spacing == h
    assert len(grid.nodes) == grid.tokens == grid.cells + 1 + 2 * grid.guards


@pytest.mark.parametrize("grid", UNIFORM)
def test_uniform_nodes_mirror_at_the_center(grid):
    assert grid.center == pytest.approx((grid.low + grid.high) / 2, rel=4 * UNIT)
    assert torch.equal(grid.offsets, -grid.offsets.flip(0))


@pytest.mark.parametrize("grid", UNIFORM)
@pytest.mark.parametrize("c", [0.25, 3.0])
def test_uniform_logits_are_squared_distances(grid, c):
    """s_k t + b_k - beta t^2 = -beta (z - L_k)^2, and a softmax does not see the t^2."""
    keys = grid.keys(c)
    beta = c / grid.spacing**2
    t = torch.linspace(grid.low, grid.high, 33, dtype=F64)[:, None] - grid.center
    logits = t * keys.slopes + keys.biases - beta * t.square()
    want = -beta * (t - grid.offsets).square()
    terms = (t * keys.slopes).abs() + keys.biases.abs() + beta * t.square()
    off = ((logits - want).abs() - 8 * UNIT * terms).max()
    assert off <= 0, f"logits are off by {float(off):.3e} more than their rounding"


# ------------------------------------------------------------------------------------- graded


@pytest.mark.parametrize("grid", GRADED)
def test_graded_cells_cover_the_range_exactly(grid):
    nodes, g = grid.nodes, grid.guards
    reach = max(abs(grid.low), abs(grid.high))
    assert len(nodes) == grid.tokens
    assert bool((nodes.diff() > 0).all())
    # The finest spacing is bisected to 1e-12 in its logarithm; a node's index shifts as much.
    loose = 1e-10 * reach
    assert abs(float(nodes[g]) - grid.low) <= loose
    assert abs(float(nodes[g + grid.cells]) - grid.high) <= loose


@pytest.mark.parametrize("grid", GRADED)
def test_graded_gaps_follow_the_stated_spacing(grid):
    """A gap is the spacing h(z) somewhere inside it: 1/h = 1/h_0 + sum_j 1/sqrt(...)."""
    nodes = grid.nodes

    def spacing(z):
        away = z[:, None] - torch.tensor(grid.kinks, dtype=F64)
        local = (grid.spacing**2 + (grid.growth * away).square()).rsqrt().sum(-1)
        return 1 / (local + 1 / grid.coarsest)

    inside = torch.stack(
        [spacing(nodes[:-1] + s * nodes.diff()) for s in torch.linspace(0, 1, 65).tolist()]
    )
    gaps = nodes.diff()
    # 65 points may miss the extreme spacing between them by a little.
    assert bool((gaps >= 0.999 * inside.amin(0)).all())
    assert bool((gaps <= 1.001 * inside.amax(0)).all())
    assert bool((gaps < grid.coarsest).all())


@pytest.mark.parametrize("grid", GRADED)
def test_graded_tokens_crowd_at_every_kink(grid):
    gaps = grid.nodes.diff()
    middles = 0.5 * (grid.nodes[1:] + grid.nodes[:-1])
    inside = (middles > grid.low) & (middles < grid.high)
    for kink in grid.kinks:
        at_kink = gaps[int((middles - kink).abs().argmin())]
        assert at_kink <= gaps[inside].median()


def test_graded_grid_with_one_kink_is_the_sinh_grid_in_closed_form():
    c, alpha, cells = 0.7, 0.4, 24
    grid = GradedGrid(-4.0, 4.0, cells, 3, (0.0,), alpha)
    k = torch.arange(-cells // 2 - 3, cells // 2 + 4, dtype=F64)
    h = grid.spacing
    keys = grid.keys(c)
    nodes = h / alpha * torch.sinh(alpha * k)
    slopes = 2 * c / (alpha * h) * torch.atan(torch.sinh(alpha * k))
    biases = -2 * c / alpha**2 * torch.log(torch.cosh(alpha * k))
    for got, want, name in [
        (grid.nodes, nodes, "nodes"),
        (keys.slopes, slopes, "slopes"),
        (keys.biases, biases, "biases"),
    ]:
        off = float((got - want).abs().max() / want.abs().max())
        assert off <= 1e-11, f"{name} are off by {off:.3e} of their size"


@pytest.mark.parametrize("grid", GRADED)
def test_graded_logits_peak_at_their_node_with_the_same_sharpness(grid):
    """d/dk (s z + b) = 2c (z - L(k))/h vanishes at z = L(k): token k wins at its own node."""
    c = 0.6
    keys = grid.keys(c)
    inner = slice(grid.guards, grid.guards + grid.cells + 1)
    z = grid.nodes[inner]
    logits = (z - grid.center)[:, None] * keys.slopes + keys.biases
    winners = logits.argmax(-1)
    assert torch.equal(winners, torch.arange(grid.tokens)[inner])
    # One step away costs c, up to the change of the spacing over that step (a share growth).
    k = torch.arange(1, len(z) - 1)
    own = winners[k]
    drop = logits[k, own] - 0.5 * (logits[k, own + 1] + logits[k, own - 1])
    # Where two kinks meet, the spacing changes by their growths together.
    slack = grid.growth * len(grid.kinks)
    assert bool((drop >= c * (1 - slack)).all()), float(drop.min() / c)
    assert bool((drop <= c * (1 + slack)).all()), float(drop.max() / c)


@pytest.mark.parametrize("grid", GRADED)
def test_graded_keys_are_pinned_at_the_center(grid):
    """The token at the center has logit 0 for every z, which the margin between blocks uses."""
    keys = grid.keys(1.3)
    middle = int((grid.nodes - grid.center).abs().argmin())
    assert float(keys.slopes[middle]) == 0
    assert float(keys.biases[middle]) == 0


# --------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("per_cell", [1, 7])
def test_mesh_runs_from_low_to_high(grid, per_cell):
    mesh = grid.mesh(per_cell)
    assert float(mesh[0]) == grid.low
    assert float(mesh[-1]) == grid.high
    assert bool((mesh.diff() > 0).all())
    kinks = getattr(grid, "kinks", ())
    assert grid.cells * per_cell + 1 <= len(mesh) <= grid.cells * per_cell + 1 + len(kinks)
    assert all(k in mesh.tolist() for k in kinks)


@pytest.mark.parametrize("grid", GRIDS)
def test_slopes_increase_so_that_logits_are_unimodal(grid):
    slopes = grid.keys(0.5).slopes
    assert bool((slopes.diff() > 0).all())


@pytest.mark.parametrize("grid", GRIDS)
def test_description_survives_json(grid):
    again = decode(type(grid), json.loads(json.dumps(encode(grid))))
    assert again == grid
    assert torch.equal(again.nodes, grid.nodes)
    assert torch.equal(again.keys(0.4).slopes, grid.keys(0.4).slopes)
    assert torch.equal(again.keys(0.4).biases, grid.keys(0.4).biases)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, -1.0, 4), r"finite low < high, got \[1.0, -1.0\]"),
        ((1.0, 1.0, 4), "finite low < high"),
        ((math.nan, 1.0, 4), "finite low < high, got .nan"),
        ((-math.inf, 1.0, 4), "finite low < high, got .-inf"),
        ((-1.0, 1.0, 0), "cells must be a whole number of at least 1, got 0"),
        ((-1.0, 1.0, 2.5), "cells must be a whole number of at least 1, got 2.5"),
        ((-1.0, 1.0, 4, -1), "guards must be a whole number of at least 0, got -1"),
        ((-1.0, 1.0, 4, 0.5), "guards must be a whole number of at least 0, got 0.5"),
    ],
)
def test_uniform_grid_refuses(arguments, message):
    with pytest.raises(BoundError, match=message):
        Grid(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.0, -1.0, 4, 1, (0.0,), 0.4), BoundError, "finite low < high"),
        ((-1.0, 1.0, 0, 1, (0.0,), 0.4), BoundError, "cells must be a whole number"),
        ((-1.0, 1.0, 4, 1, (), 0.4), ProgramError, "needs kinks inside"),
        ((-1.0, 1.0, 4, 1, (2.0,), 0.4), ProgramError, r"kinks inside \(-1, 1\), got \(2.0,\)"),
        ((-1.0, 1.0, 4, 1, (-1.0,), 0.4), ProgramError, "needs kinks inside"),
        ((-1.0, 1.0, 4, 1, (math.nan,), 0.4), ProgramError, "needs kinks inside"),
        ((-1.0, 1.0, 4, 1, (0.0,), 0.4, 0.1), BoundError, "4 cells cannot cover .* use more"),
        ((-1.0, 1.0, 4, 1, (0.0,), 0.0), BoundError, "growth must be positive"),
        ((-1.0, 1.0, 4, 1, (0.0,), -0.4), BoundError, "growth must be positive"),
        ((-1.0, 1.0, 4, 1, (0.0,), math.nan), BoundError, "growth must be positive"),
        ((-1.0, 1.0, 4, 1, (0.0,), 0.4, 0.0), BoundError, "coarsest must be positive"),
        ((-1.0, 1.0, 4, 1, (0.0,), 0.4, -1.0), BoundError, "coarsest must be positive"),
    ],
)
def test_graded_grid_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        GradedGrid(*arguments)


def test_nodes_of_the_range_are_in_it_whatever_rounds():
    """What f is beyond the ends is none of a table's business, hard ones with it."""
    draw = random.Random(0)
    for _ in range(300):
        low = draw.uniform(-2, 2)
        high, cells = low + draw.uniform(0.01, 5), draw.randint(2, 40)
        grid = Grid(low, high, cells)
        assert low <= float(grid.nodes.min()), (low, high, cells)
        assert float(grid.nodes.max()) <= high, (low, high, cells)


def test_a_hard_table_does_not_ask_for_f_below_its_range():
    """A cliff just below the range, where the first node would round to."""
    draw, tried = random.Random(0), 0
    while tried < 5:
        low = draw.uniform(-2, 2)
        grid = Grid(low, low + draw.uniform(0.5, 5), 16)
        if float((grid.center + grid.offsets)[0]) >= low:
            continue
        tried += 1
        it = Interpolant.hard(
            lambda z, low=low: torch.where(z < low, 100.0 + 0 * z, 0.1 * z),
            low,
            grid.high,
            cells=16,
        )
        at = torch.tensor([low], dtype=torch.float64)
        assert float((it(at) - 0.1 * at).abs()) <= it.error, (low, it)
