"""Estimators, built from a record and read alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from iceform.algorithms import Algorithm
from iceform.sklearn import estimator_of

__all__ = ["answers", "build", "chances", "coefficient_matrix"]


def build(
    entry: type[Algorithm], options: Mapping[str, Any], device: torch.device, backend: str = "auto"
) -> Any:
    """The estimator with these options."""
    entry.check_options(options)
    known = entry.options()
    named = {known[n].estimator: known[n].parse(v) for n, v in options.items()}
    where = None if device.type == "cpu" else str(device)
    return estimator_of(entry)(**named, device=where, backend=backend)


def answers(model: Any, x: np.ndarray) -> np.ndarray:
    """Predictions of shape (n,) or, of components, scores of shape (n, k)."""
    return np.asarray(model.predict(x) if hasattr(model, "predict") else model.transform(x))


def chances(model: Any, x: np.ndarray) -> np.ndarray | None:
    """Probabilities of the classes, shape (n, k); None where a model tells none."""
    return np.asarray(model.predict_proba(x)) if hasattr(model, "predict_proba") else None


def coefficient_matrix(model: Any) -> np.ndarray | None:
    """Coefficients or components as rows, shape (k, d); None where the model has none."""
    coef = getattr(model, "coef_", getattr(model, "components_", None))
    return None if coef is None else np.atleast_2d(coef)
