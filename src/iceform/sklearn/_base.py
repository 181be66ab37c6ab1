"""What the estimators share: arrays to sources, and what is kept of a fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from iceform.certificates import Certificate
from iceform.streaming import ArraySource, Source, StreamMachine

__all__ = ["InContext", "as_tensor"]


def as_tensor(values: Any, device: str | torch.device | None = None) -> Tensor:
    """A float64 tensor that shares memory with the array where it can."""
    array = np.asarray(values, dtype=np.float64)
    # torch warns about memory it must not write to; nothing here writes.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if device is None else tensor.to(device)


class InContext(BaseEstimator):  # type: ignore[misc]
    """An estimator on a frozen machine."""

    machine_: StreamMachine
    certificate_: Certificate
    digest_: str
    n_passes_: int
    n_iter_: int
    classes_: Any
    device: str | None

    def _source(self, X: Any, y: Any, **checks: Any) -> Source:
        """Validated data to walk over; Dask collections stay where they are."""
        if _is_dask(X):
            from iceform.streaming.dask import DaskSource

            source: Source = DaskSource(X, y)
            self.n_features_in_ = source.dim
            names = getattr(X, "columns", None)
            if names is not None:
                self.feature_names_in_ = np.asarray(names, dtype=object)
            return source
        X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        return ArraySource(as_tensor(X, self.device), as_tensor(y, self.device))

    def _labelled(self, X: Any, y: Any) -> Source:
        """As :meth:`_source`, with classes numbered in the order of ``classes_``."""
        if _is_dask(X):
            from iceform.streaming.dask import DaskSource

            self.classes_, numbers = DaskSource.numbered(y)
            return self._source(X, numbers)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return ArraySource(as_tensor(X, self.device), as_tensor(numbers, self.device))

    def _points(self, X: Any) -> Tensor:
        """Validated new samples."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return as_tensor(X, self.device)

    def _keep(self, machine: StreamMachine, certificate: Certificate, passes: int) -> None:
        self.machine_ = machine
        self.certificate_ = certificate
        self.digest_ = machine.digest
        self.n_passes_ = self.n_iter_ = passes

    def _warn(self, converged: bool, passes: int) -> None:
        if not converged:
            warnings.warn(
                f"{type(self).__name__} stopped after {passes} passes before its tolerance was "
                f"reached; the certificate says how far the answer can be off. Raise max_iter, or "
                "use precondition='whiten'.",
                ConvergenceWarning,
                stacklevel=3,
            )


def _is_dask(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] in ("dask", "dask_expr")
