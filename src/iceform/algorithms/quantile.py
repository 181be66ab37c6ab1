"""Quantile regression: the pinball loss, its corner rounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from iceform.algorithms.examples import fan
from iceform.algorithms.linear import LinearModel
from iceform.algorithms.record import Peer, option
from iceform.functions import Loss, loss_named

__all__ = ["Quantile"]


@dataclass(frozen=True)
class Quantile(LinearModel):
    """A quantile's line: the pinball loss with its corner rounded over ``width`` label deviations.

    Parameters
    ----------
    quantile
        Which.
    alpha
        alpha/2 ||w||^2 beside the mean loss, both on scaled labels.
    width
        Of the rounded corner, in standard deviations of the labels.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.
    """

    name: ClassVar[str] = "quantile"
    title: ClassVar[str] = "Quantile regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "The line below which a share of the samples lies."
    objective: ClassVar[str] = "min mean_i p(r_i), p the pinball loss with a rounded corner"
    lookup: ClassVar[str] = "a smooth step from quantile - 1 to quantile"
    estimator: ClassVar[str] = "InContextQuantileRegressor"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.QuantileRegressor",
        options={"alpha": None, "width": None},
        settings={"alpha": 0.0},
        differs="its corner is sharp and its penalty is |w|_1",
    )
    penalised: ClassVar[bool] = False
    example = staticmethod(fan)

    quantile: float = field(
        default=0.5,
        metadata=option(
            "Which quantile, between 0 and 1.", low=0, high=1, open="low high", slider=(0.02, 0.98)
        ),
    )
    alpha: float = field(
        default=0.0, metadata=option("The penalty's weight.", low=0, slider=(1e-4, 10))
    )
    width: float = field(
        default=0.05,
        metadata=option(
            "Width of the rounded corner, in deviations of the labels.", low=0, open="low"
        ),
    )

    def loss(self) -> Loss:
        return loss_named("quantile", quantile=self.quantile, width=self.width)

    def l2(self, rows: int) -> float:
        return self.alpha
