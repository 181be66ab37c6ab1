"""Windows by recurrence against every token's own softmax, and against what is proven of them."""

import pytest
import torch
from torch.autograd import forward_ad

from iceform.run import primitives, rounding_of, windowed
from iceform.run.windowed import sum_block
from iceform.tables import Interpolant
from iceform.tables.local import half_width, tail_mass
from tests.run.tables import points, rounding_bound, table

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


def test_half_precision_is_looked_up_in_float32():
    it = table("fitted")
    z = points(it, torch.bfloat16, 30000)
    expected = primitives.interpolate(z.float(), it).bfloat16()
    assert torch.equal(primitives.interpolate(z, it), expected)


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


def test_projections_and_attention_are_the_plain_ones():
    it = table("line")
    x = torch.rand(2, 6, 4, dtype=torch.float64) - 0.5
    weights = [torch.rand(r, 4, dtype=torch.float64) for r in (3, 3, 2)]
    looked = primitives.project(x, weights, it)
    for found, weight in zip(looked, weights, strict=True):
        assert (found - x @ weight.mT).abs().max() <= it.error + rounding_bound(it, x.dtype)
    k, q, v = looked
    assert torch.equal(primitives.attention(q, k, v), torch.softmax(q @ k.mT, -1) @ v)
