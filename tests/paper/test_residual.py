"""ResidualMap and SampleGradients."""

import subprocess
import sys
from functools import partial

import pytest
import torch

import iceform as ice
from tests.conformance import assert_within
from tests.paper.suite import OfLosses, draw


class TestResidualMap(OfLosses):
    samples, dim = 4, 3
    permutes_output = True
    make = partial(ice.paper.ResidualMap, torch.tanh, dim=3, samples=4)

    def test_save_and_load(self, emulator, tmp_path):
        inputs = self.draw(emulator, (2,))
        again = ice.load(emulator.save(tmp_path / "saved"))
        assert again.digest == emulator.digest
        assert torch.equal(again(*inputs), emulator(*inputs))
        with pytest.raises(ice.errors.ProgramError, match="loaded without its function"):
            again.reference(*inputs)
        told = ice.load(tmp_path / "saved", f=torch.tanh)
        assert torch.equal(told.reference(*inputs), emulator.reference(*inputs))


class TestHuberGradients(OfLosses):
    captured = False
    samples, dim = 4, 2
    permutes_output = True
    eps = (1e-6, 1e-2, 0.9)
    make = partial(ice.paper.SampleGradients, "huber", dim=2, samples=4)


class TestLogisticGradients(TestHuberGradients):
    make = partial(ice.paper.SampleGradients, "logistic", dim=2, samples=4)


class TestSquaredHingeGradients(TestHuberGradients):
    make = partial(ice.paper.SampleGradients, "squared_hinge", dim=2, samples=4)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("backend", ["literal", "fused"])
@pytest.mark.parametrize("name", sorted(ice.expressions.LOSSES))
def test_every_loss_is_within_its_certificate(name, backend):
    em = ice.paper.SampleGradients(name, dim=3, samples=5, eps=1e-5, backend=backend)
    inputs = draw(em, (64,), em.loss.kind)
    assert_within(em(*inputs), em.reference(*inputs), em.certificate.error, name)


@pytest.mark.parametrize("name", sorted(ice.expressions.LOSSES))
def test_the_derivative_is_the_gradient_of_the_loss_it_names(name):
    """Each library loss, written out, differentiated by autograd."""
    losses = {
        "squared": lambda x, y, w: (x @ w - y) ** 2 / 2,
        "absolute": lambda x, y, w: 0.25 * torch.log(torch.cosh((x @ w - y) / 0.25)),
        "huber": lambda x, y, w: torch.nn.functional.huber_loss(x @ w, y, reduction="none"),
        "quantile": lambda x, y, w: (
            0.25 * torch.nn.functional.softplus((x @ w - y) / 0.25) - 0.5 * (x @ w - y)
        ),
        "logistic": lambda x, y, w: torch.nn.functional.binary_cross_entropy_with_logits(
            x @ w, y, reduction="none"
        ),
        "logistic_margin": lambda x, y, w: torch.nn.functional.softplus(-y * (x @ w)),
        "hinge": lambda x, y, w: 0.25 * torch.nn.functional.softplus((1 - y * (x @ w)) / 0.25),
        "squared_hinge": lambda x, y, w: torch.relu(1 - y * (x @ w)) ** 2 / 2,
        "poisson": lambda x, y, w: torch.exp(x @ w) - y * (x @ w),
    }
    em = ice.paper.SampleGradients(name, dim=3, samples=5, eps=1e-5)
    x, y, w = draw(em, (), em.loss.kind)
    want = torch.autograd.functional.jacobian(lambda w: losses[name](x, y, w), w)
    torch.testing.assert_close(em.reference(x, y, w), want)


def test_reprogramming_changes_the_prompt_and_not_the_weights():
    em = ice.paper.SampleGradients("logistic_margin", dim=2, samples=4, eps=1e-8, backend="literal")
    other = em.reprogram("hinge", eps=None)
    assert other.network is em.network
    inputs = draw(other, (8,), "margin")
    assert_within(other(*inputs), other.reference(*inputs), other.certificate.error, "hinge")
    before, after = em.prompt(*inputs).prompt(), other.prompt(*inputs).prompt()
    changed = {name for name in before.features if not torch.equal(before[name], after[name])}
    assert changed == {"value"}
    with pytest.raises(ice.errors.PrecisionError, match="pass eps=None to accept that"):
        em.reprogram("logistic_margin", eps=1e-17)


def test_reprogramming_keeps_eps_or_refuses():
    """0.16 is certified for tanh(4 z) on the keys of tanh: that is not 1e-8."""
    em = ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-8)

    def steep(z):
        return torch.tanh(4 * z)

    with pytest.raises(
        ice.errors.PrecisionError, match=r"takes \d+ grid tokens.*build with room=128"
    ):
        em.reprogram(steep)
    loose = em.reprogram(steep, eps=None)
    assert loose.certificate.error > 0.1
    assert loose.digest == em.digest
    roomy = ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-8, room=128)
    other = roomy.reprogram(steep)
    assert other.eps == 1e-8
    assert other.certificate.error <= 1e-8
    assert other.digest == roomy.digest != em.digest
    inputs = draw(other, (8,))
    assert_within(other(*inputs), other.reference(*inputs), other.certificate.error, "steep")


