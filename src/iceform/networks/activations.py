"""The activations that can be put in context, by name and by the operations that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic.units import OUTWARD
from iceform.expressions import ScalarFunction

_LAMBERT = 0.2785  # W(1/e) < 0.2785: sup of |z| sigma(-|z|)
_SHARPEST = 2.0**60  # a head that picks the larger of two tokens: off by 0.2785/2^60
_BISECTIONS = 60  # float64 has no more bits than this


@dataclass(frozen=True)
class Tails:
    r"""f beyond a table: :math:`f(z) = f(\mathrm{clip}(z, \pm R)) + s\,\mathrm{relu}(z - R)`.

    Attributes
    ----------
    reach
        R.
    slope
        s, 0 or 1.
    error
        Bound of the difference.
    """

    reach: float
    slope: float
    error: float


_GELU_TAILS = Tails(8.0, 1.0, 5e-15)  # 8 Q(8) < 5e-15; the tanh form has less


@dataclass(frozen=True)
class KnownActivation:
    """An activation, and what is known of it.

    Attributes
    ----------
    function
        f.
    slope
        sup |f'|.
    sharpness, error
        b of the gate z sigma(b z) that computes it, if one does, and a bound of |z sigma(b z) - f|.
    tails
        Lines that f tends to, if it is tabulated and does.
    size, gain
        sup |f| and sup |f(z)| / |z|.
    """

    function: ScalarFunction
    slope: float
    sharpness: float | None = None
    error: float = 0.0
    tails: Tails | None = None
    size: float = math.inf
    gain: float = math.inf


def _silu_slope() -> float:
    """Slope of z sigma(z) where f'' = 0, that is z tanh(z/2) = 2; nothing is steeper."""
    low, high = 2.0, 3.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle * math.tanh(middle / 2) < 2 else (low, middle)
    sigma = 1 / (1 + math.exp(-low))
    return sigma * (1 + low * (1 - sigma)) * OUTWARD


def _gelu_slope() -> float:
    """Phi(z) + z phi(z) at z = sqrt 2, where the derivative phi(z)(2 - z^2) vanishes."""
    root = math.sqrt(2)
    phi = math.exp(-1) / math.sqrt(2 * math.pi)
    return (0.5 * (1 + math.erf(1.0)) + root * phi) * OUTWARD


def _tanh_gelu(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


def _smooth(call: Callable[[Tensor], Tensor], name: str) -> ScalarFunction:
    return ScalarFunction(call, name, kinks=())


# Beyond a tail's reach f is its line but for 8 Q(8) < 5e-15 (GELU; the tanh form less),
# 1 - tanh 14 < 1.5e-12, e^-28 < 7e-13, erfc 5 < 1.6e-12.
ACTIVATIONS: dict[str, KnownActivation] = {
    "relu": KnownActivation(
        ScalarFunction(torch.relu, "relu", kinks=(0.0,)),
        1.0,
        _SHARPEST,
        _LAMBERT / _SHARPEST,
        gain=1.0,
    ),
    "silu": KnownActivation(_smooth(F.silu, "silu"), _silu_slope(), 1.0, gain=1.0),
    "gelu": KnownActivation(_smooth(F.gelu, "gelu"), _gelu_slope(), gain=1.0, tails=_GELU_TAILS),
    # The tanh form of GELU is as steep as GELU to 4e-4, checked on a mesh by the tests.
    "gelu_tanh": KnownActivation(
        _smooth(_tanh_gelu, "gelu_tanh"),
        _gelu_slope() + 1e-3,
        gain=1.0,
        tails=_GELU_TAILS,
    ),
    "tanh": KnownActivation(
        _smooth(torch.tanh, "tanh"), 1.0, size=1.0, gain=1.0, tails=Tails(14.0, 0.0, 1.5e-12)
    ),
    "sigmoid": KnownActivation(
        _smooth(torch.sigmoid, "sigmoid"), 0.25, size=1.0, tails=Tails(28.0, 0.0, 7e-13)
    ),
    "softplus": KnownActivation(_smooth(F.softplus, "softplus"), 1.0),
    "elu": KnownActivation(ScalarFunction(F.elu, "elu", kinks=(0.0,)), 1.0, gain=1.0),
    "mish": KnownActivation(_smooth(F.mish, "mish"), 1.0885, gain=1.0),
    "erf": KnownActivation(
        _smooth(torch.erf, "erf"),
        2 / math.sqrt(math.pi) * OUTWARD,
        size=1.0,
        gain=2 / math.sqrt(math.pi) * OUTWARD,
        tails=Tails(5.0, 0.0, 1.6e-12),
    ),
}

# The settings with which an operation of aten is one of them; others have none.
_SETTINGS: dict[str, tuple[tuple[str, Any], ...]] = {
    "relu": (),
    "silu": (),
    "gelu": (("approximate", "none"),),
    "tanh": (),
    "sigmoid": (),
    "softplus": (("beta", 1), ("threshold", 20)),
    "elu": (("alpha", 1), ("scale", 1), ("input_scale", 1)),
    "celu": (("alpha", 1),),
    "mish": (),
    "erf": (),
}


def activation_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the activation that an operation of aten is; None if it is none of them."""
    if op not in _SETTINGS:
        return None
    names = [name for name, _ in _SETTINGS[op]]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    off = {k: v for k, v in given.items() if v != dict(_SETTINGS[op]).get(k)}
    if op == "gelu" and off == {"approximate": "tanh"}:
        return "gelu_tanh"
    known = {"celu": "elu"}.get(op, op)
    return None if off or len(args) > len(names) else known
