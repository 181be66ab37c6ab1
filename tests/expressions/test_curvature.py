"""Second-order facts about losses, checked against automatic differentiation and flint."""

import pytest
import torch
from flint import arb, ctx

from iceform.expressions import LOSSES, Loss, loss_named

KNOWN = sorted(set(LOSSES))
Z = torch.linspace(-12, 12, 2001, dtype=torch.float64)


def slopes(loss: Loss, z: torch.Tensor) -> torch.Tensor:
    z = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss.derivative(z).sum(), z)
    return slope


@pytest.mark.parametrize("name", KNOWN)
def test_the_bend_is_the_slope_of_the_derivative(name):
    loss = loss_named(name)
    facts = loss.curvature
    smooth = torch.ones_like(Z, dtype=torch.bool)
    for kink in facts.kinks or ():
        smooth &= (Z - kink).abs() > 1e-6
    want = torch.ones_like(Z) if facts.quadratic else slopes(loss, Z)
    torch.testing.assert_close(facts.bend(Z)[smooth], want[smooth], rtol=1e-9, atol=1e-14)
    if facts.steepest is not None:
        assert float(facts.bend(Z).max()) <= facts.steepest * (1 + 1e-12)


@pytest.mark.parametrize("name", KNOWN)
def test_the_third_derivative_is_bounded_by_the_second(name):
    facts = loss_named(name).curvature
    if facts.concordance is None:
        assert facts.kinks is not None
        return
    z = Z.clone().requires_grad_()
    bend = facts.bend(z)
    (third,) = torch.autograd.grad(bend.sum(), z)
    assert bool((third.abs() <= facts.concordance * bend.detach() * (1 + 1e-9)).all())


@pytest.mark.parametrize("name", [n for n in KNOWN if n != "poisson"])
def test_a_majorizer_lies_above(name):
    """The integral of l' between any two points stays below the quadratic at the first."""
    loss, points = loss_named(name), torch.linspace(-6, 6, 25, dtype=torch.float64)
    facts = loss.curvature
    nodes, weights = legendre(200)
    for z in points:
        ends = torch.linspace(-9, 9, 37, dtype=torch.float64)
        middle, half = (ends + z) / 2, (ends - z) / 2
        inside = middle[:, None] + half[:, None] * nodes
        rise = half * (loss.derivative(inside) @ weights)
        step = ends - z
        above = loss.derivative(z) * step + facts.majorizer(z) * step.square() / 2
        assert bool((rise <= above + 1e-3 * step.square().clamp(min=1e-6)).all()), float(z)


def legendre(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


@pytest.mark.parametrize("z", [-700.0, -60.0, -30.0, 0.0, 1e-9, 30.0, 60.0, 700.0])
def test_small_curvature_is_small_to_its_last_digits(z):
    """A saturated sample must not seem to bend what it does not."""
    ctx.prec = 320
    got = float(loss_named("logistic").curvature.bend(torch.tensor(z).double()))
    exact = 1 / (2 + arb(z).exp() + (-arb(z)).exp())  # s (1 - s) of s = 1 / (1 + exp(-z))
    assert abs(arb(got) - exact) <= arb(16 * 2.0**-53) * exact + arb(2) ** -1040


def test_a_users_loss_is_taken_as_it_comes():
    facts = Loss.of(torch.atan).curvature
    torch.testing.assert_close(facts.bend(Z), 1 / (1 + Z.square()), rtol=1e-9, atol=0)
    assert facts.majorizer is None
    assert facts.concordance is None
    assert not facts.quadratic
