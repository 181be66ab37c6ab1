r"""A look-up and its Taylor coefficients at the middles of intervals, and what they are off by.

With weights p at a middle z, slopes s and values v (both relative to any fixed numbers),

.. math:: A(z + t) = \frac{N(t)}{D(t)}, \qquad N_j = \frac{1}{j!} \sum_k p_k v_k s_k^j, \qquad
          D_j = \frac{1}{j!} \sum_k p_k s_k^j,

so the coefficients of A are those of a quotient of power series. On the whole interval, relative
to the moving means, :math:`N_0 = D_1 = 0` and absolute moments bound the others; a quotient whose
signs are all the worst bounds every coefficient there.

**Rounding.** With u = 2^-53 and d = z - m, a logit -c(d/h - k)^2 is computed with five roundings
relative to itself; d/h is off by 2u|d/h|, which moves all tokens alike: it is an error of z. A
logit s d + b of graded tokens is off by 3u(|s d| + |b|). exp is off by four units in the last
place (8u). A weight is then off by a factor within :math:`e^{\pm\tau}`. An addition rounds by u
times the sum, and by no more than the lesser addend; A is summed relative to the value of the
heaviest token. Moments off by :math:`\delta N, \delta D` move the quotient c by
:math:`(\delta N - c\,\delta D)/D`, again a power series.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic.intervals import LIBRARY, UNIT
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.local import LocalWeights, reweighted

__all__ = ["Enclosed", "enclosed", "largest", "taylor"]

_SLACK = 1 + 2.0**-10  # bounds of derivatives are computed with far less than this of rounding


def taylor(w: LocalWeights, order: int) -> list[Tensor]:
    """Coefficients 1 .. ``order`` of A at the midpoints."""
    return _taylor(w, order)[0]


def _taylor(w: LocalWeights, order: int) -> tuple[list[Tensor], list[Tensor]]:
    """The same, and D_0 .. D_n."""
    down, up = _moments(w.weights, w.slopes, w.values, order)
    return _quotient(up, down, order), down


def largest(w: LocalWeights, order: int) -> list[Tensor]:
    """Bounds of the absolute coefficients 1 .. ``order`` of A on each interval."""
    s = w.slopes.abs() + w.slope_drift[:, None]
    v = w.values.abs() + w.value_drift[:, None]
    down, up = _moments(w.tilted, s, v, order)
    still = torch.zeros_like(w.middle)
    return _quotient([still, *up[1:]], [still, still, *(-m for m in down[2:])], order)


def _moments(p: Tensor, s: Tensor, v: Tensor, order: int) -> tuple[list[Tensor], list[Tensor]]:
    """D_0 .. D_n and N_0 .. N_n."""
    down, up = [], []
    for j in range(order + 1):
        p = p * s / j if j else p
        down.append(p.sum(-1))
        up.append((p * v).sum(-1))
    return down, up


def _quotient(up: list[Tensor], down: list[Tensor], order: int) -> list[Tensor]:
    """c_1 .. c_n of N/D where N_0 = 0 and D_0 = 1."""
    found: list[Tensor] = []
    for j in range(1, order + 1):
        earlier = zip(down[1:j], reversed(found), strict=True)
        found.append(sum((-d * c for d, c in earlier), up[j]))
    return found


@dataclass(frozen=True)
class Enclosed:
    """A on intervals: its coefficients 0 .. n - 1 at the midpoints, and what each is off by.

    ``largest`` bounds coefficients 1 .. n on the interval; ``movement`` |A(z) - A(midpoint)|.
    """

    values: list[Tensor]
    off: list[Tensor]
    largest: list[Tensor]
    movement: Tensor


def enclosed(it: Interpolant, w: LocalWeights, order: int) -> Enclosed:
    """All of them, rounding included."""
    tau = _logit_error(it, w)
    value, (found, down) = _value_error(it, w, tau), _taylor(w, order - 1)
    _, *bounds = largest(w, order)
    return Enclosed(
        [w.mean, *found],
        [value, *_coefficient_errors(w, tau, value, found, down)],
        [_SLACK * w.steepest + w.missing / w.radius, *(_SLACK * bound for bound in bounds)],
        _SLACK * w.value_drift + w.missing,
    )


def _logit_error(it: Interpolant, w: LocalWeights) -> Tensor:
    """tau: the logits' rounding and that of exp."""
    relative = UNIT * w.logits.abs()
    if it.uniform:
        return 6 * relative + LIBRARY
    distance = (w.middle - it.grid.center).abs()[:, None]
    terms = w.raw_slopes.abs() * distance + w.raw_biases.abs()
    return 4 * UNIT * terms + 2 * relative + LIBRARY


def _value_error(it: Interpolant, w: LocalWeights, tau: Tensor) -> Tensor:
    addends = w.tilted * (w.raw_values - w.base[:, None]).abs()
    size = addends.sum(-1)
    # An addition rounds by u times the sum at most, and by no more than the lesser addend.
    above = torch.minimum(addends, UNIT * size[:, None]).sum(-1)
    below = w.tilted.clamp(max=UNIT).sum(-1) * size
    sums = above + below + 6 * UNIT * size
    level = w.mean.abs() + w.base.abs()
    shift = 3 * UNIT * (w.middle - it.grid.center).abs() if it.uniform else 0.0
    off = reweighted(w, tau) + sums + 2 * UNIT * level + w.steepest * shift
    return _SLACK * off + w.missing


def _coefficient_errors(
    w: LocalWeights, tau: Tensor, value: Tensor, found: list[Tensor], exact: list[Tensor]
) -> list[Tensor]:
    """By how much the coefficients ``found``, quotients by ``exact``, may be off, all told."""
    order = len(found)
    factor = tau.expm1() * 2 + 2 * (w.weights.shape[-1] + order + 6) * UNIT
    # Keys hold slopes to four roundings of 2 beta l_k; two more make them relative to their mean.
    stored = 7 * UNIT * w.raw_slopes.abs().amax(-1, keepdim=True)
    s, v = w.slopes.abs() + stored, w.values.abs()
    down, up = _moments(w.tilted * factor, s, v, order)
    moved_down, moved_up = _moments(w.tilted * stored, s, v, order)
    down = [torch.zeros_like(value), *(d + m for d, m in zip(down[1:], moved_down, strict=False))]
    up = [value, *(u + m for u, m in zip(up[1:], moved_up, strict=False))]
    sizes = [m.abs() for m in exact]
    off = [value]  # N_0/D_0 is A itself relative to what was computed of it
    for j in range(1, order + 1):
        total = up[j] + down[j] * off[0]
        for i in range(1, j + 1):
            total = total + sizes[i] * off[j - i]
            if i < j:
                total = total + down[i] * (found[j - i - 1].abs() + off[j - i])
        off.append(_SLACK * total)
    return off[1:]
