"""Quantile regression: the pinball loss, its corner sharp, or rounded where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from iceform.algorithms.examples import fan
from iceform.algorithms.linear import LinearModel, fitted
from iceform.algorithms.pinball import magnified, through_samples
from iceform.algorithms.record import Peer, option
from iceform.certificates import Result
from iceform.functions import Loss, loss_named
from iceform.machine.proofs import prove
from iceform.machine.running import Running
from iceform.machine.solvers import minimise
from iceform.machine.sources import Source

__all__ = ["Quantile"]

_WIDTH = 0.05  # of a corner, in deviations of the labels, to begin with
_NARROWER, _LEVELS = 4.0, 16  # by how much in each of so many turns


@dataclass(frozen=True)
class Quantile(LinearModel):
    """A quantile's line.

    It is found by rounded corners, narrower and narrower, until the samples that it goes through
    are proven; where there is no such line, or a penalty, the corner stays rounded, and the
    certificate says over what width.

    Parameters
    ----------
    quantile
        Which.
    alpha
        alpha/2 ||w||^2 beside the mean loss, both on scaled labels.
    width
        Of a rounded corner, in standard deviations of the labels; None for a sharp one.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.
    """

    name: ClassVar[str] = "quantile"
    title: ClassVar[str] = "Quantile regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "The line below which a share of the samples lies."
    objective: ClassVar[str] = "min mean_i p(r_i), p the pinball loss"
    lookup: ClassVar[str] = "a smooth step from quantile - 1 to quantile"
    estimator: ClassVar[str] = "InContextQuantileRegressor"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.QuantileRegressor",
        options={"alpha": None, "width": None},
        settings={"alpha": 0.0},
        differs="its penalty is |w|_1",
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
    width: float | None = field(
        default=None,
        metadata=option(
            "Width of a rounded corner, in deviations of the labels; without one it is sharp.",
            kind=float,
            low=0,
            open="low",
            optional=True,
        ),
    )

    def loss(self) -> Loss:
        """As it is looked up first."""
        return loss_named("quantile", quantile=self.quantile, width=self.width or _WIDTH)

    def l2(self, rows: int) -> float:
        return self.alpha

    def stream(self, machine: Running, source: Source) -> Result:
        if self.width is not None or self.alpha:
            return _rounded(super().stream(machine, source), self.width or _WIDTH)
        first = self.problem(machine, source)
        w, spent = first.start(), 0
        for level in range(_LEVELS):
            problem = magnified(first, _NARROWER**level)
            found = minimise(
                problem, tol=self.tol, max_passes=max(1, self.max_passes - spent),
                precondition=self.precondition, start=w,
            )  # fmt: skip
            spent += problem.passes
            vertex = through_samples(problem, found.w, self.quantile)
            if vertex is not None:
                problem.passes = spent + vertex.passes
                return fitted(self, problem, vertex.solution, vertex.proof)
            if spent >= self.max_passes:
                break
            w = _NARROWER * found.w
        problem.passes = spent
        width = _WIDTH / _NARROWER**level
        return _rounded(fitted(self, problem, found, prove(problem, found.w)), width)


def _rounded(result: Result, width: float) -> Result:
    """Certified against a rounded corner, and said so."""
    what = f"the pinball loss, its corner rounded over {width:g} deviations of the labels"
    certificate = result.certificate
    domain = {**certificate.domain, "objective": what}
    return replace(result, certificate=replace(certificate, domain=domain))
