r"""A look-up and its derivatives at the middles of intervals, with what computing them is off by.

The derivatives of A are joint cumulants of values and slopes under the softmax weights:
A' = E[vs], A'' = E[v s^2], A''' = E[v s^3] - 3 E[s^2] E[vs] and
A'''' = E[v s^4] - 6 E[s^2] E[v s^2] - 4 E[s^3] E[vs], all centred.

**Rounding.** With u = 2^-53 and d = z - m, a logit -c(d/h - k)^2 is computed with five roundings
relative to itself; d/h is off by 2u|d/h|, which moves all tokens alike: it is an error of z. A
logit s d + b of graded tokens is off by 3u(|s d| + |b|). exp is off by four units in the last
place (8u). A weight is then off by a factor within :math:`e^{\pm\tau}`. An addition rounds by u
times the sum, and by no more than the lesser addend; A is summed relative to the value of the
heaviest token. What is computed as centred is centred up to :math:`\delta_v, \delta_s`, which enter
the cumulants with the lower moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic.intervals import LIBRARY, UNIT
from iceform.interpolation.interpolant import Interpolant
from iceform.interpolation.local import LocalWeights, reweighted

__all__ = ["Derivatives", "cumulants", "derivatives", "fourth_cumulant"]

_SLACK = 1 + 2.0**-10  # bounds of derivatives are computed with far less than this of rounding


def cumulants(w: LocalWeights) -> tuple[Tensor, Tensor, Tensor]:
    """The first three derivatives of A at the midpoints."""
    p, s, v = w.weights, w.slopes, w.values
    first = (p * v * s).sum(-1)
    second = (p * v * s.square()).sum(-1)
    third = (p * v * s**3).sum(-1) - 3 * (p * s.square()).sum(-1) * first
    return first, second, third


def fourth_cumulant(w: LocalWeights) -> Tensor:
    """Bound of |A''''| on each interval: centred at the interval's own moving means."""
    s = w.slopes.abs() + w.slope_drift[:, None]
    v = w.values.abs() + w.value_drift[:, None]
    s2 = s.square()

    def mean(x: Tensor) -> Tensor:
        return (w.tilted * x).sum(-1)

    return mean(v * s2 * s2) + 6 * mean(s2) * mean(v * s2) + 4 * mean(s2 * s) * mean(v * s)


@dataclass(frozen=True)
class Derivatives:
    """A, A', A'', A''' at the midpoints, what each may be off by; |A'| and |A''''| on intervals.

    ``movement`` bounds |A(z) - A(midpoint)| on the interval.
    """

    values: tuple[Tensor, Tensor, Tensor, Tensor]
    off: tuple[Tensor, Tensor, Tensor, Tensor]
    steepest: Tensor
    fourth: Tensor
    movement: Tensor


def derivatives(it: Interpolant, w: LocalWeights) -> Derivatives:
    """All of them, rounding included."""
    tau = _logit_error(it, w)
    return Derivatives(
        (w.mean, *cumulants(w)),
        (_value_error(it, w, tau), *_cumulant_errors(w, tau)),
        _SLACK * w.steepest + w.missing / w.radius,
        _SLACK * fourth_cumulant(w),
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


def _cumulant_errors(w: LocalWeights, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By how much E[vs], E[v s^2] and the third may be off, all told."""
    p, s, v = w.tilted, w.slopes.abs(), w.values.abs()
    factor = tau.expm1() * 2 + 2 * (w.weights.shape[-1] + 6) * UNIT

    def off(x: Tensor) -> Tensor:
        return (p * factor * x).sum(-1)

    def mean(x: Tensor) -> Tensor:
        return (p * x).sum(-1)

    # What the computed centres are off by.
    ds, dv = off(w.raw_slopes.abs() + s), off(w.raw_values.abs() + v)
    s2 = s.square()
    vs, vs2, ss, s3 = mean(v * s), mean(v * s2), mean(s2), mean(s2 * s)
    first = off(v * s) + dv * ds
    second = off(v * s2) + 2 * ds * vs + dv * ss + 2 * dv * ds**2
    third = off(v * s2 * s) + 3 * (off(s2) * vs + ss * off(v * s)) + 3 * off(s2) * off(v * s)
    third = third + dv * s3 + 3 * ds * vs2 + 6 * dv * ds * ss + 6 * ds**2 * vs + 6 * dv * ds**3
    # Keys hold slopes to four roundings of 2 beta l_k.
    stored = 5 * UNIT * w.raw_slopes.abs().amax(-1)
    first = first + stored * mean(v)
    second = second + 2 * stored * vs
    third = third + 3 * stored * (vs2 + 2 * mean(s) * vs + ss * mean(v))
    return _SLACK * first, _SLACK * second, _SLACK * third
