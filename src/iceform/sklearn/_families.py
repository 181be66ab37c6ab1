"""How estimators of a family of algorithms fit and predict.

``line``
    Coefficients; predictions are a look-up of x.w + b.
``separator``
    Lines between classes; where there are more than two, all of them at once if the algorithm
    knows how, or else one class against the rest.
``average``, ``neighbours``, ``vote``
    Samples that are kept in the prompt.
``components``
    Directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from sklearn.base import (
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data
from torch import Tensor

from iceform.algorithms import LinearClassifier, LinearModel
from iceform.certificates import Certificate
from iceform.machine import ArraySource, Source, verifiable
from iceform.machine.tables import read_line
from iceform.sklearn._base import InContext, as_tensor, is_dask

__all__ = ["FAMILIES"]


def _kind(X: Any) -> Any:
    """The precision of predictions: that of the samples, float64 where they are no floats."""
    given = getattr(X, "dtype", None)
    return np.float32 if given == np.float32 else np.float64


class Line(RegressorMixin, InContext):  # type: ignore[misc]
    """Fits coefficients by passes, predicts by a look-up of x.w + b."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Write the prompts of the data and loop the frozen machine over them.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features); arrays, memory maps, or Dask collections.
        y
            Labels, shape (n_samples,).
        sample_weight
            Weights of the samples, shape (n_samples,): in the prompt, factors of their value rows.
            A sample that weighs nothing is as good as not given.
        """
        self._validate_params()
        self.__dict__.pop("_batches", None)
        several = getattr(self.algorithm, "several", False) and not is_dask(X)
        if several:
            X, y = self._validated(X, y, y_numeric=True, multi_output=True)
            if y.ndim == 2:
                return self._fit_columns(X, y, self._weights(sample_weight, X))
            source: Source = self._arrays(X, y, self._weights(sample_weight, X))
        else:
            source = self._source(X, y, sample_weight, y_numeric=True)
        machine = self._machine(source)
        model = self._begun(self.as_algorithm(), 0)
        self._take(machine, self._as_stored(machine.run(model, source), source))
        outside = getattr(self, "outliers_", None)
        if outside is not None and len(outside) < _num_samples(X):  # some weigh nothing
            apart = np.abs(np.asarray(y).ravel() - self.predict(X))
            self.outliers_ = apart > self.epsilon * self.scale_
        return self

    def _fit_columns(self, X: Any, y: Any, weights: Any) -> Any:
        """Labels of several columns: one fit for each, on the same weights."""
        if y.shape[1] == 0:
            raise ValueError("y has 0 columns; give at least one")
        found = []
        for k, labels in enumerate(y.T):
            source = self._arrays(X, np.ascontiguousarray(labels), weights)
            machine = self._machine(source)
            model = self._begun(self.as_algorithm(), k)
            found.append(self._as_stored(machine.run(model, source), source))
        self._keep(machine, *found)
        self.certificates_ = [one.certificate for one in found]
        self.coef_ = np.stack([self._cast(one.coef) for one in found])
        self.intercept_ = np.stack([self._cast(one.intercept) for one in found])
        self._warn(all(one.converged for one in found), self.n_passes_)
        return self

    def __sklearn_tags__(self) -> Any:
        """Labels that the loss is not defined for are said so."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = getattr(self.algorithm, "several", False)
        model = self.algorithm()
        labels = model.loss().labels if isinstance(model, LinearModel) else None
        below = torch.tensor([-1.0], dtype=torch.float64)
        tags.target_tags.positive_only = labels is not None and not bool(labels.allowed(below))
        return tags

    def _take(self, machine: Any, found: Any) -> None:
        self._keep(machine, found)
        self.coef_ = self._cast(found.coef)
        self.intercept_ = self._cast(found.intercept)[()]
        self._warn(found.converged, found.passes)

    def predict(self, X: Any) -> Any:
        """Predictions of the frozen machine, shape (n_samples,); lazy for Dask collections."""
        if is_dask(X):
            return self._by_blocks("predict", X)
        x = self._points(X)
        z = x @ as_tensor(self.coef_.T, self.device) + as_tensor(self.intercept_, self.device)
        z = read_line(self.machine_, z)
        response = getattr(self.algorithm, "response", None)
        return (z if response is None else response(z)).cpu().numpy().astype(_kind(X))


class Batches(Line):
    """A line that also takes its data in batches."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Take in a batch: one pass over it, whatever came before."""
        self._validate_params()
        first = not hasattr(self, "_batches")
        source = self._source(X, y, sample_weight, y_numeric=True, reset=first)
        if first:
            self._batches = self.as_algorithm().batches()  # type: ignore[attr-defined]
        machine = self._machine(source)
        found = self._batches.update(machine.start(), source)
        found = verifiable(found, self.as_algorithm())
        self._take(machine, self._as_stored(found, source))
        return self


