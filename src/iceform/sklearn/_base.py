"""What the estimators share: arrays to sources, a machine for them, and what is kept of a fit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from inspect import isfunction
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from iceform.algorithms import Algorithm
from iceform.certificates import Attestation, Certificate, Ledger, Result, weakest
from iceform.errors import BoundError, ParameterError
from iceform.machine import ArraySource, Machine, Source, Stream, stored
from iceform.sklearn._refusals import refuse
from iceform.validation import guard

__all__ = ["InContext", "as_tensor", "is_dask", "on_host"]

_BORDER = (
    *("fit", "partial_fit", "predict", "predict_proba", "decision_function", "transform", "score"),
    *("inverse_transform", "kneighbors", "kneighbors_graph", "error_bounds", "score_samples"),
)


def as_tensor(values: Any, device: str | torch.device | None = None) -> Tensor:
    """A float64 tensor that shares memory with the array where it can."""
    array = np.asarray(values, dtype=np.float64)
    tensor = torch.from_numpy(array if array.flags.writeable else np.asarray(_ReadOnly(array)))
    return tensor if device is None else tensor.to(device)


def on_host(values: Any) -> Any:
    """What is validated: tensors, wherever they lie, as arrays."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


class _ReadOnly:
    """An array that must not be written to, for torch, which has no such tensors and would warn.

    A file that is mapped for reading stays mapped and is not copied; nothing here writes.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


class InContext(BaseEstimator):  # type: ignore[misc]
    """An estimator on a frozen machine."""

    algorithm: ClassVar[type[Algorithm]]

    machine_: Stream
    certificate_: Certificate
    attestation_: Attestation
    ledger_: Ledger
    digest_: str
    n_passes_: int
    n_iter_: Any
    classes_: Any
    _stored: Any = np.dtype(np.float64)
    device: str | None
    backend: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, [name for name in _BORDER if isfunction(vars(cls).get(name))])

    def set_params(self, **params: Any) -> Any:
        """As scikit-learn's; what has no meaning here is refused with the reason."""
        own = self.get_params(deep=True)
        for name in [name for name in params if name not in own and "__" not in name]:
            refuse(self.algorithm, name, params.pop(name))
        return super().set_params(**params)

    def as_algorithm(self, column: int = 0) -> Algorithm:
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

    def _machine(self, source: Source, *, whole: bool = False) -> Stream:
        """A machine for these data; ``whole``: one whose prompt sees all of them."""
        machine = Machine(source.dim + 1, layout="stream", backend=self.backend)
        if not whole or source.rows <= machine.samples * machine.tokens:
            return machine
        tokens = -(-source.rows // machine.samples)
        return Machine(source.dim + 1, layout="stream", tokens=tokens, backend=self.backend)

    def _source(self, X: Any, y: Any, sample_weight: Any = None, **checks: Any) -> Source:
        """Validated data to walk over; Dask collections stay where they are."""
        if is_dask(X):
            from iceform.machine.dask import DaskSource

            self._check_dask(X, sample_weight)
            self._check_columns(X, reset=checks.get("reset", True))
            self._check_labels(y)
            return DaskSource(X, y)
        X, y = self._validated(X, y, **checks)
        return self._arrays(X, y, self._weights(sample_weight, X))

    def _arrays(self, X: Any, y: Any, weights: Any) -> ArraySource:
        x, y = as_tensor(X, self._device), as_tensor(y, self._device)
        return ArraySource(
            x, y, weights=None if weights is None else as_tensor(weights, self._device)
        )

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Any]:
        """Arrays, and the precision that the answer is stored in."""
        self._lies_at(X)
        X, y = on_host(X), on_host(y)
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
            on_host(sample_weight), X, dtype=np.float64, ensure_non_negative=True
        )

    def _check_dask(self, X: Any, sample_weight: Any) -> None:
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
        single = getattr(X, "dtype", None) == np.float32
        self._stored = np.dtype(np.float32 if single else np.float64)

    def _labelled(self, X: Any, y: Any, sample_weight: Any = None) -> Source:
        """As :meth:`_source`, with classes numbered in the order of ``classes_``.

        A class whose samples all weigh nothing is none.
        """
        if is_dask(X):
            from iceform.machine.dask import DaskSource

            self._check_dask(X, sample_weight)
            self._check_columns(X, reset=True)
            self._check_labels(y)
            self.classes_ = DaskSource.classes(y)
            check_classification_targets(self.classes_)
            return DaskSource(X, y, classes=self.classes_)
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

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )

    def _by_blocks(
        self, method: str, X: Any, shape: tuple[int, ...] = (), dtype: Any = float
    ) -> Any:
        """A prediction for each chunk of a Dask collection, as a Dask array."""
        from iceform.machine.dask import by_blocks

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
        coef, intercept = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        rows = len(self.classes_) if row is None else row + 1
        short = min(len(coef), len(intercept)) < rows or (row is None and len(coef) != rows)
        if coef.shape[1] != self.n_features_in_ or short:
            return model
        which: Any = slice(None) if row is None else row
        return replace(model, begin=(as_tensor(coef[which]), as_tensor(intercept[which])))

    def _cast(self, values: Tensor) -> Any:
        """As an array of the precision that the samples were given in."""
        return values.cpu().numpy().astype(self._stored)

    def _as_stored(self, found: Result, source: Source) -> Result:
        """With what storing its coefficients in less than float64 may move them by."""
        if self._stored == np.float64:
            return found
        unit = float(np.finfo(self._stored).eps) / 2
        sizes = [found.coef.abs()]
        if "what" in found.certificate.domain:  # it speaks of fitted values
            reach = source.moments(products=False).largest
            sizes = [(reach @ found.coef.abs() + found.intercept.abs())[None]]
        worst = 1.001 * unit * float(torch.cat(sizes).max())
        kind = torch.float32 if self._stored == np.float32 else torch.float64
        return stored(found, kind, worst)

    def _keep(self, machine: Stream, *found: Result) -> None:
        """What every fit leaves behind; of several results the weakest."""
        worst = max(found, key=lambda result: result.certificate.error)
        every = [result.certificate for result in found]
        self.machine_, self.attestation_ = machine, worst.attestation
        self.certificate_ = replace(
            worst.certificate,
            kind=weakest(one.kind for one in every),
            assumptions=tuple(dict.fromkeys(a for one in every for a in one.assumptions)),
        )
        self.ledger_ = Ledger()
        for result in found:
            self.ledger_.merge(result.ledger)
        self.digest_ = worst.digest
        self.n_passes_ = self.n_iter_ = sum(result.passes for result in found)
        for name, value in worst.parts.items():
            if name != "intercept":
                setattr(self, f"{name}_", _plain(value))

    def _warn(self, converged: bool, passes: int) -> None:
        if not converged:
            warnings.warn(
                f"{type(self).__name__} stopped after {passes} passes before its tolerance was "
                f"reached; the certificate says how far the answer can be off. Raise max_iter, or "
                "use precondition='whiten'.",
                ConvergenceWarning,
                stacklevel=3,
            )


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
            f"{what} holds {array[lost][0]!r} as {kind}, which float64 rounds, and certificates "
            "are of the data as given: pass it .astype(numpy.float64), if that is what is meant"
        )


def _plain(value: Any) -> Any:
    """NumPy's where it is torch's."""
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def is_dask(values: Any) -> bool:
    """Whether a value is a Dask collection."""
    return type(values).__module__.partition(".")[0] in ("dask", "dask_expr")
