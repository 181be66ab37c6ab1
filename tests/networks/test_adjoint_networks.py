"""Certificates of one input, attacked: random networks in context against their originals."""

import math

import pytest
import torch
from torch import nn

import iceform as ice
from iceform.networks import in_context

F32, F64 = torch.float32, torch.float64


def drawn(seed, layers=None):
    """A tiny network of random kind, and an input."""
    torch.manual_seed(seed)
    kind = seed % 4
    width, tokens = 2 * int(torch.randint(1, 4, ())), int(torch.randint(2, 5, ()))
    x = torch.randn(2, tokens, width)
    if kind == 3 or layers:
        act = ("gelu", "relu")[seed % 2]
        layer = nn.TransformerEncoderLayer(
            width, 2, 8, batch_first=True, activation=act, norm_first=bool(seed % 3)
        )
        count = layers or int(torch.randint(1, 3, ()))
        model = nn.TransformerEncoder(layer, count, enable_nested_tensor=False)
    else:
        parts = []
        for _ in range(int(torch.randint(1, 4, ()))):
            act = (nn.Tanh(), nn.GELU(), nn.SiLU(), nn.ReLU(), nn.Sigmoid())[
                int(torch.randint(5, ()))
            ]
            parts += [nn.Linear(width, width), act]
            parts += [nn.LayerNorm(width)] if torch.rand(()) < 0.4 else []
        model = nn.Sequential(*parts, nn.Linear(width, 3))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 + float(torch.rand(())) if p.ndim > 1 else 0.3)
    return model.eval(), x


def attacked(seed, layers=None, fresh=8):
    """Ratios certified / actual; float64 is the exact network where float32 is certified."""
    model, x = drawn(seed, layers)
    net = in_context(model, calibration=[x], headroom=4.0)
    ratios = []
    for _ in range(fresh):
        y = torch.randn_like(x)
        try:
            bounds = net.certificate(y).bounds[0]
        except ice.BoundError:
            continue  # out of range, and said so
        off = (net(y).double() - net.reference(y)).abs()
        assert bool((off <= bounds).all()), (seed, float((off / bounds).max()))
        ratios.append(float(bounds.max() / off.max()))
    return ratios


def test_random_networks_are_within_the_certificate_of_their_input():
    ratios = [r for seed in range(4) for r in attacked(seed)]
    assert len(ratios) >= 20
    assert sorted(ratios)[len(ratios) // 2] <= 300


@pytest.mark.slow
def test_hundreds_of_random_networks():
    ratios = [r for seed in range(100, 400) for r in attacked(seed)]
    finite = [r for r in ratios if math.isfinite(r)]
    print(len(ratios), sorted(ratios)[len(ratios) // 2], max(finite), len(finite))
    assert len(ratios) >= 2000


def test_it_stays_close_with_depth_where_norms_multiply():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).double().eval()
    x = torch.randn(1, 3, 8, dtype=F64)
    net = in_context(model, calibration=[x])
    off = float((net(x) - model(x)).detach().abs().max())
    found = net.certificate(x)
    assert off <= found.error <= 1000 * off < net.certificate.error
    assert found.kind == "proven"
    weights = torch.randn_like(x)
    one = net.certificate(x, functional=weights).error
    exact = net.reference(x)
    assert float((weights * (net(x) - exact)).sum().abs()) <= one
    assert one <= 1.001 * float((weights.abs() * found.bounds[0]).sum())


def test_a_piece_that_is_off_shows_in_the_certificate():
    """What linear maps are off by is measured on this input, not believed."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), torch.randn(4, 3, dtype=F64)
    net = in_context(model, calibration=[x])
    before = net.certificate(x).error
    right = net.pieces[0].emulate
    net.pieces[0].emulate = lambda *given: right(*given) + 1e-6
    off = float((net(x) - model(x)).detach().abs().max())
    assert before < 1e-10 < off <= net.certificate(x).error <= 2e-6


def test_what_has_no_rule_is_infinite_and_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3, dtype=F64)

        def forward(self, x):
            y = self.inner(x)
            return torch.where(y > 0, y, torch.cos(y))

    x = torch.randn(4, 3, dtype=F64)
    net = in_context(Odd(), calibration=[x], strict=False)
    found = net.certificate(x)
    assert found.error == net.certificate.error == math.inf
    assert "gt in Odd" in found.explain() or "cos in Odd" in found.explain()
