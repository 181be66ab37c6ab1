"""Windows by recurrence against every token's own softmax, and against what is proven of them."""

import math

import pytest
import torch
from torch.autograd import forward_ad

from iceform.run import primitives, rounding_of, windowed
from iceform.run.windowed import sum_block
from iceform.tables import Interpolant
from iceform.tables.local import half_width, tail_mass
from tests.run.tables import KINDS, UNIFORM, points, rounding_bound, table

DTYPES = (torch.float64, torch.float32)


@pytest.mark.parametrize("sharpness", [0.05, 0.3, 1.0, 12.0])
@pytest.mark.parametrize("half", [1, 3, 8])
def test_no_point_leaves_more_mass_outside_than_the_tail(sharpness, half):
    u = torch.linspace(-0.5, 0.5, 401, dtype=torch.float64)[:, None]
    j = torch.arange(-400, 401, dtype=torch.float64)
    weights = torch.softmax(-sharpness * (u - j) ** 2, -1)
    outside = weights[:, j.abs() > half].sum(-1).max().item()
    assert outside <= tail_mass(sharpness, half), (outside, tail_mass(sharpness, half))


def test_the_tail_is_not_idle():
    """Of the order of what it bounds: at most the mass of the nearest token away."""
    u, j = 0.5, torch.arange(-60, 61, dtype=torch.float64)
    weights = torch.softmax(-0.3 * (u - j) ** 2, -1)
    assert tail_mass(0.3, 5) <= 10 * weights[j.abs() > 5].sum().item()


@pytest.mark.parametrize("kind", UNIFORM)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_is_within_its_declared_rounding(kind, dtype):
    it = table(kind)
    z = points(it, dtype)
    window = windowed.window_of(it, dtype)
    assert window is not None
    off = (
        windowed.look_up(z, window).double() - primitives.plain_interpolate(z.double(), it)
    ).abs()
    worst = int(off.argmax())
    assert off.max() <= rounding_bound(it, dtype), (kind, z[worst], off.max())


@pytest.mark.parametrize("kind", UNIFORM)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_token_is_within_the_same_rounding(kind, dtype):
    it = table(kind)
    z = points(it, dtype)
    off = (
        primitives.plain_interpolate(z, it).double() - primitives.plain_interpolate(z.double(), it)
    ).abs()
    assert off.max() <= rounding_bound(it, dtype)


def test_a_window_leaves_tokens_out_and_says_so():
    it = table("fitted")
    model = rounding_of("fused").model(torch.float64, it, 0.0, 0)
    assert model.half is not None
    assert 2 * model.half + 1 < it.tokens
    assert it.rounding(model) >= tail_mass(it.sharpness, model.half) * it.swing


def test_graded_tokens_and_high_temperatures_have_no_window():
    assert half_width(table("graded"), 1e-16) is None
    flat = Interpolant.hard(torch.tanh, -5, 5, cells=200, sharpness=1e-3)
    assert half_width(flat, 1e-16) is None
    z = points(flat, torch.float64, 20000)
    assert torch.equal(primitives.interpolate(z, flat), primitives.plain_interpolate(z, flat))


@pytest.mark.parametrize("kind", UNIFORM)
def test_derivatives_agree_with_autograd(kind):
    it = table(kind)
    z = points(it, torch.float64, 200).requires_grad_()
    (expected,) = torch.autograd.grad(primitives.plain_interpolate(z, it).sum(), z)
    window = windowed.window_of(it, torch.float64)
    assert window is not None
    found = windowed.derivative(z.detach(), window)
    # The tail again, times the steepest slope of a logit, and rounding.
    slope = 2 * it.sharpness / it.grid.spacing * it.tokens
    allowed = slope * (
        tail_mass(it.sharpness, window.half) * it.swing + rounding_bound(it, z.dtype)
    )
    assert (found - expected).abs().max() <= allowed


def _looked(z, kind):
    window = windowed.window_of(table(kind), torch.float64)
    return windowed.LookUp.apply(z, window)


@pytest.mark.parametrize("kind", ["line", "fitted"])
def test_gradcheck(kind):
    z = torch.linspace(-4.9, 4.9, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_looked, (z, kind))
    assert torch.autograd.gradgradcheck(_looked, (z, kind))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own
def test_forward_mode_agrees_with_backward():
    z = torch.linspace(-4.9, 4.9, 50, dtype=torch.float64)
    window = windowed.window_of(table("fitted"), torch.float64)
    with forward_ad.dual_level():
        looked = windowed.LookUp.apply(forward_ad.make_dual(z, torch.ones_like(z)), window)
        along = forward_ad.unpack_dual(looked).tangent
    assert torch.equal(along, windowed.derivative(z, window))


