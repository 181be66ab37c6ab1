r"""The rounding model: formats, one operation, sums in any order.

A format of p significant bits has the unit roundoff u = 2^{-p}. One operation x ∘ y returns

.. math:: \mathrm{fl}(x ∘ y) = (x ∘ y)(1 + δ) + ξ, \qquad |δ| \le U,\ |ξ| \le λ,\ δξ = 0 .

**U.** U = u where operations round to nearest. U = 2u where they return either neighbour: nearest,
towards zero (as tensor cores do) or any mixture. Which of the two is meant is said where it is
used.

**λ.** What an underflow may lose. Formats with the exponents of float32 or wider (bfloat16,
float32, float64) may be flushed to zero: λ is the smallest normal number. Narrow ones (float16,
float8) keep their subnormals: λ is half the smallest of them when rounded to nearest, all of it
otherwise.

**Steps.** A term that passes k operations is multiplied by a factor within [(1-U)^k, (1+U)^k]; k
is its number of *steps*. With l = -log(1-U) >= log(1+U), the factor lies in [e^{-kl}, e^{kl}], so
that steps of several kinds add up in the exponent.

**Sums.** A sum of n terms in any order of additions costs each term at most n - 1 steps. Matrix
units add r >= 1 terms t_i and an accumulator t_0 at once: they align all of them to the largest,
cut each off (an error of at most U max|t| apiece) and round the result once more. Hence

.. math:: |\hat t - Σ t_i| \le ((r+1) U + U + (r+1) U^2) Σ |t_i| \le ((1+U)^{r+2} - 1) Σ |t_i| ,

and so r + 2 steps for r terms; terms that are zero are cut off without error. Units take four
products or more at once, so a chain of ceil(n/4) of them costs at most n + 2 ceil(n/4)
(:func:`sum_steps`), and one whose terms are sparse, m of n, at most m + 2 min(m, ceil(n/4)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.errors import DtypeError
from iceform.validation import dtype_name

_WIDTH = 4  # products that the narrowest matrix unit (V100's) adds at once
_WIDE = 2.0**-125  # formats that reach below this have the exponents of float32
_FORMATS = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


@dataclass(frozen=True)
class Format:
    """A floating-point format, as far as the rounding model needs to know it.

    Attributes
    ----------
    dtype
        Its name in torch.
    u
        The unit roundoff, half the distance from 1 to the next number.
    normal, largest
        The least normal number, and the largest finite one.

    Examples
    --------
    >>> single = format_of(torch.float32)
    >>> single.name, single.u == 2.0**-24, single.flushes
    ('float32', True, True)
    """

    dtype: torch.dtype
    u: float  # half the distance from 1 to the next number
    normal: float  # the smallest normal number
    largest: float

    @property
    def name(self) -> str:
        """The dtype as people say it."""
        return dtype_name(self.dtype)

    @property
    def faithful(self) -> float:
        """u of operations that return either neighbour."""
        return 2 * self.u

    @property
    def subnormal(self) -> float:
        """The smallest positive number."""
        return 2 * self.u * self.normal

    @property
    def flushes(self) -> bool:
        """Whether subnormal numbers may be taken for zero."""
        return self.normal < _WIDE

    @property
    def underflow(self) -> float:
        """λ of operations that return either neighbour."""
        return self.normal if self.flushes else self.subnormal

    @property
    def rounded_underflow(self) -> float:
        """λ of one rounding to nearest."""
        return self.normal if self.flushes else self.subnormal / 2


def format_of(dtype: object) -> Format:
    """The format of a dtype of torch.

    Raises
    ------
    DtypeError
        If it is no floating-point dtype.

    Examples
    --------
    >>> format_of(torch.float16).largest
    65504.0
    """
    if dtype not in _FORMATS:
        names = ", ".join(dtype_name(known) for known in _FORMATS)
        raise DtypeError(f"rounding is modelled for {names}, got {dtype!r}; convert to one of them")
    assert isinstance(dtype, torch.dtype)
    info = torch.finfo(dtype)
    return Format(dtype, float(info.eps) / 2, float(info.smallest_normal), float(info.max))


def sum_steps(n: int) -> int:
    """How many steps a term of a sum of n terms goes through at most.

    That is for any order of additions, and for any adder of the module's docstring.

    Examples
    --------
    >>> sum_steps(8)
    12
    """
    return n + 2 * math.ceil(n / _WIDTH)


def fused_steps(present: Tensor, n: int) -> Tensor:
    """The same as :func:`sum_steps` where only ``present`` of the n terms are not zero.

    Examples
    --------
    >>> fused_steps(torch.tensor([1, 8]), 8)
    tensor([ 3, 12])
    """
    return present + 2 * present.clamp(max=math.ceil(n / _WIDTH))


def log_steps(unit: float) -> float:
    """The most that one step adds to the logarithm of a factor: l = -log(1 - U).

    Examples
    --------
    >>> round(log_steps(0.5), 4)
    0.6931
    """
    return math.inf if unit >= 1 else -math.log1p(-unit)


def compounded(steps: float, unit: float) -> float:
    """What a factor of k steps may be off by, relative to itself: e^{kl} - 1.

    Examples
    --------
    >>> 12 * 2.0**-24 < compounded(12, 2.0**-24) < 12.001 * 2.0**-24
    True
    """
    exponent = steps * log_steps(unit)
    return math.expm1(exponent) if exponent < math.log(torch.finfo(torch.float64).max) else math.inf
