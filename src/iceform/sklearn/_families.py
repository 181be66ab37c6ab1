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
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.base import (
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
    clone,
)
from sklearn.decomposition._pca import _infer_dimension
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from iceform.algorithms import Algorithm, LinearClassifier, LinearModel
from iceform.certificates import Certificate
from iceform.machine import ArraySource, Source
from iceform.machine.stream import read_line
from iceform.sklearn._base import InContext, as_tensor, is_dask, on_host

__all__ = ["FAMILIES"]


def _kind(X: Any) -> Any:
    """The precision of predictions: that of the samples, float64 where they are no floats."""
    given = getattr(X, "dtype", None)  # an array's, a frame's or a tensor's
    return np.float32 if given in (np.float32, torch.float32) else np.float64


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
            self._check_penalties(1 if y.ndim == 1 else y.shape[1])
            if y.ndim == 2:
                return self._fit_columns(X, y, self._weights(sample_weight, X))
            source: Source = self._arrays(X, y, self._weights(sample_weight, X))
        else:
            source = self._source(X, y, sample_weight, y_numeric=True)
        machine = self._machine(source)
        model = self._begun(self.as_algorithm(0), 0)
        self._take(machine, self._as_stored(machine.run(model, source), source))
        outside = getattr(self, "outliers_", None)
        if outside is not None and len(outside) < _num_samples(X):  # some weigh nothing
            apart = np.abs(np.asarray(y).ravel() - self.predict(X))
            self.outliers_ = apart > self.epsilon * self.scale_
        return self

    def _check_penalties(self, columns: int) -> None:
        """Penalties are one for all columns of labels, or one for each."""
        given: Any = getattr(self, "alpha", 0.0)
        if np.ndim(given) and np.shape(given) != (columns,):
            raise ValueError(
                "Number of targets and number of penalties do not correspond: "
                f"{np.size(given)} != {columns}"
            )

    def _fit_columns(self, X: Any, y: Any, weights: Any) -> Any:
        """Labels of several columns: one fit for each, on the same weights."""
        if y.shape[1] == 0:
            raise ValueError("y has 0 columns; give at least one")
        found = []
        for k, labels in enumerate(y.T):
            source = self._arrays(X, np.ascontiguousarray(labels), weights)
            machine = self._machine(source)
            model = self._begun(self.as_algorithm(k), k)
            found.append(self._as_stored(machine.run(model, source), source))
        self._keep(machine, *found)
        self.certificates_ = [one.certificate for one in found]
        self.coef_ = np.stack([self._cast(one.coef) for one in found])
        if len(found) == 1 and not self.algorithm.column:  # type: ignore[attr-defined]
            self.coef_ = self.coef_[0]
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
        z = x @ as_tensor(self.coef_.T, self._device) + as_tensor(self.intercept_, self._device)
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
        found = self.as_algorithm().verifiable(found)
        self._take(machine, self._as_stored(found, source))
        return self


