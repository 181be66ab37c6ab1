"""Bounds over a spectrum, against matrices that have it."""

import pytest
import torch

from iceform.paper.schedules import chebyshev_steps
from iceform.targets.recurrence import Recurrence

METHODS = {
    "plain": (0.8, (1.0,) * 12, 0.0, 0.0),
    "ridge": (0.5, (1.0,) * 9, 0.3, 0.0),
    "momentum": (0.7, (1.0,) * 15, 0.05, 0.8),
    "too long a step": (2.6, (1.0,) * 6, 0.0, 0.0),
    "chebyshev": (1.0, chebyshev_steps(0.05, 1.0, 10), 0.0, 0.0),
}


def problem(bottom, seed):
    """Samples whose X'X/n has eigenvalues in [bottom, 1], both ends among them."""
    torch.manual_seed(seed)
    d, n = 5, 9
    spectrum = bottom + (1 - bottom) * torch.rand(d, dtype=torch.float64)
    spectrum[:2] = torch.tensor([bottom, 1.0])
    u = torch.linalg.qr(torch.randn(n, d, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    return (n**0.5) * u @ torch.diag(spectrum.sqrt()) @ v.T, torch.randn(n, dtype=torch.float64)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("bottom", [0.0, 0.2])
def test_iterates_residuals_and_arrivals_stay_below(name, bottom):
    lr, factors, penalty, momentum = METHODS[name]
    r = Recurrence(lr, factors, penalty, momentum, bottom, 1.0)
    for seed in range(20):
        x, y = problem(bottom, seed)
        rms = float(y.square().mean().sqrt())
        size = len(x)

        def step(w, v, rho, x=x, y=y, size=size):
            g = x.T @ (x @ w - y) / size + penalty * w
            v = momentum * v - rho * lr * g
            return w + v, v

        path = [(torch.zeros(5, dtype=torch.float64),) * 2]
        for rho in factors:
            path.append(step(*path[-1], rho))
        for t, (w, _) in enumerate(path):
            assert float(w.norm()) <= r.coefficients[t] * rms
            assert float((x @ w - y).square().mean().sqrt()) <= r.residuals[t] * rms
        # A kick in w, in v and in both after step t, carried to the end.
        for t in range(len(factors)):
            kick = torch.randn(5, dtype=torch.float64)
            for which, bound in enumerate(r.arrivals[t]):
                w, v = path[t + 1]
                w, v = w + kick * (which != 1), v + kick * (which != 0)
                for rho in factors[t + 1 :]:
                    w, v = step(w, v, rho)
                moved = float((w - path[-1][0]).norm())
                assert moved <= bound * float(kick.norm()) * (1 + 1e-9) + 1e-12


def test_bounds_are_attained_within_the_mesh():
    r = Recurrence(0.8, (1.0,) * 12, 0.0, 0.0, 0.0, 1.0)
    assert all(1 <= both <= 1.02 for _, _, both in r.arrivals)
    strong = Recurrence(0.8, (1.0,) * 12, 0.0, 0.0, 0.5, 1.0)
    assert strong.arrivals[0][2] <= 1.02 * 0.6**11
