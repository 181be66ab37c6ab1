"""Loops that keep to the device against loops that ask the host at every pass."""

import pytest
import torch

import iceform as ice
from iceform.run import loops


def _ridge():
    torch.manual_seed(3)
    x = torch.rand(60, 4, dtype=torch.float64) * 2 - 1
    y = (x @ torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)).clamp(-1, 1)
    return x, y


@pytest.mark.parametrize("schedule", ["constant", "nesterov"])
def test_a_loop_on_the_device_takes_the_same_steps(schedule):
    x, y = _ridge()
    em = ice.paper.GradientDescent(
        "squared", 12, lr=0.5, l2=0.01, schedule=schedule, dim=4, samples=60, eps=None, w_bound=2.0
    )
    start = torch.zeros(4, dtype=torch.float64)
    found = em._on_device(em.bind(), x, y, start)
    expected = em._iterates(x, y, start, em._passes(em.bind()))[-1]
    assert (found - expected).abs().max() <= 12 * 8 * torch.finfo(torch.float64).eps


def test_an_iterate_that_leaves_the_domain_is_refused():
    x, y = _ridge()
    em = ice.paper.GradientDescent("squared", 5, lr=6.0, dim=4, samples=60, eps=None, w_bound=0.05)
    with pytest.raises(ice.errors.BoundError, match="the certificate holds up to"):
        em._on_device(em.bind(), x, y, torch.zeros(4, dtype=torch.float64))


def test_what_is_not_a_number_is_seen():
    _, seen = loops.descend(
        lambda w: w * torch.nan, torch.ones(2).double(), 1, [(1.0, 0.0, 0.0)] * 3
    )
    assert seen.isnan().all()


def test_the_proximal_step_finds_the_lasso():
    """At the solution, every gradient is at most l1, and equals it where w is not zero."""
    x, y = _ridge()
    l1, n = 0.02, len(x)

    def sums(w):
        return x.mT @ (x @ w - y)

    w, _ = loops.descend(sums, torch.zeros(4).double(), n, [(1.0, 0.0, 0.0)] * 400, l1)
    gradient = sums(w) / n
    on = w != 0
    assert bool(on.any())
    assert bool((~on).any())
    close = 1e-9
    assert (gradient[on] + l1 * torch.sign(w[on])).abs().max() <= close
    assert gradient[~on].abs().max() <= l1 + close
