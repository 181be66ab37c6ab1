r"""Losses with a rounded corner: their derivative is a sigmoid, up to scale and a constant.

With :math:`l'(z) = \sigma((z - m)/w)` and :math:`u = (z - m)/(2w)`

.. math:: l'' = \frac{\operatorname{sech}^2 u}{4w},\qquad
          |l'''| = \frac{|\tanh u|}{w}\, l'' \le \frac1w\, l'',\qquad
          c(z) = \frac{\tanh u}{u}\cdot\frac1{4w},

c being the least curvature of a quadratic that touches l at z and lies above it everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from iceform.errors import ProgramError
from iceform.functions.curvature import Curvature
from iceform.functions.losses.loss import Labels, Loss, loss_named, register
from iceform.functions.scalar import ScalarFunction

__all__ = ["absolute", "hinge", "logistic", "logistic_margin", "quantile"]

_SMALL = 1e-4  # below this tanh(u)/u is 1 - u^2/3 to the last digit
_WIDTH = 0.25  # of a rounded corner, unless one is given


def _sech_squared(u: Tensor) -> Tensor:
    """As a product: 1 - tanh^2 would round relative to 1, however small it is."""
    return 4 * torch.sigmoid(2 * u) * torch.sigmoid(-2 * u)


def _tanh_over(u: Tensor) -> Tensor:
    """tanh(u)/u, 1 at 0."""
    safe = torch.where(u.abs() < _SMALL, torch.ones_like(u), u)
    return torch.where(u.abs() < _SMALL, 1 - u.square() / 3, torch.tanh(safe) / safe)


def _step(width: float, middle: float = 0.0, height: float = 1.0) -> Curvature:
    """Facts of l' = height sigma((z - middle)/width) + a constant of that size at most."""
    steepest = height / (4 * width)

    def scaled(g: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda z: steepest * g((z - middle) / (2 * width))

    return Curvature(
        scaled(_sech_squared),
        scaled(_tanh_over),
        (0.0, steepest),
        concordance=1 / width,
        corner=(middle, width),
        level=height,
    )


def _softplus(t: Tensor) -> Tensor:
    """ln(1 + e^t), relative to itself; torch's own is a straight line from its threshold on."""
    return torch.log1p(torch.exp(-t.abs())) + torch.relu(t)


@register("logistic")
def logistic() -> Loss:
    """l(t) = ln(1 + e^t) - y t."""
    shares = Labels(
        lambda y: (y >= 0) & (y <= 1),
        "labels in [0, 1]",
        "for labels -1 and +1 use 'logistic_margin'",
    )
    f = ScalarFunction(torch.sigmoid, "logistic'")
    return Loss(
        "logistic", "glm", f, _step(1.0), labels=shares,
        above=lambda t, y: y * _softplus(-t) + (1 - y) * _softplus(t),
    )  # fmt: skip


@register("logistic_margin")
def logistic_margin() -> Loss:
    """l(m) = ln(1 + e^{-m})."""
    f = ScalarFunction(lambda m: -torch.sigmoid(-m), "logistic_margin'")
    return Loss("logistic_margin", "margin", f, _step(1.0), above=lambda m, y: _softplus(-m))


@register("absolute")
def absolute(width: float = _WIDTH) -> Loss:
    """l(z) = width ln cosh(z/width): |z| with its corner rounded; l' = 2 sigma(2 z/width) - 1."""
    f = ScalarFunction(lambda z: torch.tanh(z / width), "absolute'")
    return Loss("absolute", "residual", f, _step(width / 2, height=2.0))


@register("quantile")
def quantile(quantile: float = 0.5, width: float = _WIDTH) -> Loss:
    """The pinball loss of y - w.x with its corner rounded: l'(z) = sigma(z/width) - quantile."""
    if quantile >= 1:
        raise ProgramError(f"quantile must be strictly between 0 and 1, got {quantile!r}")
    f = ScalarFunction(lambda z: torch.sigmoid(z / width) - quantile, "quantile'")
    median = None if quantile == 0.5 else (loss_named("quantile", width=width), 0.5 - quantile)
    return Loss("quantile", "residual", f, _step(width), raised=median)


@register("hinge")
def hinge(width: float = _WIDTH) -> Loss:
    """max(0, 1 - m) with its corner rounded: l'(m) = -sigma((1 - m)/width)."""
    f = ScalarFunction(lambda m: -torch.sigmoid((1 - m) / width), "hinge'")
    return Loss("hinge", "margin", f, _step(width, 1.0))
