"""gpt2: stochastic gradient descent for any bounded f, within its certificate."""

import pytest
import torch

import iceform as ice
from iceform import targets

from .stock import assert_within, exact, off, written

SPECS = {
    "gpt2": targets.StochasticDescent(3, 6),
    "llama": targets.StochasticDescent(2, 4, dtype="float32", lr=0.2, span=2.0),
}
LOSSES = ({"f": "tanh(z)"}, {"f": "sigmoid(z) - 0.5", "lr": 0.8})


@pytest.fixture(scope="module", params=SPECS)
def stock(request, tmp_path_factory):
    return written(request.param, SPECS[request.param], tmp_path_factory.mktemp(request.param))


def data(dim, n, seed):
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, dim, dtype=torch.float64) - 1
    return x, (x @ torch.randn(dim).double() / 2 + 0.2 * torch.randn(n).double()).clamp(-1, 1)


def attack(model, networks, count):
    spec = model.spec
    for seed in range(count):
        n = 1 + seed * 7 % 32
        x, y = data(spec.dim, n, seed)
        order = torch.randint(n, (spec.steps,)).tolist()
        given = LOSSES[seed % len(LOSSES)]
        certified, _ = assert_within(model, networks, x, y, order=order, **given)
        assert certified <= (1e-10 if spec.dtype == "float64" else 2e-4)


def test_random_data_in_random_order(stock):
    attack(*stock, 16)


def test_what_is_certified_in_float32():
    spec = targets.StochasticDescent(2, 4, dtype="float32", lr=0.2, span=2.0)
    for n in (8, 32):
        x, y = data(2, n, n)
        assert spec.certificate(spec.domain(x, y)).error <= 1e-4


def test_hundreds_of_samples_with_the_same_weights(stock):
    model, networks = stock
    assert_within(model, networks, *data(model.spec.dim, 400, 1))


def test_the_order_is_in_the_prompt(stock):
    model, networks = stock
    x, y = data(model.spec.dim, 5, 3)
    there = list(range(model.spec.steps))
    there = [i % 5 for i in there]
    back = there[::-1]
    assert (
        float((exact(model, x, y, order=there) - exact(model, x, y, order=back)).abs().max()) > 1e-3
    )
    for order in (there, back):
        assert_within(model, networks, x, y, order=order)


def test_the_certificate_has_teeth(tmp_path_factory):
    model, _ = written("gpt2", SPECS["gpt2"], tmp_path_factory.mktemp("teeth"))
    network = targets.network(model)
    x, y = data(3, 8, 4)
    with torch.no_grad():
        network.h[3].attn.c_proj.weight[0] *= 1 + 1e-9
    assert off(model, network, x, y) > model.certificate(x, y).error


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 2, 3, 4, 9], [-1] * 6])
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises(ice.errors.ShapeError, match="order must name 6 of the samples 0 to 4"):
        SPECS["gpt2"].tokens(*data(3, 5, 0), order=order)