class Separator(ClassifierMixin, InContext):  # type: ignore[misc]
    """One line, or one for each class."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit one line, or one for each class.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features); arrays, memory maps, or Dask collections.
        y
            Classes, shape (n_samples,).
        sample_weight
            Weights of the samples, shape (n_samples,): in the prompt, factors of their value rows.
            A sample that weighs nothing is as good as not given.
        """
        self._validate_params()
        source = self._labelled(X, y, sample_weight)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{self.algorithm.title} needs samples of at least 2 classes, got 1 class: "
                f"{self.classes_[0]!r}"
            )
        machine, model = self._machine(source), self.as_algorithm()
        assert isinstance(model, LinearClassifier)
        models = self._models(model)
        fits = [self._as_stored(machine.run(one, source), source) for one in models]
        self._keep(machine, *fits)
        self.certificates_: list[Certificate] = [fit.certificate for fit in fits]
        self.coef_ = np.vstack([self._cast(fit.coef) for fit in fits])
        self.intercept_ = np.hstack([self._cast(fit.intercept) for fit in fits])
        # A loop without a tolerance ends where it ends; what it kept says how.
        settled = "tol" not in model.options() or all(fit.converged for fit in fits)
        self._warn(settled, self.n_passes_)
        return self

    def _models(self, model: Any) -> list[Any]:
        """One for two classes, one for all where it takes them all, or one for each."""
        count = len(self.classes_)
        if count == 2:
            return [self._begun(replace(model, positive=1.0), 0)]
        if hasattr(model, "classes"):
            return [self._begun(replace(model, classes=count), None)]
        return [self._begun(replace(model, positive=float(k)), k) for k in range(count)]

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
        scores = self._scores(X).cpu().numpy().astype(_kind(X))
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:
        """The class with the largest score."""
        check_is_fitted(self)
        if is_dask(X):
            return self._by_blocks("predict", X, dtype=self.classes_.dtype)
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[best]


class Chances(Separator):
    """A separator whose scores stand for probabilities."""

    def predict_proba(self, X: Any) -> Any:
        """Looked-up probabilities, scaled to sum to 1, shape (n_samples, n_classes)."""
        check_is_fitted(self)
        if is_dask(X):
            return self._by_blocks("predict_proba", X, (len(self.classes_),))
        looked = self.as_algorithm().chances(self.machine_, self._scores(X))  # type: ignore[attr-defined]
        chances = looked.cpu().numpy()
        if len(self.classes_) == 2:
            chances = np.hstack([1 - chances, chances])
        total = chances.sum(1, keepdims=True)
        even = np.full_like(chances, 1 / chances.shape[1])
        return np.divide(chances, total, out=even, where=total > 0).astype(_kind(X))


class _Memory(InContext):
    """Keeps the samples in the prompt."""

    def _remember(self, source: Any) -> None:
        machine = self._machine(source, whole=True)
        found = machine.run(self.as_algorithm(), source)
        self._memory: Any = found.predictor
        self._keep(machine, found)


class Average(RegressorMixin, _Memory):  # type: ignore[misc]
    """An average of the samples' labels."""

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features).
        y
            Labels, shape (n_samples,).
        """
        self._validate_params()
        self._remember(self._source(X, y, y_numeric=True))
        return self

    def predict(self, X: Any) -> Any:
        """Averages, shape (n_samples,)."""
        points = self._points(X)
        return self._memory(points).cpu().numpy()

    def error_bounds(self, X: Any) -> Any:
        """What each prediction for X may be off by, proven, shape (n_samples,)."""
        return self._memory.bounds(self._points(X)).cpu().numpy()


class _Neighbours(_Memory):
    """Finds neighbours in the prompt."""

    def kneighbors(self, X: Any) -> tuple[Any, Any]:
        """Distances and indices of the nearest samples, nearest first, (n_queries, k) each."""
        points = self._points(X)
        found = self._memory.neighbors(points)
        return self._memory.distances(points, found).cpu().numpy(), found.cpu().numpy()


class NeighbourAverage(_Neighbours, Average):
    """An average of the nearest samples' labels."""


class Vote(ClassifierMixin, _Neighbours):  # type: ignore[misc]
    """The most frequent class among the nearest samples."""

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features).
        y
            Classes, shape (n_samples,).
        """
        self._validate_params()
        self._remember(self._labelled(X, y))
        return self

    def predict_proba(self, X: Any) -> Any:
        """Shares of the classes among the neighbours, shape (n_samples, n_classes)."""
        points = self._points(X)
        classes = torch.arange(len(self.classes_), device=points.device)
        is_class = (self._memory.y[:, None] == classes).to(points)
        return self._memory.average(points, is_class).cpu().numpy()

    def predict(self, X: Any) -> Any:
        """The class with the largest share; the first of equal ones."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


class Components(ClassNamePrefixFeaturesOutMixin, TransformerMixin, InContext):  # type: ignore[misc]
    """Directions, each found one taken out of the prompt."""

    def fit(self, X: Any, y: Any = None) -> Any:
        """Find the directions.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features).
        y
            Not used.
        """
        self._validate_params()
        x = as_tensor(validate_data(self, X, dtype=np.float64, ensure_min_samples=2), self.device)
        source = ArraySource(x, x.new_zeros(len(x)))
        machine = self._machine(source)
        found = machine.run(self.as_algorithm(), source)
        self._keep(machine, found)
        self.components_ = found.value.cpu().numpy()
        return self

    def transform(self, X: Any) -> Any:
        """Coordinates along the components, shape (n_samples, n_components)."""
        check_is_fitted(self)
        x = self._points(X) - as_tensor(self.mean_, self.device)
        z = x @ as_tensor(self.components_, self.device).mT
        return read_line(self.machine_, z).cpu().numpy()

    def inverse_transform(self, X: Any) -> Any:
        """Back to samples."""
        check_is_fitted(self)
        return np.asarray(X) @ self.components_ + self.mean_

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)


FAMILIES: Mapping[str, type[InContext]] = MappingProxyType(
    {
        "line": Line,
        "separator": Separator,
        "average": Average,
        "neighbours": NeighbourAverage,
        "vote": Vote,
        "components": Components,
    }
)
