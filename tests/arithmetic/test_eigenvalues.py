"""Norms and eigenvalues of computed matrices: never below the exact ones, hardly above."""

import flint
import pytest
import torch

from iceform.arithmetic import eigenvalues_of, gram_eigenvalues
from iceform.arithmetic.eigenvalues import gram_range


def exact_eigenvalues(rows):
    """Of a symmetric matrix of floats, sorted, in balls."""
    with flint.ctx.workprec(400):
        n = len(rows)
        matrix = flint.arb_mat([[flint.arb(v) for v in row] for row in rows])
        found = flint.acb_mat(matrix).eig(multiple=True, tol=1e-60)
        return sorted(float(v.real.mid()) for v in found), n


def drawn(seed, shape, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("power", [0, -6, -12])
def test_eigenvalues_are_within_what_is_said(power):
    for seed in range(10):
        x = drawn(seed, (12, 4)) * torch.tensor([1.0, 1.0, 1.0, 10.0**power], dtype=torch.float64)
        gram = x.mT @ x
        exact, _ = exact_eigenvalues(gram.tolist())
        values, off = eigenvalues_of(gram)
        apart = (values - torch.tensor(exact, dtype=torch.float64)).abs()
        assert float(apart.max()) <= off <= 1e-12 * exact[-1]


def test_wrong_eigenvectors_do_not_pass(monkeypatch):
    """Whoever computes them is not believed."""
    x = drawn(1, (12, 4))
    gram, eigh = x.mT @ x, torch.linalg.eigh

    def wrong(matrix):
        values, vectors = eigh(matrix)
        return values * 0.5, vectors

    monkeypatch.setattr(torch.linalg, "eigh", wrong)
    values, off = eigenvalues_of(gram)
    assert off >= float(eigh(gram)[0][-1]) - float(values[-1])


def test_gram_matrices_of_many_rows():
    x = torch.rand(5000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [[int(v * 2**53) for v in row] for row in x.tolist()]
    with flint.ctx.workprec(400):
        whole = flint.fmpz_mat(rows)
        gram = whole.transpose() * whole
        exact = flint.arb_mat(gram) / (5000 * flint.arb(2) ** 106)
        found = sorted(
            float(v.real.mid()) for v in flint.acb_mat(exact).eig(multiple=True, tol=1e-60)
        )
    values, off = gram_eigenvalues(x)
    assert float((values - torch.tensor(found, dtype=torch.float64)).abs().max()) <= off <= 1e-12


def test_the_range_of_a_batch_holds_every_eigenvalue():
    x = torch.stack([drawn(2, (3, 3)), drawn(3, (3, 3), 0.1), drawn(4, (3, 1)).expand(3, 3)])
    grams = [part.mT @ part / 3 for part in x]
    exact = [value for gram in grams for value in exact_eigenvalues(gram.tolist())[0]]
    low, high = gram_range(x)
    assert 0 <= low <= max(0.0, min(exact)) + 1e-30
    assert low == 0  # of columns that are equal
    assert max(exact) <= high <= max(exact) * (1 + 1e-12)
    assert gram_range(torch.eye(2, dtype=torch.float64))[0] == pytest.approx(0.5)
