r"""Enclosures of a softmax look-up on small intervals, from its weights at their midpoints.

Moving the query from z_i to z tilts the weights: p_k(z) = p_k(z_i) e^{s_k d} / E_i[e^{s d}] with
d = z - z_i, and by Jensen the denominator is at least e^{\bar s_i d}. So for |d| <= r

.. math:: p_k(z) \le w_k := p_k(z_i)\, e^{|s_k - \bar s_i| r},

which turns every moment at the midpoint into a bound on the whole interval. All certificates of
fitted values and all rounding bounds rest on this one inequality; it holds for any keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from iceform.interpolation.interpolant import Interpolant

__all__ = [
    "LocalWeights",
    "RoundingModel",
    "half_width",
    "intervals",
    "local_weights",
    "reweighted",
    "rounding",
    "significant_tokens",
    "steepness",
    "tail_mass",
    "weights_on",
]

_CHUNK = 1 << 21  # entries of (points, window) held at once
_NEGLIGIBLE = 60.0  # logits this far below the largest (e^-60) are bounded, not summed
_TAIL_UNITS = 2  # of rounding that leaving far tokens out may add: z alone brings more
_TAIL_SHARE = 2.0**-6  # of the table's own error that leaving far tokens out may add
_WIDEST = 32  # tokens either side beyond which a window costs as much as the whole table


@dataclass(frozen=True)
class LocalWeights:
    """Weights and centred moments at the midpoints of a chunk of intervals."""

    middle: Tensor  # (m,)
    radius: Tensor  # (m,)
    logits: Tensor  # (m, window), relative to the largest
    weights: Tensor  # (m, window)
    tilted: Tensor  # (m, window), bounds the weights on the whole interval
    slopes: Tensor  # (m, window), minus their mean
    values: Tensor  # (m, window), minus their mean
    mean: Tensor  # (m,), the look-up's value at the midpoint
    raw_slopes: Tensor  # (m, window)
    raw_biases: Tensor  # (m, window)
    raw_values: Tensor  # (m, window)
    index: Tensor  # (m, window), which tokens these are
    missing: Tensor  # (m,), bounds what tokens outside the window add to any value
    base: Tensor  # (m,), the value that sums are taken relative to

    @cached_property
    def slope_drift(self) -> Tensor:
        """Bound of the mean slope's movement: r times the largest variance."""
        return self.radius * (self.tilted * self.slopes.square()).sum(-1)

    @cached_property
    def steepest(self) -> Tensor:
        """Bound of |A'| = |Cov(v, s)| on each interval."""
        spread = self.slopes.abs() + self.slope_drift[:, None]
        return (self.tilted * self.values.abs() * spread).sum(-1)

    @cached_property
    def value_drift(self) -> Tensor:
        """Bound of the look-up's movement on each interval."""
        return self.radius * self.steepest


