"""The activations that can be put in context, by name and by the operations that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic.units import OUTWARD, UNIT
from iceform.expressions import ScalarFunction

_LAMBERT = 0.2785  # W(1/e) < 0.2785: sup of |z| sigma(-|z|)
_SHARPEST = 2.0**60  # a head that picks the larger of two tokens: off by 0.2785/2^60


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
    z, before = 2.0, 0.0
    while abs(z - before) > UNIT * 8:
        z, before = 2 / math.tanh(z / 2), z
    sigma = 1 / (1 + math.exp(-z))
    return sigma * (1 + z * (1 - sigma)) * OUTWARD


def _gelu_slope() -> float:
    """Phi(z) + z phi(z) at z = sqrt 2, where the derivative phi(z)(2 - z^2) vanishes."""
    root = math.sqrt(2)
    phi = math.exp(-1) / math.sqrt(2 * math.pi)
    return (0.5 * (1 + math.erf(1.0)) + root * phi) * OUTWARD


def _tanh_gelu(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


def _smooth(call: Callable[[Tensor], Tensor], name: str) -> ScalarFunction:
    return ScalarFunction(call, name, kinks=())


def _tails(reach: int, slope: float, error: float) -> Tails:
    return Tails(float(reach), slope, error * OUTWARD)


# Beyond R = 8 GELU is its line but for R Q(R), and its tanh form but for less.
_GELU_TAILS = _tails(8, 1.0, 4 * math.erfc(math.sqrt(32)))


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
        _smooth(torch.tanh, "tanh"),
        1.0,
        size=1.0,
        gain=1.0,
        tails=_tails(14, 0.0, 2 * math.exp(-28)),
    ),
    "sigmoid": KnownActivation(
        _smooth(torch.sigmoid, "sigmoid"), 0.25, size=1.0, tails=_tails(28, 0.0, math.exp(-28))
    ),
    "softplus": KnownActivation(_smooth(F.softplus, "softplus"), 1.0),
    "elu": KnownActivation(ScalarFunction(F.elu, "elu", kinks=(0.0,)), 1.0, gain=1.0),
    "mish": KnownActivation(_smooth(F.mish, "mish"), 1.0885, gain=1.0),
    "erf": KnownActivation(
        _smooth(torch.erf, "erf"),
        2 / math.sqrt(math.pi) * OUTWARD,
        size=1.0,
        gain=2 / math.sqrt(math.pi) * OUTWARD,
        tails=_tails(5, 0.0, math.erfc(5)),
    ),
}


def activation_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the activation that an operation of aten is; None if it is none of them.

    It is with the settings that it has where none are given.
    """
    if op not in ACTIVATIONS:
        return None
    settings = getattr(torch.ops.aten, op).default._schema.arguments[1:]
    given = {**dict(zip((s.name for s in settings), args, strict=False)), **kwargs}
    usual = {s.name: s.default_value for s in settings}
    off = {name: value for name, value in given.items() if value != usual.get(name)}
    if off == {"approximate": "tanh"}:
        return "gelu_tanh"
    return None if off else op
