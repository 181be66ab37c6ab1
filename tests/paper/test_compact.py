"""CompactStep: one table for all samples."""

from functools import partial

import pytest
import torch

import iceform as ice
from tests.conformance import assert_within
from tests.paper.suite import OfLosses, draw


class TestCompactStep(OfLosses):
    samples, dim = 5, 2
    regimes, eps = ("spectral",), (1e-7, 5e-3, None)
    make = partial(ice.paper.CompactStep, "huber", 0.5, 0.1, dim=2, samples=5)


@pytest.mark.parametrize("backend", ["fused", "literal"])
def test_four_hundred_samples_in_one_prompt(backend):
    """Within the certificate, with as many tokens as samples and grid together."""
    n, d = 400, 4
    em = ice.paper.CompactStep(torch.tanh, 0.8, dim=d, samples=n, eps=1e-8, backend=backend)
    assert em.certificate.kind == "proven"
    assert em.certificate.error <= 1e-8
    room = em.layout.tokens
    assert em.plan.tokens == room + 2 * n + 2
    long = ice.paper.GradientStep(torch.tanh, 0.8, dim=d, samples=n, eps=1e-8).plan
    assert em.plan.tokens < long.tokens * long.prompts / 20
    x, y, w = draw(em, ())
    prompt = em.prompt(x, y, w)
    assert prompt.tokens.shape[-2] == em.plan.tokens
    assert_within(em(x, y, w), em.reference(x, y, w), em.certificate.error, "400 samples")


def test_the_certificate_is_not_idle():
    em = ice.paper.CompactStep(torch.tanh, 1.0, dim=2, samples=40, eps=1e-4)
    inputs = draw(em, (64,))
    off = (em(*inputs) - em.reference(*inputs)).abs().max()
    assert em.certificate.error <= 1000 * float(off)


def test_functions_and_steps_share_the_weights():
    em = ice.paper.CompactStep(torch.tanh, 0.5, dim=2, samples=7, eps=1e-6, room=128)
    for f, lr in ((torch.sin, 0.5), (torch.sigmoid, 0.1), (torch.atan, 0.7)):
        other = em.reprogram(f, lr)
        assert other.digest == em.digest
        inputs = draw(other, (5,))
        assert other.certificate.error <= 1e-6
        assert_within(other(*inputs), other.reference(*inputs), 1e-6, str(f))


def test_what_does_not_fit_is_refused():
    em = ice.paper.CompactStep(torch.tanh, 0.5, dim=2, samples=7, eps=1e-3)
    with pytest.raises(ice.errors.PrecisionError, match=r"have room for .*; build with room="):
        em.reprogram(torch.tanh, eps=1e-13)
    with pytest.raises(ice.errors.ProgramError, match="use GradientStep"):
        ice.paper.CompactStep("logistic", dim=2, samples=7)


def test_a_function_that_was_not_saved_is_asked_for(tmp_path):
    em = ice.paper.CompactStep(torch.tanh, 0.5, dim=2, samples=7, eps=1e-3)
    em.save(tmp_path / "kept")
    with pytest.raises(ice.errors.ProgramError, match="load it with f="):
        ice.load(tmp_path / "kept")
    again = ice.load(tmp_path / "kept", f=torch.tanh)
    inputs = draw(em, ())
    assert torch.equal(again(*inputs), em(*inputs))
    assert again.certificate.error == em.certificate.error


def test_every_sample_counts_once():
    """Weights of either sign add up to 1 for each sample, so the second layer divides by n."""
    em = ice.paper.CompactStep(torch.tanh, 1.0, dim=2, samples=6, eps=1e-10, backend="literal")
    x, y, w = draw(em, ())
    first, _ = em.network.stream(em.prompt(x, y, w).tokens)
    logs = first[..., em.features["log_weight"]][..., em.layout.tokens + 1 : -1, 0]
    plus, minus = logs.exp().chunk(2)
    assert_within(plus + minus, torch.ones(6).double(), 1e-9, "both signs")
    z = x @ w - y
    assert_within(em.ceiling * (plus - minus), torch.tanh(z), 1e-9, "f from its weights")
