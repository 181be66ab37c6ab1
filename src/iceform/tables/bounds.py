r"""The inequalities behind softmax interpolation, one function each.

Notation. Tokens sit at L_k = a + k h, k = -g .. P + g. A query z in [a, b] is u = (z - a)/h in
cells and gets the weights p_k = softmax_k(-c (u - k)^2). Lengths are in units of the spacing h
unless said otherwise; c is the dimensionless sharpness (inverse temperature times h^2) and
q = exp(-pi^2 / c) is the nome of the lattice sum, so everything below decays in q or in e^{-c g^2}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from iceform.errors import BoundError, PrecisionError

# Terms of a theta series past this index are below the smallest positive double for every c < 90:
# pi^2 m^2 / c > 745.
_SERIES = 90
_SHARPEST = 2000.0  # e^{-c/4} is still a normal double


def _check_sharpness(c: float) -> None:
    if not (math.isfinite(c) and c > 0):
        raise BoundError(f"sharpness must be positive and finite, got {c!r}")


def nome(c: float) -> float:
    """q = exp(-pi^2/c): the first Fourier coefficient of the lattice sum, relative to its mean."""
    _check_sharpness(c)
    return math.exp(-(math.pi**2) / c)


def aliasing(c: float) -> float:
    r"""Error of the infinite lattice's mean, from the logarithmic derivative of theta_3.

    .. math:: |\sum_k p_k k - u| \le (2\pi/c)\, q / ((1-q)(1-q^2)).
    """
    q = nome(c)
    return 2 * math.pi / c * q / ((1 - q) * (1 - q * q))


def lattice_sum(c: float) -> float:
    r"""Lower bound of the whole lattice's sum: :math:`\sqrt{\pi/c}\,(1 - 2q)` (alternating theta).

    For sharp lookups (c > pi^2 / ln 4 or so) that is negative; the nearest node alone gives
    e^{-c/4}, which is then the better bound.
    """
    _check_sharpness(c)
    if c > _SHARPEST:
        raise BoundError(
            f"lattice sums underflow beyond sharpness {_SHARPEST:g}, got {c:.6g}; use hard_error"
        )
    return max(math.sqrt(math.pi / c) * (1 - 2 * nome(c)), math.exp(-c / 4))


def tail(c: float, x: float) -> float:
    r"""Bound of :math:`\sum_{j \ge 0} e^{-c (x + j)^2}` for x > 0."""
    _check_sharpness(c)
    if not (math.isfinite(x) and x > 0):
        raise BoundError(f"a tail starts at a positive finite distance, got {x!r}")
    first = math.exp(-c * x * x)
    geometric = first / -math.expm1(-2 * c * x)
    integral = first + math.sqrt(math.pi / c) * math.erfc(math.sqrt(c) * x) / 2
    return min(geometric, integral)


def mass_beyond(c: float, guards: int, cells: int) -> float:
    """r0: share of the lattice's sum that lies beyond the outermost guards, both sides."""
    outer = guards + 1
    return (tail(c, outer) + tail(c, outer + cells / 2)) / lattice_sum(c)


def moment_beyond(c: float, guards: int) -> float:
    """r1: first moment beyond the guards. The two sides have opposite signs: the larger counts."""
    outer = guards + 1
    peak = max(outer, 1 / math.sqrt(2 * c))
    first = peak * math.exp(-c * peak * peak) + math.exp(-c * outer * outer) / (2 * c)
    return first / lattice_sum(c)


def linear_reproduction(c: float, guards: int, cells: int) -> float:
    """How far a softmax look-up of the identity is from the identity, in units of h.

    |sum_k p_k L_k - z| <= h (b + r1)/(1 - r0) for z in [a, b]. Infinite where r0 >= 1, that is
    where the guards are too few for the theorem to say anything.
    """
    outside = mass_beyond(c, guards, cells)
    if outside >= 1:
        return math.inf
    return (aliasing(c) + moment_beyond(c, guards)) / (1 - outside)


def second_moment(c: float, guards: int, cells: int) -> float:
    r"""V with :math:`\sum_k p_k (k-u)^2 \le V`, by Poisson summation."""
    q = nome(c)
    series = math.fsum(m * m * q ** (m * m) for m in range(1, _SERIES))
    return _moment((1 / (2 * c) + 2 * math.pi**2 / c**2 * series), c, guards, cells)


def fourth_moment(c: float, guards: int, cells: int) -> float:
    r"""Bound of :math:`\sum_k p_k (k-u)^4`, by Poisson summation."""
    q, pi2 = nome(c), math.pi**2
    base = 3 / (4 * c * c)
    series = math.fsum(
        q ** (m * m) * abs(base - 3 * pi2 * m**2 / c**3 + pi2**2 * m**4 / c**4)
        for m in range(1, _SERIES)
    )
    return _moment(base + 2 * series, c, guards, cells)


def _moment(whole_lattice: float, c: float, guards: int, cells: int) -> float:
    """A bound for the truncated lattice from ``sqrt(c/pi)`` times the whole lattice's sum."""
    share = lattice_sum(c) * math.sqrt(c / math.pi)
    outside = mass_beyond(c, guards, cells)
    return math.inf if outside >= 1 else whole_lattice / share / (1 - outside)


def sampled_error(
    c: float, guards: int, cells: int, spacing: float, first: float, second: float
) -> float:
    """Error with unfitted values v_k = f(L_k), given sup|f'| and sup|f''| over the tokens' hull.

    Taylor at z: f' times the identity's error plus f''/2 times the second moment, about
    f'' h^2/(4c).
    """
    linear = linear_reproduction(c, guards, cells)
    return first * spacing * linear + second / 2 * spacing**2 * second_moment(c, guards, cells)


