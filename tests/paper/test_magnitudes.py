"""Bounds of every size in either dtype: what is certified holds, or is refused by name."""

import random

import pytest
import torch

import iceform as ice

F32, F64 = torch.float32, torch.float64
SIZES = {
    F32: (1e-43, 1e-40, 1e-36, 1e-30, 1e-18, 1e-10, 1.0, 1e10, 1e18, 1e30, 1e37),
    F64: (1e-320, 1e-300, 1e-160, 1e-30, 1.0, 1e30, 1e150, 1e300),
}
ON_SAMPLES = ((3, 2), (3,), (2,))
MAKERS = {
    "map of a line": (
        lambda **o: ice.paper.ResidualMap("squared", dim=2, samples=3, **o),
        ON_SAMPLES,
    ),
    "gradients": (
        lambda **o: ice.paper.SampleGradients("squared", dim=2, samples=3, **o),
        ON_SAMPLES,
    ),
    "step": (
        lambda **o: ice.paper.GradientStep("squared", 0.25, 0.5, dim=2, samples=3, **o),
        ON_SAMPLES,
    ),
    "descent": (
        lambda bound, **o: ice.paper.GradientDescent(
            "squared", 3, 0.1, dim=2, samples=3, bound=bound, w_bound=4 * bound, **o
        ),
        ON_SAMPLES,
    ),
    "layer": (
        lambda **o: ice.paper.LinearLayer(2, 3, samples=4, weight_bound=1.0, **o),
        ((4, 2), (3, 2)),
    ),
    "head": (
        lambda **o: ice.paper.AttentionHead(2, 2, 2, 4, weight_bound=1.0, **o),
        ((4, 2), (2, 2), (2, 2), (2, 2)),
    ),
}


def drawn(shapes, bounds, dtype, seed, *, small):
    """Entries up to their bounds; or far below them, subnormal ones among them."""
    g = torch.Generator().manual_seed(seed)
    for shape, bound in zip(shapes, bounds, strict=True):
        u = 2 * torch.rand(shape, generator=g, dtype=F64) - 1
        if small:
            u = u * 2.0 ** -torch.randint(0, 60, shape, generator=g).double()
        yield (u * bound).to(dtype).clamp(-bound, bound)


def holds(em, inputs):
    try:
        verdict = em.certificate.verify(*inputs)
    except ice.errors.BoundError:  # an iterate leaves the domain
        return
    assert verdict, (em.certificate.error, verdict.measured)
    if hasattr(em, "certify") and len(inputs) == 4:
        assert verdict.measured <= em.certify(*inputs).error


@pytest.mark.parametrize("backend", ["fused", "literal"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(dtype, bound) for dtype, sizes in SIZES.items() for bound in sizes]
)
@pytest.mark.parametrize("name", MAKERS)
def test_bounds_of_any_size(name, dtype, bound, backend):
    """float32 certified 2e-62 where the answer was off by 2.7e-61, and 5e48 where it was inf."""
    make, shapes = MAKERS[name]
    try:
        em = make(bound=bound, eps=None, dtype=dtype, backend=backend)
    except (ice.errors.BoundError, ice.errors.PrecisionError):
        if 1e-12 < bound < 1e12:
            raise
        return
    limits = [bound] + [1.0 if name in ("layer", "head") else bound] * (len(shapes) - 1)
    for seed in range(2):
        holds(em, list(drawn(shapes, limits, dtype, seed, small=bool(seed))))


@pytest.mark.parametrize("seed", range(30))
def test_samples_and_coefficients_of_different_sizes(seed):
    draw = random.Random(seed)
    dtype = draw.choice([F32, F64])
    x, y, w = (10.0 ** draw.uniform(-38, 38) for _ in range(3))
    bounds = {"bound": x, "y_bound": y, "w_bound": w}
    make = draw.choice([MAKERS["map of a line"], MAKERS["gradients"], MAKERS["step"]])[0]
    try:
        em = make(**bounds, eps=None, dtype=dtype, backend=draw.choice(["fused", "literal"]))
    except (ice.errors.BoundError, ice.errors.PrecisionError):
        return
    for small in (False, True):
        holds(em, list(drawn(ON_SAMPLES, (x, y, w), dtype, seed, small=small)))


AT_THE_BORDER = {
    "split line": lambda b: ice.paper.TruncatedLinear(
        -b, b, 2, dim=2, samples=3, bound=b, dtype=F32
    ),
    "split head": lambda b: ice.paper.SplitAttentionHead(2, 2, 2, 4, bound=b, dtype=F32),
    "hopfield": lambda b: ice.paper.HopfieldMap(
        torch.tanh, [0.5, 0.25], samples=3, bound=b, eps=None, dtype=F32
    ),
    "ridge": lambda b: ice.paper.RidgeRegression(
        1.0, dim=2, samples=3, bound=b, radius=3.0, eps=None, dtype=F32
    ),
    "least squares": lambda b: ice.paper.LeastSquares(
        condition=1.0, dim=1, samples=3, bound=b, radius=3.0, eps=None, dtype=F32
    ),
    **{
        name: lambda b, make=make: make(bound=b, eps=None, dtype=F32)
        for name, (make, _) in MAKERS.items()
    },
}


@pytest.mark.parametrize("name", AT_THE_BORDER)
def test_data_may_be_as_large_as_their_bound_where_float32_rounds_it_up(name):
    bound = 0.6
    assert float(torch.tensor(bound, dtype=F32)) > bound
    em = AT_THE_BORDER[name](bound)
    inputs = [torch.full(shape, bound, dtype=F32) for shape in em.shapes.values()]
    assert em.certificate.verify(*inputs).holds
