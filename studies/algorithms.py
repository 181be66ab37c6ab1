r"""Least squares, ridge and lasso on many data sets at once, in float64.

These are the algorithms that studies 3 and 4 ask a network to emulate. All take X (..., n, d) and
y (..., n) and return coefficients (..., d); objectives are scikit-learn's. They run on any device,
so that 50000 contexts are fitted where they are used; the tests compare them with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import PrecisionError

__all__ = ["centered", "cross_validated", "lasso", "least_squares", "ridge"]

_RANK = 1e-10  # eigenvalues of X'X below this share of the largest count as zero
_LASSO_TOL = 1e-9  # largest entry of the proximal step left at the answer
_LOOK = 100  # iterations between looks at the tolerance
_MOST = 200_000  # iterations


def centered(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X and y less their means, and the means: what an intercept amounts to."""
    x_mean, y_mean = x.mean(-2), y.mean(-1)
    return x - x_mean[..., None, :], y - y_mean[..., None], x_mean, y_mean


def _moments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = x.double(), y.double()
    return x.mT @ x, (x.mT @ y[..., None])[..., 0]


def ridge(
    x: Float[Tensor, "*b n d"], y: Float[Tensor, "*b n"], alpha: float
) -> Float[Tensor, "*b d"]:
    """Argmin ||X w - y||^2 + alpha ||w||^2."""
    gram, moment = _moments(x, y)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    solution: Tensor = torch.linalg.solve(gram + alpha * eye, moment)
    return solution


def least_squares(x: Float[Tensor, "*b n d"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b d"]:
    """The least-norm minimiser of ||X w - y||^2."""
    gram, moment = _moments(x, y)
    values, vectors = torch.linalg.eigh(gram)
    kept = values > _RANK * values[..., -1:]
    inverse = torch.where(kept, 1 / values.where(kept, 1.0), 0.0)
    solution: Tensor = vectors @ (inverse[..., None] * (vectors.mT @ moment[..., None]))
    return solution[..., 0]


def lasso(
    x: Float[Tensor, "*b n d"], y: Float[Tensor, "*b n"], alpha: float, tol: float = _LASSO_TOL
) -> Float[Tensor, "*b d"]:
    """Argmin ||X w - y||^2 / (2 n) + alpha ||w||_1, by accelerated proximal steps with restarts.

    Steps end where a proximal step from the answer moves no entry by more than ``tol``.
    """
    n = x.shape[-2]
    gram, moment = _moments(x, y)
    gram, moment = gram / n, moment / n
    step = 1 / torch.linalg.eigvalsh(gram)[..., -1:]
    w = ahead = torch.zeros_like(moment)
    t = torch.ones_like(step)
    for count in range(1, _MOST + 1):
        gradient = (gram @ ahead[..., None])[..., 0] - moment
        fresh = _shrink(ahead - step * gradient, step * alpha)
        # Restart where momentum points uphill.
        uphill = ((ahead - fresh) * (fresh - w)).sum(-1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        grown = (1 + torch.sqrt(1 + 4 * t.square())) / 2
        ahead, w, t = fresh + (t - 1) / grown * (fresh - w), fresh, grown
        if count % _LOOK == 0 and _left(gram, moment, w, step, alpha) <= tol:
            return w
    left = _left(gram, moment, w, step, alpha)
    raise PrecisionError(
        f"lasso is {left:.3g} from a fixed point after {_MOST} steps, {tol:.3g} is wanted; "
        "raise alpha or drop collinear columns",
        best=left,
    )


def cross_validated(
    fit: Callable[[Tensor, Tensor, float], Tensor],
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    grid: Sequence[float],
    folds: int,
) -> float:
    """The penalty of a grid with the least squared error on rows left out of the fit.

    Rows are left out in ``folds`` runs of equal length, a remainder never; fits have an intercept.
    """
    held = torch.arange(len(y) // folds * folds, device=x.device).view(folds, -1)
    rest = torch.stack([held[torch.arange(folds) != fold].flatten() for fold in range(folds)])
    xc, yc, x_mean, y_mean = centered(x[rest], y[rest])
    asked, wanted = x[held] - x_mean[:, None], y[held] - y_mean[:, None]

    def error(alpha: float) -> float:
        made = (asked @ fit(xc, yc, alpha)[..., None])[..., 0]
        return float((made - wanted).square().mean())

    return min(grid, key=error)


def _shrink(w: Tensor, by: Tensor) -> Tensor:
    return w.sign() * (w.abs() - by).clamp(min=0)


def _left(gram: Tensor, moment: Tensor, w: Tensor, step: Tensor, alpha: float) -> float:
    gradient = (gram @ w[..., None])[..., 0] - moment
    return float((_shrink(w - step * gradient, step * alpha) - w).abs().max())