def hard_tail(c: float, m: int) -> float:
    r"""T_m: mass on nodes more than m cells away, at most
    :math:`\sum_{k \ge m} e^{-c k^2} + \sum_{k > m} e^{-c k (k-1)}`.
    """
    _check_sharpness(c)
    # The nearest node is at distance r <= 1/2. Nodes r + k on its own side have logits lower by
    # c (k^2 + 2 r k) >= c k^2, nodes k - r on the other side by c (k^2 - 2 r k) >= c k (k-1).
    own = _sum_of_exponentials(lambda k: c * k * k, m)
    other = _sum_of_exponentials(lambda k: c * k * (k - 1), m + 1)
    return own + other


def _sum_of_exponentials(exponent: Callable[[int], float], start: int) -> float:
    """sum_{k >= start} e^{-exponent(k)} for a convex exponent with exponent(k) -> infinity."""
    total, k = 0.0, start
    while True:
        total += math.exp(-exponent(k))
        step = exponent(k + 1) - exponent(k)
        # The exponent's steps grow, so what is left is below a geometric series.
        rest = math.exp(-exponent(k + 1)) / -math.expm1(-step) if step > 0 else math.inf
        if rest <= 1e-17 * total:
            return total + rest
        k += 1


def hard_error(modulus: list[float], bound: float, c: float) -> float:
    """min over m of omega_f(m h) + 2 B_f T_m, with ``modulus[m-1] = omega_f(m h)``."""
    return min(w + 2 * bound * hard_tail(c, m) for m, w in enumerate(modulus, start=1))


def hard_pair_error(modulus: list[float], bound: float, c: float) -> float:
    """A sharper bound for sharp look-ups, with ``modulus[j-1] = omega_f(j h / n)``, n even.

    The nearest node, at distance r h <= h/2, and its neighbour, at (1 - r) h, share all but T_1 of
    the mass, the neighbour at most sigma(-c (1 - 2r)): the error is at most
    max_r (1 - p) omega(r h) + p omega((1 - r) h) + 2 B_f T_1, about omega_f(h/2).
    """
    _check_sharpness(c)
    n = len(modulus)
    worst = 0.0
    for j in range(n // 2):
        nearest, farthest = modulus[j], modulus[n - 1 - j]  # r in [j/n, (j+1)/n]
        odds = math.exp(-c * (1 - 2 * (j + 1) / n))
        share = odds / (1 + odds)
        worst = max(worst, nearest + share * (farthest - nearest))
    return worst + 2 * bound * hard_tail(c, 1)


def hard_identity_error(c: float, spacing: float) -> float:
    """h/2 for the identity on [L_0, L_P] as soon as beta >= 1/h^2, that is c >= 1."""
    _check_sharpness(c)
    if c < 1:
        raise BoundError(f"the h/2 bound needs sharpness c >= 1, got {c}")
    return spacing / 2


def total_variation(delta: float) -> float:
    """Half the 1-norm by which a softmax moves when each logit moves by at most delta. Sharp."""
    return math.tanh(delta / 2)


def rivals(c: float, spacing: float, reach: float, samples: int, queries: int) -> float:
    """ln((n-1) e^{beta reach^2} (1 + sqrt(pi/c)) + queries): what competes with one's own block.

    ``reach`` bounds |z - center|. Another block's mass is up to e^{beta z^2} times a Gaussian sum,
    since max_L (2 L z - L^2) = z^2. Computed without overflow.
    """
    _check_sharpness(c)
    beta_reach = c * (reach / spacing) ** 2
    parts = [math.log(queries)] if queries else []
    if samples > 1:
        parts.append(math.log(samples - 1) + beta_reach + math.log1p(math.sqrt(math.pi / c)))
    if not parts:
        return -math.inf
    top = max(parts)
    return top + math.log(math.fsum(math.exp(p - top) for p in parts))


def margin(
    c: float, spacing: float, reach: float, samples: int, queries: int, target: float
) -> float:
    """The margin M that keeps the mass outside a sample's own block below ``target``.

    The own block holds at least e^{-c/4}: some node is within h/2 of z.
    """
    return c / 4 + rivals(c, spacing, reach, samples, queries) - math.log(target)


def leak(
    c: float, spacing: float, reach: float, samples: int, queries: int, margin_: float
) -> float:
    """Mass outside a sample's own block at margin M: the inverse of :func:`margin`."""
    return math.exp(c / 4 + rivals(c, spacing, reach, samples, queries) - margin_)


@dataclass(frozen=True)
class SpectralRule:
    """Sharpness and guards for which the identity's error is at most ``delta`` cells."""

    sharpness: float
    guards: int
    delta: float


_MOST_GUARDS = 64  # e^{-c g^2} with c solving the aliasing equation needs g ~ ln(1/delta)/pi


def spectral_rule(delta: float, cells: int = 1) -> SpectralRule:
    """Solve aliasing(c) = 0.45 delta, then take the least g with the whole bound <= delta.

    0.45 leaves the truncation the larger half; any share in (0.3, 0.6) gives the same g.
    """
    if not 0 < delta < 1:
        raise PrecisionError(f"delta must lie between 0 and 1 cells, got {delta!r}")
    # aliasing() increases in c on this bracket, from below 1e-300 to above 1.
    small, large = 1e-2, 8.0
    for _ in range(200):
        middle = 0.5 * (small + large)
        small, large = (middle, large) if aliasing(middle) < 0.45 * delta else (small, middle)
    for guards in range(_MOST_GUARDS):
        if linear_reproduction(small, guards, cells) <= delta:
            return SpectralRule(small, guards, delta)
    raise PrecisionError(f"no number of guards up to {_MOST_GUARDS} reaches delta = {delta:.3g}")
