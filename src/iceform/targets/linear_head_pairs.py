r"""Pairs of heads that are linear: z as a combination of exponentials.

A head whose logits are t z_i, beside a null token that outweighs them, returns a multiple of
mean(x_i e^{t z_i}) (see ``linear_descent``). So a linear function of z is a combination of heads
at t = +-delta, +-2 delta, ..., +-m delta:

.. math:: \sum_{j=1}^m a_j \sinh(j \delta z) = z + R(z).

The exact weights are those of central differences of order 2 m,

.. math:: a_j = \frac{2 (-1)^{j+1}}{j \delta} \frac{(m!)^2}{(m-j)!\,(m+j)!},

for which the moments M_k = sum_j a_j (j delta)^{2k+1} are 1 for k = 0 and 0 for 0 < k < m. In a
file they are floating-point numbers, so their moments are off by defects D_k = M_k - [k = 0],
which are computed here in rational arithmetic. By Taylor's theorem with Lagrange's remainder

.. math:: |R(z)| \le \sum_{k<m} \frac{|D_k|\,|z|^{2k+1}}{(2k+1)!}
    + \sum_j |a_j| \frac{(j\delta|z|)^{2m+1}}{(2m+1)!} \cosh(j\delta z).

The last sum treats every term by itself. For the exact weights the combination is the derivative
at the node 0 of the polynomial through t = -m delta, ..., m delta of sinh(t z), whose error is
sinh's derivative of order 2m+1 somewhere between the nodes times the product of the distances
to the other nodes, so at most

.. math:: \frac{(m!)^2 \delta^{2m}}{(2m+1)!} |z|^{2m+1} \cosh(m\delta z),

and what rounding the weights adds to the tail is at most the first form with |a_j - exact| in
place of |a_j|. Both are computed and the smaller is used.

**Even weights.** Central differences are best at z = 0 and pay for it by sum_j |a_j|, which
multiplies rounding. In float32 weights that are off by 2e-7 all over [-1, 1] do better by a factor
of two. They were found by linear programming and are listed in ``even_weights.json``; nothing is
taken from how they were found. With R'' bounded by sum_j |a_j| (j delta)^2 sinh(j delta z),

.. math:: \sup_{[0, z]} |R| \le \max_i |R(i h)| + \frac{h^2}{8} \sup_{[0, z]} |R''|.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from iceform import tuning
from iceform.arithmetic.units import OUTWARD, UNIT
from iceform.errors import BoundError
from iceform.targets.rounding import KernelRounding, inflate
from iceform.validation import check_size, unit_roundoff

_LEAK_BITS = {torch.float64: 46, torch.float32: 24}
_BITS = 3  # of delta
_SINH = 64 * UNIT  # relative to |a_j| (1 + t z) cosh(t z): what float64 does to a sample
_LISTED = json.loads(Path(__file__).with_name("even_weights.json").read_bytes())["by pairs"]
# By the number of pairs: the spacing for |z| <= 1, and the weights.
_EVEN = {int(pairs): (said["spacing"], said["weights"]) for pairs, said in _LISTED.items()}
_OVERFLOWS = math.log(sys.float_info.max)
_FAR = 2.0**20  # whose powers are still numbers; nothing is certified from there on


def central_differences(count: int, order: int) -> tuple[Fraction, ...]:
    """Of the first or second derivative at 0, what (f(j) -+ f(-j))/2 count, j = 1, ..., count.

    >>> central_differences(2, 1)
    (Fraction(4, 3), Fraction(-1, 6))
    """
    m = count
    middle = Fraction(math.factorial(m)) ** 2
    return tuple(
        (-1) ** (j + 1) * 2 * middle / (math.factorial(m - j) * math.factorial(m + j) * j**order)
        for j in range(1, m + 1)
    )


@dataclass(frozen=True)
class LinearHeadPairs:
    """m pairs of heads at +-j delta.

    Attributes
    ----------
    count
        m.
    delta
        With at most ``_BITS`` significant bits, so that j delta is exact in every dtype.
    dtype
        Of the weights a_j.
    even
        Whether they are the listed ones, off by as much everywhere; else central differences.
    """

    count: int
    delta: float
    dtype: torch.dtype
    even: bool = False

    def __post_init__(self) -> None:
        check_size("pairs", self.count)
        if self.even and self.count not in _EVEN:
            known = ", ".join(map(str, _EVEN))
            raise BoundError(f"even weights are listed for {known} pairs, not for {self.count}")
        mantissa, _ = math.frexp(self.delta)
        if not (self.delta > 0 and (mantissa * 2**_BITS).is_integer()):
            raise BoundError(f"delta must have at most {_BITS} bits, got {self.delta!r}")

    @classmethod
    def tuned(
        cls, reach: float, most: int, dtype: torch.dtype, typical: float = tuning.PAIRS_NOISE
    ) -> LinearHeadPairs:
        """At most ``most`` pairs whose remainder and amplified noise together are least.

        The noise is ``typical`` units beside those of an exponential.
        """
        check_size("pairs", most)
        if not 1 / _FAR <= reach <= _FAR:
            raise BoundError(
                f"pairs of heads are for |z| up to {1 / _FAR:.2g} at least and {_FAR:.2g} at most, "
                f"got {reach!r}; scale the data"
            )
        return _best(
            reach, most, dtype, (KernelRounding(dtype).exp + typical) * unit_roundoff(dtype)
        )

    @property
    def leak_bits(self) -> int:
        """K: null tokens outweigh a sample by 2^K."""
        return _LEAK_BITS[self.dtype]

    @property
    def null_logit(self) -> float:
        """K ln 2, of a null token beside one sample."""
        return self.leak_bits * math.log(2)

    @cached_property
    def exact(self) -> tuple[Fraction, ...]:
        """a_1, ..., a_m as rational numbers."""
        return tuple(a / Fraction(self.delta) for a in central_differences(self.count, 1))

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """a_1, ..., a_m in the dtype."""
        kind = np.float32 if self.dtype == torch.float32 else np.float64
        if self.even:
            spacing, listed = _EVEN[self.count]
            return tuple(float(kind(a * spacing / self.delta)) for a in listed)
        return tuple(float(kind(float(a))) for a in self.exact)

    @property
    def ticks(self) -> list[tuple[int, int]]:
        """Every head's j and sign; a weight of 0 has none."""
        return [(j, s) for j, a in enumerate(self.weights, 1) if a for s in (1, -1)]

    @cached_property
    def defects(self) -> tuple[float, ...]:
        """|D_0|, ..., |D_{m-1}|, rounded up."""
        stored = [Fraction(a) for a in self.weights]
        ticks = [j * Fraction(self.delta) for j in range(1, self.count + 1)]
        sums = [
            sum((a * t ** (2 * k + 1) for a, t in zip(stored, ticks, strict=True)), Fraction(0))
            for k in range(self.count)
        ]
        return tuple(float(abs(s - (k == 0))) * OUTWARD for k, s in enumerate(sums))

    def remainder(self, z: float) -> float:
        """A bound of |R| on [-z, z]; it increases with z."""
        if not z < _FAR:
            return math.inf
        if self.even:
            return _sampled(self, math.ceil(z * tuning.PAIRS_STEPS) / tuning.PAIRS_STEPS)
        low = sum(d * z ** (2 * k + 1) / math.factorial(2 * k + 1)
                  for k, d in enumerate(self.defects))  # fmt: skip
        off = [abs(float(Fraction(a) - e)) for a, e in zip(self.weights, self.exact, strict=True)]
        alone = self._tail([abs(a) for a in self.weights], z)
        return (low + min(alone, self._at_node(z) + self._tail(off, z))) * OUTWARD

    def _tail(self, sizes: list[float], z: float) -> float:
        """sum_j sizes_j (j delta z)^{2m+1} cosh(j delta z) / (2m+1)!."""
        order = 2 * self.count + 1
        return math.fsum(
            a * (j * self.delta * z) ** order * _cosh(j * self.delta * z) / math.factorial(order)
            for j, a in enumerate(sizes, 1)
        )

    def _at_node(self, z: float) -> float:
        m = self.count
        factor = math.factorial(m) ** 2 / math.factorial(2 * m + 1)
        return factor * (self.delta * z) ** (2 * m) * z * _cosh(m * self.delta * z)

    def amplitude(self, z: float, power: int = 0) -> float:
        """sum_j |a_j| (j delta)^power cosh(j delta z): what the heads' outputs add up from."""
        ticks = [j * self.delta for j in range(1, self.count + 1)]
        return OUTWARD * math.fsum(
            abs(a) * t**power * _cosh(t * z) for a, t in zip(self.weights, ticks, strict=True)
        )

    def mean_amplitude(self, z: float, rms: float, power: int = 0) -> float:
        """The root mean square of the same over numbers up to z whose own is at most rms.

        cosh(sqrt(s)) is a power series in s = z^2 with positive coefficients, and so is the square
        of the sum: it is convex in s, and its mean lies below the chord between 0 and z^2.
        """
        if not z > 0:
            return self.amplitude(0.0, power)
        low, high = self.amplitude(0.0, power), self.amplitude(z, power)
        low, high = low * low, high * high
        return OUTWARD * math.sqrt(low + (high - low) * (min(rms, z) / z) ** 2)

    def heaviest(self, ratio: float, z: float) -> float:
        """A bound of l(t) = ratio (mean e^{t z_i} + 1/n), for all heads and |z_i| <= z."""
        return 2 * ratio * _cosh(self.count * self.delta * z) * 2

    def leak(self, ratio: float, samples: float, z: float, rms: float) -> float:
        """What the normaliser 1 + l(t) does to the combination: first and second order.

        The first is the combination applied to e^{t (z_i + z_k)}, the second is amplified.
        """
        first = 2 * rms + self.remainder(2 * z) + (rms + self.remainder(z)) / samples
        heaviest = self.heaviest(ratio, z) * max(1.0, 1 / samples)
        return ratio * first + self.amplitude(z) * heaviest * heaviest

    def noise(self, unit: float, fixed: float, own: float, z: float, rms: float) -> float:
        """Root mean square of sum_j |a_j| cosh(j delta z_i) nu_j, nu_j = fixed + own j delta."""
        largest = (fixed + own * self.count * self.delta) * unit
        grown = inflate(largest) / largest
        return grown * unit * (
            fixed * self.mean_amplitude(z, rms) + own * self.mean_amplitude(z, rms, power=1)
        )  # fmt: skip


