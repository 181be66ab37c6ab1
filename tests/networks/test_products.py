"""Products and norms in context, and ranges that hold for what calibration has not seen."""

import math

import pytest
import torch
from torch import nn

import iceform as ice
from iceform.networks import in_context
from iceform.networks.pieces import Norm, ProductPiece
from iceform.networks.pieces.base import DeferredChecks

F32, F64 = torch.float32, torch.float64


class Multiplied(nn.Module):
    """Both kinds of products, behind a map that makes them products of activations."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a, b = self.one(x), self.two(x)
        return (a * b) @ a.mT, a**3


def pieces(net, kind):
    return [p for p in net.pieces if isinstance(p, kind)]


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("backend", ["fused", "literal"])
def test_products_at_any_scale(backend, dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=dtype)
    net = in_context(Multiplied().to(dtype), calibration=[x], backend=backend)
    assert net.outside == {}
    plain, matrix = sorted(pieces(net, ProductPiece), key=lambda p: p.inner or 0)
    assert matrix.inner == 4
    for scale in (1e-12, 1.0, 1e9):
        a, b = (scale * torch.randn(2, 5, 4, dtype=dtype) for _ in "ab")
        a[..., 0] *= 2.0**-20  # a feature far smaller than the others has a scale of its own
        for piece, given in ((plain, (a, b)), (matrix, (a, b.mT))):
            want = piece.exact(*(t.double() for t in given))
            off = (piece.checked(*given).double() - want).abs()
            assert float(off.max()) <= piece.certified
            if piece is plain:
                largest = want.abs().reshape(-1, 4).amax(0)
                unit = 4e-12 if dtype == F64 else 4e-6
                assert bool((off.reshape(-1, 4).amax(0) <= unit * largest).all())
    with pytest.raises(ice.errors.BoundError, match="a product is"):
        plain.checked(a, b * math.inf)


NORMS = {
    "LayerNorm": lambda: nn.LayerNorm(6),
    "plain": lambda: nn.LayerNorm(6, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(6, eps=1e-6),
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("backend", ["fused", "literal"])
def test_norms_at_any_scale(kind, backend):
    torch.manual_seed(1)
    norm = NORMS[kind]()
    for p in norm.parameters():
        nn.init.normal_(p)
    net = in_context(nn.Sequential(nn.Linear(6, 6), norm).double(),
                     calibration=[torch.randn(3, 6, dtype=F64)], backend=backend)  # fmt: skip
    (piece,) = pieces(net, Norm)
    for scale, shift in ((1e-8, 0.0), (1.0, 0.0), (1.0, 1e6), (1e12, 0.0)):
        x = scale * torch.randn(7, 6, dtype=F64) + shift
        x[0] -= x[0].mean()  # sums that cancel
        want, got = piece.exact(x), piece.checked(x)
        assert float((got - want).abs().max()) <= piece.certified
        assert float((got - want).abs().max()) <= 1e-9 * (1 + shift)
        reach = piece.bounds()
        assert float(got.abs().max()) <= reach.entry
        assert float(got.norm(dim=-1).max()) <= reach.length
    with pytest.raises(ice.errors.BoundError, match="2-norm is"):
        piece.checked(x * math.nan)


class Filled(nn.Module):
    """A number put in behind a norm, far larger than what the norm gives."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x, mask):
        return self.inner(self.norm(x).masked_fill(mask, 50.0))


def test_a_number_that_is_put_in_belongs_to_the_range():
    torch.manual_seed(2)
    x, mask = torch.randn(5, 4, dtype=F64), torch.zeros(5, 4, dtype=torch.bool)
    net = in_context(Filled().double(), calibration=[(x, mask)])
    off = net(x, ~mask) - net.reference(x, ~mask)
    assert float(off.abs().max()) <= net.enclosure(x, ~mask).error < 1e-9


def test_ranges_behind_a_norm_hold_for_words_that_calibration_has_not_seen():
    """Torch's attention reshapes by sizes of its input, which are no numbers that it moves."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(40, 8), encoder).double().eval()
    model[0].weight.data *= torch.linspace(0.1, 6.0, 40)[:, None]
    net = in_context(model, calibration=[torch.zeros(2, 5, dtype=torch.long)], headroom=1.0)
    ids = torch.arange(40).reshape(5, 8)
    assert float((net(ids) - net.reference(ids)).abs().max()) < 1e-9


class Repeated(nn.Module):
    """One number a token, added to every entry behind a norm, or repeated by a product."""

    def __init__(self, multiplied):
        super().__init__()
        self.norm, self.one, self.last = nn.LayerNorm(16), nn.Linear(16, 1), nn.Linear(16, 3)
        self.one.weight.data = torch.linspace(-5, 5, 16)[None]
        self.multiplied = multiplied

    def behind(self, x):
        y = self.norm(x)
        return self.one(y) * torch.ones(16).to(x) if self.multiplied else y + self.one(y)

    def forward(self, x):
        return self.last(self.behind(x))


@pytest.mark.parametrize("multiplied", [False, True])
def test_the_length_of_a_number_that_is_repeated_is_that_of_all_of_them(multiplied):
    torch.manual_seed(5)
    model = Repeated(multiplied).double()
    net = in_context(model, calibration=[torch.randn(1, 16, dtype=F64)])
    last = next(p for p in net.pieces if p.name == "last")
    length = float(model.behind(torch.linspace(-5, 5, 16).double()[None]).detach().norm())
    assert 190 < length <= last.norm < 300


def test_checks_that_wait_for_the_end_are_made():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3, dtype=F64)
    net = in_context(model, calibration=[x])
    structure, tensors = net.model.signature.flatten((x,), {})
    graph = net.model.graph_for(structure, tensors)
    for scale in (1.0, 100.0):
        later = DeferredChecks()
        with later.on():
            found = graph.run(net.model, [scale * x])
        numbers = later.numbers(x).tolist()
        if scale == 1.0:
            later.check_range(numbers)
            assert torch.equal(found[0], net(x))
            continue
        with pytest.raises(ice.errors.BoundError, match=r"0: the largest 2-norm of a token is"):
            later.check_range(numbers)
