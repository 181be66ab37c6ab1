"""TruncatedLinear, the Hopfield constructions and the MLP."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch

import iceform as ice
from iceform.heads import unchecked
from tests.conformance import assert_within, uniform
from tests.paper import test_descent, test_residual
from tests.paper.suite import OfSamples


class TestTruncatedLinear(OfSamples):
    samples, dim = 6, 2
    captured = False
    regimes, smooth = ("hard",), ()  # a staircase: finite differences see a step or a plateau
    eps = (None, None, None)
    make = partial(ice.paper.TruncatedLinear, -0.8, 1.1, 3, dim=2, samples=6)

    def corners(self, inputs):
        return None

    def interior(self, inputs):
        return list(inputs)


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
@pytest.mark.parametrize("sharpness", [2.0, 5.0, 12.0, 60.0])
def test_hard_split_truncates_on_all_reals(heads, sharpness):
    em = ice.paper.TruncatedLinear(
        -3.0, 2.0, heads, dim=1, samples=8, bound=50.0, weight_bound=1.0, sharpness=sharpness
    )
    x = torch.linspace(-50, 50, 8000, dtype=torch.float64).reshape(1000, 8, 1)
    ones, zeros = torch.ones(1000, 1).double(), torch.zeros(1000).double()
    assert_within(em(x, ones, zeros), em.reference(x, ones, zeros), em.certificate.error, "line")
    for end in (-3.0, 2.0):
        at = torch.full((8, 1), end, dtype=torch.float64)
        got = em(at, torch.ones(1).double(), torch.zeros(()).double())
        assert abs(float(got[0]) - end) <= em.certificate.error


def test_local_keys_hold_the_seams_together_in_float32():
    """100 heads of 18 points on [-50, 50]."""
    em = ice.paper.TruncatedLinear(
        -50.0, 50.0, 100, dim=1, samples=4, bound=100.0, weight_bound=1.0, tokens=20,
        dtype=torch.float32, backend="literal",
    )  # fmt: skip
    x = uniform(500, 4, 1, dtype=torch.float32, bound=60.0)
    ones, zeros = torch.ones(500, 1), torch.zeros(500)
    error = (em(x, ones, zeros).double() - em.reference(x, ones, zeros)).abs().max()
    assert float(error) < 4 * em.split.spacing


class TestHopfieldMap(OfSamples):
    samples, dim = 5, 3
    eps = (1e-7, 1e-3, 0.5)
    make = partial(ice.paper.HopfieldMap, torch.tanh, [1.0, -0.5, 0.25], 0.3, samples=5)

    def test_save_and_load(self, emulator, tmp_path):
        (z,) = self.draw(emulator, (2,))
        again = ice.load(emulator.save(tmp_path / "saved"))
        assert again.digest == emulator.digest
        assert torch.equal(again(z), emulator(z))
        with pytest.raises(ice.errors.ProgramError, match="loaded without its function"):
            again.reference(z)


class TestHopfieldVector(TestHopfieldMap):
    """f from R to R^3, as thm:hopfield_approx has it: one layer, one table of three columns."""

    captured = False
    make = partial(
        ice.paper.HopfieldMap, (torch.tanh, torch.sin, torch.nn.functional.softplus),
        [1.0, -0.5, 0.25], 0.3, samples=5,
    )  # fmt: skip

    def cases(self):
        """Literal alone: the quick ones differ in all else."""
        own = {
            n: [c for c in cases if c[-1] == "literal"] for n, (cases, _) in super().cases().items()
        }
        quick = (("spectral", torch.float64, "literal"), ("hard", torch.float32, "literal"))
        return {n: (cases, quick) for n, cases in own.items()}


def test_components_share_one_layer_and_keep_their_columns():
    """A permuted, negated or dropped column would show: every component is another function."""
    fs = (torch.sin, torch.tanh, lambda z: 2 * z - 1)
    em = ice.paper.HopfieldMap(fs, [1.0, -1.0], 0.5, samples=40, bound=2.0, eps=1e-8)
    (layer,) = em.network.layers
    assert layer.w_v.shape == (3, 2 + 1 + 3)
    assert layer.patterns.shape == (em.interpolant.tokens, 2 + 3)
    z = uniform(40, 2, dtype=torch.float64, bound=2.0)
    out, line = em(z), z[:, 0] - z[:, 1] + 0.5
    for j, f in enumerate(fs):
        assert_within(out[:, j], f(line), em.certificate.error, f"component {j}")
    verified = em.certificate.verify(z)
    assert verified.holds
    assert verified.measured >= float((out[:, 1] - torch.tanh(line)).abs().max()) / 2
    alone = [
        ice.paper.HopfieldMap(f, [1.0, -1.0], 0.5, samples=40, bound=2.0, eps=1e-8) for f in fs
    ]
    assert em.plan.grid_tokens < sum(one.plan.grid_tokens for one in alone)


def test_a_vector_is_the_same_by_matrices_and_by_look_ups():
    build = partial(ice.paper.HopfieldMap, (torch.sin, torch.tanh), [1.0, 0.5], samples=9, eps=1e-8)
    z = 2 * torch.rand(9, 2, dtype=torch.float64) - 1
    literal, fused = (build(backend=name) for name in ("literal", "fused"))
    assert literal.digest == fused.digest
    assert literal(z).shape == fused(z).shape == (9, 2)
    allowed = literal.certificate.terms["rounding"] + fused.certificate.terms["rounding"]
    assert_within(fused(z), literal(z), allowed, "fused")


def test_a_saved_vector_is_proven_for_all_its_components(tmp_path):
    fs = (torch.sin, torch.tanh)
    em = ice.paper.HopfieldMap(fs, [1.0], samples=3, eps=1e-6)
    folder = em.save(tmp_path / "saved")
    assert ice.load(folder).certificate.kind == "claimed"
    assert ice.load(folder, f=fs).certificate.kind == "proven"
    with pytest.raises(ice.errors.IntegrityError, match="certified, not eps"):
        ice.load(folder, f=(torch.sin, torch.sin))


def test_what_a_vector_cannot_be_is_refused():
    build = partial(ice.paper.HopfieldMap, a=[1.0], samples=3)
    with pytest.raises(ice.errors.ShapeError, match="at least one component"):
        build(())
    one, two = (ice.Interpolant.fit(torch.sin, -2, 2, eps) for eps in (1e-3, 1e-9))
    with pytest.raises(ice.errors.ProgramError, match="tables have different keys"):
        build((torch.sin, torch.sin), interpolant=(one, two))
    with pytest.raises(ice.errors.ShapeError, match="2 components and 1 tables"):
        build((torch.sin, torch.sin), interpolant=(one,))


class TestHopfieldResidual(test_residual.TestResidualMap):
    captured = False
    make = partial(ice.paper.HopfieldResidual, torch.tanh, dim=3, samples=4)


class TestHopfieldStep(test_descent.TestGradientStep):
    captured = False
    make = partial(ice.paper.HopfieldStep, "squared", 0.5, 0.1, dim=2, samples=5)


def test_a_hopfield_layer_makes_its_values_from_its_keys():
    w_k, w_q = torch.randn(4, 3).double(), torch.randn(4, 2).double()
    w_v, patterns = torch.randn(5, 4).double(), torch.randn(6, 3).double()
    states = torch.randn(7, 2).double()
    layer = ice.heads.HopfieldLayer(w_k, w_q, w_v, 0.7, patterns=patterns)
    keys = w_k @ patterns.T
    weights = torch.softmax(0.7 * keys.T @ (w_q @ states.T), 0)
    torch.testing.assert_close(layer(states), (w_v @ keys @ weights).T)
    assert not list(layer.parameters())


def network_parameters(sizes, dtype=torch.float64):
    out = []
    for fan_in, fan_out in pairwise(sizes):
        scale = 1 / math.sqrt(fan_in)
        out += [uniform(fan_out, fan_in, dtype=dtype, bound=scale),
                uniform(fan_out, dtype=dtype, bound=scale)]  # fmt: skip
    return out


def test_an_mlp_with_gelu_entirely_in_context():
    sizes = (16, 64, 64, 10)
    net = ice.paper.MLP(
        sizes, torch.nn.functional.gelu, samples=7, weight_bound=0.25, reach=(4.0, 4.0, 4.0),
        eps=1e-6,
    )  # fmt: skip
    parameters, x = network_parameters(sizes), uniform(7, 16, dtype=torch.float64)
    before = net.digest
    assert_within(net(x, *parameters), net.reference(x, *parameters), 1e-6, "gelu")
    assert net.certificate.error <= 1e-6
    assert net.digest == before
    assert not list(net.parameters())
    plain = torch.nn.Sequential()
    for i, (w, b) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        layer = torch.nn.Linear(w.shape[1], w.shape[0], dtype=torch.float64)
        layer.weight.data, layer.bias.data = w, b
        plain.extend([layer] + ([torch.nn.GELU()] if i < 2 else []))
    assert_within(net(x, *parameters), plain(x).detach(), 1e-6, "torch's own")


@pytest.mark.parametrize("backend", ["literal", "auto"])
def test_every_part_of_an_mlp_runs_on_its_frozen_weights(backend):
    sizes = (3, 4, 2)
    torch.manual_seed(0)
    net = ice.paper.MLP(sizes, torch.tanh, samples=4, weight_bound=0.6, eps=1e-6, backend=backend)
    parameters, x = network_parameters(sizes), uniform(2, 4, 3, dtype=torch.float64)
    result = net.run(x, *parameters)
    assert torch.equal(result.value, net(x, *parameters))
    assert result.attestation.ok
    assert result.digest == net.digest
    assert (result.attestation.rows > 0) == (backend == "auto")
    assert result.passes == 3  # two linear maps, one activation
    assert result.ledger.host == ()
    for network in net.networks:
        weight = network.layers[-1].w_v
        weight.data.mul_(1.5)
        with pytest.raises(ice.errors.IntegrityError, match="weights were changed"):
            net(x, *parameters)
        with unchecked():
            changed = net(x, *parameters)
        assert float((changed - result.value).abs().max()) > 1e-2
        weight.data.div_(1.5)
    assert torch.equal(net(x, *parameters), result.value)


def test_activations_follow_the_weights_alike():
    sizes, changed = (3, 4, 2), []
    torch.manual_seed(0)
    parameters, x = network_parameters(sizes), uniform(4, 3, dtype=torch.float64)
    for backend in ("literal", "auto"):
        net = ice.paper.MLP(
            sizes, torch.tanh, samples=4, weight_bound=0.6, eps=1e-6, backend=backend
        )
        net.look_ups.layers[-1].w_k.mul_(2.0)
        net.look_ups.layers[-1].w_v.mul_(1.5)
        with unchecked():
            changed.append(net(x, *parameters))
    assert_within(changed[1], changed[0], 1e-9, "literal against the default")
    assert float((changed[0] - net.reference(x, *parameters)).abs().max()) > 1e-2


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.hardtanh])
def test_kinked_activations_are_certified_in_float32(activation):
    sizes, f32 = (2, 3, 1), torch.float32
    net = ice.paper.MLP(
        sizes, activation, samples=4, weight_bound=4.0, reach=(12.0, 8.0), eps=None, dtype=f32
    )
    assert net.certificate.error < 0.2
    torch.manual_seed(0)
    parameters = [0.5 * p for p in network_parameters(sizes, dtype=f32)]
    x = uniform(16, 4, 2, dtype=f32)
    got, want = net(x, *parameters), net.reference(x, *parameters)
    assert_within(got, want, net.certificate.error, activation.__name__)


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh, torch.nn.functional.silu])
def test_any_continuous_activation(activation):
    sizes = (3, 8, 2)
    net = ice.paper.MLP(sizes, activation, samples=4, weight_bound=0.6, eps=1e-4)
    parameters, x = network_parameters(sizes), uniform(16, 4, 3, dtype=torch.float64)
    got, want = net(x, *parameters), net.reference(x, *parameters)
    assert_within(got, want, net.certificate.error, activation.__name__)


def test_the_exact_network_may_pass_the_reach_that_the_emulated_one_keeps():
    """It is off by what was lost before; there an activation may be as steep as it likes."""

    def steep_beyond(z):
        ripple = 2e-3 * torch.cos(300 * z)  # a table for few digits leaves it out
        return torch.tanh(2 * z) + ripple + 300 * torch.relu(z - 1.0002)

    net = ice.paper.MLP((1, 1, 1, 1), steep_beyond, samples=40, reach=(1.0, 1.0, 50.0), eps=1e4)
    one, none = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    x = torch.linspace(0.2285, 0.2302, 40, dtype=torch.float64)[:, None]
    parameters = (one, none, one, none + 0.5715384, one, none)
    exact = torch.tanh(2 * x) + 2e-3 * torch.cos(300 * x) + 0.5715384
    assert float(exact.max()) > 1.0002 + net.layers[1].certificate.error
    got, want = net(x, *parameters), net.reference(x, *parameters)
    assert_within(got, want, net.certificate.error, "beyond the reach")
    assert net.tables[1].high > float(exact.max())


def test_an_activation_out_of_range_is_refused():
    net = ice.paper.MLP((3, 8, 2), torch.tanh, weight_bound=1.0, reach=(0.5, 9.0), eps=None)
    parameters = [torch.ones_like(p) for p in network_parameters((3, 8, 2))]
    with pytest.raises(ice.errors.BoundError, match=r"max \|theta x\| is 4, .* raise reach="):
        net(torch.ones(1, 3, dtype=torch.float64), *parameters)
    with pytest.raises(ice.errors.ShapeError, match="takes 2 pairs of weight and bias"):
        net(torch.ones(1, 3, dtype=torch.float64), *parameters[:3])


@pytest.mark.parametrize("encoding", ["rows", "embedding"])
def test_a_target_with_several_heads(encoding):
    em = ice.paper.AttentionHead(
        3, 2, 4, 5, heads=3, eps=1e-8, encoding=encoding, backend="literal"
    )
    assert em.plan.heads == 3 * (2 + 2 + 4) + 3
    x = uniform(6, 5, 3, dtype=torch.float64)
    weights = [uniform(6, 3, r, 3, dtype=torch.float64) for r in (2, 2, 4)]
    want = sum(
        torch.softmax((x @ q.mT) @ (x @ k.mT).mT, -1) @ (x @ v.mT)
        for k, q, v in zip(*(w.unbind(1) for w in weights), strict=True)
    )
    assert_within(em(x, *weights), want, em.certify(x, *weights).error, "three heads")
    assert em.network.layers[0].heads[8].label == "K1 row 0"
    with pytest.raises(ice.errors.ShapeError, match=r"K must have shape \(\*batch, 3, 2, 3\)"):
        em(x, weights[0][:, 0], *weights[1:])
