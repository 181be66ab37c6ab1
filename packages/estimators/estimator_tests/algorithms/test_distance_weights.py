"""Weights 1/distance are certified too: exact rationals on points that nearly coincide."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsRegressor

from estimator_tests.exact import verify
from iceform.errors import BoundError
from iceform.validation import unit_roundoff
from iceform_estimators import (
    InContextKNeighborsClassifier,
    InContextKNeighborsRegressor,
    algorithms,
)
from iceform_estimators.machine import Machine
from tests.conformance import flushing


def exactly(x, y, query, found) -> Fraction:
    """The weighted mean of these neighbours, roots to 60 digits of rational squares."""
    distances = []
    for j in found:
        square = sum(
            ((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x[j], query, strict=True)),
            Fraction(0),
        )
        with localcontext() as context:
            context.prec, context.Emin, context.Emax = 60, -10000, 10000
            root = (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()
        distances.append(Fraction(root))
    if 0 in distances:
        same = [Fraction(y[j]) for j, d in zip(found, distances, strict=True) if d == 0]
        return sum(same, Fraction(0)) / len(same)
    weights = [1 / d for d in distances]
    total = sum((w * Fraction(y[j]) for w, j in zip(weights, found, strict=True)), Fraction(0))
    return total / sum(weights, Fraction(0))


def attack(x, y, queries, k) -> None:
    """Answers against exact ones; neighbours are proven elsewhere and taken as found."""
    fit = Machine(x.shape[1]).run(algorithms.KNeighbors(k, weights="distance"), x, y)
    got, found = fit.predict(queries), fit.predictor.neighbors(queries)
    size = float(y.abs().max())
    assert fit.certificate.error <= 1e-12 * size + 1e-300  # no vacuous bound
    for i, query in enumerate(queries.tolist()):
        exact = exactly(x.tolist(), y.tolist(), query, found[i].tolist())
        off = abs(Fraction(float(got[i])) - exact)
        assert off <= Fraction(fit.certificate.error), (i, float(off), fit.certificate.error)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6, -3e9])
@pytest.mark.parametrize("apart", [1e-2, 1e-8, 1e-12])
def test_points_that_nearly_coincide(apart, offset):
    """Differences from the mean cancel what tells these apart; those of the points do not."""
    draw = torch.Generator().manual_seed(int(-math.log10(apart)))
    base = torch.randn(4, 2, generator=draw, dtype=torch.float64)
    near = [base + apart * s for s in (0.0, 1.0, 9.0)]
    x = torch.cat(near) + offset
    queries = torch.cat([x, x + 0.3 * apart, torch.nextafter(x, x + 1)])
    y = torch.tensor([10.0, -1.0, 3.0, 7.5], dtype=torch.float64).repeat(3) * torch.arange(1, 13)
    for k in (1, 2, 3):
        attack(x, y, queries, k)


def test_one_tenth_is_not_one_half():
    """Two samples at distances 1 : 9 from the query, 1e-10 of the extent away from each other."""
    x = torch.tensor([[1e6], [1e6 + 1e-9], [2e6]], dtype=torch.float64)
    near, far = (float(v) for v in x[:2, 0])
    query = torch.tensor([[math.nextafter(near, 2e6)]], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    share = (query.item() - near) / (far - near)
    fit = Machine(1).run(algorithms.KNeighbors(2, weights="distance"), x, y)
    assert float(fit.predict(query)) == pytest.approx(share, abs=fit.certificate.error)


def test_ties_and_copies_share_as_in_scikit_learn():
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 0.0], [1.0, 5.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    queries = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    attack(x, y, queries, 3)
    ours = InContextKNeighborsRegressor(3, weights="distance").fit(x.numpy(), y.numpy())
    theirs = KNeighborsRegressor(3, weights="distance").fit(x.numpy(), y.numpy())
    q = queries.numpy()
    np.testing.assert_allclose(ours.predict(q), theirs.predict(q), rtol=1e-15)
    votes = InContextKNeighborsClassifier(3, weights="distance").fit(x.numpy(), y.numpy() > 2)
    np.testing.assert_allclose(votes.predict_proba(q)[1], [0.5, 0.5])


@pytest.mark.parametrize("size", [1e-130, 1e-30, 1e130])
def test_odd_units(size):
    draw = torch.Generator().manual_seed(5)
    x = size * torch.randn(9, 3, generator=draw, dtype=torch.float64)
    y = torch.randn(9, generator=draw, dtype=torch.float64)
    attack(x, y, torch.cat([x + 1e-20 * size, 0.5 * x, 0 * x]), 4)
    attack(x, 1e280 * y, 0.5 * x, 4)
    attack(x, 2.0**-1070 * y, 0.5 * x, 4)


def test_closer_than_any_normal_number():
    """Inverses of subnormal distances overflow; only their ratios count."""
    tiny = 2.0**-1074
    x = torch.tensor([[tiny], [5 * tiny], [1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    attack(x, y, torch.tensor([[0.0], [2 * tiny]], dtype=torch.float64), 2)


@pytest.mark.parametrize("size", [1e-170, 1e155, 1e300])
def test_what_cannot_be_squared_is_refused(size):
    x = size * torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    with pytest.raises(BoundError, match="multiply the samples by a power of two"):
        Machine(1).run(algorithms.KNeighbors(2, weights="distance"), x, x[:, 0] / size)
    labels = torch.tensor([1e300, 0.0, 1.0], dtype=torch.float64)
    with pytest.raises(BoundError, match="divide the labels by a power of two"):
        Machine(1).run(algorithms.KNeighbors(2), x / size, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-42, 1e-39, 3e38, 1e100, 1e289])
@pytest.mark.parametrize(
    "program",
    [
        algorithms.KNeighbors(3),
        algorithms.KNeighbors(3, weights="distance"),
        algorithms.KernelRegression(1.0),
    ],
)
def test_labels_of_any_size_in_any_dtype(program, size, dtype):
    """float32 holds none of these labels: they are averaged in units of a power of two."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=g, dtype=torch.float64)
    y = size * x.sum(1)
    with flushing():
        found = Machine(3, dtype=dtype).run(program, x, y)
    verdict = verify(found)
    assert verdict, (verdict, found.certificate.error)
    near = 60 * unit_roundoff(dtype) * float(y.abs().max()) + 1e-322
    bounds = found.predictor.bounds(x)
    assert found.certificate.error <= near
    assert float(bounds.max()) <= near
    exact = (
        program.exact(x, y, x) if isinstance(program, algorithms.KernelRegression) else found.value
    )
    assert bool(((found.predict(x) - exact).abs() <= bounds + 1e-14 * y.abs().max()).all())
