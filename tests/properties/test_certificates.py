"""No certificate is ever broken: random functions, sizes, bounds and data, and an adversary."""

import statistics

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import iceform as ice
from tests.conformance import assert_within, uniform
from tests.properties.adversary import hardest_inputs, targeted_inputs

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    max_examples=4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SMOOTH = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "bump": lambda z: torch.exp(-z * z),
    "runge": lambda z: 1 / (1 + z * z),
    "softplus": torch.nn.functional.softplus,
    "cubic": lambda z: 0.05 * z**3 - z,
}
KINKED = {
    "relu": torch.relu,
    "abs": torch.abs,
    "clamp": lambda z: z.clamp(-0.5, 1.0),
    "shrink": lambda z: torch.nn.functional.softshrink(z, 0.5),
    "leaky": lambda z: torch.where(z > 0.25, z, 0.1 * z + 0.225),
}


@st.composite
def smooth_functions(draw):
    a, b = draw(st.floats(0.2, 2)), draw(st.floats(-1, 1))
    f, g = (SMOOTH[draw(st.sampled_from(sorted(SMOOTH)))] for _ in range(2))
    how = draw(st.sampled_from(["plain", "sum", "nested", "product"]))
    return {
        "plain": lambda z: f(a * z + b),
        "sum": lambda z: f(a * z) - 0.5 * g(z + b),
        "nested": lambda z: g(torch.tanh(f(a * z + b))),
        "product": lambda z: torch.tanh(f(z)) * torch.sin(a * z + b),
    }[how]


@st.composite
def kinked_functions(draw):
    f = KINKED[draw(st.sampled_from(sorted(KINKED)))]
    g = SMOOTH[draw(st.sampled_from(["tanh", "sigmoid", "sin"]))]
    how = draw(st.sampled_from(["plain", "sum", "after"]))
    return {
        "plain": f,
        "sum": lambda z: f(z) + 0.3 * g(z),
        "after": lambda z: g(f(z)),
    }[how]


def draw_inputs(em, batch, bound):
    n, d = em.domain.samples, em.domain.dim
    return tuple(
        uniform(*shape, dtype=em.dtype, bound=bound)
        for shape in ((batch, n, d), (batch, n), (batch, d))
    )


def attack(em, bound):
    """Random data, corners, the look-up's own worst points, then gradient ascent from all."""
    certified = em.certificate.error
    inputs = draw_inputs(em, 48, bound)
    corners = tuple(bound * t.sign() for t in inputs)
    aimed = targeted_inputs(em, bound)
    starts = tuple(torch.cat(ts) for ts in zip(inputs, corners, aimed, strict=True))
    assert_within(em(*starts), em.reference(*starts), certified, "random, corners and aimed")
    found, where = hardest_inputs(em, starts, bound=bound)
    assert found <= certified, f"the adversary reaches {found:.3e} > {certified:.3e} at {where}"
    return found


@SETTINGS
@given(
    f=smooth_functions(),
    dim=st.integers(1, 4),
    samples=st.integers(1, 5),
    bound=st.floats(0.3, 1.5),
    exponent=st.integers(-9, -2),
    backend=st.sampled_from(["fused", "literal"]),
)
def test_smooth_functions(f, dim, samples, bound, exponent, backend):
    try:
        em = ice.paper.ResidualMap(
            f, dim=dim, samples=samples, bound=bound, eps=10.0**exponent, backend=backend
        )
    except ice.errors.PrecisionError:
        reject()  # too many of these fail the test
    attack(em, bound)


@SETTINGS
@given(
    f=kinked_functions(),
    dim=st.integers(1, 3),
    samples=st.integers(1, 4),
    bound=st.floats(0.5, 1.5),
    exponent=st.integers(-4, -1),
)
def test_kinked_functions(f, dim, samples, bound, exponent):
    try:
        em = ice.paper.ResidualMap(f, dim=dim, samples=samples, bound=bound, eps=10.0**exponent)
    except ice.errors.PrecisionError:
        reject()  # too many of these fail the test
    attack(em, bound)


@SETTINGS
@given(
    f=st.one_of(smooth_functions(), kinked_functions()),
    dim=st.integers(1, 3),
    samples=st.integers(1, 4),
    tokens=st.integers(9, 120),
    bound=st.floats(0.5, 1.5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_hard_regime(f, dim, samples, tokens, bound, dtype):
    em = ice.paper.ResidualMap(
        f, dim=dim, samples=samples, bound=bound, eps=None, tokens=tokens, regime="hard",
        dtype=dtype,
    )  # fmt: skip
    attack(em, bound)


@SETTINGS
@given(
    f=smooth_functions(),
    dim=st.integers(1, 4),
    bound=st.floats(0.5, 1.2),
    backend=st.sampled_from(["fused", "literal"]),
)
def test_float32_at_its_best(f, dim, bound, backend):
    em = ice.paper.ResidualMap(
        f, dim=dim, samples=3, bound=bound, eps=None, dtype=torch.float32, backend=backend
    )
    attack(em, bound)


@SETTINGS
@given(
    loss=st.sampled_from(["squared", "absolute", "huber", "quantile"]),
    schedule=st.sampled_from(["constant", "nesterov", "chebyshev"]),
    steps=st.integers(1, 12),
    l2=st.floats(0.05, 0.5),
    dim=st.integers(1, 3),
    samples=st.integers(1, 6),
)
def test_descent(loss, schedule, steps, l2, dim, samples):
    em = ice.paper.GradientDescent(
        loss, steps, l2=l2, schedule=schedule, dim=dim, samples=samples, eps=None, w_bound=60.0,
        tokens=None if loss == "squared" else 49,
    )  # fmt: skip
    inputs = draw_inputs(em, 64, 1.0)
    try:
        got = em(*inputs)
    except ice.errors.BoundError:
        reject()  # an iterate left the domain
    assert_within(got, em.reference(*inputs), em.certificate.error, f"{loss} {schedule}")


def test_spectral_certificates_are_tight():
    """Median of certified over the largest error an adversary finds, over many problems."""
    names = ["tanh", "runge", "cubic", "softplus", "relu"]
    ratios = {}
    for name in names:
        f = {**SMOOTH, **KINKED}[name]
        exponents = (-3, -9) if name in SMOOTH else (-2, -4)
        for exponent in exponents:
            em = ice.paper.ResidualMap(f, dim=3, samples=3, bound=1.0, eps=10.0**exponent)
            ratios[name, exponent] = em.certificate.error / attack(em, 1.0)
    table = ", ".join(f"{n} 1e{e}: {r:.1f}" for (n, e), r in ratios.items())
    print(f"\ncertified over found: {table}")
    assert statistics.median(ratios.values()) <= 20, table


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_million_inputs(dtype):
    """0 violations in 10^6 instances, every loss of the library."""
    per_loss = 10**6 // (2 * len(ice.expressions.LOSSES)) + 1
    for name in ice.expressions.LOSSES:
        em = ice.paper.SampleGradients(name, dim=3, samples=1, eps=None, dtype=dtype, tokens=49)
        x, y, w = draw_inputs(em, per_loss, 1.0)
        if em.loss.kind == "margin":
            y = torch.where(y > 0, 1.0, -1.0).to(dtype)
        if em.loss.kind == "glm":
            y = y.abs()
        assert_within(em(x, y, w), em.reference(x, y, w), em.certificate.error, name)
