r"""Least squares and ridge by one frozen head (thm:attn_sim_lr, thm:attn_sim_rr, repaired).

The theorems ask for a single-head layer behind an affine map, Attn o Lin, whose output on the
prompt [X; y] is the solution, for any data. On all data no frozen layer does that (n = d = 1: y/x
is unbounded); on data of bounded entries, and for least squares of bounded condition, this one
does. Lin writes one token for every data matrix :math:`L_k` of a grid, and a query token:

.. math:: \text{key}_k = \beta (2 \langle L_k, X \rangle - \|L_k\|^2), \qquad
    \text{value}_k = V_k y, \qquad \text{query} = 1,

both affine in (X, y), so the query returns :math:`\sum_k p_k(X) V_k y`, a softmax over the grid.
With n = 1 or d = 1 the solution is

.. math:: w_j = \sum_i \frac{x_{ij}}{\|X\|^2 + \alpha}\, y_i,

whose quotients are what :class:`~iceform.tables.norm_quotient.NormQuotient` looks up. The solution
is linear in y, so y needs no grid: T tokens along each entry of X make T^(n d). (Were Lin not to
write y into the tokens, the grid would be over (X, y), with n (d + 1) axes.)

Errors, with :math:`Y = \max_i |y_i|` and :math:`r = n Y` (d = 1) or Y (n = 1): r times that of the
quotients; a leak to the query's own token, :math:`u^2 V` with V the largest value; and rounding.
Each logit is an inner product of n d + 1 terms that add up to at most G, and e^x is taken of it
less the largest, so it is off by at most :math:`\tau = \gamma G + (6 G + 4) u`; a softmax whose
logits move by tau moves an average by at most :math:`\tanh(\tau/2)\, 2 V`; the two sums over N
tokens add at most :math:`(2 N + 8) u V`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import NOISE
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import BoundError, ProgramError
from iceform.heads import Design, Features, FrozenNetwork, Head, Lift, Prompt, Row, attention, moves
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.paper.domain import Domain
from iceform.tables import Interpolant
from iceform.tables.bounds import total_variation
from iceform.tables.norm_quotient import NormQuotient
from iceform.validation import (
    check_capacity,
    check_positive,
    check_size,
    common_batch,
    unit_roundoff,
)


class OneLayerOptions(TypedDict, total=False):
    """What both constructions are asked for by keyword."""

    bound: float
    y_bound: float | None
    eps: float | None
    dtype: torch.dtype
    backend: str
    grid: NormQuotient | None


class OneLayerRidge(Emulator):
    r"""argmin over w of ||X w - y||^2 + alpha ||w||^2 by one frozen head, for n = 1 or d = 1.

    ``em(X, y)`` is the solution, shape (*batch, d). The prompt is the data alone, n tokens of
    d + 1 features; the grid is in the weights of the affine map before the head.

    Parameters
    ----------
    alpha
        The penalty, positive.
    dim, samples, bound
        d, n and the entrywise bound of x and y; one of d and n must be 1.
    y_bound
        Entrywise bound of y; as ``bound`` by default.
    eps
        The sup-norm error to certify; None promises nothing.
    dtype, backend
        As for the other constructions.

    Examples
    --------
    >>> em = OneLayerRidge(1.0, dim=2, samples=1, eps=1e-6)
    >>> em.plan.layers, em.plan.heads, em.grid.tokens == em.grid.table.tokens**2
    (1, 1, True)
    """

    _by_passes = "iceform.paper.RidgeRegression"

    def __init__(
        self, alpha: float = 1.0, *, dim: int, samples: int, **options: Unpack[OneLayerOptions]
    ) -> None:
        self._solve(check_positive("alpha", alpha), lambda _: 0.0, dim, samples, **options)

    def _solve(
        self,
        alpha: float,
        least: Callable[[Domain], float],
        dim: int,
        samples: int,
        *,
        bound: float = 1.0,
        y_bound: float | None = None,
        eps: float | None = tuning.EPS,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        grid: NormQuotient | None = None,
    ) -> None:
        """Fit the grid, or prove the one given anew; refuse what would not fit or hold.

        ``least`` is the least |X|^2 on a domain.
        """
        Emulator.__init__(self, eps=eps, dtype=dtype, backend=backend)
        self.domain = domain = Domain.of(dim, samples, bound, y_bound=y_bound, dtype=dtype)
        self.shapes, self.answer = {"x": (samples, dim), "y": (samples,)}, (dim,)
        self.alpha, self.least = alpha, least(domain)
        axes = samples * dim
        wanted = tuning.EPS if self.eps is None else self.eps / 2  # rounding gets the rest
        low = self.least * (1 - NOISE)
        if min(samples, dim) > 1:
            one = NormQuotient.fit(1, domain.x, least=low / axes, alpha=alpha, eps=wanted)
            tokens = one.table.tokens
            raise ProgramError(
                f"n = {samples} and d = {dim}: a grid of data sets has {axes} axes, "
                f"about {tokens}^{axes} = {tokens**axes} tokens, and the solution is no quotient "
                "by |X|^2, which is what is proven; make n or d 1, or take passes instead of "
                f"tokens: {self._by_passes}"
            )
        self.grid = (
            NormQuotient.fit(axes, domain.x, least=low, alpha=alpha, eps=wanted / self._labels)
            if grid is None
            else grid.proven_for(axes, domain.x, least=low, alpha=alpha)
        )
        check_capacity(
            f"a grid of data sets with {self.grid.table.tokens}^{axes} = {self.grid.tokens} tokens",
            self.plan.literal_bytes,
            torch.device("cpu"),
            self._smaller,
        )
        self.interpolant = self.grid.table
        self._hold_eps("raise eps, or use float64", f"{self.grid.tokens} tokens in {self.dtype}")

    @property
    def l2(self) -> float:
        """lambda = alpha / n."""
        return self.alpha / self.domain.samples

    @property
    def _labels(self) -> float:
        """Bound of the sum of |y_i| over the samples that a coefficient hears of."""
        return self.domain.samples * self.domain.y or 1.0

    # ----------------------------------------------------------------------------- certificate

    @cached_property
    def _size(self) -> float:
        """V, the largest entry of a value row."""
        n, d = self.domain.samples, self.domain.dim
        sums = self.grid.values.abs().reshape(-1, n, d).sum(1)
        return float(sums.max()) * self.domain.y * (1 + (n + 2) * unit_roundoff(torch.float64))

    @cached_property
    def _logits(self) -> float:
        """G, the largest sum of the absolute terms of a logit."""
        keys = self.grid.table.keys
        one = float((keys.slopes.abs() * self.domain.x + keys.biases.abs()).max())
        return self.grid.axes * one

    @property
    def _margin(self) -> float:
        """How far the query's own token is below 0; the nearest grid token is above -axes c/4."""
        nearest = self.grid.axes * self.grid.table.sharpness / 4
        return nearest - 2 * math.log(unit_roundoff(self.dtype))

    def _rounding(self) -> float:
        unit, n, d = unit_roundoff(self.dtype), self.domain.samples, self.domain.dim
        terms = (n * d + n + 2 * d + 8) * unit
        gamma = terms / (1 - terms)
        moved = gamma * self._logits + (6 * self._logits + 4) * unit
        tokens = self.grid.tokens + 1
        sums = gamma + (2 * tokens + 8) * unit + tokens * torch.finfo(self.dtype).tiny
        return self._size * (2 * total_variation(moved) + sums)

    def _certify(self, it: Interpolant) -> Certificate:
        looked = self._labels * self.grid.error
        unit = unit_roundoff(self.dtype)
        terms = {
            "interpolation": looked,
            "leak": 2 * unit**2 * self._size,
            "rounding": self._rounding(),
        }
        grid, n, d = self.grid, self.domain.samples, self.domain.dim
        steps = (
            Step("T", "tokens along an entry of X", grid.table.tokens, "fitted"),
            Step("N", "T^(n d) tokens", grid.tokens, f"n = {n}, d = {d}"),
            Step("quotient", "|A_ij - x_ij/(|X|^2 + alpha)|", grid.error, "one-variable proofs"),
            Step("interpolation", "sum |y_i| times that", looked, f"|y_i| <= {self.domain.y:g}"),
        )
        domain: dict[str, float | str] = {
            "samples x dim": f"{n} x {d}",
            "max |x|": self.domain.x,
            "max |y|": self.domain.y,
            "alpha": self.alpha,
        }
        if self.least:
            domain["|X|^2"] = f"at least {self.least:.6g}"
        assumed = () if grid.kind == "proven" else ("the tables' errors",)
        return self._proved(terms, domain, steps, assumed=assumed)

    # ------------------------------------------------------------------------------ evaluation

    def _check_values(self, *inputs: Tensor) -> None:
        x, y = inputs
        self.domain.check_data(x, y)

    def _exactly(self, *inputs: Tensor) -> Float[Tensor, "*b d"]:
        """X' y / (|X|^2 + alpha), which it is for n = 1 and for d = 1 (float64)."""
        x, y = (t.double() for t in inputs)
        norm = x.square().sum((-2, -1)) + self.alpha
        return (y[..., None, :] @ x)[..., 0, :] / norm[..., None]

    @property
    def features(self) -> Features:
        """Of the prompt."""
        return Features.of(x=self.domain.dim, y=1)

    def _encode(self, *inputs: Tensor) -> Prompt:
        """[X; y], one token a sample."""
        x, y = inputs
        batch = common_batch(x.shape[:-2], y.shape[:-1])
        tokens = torch.cat([x.expand(*batch, *x.shape[-2:]), y.expand(*batch, -1)[..., None]], -1)
        return Prompt(tokens, self.features, tuple(f"sample {i}" for i in range(x.shape[-2])))

    @cached_property
    def design(self) -> Design:
        """The head, in which the query's logit is the key and every coefficient is carried."""
        d = self.domain.dim
        at, given = Features.of(key=1, query=1, value=d), Features.of(w=d)
        carried = moves(at, {"value": 1.0}, "w")
        head = Head("grid of data sets", ((Row.of("query"), Row.of("key")),), carried)
        return Design(at, ((head,),), gives=(given,))

    def _lift(self) -> Lift:
        """Lin: keys and values of all grid tokens, and the query token."""
        n, d, grid = self.domain.samples, self.domain.dim, self.grid
        at, count = self.design.features, self.grid.tokens
        maps = torch.zeros(2 * d, at.total, d + 1, dtype=torch.float64)
        spread = torch.zeros(2 * d, n, count + 1, dtype=torch.float64)
        for j in range(d):
            maps[j, at["key"], j] = 1.0
            maps[d + j, at["value"].start + j, d] = 1.0
            spread[j, :, :count] = grid.slopes.reshape(-1, n, d)[..., j].mT
            spread[d + j, :, :count] = grid.values.reshape(-1, n, d)[..., j].mT
        constant = torch.zeros(count + 1, at.total, dtype=torch.float64)
        constant[:count, at["key"]] = grid.biases[:, None]
        constant[count, at["key"]] = -self._margin
        constant[count, at["query"]] = 1.0
        return Lift(maps, spread, constant)

    def _build_network(self) -> FrozenNetwork:
        readout = torch.zeros(self.grid.tokens + 1, 1, dtype=torch.float64)
        readout[-1] = 1.0
        return FrozenNetwork([self._lift(), attention(self.design, 0, readout)], self.features)

    def _read(self, output: Tensor) -> Tensor:
        return output[..., 0, :]

    @property
    def plan(self) -> Plan:
        """One layer of one head; the prompt is n tokens, which Lin makes T^(n d) + 1 of."""
        n, d = self.domain.samples, self.domain.dim
        wide, count = 2 + d, self.grid.tokens + 1
        layer = LayerSizes(count, wide, heads=1, logit=1, values=d, answers=1)
        lift = 2 * d * (wide * (d + 1) + n * count) + count * wide
        return Plan.of(
            [layer],
            self.dtype,
            grid=self.grid.tokens,
            prompt=(n, d + 1),
            more=lift,
            lifted=2 * d * count * wide,
        )

    @property
    def _smaller(self) -> str:
        return f"use fewer samples or features, or passes instead of tokens: {self._by_passes}"

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "grid": self.grid.to_dict()}

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        options = {**arguments, "dtype": getattr(torch, arguments["dtype"])}
        return cls(**{**options, "grid": NormQuotient.from_dict(options["grid"])})


