"""How tables come about: by the regime that suits the function, or out of the cache."""

from __future__ import annotations

from iceform.functions.scalar import ScalarFunction
from iceform.interpolation import regimes
from iceform.interpolation.cache import recalled
from iceform.interpolation.grid import GradedGrid, Grid
from iceform.interpolation.interpolant import Interpolant, set_maker

__all__ = ["Regimes"]


class Regimes:
    """Tables by :mod:`iceform.interpolation.regimes`, fitted ones kept."""

    def fit(
        self,
        function: ScalarFunction,
        low: float,
        high: float,
        eps: float | None,
        tokens: int | None,
    ) -> Interpolant:
        """The smallest table that holds ``eps``; refused where f cannot be enclosed."""
        regimes.check_enclosed(function, low, high, eps)
        return recalled(
            function, (low, high, eps, tokens),
            lambda: regimes.best(function, low, high, eps, tokens),
        )  # fmt: skip

    def identity(self, low: float, high: float, eps: float | None) -> Interpolant:
        """A straight line."""
        return regimes.spectral(low, high, eps)

    def hard(self, function: ScalarFunction, grid: Grid, sharpness: float | None) -> Interpolant:
        """The paper's regime."""
        return regimes.hard(function, grid, sharpness)

    def refit(
        self, function: ScalarFunction, grid: Grid | GradedGrid, sharpness: float, regime: str
    ) -> Interpolant:
        """Another function on the same tokens."""
        return regimes.on_grid(function, grid, sharpness, regime)


set_maker(Regimes())
