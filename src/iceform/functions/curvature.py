r"""What a solver and a proof need to know of a loss beyond its derivative.

``bend`` is l''; ``majorizer`` a curvature c(z) with l(t) <= l(z) + l'(z)(t - z) + c(z)(t - z)^2/2
for all t, so that a step in the metric it gives never goes up. Two kinds of losses have proofs of
their own: those with |l'''| <= s l'' (self-concordant: logistic, Poisson and everything with
rounded corners), and those whose l'' jumps between 0 and 1 at kinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.functions.scalar import ScalarFunction

__all__ = ["Curvature"]

Scalar = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Curvature:
    """Second-order facts about a loss, for every real z.

    Attributes
    ----------
    bend
        l''.
    majorizer
        c, or None where no quadratic is known to lie above the loss.
    bounds
        ``(inf l'', sup l'')``, or None where that depends on the range.
    concordance
        s with |l'''| <= s l'', or None.
    kinks
        Where l'' jumps between 0 and 1, or None if it is not of that kind.
    corner
        Where the loss bends, and within what width; None if it bends nowhere in particular.
    level
        What l' is computed by adding to or taking from, so that it rounds relative to that too.
    """

    bend: Scalar
    majorizer: Scalar | None = None
    bounds: tuple[float, float] | None = None
    concordance: float | None = None
    kinks: tuple[float, ...] | None = None
    corner: tuple[float, float] | None = None
    level: float = 0.0

    @classmethod
    def unknown(cls, derivative: ScalarFunction) -> Curvature:
        """Of a derivative about which nothing else is known: l'' as autograd has it."""

        def bend(z: Tensor) -> Tensor:
            known = derivative.derivatives(z, 1)
            return torch.zeros_like(z) if known is None else known[1].clamp(min=0)

        return cls(bend)

    @property
    def quadratic(self) -> bool:
        """Whether l'' is 1 everywhere."""
        return self.kinks == () and self.bounds == (1.0, 1.0)

    @property
    def steepest(self) -> float | None:
        """The least upper bound of l'' where it is finite: how far l' moves when z does."""
        return self.bounds[1] if self.bounds and math.isfinite(self.bounds[1]) else None
