r"""Exact in-context algorithms: what a network in Garg's layout is held against, prefix by prefix.

At x_i the examples before it are known, k = i of them. With :math:`H_i = \sum_{j<i} x_j x_j^T` and
:math:`b_i = \sum_{j<i} y_j x_j`, *primal* descent holds weights,

.. math::
    w_i \leftarrow w_i - \frac{\eta_t}{k + \delta} (H_i w_i - b_i), \qquad f_i = w_i \cdot x_i,

and *dual* descent holds residuals of examples and predictions, and never weights:

.. math::
    r_j \leftarrow r_j - \frac{\eta_t}{j + 1 + \delta} \sum_{l \le j} (x_j \cdot x_l) r_l, \qquad
    f_i \leftarrow f_i + \frac{\eta_t}{k + \delta} \sum_{l < i} (x_i \cdot x_l) r_l,

from r = y and f = 0. Under a causal mask a residual knows the examples up to its own alone, so the
two are different algorithms for one task; without the mask they would predict the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import BoundError
from iceform.validation import check_choice, check_positive

MECHANISMS = ("primal", "dual")
Data = Float[Tensor, "*b n d"]
Labels = Float[Tensor, "*b n"]


@dataclass(frozen=True)
class PrefixDescent:
    """Gradient descent on every prefix of a prompt.

    Parameters
    ----------
    steps
        eta_t, one for every step.
    damping
        delta: the steps are eta_t times the mean gradient, times k / (k + delta).
    mechanism
        "primal" (on weights) or "dual" (on residuals and predictions).

    Examples
    --------
    >>> x, y = torch.tensor([[1.0], [1.0]]), torch.tensor([2.0, 0.0])
    >>> PrefixDescent((1.0,), damping=1.0)(x, y)
    tensor([0., 1.], dtype=torch.float64)
    """

    steps: tuple[float, ...]
    damping: float = 0.0
    mechanism: str = "primal"

    def __post_init__(self) -> None:
        check_choice("mechanism", self.mechanism, MECHANISMS)
        check_positive("damping", self.damping, zero=True)
        if not self.steps:
            raise BoundError("steps is empty; descent takes at least one step")
        for number, eta in enumerate(self.steps):
            check_positive(f"steps[{number}]", eta)

    def __call__(self, x: Data, y: Labels) -> Labels:
        """The prediction at every x, in float64."""
        if self.mechanism == "primal":
            return (self.weights(x, y) * x.double()).sum(-1)
        x, residual = x.double(), y.double()
        gram, own = (x @ x.mT).tril(-1), (x * x).sum(-1)
        counts = torch.arange(x.shape[-2], dtype=torch.float64, device=x.device)
        out = torch.zeros_like(residual)
        for eta in self.steps:
            before = (gram @ residual[..., None])[..., 0]
            out = out + eta * before / _at_least_one(counts + self.damping)
            residual = residual - eta * (before + own * residual) / (counts + 1 + self.damping)
        return out

    def weights(self, x: Data, y: Labels) -> Data:
        """Primal: w at every x, from the examples before it."""
        hessian, moment = prefix_sums(x, y)
        counts = torch.arange(x.shape[-2], dtype=torch.float64, device=x.device)
        scale = _at_least_one(counts + self.damping)[:, None]
        w = torch.zeros_like(moment)
        for eta in self.steps:
            w = w - eta * ((hessian @ w[..., None])[..., 0] - moment) / scale
        return w


def _at_least_one(counts: Tensor) -> Tensor:
    """Divisors: nothing is summed where there is no example."""
    return torch.where(counts > 0, counts, torch.ones_like(counts))


def stable_damping(dim: int) -> float:
    """|x|^2 is d in the mean; 4 more keep steps stable where it is large and examples are few."""
    return float(dim + 4)


def chebyshev_steps(count: int, low: float = 1.0, high: float = 2.0) -> tuple[float, ...]:
    """Steps 1/lambda at the Chebyshev nodes of [low, high], from both ends in turn.

    They are what descent takes whose worst error is least for curvatures in that interval, and no
    two are equal: training can tell the layers apart. Standard normal x have mean curvatures of 1
    to 2 where examples are many; smaller ``low`` takes longer steps, which few examples make
    unstable.

    Examples
    --------
    >>> [round(step, 3) for step in chebyshev_steps(3)]
    [0.517, 0.937, 0.667]
    """
    middle, radius = (low + high) / 2, (high - low) / 2
    angles = [math.pi * (2 * t + 1) / (2 * count) for t in range(count)]
    sizes = [1 / (middle + radius * math.cos(angle)) for angle in angles]
    order = [sizes[t // 2] if t % 2 == 0 else sizes[-1 - t // 2] for t in range(count)]
    return tuple(order)


def prefix_sums(x: Data, y: Labels) -> tuple[Float[Tensor, "*b n d d"], Data]:
    """H_i and b_i of the examples before every i, in float64."""
    x, y = x.double(), y.double()
    hessian = (x[..., :, None] * x[..., None, :]).cumsum(-3)
    moment = (x * y[..., None]).cumsum(-2)
    first = torch.zeros_like
    return (
        torch.cat([first(hessian[..., :1, :, :]), hessian[..., :-1, :, :]], -3),
        torch.cat([first(moment[..., :1, :]), moment[..., :-1, :]], -2),
    )


def ridge_weights(x: Data, y: Labels, penalty: float) -> Data:
    """(H_i + penalty)^-1 b_i: with the noise's variance, the posterior mean for w ~ N(0, 1)."""
    hessian, moment = prefix_sums(x, y)
    damped = hessian + penalty * torch.eye(x.shape[-1], dtype=hessian.dtype, device=x.device)
    out: Tensor = torch.linalg.solve(damped, moment)
    return out


def least_squares_weights(x: Data, y: Labels) -> Data:
    """The weights of least norm among those that fit best."""
    hessian, moment = prefix_sums(x, y)
    out: Tensor = torch.linalg.pinv(hessian, hermitian=True) @ moment[..., None]
    return out[..., 0]


def predicted(weights: Data, x: Data) -> Labels:
    """w_i . x_i."""
    return (weights * x.double()).sum(-1)
