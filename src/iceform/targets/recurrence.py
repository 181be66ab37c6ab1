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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import OUTWARD, UNIT

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

    @cached_property
    def _history(self) -> Tensor:
        """q_0, ..., q_T at the points, one a row."""
        x = self._points
        q, v = torch.zeros_like(x), torch.zeros_like(x)
        out = [q]
        for rho in self.factors:
            v = self.momentum * v - rho * self.lr * ((x + self.penalty) * q - 1)
            q = q + v
            out.append(q)
        return torch.stack(out)

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
