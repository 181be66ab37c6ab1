"""Least squares: ridge regression without a penalty."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from iceform_estimators.algorithms.record import Peer
from iceform_estimators.algorithms.ridge import Ridge


@dataclass(frozen=True)
class LinearRegression(Ridge):
    r"""Least squares, :math:`\min_{w,b} \|Xw + b - y\|^2`.

    Where features depend on each other it is the solution of least norm, as scikit-learn's is, and
    the certificate speaks of the fitted values.

    Parameters
    ----------
    positive, fit_intercept, tol, max_passes, precondition
        As for :class:`Ridge`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(f"{Machine(2).run(LinearRegression(), X, y + 1).intercept.item():.6f}")
    1.000000
    """

    name: ClassVar[str] = "linear"
    title: ClassVar[str] = "Least squares"
    says: ClassVar[str] = "Least squares."
    objective: ClassVar[str] = "min |Xw + b - y|^2"
    column: ClassVar[bool] = True
    estimator: ClassVar[str] = "InContextLinearRegression"
    peer: ClassVar[Peer | None] = Peer("sklearn.linear_model.LinearRegression")
    penalised: ClassVar[bool] = False
    batches = None  # type: ignore[assignment]  # a first batch may leave coefficients open

    alpha: float = field(default=0.0, init=False)
