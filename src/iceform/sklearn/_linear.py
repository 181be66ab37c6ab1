"""Linear models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from iceform import algorithms
from iceform.certificates import Certificate
from iceform.functions import loss_named
from iceform.machine import ArraySource, Source, StreamMachine
from iceform.machine.solvers import PRECONDITIONERS
from iceform.machine.tables import read_line, table_of
from iceform.sklearn._base import InContext, as_tensor, is_dask

__all__ = [
    "InContextElasticNet",
    "InContextHuberRegressor",
    "InContextLasso",
    "InContextLinearRegression",
    "InContextLogisticRegression",
    "InContextRidge",
]

_SHARED: dict[str, Any] = {
    "fit_intercept": ["boolean"],
    "tol": [Interval(Real, 0, None, closed="neither")],
    "max_iter": [Interval(Real, 2, None, closed="left")],
    "precondition": [StrOptions(set(PRECONDITIONERS))],
    "device": [None, str],
}


class _LinearRegressor(RegressorMixin, InContext, ABC):  # type: ignore[misc]
    """Fits coefficients by passes, predicts by a look-up of x.w + b."""

    fit_intercept: bool
    tol: float
    max_iter: int
    precondition: str
    _parameter_constraints: ClassVar[dict[str, Any]] = _SHARED

    @abstractmethod
    def _program(self) -> Any:
        """The program that fits it."""

    def _loop(self) -> dict[str, Any]:
        return {
            "fit_intercept": self.fit_intercept,
            "tol": self.tol,
            "max_passes": int(self.max_iter),
            "precondition": self.precondition,
        }

    def fit(self, X: Any, y: Any) -> Any:
        """Write the prompts of the data and loop the frozen machine over them.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features); arrays, memory maps, or Dask collections.
        y
            Labels, shape (n_samples,).
        """
        self._validate_params()
        source = self._source(X, y, y_numeric=True)
        machine = StreamMachine(source.dim + 1)
        found = machine.run(self._program(), source)
        self._keep(machine, found.certificate, found.passes)
        self.coef_ = found.coef.cpu().numpy()
        self.intercept_ = float(found.intercept)
        self._finish(found, source)
        self._warn(found.converged, found.passes)
        return self

    def _finish(self, found: algorithms.Fit, source: Source) -> None:
        """What an estimator keeps beside the coefficients."""

    def predict(self, X: Any) -> Any:
        """Predictions of the frozen machine, shape (n_samples,); lazy for Dask collections."""
        if is_dask(X):
            return self._by_blocks("predict", X)
        x = self._points(X)
        return read_line(self.machine_, x @ self._coef() + self.intercept_).cpu().numpy()

    def _coef(self) -> Tensor:
        return as_tensor(self.coef_, self.device)


class InContextLinearRegression(_LinearRegressor):
    r"""Least squares, :math:`\min_{w,b} \|Xw + b - y\|^2`, by a frozen attention layer.

    Where features depend on each other it is the solution of least norm, as scikit-learn's is, and
    the certificate speaks of the fitted values.

    Parameters
    ----------
    fit_intercept
        Whether there is an intercept.
    tol
        Length of the last step, relative to the coefficients, in the metric of X'X.
    max_iter
        Most passes over the data.
    precondition
        "whiten" (Newton's method: a few passes), "diagonal" (scaled columns and momentum) or
        "none" (one scale for all columns and momentum).
    device
        Where passes run.

    Attributes
    ----------
    coef_, intercept_
        The model.
    certificate_
        Proven distance of ``coef_`` (or of the fitted values) from the exact solution.
    digest_
        SHA-256 of the frozen weights.
    n_passes_
        Passes of the frozen machine over the data.
    """

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-9,
        max_iter: int = 1000,
        precondition: str = "whiten",
        device: str | None = None,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.precondition = precondition
        self.device = device

    def _program(self) -> Any:
        return algorithms.LeastSquares(**self._loop())


class InContextRidge(_LinearRegressor):
    r"""Ridge regression, :math:`\min_{w,b} \|Xw + b - y\|^2 + \alpha \|w\|^2`.

    ``partial_fit`` takes data in batches: the frozen machine passes once over each new batch, and
    the coefficients are then those of all samples so far (recursive least squares).

    Parameters
    ----------
    alpha
        The penalty.
    fit_intercept, tol, max_iter, precondition, device
        As for :class:`InContextLinearRegression`.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_SHARED, "alpha": [Interval(Real, 0, None, closed="left")],
    }  # fmt: skip

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-9,
        max_iter: int = 1000,
        precondition: str = "whiten",
        device: str | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.precondition = precondition
        self.device = device

    def _program(self) -> Any:
        return algorithms.Ridge(self.alpha, **self._loop())

    def fit(self, X: Any, y: Any) -> Any:
        """As for :class:`InContextLinearRegression`; forgets what ``partial_fit`` has seen."""
        self.__dict__.pop("_recursion", None)
        return super().fit(X, y)

    def partial_fit(self, X: Any, y: Any) -> Any:
        """Take in a batch: one pass over it, whatever came before."""
        self._validate_params()
        first = not hasattr(self, "_recursion")
        source = self._source(X, y, y_numeric=True, reset=first)
        if first:
            self._recursion = algorithms.Recursion(self.alpha, fit_intercept=self.fit_intercept)
        machine = StreamMachine(source.dim + 1)
        found = self._recursion.update(machine.start(), source)
        self._keep(machine, found.certificate, found.passes)
        self.coef_, self.intercept_ = found.coef.cpu().numpy(), float(found.intercept)
        return self


