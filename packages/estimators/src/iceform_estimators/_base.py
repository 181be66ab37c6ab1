"""What the estimators share, and how lines are fitted: the whole way from arrays to coefficients.

Arrays become sources, a machine is made for them, an algorithm runs on it, and what every fit
leaves behind is kept. :class:`LinearEstimator` and :class:`Separator` (lines between classes; where
there are more than two, all of them at once if the algorithm knows how, or else one class against
the rest) predict by a look-up of x.w + b. Other families are in
:mod:`iceform_estimators._families`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import Parameter, isfunction, signature
from numbers import Real
from typing import Any, ClassVar, dataclass_transform

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from iceform.certificates import Attestation, Certificate, Ledger, Result
from iceform.errors import BoundError, DeviceError, ParameterError
from iceform.validation import guard, plain_array, plain_tensor
from iceform_estimators._refusals import OF_ESTIMATORS, constraints, refuse
from iceform_estimators.algorithms import EstimationAlgorithm, LinearClassifier, LinearModel
from iceform_estimators.machine import ArraySource, Machine, Source
from iceform_estimators.machine.program import attested, moved, of_all, stored
from iceform_estimators.machine.stream import read_line
from iceform_estimators.tuning import SLACK, TOLERANCE

_BORDER = (
    *("fit", "partial_fit", "predict", "predict_proba", "decision_function", "transform", "score"),
    *("inverse_transform", "kneighbors", "kneighbors_graph", "error_bounds", "score_samples"),
)

_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


def as_tensor(values: Any, device: str | torch.device | None = None) -> Tensor:
    """A float64 tensor that shares memory with the array where torch can, and copies elsewhere.

    A fit reads what it shares and keeps none of it; what predictions need is copied.
    """
    array = plain_array(np.asarray(values, dtype=np.float64))
    tensor = torch.from_numpy(array if array.flags.writeable else np.asarray(_ReadOnly(array)))
    return tensor if device is None else tensor.to(device)


def on_host(values: Any, name: str = "X") -> Any:
    """What is validated: tensors, wherever they lie and whatever they hold, as arrays.

    Formats that NumPy lacks (bfloat16, float8) become float32, which holds all their numbers.
    """
    if isinstance(values, Tensor):
        values = plain_tensor(name, values).cpu()
        short = values.is_floating_point() and values.dtype not in _NUMPY_FLOATS
        return (values.float() if short else values).numpy()
    return plain_array(values) if isinstance(values, np.ndarray) else values


def kind_of(X: Any) -> Any:
    """The precision of predictions: that of the samples, float64 where they are no floats."""
    given = getattr(X, "dtype", None)  # an array's, a frame's or a tensor's
    return np.float32 if given in (np.float32, torch.float32) else np.float64


class _ReadOnly:
    """An array that must not be written to, for torch, which has no such tensors and would warn.

    A file that is mapped for reading stays mapped and is not copied; nothing here writes.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Declared(BaseEstimator):  # type: ignore[misc]
    """An estimator whose parameters are fields: ``__init__`` is written by what a class declares.

    A parameter of the peer that is no field is taken where it asks for nothing, and refused with
    the reason otherwise.
    """

    algorithm: ClassVar[type[EstimationAlgorithm]]
    classes: ClassVar[dict[type[EstimationAlgorithm], type[InContextEstimator]]] = {}

    machine_: Machine
    certificate_: Certificate
    attestation_: Attestation
    ledger_: Ledger
    digest_: str
    n_passes_: int
    n_iter_: Any
    classes_: Any
    _stored: Any = np.dtype(np.float64)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, [name for name in _BORDER if isfunction(vars(cls).get(name))])
        if "__init__" not in vars(cls):
            dataclass(cls, kw_only=True, eq=False, repr=False)
            cls.__init__ = _taking_hints(cls.__init__)  # type: ignore[method-assign]
        if "algorithm" in vars(cls) and issubclass(cls, InContextEstimator):
            cls.classes[cls.algorithm] = cls
            takes = [name for name in OF_ESTIMATORS if name in signature(cls).parameters]
            cls._parameter_constraints = {
                **{
                    o.estimator: constraints(cls.algorithm, o)
                    for o in cls.algorithm.options().values()
                },
                **{name: OF_ESTIMATORS[name] for name in takes},
            }

    def set_params(self, **params: Any) -> Any:
        """As scikit-learn's; what has no meaning here is refused with the reason."""
        own = self.get_params(deep=True)
        for name in [name for name in params if name not in own and "__" not in name]:
            refuse(self.algorithm, name, params.pop(name))
        return super().set_params(**params)


