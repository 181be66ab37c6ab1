r"""What a solver and a proof need to know of a loss beyond its derivative.

``bend`` is l''; ``majorizer`` a curvature c(z) with l(t) <= l(z) + l'(z)(t - z) + c(z)(t - z)^2/2
for all t, so that a step in the metric it gives never goes up. Two kinds of losses have proofs of
their own: those with |l'''| <= s l'' (self-concordant: logistic, Poisson and everything with
rounded corners), and piecewise quadratics with kinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.functions.losses import Loss

__all__ = ["Curvature", "curvature_of"]

Scalar = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Curvature:
    """Second-order facts about a loss.

    Attributes
    ----------
    bend
        l''.
    majorizer
        c, or None where no quadratic lies above the loss.
    steepest
        sup l'' where it is finite: how far l' moves when z does.
    concordance
        s with |l'''| <= s l'', or None.
    kinks
        Where l'' jumps between 0 and 1, or None.
    """

    bend: Scalar
    majorizer: Scalar | None
    steepest: float | None
    concordance: float | None = None
    kinks: tuple[float, ...] | None = None

    @property
    def quadratic(self) -> bool:
        """Whether l'' is the same everywhere."""
        return self.kinks == ()


def _sech_squared(z: Tensor) -> Tensor:
    """As a product: 1 - tanh^2 would round relative to 1, however small it is."""
    return 4 * torch.sigmoid(2 * z) * torch.sigmoid(-2 * z)


def _tanh_over(z: Tensor) -> Tensor:
    """tanh(z)/z, 1 at 0."""
    safe = torch.where(z.abs() < 1e-4, torch.ones_like(z), z)
    return torch.where(z.abs() < 1e-4, 1 - z.square() / 3, torch.tanh(safe) / safe)


def _rounded_step(width: float, center: float = 0.0, sign: float = 1.0) -> Curvature:
    """L' = sigma(sign (z - center)/width) up to a constant and the sign."""

    def middle(z: Tensor) -> Tensor:
        return (z - center) / (2 * width)

    return Curvature(
        lambda z: _sech_squared(middle(z)) / (4 * width),
        lambda z: _tanh_over(middle(z)) / (4 * width),
        1 / (4 * width),
        1 / width,
    )


def _rounded_corner(width: float) -> Curvature:
    """L' = tanh(z/width) = 2 sigma(2 z/width) - 1."""
    half = _rounded_step(width / 2)
    return Curvature(
        lambda z: 2 * half.bend(z), lambda z: 2 * _majorize(half, z), 1 / width, 2 / width
    )


def _clipped(delta: float) -> Curvature:
    return Curvature(
        lambda z: (z.abs() < delta).to(z),
        lambda z: delta / z.abs().clamp(min=delta),
        1.0,
        kinks=(-delta, delta),
    )


_FACTS: dict[str, Callable[[dict[str, float]], Curvature]] = {
    "squared": lambda p: Curvature(torch.ones_like, torch.ones_like, 1.0, kinks=()),
    "logistic": lambda p: _rounded_step(1.0),
    "logistic_margin": lambda p: _rounded_step(1.0),
    "quantile": lambda p: _rounded_step(p.get("width", 0.25)),
    "hinge": lambda p: _rounded_step(p.get("width", 0.25), 1.0),
    "absolute": lambda p: _rounded_corner(p.get("width", 0.25)),
    "huber": lambda p: _clipped(p.get("delta", 1.0)),
    "squared_hinge": lambda p: Curvature(
        lambda m: (m < 1).to(m), torch.ones_like, 1.0, kinks=(1.0,)
    ),
    "poisson": lambda p: Curvature(torch.exp, None, None, 1.0),
}


def curvature_of(loss: Loss) -> Curvature:
    """The facts about a loss of the library; a user's own is taken as it comes."""
    known = _FACTS.get(loss.name or "")
    return _of_a_users_loss(loss) if known is None else known(dict(loss.parameters))


def _majorize(curvature: Curvature, z: Tensor) -> Tensor:
    assert curvature.majorizer is not None
    return curvature.majorizer(z)


def _of_a_users_loss(loss: Loss) -> Curvature:
    def bend(z: Tensor) -> Tensor:
        known = loss.derivative.derivatives(z, 1)
        return torch.zeros_like(z) if known is None else known[1].clamp(min=0)

    return Curvature(bend, None, None)
