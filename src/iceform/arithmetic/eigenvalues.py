r"""Eigenvalues of computed matrices, bounded whoever computes them.

**Eigenvalues.** For symmetric G and any V with :math:`\|V'V - I\| \le s < 1` the eigenvalues of
V'GV are those of G times factors within 1 ± s (Ostrowski), and within :math:`\|V'GV - Λ\|` of the
diagonal of Λ (Weyl). How V and Λ were found does not matter.

**Gram matrices.** X'X is summed in blocks of b rows: n/b + b roundings of the sum of magnitudes,
which is at most :math:`\|X\|_F^2` in norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import UNIT


def eigenvalues_of(matrix: Tensor) -> tuple[Tensor, float]:
    """Eigenvalues of symmetric matrices (*batch, p, p), and what any of them may be off by.

    Examples
    --------
    >>> values, off = eigenvalues_of(torch.diag(torch.tensor([3.0, 1.0]).double()))
    >>> values, off < 1e-12
    (tensor([1., 3.], dtype=torch.float64), True)
    """
    p = matrix.shape[-1]
    values, vectors = torch.linalg.eigh(matrix)
    eye = torch.eye(p, dtype=matrix.dtype, device=matrix.device)
    # Products of p terms of rows that are about 1 long, twice.
    rounded = 4 * (p + 4) * UNIT * p
    skew = float(torch.linalg.matrix_norm(vectors.mT @ vectors - eye).max()) + rounded
    left = vectors.mT @ (matrix @ vectors) - torch.diag_embed(values)
    size = float(torch.linalg.matrix_norm(matrix).max())
    apart = float(torch.linalg.matrix_norm(left).max()) + rounded * size
    off = 2 * (apart + skew * size)
    return values, off if skew < 0.5 and math.isfinite(off) else math.inf


def gram_eigenvalues(x: Tensor) -> tuple[Tensor, float]:
    """Eigenvalues of X'X/n for X (*batch, n, p), and what any of them may be off by.

    Examples
    --------
    >>> values, off = gram_eigenvalues(torch.tensor([[2.0], [0.0]]).double())
    >>> values, off < 1e-12
    (tensor([2.], dtype=torch.float64), True)
    """
    x, n = x.detach().double(), x.shape[-2]
    gram = sum((part.mT @ part for part in x.split(tuning.EIGENVALUES_BLOCK, -2)), x.new_zeros(()))
    assert isinstance(gram, Tensor)
    values, off = eigenvalues_of(gram / n)
    lengths = float(x.square().sum((-2, -1)).max())
    summed = (
        2
        * (min(n, tuning.EIGENVALUES_BLOCK) + n / tuning.EIGENVALUES_BLOCK + 8)
        * UNIT
        * lengths
        / n
    )
    return values, off + summed


def gram_range(x: Tensor) -> tuple[float, float]:
    """Between what the eigenvalues of X'X/n lie, over all of a batch; the lower end at least 0."""
    values, off = gram_eigenvalues(x)
    return max(0.0, float(values.min()) - off), float(values.max()) + off
