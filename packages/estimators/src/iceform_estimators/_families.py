"""How estimators of a family of algorithms fit and predict.

``line``, ``separator``
    Coefficients, of one line or of lines between classes (:mod:`iceform_estimators._base`).
``average``, ``neighbours``, ``vote``
    Samples that are kept in the prompt.
``components``
    Directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from numbers import Integral
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
    _num_samples,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from iceform_estimators._base import (
    InContextEstimator,
    Scored,
    as_tensor,
    is_dask,
    kind_of,
    on_host,
)
from iceform_estimators.algorithms import EstimationAlgorithm
from iceform_estimators.algorithms.in_memory import in_memory
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.program import Recalled, together
from iceform_estimators.machine.stream import read_line
from iceform_estimators.tuning import KEPT

_READ = (
    KEPT // 64
)  # samples whose fitted values a fit reads; those of others are read by ``predict``


# What there is one of for each component.
_ALONG = (
    "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_",
)  # fmt: skip


class _StoredSamples(InContextEstimator):
    """Keeps a copy of the samples in the prompt; every prediction is a run of its own."""

    def _remember(self, x: Tensor, columns: Tensor, numbers: Sequence[Any] = (None,)) -> None:
        """Write samples and labels, shape (n, v), into the prompt.

        ``numbers`` are of the classes whose shares are meant, by column; None of labels.
        """
        source = ArraySource(x, columns[:, 0].contiguous())
        machine = self._machine(source, whole=True)
        model: Any = self._model(source)
        found = model.recalled(machine.start(), source, _READ)
        self._memory: Any = found.predictor
        self._keep(machine, found)
        if source.rows > _READ:
            told = f"read were fitted values of the first {_READ} of {source.rows} samples; every "
            told += "prediction is a run of its own, which looks at the weights"
            self.attestation_ = replace(self.attestation_, note=told)
        if callable(getattr(self, "weights", None)):
            self._memory = replace(self._memory, weights=self.weights)
            found = replace(found, certificate=self._memory.certificate(), predictor=self._memory)
        every = [
            Recalled(model, self._memory, number).certified(found, x, column.contiguous())
            for column, classes in zip(columns.mT, numbers, strict=True)
            for number in ([None] if classes is None else range(len(classes)))
        ]
        self.certificate_ = together(every, "column" if numbers[0] is None else "class")

    def _model(self, source: Any) -> EstimationAlgorithm:
        return self.as_algorithm()


class AveragingEstimator(Scored, RegressorMixin, _StoredSamples):  # type: ignore[misc]
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
        source: Any = in_memory(self._source(X, y, y_numeric=True))
        self._remember(source.x, source.y[:, None])
        return self

    def predict(self, X: Any) -> Any:
        """Averages, shape (n_samples,)."""
        points = self._points(X)
        return self._memory(points).cpu().numpy()

    def error_bounds(self, X: Any) -> Any:
        """What each prediction for X may be off by, proven, shape (n_samples,)."""
        return self._memory.bounds(self._points(X)).cpu().numpy()


class _Neighbours(_StoredSamples):
    """Finds neighbours in the prompt."""

    n_neighbors: int = field(default=5, kw_only=False)
    weights: str | Callable[[Any], Any] | None = "uniform"

    def as_algorithm(self, column: int = 0) -> EstimationAlgorithm:
        """As of any estimator; a function of distances is the estimator's own."""
        if not callable(self.weights):
            return super().as_algorithm()
        plain: EstimationAlgorithm = clone(self).set_params(weights="uniform").as_algorithm()
        return plain

    def _model(self, source: Any) -> EstimationAlgorithm:
        """Of as many neighbours as there are; who asks for more is told so when asking."""
        model: Any = self.as_algorithm()
        few: EstimationAlgorithm = replace(model, n_neighbors=min(model.n_neighbors, source.rows))
        return few

    def _remember(self, x: Tensor, columns: Tensor, numbers: Sequence[Any] = (None,)) -> None:
        super()._remember(x, columns, numbers)
        self.n_samples_fit_ = len(x)
        self.effective_metric_ = "euclidean"
        if callable(self.weights):
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
        most: Any = self.n_samples_fit_ - others
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

    def __sklearn_tags__(self) -> Any:
        """Several columns of labels, or of classes, are answered at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _average(self, X: Any, values: Tensor) -> Tensor:
        memory, points, others = self._asked(X)
        found: Tensor = memory.average(points, values, others=others)
        return found


class NeighbourAverage(_Neighbours, AveragingEstimator):
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
        columns = as_tensor(y.reshape(len(y), -1), self._device).clone()
        self._flat, self._labels = y.ndim == 1, columns
        self._remember(as_tensor(X, self._device), columns, [None] * columns.shape[1])
        return self

    def predict(self, X: Any) -> Any:
        """Averages, shape (n_samples,) or (n_samples, n_outputs); None asks for the samples'.

        A sample that is asked for is not its own neighbour.
        """
        check_is_fitted(self)
        found = self._average(X, self._labels).cpu().numpy()
        return found[:, 0] if self._flat else found


class Vote(Scored, ClassifierMixin, _Neighbours):  # type: ignore[misc]
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
        y = on_host(y, "y")
        shape = () if is_dask(y) else np.asarray(y).shape
        self.outputs_2d_ = len(shape) == 2 and shape[1] > 1
        if not self.outputs_2d_:
            source: Any = in_memory(self._labelled(X, y))
            self._numbers = source.y[:, None].clone()
            self._remember(source.x, self._numbers, [self.classes_])
            return self
        X, y = self._validated(X, y, multi_output=True)
        check_classification_targets(y)
        found = [np.unique(column, return_inverse=True) for column in y.T]
        self.classes_ = [classes for classes, _ in found]
        self._numbers = as_tensor(np.stack([numbers for _, numbers in found], 1), self._device)
        self._remember(as_tensor(X, self._device), self._numbers, self.classes_)
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


class Components(ClassNamePrefixFeaturesOutMixin, TransformerMixin, InContextEstimator):  # type: ignore[misc]
    """Directions, each found one taken out of the prompt."""

    n_components: int | float | str | None = field(default=None, kw_only=False)
    random_state: Any = None
    whiten: bool = False
    n_components_: int = field(init=False)
    mean_: Any = field(init=False)
    explained_variance_: Any = field(init=False)
    explained_variance_ratio_: Any = field(init=False)
    singular_values_: Any = field(init=False)

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
        for name in ("mean_", *_ALONG):
            setattr(self, name, getattr(self, name).astype(self._stored))
        return self

    def as_algorithm(self, column: int = 0) -> EstimationAlgorithm:
        """All components, where their variances say how many of them are kept; of 0, one."""
        chosen = isinstance(self.n_components, float | str)
        if not chosen and self.n_components != 0:
            return super().as_algorithm()
        count = None if chosen else 1
        whole: EstimationAlgorithm = clone(self).set_params(n_components=count).as_algorithm()
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
        for name in _ALONG:
            setattr(self, name, getattr(self, name)[: self.n_components_])

    def transform(self, X: Any) -> Any:
        """Coordinates along the components, shape (n_samples, n_components)."""
        check_is_fitted(self)
        x = self._points(X) - as_tensor(self.mean_, self._device)
        z = x @ as_tensor(self.components_, self._device).mT
        read = read_line(self.machine_, z).cpu().numpy()
        return (read / self._deviations if self.whiten else read).astype(kind_of(X))

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
        z = np.asarray(on_host(X))
        return (z * self._deviations if self.whiten else z) @ self.components_ + self.mean_

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)