def _taking_hints(written: Callable[..., None]) -> Callable[..., None]:
    """``__init__`` of the fields, which takes or refuses the peer's other parameters."""
    told = signature(written)

    @wraps(written)
    def init(self: Declared, *given: Any, **named: Any) -> None:
        for name in [name for name in named if name not in told.parameters]:
            refuse(self.algorithm, name, named.pop(name))
        written(self, *given, **named)

    peer = Parameter("peer", Parameter.VAR_KEYWORD, annotation=Any)
    init.__signature__ = told.replace(parameters=[*told.parameters.values(), peer])  # type: ignore[attr-defined]
    return init


class InContextEstimator(Declared):
    """An estimator on a frozen machine: a subclass names its algorithm, and lists its parameters.

    Attributes
    ----------
    certificate_
        Proven distance of the answer from the exact one.
    attestation_
        Which weights ran, and what running rows again literally has shown.
    ledger_
        What was computed where.
    digest_
        SHA-256 of the frozen weights.
    n_passes_
        Passes of the frozen machine over the data.

    Examples
    --------
    >>> InContextRidge().as_algorithm().name, issubclass(InContextRidge, InContextEstimator)
    ('ridge', True)
    """

    device: str | None = None
    backend: str = "auto"

    def _validate_params(self) -> None:
        super()._validate_params()
        if self.device is not None:
            check_device(self.device)

    def as_algorithm(self, column: int = 0) -> EstimationAlgorithm:
        """The algorithm with this estimator's parameters; of an array, that of one column."""
        given = {}
        for name, one in self.algorithm.options().items():
            value = getattr(self, one.estimator)
            if one.estimator == "random_state" and value is not None:
                value = check_random_state(value).randint(2**31 - 1)
            value = value[column] if one.kind is float and np.ndim(value) else value
            if value is None:  # scikit-learn's way of leaving a choice open
                value = None if one.optional else one.default
            given[name] = one.kind(value) if isinstance(value, Real) else value
        return self.algorithm(**given)

    def _machine(self, source: Source, *, whole: bool = False) -> Machine:
        """A machine for these data; ``whole``: one whose prompt sees all of them."""
        machine = Machine(source.dim + 1, backend=self.backend)
        if not whole or source.rows <= machine.samples * machine.tokens:
            return machine
        tokens = -(-source.rows // machine.samples)
        return Machine(source.dim + 1, tokens=tokens, backend=self.backend)

    def _source(self, X: Any, y: Any, sample_weight: Any = None, **checks: Any) -> Source:
        """Validated data to walk over; Dask collections stay where they are."""
        if is_dask(X):
            return self._lazy(X, y, sample_weight, reset=checks.get("reset", True))
        X, y = self._validated(X, y, **checks)
        return self._arrays(X, y, self._weights(sample_weight, X))

    def _arrays(self, X: Any, y: Any, weights: Any) -> ArraySource:
        weights = None if weights is None else as_tensor(weights, self._device)
        x, y = as_tensor(X, self._device), as_tensor(y, self._device)
        return ArraySource(x, y, weights=weights)

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Any]:
        """Arrays, and the precision that the answer is stored in."""
        self._lies_at(X)
        X, y = on_host(X), on_host(y, "y")
        given = (X, y)
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), **checks)
        _check_exact("X", given[0])
        if not is_classifier(self):  # classes are names, whatever they look like
            _check_exact("y", given[1])
        self._stored = X.dtype
        return X, y

    def _lies_at(self, X: Any) -> None:
        """Remember where samples lie that are tensors."""
        self._found_at = X.device if isinstance(X, Tensor) else None

    @property
    def _device(self) -> str | torch.device | None:
        """Where passes run: where it was asked for, or else where the samples lie."""
        return self.device if self.device is not None else getattr(self, "_found_at", None)

    def _weights(self, sample_weight: Any, X: Any) -> Any:
        """Validated weights; None where there are none."""
        if sample_weight is None:
            return None
        return _check_sample_weight(
            on_host(sample_weight, "sample_weight"), X, dtype=np.float64, ensure_non_negative=True
        )

    def _lazy(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool = True, classes: bool = False
    ) -> Source:
        """A Dask collection as it is, its classes numbered where that is asked for."""
        from iceform_estimators.machine.dask import DaskSource

        given = {
            "class_weight": getattr(self, "class_weight", None),
            "sample_weight": sample_weight,
        }
        for name, value in given.items():
            if value is not None:
                raise ParameterError(
                    f"{name} of {type(self).__name__} is for arrays: chunks of a Dask collection "
                    f"bring labels and no weights; pass X.compute(), or no {name}"
                )
        self._check_columns(X, reset=reset)
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        self._stored = np.dtype(kind_of(X))
        if not classes:
            return DaskSource(X, y)
        self.classes_ = DaskSource.classes(y)
        check_classification_targets(self.classes_)
        return DaskSource(X, y, classes=self.classes_)

    def _labelled(self, X: Any, y: Any, sample_weight: Any = None) -> Source:
        """As :meth:`_source`, with classes numbered in the order of ``classes_``.

        A class whose samples all weigh nothing is none.
        """
        if is_dask(X):
            return self._lazy(X, y, sample_weight, classes=True)
        X, y = self._validated(X, y)
        check_classification_targets(y)
        weights = self._weights(sample_weight, X)
        if weights is not None:
            some = weights > 0
            X, y, weights = X[some], y[some], weights[some]
        self.classes_, numbers = np.unique(y, return_inverse=True)
        balance = getattr(self, "class_weight", None)
        if balance is not None:
            factors = compute_class_weight(
                balance, classes=self.classes_, y=y, sample_weight=weights
            )
            weights = factors[numbers] * (1.0 if weights is None else weights)
        return self._arrays(X, numbers, weights)

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        """What ``validate_data`` says of columns, for Dask collections."""
        if len(X.shape) != 2:
            raise ValueError(f"Expected 2D input, got {len(X.shape)} dimension(s) instead.")
        # The empty frame or array that stands for a collection has its column names.
        _check_feature_names(self, X._meta, reset=reset)
        if reset:
            self.n_features_in_ = int(X.shape[1])
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )

    def _by_blocks(
        self, method: str, X: Any, shape: tuple[int, ...] = (), dtype: Any = float
    ) -> Any:
        """A prediction for each chunk of a Dask collection, as a Dask array."""
        from iceform_estimators.machine.dask import by_blocks

        check_is_fitted(self)
        self._check_columns(X, reset=False)
        return by_blocks(getattr(self, method), X, shape, np.dtype(dtype))

    def _points(self, X: Any) -> Tensor:
        """Validated new samples."""
        check_is_fitted(self)
        X = validate_data(self, on_host(X), dtype=np.float64, reset=False)
        return as_tensor(X, self._device)

    def _begun(self, model: Any, row: int | None) -> Any:
        """The same model, begun where the last fit ended if that is asked for and fits.

        Of its coefficients a row or, where classes are fitted at once, all.
        """
        if not (getattr(self, "warm_start", False) and hasattr(self, "coef_")):
            return model
        coef = np.atleast_2d(self.coef_)
        intercept = np.atleast_1d(getattr(self, "intercept_", np.zeros(len(coef))))
        rows = len(self.classes_) if row is None else row + 1
        short = min(len(coef), len(intercept)) < rows or (row is None and len(coef) != rows)
        if coef.shape[1] != self.n_features_in_ or short:
            return model
        which: Any = slice(None) if row is None else row
        scale = getattr(self, "scale_", None)
        beside = {"begin_scale": float(scale)} if scale is not None else {}
        return replace(model, begin=(as_tensor(coef[which]), as_tensor(intercept[which])), **beside)

    def _cast(self, values: Tensor) -> Any:
        """As an array of the precision that the samples were given in."""
        return values.cpu().numpy().astype(self._stored)

    def _as_stored(self, found: Result, source: Source) -> Result:
        """With what storing its coefficients in less than float64 may move them by."""
        if self._stored == np.float64:
            return found
        worst = float(moved(found.coef, torch.float32).max())
        if "what" in found.certificate.domain:  # it speaks of fitted values
            reach = source.moments(products=False).largest
            off = (moved(part, torch.float32) for part in (found.coef, found.intercept))
            worst = SLACK * float((reach @ next(off) + next(off)).max())
        return stored(found, torch.float32, worst)

    def _keep(
        self, machine: Machine, *found: Result, sources: Sequence[Source] = (), each: str = "column"
    ) -> None:
        """What every fit leaves behind; of several fits, what holds for each of them."""
        self.machine_, self.attestation_ = machine, attested(found)
        self.certificate_ = of_all(found, sources, each)
        self.ledger_ = Ledger()
        for result in found:
            self.ledger_.merge(result.ledger)
        self.digest_ = self.attestation_.weights
        self.n_passes_ = self.n_iter_ = sum(result.passes for result in found)
        for name in found[0].parts:
            if name != "intercept":
                values = [_plain(result.parts[name]) for result in found]
                same = all(np.array_equal(value, values[0]) for value in values)
                setattr(self, f"{name}_", values[0] if same else np.stack(values))

    def _warn(self, converged: bool, passes: int) -> None:
        if not converged:
            warnings.warn(
                f"{type(self).__name__} stopped after {passes} passes before its tolerance was "
                f"reached; the certificate says how far the answer can be off. Raise max_iter, or "
                "use precondition='whiten'.",
                ConvergenceWarning,
                stacklevel=3,
            )


