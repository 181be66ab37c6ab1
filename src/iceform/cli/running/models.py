"""Estimators and programs, built from an entry of the catalogue and read alike."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from iceform.certificates import Certificate
from iceform.cli.catalogue import Entry
from iceform.errors import DeviceError, ProgramError

__all__ = ["Model", "ProgramModel", "answers", "build", "coefficient_matrix", "gamma_of"]


class Model(Protocol):
    """What an estimator of ``iceform.sklearn`` leaves behind when fitted."""

    certificate_: Certificate
    digest_: str
    n_passes_: int
    machine_: Any

    def fit(self, x: np.ndarray, y: np.ndarray | None) -> Any:
        """Learn."""


class ProgramModel:
    """A program without an estimator, with an estimator's manners.

    Parameters
    ----------
    entry
        Which.
    options
        Its parameters.
    device
        Where it runs.
    """

    certificate_: Certificate
    digest_: str
    n_passes_: int
    machine_: Any

    def __init__(self, entry: Entry, options: Mapping[str, Any], device: torch.device) -> None:
        assert entry.program is not None
        self.entry, self.device = entry, device
        self.program = _made(importlib.import_module("iceform.algorithms"), entry.program, options)

    def fit(self, x: np.ndarray, y: np.ndarray | None) -> ProgramModel:
        """Loop the machine over the data."""
        from iceform.machine import StreamMachine

        assert y is not None
        labels = self._labels(y) if self.entry.task == "classification" else y
        self.machine_ = StreamMachine(x.shape[1] + 1)
        self.result_ = self.machine_.run(self.program, self._on(x), self._on(labels))
        self.coef_ = self.result_.coef.cpu().numpy()
        self.intercept_ = float(self.result_.intercept)
        self.certificate_, self.digest_ = self.result_.certificate, self.result_.digest
        self.n_passes_ = self.result_.passes
        if not getattr(self.result_, "converged", True):
            warnings.warn(
                f"{self.entry.name} stopped after {self.n_passes_} passes above its tolerance",
                RuntimeWarning,
                stacklevel=2,
            )
        return self

    def _labels(self, y: np.ndarray) -> np.ndarray:
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise ProgramError(
                f"{self.entry.name} separates two classes, the target has {len(self.classes_)}; "
                "use logistic or knn-classifier"
            )
        return np.where(y == self.classes_[1], 1.0, -1.0)

    def _on(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64).to(self.device)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Numbers or labels, shape (n,)."""
        z = self.result_.predict(self._on(x)).cpu().numpy()
        if self.entry.task == "classification":
            return np.asarray(self.classes_[(z > 0).astype(int)])
        return np.exp(z) if self.entry.name == "poisson" else np.asarray(z)


def _made(module: Any, name: str, options: Mapping[str, Any]) -> Any:
    cls = getattr(module, name, None)
    if cls is None:
        raise ProgramError(f"this version of iceform has no {name}; update it")
    return cls(**options)


def build(entry: Entry, options: Mapping[str, Any], device: torch.device) -> Any:
    """The estimator or program with these options."""
    entry.check(options)
    if entry.estimator is None:
        return ProgramModel(entry, options, device)
    named = {("max_iter" if n == "max_passes" else n): v for n, v in options.items()}
    model = _made(importlib.import_module("iceform.sklearn"), entry.estimator, named)
    if device.type != "cpu":
        if "device" not in model.get_params():
            raise DeviceError(f"{entry.name} runs on the CPU only, got device {device}")
        model.set_params(device=str(device))
    return model


def gamma_of(model: Any) -> float:
    """The gamma that a kernel regression was fitted with."""
    return float(model._memory.gamma)


def answers(model: Any, x: np.ndarray) -> np.ndarray:
    """Predictions of shape (n,) or, of components, scores of shape (n, k)."""
    return np.asarray(model.predict(x) if hasattr(model, "predict") else model.transform(x))


def coefficient_matrix(model: Any) -> np.ndarray | None:
    """Coefficients or components as rows, shape (k, d); None where the model has none."""
    coef = getattr(model, "coef_", getattr(model, "components_", None))
    return None if coef is None else np.atleast_2d(coef)
