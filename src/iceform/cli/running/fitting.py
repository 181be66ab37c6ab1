"""Fitting until the certificate is what was asked for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from iceform.cli.running.data import Data
from iceform.cli.running.models import build
from iceform.cli.running.settings import Settings, check_device
from iceform.errors import BoundError, PrecisionError, ProgramError

__all__ = ["fitted"]

_TIGHTENING = 1e-2  # of the tolerance, when an eps was asked for that is not certified yet
_TIGHTEST = 1e-15


def fitted(settings: Settings, data: Data) -> Any:
    """The model, its tolerance tightened until the certificate is what was asked for."""
    device = check_device(settings.device)
    options = dict(settings.options)
    y = data.y["train"] if settings.entry.needs_target() else None
    while True:
        model = build(settings.entry, options, device, settings.backend)
        _check_counts(options, data)
        _fit(model, data.x["train"], y)
        certified = model.certificate_.error
        if settings.eps is None or certified <= settings.eps:
            return model
        if not _can_tighten(settings, options, model):
            raise PrecisionError(_short_of(settings, certified), best=certified)
        options["tol"] = _TIGHTENING * _tol(options, model)


def _tol(options: Mapping[str, Any], model: Any) -> float:
    return float(options.get("tol", getattr(model, "tol", 0.0)))


def _can_tighten(settings: Settings, options: Mapping[str, Any], model: Any) -> bool:
    """Whether a smaller tolerance may help, and may be taken."""
    free = "tol" in settings.entry.options() and "tol" not in settings.options
    return free and _TIGHTENING * _tol(options, model) >= _TIGHTEST


def _short_of(settings: Settings, certified: float) -> str:
    name = settings.entry.name
    if not math.isfinite(certified):
        return f"no error can be certified for {name} on these data; leave out --eps"
    return (
        f"eps = {settings.eps:g} was asked for, {certified:.3g} is the error that can be certified "
        f"for {name} on these data; ask for that or more"
    )


def _fit(model: Any, x: np.ndarray, y: np.ndarray | None) -> None:
    """Fit; scikit-learn's refusal of an option is one of ours."""
    refusal = importlib.import_module("sklearn.utils._param_validation").InvalidParameterError
    try:
        model.fit(x, y)
    except refusal as refused:
        raise ProgramError(" ".join(str(refused).split())) from None


def _check_counts(options: Mapping[str, Any], data: Data) -> None:
    rows, features = data.x["train"].shape
    for name, most in (("n_neighbors", rows), ("n_components", min(rows, features))):
        if name in options and not 1 <= options[name] <= most:
            raise BoundError(
                f"{name} must be between 1 and {most} for these data, got {options[name]}"
            )
