"""Kernel regression and nearest neighbours."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils._param_validation import Interval, StrOptions

from iceform import algorithms
from iceform.errors import ProgramError
from iceform.machine import ArraySource, Source, StreamMachine
from iceform.sklearn._base import InContext

__all__ = [
    "InContextKNeighborsClassifier",
    "InContextKNeighborsRegressor",
    "InContextKernelRegressor",
]

_TOKENS = 129  # grid tokens of a block, as many as the linear models use


def _machine(source: Source) -> StreamMachine:
    """A machine whose prompt sees all samples, which must be there at once."""
    if not isinstance(source, ArraySource):
        raise ProgramError(
            "neighbours and kernels keep all samples in one prompt, so they cannot be streamed; "
            "pass arrays, X.compute() of a Dask collection"
        )
    small = StreamMachine(source.dim + 1, tokens=_TOKENS)
    return StreamMachine(source.dim + 1, tokens=max(_TOKENS, -(-source.rows // small.samples)))


class InContextKernelRegressor(RegressorMixin, InContext):  # type: ignore[misc]
    r"""Kernel regression (Nadaraya and Watson): softmax attention over the training samples.

    .. math:: \hat y(q) = \sum_i y_i e^{-\gamma\|q - x_i\|^2} / \sum_i e^{-\gamma\|q - x_i\|^2}

    Parameters
    ----------
    gamma
        A number, or "scott" for the bandwidth n^(-1/(d + 4)) deviations, that is
        n^(2/(d + 4)) / (2 X.var()), or "scale" for 1 / (n_features X.var()).
    device
        Where passes run.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "gamma": [StrOptions({"scott", "scale"}), Interval(Real, 0, None, closed="neither")],
        "device": [None, str],
    }

    def __init__(self, gamma: float | str = "scott", *, device: str | None = None) -> None:
        self.gamma = gamma
        self.device = device

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt."""
        self._validate_params()
        source = self._source(X, y, y_numeric=True)
        machine = _machine(source)
        self.gamma_ = self._gamma(source)
        self._memory = machine.run(algorithms.KernelRegression(self.gamma_), source)
        self._keep(machine, self._memory.certificate, 1)
        return self

    def _gamma(self, source: Source) -> float:
        if not isinstance(self.gamma, str):
            return float(self.gamma)
        variance = float(source.x.var(correction=0))  # type: ignore[attr-defined]
        if not variance > 0:
            return 1.0
        if self.gamma == "scale":
            return 1 / (source.dim * variance)
        return float(source.rows ** (2 / (source.dim + 4)) / (2 * variance))

    def predict(self, X: Any) -> Any:
        """Kernel averages, shape (n_samples,)."""
        points = self._points(X)
        return self._memory.predict(points).cpu().numpy()


class _Neighbors(InContext):
    """Finds neighbours by k sharp reads of one prompt."""

    n_neighbors: int
    weights: str
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "weights": [StrOptions({"uniform", "distance"})],
        "device": [None, str],
    }

    def __init__(
        self, n_neighbors: int = 5, *, weights: str = "uniform", device: str | None = None
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.device = device

    def _fit_samples(self, source: Source) -> None:
        machine = _machine(source)
        self._memory = machine.run(algorithms.KNeighbors(int(self.n_neighbors)), source)
        self._keep(machine, self._memory.certificate, self._memory.passes)

    def kneighbors(self, X: Any) -> tuple[Any, Any]:
        """Distances and indices of the nearest samples, nearest first, (n_queries, k) each."""
        points = self._points(X)
        found = self._memory.neighbors(points)
        apart = (points - self._memory.center)[:, None, :] - self._memory.x[found]
        return apart.norm(dim=-1).cpu().numpy(), found.cpu().numpy()

    def _shares(self, X: Any) -> tuple[Any, Any]:
        """The neighbours' indices and weights that sum to 1."""
        distances, found = self.kneighbors(X)
        weights = np.ones_like(distances)
        if self.weights == "distance":
            exact = distances == 0
            with np.errstate(divide="ignore"):
                weights = np.where(exact.any(1, keepdims=True), exact, 1 / distances)
        return found, weights / weights.sum(1, keepdims=True)


class InContextKNeighborsRegressor(RegressorMixin, _Neighbors):  # type: ignore[misc]
    """Mean label of the k nearest samples, each found by a sharp read of the prompt.

    Parameters
    ----------
    n_neighbors
        k.
    weights
        "uniform" or "distance" (by the inverse of the distance).
    device
        Where passes run.
    """

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt."""
        self._validate_params()
        self._fit_samples(self._source(X, y, y_numeric=True))
        return self

    def predict(self, X: Any) -> Any:
        """Mean labels, shape (n_samples,)."""
        found, shares = self._shares(X)
        labels = self._memory.y.cpu().numpy()
        return (labels[found] * shares).sum(1)


class InContextKNeighborsClassifier(ClassifierMixin, _Neighbors):  # type: ignore[misc]
    """The most frequent class among the k nearest samples.

    Parameters
    ----------
    n_neighbors, weights, device
        As for :class:`InContextKNeighborsRegressor`.
    """

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt."""
        self._validate_params()
        self._fit_samples(self._labelled(X, y))
        return self

    def predict_proba(self, X: Any) -> Any:
        """Shares of the classes among the neighbours, shape (n_samples, n_classes)."""
        found, shares = self._shares(X)
        labels = self._memory.y.cpu().numpy().astype(int)[found]
        return np.stack([(shares * (labels == k)).sum(1) for k in range(len(self.classes_))], 1)

    def predict(self, X: Any) -> Any:
        """The class with the largest share; the first of equal ones."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]
