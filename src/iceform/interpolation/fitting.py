r"""Values for which a softmax look-up follows f: a regularised least-squares fit.

With Phi the weights at sample points and v0 = f(L_k),

.. math:: v = v_0 + V \, \mathrm{diag}\!\left(\frac{\sigma}{\sigma^2 + (\lambda\sigma_1)^2}\right)
          U^\top (f - \Phi v_0), \qquad \Phi = U \Sigma V^\top.

Regularising toward f(L_k) instead of 0 keeps the values tame where Phi is nearly singular. Every
lambda of a scan is tried, and the best one whose values stay below twice f's size is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.grid import GradedGrid, Grid, Keys

__all__ = ["Fit", "fit_values"]

_SAMPLES = 12  # sample points per token for the fit
_ROUGH_SAMPLES = 4
_CHECKS = 7  # check points per cell; coprime with the samples, so they fall between them
_LAMBDAS = torch.logspace(-14, 0, 29, dtype=torch.float64)
_GROWTH = 2.0  # largest |v| allowed, relative to f
_LEAST = 512  # sample and check points in all, so that small grids see narrow features
_MANY = 128  # cells beyond which half the samples per cell do


@dataclass(frozen=True)
class Fit:
    """Fitted values and the largest error seen at the check points."""

    values: Tensor
    seen: float
    size: float  # max |f| at the check points


def fit_values(
    f: ScalarFunction, grid: Grid | GradedGrid, sharpness: float, *, rough: bool = False
) -> Fit:
    """Fit f on the grid's range at the given sharpness; ``rough`` is for comparing grids."""
    keys = grid.keys(sharpness)
    start = f.extended(grid.nodes, grid.low, grid.high)
    samples, tried = (_ROUGH_SAMPLES, _CHECKS // 2) if rough else (_SAMPLES, _CHECKS)
    points = _between(grid.mesh(_per_cell(grid, samples)))
    phi = _weights(grid, keys, points)
    u, sigma, vt = torch.linalg.svd(phi, full_matrices=False)
    residual = u.T @ (f(points) - phi @ start)
    damping = sigma[:, None] / (sigma[:, None].square() + (_LAMBDAS * sigma[0]).square())
    candidates = start[:, None] + vt.T @ (damping * residual[:, None])
    candidates = torch.cat([candidates, start[:, None]], 1)

    checks = _between(grid.mesh(_per_cell(grid, tried)))
    errors = (_weights(grid, keys, checks) @ candidates - f(checks)[:, None]).abs().amax(0)
    tame = candidates.abs().amax(0) <= _GROWTH * max(float(start.abs().max()), 1e-300)
    tame[-1] = True
    errors = errors.masked_fill(~tame | ~errors.isfinite(), torch.inf)
    best = int(errors.argmin())
    size = float(f(checks).abs().max())
    return Fit(candidates[:, best].contiguous(), float(errors[best]), size)


def _per_cell(grid: Grid | GradedGrid, wanted: int) -> int:
    fewer = wanted // 2 + 1 if grid.cells > _MANY else wanted
    return max(fewer, -(-_LEAST // grid.cells))


def _between(edges: Tensor) -> Tensor:
    return torch.cat([edges[:1], 0.5 * (edges[1:] + edges[:-1]), edges[-1:]])


def _weights(grid: Grid | GradedGrid, keys: Keys, z: Tensor) -> Tensor:
    t = z[:, None] - grid.center
    return torch.softmax(t * keys.slopes + keys.biases, -1)