def test_large_and_small_calls_agree():
    it = table("fitted")
    z = points(it, torch.float64, 40000)
    whole = primitives.interpolate(z, it)
    few = torch.stack([primitives.interpolate(part, it) for part in z[:50]])
    assert (whole[:50] - few).abs().max() <= 2 * rounding_bound(it, torch.float64)
    strided = z[:40000].reshape(2, -1)[:, ::3]
    assert torch.equal(primitives.interpolate(strided, it), whole[:40000].reshape(2, -1)[:, ::3])


def test_nan_stays_nan_and_harms_nothing_else():
    it = table("fitted")
    z = torch.zeros(20000, dtype=torch.float64)
    z[7] = math.nan
    out = primitives.interpolate(z, it)
    assert out[7].isnan()
    assert out.isnan().sum() == 1


def test_half_precision_is_looked_up_in_float32():
    it = table("fitted")
    z = points(it, torch.bfloat16, 30000)
    expected = primitives.interpolate(z.float(), it).bfloat16()
    assert torch.equal(primitives.interpolate(z, it), expected)


SHAPES = {
    "one": ((7, 3), (7,), (3,)),
    "many w": ((5000, 3), (5000,), (4, 3)),
    "many y": ((50, 3), (2, 4, 50), (3,)),
    "many x": ((2, 50, 3), (50,), (2, 3)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_samples(kind, shapes, labelled):
    it = table(kind)
    x, y, w = (torch.rand(s, dtype=torch.float64) - 0.5 for s in shapes)
    labels = torch.rand(shapes[1], dtype=torch.float64) if labelled else None
    z = (x @ w[..., None])[..., 0] - y
    looked = primitives.plain_interpolate(z, it) - (0 if labels is None else labels)
    expected = (looked[..., None, :] @ x)[..., 0, :]
    found = primitives.residual_sum(x, y, w, it, labels)
    assert found.shape == expected.shape
    assert found.dtype == torch.float64
    allowed = x.shape[-2] * (rounding_bound(it, x.dtype) + 1e-13 * it.size)
    assert (found - expected).abs().max() <= allowed


def test_few_samples_are_summed_in_float64_and_many_in_blocks():
    assert sum_block(torch.float32, 100) == 1
    assert sum_block(torch.float32, 10**6) > 1
    wide, blocks = (rounding_of("fused").sum_error(torch.float32, n) for n in (100, 10**6))
    assert blocks > wide


def test_block_sums_keep_their_bound():
    it = table("line")
    torch.manual_seed(1)
    x, y = torch.rand(20000, 5), torch.rand(20000)
    w = torch.rand(5)
    looked = primitives.interpolate(x @ w - y, it)
    found = primitives.residual_sum(x, y, w, it) / len(x)
    expected = looked.double() @ x.double() / len(x)
    row = (looked.double().abs()[:, None] * x.double().abs()).mean(0).max()
    error = rounding_of("fused").sum_error(torch.float32, len(x)) * row
    # The residual is computed in chunks, which may round it differently.
    slack = rounding_bound(it, torch.float32) + 8 * 6e-8 * 5
    assert (found - expected).abs().max() <= error + slack


def test_bfloat16_samples_are_taken_as_they_are():
    it = table("fitted")
    x = (torch.rand(300, 4) - 0.5).bfloat16()
    y, w = torch.rand(300), torch.rand(4)
    found, expected = (primitives.residual_sum(t, y, w, it) for t in (x, x.float()))
    # The same numbers by two ways; rounded to bfloat16 anywhere they would be 1e-3 apart.
    each = 2 * rounding_bound(it, torch.float32) + 100 * torch.finfo(torch.float32).eps
    assert (found - expected).abs().max() <= 300 * each < 300 * 1e-4


def test_projections_and_attention_are_the_plain_ones():
    it = table("line")
    x = torch.rand(2, 6, 4, dtype=torch.float64) - 0.5
    weights = [torch.rand(r, 4, dtype=torch.float64) for r in (3, 3, 2)]
    looked = primitives.project(x, weights, it)
    for found, weight in zip(looked, weights, strict=True):
        assert (found - x @ weight.mT).abs().max() <= it.error + rounding_bound(it, x.dtype)
    k, q, v = looked
    assert torch.equal(primitives.attention(q, k, v), torch.softmax(q @ k.mT, -1) @ v)