class OneLayerLeastSquares(OneLayerRidge):
    """argmin over w of ||X w - y||^2 by one frozen head, d = 1, for data of bounded condition.

    ``em(X, y)`` is the solution, shape (*batch, 1). With d = 1 the condition of X'X/n is 1 for
    each data set alone; what counts is the range of |X|^2/n over all of them.

    Parameters
    ----------
    condition
        The largest |X|^2/n over the least; data below the least are refused.
    largest
        Bound of |X|^2/n; bound^2 by default.
    samples, bound, y_bound, eps, dtype, backend
        As for :class:`OneLayerRidge`.

    Examples
    --------
    >>> em = OneLayerLeastSquares(samples=1, condition=16.0, eps=1e-6)
    >>> x, y = torch.tensor([[-0.25]]).double(), torch.tensor([1.0]).double()
    >>> abs(float(em(x, y)) + 4) <= em.certificate.error <= 1e-6
    True
    """

    _by_passes = "iceform.paper.LeastSquares"

    def __init__(
        self,
        *,
        samples: int,
        condition: float,
        dim: int = 1,
        largest: float | None = None,
        **options: Unpack[OneLayerOptions],
    ) -> None:
        self.condition = check_positive("condition", condition)
        if self.condition < 1:
            raise BoundError(f"condition must be at least 1, got {condition!r}")
        if check_size("dim", dim) > 1 and samples == 1:
            raise ProgramError(
                f"one sample of {dim} features has no unique least-squares solution; give at "
                "least as many samples as features, or a penalty (OneLayerRidge)"
            )

        def least(domain: Domain) -> float:
            top = domain.x**2 if largest is None else check_positive("largest", largest)
            return samples * top / self.condition

        self._solve(0.0, least, dim, samples, **options)

    def _check_values(self, *inputs: Tensor) -> None:
        """Bounds, and that |X|^2 is not too small."""
        super()._check_values(*inputs)
        found = float(inputs[0].detach().double().square().sum((-2, -1)).min())
        if not found >= self.least * (1 - NOISE / 2):
            raise BoundError(
                f"|X|^2 is {found:.6g}, the certificate holds from {self.least:.6g} (condition "
                f"{self.condition:g}); raise condition=, or give a penalty (OneLayerRidge)"
            )