@lru_cache(maxsize=64)
def _best(reach: float, most: int, dtype: torch.dtype, noise: float) -> LinearHeadPairs:
    u = unit_roundoff(dtype)
    top = math.ceil(math.log2(4 / reach))
    sizes = [k * 2.0 ** (top - halved - _BITS) for halved in range(tuning.PAIRS_HALVINGS)
             for k in range(2 ** (_BITS - 1), 2**_BITS)]  # fmt: skip

    def cost(p: LinearHeadPairs) -> float:
        return p.remainder(reach) + (noise + 2 * p.count * u) * p.amplitude(reach / 2)

    tried = [LinearHeadPairs(m, d, dtype) for m in range(1, most + 1) for d in sizes]
    if dtype == torch.float32:
        tried += [
            LinearHeadPairs(m, _short(_EVEN[m][0] / reach), dtype, True) for m in _EVEN if m <= most
        ]
    return min(tried, key=cost)


@lru_cache(maxsize=512)
def _sampled(p: LinearHeadPairs, z: float) -> float:
    """sup |R| on [0, z], from samples and a bound of R'' between them."""
    if not z > 0:
        return 0.0
    if p.count * p.delta * z >= _OVERFLOWS:
        return math.inf
    ticks = p.delta * np.arange(1, p.count + 1)
    sizes, at = np.abs(p.weights), np.linspace(0.0, z, tuning.PAIRS_SAMPLES + 1)
    seen = np.abs(np.sinh(np.outer(at, ticks)) @ np.array(p.weights) - at).max()
    grown = sizes * np.cosh(ticks * z)
    between = (z / tuning.PAIRS_SAMPLES) ** 2 / 8 * (grown * ticks**2).sum()
    rounded = _SINH * ((grown * (1 + ticks * z)).sum() + z)
    return float(seen + between + rounded) * OUTWARD


def _short(value: float) -> float:
    """The largest number with ``_BITS`` bits that is no larger."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * 2**_BITS) / 2**_BITS, exponent)


def _cosh(x: float) -> float:
    return math.cosh(x) if x < _OVERFLOWS else math.inf
