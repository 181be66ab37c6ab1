"""Principal components."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from iceform import algorithms
from iceform.machine import ArraySource, StreamMachine
from iceform.machine.tables import read_line
from iceform.sklearn._base import InContext, as_tensor

__all__ = ["InContextPCA"]


class InContextPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, InContext):  # type: ignore[misc]
    """Principal components by Lanczos passes, each found one taken out of the prompt.

    Parameters
    ----------
    n_components
        How many; None for min(n_samples, n_features).
    random_state
        Seed of the random starts; the components do not depend on it beyond rounding.
    device
        Where passes run.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_
        As scikit-learn's PCA has them.
    certificate_
        Proven distance of each component from the exact one; infinite where two variances agree.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [None, Interval(Integral, 1, None, closed="left")],
        "random_state": [None, Interval(Integral, 0, None, closed="left")],
        "device": [None, str],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        random_state: int | None = None,
        device: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Any:
        """Find the components."""
        self._validate_params()
        source = self._samples(X)
        most = min(source.rows, source.dim)
        count = most if self.n_components is None else int(self.n_components)
        machine = StreamMachine(source.dim + 1)
        model = algorithms.PCA(count, seed=int(self.random_state or 0))
        found = machine.run(model, source)
        self._keep(machine, found.certificate, found.passes)
        self.mean_ = found.mean.cpu().numpy()
        self.components_ = found.components.cpu().numpy()
        self.explained_variance_ = found.variances.cpu().numpy()
        total = float((source.x - found.mean).square().sum()) / max(source.rows - 1, 1)
        self.explained_variance_ratio_ = self.explained_variance_ / (total or 1.0)
        self.singular_values_ = np.sqrt(self.explained_variance_ * max(source.rows - 1, 1))
        self.n_components_ = count
        return self

    def _samples(self, X: Any) -> ArraySource:
        from sklearn.utils.validation import validate_data

        x = as_tensor(validate_data(self, X, dtype=np.float64, ensure_min_samples=2), self.device)
        return ArraySource(x, x.new_zeros(len(x)))

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
