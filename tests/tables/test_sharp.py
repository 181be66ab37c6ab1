"""What bounds of look-ups say at their borders, and that they are no larger than they need be."""

import math

import mpmath
import numpy as np
import pytest
import torch

from iceform import Interpolant
from iceform.errors import BoundError
from iceform.expressions import ScalarFunction
from iceform.tables import GradedGrid, Grid, bounds, posterior, regimes
from iceform.tables.local import local_weights
from tests.tables.measure import function_of

F64 = torch.float64


def table(grid, sharpness):
    values = torch.cos(2.3 * torch.arange(grid.tokens, dtype=F64))
    return Interpolant(grid, sharpness, values, "given", math.inf)


TABLES = {
    "smooth": lambda: table(Grid(-2.0, 3.0, 10, 3), 0.5),
    "sharp": lambda: table(Grid(1.0, 3.0, 30, 2), 5.0),
    "graded": lambda: table(GradedGrid(-10.0, 10.0, 20, 2, (0.0,), 0.4), 0.6),
}


def test_where_nothing_is_left_inside_moments_are_infinite():
    """Temperatures so high that all mass, to the last digit, is beyond the guards."""
    exactly = 0
    for guards in (0, 3):
        for k in range(2, 60):
            c = 10.0**-k
            mass = bounds.mass_beyond(c, guards, 4)
            exactly += mass == 1
            assert math.isinf(bounds.second_moment(c, guards, 4)) == (mass >= 1)
            assert math.isinf(bounds.fourth_moment(c, guards, 4)) == (mass >= 1)
            assert math.isinf(bounds.linear_reproduction(c, guards, 4)) == (mass >= 1)
    assert exactly


@pytest.mark.parametrize("width", [1e-120, 1e120])
def test_ranges_stop_where_their_inverse_square_does(width):
    inward = math.nextafter(width, 1.0)
    assert Grid(0.0, inward, 4, 1).spacing == inward / 4
    for wide in (width, math.nextafter(width, 0.0 if width < 1 else math.inf)):
        with pytest.raises(BoundError, match="overflows the keys"):
            Grid(0.0, wide, 4, 1)


@pytest.mark.parametrize("name", TABLES)
def test_how_far_logits_are_below_the_largest_anywhere_on_an_interval(name):
    it = TABLES[name]()
    for w in local_weights(it, it.grid.mesh(1)):
        z = w.middle[:, None] + torch.linspace(-1, 1, 9, dtype=F64) * w.radius[:, None]
        whole = (z - it.grid.center)[..., None] * it.keys.slopes + it.keys.biases
        gaps = whole.amax(-1, keepdim=True) - whole
        seen = gaps.gather(-1, w.index[:, None, :].expand(-1, 9, -1)).amax(1)
        assert bool((seen <= w.below * (1 + 1e-12) + 1e-12).all())
        # The largest is taken for the sum of all, and the slope for its farthest on the interval.
        spread = (w.tilted.sum(-1).log() + 2 * w.slope_drift * w.radius)[:, None]
        reach = (w.slopes.abs() * w.radius[:, None]).amin(-1, keepdim=True)
        assert bool((w.below <= seen + 2 * spread + 2 * reach + 1.5).all())


@pytest.mark.parametrize("name", TABLES)
def test_logits_are_within_the_rounding_that_proofs_take_them_to_have(name):
    it = TABLES[name]()
    (w, *_) = local_weights(it, it.grid.mesh(1))
    tau = posterior._logit_error(it, w).tolist()
    with mpmath.workdps(40):
        for i in range(0, len(w.middle), 5):
            t = mpmath.mpf(float(w.middle[i])) - mpmath.mpf(it.grid.center)
            if it.uniform:  # the place in cells is an error of z, and counted as one
                cells = (w.middle[i] - it.grid.center) / it.grid.spacing
                middle = mpmath.mpf(it.grid.tokens - 1) / 2
                away = [mpmath.mpf(float(cells)) - (k - middle) for k in w.index[i].tolist()]
                exact = [-it.sharpness * d * d for d in away]
            else:
                pairs = zip(w.raw_slopes[i].tolist(), w.raw_biases[i].tolist(), strict=True)
                exact = [t * s + b for s, b in pairs]
            for k, logit in enumerate(exact):
                off = abs(float(w.logits[i, k]) - (logit - max(exact)))
                gap = float(max(exact) - logit)
                assert off + 2.0**-51 <= tau[i][k], (i, k)  # beside exp's own two units
                size = (
                    gap
                    if it.uniform
                    else gap
                    + float(w.raw_slopes[i, k].abs() * abs(float(t)) + w.raw_biases[i, k].abs())
                )
                assert tau[i][k] <= 2.0**-50 * (1 + 1e-9) + 8 * 2.0**-53 * size


def test_a_table_moved_by_a_constant_says_what_is_known_of_the_new_function():
    it = Interpolant.fit(function_of("sin"), -1.0, 1.0, eps=1e-6)
    up = posterior.raised(it, 2.0, ScalarFunction(lambda z: torch.sin(z) + 2.0, "sin + 2"))
    assert (up.kind, up.assumptions) == ("proven", ())
    z = torch.linspace(-1, 1, 301, dtype=F64)
    assert float((up(z) - torch.sin(z) - 2).abs().max()) <= up.error <= 2 * it.error

    def hidden(z):
        return torch.from_numpy(np.sin(z.detach().numpy()) + 2.0)

    unknown = ScalarFunction(hidden, "hidden", estimate=True)
    bare = Interpolant(it.grid, it.sharpness, it.values, "fitted", it.error, it.function)
    found = posterior.raised(bare, 2.0, unknown)
    assert found.kind == "estimated"
    assert found.assumptions
    assert found.function is unknown


def test_hard_tables_have_a_hundred_cells_or_as_many_as_eps_takes():
    f = function_of("sin")
    plain = regimes.hard_for(f, -1.0, 1.0, None)
    assert plain.grid.cells == 100
    z = torch.linspace(-1, 1, 1001, dtype=F64)
    for eps in (0.1, 1e-3):
        found = regimes.hard_for(f, -1.0, 1.0, eps)
        assert float((found(z) - f(z)).abs().max()) <= found.error <= eps
        fewer = regimes.hard(f, Grid(-1.0, 1.0, max(1, int(0.97 * found.grid.cells))))
        assert found.grid.cells == 64 or fewer.error > 0.98 * eps