class InContextElasticNet(_LinearRegressor):
    r"""Elastic net: least squares with an l1 and an l2 penalty.

    .. math:: \min_{w,b} \frac{1}{2n} \|Xw + b - y\|^2 + \alpha\rho\|w\|_1
       + \frac{\alpha(1-\rho)}{2} \|w\|^2

    The soft threshold is a look-up in a second prompt to the same frozen weights.

    Parameters
    ----------
    alpha, l1_ratio
        The penalty and rho.
    fit_intercept, tol, max_iter, precondition, device
        As for :class:`InContextLinearRegression`; "whiten" finishes on the support.

    Attributes
    ----------
    n_thresholds_
        Prompts that looked soft thresholds up.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_SHARED,
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
    }

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        tol: float = 1e-9,
        max_iter: int = 20000,
        precondition: str = "whiten",
        device: str | None = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.precondition = precondition
        self.device = device

    def _program(self) -> Any:
        return algorithms.ElasticNet(self.alpha, self.l1_ratio, **self._loop())

    def _finish(self, found: algorithms.Fit, source: Source) -> None:
        self.n_thresholds_ = int(found.extras["thresholds"])


class InContextLasso(InContextElasticNet):
    r"""Lasso, :math:`\min_{w,b} \frac{1}{2n} \|Xw + b - y\|^2 + \alpha\|w\|_1`.

    Parameters
    ----------
    alpha
        The penalty.
    fit_intercept, tol, max_iter, precondition, device
        As for :class:`InContextElasticNet`.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_SHARED, "alpha": [Interval(Real, 0, None, closed="left")],
    }  # fmt: skip

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-9,
        max_iter: int = 20000,
        precondition: str = "whiten",
        device: str | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.precondition = precondition
        self.device = device

    def _program(self) -> Any:
        return algorithms.Lasso(self.alpha, **self._loop())


