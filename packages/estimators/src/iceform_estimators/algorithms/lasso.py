"""The lasso: an elastic net whose penalty is the absolute values alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from iceform_estimators.algorithms.elastic_net import ElasticNet
from iceform_estimators.algorithms.record import Peer
from iceform_estimators.tuning import PEER_TOLERANCE


@dataclass(frozen=True)
class Lasso(ElasticNet):
    r"""Lasso, :math:`\min \frac{1}{2n} \|Xw + b - y\|^2 + \alpha\|w\|_1`.

    Parameters
    ----------
    alpha
        The penalty.
    positive, fit_intercept, tol, max_passes, precondition, solver, bound, label_bound
        As for :class:`ElasticNet`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Lasso(alpha=0.1), X, y).coef.numpy().round(6))
    [1.85]
    """

    name: ClassVar[str] = "lasso"
    title: ClassVar[str] = "Lasso"
    says: ClassVar[str] = "Least squares with few coefficients."
    objective: ClassVar[str] = "min |Xw + b - y|^2 / 2n + alpha |w|_1"
    estimator: ClassVar[str] = "InContextLasso"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.Lasso", settings={"tol": PEER_TOLERANCE, "max_iter": 100_000}
    )

    l1_ratio: float = field(default=1.0, init=False)
