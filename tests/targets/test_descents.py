"""gpt2: full-batch descent on least squares within its certificate, random data and hard data."""

from dataclasses import replace

import pytest
import torch

import iceform as ice
from iceform import targets

from .stock import assert_within, exact, off, written

SPECS = {  # name: what is written as gpt2, or as the name says
    "float64": targets.LinearDescent(3, 6, positions=520),
    "float32": targets.LinearDescent(2, 8, reach=1.5, pairs=8, lr=0.25, dtype="float32"),
    "chebyshev": targets.LinearDescent.chebyshev(3, 5, 6.0, lr=0.4),
    "llama": targets.LinearDescent(2, 6, reach=1.5, lr=0.25, dtype="float32"),
}
PARAMETERS = (
    {},
    {"lr": 0.3, "penalty": 0.2},
    {"lr": 0.2, "momentum": 0.7},
    {"lr": 0.15, "penalty": 1.5, "momentum": 0.3},
)


@pytest.fixture(scope="module", params=SPECS)
def stock(request, tmp_path_factory):
    name = "llama" if request.param == "llama" else "gpt2"
    return written(name, SPECS[request.param], tmp_path_factory.mktemp(request.param))


def data(dim, n, seed):
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, dim, dtype=torch.float64) - 1
    y = (x @ torch.randn(dim, dtype=torch.float64) / dim + 0.2 * torch.randn(n).double()).clamp(
        -1, 1
    )
    return x, y


def attack(model, networks, count):
    dim = model.spec.dim
    for seed in range(count):
        n = 1 + seed * 7 % 32
        x, y = data(dim, n, seed)
        assert_within(model, networks, x, y, **PARAMETERS[seed % len(PARAMETERS)])


def test_random_data(stock):
    attack(*stock, 24)


@pytest.mark.parametrize("kind", ["float64", "chebyshev"])
def test_what_is_certified_in_float64(tmp_path_factory, kind):
    spec = SPECS[kind]
    assert spec.certificate(spec.example_domain(), lr=1 / spec.dim).error <= 1e-10


def test_what_is_certified_in_float32(tmp_path_factory):
    model, networks = written("gpt2", SPECS["float32"], tmp_path_factory.mktemp("single"))
    for n in (8, 32):
        certified, measured = assert_within(model, networks, *data(2, n, n))
        assert certified <= 5e-5
        assert measured <= 2e-6


