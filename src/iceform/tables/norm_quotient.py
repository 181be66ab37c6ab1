r"""x_i / (|x|^2 + alpha) for a vector x, by one softmax over a product grid.

The logit of the token at node :math:`L_k = (L_{k_1}, ..., L_{k_a})` is
:math:`\sum_i s_{k_i} x_i + b_{k_i}`, so its weight is a product :math:`\prod_i p_{k_i}(x_i)` of
the weights of one-dimensional tables. A sum of exponentials makes the function a sum of products:

.. math:: \frac{1}{s} \approx \sum_m w_m e^{-t_m s}, \qquad
    \frac{x_i}{|x|^2 + \alpha} \approx \sum_m w_m e^{-t_m \alpha}\; x_i e^{-t_m x_i^2}
    \prod_{j \ne i} e^{-t_m x_j^2}.

With tables A of :math:`e^{-t_m z^2}`, off by at most :math:`e_m`, and B of
:math:`z e^{-t_m z^2}`, at most :math:`h_m` in size and off by at most :math:`o_m`, the values
:math:`\sum_m w_m e^{-t_m \alpha} B_{m,k_i} \prod_{j \ne i} A_{m,k_j}` are off by at most

.. math:: \sum_m |w_m| e^{-t_m \alpha} \big((h_m + o_m)(1 + e_m)^{a-1} - h_m\big)
    + \delta \max \frac{|x_i|}{s},

:math:`\delta` being the relative error of the exponentials. Every proof is of one variable. The
price is the number of tokens, that of one table to the power a.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import UNIT
from iceform.errors import PrecisionError, ProgramError
from iceform.expressions.scalar import ScalarFunction
from iceform.tables.interpolant import Grid, Interpolant
from iceform.tables.posterior import posterior_error
from iceform.tables.regimes import fit_values, on_grid

_SLOWEST = (0.4, 0.7, 1.0)  # t_1 high and t_M low that are tried: between them e^{-t s} changes
_FASTEST = (4.0, 6.0, 8.0, 12.0, 16.0)
_GUARDS = (2, 4, 6, 8)  # tokens beyond either end and sharpnesses that are tried: a smooth factor
_SHARPNESSES = (0.15, 0.25, 0.4)  # asks for many and small, a steep one for few and large
_SHARE = 0.25  # of eps for the exponentials; tables have the rest


@dataclass(frozen=True, eq=False)
class ExponentialSum:
    """1/s as sum_m weights[m] e^{-rates[m] s} on [low, high], 0 < low < high."""

    low: float
    high: float
    rates: Float[Tensor, "m"]
    weights: Float[Tensor, "m"]

    @classmethod
    def fit(cls, low: float, high: float, eps: float) -> ExponentialSum:
        """As few terms as hold the relative error ``eps``, proven."""
        best = math.inf
        for terms in range(2, tuning.NORM_QUOTIENT_MOST_TERMS + 1):
            for slowest in _SLOWEST:
                for fastest in _FASTEST:
                    found = cls._of(low, high, terms, slowest / high, fastest / low)
                    if (
                        found._seen() <= tuning.MOST_OF_EPS * eps
                        and (best := min(best, found.error)) <= eps
                    ):
                        return found
        raise PrecisionError(
            f"1/s on [{low:.3g}, {high:.3g}] is proven to {best:.3g} at best by "
            f"{tuning.NORM_QUOTIENT_MOST_TERMS} "
            f"exponentials, not to {eps:.3g}; raise eps, or bound the condition number lower",
            best=best,
        )

    @classmethod
    def _of(cls, low: float, high: float, terms: int, first: float, last: float) -> ExponentialSum:
        rates = _spaced(first, last, terms)
        products = _spaced(low, high, tuning.NORM_QUOTIENT_SAMPLES)[:, None]
        products = products * torch.exp(-products * rates)
        scale = products.norm(dim=0)
        ones = torch.ones(tuning.NORM_QUOTIENT_SAMPLES, 1, dtype=torch.float64)
        solved = torch.linalg.lstsq(
            products / scale, ones, rcond=tuning.NORM_QUOTIENT_CUTOFF, driver="gelsd"
        )
        return cls(low, high, rates, solved.solution[:, 0] / scale)

    def _seen(self) -> float:
        return float(
            self._jet(_spaced(self.low, self.high, 4 * tuning.NORM_QUOTIENT_SAMPLES))[0].abs().max()
        )

    def _jet(self, s: Tensor) -> list[Tensor]:
        """What is bounded, and its derivatives up to the order of the proof less one."""
        decay = self.weights * torch.exp(-s[:, None] * self.rates)
        found = [
            _derivative(n, s[:, None], self.rates, decay).sum(-1)
            for n in range(tuning.NORM_QUOTIENT_ORDER)
        ]
        return [found[0] - 1, *found[1:]]

    @cached_property
    def error(self) -> float:
        r"""Proven bound of :math:`|s \sum_m w_m e^{-t_m s} - 1|` on [low, high].

        On each of many cells: the Taylor polynomial in its middle, a bound of the next
        derivative there, and the rounding of both. A term is a product of numbers whose rounding
        is relative but for that of the exponent, t s units, so :math:`8 + M + t s` of them.
        """
        edges = _spaced(self.low, self.high, tuning.NORM_QUOTIENT_CELLS + 1)
        edges[0], edges[-1] = self.low, self.high
        middle, radius = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        radius = radius * (1 + 4 * UNIT) + UNIT * middle
        total = torch.zeros_like(middle)
        for n, value in enumerate(self._jet(middle)):
            total += value.abs() * radius**n / math.factorial(n)
        largest = self.weights.abs() * torch.exp(-edges[:-1, None] * self.rates)
        s, t = edges[1:, None], self.rates
        rest = (
            t**tuning.NORM_QUOTIENT_ORDER * s
            + tuning.NORM_QUOTIENT_ORDER * t ** (tuning.NORM_QUOTIENT_ORDER - 1)
        ) * largest
        total += (
            rest.sum(-1)
            * radius**tuning.NORM_QUOTIENT_ORDER
            / math.factorial(tuning.NORM_QUOTIENT_ORDER)
        )
        units = 8 + len(t) + s * t
        wobble = (units * (s * largest) * (1 + radius[:, None] * t)).sum(-1) * UNIT
        return float((total + 2 * wobble).max()) * (1 + 16 * UNIT) + 2 * UNIT


def _derivative(n: int, s: Tensor, t: Tensor, decay: Tensor) -> Tensor:
    """The n-th one of s w e^{-t s}, ``decay`` being w e^{-t s}."""
    return decay * ((-t) ** n * s + (n * (-t) ** (n - 1) if n else 0))


def _spaced(low: float, high: float, count: int) -> Tensor:
    """From low to high, equal in their logarithms."""
    ends = math.log(low), math.log(high)
    return torch.exp(torch.linspace(*ends, count, dtype=torch.float64, device="cpu"))


@dataclass(frozen=True, eq=False)
class NormQuotient:
    """x_i / (|x|^2 + alpha) where |x_i| <= bound and |x|^2 >= least, for every i at once.

    Parameters
    ----------
    axes
        The length of x.
    bound, least, alpha
        As above; least + alpha > 0.
    exponentials
        1/s between least + alpha and axes bound^2 + alpha.
    even, odd
        Tables of e^{-t z^2} and z e^{-t z^2} on [-bound, bound], one for each rate, same keys.
    """

    axes: int
    bound: float
    least: float
    alpha: float
    exponentials: ExponentialSum
    even: tuple[Interpolant, ...]
    odd: tuple[Interpolant, ...]

    @classmethod
    def fit(
        cls, axes: int, bound: float, *, least: float = 0.0, alpha: float = 0.0, eps: float
    ) -> NormQuotient:
        """The smallest grid among those tried that is proven to hold ``eps``."""
        return _fitted(axes, bound, least, alpha, eps)

    @property
    def table(self) -> Interpolant:
        """The table of one axis: the keys that all share."""
        return self.odd[0]

    @property
    def tokens(self) -> int:
        """Of the product grid."""
        return int(self.table.tokens**self.axes)

    @property
    def size(self) -> float:
        """Bound of |x_i| / (|x|^2 + alpha): at most |x| / (|x|^2 + alpha)."""
        low = self.least + self.alpha
        peak = 1 / (2 * math.sqrt(self.alpha)) if self.alpha else 1 / math.sqrt(self.least)
        return min(self.bound / low, peak)

    @cached_property
    def error(self) -> float:
        """Proven bound of |A_i(x) - x_i/(|x|^2 + alpha)|, in exact arithmetic."""
        parts = [self.exponentials.error * self.size]
        for weight, rate, even, odd in zip(
            self._damped.tolist(),
            self.exponentials.rates.tolist(),
            self.even,
            self.odd,
            strict=True,
        ):
            largest = min(self.bound, 1 / math.sqrt(2 * math.e * rate))
            product = (largest + odd.error) * (1 + even.error) ** (self.axes - 1)
            parts.append(abs(weight) * (product - largest + 4 * self.axes * UNIT * product))
            # The values are sums of products in float64.
            stored = abs(weight) * odd.size * even.size ** (self.axes - 1)
            parts.append((self.axes + len(self.odd) + 8) * UNIT * stored)
        return math.fsum(parts) * (1 + 8 * UNIT)

    @property
    def kind(self) -> str:
        """Whether all tables are "proven", else "estimated"."""
        kinds = {table.kind for table in (*self.even, *self.odd)}
        return "proven" if kinds == {"proven"} else "estimated"

    @property
    def _damped(self) -> Tensor:
        return self.exponentials.weights * torch.exp(-self.exponentials.rates * self.alpha)

    def _along(self, rows: list[Tensor]) -> Tensor:
        """One factor along each axis, multiplied out: shape (tokens,)."""
        out = torch.ones(1, dtype=torch.float64)
        for row in rows:
            out = (out[:, None] * row).flatten()
        return out

    @cached_property
    def slopes(self) -> Float[Tensor, "k a"]:
        """Of every token's logit along every axis."""
        ramp = self.table.keys.slopes
        return torch.cartesian_prod(*[ramp] * self.axes).reshape(-1, self.axes)

    @cached_property
    def biases(self) -> Float[Tensor, "k"]:
        """Of every token's logit."""
        ramp = self.table.keys.biases
        return torch.cartesian_prod(*[ramp] * self.axes).reshape(-1, self.axes).sum(-1)

    @cached_property
    def values(self) -> Float[Tensor, "k a"]:
        """What every token carries for each x_i."""
        columns = torch.zeros(self.tokens, self.axes, dtype=torch.float64)
        for weight, even, odd in zip(self._damped, self.even, self.odd, strict=True):
            for i in range(self.axes):
                rows = [odd.values if j == i else even.values for j in range(self.axes)]
                columns[:, i] += weight * self._along(rows)
        return columns

    # ---------------------------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """Everything that :meth:`from_dict` needs, for JSON, which keeps every bit."""
        grid = self.table.grid
        assert isinstance(grid, Grid)
        return {
            "axes": self.axes, "bound": self.bound, "least": self.least, "alpha": self.alpha,
            "cells": grid.cells, "guards": grid.guards, "sharpness": self.table.sharpness,
            "rates": self.exponentials.rates.tolist(),
            "weights": self.exponentials.weights.tolist(),
            "even": [table.values.tolist() for table in self.even],
            "odd": [table.values.tolist() for table in self.odd],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """The same tokens, of which nothing is known until they are :meth:`proven_for` data."""
        axes, bound, least, alpha = (kept[k] for k in ("axes", "bound", "least", "alpha"))
        grid = Grid(-bound, bound, kept["cells"], kept["guards"])
        rates, weights = (_numbers(kept[k]) for k in ("rates", "weights"))
        total = ExponentialSum(least + alpha, axes * bound**2 + alpha, rates, weights)
        even, odd = (
            tuple(
                Interpolant(grid, kept["sharpness"], _numbers(values), "fitted", math.inf)
                for values in kept[name]
            )
            for name in ("even", "odd")
        )
        return cls(axes, bound, least, alpha, total, even, odd)

    def proven_for(self, axes: int, bound: float, *, least: float, alpha: float) -> Self:
        """The same tokens, every error proven anew, whatever they say of themselves.

        Raises
        ------
        ProgramError
            If they are for other data.
        """
        asked = {"axes": axes, "bound": bound, "least": least, "alpha": alpha}
        for name, value in asked.items():
            if getattr(self, name) != value:
                raise ProgramError(
                    f"the grid of data sets is for {name} = {getattr(self, name)!r}, and {name} = "
                    f"{value!r} here; leave grid= out, or give one that was fitted for these data"
                )
        found = self.exponentials
        total = ExponentialSum(least + alpha, axes * bound**2 + alpha, found.rates, found.weights)
        tables = [
            tuple(
                _proven(table, factor(rate))
                for table, rate in zip(held, found.rates.tolist(), strict=True)
            )
            for held, factor in ((self.even, _even), (self.odd, _odd))
        ]
        first = self.table
        same = all(t.grid == first.grid for t in (*self.even, *self.odd))
        same = same and {t.sharpness for t in (*self.even, *self.odd)} == {first.sharpness}
        if not (same and (first.low, first.high) == (-bound, bound)):
            raise ProgramError(
                f"the tables of a grid of data sets are not on the same keys over [{-bound:.6g}, "
                f"{bound:.6g}]; fit the grid again"
            )
        return replace(self, exponentials=total, even=tables[0], odd=tables[1])


def _numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _proven(table: Interpolant, f: ScalarFunction) -> Interpolant:
    found = posterior_error(table, f, None)
    return Interpolant(
        table.grid, table.sharpness, table.values, "fitted", found.error, f, found.assumptions,
        found.kind, found.edges,
    )  # fmt: skip


def _even(rate: float) -> ScalarFunction:
    return ScalarFunction(lambda z: torch.exp(-rate * (z * z)), "exp(-t z^2)")


def _odd(rate: float) -> ScalarFunction:
    return ScalarFunction(lambda z: z * torch.exp(-rate * (z * z)), "z exp(-t z^2)")


@lru_cache(maxsize=32)
def _fitted(axes: int, bound: float, least: float, alpha: float, eps: float) -> NormQuotient:
    low, high = least + alpha, axes * bound**2 + alpha
    peak = 1 / (2 * math.sqrt(alpha)) if alpha else 1 / math.sqrt(least)
    total = ExponentialSum.fit(low, high, _SHARE * eps / min(bound / low, peak))
    rates = total.rates.tolist()
    shares = (total.weights * torch.exp(-total.rates * alpha)).abs()
    best, tokens = math.inf, _fewest(bound, rates[-1])
    while (
        tokens := max(tokens + 2, int(tuning.NORM_QUOTIENT_GROWTH * tokens) | 1)
    ) < tuning.REGIMES_QUICK:
        grid, sharpness, seen = _best_keys(tokens, bound, rates, shares.tolist())
        if seen > (1 - _SHARE) * eps:
            best = min(best, seen)
            continue
        found = NormQuotient(
            axes, bound, least, alpha, total,
            tuple(on_grid(_even(rate), grid, sharpness, "fitted") for rate in rates),
            tuple(on_grid(_odd(rate), grid, sharpness, "fitted") for rate in rates),
        )  # fmt: skip
        best = min(best, found.error)
        if found.error <= eps:
            return found
    raise PrecisionError(
        f"x_i / (|x|^2 + {alpha:.3g}) on |x|^2 >= {least:.3g} is proven to {best:.3g} at best by "
        f"{tuning.REGIMES_QUICK} tokens an axis, not to {eps:.3g}; raise eps, "
        "or bound the data closer",
        best=best,
    )


def _fewest(bound: float, fastest: float) -> int:
    """Tokens, an odd number, with which no steep factor is reached yet.

    Averages by weights of temperature beta are hardly steeper than e^{-beta z^2}, and beta is
    c/h^2.
    """
    return int(2 * bound * math.sqrt(fastest / _SHARPNESSES[-1])) // 2 * 2 + 5


def _best_keys(
    tokens: int, bound: float, rates: list[float], shares: list[float]
) -> tuple[Grid, float, float]:
    """The keys at which the slowest, the middle and the fastest odd factor fit best together."""
    tried = [0, len(rates) // 2, len(rates) - 1]
    found = []
    for guards in (g for g in _GUARDS if tokens - 1 - 2 * g >= 2):
        grid = Grid(-bound, bound, tokens - 1 - 2 * guards, guards)
        for sharpness in _SHARPNESSES:
            off = [shares[i] * fit_values(_odd(rates[i]), grid, sharpness).seen for i in tried]
            found.append((grid, sharpness, sum(off)))
    return min(found, key=lambda one: one[2])
