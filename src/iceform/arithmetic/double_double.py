"""Exact scaling, and numbers of about 106 bits.

**Powers of two.** Products with them are exact wherever the result is a normal number. A factor
:math:`2^e` is made from its bits, since library functions for powers need not be exact. Exponents
beyond those of one float64 are taken in two factors.

**Pairs**: unevaluated sums hi + lo of two float64 with |lo| <= ulp(hi)/2.
Error-free transformations: two_sum (Knuth) and two_prod (Dekker's product by Veltkamp's splitting,
as tensors have no fused multiply-add) return a ∘ b = hi + lo exactly, unless 2^27 a overflows or
the low part underflows (products below 2^-969). An operation on pairs is then off by at most a few
2^-104 of its result (sums: of the sum of the magnitudes), see Joldes, Muller and Popescu, *Tight
and rigorous error bounds for basic building blocks of double-word arithmetic*, 2017; `UNIT` is
a cover for all of them here.

exp(x) = 2^k exp(r)^512 with k = round(x / ln 2) and r = (x - k ln 2) / 2^9, ln 2 in three parts:
a Taylor polynomial of degree 9 for expm1(r) (|r| < 7e-4: remainder < 1e-38), nine doublings
expm1(2r) = expm1(r)(2 + expm1(r)), and one addition of 1. Results below 1e-290 lose bits of their
low part to underflow, an absolute error of 2^-1074.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "SUMMED", "UNIT", "DoubleDouble", "add", "div", "dot", "exp", "exponent_of", "mul", "pair",
    "power_of_two", "sub", "sum_last", "times_power", "two_prod", "two_sum",
]  # fmt: skip

_BIAS, _BITS = sys.float_info.max_exp - 1, sys.float_info.mant_dig - 1


def exponent_of(x: Tensor) -> Tensor:
    """The e with 2^(e-1) <= |x| < 2^e, int64; 0 for 0.

    Examples
    --------
    >>> exponent_of(torch.tensor([1.0, 0.75, 0.0]))
    tensor([1, 0, 0])
    """
    exponent: Tensor = torch.frexp(x).exponent.long()
    return exponent


def power_of_two(exponent: Tensor) -> Tensor:
    """2^e for whole numbers -1022 <= e <= 1023.

    Examples
    --------
    >>> power_of_two(torch.tensor([-1, 10]))
    tensor([5.0000e-01, 1.0240e+03], dtype=torch.float64)
    """
    return ((exponent + _BIAS) << _BITS).view(torch.float64)


def times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """x 2^e for whole numbers |e| <= 2044, rounded where it underflows.

    Examples
    --------
    >>> times_power(torch.tensor([3.0]).double(), torch.tensor([2]))
    tensor([12.], dtype=torch.float64)
    """
    first = exponent.clamp(-_BIAS + 1, _BIAS)
    return x * power_of_two(first) * power_of_two(exponent - first)


UNIT = 2.0**-98  # of the result of one operation; of e^x where that is above 1e-290
SUMMED = UNIT  # of the sum of magnitudes: products added by halves, up to 2^60 of them

_SPLITTER = 2.0 ** (_BITS // 2 + 1) + 1
_HALVINGS = 9
_DEGREE = 9
# ln 2 in three parts, to 1.4e-37.
_LN2 = (
    float.fromhex("0x1.62e42feep-1"),
    float.fromhex("0x1.a39ef3578p-33"),
    float.fromhex("0x1.3c7673007e5edp-69"),
)
_FLOOR = -740.0  # exp of less is below 1e-321 and counts as zero


class DoubleDouble(NamedTuple):
    """The number hi + lo."""

    hi: Tensor
    lo: Tensor

    def span(self, start: int, stop: int) -> DoubleDouble:
        """A stretch of the last axis."""
        return DoubleDouble(self.hi[..., start:stop], self.lo[..., start:stop])

    def double(self) -> Tensor:
        """The nearest float64."""
        return self.hi + self.lo


def pair(x: Tensor) -> DoubleDouble:
    """A float64 tensor as pairs."""
    x = x.double()
    return DoubleDouble(x, torch.zeros_like(x))


def two_sum(a: Tensor, b: Tensor) -> DoubleDouble:
    """A sum and its rounding error."""
    total = a + b
    back = total - a
    return DoubleDouble(total, (a - (total - back)) + (b - back))


def _quick_two_sum(a: Tensor, b: Tensor) -> DoubleDouble:
    total = a + b
    return DoubleDouble(total, b - (total - a))


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def two_prod(a: Tensor, b: Tensor) -> DoubleDouble:
    """A product and its rounding error."""
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return DoubleDouble(product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2)


def add(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """x + y."""
    high, low = two_sum(x.hi, y.hi), two_sum(x.lo, y.lo)
    middle = _quick_two_sum(high.hi, high.lo + low.hi)
    return _quick_two_sum(middle.hi, middle.lo + low.lo)


def sub(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """x - y."""
    return add(x, DoubleDouble(-y.hi, -y.lo))


def mul(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """x y."""
    product = two_prod(x.hi, y.hi)
    return _quick_two_sum(product.hi, product.lo + (x.hi * y.lo + x.lo * y.hi))


def div(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """x / y: three quotients, each of what the last left over.

    y is brought near 1 by a power of two, so that products with it lose nothing that counts.
    """
    power = power_of_two(-exponent_of(y.hi).clamp(-1021, 1021))
    x, y = (DoubleDouble(part.hi * power, part.lo * power) for part in (x, y))
    first = x.hi / y.hi
    rest = sub(x, mul(pair(first), y))
    second = rest.hi / y.hi
    rest = sub(rest, mul(pair(second), y))
    third = rest.hi / y.hi
    return add(_quick_two_sum(first, second), pair(third))


def sum_last(x: DoubleDouble) -> DoubleDouble:
    """Sum over the last axis, by halves."""
    while x.hi.shape[-1] > 1:
        n = x.hi.shape[-1]
        half = n // 2
        total = add(x.span(0, half), x.span(half, 2 * half))
        if n % 2:
            total = DoubleDouble(
                *(torch.cat([t, o[..., -1:]], -1) for t, o in zip(total, x, strict=True))
            )
        x = total
    return DoubleDouble(x.hi[..., 0], x.lo[..., 0])


def dot(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """Sum of x y over the last axis: off by at most ``SUMMED`` of the sum of |x y|."""
    products = two_prod(x.hi, y.hi)
    return sum_last(DoubleDouble(products.hi, products.lo + (x.hi * y.lo + x.lo * y.hi)))


def exp(x: DoubleDouble) -> DoubleDouble:
    """e^x for x <= 709; zero below -740, where float64 has next to nothing left."""
    tiny = x.hi < _FLOOR
    x = DoubleDouble(x.hi.clamp(min=_FLOOR), torch.where(tiny, 0.0, x.lo))
    k = torch.round(x.hi / math.log(2))
    for part in _LN2:
        x = sub(x, two_prod(k, torch.full_like(k, part)))
    small = DoubleDouble(*(t * 2.0**-_HALVINGS for t in x))
    grown = _expm1(small)
    for _ in range(_HALVINGS):
        grown = mul(grown, add(grown, pair(torch.full_like(k, 2.0))))
    one = add(grown, pair(torch.ones_like(k)))
    # Two factors: 2^k alone is subnormal for k < -1022.
    half = torch.floor(k / 2)
    scales = [power_of_two(part.clamp(-1022, 1023).long()) for part in (half, k - half)]
    return DoubleDouble(*(torch.where(tiny, 0.0, t * scales[0] * scales[1]) for t in one))


def _expm1(r: DoubleDouble) -> DoubleDouble:
    """Taylor's polynomial without its 1: r (1 + r/2 (1 + r/3 (...)))."""
    one = pair(torch.ones_like(r.hi))
    nested = one
    for degree in range(_DEGREE, 1, -1):
        share = div(r, pair(torch.full_like(r.hi, float(degree))))
        nested = add(one, mul(share, nested))
    return mul(r, nested)