def intervals(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Midpoints and radii of the intervals between increasing edges."""
    middle = 0.5 * (edges[1:] + edges[:-1])
    # One ulp more than half the gap, so that rounding of the midpoint leaves no point out.
    radius = 0.5 * (edges[1:] - edges[:-1]) + torch.finfo(torch.float64).eps * middle.abs()
    return middle, radius


def local_weights(it: Interpolant, edges: Tensor) -> Iterator[LocalWeights]:
    """Walk over the intervals between increasing edges in chunks that fit in cache."""
    yield from weights_on(it, *intervals(edges))


def weights_on(it: Interpolant, middle: Tensor, radius: Tensor) -> Iterator[LocalWeights]:
    """The same for any intervals."""
    half = 16
    while True:
        size = min(it.grid.tokens, 2 * half + 1)
        sample = middle[:: max(1, len(middle) // 4096)]
        if size == it.grid.tokens or _window_suffices(it, sample, size):
            break
        half *= 2
    step = max(1, _CHUNK // size)
    for start in range(0, len(middle), step):
        stop = start + step
        yield _weigh(it, middle[start:stop], radius[start:stop], size)


def _window(it: Interpolant, z: Tensor, size: int) -> Tensor:
    """Indices of ``size`` consecutive tokens around each z, shape (m, size)."""
    tokens = it.grid.tokens
    nearest = torch.searchsorted(it.grid.nodes, z.contiguous())
    first = (nearest - size // 2).clamp(0, tokens - size)
    return first[:, None] + torch.arange(size)


def _window_suffices(it: Interpolant, z: Tensor, size: int) -> bool:
    index = _window(it, z, size)
    logits = it.logits(z, index)
    drop = logits.amax(-1) - torch.maximum(
        logits[:, 0].masked_fill(index[:, 0] == 0, -math.inf),
        logits[:, -1].masked_fill(index[:, -1] == it.grid.tokens - 1, -math.inf),
    )
    return bool((drop > _NEGLIGIBLE).all())


def _weigh(it: Interpolant, middle: Tensor, radius: Tensor, size: int) -> LocalWeights:
    keys = it.keys
    index = _window(it, middle, size)
    logits = it.logits(middle, index)
    logits = logits - logits.amax(-1, keepdim=True)
    masses = logits.exp()
    total = masses.sum(-1, keepdim=True)
    weights = masses / total
    raw_slopes, raw_values = keys.slopes[index], it.values[index]
    slopes = raw_slopes - (weights * raw_slopes).sum(-1, keepdim=True)
    # Relative to the token that weighs most: sums round relative to differences of values.
    base = raw_values.gather(1, logits.argmax(-1, keepdim=True))
    mean = base[:, 0] + (weights * (raw_values - base)).sum(-1)
    tilted = (logits - total.log() + slopes.abs() * radius[:, None]).clamp(max=0).exp()
    # Logits are unimodal in the token index, so tokens outside stay below the window's edges.
    left = tilted[:, 0].masked_fill(index[:, 0] == 0, 0.0)
    right = tilted[:, -1].masked_fill(index[:, -1] == it.grid.tokens - 1, 0.0)
    missing = it.grid.tokens * it.swing * torch.maximum(left, right)
    return LocalWeights(
        middle, radius, logits, weights, tilted, slopes, raw_values - mean[:, None], mean,
        raw_slopes, keys.biases[index], raw_values, index, missing, base[:, 0],
    )  # fmt: skip


def steepness(it: Interpolant, per_cell: int = 4) -> float:
    """A bound of |A'| on the whole range."""
    return max(float(w.steepest.max()) for w in local_weights(it, it.grid.mesh(per_cell)))


@dataclass(frozen=True)
class RoundingModel:
    """How a backend computes logits, and so how far they are off.

    Parameters
    ----------
    unit
        Unit roundoff u of the dtype (half its eps).
    squared
        True where logits are -c((z - L)/h)^2, whose error is relative; False for the literal
        inner product s_k z + b_k, whose error follows the size of its terms.
    magnitude
        Bound of sum_j |x_j w_j| + |y - center|, the terms of z.
    dot_terms
        How many terms are summed to get z (fused) or a logit (literal).
    half
        J where only the 2 J + 1 tokens nearest to z may be summed, by recurrence; None where all
        are, each with its own exponential.
    """

    unit: float
    squared: bool
    magnitude: float
    dot_terms: int
    half: int | None = None

    @property
    def gamma(self) -> float:
        """Relative error of an inner product in any order, n u / (1 - n u), plus 3 for its keys."""
        n = (self.dot_terms + 3) * self.unit
        return n / (1 - n) if n < 1 else math.inf

    def logit_error(self, w: LocalWeights) -> Tensor:
        """Bound of each logit's error, exp's own 2 ulp (4 u) included."""
        after_max = self.unit * w.logits.abs()
        if self.squared:
            # (t - k)^2 c: one rounding for t - k, doubled by the square, two products, one cast.
            return 6 * self.unit * w.logits.abs() + after_max + 4 * self.unit
        terms = w.raw_slopes.abs() * self.magnitude + w.raw_biases.abs()
        return self.gamma * terms + after_max + 4 * self.unit

    def query_error(self, spread: float) -> float:
        """Error of z itself, which only the squared form sees apart from its logits."""
        if not self.squared:
            return 0.0
        return self.gamma * self.magnitude + 3 * self.unit * spread


def tail_mass(sharpness: float, half: int) -> float:
    r"""Bound of the mass more than ``half`` tokens away from the node nearest to z.

    With :math:`|u| \le 1/2` cells between z and that node, a token j away weighs
    :math:`e^{-c j^2 + 2 c u j}` relative to it, so all beyond J together weigh at most
    :math:`\sum_{j > J} e^{-c j (j - 1)} + e^{-c j (j + 1)}`. Terms fall at least by
    :math:`e^{-2 c (J + 1)}` each, which bounds what is left of the sum where it is cut.
    """
    total, j = 0.0, half + 1
    while True:
        term = math.exp(-sharpness * j * (j - 1)) + math.exp(-sharpness * j * (j + 1))
        total, j = total + term, j + 1
        ratio = math.exp(-2 * sharpness * (j - 1))
        if term * ratio <= 2.0**-53 * total * (1 - ratio):
            return total * (1 + 2.0**-50) + math.ulp(0.0)


def half_width(it: Interpolant, unit: float) -> int | None:
    """J, the tokens either side of the nearest that a windowed look-up sums; None for all.

    The smallest J whose tail adds less than rounding, or than a small share of the table's
    own error. Graded tokens, and temperatures so high that a window spares nothing, have none.
    """
    if not it.uniform:
        return None
    # Values beyond the ends of the range can be far larger than anything that is looked up.
    level = max(float(w.mean.abs().max()) for w in local_weights(it, it.grid.mesh(1)))
    # A table that was given as it is approximates nothing, and has no error to take a share of.
    own = it.error if math.isfinite(it.error) else 0.0
    allowed = max(_TAIL_UNITS * unit * level, _TAIL_SHARE * own)
    for half in range(1, _WIDEST + 1):
        # A window as wide as the table leaves nothing out.
        if half >= it.tokens - 1 or tail_mass(it.sharpness, half) * it.swing <= allowed:
            return half
    return None


def rounding(it: Interpolant, model: RoundingModel, per_cell: int = 4) -> float:
    r"""Bound of |computed A - A| over the range: logits off by tau_k, sums off by their length.

    With every logit off by at most tau_k,
    |A' - A| <= sum_k p_k (e^{tau_k} - 1)|v_k - A| / sum_k p_k e^{-tau_k}. In the sums, an addend
    t costs at most min(u |sum|, |t|), so only tokens of weight above u count. Where a window may
    be used, the bound holds for both ways: tokens one by one, and by recurrence.
    """
    spread = max(abs(it.grid.low), abs(it.grid.high)) + abs(it.grid.center)
    shift = model.query_error(spread)
    worst = 0.0
    for w in local_weights(it, it.grid.mesh(per_cell)):
        looked = _one_by_one(model, w)
        if model.half is not None:
            looked = torch.maximum(looked, _by_recurrence(it, model, w))
        total = looked + w.steepest * shift + w.missing
        if not bool(total.isfinite().all()):
            return math.inf
        worst = max(worst, float(total.max()))
    if model.half is not None and model.half < it.tokens - 1:
        worst += tail_mass(it.sharpness, model.half) * it.swing
    underflow = it.tokens * it.size * torch.finfo(torch.float32).tiny
    return worst * (1 + 64 * model.unit) + underflow  # products of the first-order terms above


def reweighted(w: LocalWeights, tau: Tensor) -> Tensor:
    """What weights off by factors within e^{+-tau} move the look-up by."""
    off = (w.tilted * tau.expm1() * (w.values.abs() + w.value_drift[:, None])).sum(-1)
    return off / (w.weights * (-tau).exp()).sum(-1)


def _one_by_one(model: RoundingModel, w: LocalWeights) -> Tensor:
    counted = (w.tilted / model.unit).clamp(max=1).sum(-1)
    carried = (w.tilted * w.raw_values.abs()).sum(-1)
    level = w.mean.abs() + w.value_drift
    sums = model.unit * ((counted + 6) * carried + (counted + 2) * level)
    return reweighted(w, model.logit_error(w)) + sums


def _by_recurrence(it: Interpolant, model: RoundingModel, w: LocalWeights) -> Tensor:
    r"""Rounding of weights a^j q^{j^2 - j}, a = e^{c (2u - 1)}, summed by Horner's rule.

    The exponent c (2u - 1) is within [-2c, 0] and comes of five roundings at most (u, 2u - 1, c,
    the product, a change of base), exp adds 4 units, each further factor two: the token j away
    is off by j times that, in numerator and denominator alike. Their sums round apart: two units
    per step of Horner's rule and eight at the end. Lines are summed relative to the nearest token,
    whose own value is added last.
    """
    unit, cells = model.unit, (w.middle - it.grid.nodes[0]) / it.grid.spacing
    away = (w.index - cells[:, None]).abs() + (0.5 + w.radius / it.grid.spacing)[:, None]
    tau = away * (10 * it.sharpness + 4 + 2) * unit
    apart = (2 * away + 8) * unit
    nearest = cells.round().long()
    around = torch.stack([nearest - 1, nearest, nearest + 1]).clamp(0, it.tokens - 1)
    base = it.values[around].abs().amax(0)
    level = w.mean.abs() + w.value_drift
    size = w.raw_values.abs() + (level + base)[:, None]
    # Three roundings of the nearest token's value, computed from that in the middle.
    ends = 4 * unit * (base + it.values[it.tokens // 2].abs())
    return reweighted(w, tau) + (w.tilted * apart * size).sum(-1) + ends


def significant_tokens(it: Interpolant, unit: float, per_cell: int = 2) -> float:
    """How many tokens can have a weight above ``unit``: those whose sums can round."""
    return max(
        float((w.tilted / unit).clamp(max=1).sum(-1).max())
        for w in local_weights(it, it.grid.mesh(per_cell))
    )
