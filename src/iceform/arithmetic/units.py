"""The numbers of rounding, once: unit roundoff, gamma, what exp is off by, margins of bounds.

A bound that is itself computed in float64 is multiplied by one of the ``OUTWARD`` factors, which
are above ``1 + gamma(n)`` for the number n of roundings that went into it::

    total = sum(errors) * OUTWARD  # no smaller than the exact sum
"""

from __future__ import annotations

import math
import sys

# Unit roundoff of float64: half the distance from 1 to the next number.
UNIT = sys.float_info.epsilon / 2
EXP_UNITS = 4.0  # units in the last place by which exp, tanh, erf, ... of any library may be off
LEAK_BITS = 8  # what a mask keeps out weighs this many bits less than rounding
EXP_UNDERFLOW = 746.0  # e^-746 is 0 in float64, and sooner in narrower formats
NOISE = 2.0**-40  # of a size: what is no more is taken for rounding
SAFE_MINIMUM = 1e-300  # a divisor or an underflow that is still far from the least normal number

OUTWARD_FEW = 1 + 2.0**-50  # up to 7 roundings
OUTWARD = 1 + 2.0**-40  # up to 2^12 roundings
OUTWARD_MANY = 1 + 2.0**-30  # up to 2^22 roundings
OUTWARD_MOST = 1 + 2.0**-20  # up to 2^32 roundings
OUTWARD_SINGLE = 1 + 2.0**-16  # a few roundings in float32


def gamma(terms: float, unit: float) -> float:
    """Relative error of ``terms`` roundings: k u / (1 - k u); infinite where that bounds nothing.

    Higham, Accuracy and Stability of Numerical Algorithms, Lemma 3.1.

    >>> gamma(1, 2.0**-53) > 2.0**-53
    True
    """
    return terms * unit / (1 - terms * unit) if terms * unit < 1 else math.inf


def next_power_of_two(least: int) -> int:
    """The least power of two that is at least ``least``, from 1 on.

    >>> next_power_of_two(5)
    8
    """
    return 1 << (least - 1).bit_length()


def power_of_four(least: float) -> int:
    """The least power of four that is at least ``least``, from 1 on.

    >>> power_of_four(5.0)
    16
    """
    size = 1
    while size < least:
        size *= 4
    return size
