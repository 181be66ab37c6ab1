"""Nearest neighbours and kernel averages against brute force, ties and all."""

import math

import numpy as np
import pytest
import torch
from flint import arb, ctx
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.neighbors import NearestNeighbors

from estimator_tests.exact import verify
from estimator_tests.machine import data
from iceform.errors import BoundError, ProgramError
from iceform_estimators import algorithms
from iceform_estimators.machine import Machine


def by_brute_force(x: torch.Tensor, q: torch.Tensor, k: int) -> torch.Tensor:
    """Exact distances of whole-number data, earlier samples first among equals."""
    squares = (q[:, None] - x[None]).square().sum(-1)
    return torch.sort(squares, dim=1, stable=True).indices[:, :k]


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_ties_go_to_the_earlier_sample(dim, k):
    """On a coarse lattice nearly every query is equally near to several samples."""
    g = torch.Generator().manual_seed(dim)
    x = torch.randint(-2, 3, (60, dim), generator=g).double()
    q = torch.randint(-3, 4, (40, dim), generator=g).double()
    fit = Machine(dim).run(algorithms.KNeighbors(k), x, torch.zeros(60).double())
    assert torch.equal(fit.predictor.neighbors(q), by_brute_force(x, q, k))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_neighbours_are_those_of_scikit_learn(scale):
    g = torch.Generator().manual_seed(1)
    x, q = scale * data.normal(g, 300, 4), scale * data.normal(g, 50, 4)
    y = data.normal(g, 300)
    fit = Machine(4).run(algorithms.KNeighbors(6), x, y)
    theirs = NearestNeighbors(n_neighbors=6, algorithm="brute").fit(x.numpy())
    found = theirs.kneighbors(q.numpy(), return_distance=False)
    assert np.array_equal(fit.predictor.neighbors(q).numpy(), found)
    mean = y[torch.from_numpy(found)].mean(1)
    assert float((fit.predict(q) - mean).abs().max()) <= fit.certificate.error


def test_every_sample_is_its_own_neighbour_and_copies_share():
    g = torch.Generator().manual_seed(2)
    x = data.normal(g, 30, 3)
    twice = torch.cat([x, x])
    y = torch.arange(60).double()
    fit = Machine(3).run(algorithms.KNeighbors(2), twice, y)
    found = fit.predictor.neighbors(x)
    assert torch.equal(found[:, 0], torch.arange(30))
    assert torch.equal(found[:, 1], torch.arange(30, 60))
    assert torch.equal(fit.predict(x), torch.arange(30) + 15.0)


def test_far_outliers_do_not_blur_the_neighbours_of_others():
    g = torch.Generator().manual_seed(3)
    x, q = data.normal(g, 200, 3), data.normal(g, 40, 3)
    x[0] = 1e6
    fit = Machine(3).run(algorithms.KNeighbors(4), x, torch.zeros(200).double())
    assert torch.equal(fit.predictor.neighbors(q), by_brute_force(x, q, 4))


def off_by(value, point, x, y, gamma) -> float:
    """How far a kernel average is from the exact one."""
    ctx.prec = 256
    far = [
        sum(((arb(a) - arb(b)) ** 2 for a, b in zip(point, row, strict=True)), arb(0))
        for row in x.tolist()
    ]
    weights = [(-arb(gamma) * square).exp() for square in far]
    mean = sum((w * arb(v) for w, v in zip(weights, y.tolist(), strict=True)), arb(0))
    return float(abs(arb(value) - mean / sum(weights, arb(0))).abs_upper())


def test_between_two_samples_a_sharp_kernel_is_off_by_its_logits_rounding():
    x, y = torch.tensor([[0.6, 0.8], [0.8, -0.6], [-5.0, -5.0]]).double(), torch.eye(3)[1].double()
    along = torch.linspace(-0.5, 1.5, 41, dtype=torch.float64)[:, None]
    q = along * torch.tensor([[1.4, 0.2]]).double() + 1e-8 * torch.randn(41, 2).double()
    fit = Machine(2).run(algorithms.KernelRegression(1e7), x, y)
    found = zip(q.tolist(), fit.predict(q).tolist(), fit.predictor.bounds(q).tolist(), strict=True)
    share = [off_by(value, point, x, y, 1e7) / bound for point, value, bound in found]
    assert 0.01 < max(share) <= 1


@pytest.mark.parametrize("gamma", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_kernel_regression_averages_with_the_rbf_kernel(gamma, offset):
    g = torch.Generator().manual_seed(4)
    x, y, q = data.normal(g, 70, 3) + offset, data.normal(g, 70), data.normal(g, 30, 3) + offset
    fit = Machine(3).run(algorithms.KernelRegression(gamma), x, y)
    assert verify(fit), "the samples themselves"
    got, bounds = fit.predict(q), fit.predictor.bounds(q).tolist()
    for point, value, bound in zip(q.tolist(), got.tolist(), bounds, strict=True):
        assert off_by(value, point, x, y, gamma) <= bound
    kernel = rbf_kernel(q.numpy(), x.numpy(), gamma=gamma)
    theirs = kernel @ y.numpy() / kernel.sum(1)
    np.testing.assert_allclose(got.numpy(), theirs, rtol=0, atol=1e-6 if offset else 1e-10)


def test_a_sharp_kernel_is_no_worse_than_the_range_of_the_labels():
    x, y = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([3.0, 5.0]).double()
    fit = Machine(1).run(algorithms.KernelRegression(1e11), x, y)
    assert fit.certificate.error <= 2.0001
    assert float(fit.predict(torch.tensor([[0.9]]).double())) == 5.0


def test_more_neighbours_than_samples_are_refused():
    x, y = torch.randn(8, 2).double(), torch.zeros(8).double()
    with pytest.raises(ProgramError, match="n_neighbors = 9 but n_samples = 8"):
        Machine(2).run(algorithms.KNeighbors(9), x, y)


def test_queries_far_away_and_gammas_too_large_are_refused():
    x, y = torch.randn(8, 2).double(), torch.zeros(8).double()
    for program in (algorithms.KNeighbors(2), algorithms.KernelRegression(1.0)):
        fit = Machine(2).run(program, x, y)
        with pytest.raises(BoundError, match="bring the query closer"):
            fit.predict(torch.full((1, 2), 1e9).double())
        with pytest.raises(BoundError):
            fit.predict(torch.full((1, 2), math.nan).double())
    with pytest.raises(BoundError, match="use a smaller gamma"):
        Machine(2).run(algorithms.KernelRegression(1e13), x, y)


@pytest.mark.parametrize("rows", [1, 3])
def test_samples_in_one_place_answer_every_query(rows):
    x = torch.full((rows, 2), 0.1, dtype=torch.float64)
    y = torch.arange(rows).double()
    q = torch.tensor([[1e6, -3.0], [0.1, 0.1]], dtype=torch.float64)
    machine = Machine(2)
    nearest = machine.run(algorithms.KNeighbors(1), x, y)
    assert torch.equal(nearest.predictor.neighbors(q), torch.zeros(2, 1, dtype=torch.long))
    average = machine.run(algorithms.KernelRegression(), x, y)
    off = (average.predict(q) - y.mean()).abs().max()
    assert off <= average.certificate.error
