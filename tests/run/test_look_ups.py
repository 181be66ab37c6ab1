"""Look-ups and sums of them, every way that there is, against every token's own softmax."""

import math

import pytest
import torch

from iceform.run import primitives, rounding_of, windowed
from iceform.tables.local import tail_mass
from tests.run.tables import KINDS, UNIFORM, points, rounding_bound, table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float64, torch.float32)
BOTH = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def by_kernels():
    triton = pytest.importorskip("triton", reason="the gpu extra is not installed")
    from iceform.run import triton as kernels

    assert triton is not None
    if DEVICE == "cpu" and not kernels.interpreted():
        pytest.skip("Triton was imported before its interpreter was asked for")
    return kernels


def looped(what, z, it):
    if windowed._compiler() is None:
        pytest.skip("there is no C compiler on this machine")
    window = windowed.window_of(it, z.dtype)
    return windowed.looped(what, z, window.kind, window.operands(z.dtype, z.device))


def by_operations(what, z, it):
    window = windowed.window_of(it, z.dtype)
    return windowed._formula(what, window.kind)(z, *window.operands(z.dtype, z.device))


def slopes_by_kernels(z, it):
    z = z.to(DEVICE).requires_grad_()
    (found,) = torch.autograd.grad(by_kernels().interpolate(z, it).sum(), z)
    return found.cpu()


LOOK_UPS = {
    "every token": primitives.plain_interpolate,
    "operations": lambda z, it: by_operations("look_up", z, it),
    "in C": lambda z, it: looped("look_up", z, it),
    "kernels": lambda z, it: by_kernels().interpolate(z.to(DEVICE), it).cpu(),
}
SLOPES = {
    "operations": lambda z, it: by_operations("derivative", z, it),
    "in C": lambda z, it: looped("derivative", z, it),
    "kernels": slopes_by_kernels,
}
WINDOWED = ("operations", "in C")


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", LOOK_UPS)
def test_look_ups_are_within_the_declared_rounding(way, kind, dtype):
    if kind not in UNIFORM and way in WINDOWED:
        pytest.skip("graded tokens have no window")
    it = table(kind)
    z = points(it, dtype, 701 if way == "kernels" else 5001)  # no multiple of what goes together
    off = LOOK_UPS[way](z, it).double() - primitives.plain_interpolate(z.double(), it)
    assert off.abs().max() <= rounding_bound(it, dtype), float(z[off.abs().argmax()])


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", SLOPES)
def test_slopes_are_those_of_autograd(way, kind, dtype):
    """The tail again, times the steepest slope of a logit, and rounding."""
    it = table(kind)
    if it.uniform:
        half = windowed.window_of(it, dtype).half
        slope = 2 * it.sharpness / it.grid.spacing * it.tokens
        allowed = slope * (tail_mass(it.sharpness, half) * it.swing + rounding_bound(it, dtype))
    elif way in WINDOWED or dtype == torch.float32:
        pytest.skip("graded tokens have no window, and are for float64")
    z = points(it, dtype, 100 if way == "kernels" else 3000)
    wide = z.double().requires_grad_()
    (want,) = torch.autograd.grad(primitives.plain_interpolate(wide, it).sum(), wide)
    if not it.uniform:
        allowed = 1e-6 * float(want.abs().max())
    # Half way between tokens either may be the nearest: what is left out differs.
    assert (SLOPES[way](z, it).double() - want).abs().max() <= 2 * allowed


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy, in the interpreter
@pytest.mark.parametrize("way", [way for way in LOOK_UPS if way != "every token"])
def test_what_is_not_a_number_stays_none_and_harms_nothing_else(way):
    z = torch.zeros(2000, dtype=torch.float64)
    z[7] = math.nan
    assert LOOK_UPS[way](z, table("fitted")).isnan().nonzero().tolist() == [[7]]


SHAPES = {
    "one": ((7, 3), (7,), (3,)),
    "a feature": ((1, 1), (1,), (1,)),
    "wide": ((33, 200), (33,), (200,)),
    "wider": ((9, 1000), (9,), (1000,)),
    "many w": ((500, 3), (500,), (4, 3)),
    "many y": ((50, 3), (2, 4, 50), (3,)),
    "many x": ((2, 50, 3), (50,), (2, 3)),
}
SUMS = {
    "as it comes": primitives.residual_sum,
    "kernels": lambda *given: by_kernels().residual_sum(*given),
}


@pytest.mark.sampled(101)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", SUMS)
def test_sums_over_samples(way, kind, labelled, shapes, dtype):
    """Each of z, with d products; its look-up; and the product with x of at most 1/sqrt(d).

    Samples in bfloat16 beside float32 are taken as they are.
    """
    it, device = table(kind), DEVICE if way == "kernels" else "cpu"
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    if way == "kernels" and shapes == "many y":
        pytest.skip("the kernels take one axis of labels")
    n, d = SHAPES[shapes][0][-2:]
    x, y, w = ((torch.rand(s, dtype=wide) - 0.5).to(device) for s in SHAPES[shapes])
    x = (x / d**0.5).to(dtype)
    labels = torch.rand(y.shape, dtype=wide).to(device) if labelled else None
    z = (x.double() @ w.double()[..., None])[..., 0] - y.double()
    looked = primitives.plain_interpolate(z, it) - (0 if labels is None else labels.double())
    want = (looked[..., None, :] @ x.double())[..., 0, :]
    found = SUMS[way](x, y, w, it, labels)
    assert (found.shape, found.dtype) == (want.shape, torch.float64)
    unit, size = torch.finfo(wide).eps / 2, it.size + labelled
    each = rounding_bound(it, wide) + it.steepness * (d + 4) * unit * (d**0.5 + 1)
    if not it.uniform:
        each += it.rounding(rounding_of("fused").model(wide, it, d**0.5 + 1, d))
    assert (found - want).abs().max() <= n * (each + 4 * unit * size) / d**0.5
