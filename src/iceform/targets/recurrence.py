r"""Gradient descent on a quadratic, one eigenvalue at a time.

The method is v_{t+1} = beta v_t - rho_t eta (H w_t - b + penalty w_t), w_{t+1} = w_t + v_{t+1},
from w_0 = v_0 = 0, with H = X'X/n and b = X'y/n. On an eigenvector of H with eigenvalue x it is a
scalar recursion, so with q_t and r_t = 1 - x q_t polynomials in x,

* w_t = q_t(H) b. As b = A' y/sqrt(n) for A = X/sqrt(n), ||w_t||_2 <= rms(y) sup sqrt(x) |q_t(x)|.
* The residuals X w_t - y are -r_t(XX'/n) y, so rms(z_t) <= rms(y) max(1, sup |r_t(x)|): XX'/n
  has the eigenvalue 0 too, where r_t is 1.
* An error made in step t arrives at the end multiplied by a polynomial in H of degree below T.

Sups over [bottom, top] are taken at N Chebyshev points: a polynomial of degree k < N is at most its
largest value there over cos(pi k / 2N) (Ehlich and Zeller), x q_t(x)^2 having degree 2 t - 1. The
recursions at the points are rounded too: each step adds at most ``_UNITS`` units of the largest
number in sight, and each such error is multiplied by at most the largest arrival.

The same recursion in balls is the exact algorithm, which stock networks are compared with.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.balls import balls_of
from iceform.arithmetic.units import OUTWARD, UNIT
from iceform.expressions.ball_tensors import BallTensor

_BETWEEN = OUTWARD / math.cos(math.pi / (2 * tuning.RECURRENCE_POINTS))
_UNITS = 16


@dataclass(frozen=True)
class Recurrence:
    """The method's numbers.

    Attributes
    ----------
    lr
        eta.
    factors
        rho_t, one per step.
    penalty
        Of ||w||^2/2.
    momentum
        beta.
    bottom, top
        Bounds of the eigenvalues of H.
    """

    lr: float
    factors: tuple[float, ...]
    penalty: float
    momentum: float
    bottom: float
    top: float

    @property
    def steps(self) -> int:
        """T."""
        return len(self.factors)

    @cached_property
    def _points(self) -> Tensor:
        count = tuning.RECURRENCE_POINTS * 2 * self.steps
        angles = torch.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        return self.bottom + (self.top - self.bottom) / 2 * (1 + angles.cos())

    def path(self, curved: Callable[[Any], Any], right: Any) -> list[Any]:
        """w_0, ..., w_T, in the arithmetic of b; ``curved`` is w -> H w + penalty w."""
        w = v = 0 * right
        out = [w]
        for rho in self.factors:
            v = self.momentum * v - rho * self.lr * (curved(w) - right)
            w = w + v
            out.append(w)
        return out

    def exact(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"]) -> Float[Tensor, "d"]:
        """w_T on these data, enclosed in balls and rounded once, to float64."""
        bits, enough = tuning.PROOFS_BITS, False
        while not enough:
            with balls_of(bits) as flint:
                numbers = {n: flint.arb(getattr(self, n)) for n in ("lr", "penalty", "momentum")}
                method = replace(self, **numbers, factors=tuple(map(flint.arb, self.factors)))
                rows = BallTensor.of(x)
                hessian = rows.mT @ rows / len(x) + np.eye(rows.shape[1]) * numbers["penalty"]
                right = rows.mT @ BallTensor.of(y) / len(x)
                w = method.path(partial(operator.matmul, hessian), right)[-1]
                found = torch.tensor([float(entry.mid()) for entry in w], dtype=torch.float64)
                least = tuning.PROOFS_NOTHING * float(found.abs().max())
                enough = w.widest() <= least or bits >= tuning.PROOFS_MOST_BITS
            bits *= 2
        return found

    @cached_property
    def _history(self) -> Tensor:
        """q_0, ..., q_T at the points, one a row."""
        x = self._points
        return torch.stack(self.path(lambda q: (x + self.penalty) * q, torch.ones_like(x)))

    @cached_property
    def _lost(self) -> float:
        """A bound of what rounding did to any number of the history."""
        largest = float(self._history.abs().max()) + self.lr * max(self.factors)
        return self._per_step * largest * max(max(a) for a in self.arrivals)

    @property
    def _per_step(self) -> float:
        return _UNITS * UNIT * self.steps

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """sup sqrt(x) |q_t|: bounds ||w_t||_2 / rms(y) for t = 0 .. T."""
        most = self._history.abs() + self._lost
        sups = (self._points * most.square()).amax(-1)
        return tuple(math.sqrt(s * _BETWEEN) for s in sups.tolist())

    @cached_property
    def residuals(self) -> tuple[float, ...]:
        """max of 1 and sup |r_t|: bounds rms(z_t) / rms(y) for t = 0 .. T."""
        sups = (1 - self._points * self._history).abs().amax(-1) + self.top * self._lost
        # What of y lies outside the columns of X stays as it is: r_t(0) = 1.
        return tuple(max(1.0, (s + 4 * UNIT) * _BETWEEN) for s in sups.tolist())

    @cached_property
    def arrivals(self) -> tuple[tuple[float, float, float], ...]:
        """What errors of step t are multiplied by: in w_{t+1}, in v_{t+1}, in both alike.

        An adjoint sweep: w_T as a function of (w_{t+1}, v_{t+1}).
        """
        x = self._points
        by_w, by_v = torch.ones_like(x), torch.zeros_like(x)
        rows = []
        for rho in reversed(self.factors):
            both = by_w + by_v
            rows.append(torch.stack([by_w, by_v, both]).abs().amax(-1))
            by_w, by_v = by_w - rho * self.lr * (x + self.penalty) * both, self.momentum * both
        found = torch.stack(rows[::-1])
        largest = float(found.max())
        sups = (found + self._per_step * largest * largest) * _BETWEEN
        return tuple((w, v, both) for w, v, both in sups.tolist())
