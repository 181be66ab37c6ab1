"""Principal components against exact ones, in ball arithmetic."""

import math

import pytest
import torch
from flint import arb, arb_mat, ctx

from estimator_tests.machine import data
from estimator_tests.machine.exact import BITS, numbers
from iceform.errors import BoundError, ProgramError
from iceform_estimators import algorithms
from iceform_estimators.machine import Machine


def exact_component(x: torch.Tensor, guess: torch.Tensor) -> list[arb] | None:
    """The eigenvector of the covariance next to a guess, by Rayleigh quotient iteration."""
    ctx.prec = BITS
    rows = [[arb(v) for v in row] for row in x.tolist()]
    n, d = len(rows), len(rows[0])
    mean = [sum((row[j] for row in rows), arb(0)) / n for j in range(d)]
    centred = arb_mat([[a - m for a, m in zip(row, mean, strict=True)] for row in rows])
    cov = (centred.transpose() * centred / n).mid()
    v = arb_mat([[a] for a in numbers(guess)])
    for _ in range(12):
        image = cov * v
        value = sum((image[j, 0] * v[j, 0] for j in range(d)), arb(0)).mid()
        left = max(abs(image[j, 0] - value * v[j, 0]) for j in range(d))
        if left <= arb(2) ** -150 * abs(value):
            break
        shifted = arb_mat([[cov[j, k] - (value if j == k else 0) for k in range(d)]
                           for j in range(d)])  # fmt: skip
        v = shifted.mid().solve(v).mid()
        length = sum((v[j, 0] ** 2 for j in range(d)), arb(0)).sqrt().mid()
        v = (v / length).mid()
    else:
        return None
    entries = [v[j, 0] for j in range(d)]
    along = sum((a * b for a, b in zip(entries, numbers(guess), strict=True)), arb(0))
    return [a if along > 0 else -a for a in entries]


KINDS = ["normal", "ill 1e2", "offset 1e6", "tiny 1e-8", "huge 1e8", "heavy tails",
         "single feature", "few samples", "wide", "counts"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_components_are_within_their_certificates(kind):
    g = torch.Generator().manual_seed(7)
    x = (data.REGULAR | data.DEPENDENT)[kind](g)
    k = min(3, x.shape[1])
    found = Machine(x.shape[1]).run(algorithms.PCA(k), x)
    errors = found.errors["components"]
    assert found.certificate.error == math.nextafter(float(errors.max()), math.inf)
    for j in range(k):
        bound = float(errors[j])
        assert bound < 1e-4, (kind, j, bound)
        exact = exact_component(x, found.value[j])
        assert exact is not None
        off = sum(((a - b) ** 2 for a, b in
                   zip(numbers(found.value[j]), exact, strict=True)), arb(0))  # fmt: skip
        assert float(off.sqrt().abs_upper()) <= bound, (kind, j, float(off.sqrt()), bound)


def test_variances_are_those_of_the_singular_values():
    g = torch.Generator().manual_seed(0)
    x = data.normal(g, 50, 6) * torch.arange(1, 7).double()
    found = Machine(6).run(algorithms.PCA(6), x)
    values = torch.linalg.svdvals(x - x.mean(0)).square() / 49
    torch.testing.assert_close(found.parts["explained_variance"], values, rtol=1e-12, atol=0)
    eye = found.value @ found.value.mT
    torch.testing.assert_close(eye, torch.eye(6).double(), rtol=0, atol=1e-13)


def test_equal_variances_have_no_components_of_their_own():
    eye = torch.eye(4).double()
    found = Machine(4).run(algorithms.PCA(2), torch.cat([eye, -eye]))
    assert found.certificate.error == math.inf


def test_no_more_components_than_there_are():
    x = torch.randn(3, 5, dtype=torch.float64)
    with pytest.raises(ProgramError, match=r"n_components = 4 exceeds .* = 3"):
        Machine(5).run(algorithms.PCA(4), x)
    with pytest.raises(BoundError, match="n_components must be a whole number"):
        Machine(5).run(algorithms.PCA(0), x)
    with pytest.raises(ProgramError, match="build one with dim >= 5"):
        Machine(4).run(algorithms.PCA(1), x)


def test_one_krylov_space_that_holds_all_components_gives_all():
    """Thirty equal variances, but for chance: the space grows to all of it, once."""
    x = torch.randn(200, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = Machine(30).run(algorithms.PCA(n_components=30), x)
    assert result.passes <= 2 * 30
    exact = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh
    turned = 1 - (result.value * exact).sum(1).abs()
    assert float(turned.max()) <= max(result.certificate.error, 1e-12)
