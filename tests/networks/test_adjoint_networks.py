"""Certificates of one input, attacked: random networks in context against their originals."""

import math

import pytest
import torch
from torch import nn

from iceform.networks import in_context
from tests.networks.attack import KINDS, attacked

F32, F64 = torch.float32, torch.float64


def test_random_networks_are_within_the_certificate_of_their_input():
    ratios = [r for seed in range(KINDS) for r in attacked(seed, fresh=6)]
    assert len(ratios) >= 24
    assert min(ratios) >= 1
    assert sorted(ratios)[len(ratios) // 2] <= 300


@pytest.mark.slow
def test_hundreds_of_random_networks():
    ratios = [r for seed in range(100, 400) for r in attacked(seed, fresh=8)]
    assert len(ratios) >= 2000
    assert min(ratios) >= 1


def test_it_stays_close_with_depth_where_norms_multiply():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).double().eval()
    x = torch.randn(1, 3, 8, dtype=F64)
    net = in_context(model, calibration=[x])
    off = float((net(x) - model(x)).detach().abs().max())
    found = net.enclosure(x)
    assert off <= found.error <= 1.5 * off < net.certificate.error
    assert found.kind == "proven"
    weights = torch.randn_like(x)
    one = net.enclosure(x, functional=weights).error
    exact = net.reference(x)
    assert float((weights * (net(x) - exact)).sum().abs()) <= one
    assert one <= 1.001 * float((weights.abs() * found.bounds[0]).sum())
    result = net.run(x)
    assert "enclosure" not in vars(result)  # nobody asked for it
    assert off <= result.enclosure.error <= 1.5 * off
    assert result.enclosure.compared in repr(result)


def test_an_enclosure_is_of_the_answer_that_came_out():
    """Of another answer, or of one that is no number, it says how far that one is."""
    torch.manual_seed(2)
    model, x = nn.Sequential(nn.Linear(3, 3), nn.GELU()).double(), torch.randn(4, 3, dtype=F64)
    net = in_context(model, calibration=[x])
    before = net.run(x).enclosure.error
    inner = net.model.forward
    net.model.forward = lambda *given: inner(*given) + 0.25
    assert before < 1e-9
    assert 0.25 <= net.run(x).enclosure.error <= 0.25 + 2e-9
    net.model.forward = lambda *given: inner(*given) * math.nan
    assert net.run(x).enclosure.error == math.inf


def test_a_piece_that_is_off_shows_in_the_certificate():
    """What linear maps are off by is measured on this input, not believed."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), torch.randn(4, 3, dtype=F64)
    net = in_context(model, calibration=[x])
    before = net.enclosure(x).error
    right = net.pieces[0].checked
    net.pieces[0].checked = lambda *given: right(*given) + 1e-6
    off = float((net(x) - model(x)).detach().abs().max())
    assert before < 1e-10 < off <= net.enclosure(x).error <= 2e-6


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
    found = net.enclosure(x)
    assert found.error == net.certificate.error == math.inf
    assert "gt in Odd" in found.explain() or "cos in Odd" in found.explain()