class InContextHuberRegressor(_LinearRegressor):
    """Linear regression that outliers do not pull, with its scale, as ``HuberRegressor`` has it.

    Parameters
    ----------
    epsilon
        Where squares end and lines begin, in units of the scale; at least 1.
    alpha
        The penalty alpha ||w||^2 beside the sum over samples.
    fit_intercept, tol, max_iter, precondition, device
        As for :class:`InContextLinearRegression`.

    Attributes
    ----------
    scale_
        sigma.
    outliers_
        Which samples lie beyond epsilon sigma (for arrays).
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_SHARED,
        "epsilon": [Interval(Real, 1, None, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        epsilon: float = 1.35,
        alpha: float = 0.0001,
        fit_intercept: bool = True,
        tol: float = 1e-9,
        max_iter: int = 1000,
        precondition: str = "whiten",
        device: str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.precondition = precondition
        self.device = device

    def _program(self) -> Any:
        return algorithms.Huber(self.epsilon, self.alpha, **self._loop())

    def _finish(self, found: algorithms.Fit, source: Source) -> None:
        self.scale_ = float(found.extras["scale"])
        if isinstance(source, ArraySource):
            residual = source.x @ found.coef + found.intercept - source.y
            self.outliers_ = (residual.abs() > self.epsilon * self.scale_).cpu().numpy()


class InContextLogisticRegression(ClassifierMixin, InContext):  # type: ignore[misc]
    r"""Logistic regression, :math:`\min C \sum_i \ln(1 + e^{-s_i(w.x_i + b)}) + \|w\|^2/2`.

    More than two classes are fitted one against the rest.

    Parameters
    ----------
    C
        The inverse penalty.
    fit_intercept, tol, max_iter, precondition, device
        As for :class:`InContextLinearRegression`.

    Attributes
    ----------
    classes_
        The labels.
    coef_, intercept_
        Shapes (1 or n_classes, n_features) and (1 or n_classes,).
    certificates_
        One per row of ``coef_``; ``certificate_`` is the weakest.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_SHARED, "C": [Interval(Real, 0, None, closed="neither")],
    }  # fmt: skip

    def __init__(
        self,
        *,
        C: float = 1.0,
        fit_intercept: bool = True,
        tol: float = 1e-9,
        max_iter: int = 1000,
        precondition: str = "whiten",
        device: str | None = None,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.precondition = precondition
        self.device = device

    def fit(self, X: Any, y: Any) -> Any:
        """Fit one line, or one for each class against the rest."""
        self._validate_params()
        source = self._labelled(X, y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"Logistic regression needs samples of at least 2 classes, got 1 class: "
                f"{self.classes_[0]!r}"
            )
        machine = StreamMachine(source.dim + 1)
        model = algorithms.Logistic(
            self.C,
            fit_intercept=self.fit_intercept,
            tol=self.tol,
            max_passes=int(self.max_iter),
            precondition=self.precondition,
        )
        wanted = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        fits = [machine.run(replace(model, positive=float(k)), source) for k in wanted]
        self.certificates_: list[Certificate] = [fit.certificate for fit in fits]
        worst = max(self.certificates_, key=lambda c: c.error)
        self._keep(machine, worst, sum(fit.passes for fit in fits))
        self.coef_ = np.stack([fit.coef.cpu().numpy() for fit in fits])
        self.intercept_ = np.array([float(fit.intercept) for fit in fits])
        self._warn(all(fit.converged for fit in fits), self.n_passes_)
        return self

    def _scores(self, X: Any) -> Tensor:
        x = self._points(X)
        z = x @ as_tensor(self.coef_, self.device).mT + as_tensor(self.intercept_, self.device)
        return read_line(self.machine_, z)

    def decision_function(self, X: Any) -> Any:
        """x.w + b: shape (n_samples,) for two classes, (n_samples, n_classes) for more."""
        check_is_fitted(self)
        if is_dask(X):
            shape = (len(self.classes_),) if len(self.classes_) > 2 else ()
            return self._by_blocks("decision_function", X, shape)
        scores = self._scores(X).cpu().numpy()
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:
        """The class with the largest score."""
        check_is_fitted(self)
        if is_dask(X):
            return self._by_blocks("predict", X, dtype=self.classes_.dtype)
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> Any:
        """The looked-up sigmoid of the scores, scaled to sum to 1, (n_samples, n_classes)."""
        check_is_fitted(self)
        if is_dask(X):
            return self._by_blocks("predict_proba", X, (len(self.classes_),))
        scores = self._scores(X)
        reach = float(scores.abs().max()) if scores.numel() else 1.0
        table = table_of(loss_named("logistic"), self.machine_.tokens).on(min(reach, _SATURATED))
        inside = scores.clamp(table.low, table.high)
        chances = self.machine_.look_up(table, inside).clamp(0, 1).cpu().numpy()
        if len(self.classes_) == 2:
            chances = np.hstack([1 - chances, chances])
        total = chances.sum(1, keepdims=True)
        even = np.full_like(chances, 1 / chances.shape[1])
        return np.divide(chances, total, out=even, where=total > 0)


_SATURATED = 64.0  # the sigmoid is 0 or 1 to 1e-28 beyond
