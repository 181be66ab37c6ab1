r"""What floating point does inside a stock block, as multiples of the unit roundoff u.

**Norm.** With epsilon e = 2^80 and weight 2^40 a LayerNorm or RMSNorm is the identity: for
variances below 2^26 (u e in float64) the root is 2^40 exactly, and both scalings are exact. Where
tokens hold larger numbers e is larger (:func:`epsilon`): a token that a norm shrinks by one part
in 2^20, hundreds of times, is read amiss. What remains is the mean. Every feature is kept twice, as
z and as -z, so the mean of a token is 0 but for rounding, and features are read as (z - (-z))/2, in
which any mean cancels:

.. math:: \tfrac12((z - \mu)(1 + \theta_1) + (z + \mu)(1 + \theta_2)) = z + \theta (|z| + |\mu|).

So one read of one feature by a linear map costs the norm's subtraction (NORM units: one for the
subtraction, one in case a kernel's root or scaling is off by a unit), a product and a sum of two:
READ units, relative to |z| + |mu|. |mu| is at most (D + 2) u mean|z| for D features in any order
of summation, so u |mu| is of second order (accounts that do not carry it by name bound every
number with a slack of 2^-10 or more, u times which is far above it).

**Sums.** A sum of k nonzero products in any order, with or without fused multiply-adds, is off by
at most k u/(1 - k u) times the sum of their absolute values; adding exact zeros is exact, so only
nonzero weights count.

**Softmax.** A weight exp(s - m)/sum: the subtraction rounds |s - m|, the exponential is off by
EXP units (within one ulp, two units, doubled for safety; float32 in torch's fused attention on
CPUs uses an exponential documented as good to 20 ulp, 40 units), the sum of positive terms and
the division by it (or the product with its reciprocal) by their own.

**What is common to all heads** of a layer is the norm's output: every head reads the same numbers.
Where heads cancel, its rounding is that of a neighbouring input and is not amplified.

Products of errors are covered by ``SECOND_ORDER``, as long as the relative errors that meet stay
below ``LARGEST``; beyond it nothing is certified: :func:`inflate` gives infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from iceform.arithmetic import exactly
from iceform.arithmetic.units import EXP_UNDERFLOW, EXP_UNITS, next_power_of_two
from iceform.errors import CapacityError, PrecisionError
from iceform.validation import check_choice, dtype_name, unit_roundoff

EPSILON = 2.0**80  # of the norms; the weight is its root
_LARGEST_EPSILON = {torch.float64: 2.0**400, torch.float32: 2.0**126}
NORM = 2  # units
READ = NORM + 2  # units: norm, product, sum of the two mirrored features
LARGEST = 2.0**-7  # relative errors that may meet
SECOND_ORDER = 1 + 4 * LARGEST
OFF = float(next_power_of_two(int(EXP_UNDERFLOW)))  # logits below: e^-OFF is 0
_EXP_FUSED_SINGLE = 40.0  # units: float32 in fused attention
_DTYPES = (torch.float64, torch.float32)
ATTENTION = ("any", "eager", "sdpa")


@dataclass(frozen=True)
class KernelRounding:
    """A dtype as the stock kernels compute in it; ``attention`` "any" holds for both kinds."""

    dtype: torch.dtype
    attention: str = "any"

    def __post_init__(self) -> None:
        check_choice("attention", self.attention, ATTENTION)
        if self.dtype not in _DTYPES:
            name = dtype_name(self.dtype)
            raise PrecisionError(
                f"nothing is certified in {name}: its logits carry 11 bits or fewer, and pairs of "
                "heads cancel; use float64 or float32"
            )

    @property
    def u(self) -> float:
        """The unit roundoff."""
        return unit_roundoff(self.dtype)

    @property
    def exp(self) -> float:
        """Units by which an exponential may be off."""
        single = self.dtype == torch.float32 and self.attention != "eager"
        return _EXP_FUSED_SINGLE if single else EXP_UNITS

    @property
    def backend(self) -> str:
        """The attention it holds for."""
        return "eager and sdpa" if self.attention == "any" else self.attention

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a kernel must do for the certificate to hold for it."""
        name = dtype_name(self.dtype)
        return (
            f"exp is within {exactly(self.exp / 2)} ulp of exact ({self.backend})",
            f"matrix products round as {name}, in any order of summation (no TF32, no bf16)",
        )


def inflate(relative: float) -> float:
    """A relative error with the products of its parts; infinite where those are not small."""
    return relative * SECOND_ORDER if relative <= LARGEST else math.inf


def epsilon(largest: float, dtype: torch.dtype) -> float:
    """LayerNorm's epsilon: a power of four, at least 2^80, that swallows the variance of features.

    ``variance + epsilon`` then rounds to ``epsilon`` for every row of numbers up to ``largest``.
    """
    least = 2 * largest**2 / unit_roundoff(dtype)
    found = max(EPSILON, 2.0 ** (2 * math.ceil(math.log2(least) / 2)))
    if found > _LARGEST_EPSILON[dtype]:
        name = dtype_name(dtype)
        raise CapacityError(
            f"tokens that hold {largest:.4g} need a norm with epsilon {found:.4g}, which {name} "
            "does not hold; scale the data, or take narrower ranges"
        )
    return found
