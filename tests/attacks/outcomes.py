"""What an attack found, and gradients of every named loss in numbers of 64 bits of mantissa."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

F32, F64 = torch.float32, torch.float64
LONG = np.longdouble
assert np.finfo(LONG).eps < 1e-18, "cheap attacks need a longer mantissa than float64's"


class Outcome(NamedTuple):
    """One attack, or as many as were tried at once."""

    certified: float
    off: float
    unit: float
    tried: int = 1
    dtype: torch.dtype = F64

    @property
    def violated(self) -> bool:
        """Whether more was off than was certified."""
        return not self.off <= self.certified

    @property
    def ratio(self) -> float:
        """Certified over actual."""
        return self.certified / max(self.off, self.unit)


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


# l' of every named loss, for numbers of any length; what is encoded how is the loss's own.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "squared": lambda z: z,
    "huber": lambda z: np.clip(z, -1, 1),
    "squared_hinge": lambda m: -np.maximum(0, 1 - m),
    "logistic": sigmoid,
    "logistic_margin": lambda m: -sigmoid(-m),
    "absolute": lambda z: np.tanh(4 * z),
    "quantile": lambda z: sigmoid(4 * z) - LONG(0.5),
    "hinge": lambda m: -sigmoid((1 - m) * 4),
    "poisson": np.exp,
}


def labels_for(loss: Any, y: torch.Tensor) -> torch.Tensor:
    """As near as the loss takes them."""
    if loss.kind == "margin":
        return torch.where(y < 0, -1.0, 1.0).to(y)
    return y.abs().clamp(max=1.0) if loss.labels is not None else y


def exact_gradients(loss: Any, name: str, *inputs: torch.Tensor) -> Any:
    x, y, w = (t.double().numpy().astype(LONG) for t in inputs)
    rows = x * y[..., None] if loss.kind == "margin" else x
    z = (rows * w[:, None, :]).sum(-1)
    f = LOSSES[name](z - y if loss.kind == "residual" else z)
    return (f - (y if loss.kind == "glm" else 0))[..., None] * rows
