r"""Powers of two: products with them are exact wherever the result is a normal number.

A factor :math:`2^e` is made from its bits, since library functions for powers need not be exact.
Exponents beyond those of one float64 are taken in two factors.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["exponent_of", "power_of_two", "times_power"]

_BIAS, _BITS = 1023, 52


def exponent_of(x: Tensor) -> Tensor:
    """The e with 2^(e-1) <= |x| < 2^e, int64; 0 for 0."""
    exponent: Tensor = torch.frexp(x).exponent.long()
    return exponent


def power_of_two(exponent: Tensor) -> Tensor:
    """2^e for whole numbers -1022 <= e <= 1023."""
    return ((exponent + _BIAS) << _BITS).view(torch.float64)


def times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """X 2^e for whole numbers |e| <= 2044, rounded where it underflows."""
    first = exponent.clamp(-_BIAS + 1, _BIAS)
    return x * power_of_two(first) * power_of_two(exponent - first)