GROUPED = {
    "gpt2": targets.LinearDescent(2, 6, reach=2.0, lr=0.2, dtype="float32", groups=4),
    "bert": targets.GeneralDescent(
        2, 2, positions=1088, dtype="float32", groups=8, lr=0.125, reach=1.5
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_certify_hundreds_of_samples_in_float32(name, tmp_path_factory):
    model, networks = written(name, GROUPED[name], tmp_path_factory.mktemp(name))
    for n in (1, 3, 30, 512):  # fewer than groups, not the same in all, many
        certified, _ = assert_within(model, networks, *data(2, n, n))
        assert certified <= 1e-4
    alone = replace(model.spec, groups=1)
    assert alone.certificate(alone.domain(*data(2, 512, 512))).error > 1e-4


def test_a_llama_is_written_in_float32_alone(tmp_path):
    with pytest.raises(
        ice.errors.TargetError, match="computes its norms and its softmax in float32"
    ):
        targets.write("llama", SPECS["float64"], tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_five_hundred_samples_with_the_same_weights(tmp_path_factory):
    model, networks = written("gpt2", SPECS["float64"], tmp_path_factory.mktemp("many"))
    for seed in range(3):
        certified, measured = assert_within(model, networks, *data(3, 512, seed), lr=0.5)
        assert certified <= 1e-10
        assert measured <= 1e-13


def hard_data(dim):
    """Names and data that strain one term of the account each."""
    n = 12
    sign = torch.ones(n, dtype=torch.float64)
    sign[::2] = -1
    ones = torch.ones(n, dim, dtype=torch.float64)
    line = torch.linspace(-1, 1, n, dtype=torch.float64)
    yield "one direction", ones, sign
    yield "far off the mean", ones - 0.01 * torch.rand(n, dim).double(), torch.ones(n).double()
    yield "alternating", sign[:, None] * ones, sign
    yield "one sample", ones[:1], sign[:1]
    yield "nothing in y", line[:, None] * ones, 0 * sign
    yield "nothing in x", 0 * ones, sign
    yield "tiny", 1e-9 * line[:, None] * ones, 1e-9 * sign
    yield "large labels", line[:, None] * ones, 6 * sign
    yield "one that leads", torch.cat([3 * ones[:1], 0.01 * ones[1:]]), sign
    columns = torch.stack([line**k for k in range(dim)], 1)
    yield "nearly dependent", columns, line**5


def test_hard_data(stock):
    """What is certified holds; what is too much for the reach is not certified at all."""
    model, networks = stock
    certified = 0
    for _, x, y in hard_data(model.spec.dim):
        for lr in (0.01, 0.15, 0.3):
            if model.certificate(x, y, lr=lr).error < float("inf"):
                assert_within(model, networks, x, y, lr=lr)
                certified += 1
    assert certified >= 20


def test_a_step_that_is_too_long_is_certified_as_it_is(stock):
    model, networks = stock
    x, y = data(model.spec.dim, 20, 1)
    top = model.spec.domain(x, y).top
    assert_within(model, networks, x, y, lr=2.2 / top / max(model.spec.schedule))


def test_the_certificate_has_teeth(tmp_path_factory):
    """A weight that is off in its ninth digit is seen in the answer."""
    model, _ = written("gpt2", SPECS["float64"], tmp_path_factory.mktemp("teeth"))
    network = targets.network(model)
    x, y = data(3, 16, 5)
    certified = model.certificate(x, y).error
    weight = network.h[2].attn.c_proj.weight
    with torch.no_grad():
        weight[weight.abs().argmax() // weight.shape[1]] *= 1 + 1e-9
    assert off(model, network, x, y) > certified


def test_the_algorithm_is_the_one_it_says():
    """The reference against plain float64 descent, written again."""
    spec = targets.LinearDescent(3, 6, factors=(1.0, 0.5, 2.0, 1.0, 0.25, 1.0))
    x, y = data(3, 15, 2)
    w = v = torch.zeros(3, dtype=torch.float64)
    for rho in spec.schedule:
        gradient = x.T @ (x @ w - y) / 15 + 0.4 * w
        v = 0.6 * v - rho * 0.3 * gradient
        w = w + v
    found = spec.reference(x, y, lr=0.3, penalty=0.4, momentum=0.6)
    assert float((found - w).abs().max()) < 1e-14


def test_samples_may_come_in_any_order(stock):
    model, networks = stock
    x, y = data(model.spec.dim, 20, 9)
    order = torch.randperm(20)
    certified = model.certificate(x, y).error
    assert float((exact(model, x, y) - exact(model, x[order], y[order])).abs().max()) < 1e-14
    assert off(model, networks["eager"], x[order], y[order]) <= certified


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"lr": 0.0}, ice.errors.BoundError, "lr must be positive"),
        ({"lr": 2.0, "penalty": 0.6}, ice.errors.BoundError, "below 1"),
        ({"momentum": 1.0}, ice.errors.BoundError, "below 1"),
        ({"rate": 0.1}, ice.errors.ProgramError, "no parameter is called 'rate'"),
    ],
)
def test_parameters_that_cannot_be_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        SPECS["float64"].tokens(*data(3, 4, 0), **given)


def test_data_that_do_not_fit_are_refused():
    spec = targets.LinearDescent(3, 2, positions=8)
    x, y = data(3, 7, 0)
    with pytest.raises(ice.errors.ShapeError, match="1 to 6 samples"):
        spec.tokens(x, y)
    with pytest.raises(ice.errors.ShapeError, match=r"X must be \(n, 3\)"):
        spec.tokens(x[:5, :2], y[:5])
    with pytest.raises(ice.errors.BoundError, match="NaN"):
        spec.tokens(x[:5] * float("nan"), y[:5])
    with pytest.raises(ice.errors.DtypeError, match="floating-point"):
        spec.tokens(x[:5].long(), y[:5])
