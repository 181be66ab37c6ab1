import pytest
import torch
from torch import nn

from iceform.errors import IntegrityError
from iceform.heads import Features, FrozenNetwork, HopfieldLayer, Lift, SoftmaxAttention
from iceform.heads.network import weights_digest
from iceform.paper import LinearLayer, ResidualMap

F64 = torch.float64
FEATURES = Features.of(x=2, y=1, w=2)


def residual_layer(dtype=F64):
    shapes = [(2, 3, 5), (2, 3, 5), (2, 5, 5), (2, 4, 4)]
    return SoftmaxAttention(
        *(torch.randn(*s, dtype=dtype) for s in shapes), labels=["a", "b"], residual=True
    )


def readout(dtype=F64):
    parts = [(1, 2, 5), (1, 4, 1), (1, 2)]
    return Lift(*(torch.randn(*s, dtype=dtype) for s in parts))


@pytest.fixture
def network():
    torch.manual_seed(3)
    return FrozenNetwork([residual_layer(), residual_layer(), readout()], FEATURES)


# -------------------------------------------------------------------------------------- layers


def test_layers_run_in_order(network):
    x = torch.randn(2, 4, 5, dtype=F64)
    first, second, last = network.layers
    assert torch.equal(network(x), last(second(first(x))))
    assert network(x).shape == (2, 1, 2)
    assert network.heads == 4
    assert network.features == FEATURES


def test_stream_gives_the_tokens_after_every_layer(network):
    x = torch.randn(4, 5, dtype=F64)
    states = list(network.stream(x))
    assert [tuple(s.shape) for s in states] == [(4, 5), (4, 5), (1, 2)]
    assert torch.equal(states[-1], network(x))
    assert torch.equal(states[0], network.layers[0](x))


def test_a_hopfield_layer_is_one_head():
    parts = [torch.zeros(4, 5), torch.zeros(4, 5), torch.zeros(2, 4)]
    layer = HopfieldLayer(*parts, 1.0, stored=2)
    assert FrozenNetwork([layer], FEATURES).heads == len(layer.labels) == 1


def test_a_layer_may_be_used_twice():
    shared = residual_layer()
    twice = FrozenNetwork([shared, shared], FEATURES)
    x = torch.randn(4, 5, dtype=F64)
    assert torch.equal(twice(x), shared(shared(x)))
    assert twice.heads == 4


# -------------------------------------------------------------------------------------- frozen


def test_gradients_reach_the_input_and_nothing_else(network):
    x = torch.randn(4, 5, dtype=F64, requires_grad=True)
    network(x).sum().backward()
    assert x.grad is not None
    assert all(b.grad is None and not b.requires_grad for b in network.buffers())
    assert not list(network.parameters())


def test_digest_survives_use(network):
    before = network.digest
    x = torch.randn(4, 5, dtype=F64, requires_grad=True)
    network(x).sum().backward()
    with torch.no_grad():
        network(x)
    network.train()
    network.eval()
    network.to("cpu")
    network.requires_grad_(False)
    assert network.digest == before
    assert len(before) == 64


def test_digest_survives_a_copy_and_a_state_dict(network):
    other = FrozenNetwork([residual_layer(), residual_layer(), readout()], FEATURES)
    assert other.digest != network.digest
    other.load_state_dict(network.state_dict())
    assert other.digest == network.digest


@pytest.mark.parametrize("bit", [0, 1, 31, 51, 62, 63])
def test_digest_sees_every_bit(network, bit):
    before = network.digest
    weight = network.layers[1].w_v
    bits = weight.view(torch.int64)
    mask = torch.tensor(-(2**63) if bit == 63 else 2**bit)
    bits[1, 2, 3] ^= mask
    assert network.digest != before
    bits[1, 2, 3] ^= mask
    assert network.digest == before


def test_digest_sees_every_weight(network):
    before = network.digest
    for name, buffer in network.named_buffers():
        kept = buffer.clone()
        buffer.view(-1)[-1] += 1
        assert network.digest != before, name
        buffer.copy_(kept)
    assert network.digest == before


def bag(data, name="data"):
    """A module of one buffer."""
    found = nn.Module()
    found.register_buffer(name, data)
    return found


def lifted(zero):
    return Lift(*(torch.full(s, zero) for s in ((1, 2, 5), (1, 4, 1), (1, 2))))


def test_digests_tell_apart_what_is_not_the_same():
    """The sign of a zero, shapes and dtypes of the same bytes, names, the order, and how often."""
    zeros, a, b = torch.zeros(4, 6, dtype=F64), residual_layer(), residual_layer()
    same_bytes = [zeros, zeros.reshape(6, 4), zeros.reshape(24), torch.zeros(4, 12), zeros.long()]
    modules = [
        lifted(0.0), lifted(-0.0), *map(bag, same_bytes), bag(zeros, "other"),
        *(FrozenNetwork(layers, FEATURES) for layers in ([a, b], [b, a], [a], [a, a])),
    ]  # fmt: skip
    assert len({weights_digest(module) for module in modules}) == len(modules)
    assert weights_digest(bag(zeros)) == weights_digest(bag(torch.zeros(6, 4, dtype=F64).T))


def test_digest_changes_with_the_dtype_of_the_network(network):
    before = network.digest
    assert network.to(torch.float32).digest != before
    assert network.to(torch.float64).digest != before  # rounding does not come back


# ------------------------------------------------------------------------------------ features


def test_features_are_contiguous_slices_in_order():
    assert dict(FEATURES) == {"x": slice(0, 2), "y": slice(2, 3), "w": slice(3, 5)}
    assert list(FEATURES) == ["x", "y", "w"]
    assert (len(FEATURES), FEATURES.total) == (3, 5)


def test_features_behave_like_a_mapping():
    assert "y" in FEATURES
    assert "z" not in FEATURES
    assert FEATURES.get("z") is None
    with pytest.raises(KeyError, match="z"):
        FEATURES["z"]
    assert Features.of(x=2, y=1, w=2) == FEATURES
    assert Features.of(x=2, w=2, y=1) != FEATURES
    assert hash(Features.of(x=2, y=1, w=2)) == hash(FEATURES)


def test_weights_that_change_after_a_move_are_refused():
    """A move forgets the copy that weights are compared with; what was hashed then is not kept."""
    network = ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-3).network.to("cpu")
    expected = network.check()
    next(network.buffers()).data.mul_(1.5)
    with pytest.raises(IntegrityError, match="changed"):
        network.check()
    next(network.buffers()).data.div_(1.5)
    assert network.check() == expected


def test_digits_that_a_cast_rounded_off_do_not_come_back():
    network = LinearLayer(2, 2, samples=3, tokens=64).network
    built = network.check()
    assert network.float().check() != built, "a cast to fewer digits is a network of its own"
    network.double()
    with pytest.raises(IntegrityError, match="weights were changed"):
        network.check()


def test_a_view_that_negates_its_memory_is_noticed(network):
    network.seal()
    layer = network.layers[0]
    layer.w_v = torch._neg_view(layer.w_v)
    with pytest.raises(IntegrityError, match="weights were changed"):
        network.check()
    layer.w_v = -layer.w_v
    assert network.check() == network.expected
