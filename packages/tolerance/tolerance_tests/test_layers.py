"""Linear maps, norms and sums: kernels that round one way only keep within their bounds."""

import math

import pytest
import torch
import torch.nn.functional as F

import iceform_tolerance as tolerances
from iceform.errors import BoundError, DtypeError, IceformError, ShapeError
from iceform_tolerance.kernels import round_to
from iceform_tolerance.kind import KernelKind

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def rows(dtype, offset, seed=0, n=96):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(12, n, generator=generator) + offset).to(dtype)


def summed(terms, mode):
    """Term by term in float32."""
    form, total = KernelKind.of(torch.float32).wide, 0 * terms[..., 0]
    for term in terms.unbind(-1):
        total = round_to(total + term, form, mode)
    return total


def within(out, exact, allowed, loosest):
    ratio = (out.double() - exact).abs() / allowed
    assert bool((ratio <= 1).all()), float(ratio.max())
    assert float(ratio.max()) >= loosest, float(ratio.max())


@pytest.mark.parametrize("mode", ["zero", "away"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_sums_and_linear_maps(dtype, offset, mode):
    x = rows(dtype, offset)
    out = summed(x.double(), mode).to(dtype)
    within(out, x.double().sum(-1), tolerances.total(x, dtype=dtype), 0.003)
    weight, bias = rows(dtype, offset, 1), rows(dtype, 0, 2)[0, :12]
    out = (summed(x.double()[:, None] * weight.double(), mode) + bias.double()).to(dtype)
    exact = F.linear(x.double(), weight.double(), bias.double())
    within(out, exact, tolerances.linear(x, weight, bias, dtype=dtype), 0.003)
    within(F.linear(x, weight, bias), exact, tolerances.linear(x, weight, bias, dtype=dtype), 0)


@pytest.mark.parametrize("mode", ["zero", "away"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_norms(dtype, offset, mode):
    form = KernelKind.of(torch.float32).wide

    def fl(x):
        return round_to(x, form, mode)

    x, gain, shift = rows(dtype, offset), rows(dtype, 1, 3)[0], rows(dtype, 0, 4)[0]
    wide, n = x.double(), x.shape[-1]
    root = fl(fl(fl(summed(fl(wide.square()), mode) / n) + 1e-6).sqrt())[:, None]
    halfway = fl(wide / root).to(dtype).double()  # as Llama's norm rounds it
    for out in (fl(fl(wide / root) * gain.double()), fl(halfway * gain.double())):
        exact = F.rms_norm(wide, (n,), gain.double(), 1e-6)
        allowed = tolerances.rms_norm(x, gain, eps=1e-6, dtype=dtype)
        within(out.to(dtype), exact, allowed, 0.003)
    mean = fl(summed(wide, mode) / n)[:, None]
    away = fl(wide - mean)
    root = fl(fl(fl(summed(fl(away.square()), mode) / n) + 1e-5).sqrt())[:, None]
    out = fl(fl(fl(away / root) * gain.double()) + shift.double()).to(dtype)
    exact = F.layer_norm(wide, (n,), gain.double(), shift.double(), 1e-5)
    allowed = tolerances.layer_norm(x, gain, shift, eps=1e-5, dtype=dtype)
    within(out, exact, allowed, 0.003)
    within(F.layer_norm(x, (n,), gain, shift, 1e-5), exact, allowed, 0)


def test_a_variance_of_moments_needs_its_own_bound():
    x = rows(torch.float32, 300.0)
    form, wide, n = KernelKind.of(torch.float32).wide, x.double(), x.shape[-1]

    def fl(value):
        return round_to(value, form, "zero")

    mean = fl(summed(wide, "zero") / n)[:, None]
    square = fl(summed(fl(wide.square()), "zero") / n)[:, None]
    variance = fl(square - fl(mean.square()))
    out = fl(fl(wide - mean) / fl(fl(variance.clamp(min=0) + 1e-5).sqrt()))
    exact = F.layer_norm(wide, (n,), eps=1e-5)
    off = (out - exact).abs()
    centred = tolerances.layer_norm(x, eps=1e-5, dtype=torch.float32)
    moments = tolerances.layer_norm(x, eps=1e-5, dtype=torch.float32, moments=True)
    assert bool((off > centred).any())
    assert bool((off <= moments).all())


def test_rounded_inputs_count():
    x = rows(torch.float64, 1.0) * 1.1
    out = F.rms_norm(x.bfloat16(), (96,), eps=1e-6)
    within(
        out,
        F.rms_norm(x, (96,), eps=1e-6),
        tolerances.rms_norm(x, eps=1e-6, dtype=torch.bfloat16),
        0.1,
    )
    out = F.layer_norm(x.bfloat16(), (96,), eps=1e-6)
    exact = F.layer_norm(x, (96,), eps=1e-6)
    within(out, exact, tolerances.layer_norm(x, eps=1e-6, dtype=torch.bfloat16), 0.05)


def test_bad_input():
    x = rows(torch.float32, 0.0)
    bad = [
        (ShapeError, lambda: tolerances.total(x[:, :0], dtype=torch.float32)),
        (ShapeError, lambda: tolerances.linear(x, x[:, 1:], dtype=torch.float32)),
        (ShapeError, lambda: tolerances.linear(x, x, x[0, 1:], dtype=torch.float32)),
        (ShapeError, lambda: tolerances.rms_norm(x, x[0, 1:], eps=1e-6, dtype=torch.float32)),
        (DtypeError, lambda: tolerances.rms_norm([1.0], eps=1e-6, dtype=torch.float32)),
        (DtypeError, lambda: tolerances.linear(x.numpy(), x, dtype=torch.float32)),
        (BoundError, lambda: tolerances.rms_norm(x, eps=-1.0, dtype=torch.float32)),
        (BoundError, lambda: tolerances.total(x * math.nan, dtype=torch.float32)),
        (BoundError, lambda: tolerances.total(x * 1e6, dtype=torch.float16)),
        (
            BoundError,
            lambda: tolerances.attention_norms(
                1.0, 1.0, 1.0, keys=2, dim=2, scale=math.nan, dtype=torch.float32
            ),
        ),
    ]
    for error, call in bad:
        with pytest.raises(error) as caught:
            call()
        assert isinstance(caught.value, IceformError)