CLASS = {
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "atan": torch.atan,
    "erf": torch.erf,
    "softplus": torch.nn.functional.softplus,
    "tanh(4 z)": lambda z: torch.tanh(4 * z),
    "sin(3 z)": lambda z: torch.sin(3 * z),
    "exp(-z^2)": lambda z: torch.exp(-z * z),
    "z^3": lambda z: z**3,
    "z^2": lambda z: z * z,
    "z": lambda z: z,
    "silu": lambda z: z * torch.sigmoid(z),
    "gelu": lambda z: 0.5 * z * (1 + torch.erf(z / 2**0.5)),
    "1/(1 + z^2)": lambda z: 1 / (1 + z * z),
    "sqrt(1 + z^2)": lambda z: torch.sqrt(1 + z * z),
    "log(5 + z)": lambda z: torch.log(5 + z),
    "tanh(sin(2 z))": lambda z: torch.tanh(torch.sin(2 * z)),
}


@pytest.mark.slow
def test_twenty_functions_one_digest_each_within_eps():
    frozen = ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-8, room=128)
    for name, f in CLASS.items():
        for em in (frozen.reprogram(f),
                   ice.paper.ResidualMap(f, dim=2, samples=3, eps=1e-8, room=128)):  # fmt: skip
            assert em.digest == frozen.digest, name
            assert em.certificate.error <= 1e-8
            assert em.certificate.kind == "proven"
            inputs = draw(em, (8,))
            assert_within(em(*inputs), em.reference(*inputs), em.certificate.error, name)


def test_eps_none_gives_the_best_the_dtype_can_do():
    for dtype, at_most in ((torch.float64, 1e-11), (torch.float32, 1e-3)):
        em = ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=None, dtype=dtype)
        assert em.certificate.error <= at_most
        inputs = draw(em, (64,))
        assert_within(em(*inputs), em.reference(*inputs), em.certificate.error, str(dtype))


def test_a_smaller_eps_takes_more_tokens():
    sizes = [
        ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=eps).interpolant.tokens
        for eps in (1e-2, 1e-5, 1e-9)
    ]
    assert sizes == sorted(set(sizes))


def test_a_narrow_z_range_takes_fewer_tokens_and_is_enforced():
    wide = ice.paper.ResidualMap(torch.tanh, dim=4, samples=3, eps=1e-6)
    narrow = ice.paper.ResidualMap(torch.tanh, dim=4, samples=3, eps=1e-6, z_range=(-1, 2))
    assert narrow.interpolant.tokens < wide.interpolant.tokens
    x = torch.full((3, 4), 0.1, dtype=torch.float64)
    y, w = torch.zeros(3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    assert_within(narrow(x, y, w), narrow.reference(x, y, w), narrow.certificate.error, "inside")
    with pytest.raises(ice.errors.BoundError, match=r"z = w.x - y reaches .* widen z_range="):
        narrow(torch.ones_like(x), y, w)


def test_the_margin_keeps_every_query_in_its_own_block():
    """Nothing leaks: the mass outside the own block, read off the literal attention, is 0."""
    em = ice.paper.ResidualMap(torch.sin, dim=2, samples=5, bound=2.0, eps=1e-6, backend="literal")
    x, y, w = (2 * t for t in draw(em, (16,)))
    tokens = em.prompt(x, y, w).tokens
    embed, layer = em.network.layers
    grid = em.layout.samples * em.layout.tokens
    weights = layer.attend(embed(tokens)).weights[:, 0, 0, grid : grid + 5]
    blocks = weights[..., :grid].unflatten(-1, (5, -1))
    own = torch.eye(5, dtype=torch.bool)[:, :, None].expand_as(blocks[0])
    assert float(blocks[:, ~own].abs().max()) == 0.0
    assert float(weights[..., grid:].abs().max()) == 0.0


def test_verify_confirms_and_refutes():
    pytest.importorskip("flint", reason="ball arithmetic needs python-flint")
    em = ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-6)
    x, y, w = draw(em, ())
    found = em.certificate.verify(x, y, w)
    assert found
    assert 0 < found.measured <= found.certified == em.certificate.error
    error = float((em(x, y, w) - em.reference(x, y, w)).abs().max())
    assert found.measured == pytest.approx(error, rel=1e-6)
    wrong = ice.Certificate.total(
        {"interpolation": found.measured / 2}, domain={}, dtype=em.dtype, backend="fused",
        verifier=em._verify,
    )  # fmt: skip
    assert not wrong.verify(x, y, w)


def test_weights_do_not_grow_with_the_samples():
    few, many = (
        ice.paper.GradientStep("squared", dim=50, samples=n, eps=1e-6) for n in (100, 1 << 23)
    )
    assert many.digest == few.digest
    assert many.plan.weight_bytes == few.plan.weight_bytes < 2**22
    assert many.plan.prompts == (1 << 23) // many.layout.samples
    assert many.plan.literal_bytes < 2**30


_BIG = r"""
import pathlib, re, torch, iceform as ice
n, d = 10**6, 50
x = 2 * torch.rand(n, d, dtype=torch.float64) - 1
y, w = 2 * torch.rand(n, dtype=torch.float64) - 1, 2 * torch.rand(d, dtype=torch.float64) - 1
em = ice.paper.GradientStep("squared", 0.1, dim=d, samples=n, eps=1e-6)
exact = w - 0.1 * (x.T @ (x @ w - y)) / n
assert float((em(x, y, w) - exact).abs().max()) <= em.certificate.error
# The peak of this process alone: ru_maxrss starts at the parent's.
print(re.search(r"VmHWM:\s*(\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_million_samples_fit_in_two_gibibytes():
    done = subprocess.run(
        [sys.executable, "-c", _BIG], capture_output=True, text=True, check=True, timeout=300
    )
    assert int(done.stdout) * 1024 < 2 * 2**30
