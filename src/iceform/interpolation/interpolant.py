"""Interpolant: a softmax over grid tokens that computes a scalar function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import BoundError, PrecisionError
from iceform.functions.scalar import ScalarFunction
from iceform.interpolation.grid import GradedGrid, Grid, Keys
from iceform.interpolation.local import (
    RoundingModel,
    half_width,
    rounding,
    significant_tokens,
    steepness,
)

__all__ = ["MAKERS", "Interpolant"]


@dataclass(frozen=True, eq=False, repr=False)
class Interpolant:
    r"""A look-up table read by softmax: :math:`A(z) = \sum_k p_k(z) v_k`.

    The weights are :math:`p(z) = \mathrm{softmax}_k(s_k (z - m) + b_k)` over the grid tokens' keys;
    on a uniform grid that is :math:`\mathrm{softmax}_k(-\beta (z - L_k)^2)` with
    :math:`\beta = c / h^2`.

    Build one with :meth:`fit`, :meth:`identity` or :meth:`hard`.

    Attributes
    ----------
    grid
        Where the tokens sit.
    sharpness
        c, dimensionless: the inverse temperature times the squared spacing.
    values
        v_k, one per grid token, float64.
    regime
        "hard" (the paper's), "spectral" (exact on lines), "fitted" (smooth f) or "graded" (kinks).
    error
        Proven bound of sup |A - f| on the grid's range, in exact arithmetic.
    function
        f, where it is known.
    assumptions
        What the bound takes for granted, in words; empty where nothing.
    kind
        "proven"; "estimated" where f cannot be enclosed; "claimed" by a file, of a function that
        is not known.
    edges
        Of the cells on which the error was proven one by one, where it was.
    """

    grid: Grid | GradedGrid
    sharpness: float
    values: Tensor
    regime: str
    error: float
    function: ScalarFunction | None = None
    assumptions: tuple[str, ...] = ()
    kind: str = "proven"
    edges: Tensor | None = None
    _rounding: dict[RoundingModel, float] = field(default_factory=dict)
    _windows: dict[float, int | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        name = "f" if self.function is None else self.function.name
        return (
            f"Interpolant({name} on [{self.grid.low:g}, {self.grid.high:g}], {len(self.values)} "
            f"tokens, {self.regime}, |A - f| <= {self.error:.3e} ({self.kind}))"
        )

    @classmethod
    def fit(
        cls,
        f: Callable[[Tensor], Tensor] | ScalarFunction,
        low: float,
        high: float,
        eps: float | None = None,
        *,
        kinks: Sequence[float] | None = None,
        tokens: int | None = None,
        estimate: bool = False,
    ) -> Interpolant:
        """The smallest grid that is certified to hold ``eps`` (None: the best there is).

        Parameters
        ----------
        f
            Continuous and elementwise; a tensor in, a tensor of the same shape out.
        low, high
            The range of z.
        eps
            The sup-norm error to certify.
        kinks
            Where f' jumps; None looks for them.
        tokens
            A fixed number of grid tokens instead of the smallest.
        estimate
            Accept an error that is estimated, not proven, where f cannot be enclosed: ``eps``
            is a promise, and refuses one otherwise.

        Raises
        ------
        PrecisionError
            If no grid that is tried can be certified to hold ``eps``; ``.best`` is what can.
        """
        _check_eps(eps)
        function = ScalarFunction.of(f, low, high, kinks)
        function = replace(function, estimate=function.estimate or estimate)
        return MAKERS["fit"](function, float(low), float(high), eps, tokens)

    @classmethod
    def identity(cls, low: float, high: float, eps: float | None = None) -> Interpolant:
        """A straight line: about 25 tokens carry any range to machine precision."""
        _check_eps(eps)
        return MAKERS["identity"](low, high, eps)

    @classmethod
    def hard(
        cls,
        f: Callable[[Tensor], Tensor] | ScalarFunction,
        low: float,
        high: float,
        *,
        cells: int,
        sharpness: float | None = None,
    ) -> Interpolant:
        """The paper's regime: v_k = f(L_k) at low temperature; the error falls as 1/cells."""
        function = ScalarFunction.of(f, low, high, kinks=())
        return MAKERS["hard"](function, Grid(low, high, cells), sharpness)

    @cached_property
    def keys(self) -> Keys:
        """Slopes and biases of the grid tokens' logits, float64."""
        return self.grid.keys(self.sharpness)

    @cached_property
    def _places(self) -> Tensor:
        """The tokens' places relative to the centre, in cells: exact halves of whole numbers."""
        assert isinstance(self.grid, Grid)
        first, last = -self.grid.guards, self.grid.cells + self.grid.guards
        return torch.arange(first, last + 1, dtype=torch.float64) - 0.5 * self.grid.cells

    @property
    def uniform(self) -> bool:
        """Whether the tokens are equally spaced, so that logits can be squared distances."""
        return isinstance(self.grid, Grid)

    @property
    def low(self) -> float:
        """Left end of the certified range."""
        return self.grid.low

    @property
    def high(self) -> float:
        """Right end of the certified range."""
        return self.grid.high

    @property
    def tokens(self) -> int:
        """Number of grid tokens."""
        return self.grid.tokens

    @cached_property
    def size(self) -> float:
        """Max |v_k|."""
        return float(self.values.abs().max())

    @cached_property
    def swing(self) -> float:
        """Max v_k - min v_k."""
        return float(self.values.max() - self.values.min())

    @cached_property
    def steepness(self) -> float:
        """A proven bound of |A'| on the range."""
        return steepness(self)

    def rounding(self, model: RoundingModel) -> float:
        """A proven bound of what floating point adds under ``model``."""
        if model not in self._rounding:
            self._rounding[model] = rounding(self, model)
        return self._rounding[model]

    def half_width(self, unit: float) -> int | None:
        """Tokens either side of the nearest that matter beside roundoff ``unit``; None for all."""
        if unit not in self._windows:
            self._windows[unit] = half_width(self, unit)
        return self._windows[unit]

    def significant(self, unit: float) -> float:
        """A bound on the number of tokens whose weight exceeds ``unit`` at any z."""
        return significant_tokens(self, unit)

    def refit(self, f: Callable[[Tensor], Tensor] | ScalarFunction) -> Interpolant:
        """Another function on the same tokens: same keys, other values, its own error."""
        function = ScalarFunction.of(f, self.low, self.high)
        return MAKERS["refit"](function, self.grid, self.sharpness, self.regime)

    def with_values(self, values: Tensor, error: float) -> Interpolant:
        """The same keys with values given by hand."""
        return replace(
            self, values=values, error=error, function=None, edges=None, _rounding={}, _windows={}
        )

    def logits(self, z: Float[Tensor, "*b"], index: Tensor | None = None) -> Float[Tensor, "*b k"]:
        """Logits of the tokens (those in ``index``, shape (*b, k), if given) for each z."""
        if isinstance(self.grid, Grid):
            t = (z - self.grid.center) / self.grid.spacing
            places = self._places.to(z)
            places = places if index is None else places[index]
            return -self.sharpness * (t[..., None] - places).square()
        slopes, biases = self.keys.slopes.to(z), self.keys.biases.to(z)
        if index is not None:
            slopes, biases = slopes[index], biases[index]
        return (z - self.grid.center)[..., None] * slopes + biases

    def weights(self, z: Float[Tensor, "*b"]) -> Float[Tensor, "*b k"]:
        """Attention of each z over the grid tokens."""
        return torch.softmax(self.logits(z), -1)

    def __call__(self, z: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Look z up. Values outside ``[low, high]`` are refused."""
        bad = ~((z >= self.low) & (z <= self.high))
        if bool(bad.any()):
            raise BoundError(
                f"z = {z[bad].flatten()[0].item():.6g} lies outside the certified range "
                f"[{self.low:.6g}, {self.high:.6g}]; fit the interpolant on a wider range"
            )
        return self.weights(z) @ self.values.to(z)


# How tables come about: by name of the method above. Regimes and the store need tables, and put
# themselves here.
MAKERS: dict[str, Callable[..., Interpolant]] = {}


def _check_eps(eps: float | None) -> None:
    if eps is not None and not eps > 0:
        raise PrecisionError(f"eps must be positive (or None for the best there is), got {eps!r}")
