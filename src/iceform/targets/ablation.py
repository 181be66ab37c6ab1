r"""What one head adds to the answer: the effect of taking it out, predicted.

In the last layer of a ``LinearDescent`` the head at t = j delta s adds

.. math:: -s\,\rho\,2^{K-1} a_j F(t) = -\tfrac12 s\,\rho\,lr\,a_j\,
    \frac{\mathrm{mean}(x_i e^{t z_i})}{1 + \ell(t)}

to w, the penalty's gate -rho lr penalty w, the momentum's momentum v; idle heads add nothing. A
network without the head answers the exact w_T less that much, within the certificate, which bounds
every head by itself, and what an error of w_{T-1} does to F: |a_j| j delta cosh(j delta Z) X^2 eta
times it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import ShapeError
from iceform.targets.linear_descent import LinearDescent
from iceform.targets.precise import linear_descent

__all__ = ["Contribution", "contribution"]


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a head adds to the answer, and how well that is known."""

    role: str
    value: Float[Tensor, "d"]
    error: float


def contribution(
    spec: LinearDescent, x: Tensor, y: Tensor, head: int, **parameters: Any
) -> Contribution:
    """Of a head of the last layer, for these data.

    Without it the network answers ``reference - value`` within ``error``.
    """
    if not 0 <= head < spec.design.heads:
        raise ShapeError(f"head must be 0 to {spec.design.heads - 1}, got {head}")
    x, y = x.to(spec.torch_dtype).double(), y.to(spec.torch_dtype).double()
    domain = spec.domain(x, y)
    certified = spec.certificate(domain, **parameters).error
    roles = spec.design.ground_truth()[-1]
    role = str(roles[head]["role"])
    r = spec.recurrence(domain, **parameters)
    path = torch.cat([torch.zeros(2, spec.dim).double(), linear_descent(x, y, r)])
    w, v = path[-2], path[-2] - path[-3]
    if role.startswith("gradient"):
        value, steep = _pair(spec, x, y, w, head, r.lr)
        return Contribution(role, value, certified * (1 + steep))
    known = {"penalty": -r.factors[-1] * r.lr * r.penalty * w, "momentum, kept": r.momentum * v}
    return Contribution(role, known.get(role, torch.zeros_like(w)), certified * 2)


def _pair(
    spec: LinearDescent, x: Tensor, y: Tensor, w: Tensor, head: int, lr: float
) -> tuple[Tensor, float]:
    p, sign = spec.combination, 1 if head % 2 == 0 else -1
    j = head // 2 + 1
    t, eta = sign * j * p.delta, spec.schedule[-1] * lr
    z = x @ w - y
    weights = torch.exp(t * z)
    leak = lr * 2.0**-spec.leak_bits * (float(weights.mean()) + 1 / len(x))
    mean = (x * weights[:, None]).mean(0) / (1 + leak)
    reach = float(z.abs().max()) * (1 + 2.0**-20)
    rows = float(x.norm(dim=1).max())
    size = eta * abs(p.weights[j - 1]) * math.cosh(t * reach)
    return -0.5 * sign * eta * p.weights[j - 1] * mean, size * abs(t) * rows**2
