"""Logistic regression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from iceform.algorithms.examples import flats
from iceform.algorithms.linear import LinearClassifier, fitted_inside
from iceform.algorithms.record import Peer, option
from iceform.certificates import Result
from iceform.functions import Loss, loss_named
from iceform.machine import Running, Source, Stream
from iceform.machine.inside import SOLVERS, Domain
from iceform.machine.tables import table_of
from iceform.validation import check_choice

__all__ = ["Logistic"]

_SATURATED = 64.0  # the sigmoid is 0 or 1 to 1e-28 beyond


def _peer(classes: int = 2, **settings: Any) -> Any:
    """scikit-learn's, one class against the rest where there are several."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    peer = LogisticRegression(**settings)
    return OneVsRestClassifier(peer) if classes > 2 else peer


@dataclass(frozen=True)
class Logistic(LinearClassifier):
    r"""Logistic regression, :math:`\min C \sum_i \ln(1 + e^{-s_i(w.x_i + b)}) + \|w\|^2/2`.

    Labels are 0 and 1, s = 2 y - 1; more classes are fitted one against the rest by the estimator.

    Parameters
    ----------
    C
        The inverse penalty, scikit-learn's convention.
    positive, fit_intercept, tol, max_passes, precondition
        As for :class:`LinearClassifier`.
    solver, bound
        "inside" plans its steps by this bound of the samples' entries, and the host only writes
        prompts and adds answers up (:mod:`iceform.machine.inside`). "auto" takes fewer passes, in
        coordinates that the host computes from the data.
    """

    name: ClassVar[str] = "logistic"
    title: ClassVar[str] = "Logistic regression"
    task: ClassVar[str] = "classification"
    says: ClassVar[str] = "Classes and their probabilities."
    objective: ClassVar[str] = (
        "min C sum_i ln(1 + e^(-s_i (x_i w + b))) + |w|^2 / 2, one class against the rest"
    )
    lookup: ClassVar[str] = "the logistic curve"
    estimator: ClassVar[str] = "InContextLogisticRegression"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.LogisticRegression",
        settings={"tol": 1e-12, "max_iter": 100_000, "solver": "newton-cholesky"},
        made=_peer,
    )
    example = staticmethod(lambda: flats("let"))

    C: float = field(
        default=1.0,
        metadata=option(
            "The inverse of the penalty's weight.", low=0, open="low", slider=(1e-2, 1e3)
        ),
    )

    solver: str = field(default="auto", kw_only=True)
    bound: float = field(default=1.0, kw_only=True)

    def loss(self) -> Loss:
        return loss_named("logistic")

    def stream(self, machine: Running, source: Source) -> Result:
        if check_choice("solver", self.solver, SOLVERS) == "inside":
            return fitted_inside(self, machine, source, Domain(self.bound))
        return super().stream(machine, source)

    def l2(self, rows: float) -> float:
        return 1 / (self.C * rows)

    def chances(self, machine: Stream, scores: Tensor) -> Tensor:
        """The probabilities that scores stand for, looked up."""
        reach = float(scores.abs().max()) if scores.numel() else 1.0
        table = table_of(self.loss(), machine.tokens).on(min(reach, _SATURATED))
        inside = scores.clamp(table.low, table.high)
        return machine.look_up(table, inside).clamp(0, 1)
