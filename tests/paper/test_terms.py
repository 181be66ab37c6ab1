"""Terms of certificates that random data do not show: each on inputs where the bound needs it.

In every test the error is above what the other terms add up to, so that a certificate without the
term would be violated, and the certificate holds.
"""

import torch

import iceform as ice
from iceform.run import primitives


def needed(off, certificate, *names):
    """The certificate holds, and would not without these terms."""
    others = certificate.error - sum(certificate.terms[name] for name in names)
    assert others < off <= certificate.error, (others, off, certificate.error)


def test_the_second_layer_of_a_head_as_unlucky_as_rounding_allows(monkeypatch):
    """Sums of n weights all round down and sums of n products up: 2 n units together."""
    em = ice.paper.AttentionHead(1, 1, 1, 1000, eps=None)
    attend, unit = primitives.attention, 2.0**-53

    def unlucky(q, k, v):
        return attend(q, k, v) * (1 + 2 * k.shape[-2] * unit)

    monkeypatch.setattr(primitives, "attention", unlucky)
    x = torch.ones(1000, 1, dtype=torch.float64)
    weights = [torch.ones(1, 1, dtype=torch.float64)] * 3
    off = float((em(x, *weights) - em.reference(x, *weights)).abs().max())
    needed(off, em.certificate, "second layer")


def test_what_padding_weighs_is_counted():
    em = ice.paper.AttentionHead(3, 2, 4, 40, eps=None, backend="literal")
    table, layer = em.interpolant, em.network.layers[0]
    assert table.tokens < 40
    inputs = [torch.rand(40, 3).double(), *(torch.rand(r, 3).double() for r in (2, 2, 4))]
    with torch.no_grad():
        weights = layer.attend(em.prompt(*inputs).tokens).weights
    padding = float(weights[..., table.tokens :].sum(-1).max())
    assert 0 < 2 * table.size * padding <= em.certificate.terms["leak"]


def test_errors_of_early_steps_reach_the_last():
    """Steps so short that every one of them looks up where the table is worst."""
    steps, lr = 20, 2.0**-10
    em = ice.paper.GradientDescent(torch.tanh, steps, lr=lr, dim=1, samples=1, eps=None, tokens=15)
    table = em.interpolant
    z = torch.linspace(-0.9, 0.9, 4001, dtype=torch.float64)
    worst = float(z[(table(z) - torch.tanh(z)).abs().argmax()])
    x, w = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    y = torch.full((1,), -worst, dtype=torch.float64)
    off = float((em(x, y, w) - em.reference(x, y, w)).abs().max())
    one = em.step.certificate.error
    assert 2 * one < off <= em.certificate.error, (one, off, em.certificate.error)


def test_far_points_of_a_split_line_round_by_more_than_half_a_cell():
    """In float32 logits of tokens that are far from their middle are off by whole units."""
    em = ice.paper.TruncatedLinear(
        -50.0, 50.0, 1, dim=1, samples=512, bound=60.0, weight_bound=1.0, tokens=3000,
        sharpness=30.0, dtype=torch.float32, backend="literal",
    )  # fmt: skip
    cells = torch.arange(20, 2932, 5.6875)[:512] + torch.linspace(0.35, 0.65, 512)
    x = (-50.0 + em.split.spacing * cells.double()).float()[:, None]
    one, none = torch.ones(1), torch.zeros(())
    off = float((em(x, one, none).double() - em.reference(x, one, none)).abs().max())
    needed(off, em.certificate, "rounding")
