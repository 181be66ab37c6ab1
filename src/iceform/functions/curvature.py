r"""What a solver and a proof need to know of a loss beyond its derivative.

``bend`` is l''; ``majorizer`` a curvature c(z) with l(t) <= l(z) + l'(z)(t - z) + c(z)(t - z)^2/2
for all t, so that a step in the metric it gives never goes up. Two kinds of losses have proofs of
their own: those with |l'''| <= s l'' (self-concordant: logistic, Poisson and everything with
rounded corners), and those whose l'' is constant between kinks.

What is stated of a loss of the library is found out about any other by interval arithmetic, on the
range that its arguments take: bounds of l'', and of |l'''|/l''.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.intervals import UNIT
from iceform.functions.extremes import concordance
from iceform.functions.scalar import ScalarFunction

__all__ = ["Curvature"]

Scalar = Callable[[Tensor], Tensor]

_ROUNDINGS = 8  # of a closed form: four units in the last place, or as many operations


@dataclass(frozen=True, eq=False)
class Curvature:
    """Second-order facts about a loss, for every real z or for a range.

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
        Where l'' jumps, if it is constant in between; None if it is not of that kind.
    corner
        Where the loss bends, and within what width; None if it bends nowhere in particular.
    level
        What l' is computed by adding to or taking from, so that it rounds relative to that too.
    encloser
        Jets of l', where nothing else says how it rounds.
    """

    bend: Scalar
    majorizer: Scalar | None = None
    bounds: tuple[float, float] | None = None
    concordance: float | None = None
    kinks: tuple[float, ...] | None = None
    corner: tuple[float, float] | None = None
    level: float = 0.0
    encloser: Callable[[Interval, int], Jet] | None = None

    @classmethod
    def unknown(cls, derivative: ScalarFunction) -> Curvature:
        """Of a derivative about which nothing else is known: l'' as autograd has it."""

        def bend(z: Tensor) -> Tensor:
            known = derivative.derivatives(z, 1)
            return torch.zeros_like(z) if known is None else known[1].clamp(min=0)

        return cls(bend)

    @classmethod
    def on_range(cls, derivative: ScalarFunction, low: float, high: float) -> Curvature:
        """What interval arithmetic finds of a derivative on ``[low, high]``."""
        here = derivative.on(low, high)
        known = here.slopes(low, high)
        if known is None:
            return cls.unknown(derivative)
        ratio = concordance(here.jets, low, high) if known[0] > 0 else math.inf
        return cls(
            cls.unknown(derivative).bend,
            bounds=known,
            concordance=ratio if math.isfinite(ratio) else None,
            encloser=here.jets,
        )

    def enclose(self, f: Scalar, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """l'(z) and l''(z) with what each may be off by, f being what computes l'."""
        if self.encloser is None:
            value = f(z)
            bend = self.bend(z)
            return value, _ROUNDINGS * UNIT * (value.abs() + self.level), bend, 0 * bend
        at = z.detach().to("cpu", torch.float64)
        jet = self.encloser(Interval.point(at), 1)
        return tuple(part.to(z) for k in (0, 1) for part in _middle(jet[k]))  # type: ignore[return-value]

    @property
    def quadratic(self) -> bool:
        """Whether l'' is 1 everywhere."""
        return self.kinks == () and self.bounds == (1.0, 1.0)

    @property
    def steepest(self) -> float | None:
        """The least upper bound of l'' where it is finite: how far l' moves when z does."""
        return self.bounds[1] if self.bounds and math.isfinite(self.bounds[1]) else None


def _middle(enclosed: Interval) -> tuple[Tensor, Tensor]:
    """A point of an interval, and how far the rest is from it."""
    middle = enclosed.low + 0.5 * (enclosed.high - enclosed.low)
    off = torch.maximum(enclosed.high - middle, middle - enclosed.low)
    return middle, off * (1 + 4 * UNIT) + math.ulp(0.0)
