"""Poisson regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from iceform.expressions import Loss, loss_named
from iceform_estimators.algorithms.examples import counts
from iceform_estimators.algorithms.linear import LinearModel
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.tuning import PEER_TOLERANCE, PENALTY_SLIDER


def _rate(z: Tensor) -> Tensor:
    """e^z."""
    return torch.exp(z)


@dataclass(frozen=True)
class Poisson(LinearModel):
    r"""Counts, :math:`\min \frac1n \sum_i (e^{z_i} - y_i z_i) + \frac\alpha2 \|w\|^2, z = w.x + b`.

    Predictions are e^z.

    Parameters
    ----------
    alpha
        The penalty.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Poisson(alpha=0.0), X, (X[:, 0] + 2).exp()).coef.numpy().round(6))
    [1.]
    """

    name: ClassVar[str] = "poisson"
    title: ClassVar[str] = "Poisson regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "Counts."
    objective: ClassVar[str] = "min mean_i (e^z_i - y_i z_i) + alpha |w|^2 / 2, z = Xw + b"
    lookup: ClassVar[str] = "the exponential"
    estimator: ClassVar[str] = "InContextPoissonRegressor"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.PoissonRegressor",
        settings={"tol": PEER_TOLERANCE, "max_iter": 100_000, "solver": "newton-cholesky"},
    )
    example = staticmethod(counts)
    response: ClassVar[Callable[[Tensor], Tensor] | None] = staticmethod(_rate)

    alpha: float = setting(1.0, "The penalty's weight.", low=0, slider=PENALTY_SLIDER)

    def loss(self) -> Loss:
        return loss_named("poisson")

    def l2(self, rows: float) -> float:
        return self.alpha

    def scores(self, y: Tensor, predicted: Tensor) -> dict[str, float]:
        logs = torch.special.xlogy(y, y / predicted)
        return {"Poisson deviance": float(2 * (logs - y + predicted).mean())}
