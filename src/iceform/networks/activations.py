"""The activations that can be put in context, by name and by the modules that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iceform.errors import ProgramError
from iceform.functions import ScalarFunction
from iceform.networks.pieces import Activation, Gate, Settings, Table

__all__ = ["ACTIVATIONS", "activation_name", "make_activation"]

_LAMBERT = 0.2785  # W(1/e) < 0.2785: sup of |z| sigma(-|z|)
_SHARPEST = 2.0**60  # a head that picks the larger of two tokens: off by 0.2785/2^60
_BISECTIONS = 60  # float64 has no more bits than this


@dataclass(frozen=True)
class Known:
    """An activation: the function, sup |f'|, and the gate that computes it where one does."""

    function: ScalarFunction
    slope: float
    gate: float | None = None  # sharpness
    gate_error: float = 0.0


def _silu_slope() -> float:
    """Slope of z sigma(z) where f'' = 0, that is z tanh(z/2) = 2; nothing is steeper."""
    low, high = 2.0, 3.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle * math.tanh(middle / 2) < 2 else (low, middle)
    sigma = 1 / (1 + math.exp(-low))
    return sigma * (1 + low * (1 - sigma)) * (1 + 1e-12)


def _gelu_slope() -> float:
    """Phi(z) + z phi(z) at z = sqrt 2, where the derivative phi(z)(2 - z^2) vanishes."""
    root = math.sqrt(2)
    phi = math.exp(-1) / math.sqrt(2 * math.pi)
    return (0.5 * (1 + math.erf(1.0)) + root * phi) * (1 + 1e-12)


def _tanh_gelu(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


def _quick_gelu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(1.702 * z)


def _smooth(call: Callable[[Tensor], Tensor], name: str) -> ScalarFunction:
    return ScalarFunction(call, name, kinks=())


ACTIVATIONS: dict[str, Known] = {
    "relu": Known(ScalarFunction(torch.relu, "relu", kinks=(0.0,)), 1.0, _SHARPEST,
                  _LAMBERT / _SHARPEST),
    "silu": Known(_smooth(F.silu, "silu"), _silu_slope(), 1.0),
    "gelu": Known(_smooth(F.gelu, "gelu"), _gelu_slope()),
    # The tanh form of GELU is as steep as GELU to 4e-4, checked on a mesh by the tests.
    "gelu_tanh": Known(_smooth(_tanh_gelu, "gelu_tanh"), _gelu_slope() + 1e-3),
    "quick_gelu": Known(_smooth(_quick_gelu, "quick_gelu"), _silu_slope()),
    "tanh": Known(_smooth(torch.tanh, "tanh"), 1.0),
    "sigmoid": Known(_smooth(torch.sigmoid, "sigmoid"), 0.25),
    "softplus": Known(_smooth(F.softplus, "softplus"), 1.0),
    "elu": Known(ScalarFunction(F.elu, "elu", kinks=(0.0,)), 1.0),
}  # fmt: skip

# Classes of torch.nn and of transformers.activations that compute them, by class name.
_CLASSES = {
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "ELU": "elu",
}
_FUNCTIONS = {F.relu: "relu", torch.relu: "relu", F.gelu: "gelu", F.silu: "silu",
              torch.tanh: "tanh", torch.sigmoid: "sigmoid"}  # fmt: skip
_PACKAGES = ("torch.nn.", "transformers.activations")


def activation_name(f: object) -> str | None:
    """The name of a module's or a function's activation; None if it is none that is known."""
    if not isinstance(f, nn.Module):
        try:
            return _FUNCTIONS.get(f)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            return None
    kind = type(f)
    if not f"{kind.__module__}.".startswith(_PACKAGES):
        return None
    name = _CLASSES.get(kind.__name__)
    if kind is nn.GELU and f.approximate == "tanh":
        return "gelu_tanh"
    settings = {"Softplus": {"beta": 1.0, "threshold": 20.0}, "ELU": {"alpha": 1.0}}
    wanted = settings.get(kind.__name__, {})
    return name if all(getattr(f, key) == value for key, value in wanted.items()) else None


def make_activation(name: str, place: str, settings: Settings) -> Activation:
    """The piece that computes the named activation."""
    if name not in ACTIVATIONS:
        raise ProgramError(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    known = ACTIVATIONS[name]
    if known.gate is None:
        return Table(place, settings, known.function, known.slope)
    return Gate(
        place, settings, known.function, known.slope, sharpness=known.gate, error=known.gate_error
    )