class Sparse(Line):
    """A line with a penalty on absolute values."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, check_input: bool = True) -> Any:
        """As every line; ``dual_gap_`` says how much lower the objective may be.

        Parameters
        ----------
        X, y, sample_weight
            As for other lines.
        check_input
            Samples are checked whatever it says: what is proven is proven of them.
        """
        super().fit(X, y, sample_weight)
        if not is_dask(X):
            self.dual_gap_ = self._gap(np.asarray(X, dtype=np.float64), y, sample_weight)
        return self

    def _gap(self, X: Any, y: Any, weights: Any) -> Any:
        """The objective less that of a point of the dual problem, one for each column of labels."""
        model: Any = self.as_algorithm()
        share = getattr(model, "l1_ratio", 1.0)
        l1, l2 = model.alpha * share, model.alpha * (1 - share)
        y = np.asarray(y, dtype=np.float64)
        labels, coefs = y.reshape(len(y), -1).T, np.atleast_2d(self.coef_).astype(np.float64)
        c = _check_sample_weight(weights, X, dtype=np.float64)
        c = c / c.sum()
        x = X - (c @ X if self.fit_intercept else 0.0)
        gaps = []
        for column, w in zip(labels, coefs, strict=True):
            centre = c @ column if self.fit_intercept else 0.0
            rest = column - centre - x @ w
            slope = (c * rest) @ x - l2 * w
            steepest = max(slope.max() if getattr(self, "positive", False) else
                           np.abs(slope).max(), 0.0)  # fmt: skip
            scale = 1.0 if steepest <= l1 else l1 / steepest
            length, size = c @ rest**2, w @ w
            primal = 0.5 * length + l1 * np.abs(w).sum() + 0.5 * l2 * size
            dual = scale * (c * rest) @ (column - centre) - 0.5 * scale**2 * (length + l2 * size)
            gaps.append(max(primal - dual, 0.0))
        return gaps[0] if y.ndim == 1 else np.array(gaps)


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
        if hasattr(model, "classes"):  # one count for each problem, of which there is one
            self.n_iter_ = np.array([self.n_passes_], dtype=np.int32)
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
        z = x @ as_tensor(self.coef_, self._device).mT + as_tensor(self.intercept_, self._device)
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
        found = machine.run(self._model(source), source)
        self._memory: Any = found.predictor
        self._keep(machine, found)

    def _model(self, source: Any) -> Algorithm:
        return self.as_algorithm()


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

    n_neighbors: int
    weights: Any

    def as_algorithm(self, column: int = 0) -> Algorithm:
        """As of any estimator; a function of distances is the estimator's own."""
        if not callable(self.weights):
            return super().as_algorithm()
        plain: Algorithm = clone(self).set_params(weights="uniform").as_algorithm()
        return plain

    def _model(self, source: Any) -> Algorithm:
        """Of as many neighbours as there are; who asks for more is told so when asking."""
        model: Any = self.as_algorithm()
        few: Algorithm = replace(model, n_neighbors=min(model.n_neighbors, source.rows))
        return few

    def _remember(self, source: Any) -> None:
        super()._remember(source)
        self.n_samples_fit_ = source.rows
        self.effective_metric_ = "euclidean"
        if callable(self.weights):
            self._memory = replace(self._memory, weights=self.weights)
            self.certificate_ = self._memory.certificate()
            self.ledger_.note("host", "distances of the neighbours, and the weights they are given")

    def _asked(self, X: Any, n_neighbors: Any = None) -> tuple[Any, Tensor, bool]:
        """The memory, points, and whether these are its own samples, none its own neighbour."""
        check_is_fitted(self)
        count = self.n_neighbors if n_neighbors is None else n_neighbors
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise TypeError(f"n_neighbors does not take {type(count)} value, enter integer value")
        if count < 1:
            raise ValueError(f"Expected n_neighbors > 0. Got {count}")
        others = X is None
        most = self.n_samples_fit_ - others
        if count > most:
            raise ValueError(
                f"Expected n_neighbors {'<' if others else '<='} n_samples_fit, but n_neighbors = "
                f"{count}, n_samples_fit = {self.n_samples_fit_}, n_samples = "
                f"{self.n_samples_fit_ if others else _num_samples(X)}"
            )
        points = self._memory.samples if others else self._points(X)
        return replace(self._memory, k=int(count)), points, others

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Distances and indices of the nearest samples, nearest first, (n_queries, k) each.

        Parameters
        ----------
        X
            Points; None for the samples themselves, of which none is its own neighbour.
        n_neighbors
            How many; as many as the estimator has by default.
        return_distance
            Whether distances come first.
        """
        memory, points, others = self._asked(X, n_neighbors)
        found = memory.neighbors(points, others=others)
        if not return_distance:
            return found.cpu().numpy()
        return memory.distances(points, found).cpu().numpy(), found.cpu().numpy()

    def kneighbors_graph(
        self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> Any:
        """Who is whose neighbour, a SciPy matrix of 1, or of distances with mode="distance"."""
        if mode not in ("connectivity", "distance"):
            raise ValueError(
                f'Unsupported mode, must be one of "connectivity", or "distance" but got "{mode}" '
                "instead"
            )
        apart, found = self.kneighbors(X, n_neighbors)
        values = np.ones(found.size) if mode == "connectivity" else apart.ravel()
        starts = np.arange(0, found.size + 1, found.shape[1])
        shape = (len(found), self.n_samples_fit_)
        return csr_matrix((values, found.ravel(), starts), shape=shape)

    def _average(self, X: Any, values: Tensor) -> Tensor:
        memory, points, others = self._asked(X)
        found: Tensor = memory.average(points, values, others=others)
        return found


class NeighbourAverage(_Neighbours, Average):
    """An average of the nearest samples' labels, of one column or several."""

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features).
        y
            Labels, shape (n_samples,) or (n_samples, n_outputs).
        """
        self._validate_params()
        X, y = self._validated(X, y, y_numeric=True, multi_output=True)
        columns = as_tensor(y.reshape(len(y), -1), self._device)
        self._flat, self._labels = y.ndim == 1, columns
        # The certificate is relative to labels: the largest are written.
        largest = columns[:, int(columns.abs().amax(0).argmax())]
        self._remember(ArraySource(as_tensor(X, self._device), largest.contiguous()))
        return self

    def predict(self, X: Any) -> Any:
        """Averages, shape (n_samples,) or (n_samples, n_outputs); None asks for the samples'.

        A sample that is asked for is not its own neighbour.
        """
        check_is_fitted(self)
        found = self._average(X, self._labels).cpu().numpy()
        return found[:, 0] if self._flat else found

    def __sklearn_tags__(self) -> Any:
        """Several columns of labels are averaged at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class Vote(ClassifierMixin, _Neighbours):  # type: ignore[misc]
    """The most frequent class among the nearest samples, of one column of classes or several."""

    def fit(self, X: Any, y: Any) -> Any:
        """Write the samples into the prompt.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features).
        y
            Classes, shape (n_samples,) or (n_samples, n_outputs).
        """
        self._validate_params()
        y = on_host(y)
        self.outputs_2d_ = np.ndim(y) == 2 and np.shape(y)[1] > 1
        if not self.outputs_2d_:
            self._remember(self._labelled(X, y))
            self._numbers = self._memory.y[:, None]
            return self
        X, y = self._validated(X, y, multi_output=True)
        check_classification_targets(y)
        found = [np.unique(column, return_inverse=True) for column in y.T]
        self.classes_ = [classes for classes, _ in found]
        self._numbers = as_tensor(np.stack([numbers for _, numbers in found], 1), self._device)
        # The certificate is relative to labels: the largest are written.
        largest = self._numbers[:, int(self._numbers.amax(0).argmax())]
        self._remember(ArraySource(as_tensor(X, self._device), largest.contiguous()))
        return self

    def predict_proba(self, X: Any) -> Any:
        """Shares of the classes among the neighbours, shape (n_samples, n_classes).

        A list of them for several columns. None asks for the samples', of which none is its own
        neighbour.
        """
        shares = self._shares(X)
        return shares if self.outputs_2d_ else shares[0]

    def _shares(self, X: Any) -> list[Any]:
        """For each column of classes."""
        check_is_fitted(self)
        every = self.classes_ if self.outputs_2d_ else [self.classes_]
        ones = [
            numbers[:, None] == torch.arange(len(classes), device=numbers.device)
            for numbers, classes in zip(self._numbers.mT, every, strict=True)
        ]
        found = self._average(X, torch.cat(ones, 1).to(self._numbers)).cpu().numpy()
        return np.split(found, np.cumsum([one.shape[1] for one in ones])[:-1], axis=1)

    def predict(self, X: Any) -> Any:
        """The class with the largest share; the first of equal ones."""
        best = [share.argmax(1) for share in self._shares(X)]
        if not self.outputs_2d_:
            return self.classes_[best[0]]
        return np.stack([c[at] for c, at in zip(self.classes_, best, strict=True)], axis=1)

    def __sklearn_tags__(self) -> Any:
        """Several columns of classes are voted on at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class Components(ClassNamePrefixFeaturesOutMixin, TransformerMixin, InContext):  # type: ignore[misc]
    """Directions, each found one taken out of the prompt."""

    n_components: Any
    whiten: bool
    n_components_: int
    mean_: Any
    explained_variance_: Any
    explained_variance_ratio_: Any
    singular_values_: Any

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
        self._lies_at(X)
        X = validate_data(self, on_host(X), dtype=(np.float64, np.float32), ensure_min_samples=2)
        self._stored = X.dtype
        if self.n_components == "mle" and len(X) < X.shape[1]:
            raise ValueError(
                f"n_components='mle' is only supported if n_samples >= n_features; there are "
                f"{len(X)} samples of {X.shape[1]} features: say how many components"
            )
        x = as_tensor(X, self._device)
        source = ArraySource(x, x.new_zeros(len(x)))
        machine = self._machine(source)
        found = self._as_stored(machine.run(self.as_algorithm(), source), source)
        self._keep(machine, found)
        self.components_ = found.value.cpu().numpy()
        self.n_samples_ = len(x)
        self._cut(self.n_components)
        rest = min(x.shape) - self.n_components_
        spread = float(x.var(0, unbiased=True).sum() - self.explained_variance_.sum())
        self.noise_variance_ = max(spread, 0.0) / rest if rest else 0.0
        for name in ("components", "mean", "explained_variance", "explained_variance_ratio",
                     "singular_values"):  # fmt: skip
            setattr(self, f"{name}_", getattr(self, f"{name}_").astype(self._stored))
        return self

    def as_algorithm(self, column: int = 0) -> Algorithm:
        """All components, where their variances say how many of them are kept; of 0, one."""
        chosen = isinstance(self.n_components, float | str)
        if not chosen and self.n_components != 0:
            return super().as_algorithm()
        count = None if chosen else 1
        whole: Algorithm = clone(self).set_params(n_components=count).as_algorithm()
        return whole

    def _cut(self, share: Any) -> None:
        """As few components as explain more than this share, or as Minka's estimate says; or 0."""
        if not isinstance(share, float | str) and share != 0:
            return
        if share == 0:
            self.n_components_ = 0
        elif share == "mle":
            self.n_components_ = _infer_dimension(self.explained_variance_, self.n_samples_)
        else:
            above = np.searchsorted(np.cumsum(self.explained_variance_ratio_), share, "right")
            self.n_components_ = min(int(above) + 1, self.n_components_)
        for name in ("components", "explained_variance", "explained_variance_ratio",
                     "singular_values"):  # fmt: skip
            setattr(self, f"{name}_", getattr(self, f"{name}_")[: self.n_components_])

    def transform(self, X: Any) -> Any:
        """Coordinates along the components, shape (n_samples, n_components)."""
        check_is_fitted(self)
        x = self._points(X) - as_tensor(self.mean_, self._device)
        z = x @ as_tensor(self.components_, self._device).mT
        read = read_line(self.machine_, z).cpu().numpy()
        return (read / self._deviations if self.whiten else read).astype(_kind(X))

    @property
    def _deviations(self) -> Any:
        """Along the components; where there is none, one that the dtype can divide by."""
        least = np.finfo(self.explained_variance_.dtype).eps
        return np.maximum(np.sqrt(self.explained_variance_), least)

    def get_covariance(self) -> Any:
        """That of samples along the components, and of noise evenly in all other directions."""
        check_is_fitted(self)
        along = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        inside = (self.components_.T * along) @ self.components_
        return inside + self.noise_variance_ * np.eye(self.n_features_in_, dtype=self._stored)

    def get_precision(self) -> Any:
        """The inverse of the covariance."""
        return np.linalg.inv(self.get_covariance())

    def score_samples(self, X: Any) -> Any:
        """Logarithm of the density of each point, were samples normally distributed so."""
        check_is_fitted(self)
        x = self._points(X).cpu().numpy() - self.mean_
        precision = self.get_precision()
        squares = (x * (x @ precision)).sum(1)
        return 0.5 * (np.linalg.slogdet(precision)[1] - squares - x.shape[1] * np.log(2 * np.pi))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of :meth:`score_samples`."""
        return float(self.score_samples(X).mean())

    def inverse_transform(self, X: Any) -> Any:
        """Back to samples."""
        check_is_fitted(self)
        z = np.asarray(X)
        return (z * self._deviations if self.whiten else z) @ self.components_ + self.mean_

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
