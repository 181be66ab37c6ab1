"""bert: generalised linear models, two layers a step, within their certificates."""

import pytest
import torch

import iceform as ice
from iceform import targets

from .stock import assert_within, exact, off, written

SPEC = targets.GeneralDescent(3, 4, positions=256)
LOSSES = (
    {"f": "tanh(z)", "lr": 0.5, "reach": 3.0},
    {"f": "sigmoid(z) - 0.5", "lr": 1.0, "reach": 3.0},
    {"f": "0.3*sin(z)", "lr": 0.7, "reach": 3.0},  # neither monotone nor of a convex loss
)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return written("bert", SPEC, tmp_path_factory.mktemp("general"))


def data(n, seed):
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, 3, dtype=torch.float64) - 1
    w = torch.randn(3, dtype=torch.float64) / 2
    return x, (x @ w + 0.2 * torch.randn(n).double()).clamp(-1, 1)


def attack(model, networks, count):
    for seed in range(count):
        x, y = data(1 + seed * 5 % 32, seed)
        certified, _ = assert_within(model, networks, x, y, **LOSSES[seed % len(LOSSES)])
        assert certified <= 1e-10


def test_random_data_and_three_losses(stock):
    attack(*stock, 24)


def test_one_checkpoint_for_every_loss_step_and_number_of_samples(stock):
    model, networks = stock
    digest = targets.attest(model, networks["eager"]).weights
    for n, given in ((4, LOSSES[0]), (90, LOSSES[1])):
        assert_within(model, networks, *data(n, n), **given)
        assert targets.attest(model, networks["eager"]).weights == digest


def test_hard_data(stock):
    model, networks = stock
    ones, line = torch.ones(8, 3).double(), torch.linspace(-1, 1, 8).double()
    for x, y in (
        (ones, 0 * line + 1),
        (ones, line),
        (line[:, None] * ones, line.sign()),
        (ones[:1], -line[:1]),
        (0 * ones, line),
        (1e-8 * ones, 1e-8 * line),
    ):
        assert_within(model, networks, x, y, lr=0.4)


def test_another_table_is_another_answer(stock):
    """The network computes with the table in its prompt, not with what we say about it."""
    model, networks = stock
    x, y = data(12, 3)
    given = {"lr": 0.5, "reach": 3.0}
    right = exact(model, x, y, f="tanh(z)", **given)
    with torch.no_grad():
        hidden = networks["eager"](inputs_embeds=model.prompt(x, y, f="sigmoid(z) - 0.5", **given))
    assert float((model.read(hidden.last_hidden_state) - right).abs().max()) > 1e-3


def test_the_certificate_has_teeth(stock):
    model, _ = stock
    network = targets.network(model)
    x, y = data(12, 4)
    given = LOSSES[0]
    with torch.no_grad():
        network.encoder.layer[3].attention.output.dense.weight.mul_(1 + 1e-8)
    assert off(model, network, x, y, **given) > model.certificate(x, y, **given).error


def test_residuals_beyond_the_tables_are_not_certified(stock):
    model, _ = stock
    x, y = data(10, 5)
    assert model.certificate(x, 3.5 * y.sign(), **LOSSES[0]).error == float("inf")
    with pytest.raises(ice.errors.PrecisionError, match="nothing is certified for these data"):
        ice.check(model.path, x, 3.5 * y.sign(), **LOSSES[0])


def test_a_causal_mask_forbids_it(tmp_path):
    with pytest.raises(
        ice.errors.TargetError, match="a causal mask hides the state from the samples"
    ):
        targets.write("gpt2", SPEC, tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_function_without_a_bound_is_refused():
    with pytest.raises(ice.IceformError):
        SPEC.tokens(*data(4, 0), f="1/z")