class Scored:
    """Scores of scikit-learn's, of labels and weights that may be tensors."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of predictions, or the share of classes that are right."""
        weights = on_host(sample_weight, "sample_weight")
        return float(super().score(X, on_host(y, "y"), weights))  # type: ignore[misc]


class LinearEstimator(Scored, RegressorMixin, InContextEstimator):  # type: ignore[misc]
    """Fits coefficients by passes, predicts by a look-up of x.w + b.

    An estimator for an algorithm of one's own is a subclass that names it as ``algorithm``.

    Examples
    --------
    >>> issubclass(InContextLasso, LineEstimator), InContextLasso.algorithm.title
    (True, 'Lasso')
    """

    fit_intercept: bool = True
    tol: float = TOLERANCE
    max_iter: int | None = 1000
    precondition: str = "whiten"

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
            apart = np.abs(np.asarray(on_host(y, "y")).ravel() - self.predict(X))
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
        found, sources = [], []
        for k, labels in enumerate(y.T):
            source = self._arrays(X, np.ascontiguousarray(labels), weights)
            sources.append(source)
            machine = self._machine(source)
            model = self._begun(self.as_algorithm(k), k)
            found.append(self._as_stored(machine.run(model, source), source))
        self._keep(machine, *found, sources=sources)
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
        return (z if response is None else response(z)).cpu().numpy().astype(kind_of(X))


