"""Scaling: a change of coordinates, and nothing else."""

import pytest
import torch
from flint import arb, ctx

from estimator_tests.machine import data
from estimator_tests.machine.exact import BITS, numbers
from iceform.errors import BoundError
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.problem import Scaling

KINDS = data.REGULAR | data.DEPENDENT
UNIT = torch.finfo(torch.float64).eps / 2


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_do_not_depend_on_the_coordinates(kind, intercept):
    g = torch.Generator().manual_seed(0)
    x = KINDS[kind](g)
    y = data.labels(x, g, offset=5.0)
    scaling = Scaling.of(ArraySource(x, y, chunk=7), intercept=intercept)
    w = data.normal(g, scaling.dim)
    coef, constant = scaling.raw(w)
    inner = scaling.samples(x) @ w * scaling.size + scaling.center
    terms = x.abs() @ coef.abs() + scaling.mean.abs() @ coef.abs() + abs(scaling.center) + 10
    allowed = 8 * (scaling.dim + 8) * UNIT * terms * max(1.0, scaling.size)
    assert bool(((x @ coef + constant - inner).abs() <= allowed).all())
    stacked = torch.cat([coef, constant.reshape(1)]) if intercept else coef
    shift = torch.zeros_like(stacked)
    shift[-1] = scaling.center if intercept else 0.0
    linear = scaling.functionals() @ w + shift
    size = scaling.functionals().abs() @ w.abs() + shift.abs()
    assert bool(((stacked - linear).abs() <= 8 * (scaling.dim + 8) * UNIT * size).all())


@pytest.mark.parametrize("kind", ["normal", "offset 1e6", "mixed sizes", "huge 1e8"])
def test_samples_round_relative_to_themselves(kind):
    """The proofs take this for granted."""
    ctx.prec = BITS
    g = torch.Generator().manual_seed(0)
    x = KINDS[kind](g)
    scaling = Scaling.of(ArraySource(x, x[:, 0].clone()), intercept=True)
    got = scaling.samples(x)
    mean, scale = numbers(scaling.mean), numbers(scaling.scale)
    for row, scaled in zip(x.tolist(), got.tolist(), strict=True):
        for v, m, c, s in zip(row, mean, scale, scaled, strict=False):
            exact = (arb(v) - m) / c
            assert abs(arb(s) - exact) <= 3 * UNIT * abs(exact)
        assert scaled[-1] == 1.0


def test_scaled_columns_have_unit_deviation_and_constant_ones_are_left():
    g = torch.Generator().manual_seed(0)
    x = torch.cat([1e5 * data.normal(g, 50, 2) + 1e7, torch.full((50, 1), 0.1).double()], 1)
    scaling = Scaling.of(ArraySource(x, 3 + 2 * data.normal(g, 50)), intercept=True)
    scaled = scaling.samples(x)
    torch.testing.assert_close(scaled[:, :2].std(0, correction=0), torch.ones(2).double())
    assert float(scaling.scale[2]) == 1.0
    assert float(scaled[:, 2].abs().max()) < 1e-15
    assert scaling.dim == 4


def test_without_an_intercept_nothing_is_moved():
    g = torch.Generator().manual_seed(0)
    x = data.normal(g, 30, 2) + 4
    scaling = Scaling.of(ArraySource(x, x[:, 0] + 7), intercept=False)
    assert not scaling.mean.any()
    assert scaling.center == 0.0
    torch.testing.assert_close(scaling.samples(x).square().mean(0), torch.ones(2).double())


def test_one_scale_for_all_columns():
    g = torch.Generator().manual_seed(0)
    x = data.normal(g, 30, 2) * torch.tensor([1.0, 100.0]).double()
    scaling = Scaling.of(ArraySource(x, x[:, 0].clone()), intercept=True, columns=False)
    assert float(scaling.scale[0]) == float(scaling.scale[1])


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_chunks_do_not_matter(chunk):
    g = torch.Generator().manual_seed(0)
    x, y = data.normal(g, 50, 3) + 1e3, data.normal(g, 50)
    whole = Scaling.of(ArraySource(x, y), intercept=True)
    parts = Scaling.of(ArraySource(x, y, chunk=chunk), intercept=True)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=50 * UNIT, atol=0)
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-11, atol=0)
    assert parts.size == pytest.approx(whole.size, rel=1e-13)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_what_cannot_be_scaled_is_refused(bad):
    x = torch.ones(4, 2).double()
    x[2, 1] = bad
    with pytest.raises(
        BoundError, match=r"column 1 of the samples: it (holds NaN or infinity|reaches 1e\+200)"
    ):
        Scaling.of(ArraySource(x, torch.ones(4).double()), intercept=True)
