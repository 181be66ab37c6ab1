"""The linear support vector machine, by squared hinges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from iceform.expressions import Loss, loss_named
from iceform_estimators.algorithms.examples import blobs
from iceform_estimators.algorithms.linear import LinearClassifier
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.tuning import C_SLIDER, PEER_TOLERANCE


@dataclass(frozen=True)
class LinearSVM(LinearClassifier):
    r"""Support vectors, :math:`\min C \sum_i \max(0, 1 - s_i(w.x_i + b))^2 + \|w\|^2/2`.

    Labels are -1 and +1. The intercept is not penalised.

    Parameters
    ----------
    C
        The inverse penalty, scikit-learn's convention.
    positive, fit_intercept, tol, max_passes, precondition
        As for :class:`LinearClassifier`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X = torch.tensor([[-2.0], [-1], [1], [2]]).double()
    >>> print(Machine(2).run(LinearSVM(), X, X[:, 0].sign()).coef.numpy().round(3))
    [0.8]
    """

    name: ClassVar[str] = "svm"
    title: ClassVar[str] = "Support vector machine"
    task: ClassVar[str] = "classification"
    says: ClassVar[str] = "Classes with a wide margin between them."
    objective: ClassVar[str] = (
        "min C sum_i max(0, 1 - s_i (x_i w + b))^2 + |w|^2 / 2, one class against the rest"
    )
    lookup: ClassVar[str] = "the squared hinge's derivative: a line up to the margin, then nothing"
    estimator: ClassVar[str] = "InContextLinearSVC"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.svm.LinearSVC",
        settings={"tol": PEER_TOLERANCE, "max_iter": 100_000, "intercept_scaling": 1000},
        differs="it penalises the intercept, if only a little",
    )
    example = staticmethod(blobs)

    C: float = setting(
        1.0, "The inverse of the penalty's weight.", low=0, open="low", slider=C_SLIDER
    )

    def loss(self) -> Loss:
        return loss_named("squared_hinge")

    def l2(self, rows: float) -> float:
        return 1 / (2 * self.C * rows)