class Batches(LinearEstimator):
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


class Sparse(LinearEstimator):
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
            x, y = np.asarray(on_host(X), dtype=np.float64), on_host(y, "y")
            self.dual_gap_ = self._gap(x, y, on_host(sample_weight, "sample_weight"))
        return self

    def _gap(self, X: Any, y: Any, weights: Any) -> Any:
        """The objective less that of a point of the dual problem, one for each column of labels."""
        y = np.asarray(y, dtype=np.float64)
        labels, coefs = y.reshape(len(y), -1).T, np.atleast_2d(self.coef_).astype(np.float64)
        c = _check_sample_weight(weights, X, dtype=np.float64)
        c = c / c.sum()
        x = X - (c @ X if self.fit_intercept else 0.0)
        gaps = []
        for k, (column, w) in enumerate(zip(labels, coefs, strict=True)):
            model: Any = self.as_algorithm(k)
            share = getattr(model, "l1_ratio", 1.0)
            l1, l2 = model.alpha * share, model.alpha * (1 - share)
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


class Separator(Scored, ClassifierMixin, InContextEstimator):  # type: ignore[misc]
    """One line, or one for each class."""

    fit_intercept: bool = True
    max_iter: int = 1000
    class_weight: Mapping[Any, float] | str | None = None

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
                f"{self.classes_[:1].tolist()[0]!r}"
            )
        machine, model = self._machine(source), self.as_algorithm()
        assert isinstance(model, LinearClassifier)
        models = self._models(model)
        fits = [self._as_stored(machine.run(one, source), source) for one in models]
        self._keep(machine, *fits, sources=[source] * len(fits), each="class")
        self.certificates_ = [fit.certificate for fit in fits]
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
        scores = self._scores(X).cpu().numpy().astype(kind_of(X))
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
        return np.divide(chances, total, out=even, where=total > 0).astype(kind_of(X))


def check_device(name: Any) -> None:
    """Refuse a device that holds no numbers here."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as refused:
        reason = " ".join(str(refused).split("\n")[0].split())
        raise DeviceError(f"device {name!r} cannot be used: {reason}; use cpu") from None
    if device.type == "meta":
        raise DeviceError("the meta device holds no numbers; use cpu")


def _check_exact(what: str, values: Any) -> None:
    """Refuse numbers that float64 does not hold: certificates are of data as they were given."""
    kind = getattr(values, "dtype", None)
    if not isinstance(kind, np.dtype) or kind.kind not in "iuf" or kind.itemsize < 8:
        return
    if kind == np.float64 or not np.size(values):
        return
    array = np.asarray(values)
    with np.errstate(invalid="ignore"):
        lost = array.astype(np.float64).astype(kind) != array
    if lost.any():
        raise BoundError(
            f"{what} holds {array[lost][0]} as {kind}, which float64 rounds, and certificates "
            "are of the data as given: pass it .astype(numpy.float64), if that is what is meant"
        )


def _plain(value: Any) -> Any:
    """NumPy's where it is torch's."""
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def is_dask(values: Any) -> bool:
    """Whether a value is a Dask collection."""
    return type(values).__module__.partition(".")[0] in ("dask", "dask_expr")
