r"""The numbers of the text machine: tapered levels, and the decimal word of each.

A level is :math:`M 2^E` with whole numbers :math:`|M| < 2^{bits}` and
:math:`-fraction \le E \le top - bits`. Near zero they are :math:`2^{-fraction}` apart; further
out they have ``bits`` significant bits; the largest is :math:`(2^{bits} - 1)\,2^{top - bits}`.

Here a level is a Python integer, its *units*: the level times :math:`2^{fraction}`. Between
:math:`2^{bits + k - 1}` and :math:`2^{bits + k}` units neighbours are :math:`2^k` units apart, so
rounding needs the length of an integer and nothing else.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from iceform.errors import CapacityError, ProgramError

MOST_LEVELS = 2**20  # a vocabulary, and a row of weights for each
_MOST_UNITS = sys.float_info.mant_dig - 1  # binary digits of a level, so that float64 holds it
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True)
class NumberFormat:
    """Levels with ``bits`` significant bits, steps of 2^-fraction near 0, up to nearly 2^top.

    Parameters
    ----------
    bits
        Significant bits of a number.
    fraction
        Near 0 numbers are 2^-fraction apart.
    top
        All are below 2^top.

    Examples
    --------
    >>> form = NumberFormat(bits=2, fraction=1, top=2)
    >>> form.words[form.count // 2 :]
    ('0', '0.5', '1', '1.5', '2', '3')
    >>> form.nearest(2.5)  # a tie goes up
    '3'
    """

    bits: int = 7
    fraction: int = 7
    top: int = 7

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int:
                raise ProgramError(f"NumberFormat({name}={value!r}): whole numbers only.")
        if self.bits < 1 or self.fraction < 0 or self.top < 1:
            raise ProgramError(
                f"{self}: bits and top are at least 1 and fraction is at least 0. "
                "NumberFormat(7, 7, 7) is the usual one."
            )
        if self.top - self.bits < -self.fraction:
            raise ProgramError(
                f"{self} has no level but fractions of its step: top + fraction is "
                f"{self.top + self.fraction}, and bits is {self.bits}. Take bits of at most "
                f"{self.top + self.fraction}."
            )
        if self.fraction + self.top > _MOST_UNITS:
            raise CapacityError(
                f"{self}: numbers of {self.fraction + self.top} binary digits do not fit into "
                f"float64. Take fraction + top of at most {_MOST_UNITS}."
            )
        if self.count > MOST_LEVELS:
            raise CapacityError(
                f"{self} has {self.count:,} levels, each a word of the vocabulary; at most "
                f"{MOST_LEVELS:,} fit. Take fewer bits."
            )

    @property
    def coarsest(self) -> int:
        """Log2 of the largest distance of two neighbours, in units."""
        return self.top - self.bits + self.fraction

    @property
    def largest(self) -> int:
        """The largest level, in units."""
        return ((1 << self.bits) - 1) << self.coarsest

    @property
    def count(self) -> int:
        """How many levels there are, zero and as many below as above it."""
        return 2 * ((1 << self.bits) - 1 + (self.coarsest << (self.bits - 1))) + 1

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """All levels in units, rising."""
        positive = list(range(1, 2**self.bits))
        for k in range(1, self.coarsest + 1):
            positive += [m << k for m in range(2 ** (self.bits - 1), 2**self.bits)]
        return (*(-u for u in reversed(positive)), 0, *positive)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The word of each level, in the order of :attr:`levels`."""
        positive = [self._decimal(u) for u in self.levels if u > 0]
        return (*("-" + w for w in reversed(positive)), "0", *positive)

    @cached_property
    def _units(self) -> dict[str, int]:
        return dict(zip(self.words, self.levels, strict=True))

    @cached_property
    def _word(self) -> dict[int, str]:
        return dict(zip(self.levels, self.words, strict=True))

    def is_word(self, word: str) -> bool:
        """Whether this is the word of a level."""
        return word in self._units

    def is_level(self, units: int) -> bool:
        """Whether this many units are a level."""
        return units in self._word

    def word(self, units: int) -> str:
        """The decimal word of a level that is given in units."""
        return self._word[units]

    def units(self, word: str) -> int:
        """The level of a number word, in units; anything else is refused with the nearest word."""
        if word in self._units:
            return self._units[word]
        if not _DECIMAL.fullmatch(word):
            raise ProgramError(f"{word!r} is no number. Write a decimal such as 0.25 or -3.")
        nearest = self.word(self.rounded(Fraction(word) * 2**self.fraction))
        raise ProgramError(
            f"the number {word} is no word of this machine ({self}). The nearest word is {nearest}."
        )

    def nearest(self, value: Fraction | float) -> str:
        """The word of the level nearest to a number; beyond the largest level, that one's."""
        return self.word(self.rounded(Fraction(value) * 2**self.fraction))

    def rounded(self, units: Fraction | int) -> int:
        """The level nearest to a number of units; a tie goes up, too large saturates."""
        whole = abs(units.numerator) // units.denominator
        if whole > self.largest:
            return self.largest if units > 0 else -self.largest
        step = 1 << max(0, whole.bit_length() - self.bits)
        down = (2 * units.numerator + step * units.denominator) // (2 * step * units.denominator)
        return max(-self.largest, min(self.largest, down * step))

    def value(self, units: int) -> Fraction:
        """Units as a number."""
        return Fraction(units, 2**self.fraction)

    def gap(self, units: int) -> int:
        """From a level of at least 0 units to the next larger one, in units."""
        return 1 << max(0, units.bit_length() - self.bits)

    def _decimal(self, units: int) -> str:
        """The shortest decimal that is nearer to this positive level than to any other."""
        one = 2**self.fraction
        if units % one == 0:
            return str(units // one)
        above, below = self.gap(units), self.gap(units - 1)
        for places in range(1, self.fraction + 1):
            ten = 10**places
            low = units * ten // one
            fits = []
            for digits in (low, low + 1):
                off = digits * one - units * ten  # in units / ten
                if 2 * off < above * ten and -2 * off < below * ten:
                    fits.append((abs(off), digits))
            if fits:
                digits = min(fits)[1]
                return f"{digits // ten}.{digits % ten:0{places}d}"
        raise AssertionError("a level has at most as many decimals as binary places")
