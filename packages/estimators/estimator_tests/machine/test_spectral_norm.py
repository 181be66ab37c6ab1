"""The bound of a matrix's norm that a fit scales its steps by."""

import pytest
import torch

from iceform_estimators.machine.problem import spectral_norm
from tests.arithmetic.test_eigenvalues import drawn, exact_eigenvalues


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1.0, 1e140])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 2), (30, 30)])
def test_a_norm_is_no_less_and_hardly_more(shape, scale):
    for seed in range(20):
        matrix = drawn(seed, shape, scale)
        matrix[:, -1] = matrix[:, 0] * (1 + 2.0**-40)
        (*_, largest), _ = exact_eigenvalues((matrix.mT @ matrix / scale**2).tolist())
        found = spectral_norm(matrix)
        assert largest**0.5 * scale * (1 - 1e-13) <= found <= 1.02 * largest**0.5 * scale


def test_norms_of_nothing_and_of_no_numbers():
    assert spectral_norm(torch.zeros(0, 3).double()) == 0
    assert spectral_norm(torch.zeros(3, 3).double()) == 0
    assert spectral_norm(torch.tensor([[1.0, float("nan")]]).double()) == float("inf")
    assert spectral_norm(torch.eye(5).double()) == pytest.approx(1, rel=0.01)
