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

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_FEW, UNIT
from iceform.errors import BoundError

if TYPE_CHECKING:
    from iceform.tables.interpolant import Interpolant

NEGLIGIBLE = 60.0  # logits this far below the largest (e^-60) are bounded, not summed
_TAIL_UNITS = 2  # of rounding that leaving far tokens out may add: z alone brings more
_WIDE_RANGE = 2.0**100  # of numbers in float32, and of distances between tokens below 1
_ON_A_LINE = 8  # units in the last place that values may be off a line and still count as one
_SINGLE = 2.0**-30  # units of roundoff below this are float64's


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
    def below(self) -> Tensor:
        """Bound of how far each logit is below the largest, anywhere on its interval.

        The largest is at most log sum_k e^{logit}, whose slope is the mean slope and no farther
        from that at the midpoint than :attr:`slope_drift`.
        """
        largest = -self.weights.amax(-1, keepdim=True).log()
        moved = self.slopes.abs() + self.slope_drift[:, None]
        return largest - self.logits + moved * self.radius[:, None]

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
    step = max(1, tuning.NUMBERS_AT_ONCE // size)
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
    return bool((drop > NEGLIGIBLE).all())


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


def _mesh(it: Interpolant) -> Tensor:
    """Fine enough that a table of one cell is not bounded by its ends."""
    return it.grid.mesh(max(tuning.LOCAL_PER_CELL, -(-tuning.FEWEST_POINTS // it.grid.cells)))


def steepness(it: Interpolant) -> float:
    """A bound of |A'| on the whole range."""
    return max(float(w.steepest.max()) for w in local_weights(it, _mesh(it)))


@dataclass(frozen=True)
class RoundingModel:
    """How a backend computes logits, and so how far they are off.

    Parameters
    ----------
    unit
        Unit roundoff u of the dtype (half its eps).
    squared
        True where logits are -c((z - L)/h)^2, whose error is relative; False for s_k z + b_k, whose
        error follows the size of its terms.
    magnitude
        Bound of sum_j |x_j w_j| + |y - center|, the terms of z; 0 where z is given.
    dot_terms
        How many terms are summed to get z (fused) or a logit (literal).
    half
        J where only the 2 J + 1 tokens nearest to z may be summed, by recurrence; None where all
        are, each with its own exponential.
    summed
        Whether z is summed before s_k z + b_k is made of it, as it is where logits are squared;
        False where a logit is one inner product of a key and a query.

    Examples
    --------
    >>> table = Interpolant.identity(-1.0, 1.0, eps=1e-6)
    >>> unit = torch.finfo(torch.float32).eps / 2
    >>> 1e-8 < table.rounding(RoundingModel(unit, True, magnitude=1.0, dot_terms=2)) < 1e-4
    True
    """

    unit: float
    squared: bool
    magnitude: float
    dot_terms: int
    half: int | None = None
    summed: bool = False

    @property
    def gamma(self) -> float:
        """Relative error of an inner product in any order, n u / (1 - n u), plus 3 for its keys."""
        n = (self.dot_terms + 3) * self.unit
        return n / (1 - n) if n < 1 else math.inf

    @property
    def least(self) -> float:
        """The smallest normal number of what is computed in; half precision is widened."""
        return torch.finfo(torch.float64 if self.unit < _SINGLE else torch.float32).tiny

    def query_error(self, it: Interpolant, away: Tensor, magnitude: float | Tensor) -> Tensor:
        """Error of z - center, ``away`` at most, where it is summed before logits are made of it.

        z itself has ``magnitude`` for its terms. Stored: the centre, and 1/h. Rounded: the
        difference, its product with 1/h, and in cells what is left beside the nearest token.
        """
        lost = (self.dot_terms + 1) * self.least
        summed = self.gamma * magnitude + self.unit * abs(it.grid.center) + lost
        if self.squared:
            return 3 * self.unit * away + self.unit * it.grid.spacing + summed
        return (self.unit * away + summed) if self.summed else 0 * away

    def logit_error(self, it: Interpolant, w: LocalWeights, magnitude: float | Tensor) -> Tensor:
        """Bound of each logit's error on a whole interval, exp's own 2 ulp (4 u) included.

        The largest is subtracted, and exp may change its base: three roundings of the difference.
        """
        later = (3 * w.below + 4) * self.unit
        if self.squared:
            # (t - k)^2 c: one rounding for t - k, doubled by the square, two products, one cast.
            cells = (w.middle - it.grid.nodes[0]) / it.grid.spacing
            far = (w.index - cells[:, None]).abs() + (w.radius / it.grid.spacing)[:, None]
            return 6 * self.unit * it.sharpness * far.square() + later
        if not self.summed:
            terms = w.raw_slopes.abs() * _column(magnitude) + w.raw_biases.abs()
            lost = self.dot_terms * self.least * _WIDE_RANGE  # of products with numbers up to that
            return self.gamma * terms + later + lost
        # s_k and b_k stored, their product with z and the sum rounded.
        middle = (w.middle - it.grid.center)[:, None]
        sides = w.raw_slopes.abs() * (middle.abs() + w.radius[:, None])
        whole = (w.raw_slopes * middle + w.raw_biases).abs()
        whole = whole + w.raw_slopes.abs() * w.radius[:, None]
        return (2 * sides + w.raw_biases.abs() + whole) * self.unit + later


def _column(number: float | Tensor) -> float | Tensor:
    return number[:, None] if isinstance(number, Tensor) else number


def _no_less(x: float) -> float:
    """e^{-x} from above, for an x of three roundings; exp itself is within two units."""
    return math.exp(-x) * (1 + (x + 1) * 2.0**-51)


def tail_mass(sharpness: float, half: int) -> float:
    r"""Bound of the mass more than ``half`` tokens away from the node nearest to z.

    With :math:`|u| \le 1/2` cells between z and that node, a token j away weighs
    :math:`e^{-c j^2 + 2 c u j}` relative to it, so all beyond J together weigh at most
    :math:`\sum_{j > J} e^{-c j (j - 1)} + e^{-c j (j + 1)}`. Terms fall at least by
    :math:`e^{-2 c (J + 1)}` each, which bounds what is left of the sum where it is cut.
    """
    total, j = 0.0, half + 1
    while True:
        term = sum(_no_less(sharpness * j * k) for k in (j - 1, j + 1))
        total, j = total + term, j + 1
        ratio = math.exp(-2 * sharpness * (j - 1))
        if term * ratio <= UNIT * total * (1 - ratio):
            return total * OUTWARD_FEW + math.ulp(0.0)


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
    allowed = max(_TAIL_UNITS * unit * level, tuning.LOCAL_TAIL_SHARE * own)
    for half in range(1, tuning.LOCAL_WIDEST + 1):
        # A window as wide as the table leaves nothing out.
        if half >= it.tokens - 1 or tail_mass(it.sharpness, half) * it.swing <= allowed:
            return half
    return None


def _check_held(it: Interpolant, model: RoundingModel) -> None:
    """Refuse a table that float32 cannot hold; the grid looks at float64."""
    if model.unit < _SINGLE:
        return
    largest = max(abs(it.low), abs(it.high), it.size, model.magnitude)
    if not (it.grid.spacing >= 1 / _WIDE_RANGE and largest <= _WIDE_RANGE):
        raise BoundError(
            f"a table with tokens {it.grid.spacing:.3g} apart and numbers up to {largest:.3g} is "
            f"looked up in float32, which holds {1 / _WIDE_RANGE:.0e} to {_WIDE_RANGE:.0e} with "
            "room for their products; scale the data, or use dtype=torch.float64"
        )


def rounding(it: Interpolant, model: RoundingModel) -> float:
    """Bound of |computed A - A| over the range: the largest on any interval of a mesh.

    Raises
    ------
    BoundError
        Where float32 does not hold the table.
    """
    _check_held(it, model)
    middle, radius = intervals(_mesh(it))
    return float(rounding_on(it, model, middle, radius, model.magnitude).max())


def rounding_on(
    it: Interpolant, model: RoundingModel, middle: Tensor, radius: Tensor,
    magnitude: float | Tensor,
) -> Tensor:  # fmt: skip
    r"""Bound of |computed A(z) - A(z)| for |z - middle| <= radius, z of terms up to ``magnitude``.

    What is computed first, z - center, is off by at most a shift, and A moves by that times its
    slope on the interval made wider by the shift. With every logit off by at most tau_k there,
    |A' - A| <= sum_k p_k (e^{tau_k} - 1)|v_k - A| / sum_k p_k e^{-tau_k}. In a sum, in any order,
    an addend t costs at most min(u |sum|, |t|). Where a window may be used, the bound holds for
    both ways: tokens one by one, and by recurrence.
    """
    shift = model.query_error(it, (middle - it.grid.center).abs() + radius, magnitude)
    if not bool(shift.isfinite().all()):
        return torch.full_like(middle, math.inf)
    line = None if model.half is None else line_of(it)
    found, start = [], 0
    for w in weights_on(it, middle, radius + shift):
        rows = slice(start, start + len(w.middle))
        terms = magnitude[rows] if isinstance(magnitude, Tensor) else magnitude
        looked = _one_by_one(it, model, w, terms)
        if model.half is not None:
            looked = torch.maximum(looked, _by_recurrence(it, model, w, line))
        found.append(looked + w.steepest * shift[rows] + w.missing)
        start = rows.stop
    total = torch.cat(found)
    if model.half is not None and model.half < it.tokens - 1:
        total = total + tail_mass(it.sharpness, model.half) * it.swing
    # What underflows: weights beside one that is 1, and values in the dtype, four times each.
    lost = it.tokens * it.size * torch.finfo(torch.float32).tiny + 4 * it.tokens * model.least
    total = total * (1 + 64 * model.unit) + lost  # products of the first-order terms above
    return total.nan_to_num(nan=math.inf)


def reweighted(w: LocalWeights, tau: Tensor) -> Tensor:
    """What weights off by factors within e^{+-tau} move the look-up by."""
    off = (w.tilted * tau.expm1() * (w.values.abs() + w.value_drift[:, None])).sum(-1)
    return off / (w.weights * (-tau).exp()).sum(-1)


def _one_by_one(
    it: Interpolant, model: RoundingModel, w: LocalWeights, magnitude: float | Tensor
) -> Tensor:
    """Every token's own exponential: numerator and denominator, or shares, then their mean.

    Beside the sums there are a quotient, a product, the stored value and one more.
    """
    unit, level = model.unit, w.mean.abs() + w.value_drift
    carried = w.tilted * w.raw_values.abs()
    most, mass = carried.sum(-1), w.tilted.sum(-1)
    sums = torch.minimum(carried, unit * most[:, None]).sum(-1) + 4 * unit * most
    share = torch.minimum(w.tilted, unit * mass[:, None]).sum(-1) + 2 * unit
    return reweighted(w, model.logit_error(it, w, magnitude)) + sums + share * level


def _by_recurrence(
    it: Interpolant, model: RoundingModel, w: LocalWeights, line: tuple[float, float] | None
) -> Tensor:
    r"""Rounding of weights c_j a^j, a = e^{c (2u - 1)}, summed by Horner's rule.

    The exponent c (2u - 1) is within [-2c, 0] and comes of five roundings at most (2u - 1, c, the
    product, log2 e and its product where the base is 2), exp adds 4 units, each further factor two,
    c_j one: the token j away from the nearest is off by j times that, in numerator and denominator
    alike. Their sums round apart. An addend j steps deep passes two operations a step, the last
    product and two additions, the nearest token's own value one more; before that it is a product
    with a stored value, and the quotient comes last: 2j + 2 below, 2j + 6 above.

    Values on a line are not read: j itself is averaged, and the mean times the slope added to the
    nearest token's place (three roundings of the distance from the middle token, two at its value).
    """
    unit, rho = model.unit, w.radius / it.grid.spacing + 2.0**-30
    cells = (w.middle - it.grid.nodes[0]) / it.grid.spacing
    j = ((w.index - cells[:, None]).abs() + (0.5 + rho)[:, None]).floor()
    tau = (j * (10 * it.sharpness + 4 + 2) + 1) * unit
    level = w.mean.abs() + w.value_drift
    read = w.tilted * ((2 * j + 6) * w.raw_values.abs() + (2 * j + 2) * level[:, None])
    apart = read.sum(-1)
    if line is not None:
        slope, off = abs(line[0]), line[1]
        ends = torch.stack([(cells + 0.5 - rho).floor(), (cells + 0.5 + rho).floor()])
        nearest = it.values[ends.long().clamp(0, it.tokens - 1)]
        moved = (w.mean - nearest).abs().amax(0) + w.value_drift  # the mean of j, times the slope
        by_j = w.tilted * ((2 * j + 6) * j * slope + (2 * j + 2) * moved[:, None])
        middle = it.values[it.tokens // 2].abs()
        apart = by_j.sum(-1) + 3 * (level + middle) + middle + level + off / unit
    return reweighted(w, tau) + unit * apart


def line_of(it: Interpolant) -> tuple[float, float] | None:
    """The common difference of values that lie on a line, and how far they are from it.

    None where they do not, to a few units in the last place.
    """
    values = it.values.detach().cpu()
    if len(values) < 2:
        return 0.0, 0.0
    slope = float(values[-1] - values[0]) / (len(values) - 1)
    steps = torch.arange(len(values), dtype=torch.float64) - len(values) // 2
    off = float((values[len(values) // 2] + slope * steps - values).abs().max())
    unit = math.ulp(it.size)
    return (slope, off + 2 * unit) if off <= _ON_A_LINE * unit else None


def significant_tokens(it: Interpolant, unit: float, per_cell: int = 2) -> float:
    """How many tokens can have a weight above ``unit``: those whose sums can round."""
    return max(
        float((w.tilted / unit).clamp(max=1).sum(-1).max())
        for w in local_weights(it, it.grid.mesh(per_cell))
    )
