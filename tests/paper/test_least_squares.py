"""LeastSquares and RidgeRegression."""

from functools import partial

import pytest
import torch

import iceform as ice
from tests.conformance import assert_within
from tests.paper.suite import Suite


def well_conditioned(n, d, condition, *, batch=(), dtype=torch.float64, top=0.09, norm=1.0):
    """X with eigenvalues of X'X/n from top/condition to top, and y = X w for a w of given norm."""
    q, _ = torch.linalg.qr(torch.randn(*batch, n, d, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(*batch, d, d, dtype=torch.float64))
    scales = (torch.linspace(1 / condition, 1, d, dtype=torch.float64) * top * n).sqrt()
    x = q * scales @ v
    w = torch.randn(*batch, d, dtype=torch.float64)
    w = norm * w / w.norm(dim=-1, keepdim=True)
    return x.to(dtype), (x @ w[..., None])[..., 0].to(dtype), w


class _Solver(Suite):
    samples, dim = 8, 2
    defined_by_one_pass = False
    smooth = ("spectral",)  # hard: many steep look-ups in a row, no finite difference resolves them
    eps, hard = (1e-7, 3e-2, None), {"tokens": 65, "steps": 8}

    def draw(self, emulator, batch):
        x, y, _ = well_conditioned(8, 2, 3.9, batch=batch, dtype=emulator.dtype, top=0.0899)
        return x, y

    def corners(self, inputs):
        return None

    def interior(self, inputs):
        return list(inputs)


class TestLeastSquares(_Solver):
    make = partial(
        ice.paper.LeastSquares, dim=2, samples=8, condition=4.0, largest=0.09, radius=3.0
    )


class TestRidgeRegression(_Solver):
    captured = False
    make = partial(ice.paper.RidgeRegression, 0.2, dim=2, samples=8, largest=0.09, radius=3.0)


@pytest.mark.parametrize("seed", range(5))
def test_condition_50_to_1e_6_in_at_most_60_passes(seed):
    torch.manual_seed(seed)
    x, y, _ = well_conditioned(40, 6, 49.999)
    bound = 1.01 * float(max(x.abs().max(), y.abs().max()))
    em = ice.paper.LeastSquares(
        dim=6, samples=40, condition=50.0, largest=0.09, bound=bound, radius=1.01, eps=1e-6
    )
    assert em.passes <= 60
    got = em(x, y)
    assert_within(got, em.reference(x, y), 1e-6, "closed form")
    assert_within(got, torch.linalg.lstsq(x, y[:, None]).solution[:, 0], 1e-6, "lstsq")


def test_60_passes_of_ridge_match_the_closed_form():
    x, y, _ = well_conditioned(50, 8, 1000.0)
    y = y + 0.1 * torch.randn_like(y)
    bound = 1.01 * float(max(x.abs().max(), y.abs().max()))
    em = ice.paper.RidgeRegression(
        0.25, dim=8, samples=50, largest=0.09, bound=bound, radius=2.0, steps=60, eps=1e-7
    )
    assert em.passes == 60
    want = torch.linalg.solve(x.T @ x + 0.25 * torch.eye(8, dtype=torch.float64), x.T @ y)
    assert_within(em(x, y), want, 1e-7, "closed form")


@pytest.mark.parametrize("schedule", ["constant", "chebyshev", "nesterov"])
def test_every_schedule_reaches_what_it_certifies(schedule):
    x, y, _ = well_conditioned(30, 4, 19.9)
    bound = 1.01 * float(max(x.abs().max(), y.abs().max()))
    em = ice.paper.LeastSquares(
        dim=4, samples=30, condition=20.0, largest=0.09, bound=bound, radius=1.01, eps=1e-6,
        schedule=schedule,
    )  # fmt: skip
    assert_within(em(x, y), em.reference(x, y), em.certificate.error, schedule)


def test_data_with_other_eigenvalues_is_refused():
    x, y, _ = well_conditioned(30, 4, 80.0)
    em = ice.paper.LeastSquares(
        dim=4, samples=30, condition=20.0, largest=0.09, bound=2.0, radius=2.0
    )
    with pytest.raises(
        ice.errors.BoundError, match=r"eigenvalues of X'X/n reach from .* pass smallest="
    ):
        em(x, y)


def test_a_solution_beyond_the_radius_is_refused():
    x, y, _ = well_conditioned(30, 4, 10.0, norm=5.0)
    em = ice.paper.LeastSquares(
        dim=4, samples=30, condition=20.0, largest=0.09, bound=3.0, radius=2.0
    )
    with pytest.raises(ice.errors.BoundError, match="raise"):
        em(x, y)
