r"""Taylor series with interval coefficients: a function and its derivatives on whole cells at once.

The jet of f on a cell X holds, for k = 0 .. n, an interval with every :math:`f^{(k)}(x)/k!`,
x in X. Sums and products are those of power series. For a function of a jet, h = g(u), the rule
:math:`h' = g'(u)\,u'` gives

.. math:: h_k = \frac1k \sum_{j=1}^{k} j\,u_j\,d_{k-j},\qquad d = \text{jet of } g'(u),

so a function needs its range, that of its derivative, and how d follows from h and u.

Where f has a kink inside a cell its higher coefficients are unknown there, but the first still
holds Clarke's generalised derivative: |f(x) - f(y)| <= |h_1| |x - y|. Where it may jump, only
:math:`h_0` is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from iceform.arithmetic.intervals import COMPOUND, Interval, computed

_TWO_OVER_ROOT_PI = Interval(
    torch.tensor([1.1283791670955124], dtype=torch.float64, device="cpu"),
    torch.tensor([1.1283791670955130], dtype=torch.float64, device="cpu"),
)
_ONE = Interval.of(1.0)


@dataclass(frozen=True, eq=False)
class Jet:
    """A function on cells by its Taylor coefficients f, f', f''/2, ..., each an enclosure.

    Attributes
    ----------
    series
        Coefficients 0 .. n, shape (n + 1, cells); or (1, 1) for a constant.
    constant
        Whether the function is a constant.

    Examples
    --------
    >>> cell = Interval(torch.tensor([0.0]).double(), torch.tensor([0.5]).double())
    >>> slope = Jet.variable(cell, 1).sin().series[1]  # of the cosine on [0, 0.5]
    >>> bool((slope.low <= 0.8776) & (1 <= slope.high))
    True
    """

    series: Interval
    constant: bool = False

    @classmethod
    def variable(cls, cells: Interval, order: int) -> Jet:
        """x itself, on cells."""
        rest = torch.zeros(order, len(cells), dtype=torch.float64)
        rest[:1] = 1.0
        low, high = torch.cat([cells.low[None], rest]), torch.cat([cells.high[None], rest])
        return cls(Interval(low, high))

    @classmethod
    def number(cls, value: Fraction | float | Interval) -> Jet:
        """A constant."""
        found = value if isinstance(value, Interval) else Interval.of(value)
        return cls(found[None], constant=True)

    @property
    def order(self) -> int:
        """N."""
        return len(self.series) - 1

    @property
    def count(self) -> int | None:
        """How many coefficients: n + 1; None of a constant, which has as many as are asked for."""
        return None if self.constant else len(self.series)

    @property
    def value(self) -> Interval:
        """The range of the function itself."""
        return self.series[0]

    def __getitem__(self, k: int) -> Interval:
        return self.series[k]

    # -------------------------------------------------------------------------- arithmetic

    def __neg__(self) -> Jet:
        return Jet(-self.series, self.constant)

    def __add__(self, other: Jet) -> Jet:
        if self.constant and not other.constant:
            return other + self
        if other.constant and not self.constant:
            return self._with_value(self.value + other.value)
        return Jet(self.series + other.series, self.constant)

    def __sub__(self, other: Jet) -> Jet:
        return self + -other

    def __mul__(self, other: Jet) -> Jet:
        if self.constant or other.constant:
            return Jet(self.series * other.series, self.constant and other.constant)
        return Jet(_product(self.series, other.series))

    def __truediv__(self, other: Jet) -> Jet:
        return self * other.reciprocal()

    def _with_value(self, value: Interval) -> Jet:
        low = torch.cat([value.low[None], self.series.low[1:]])
        return Jet(Interval(low, torch.cat([value.high[None], self.series.high[1:]])))

    def square(self) -> Jet:
        """u^2, whose value is not negative."""
        if self.constant:
            return Jet(self.series.square(), constant=True)
        return Jet(_product(self.series, self.series))._with_value(self.value.square())

    def reciprocal(self) -> Jet:
        """1/u: h_k = -h_0 sum_{j>=1} u_j h_{k-j}."""
        first = self.value.reciprocal()

        def next_one(k: int, h: list[Interval]) -> Interval:
            return -first * _convolved(self._parts(1, k), h)

        return self._grown(first, next_one)

    def power(self, exponent: float) -> Jet:
        """u^p by u h' = p u' h, or by products where p is a small whole number."""
        if exponent == 0:
            return Jet.number(1.0)
        if exponent == 1:
            return self
        if exponent == 2:
            return self.square()
        if float(exponent).is_integer() and 0 < exponent <= 16:
            return self._whole_power(int(exponent))
        first, under = self.value.power(exponent), self.value

        def next_one(k: int, h: list[Interval]) -> Interval:
            # k u_0 h_k = sum_j (p j - (k - j)) u_j h_{k-j}
            factors = [Interval.of(Fraction(exponent) * j - (k - j)) for j in range(1, k + 1)]
            u = [f * part for f, part in zip(factors, self._parts(1, k), strict=True)]
            return _convolved(u, h) / under.times(float(k))

        return self._grown(first, next_one)

    def _whole_power(self, exponent: int) -> Jet:
        if exponent == 1:
            return self
        half = self._whole_power(exponent // 2).square()
        out = half if exponent % 2 == 0 else half * self
        return Jet(out.series, self.constant)._meeting(self.value.power(exponent))

    def _meeting(self, value: Interval) -> Jet:
        """The same with a value that is also known otherwise."""
        met = self.value.meet(value)
        return Jet(met[None], constant=True) if self.constant else self._with_value(met)

    # --------------------------------------------------------------------------- functions

    def _parts(self, first: int, last: int) -> list[Interval]:
        return [self.series[j] for j in range(first, last + 1)]

    def _grown(self, first: Interval, next_one: Callable[[int, list[Interval]], Interval]) -> Jet:
        """The jet whose coefficient k is found from those before it."""
        h = [first]
        if self.constant:
            return Jet(first[None], constant=True)
        for k in range(1, len(self.series)):
            h.append(next_one(k, h))
        return Jet(_stacked(h))

    def _chained(self, first: Interval, rate: Callable[[list[Interval]], Interval]) -> Jet:
        """From h' = d u': ``rate`` gives d_{k-1} from h_0 .. h_{k-1}."""
        d: list[Interval] = []

        def next_one(k: int, h: list[Interval]) -> Interval:
            d.append(rate(h))
            weighted = [part.times(j) for j, part in enumerate(self._parts(1, k), 1)]
            return _convolved(weighted, d).over(float(k))

        return self._grown(first, next_one)

    def _integrated(self, first: Interval, rates: Jet) -> Jet:
        """From h' = d u' with d known."""
        return self._chained(first, lambda h: rates.series[len(h) - 1])

    def _lower(self) -> Jet:
        """Without the last coefficient, which rates do not need."""
        return self if self.constant or self.order == 0 else Jet(self.series[:-1])

    def exp(self) -> Jet:
        """e^u."""
        return self._chained(self.value.increasing(torch.exp, low=0.0), lambda h: h[-1])

    def expm1(self) -> Jet:
        """e^u - 1."""
        rate = self.value.increasing(torch.exp, low=0.0)
        first = self.value.increasing(torch.expm1, low=-1.0)
        return self._chained(first, lambda h: rate if len(h) == 1 else h[-1])

    def log(self) -> Jet:
        """The logarithm ln u, for u > 0."""
        return self._integrated(_logarithm(self.value, torch.log, 0.0), self._lower().reciprocal())

    def log1p(self) -> Jet:
        """ln(1 + u), for u > -1."""
        rates = (self._lower() + Jet.number(1.0)).reciprocal()
        return self._integrated(_logarithm(self.value, torch.log1p, -1.0), rates)

    def sqrt(self) -> Jet:
        """By 2 h h' = u'."""
        value = self.value
        first = value.increasing(torch.sqrt, low=0.0).unknown_where(value.low < 0)
        twice = first.times(2.0)

        def next_one(k: int, h: list[Interval]) -> Interval:
            known = _convolved(h[1:], h[1:]) if k > 1 else None
            rest = self.series[k] if known is None else self.series[k] - known
            return rest / twice

        return self._grown(first, next_one)

    def sigmoid(self) -> Jet:
        """h' = h(1 - h) u'; h_k(1 - 2 h_0) keeps what saturates small."""
        value = self.value
        slope = value.falling_away(lambda u: _sigmoid(u) * _sigmoid(-u), 0.25)
        tilt = -value.over(2.0).increasing(torch.tanh, -1.0, 1.0)

        def rate(h: list[Interval]) -> Interval:
            if len(h) == 1:
                return slope
            found = h[-1] * tilt
            return found if len(h) == 2 else found - _convolved(h[1:-1], h[1:-1])

        return self._chained(value.increasing(_sigmoid, 0.0, 1.0, COMPOUND), rate)

    def tanh(self) -> Jet:
        """h' = sech^2(u) u', which is 1 - h^2."""
        value = self.value
        slope = value.falling_away(lambda u: 4 * _sigmoid(2 * u) * _sigmoid(-2 * u), 1.0)

        def rate(h: list[Interval]) -> Interval:
            return slope if len(h) == 1 else -_convolved(h, h)

        return self._chained(value.increasing(torch.tanh, -1.0, 1.0), rate)

    def softplus(self) -> Jet:
        """ln(1 + e^u)."""
        first = self.value.increasing(softplus, low=0.0, slack=COMPOUND)
        return self._integrated(first, self._lower().sigmoid())

    def logcosh(self) -> Jet:
        """The function ln cosh u = |u| + ln(1 + e^{-2|u|}) - ln 2."""
        size = self.value.absolute()
        first = Interval(_logcosh(size.low).low, _logcosh(size.high).high).clamped(low=0.0)
        return self._integrated(first, self._lower().tanh())

    def erf(self) -> Jet:
        """h' = (2/sqrt pi) e^{-u^2} u'."""
        rates = Jet.number(_TWO_OVER_ROOT_PI) * (-self._lower().square()).exp()
        return self._integrated(self.value.increasing(torch.erf, -1.0, 1.0), rates)

    def erfc(self) -> Jet:
        """1 - erf u, without cancellation where it is small."""
        rates = -(Jet.number(_TWO_OVER_ROOT_PI) * (-self._lower().square()).exp())
        ends = torch.erfc(self.value.high), torch.erfc(self.value.low)
        return self._integrated(computed(*ends).clamped(0.0, 2.0), rates)

    def atan(self) -> Jet:
        """h' = u'/(1 + u^2)."""
        rates = (self._lower().square() + Jet.number(1.0)).reciprocal()
        return self._integrated(self.value.increasing(torch.atan), rates)

    def asinh(self) -> Jet:
        """h' = u'/sqrt(1 + u^2)."""
        rates = (self._lower().square() + Jet.number(1.0)).power(-0.5)
        return self._integrated(self.value.increasing(torch.asinh), rates)

    def sin(self) -> Jet:
        """With the cosine beside it."""
        return self._waves()[0]

    def cos(self) -> Jet:
        """With the sine beside it."""
        return self._waves()[1]

    def _waves(self) -> tuple[Jet, Jet]:
        sine, cosine = self.value.wave(torch.sin, 0.25), self.value.wave(torch.cos, 0.0)
        return self._coupled(sine, cosine, -1.0)

    def sinh(self) -> Jet:
        """With the hyperbolic cosine beside it."""
        return self._hyperbolic()[0]

    def cosh(self) -> Jet:
        """With the hyperbolic sine beside it."""
        return self._hyperbolic()[1]

    def _hyperbolic(self) -> tuple[Jet, Jet]:
        size = self.value.absolute()
        cosh = computed(torch.cosh(size.low), torch.cosh(size.high)).clamped(low=1.0)
        return self._coupled(self.value.increasing(torch.sinh), cosh, 1.0)

    def _coupled(self, s: Interval, c: Interval, sign: float) -> tuple[Jet, Jet]:
        """s' = c u', c' = sign s u'."""
        if self.constant:
            return Jet(s[None], constant=True), Jet(c[None], constant=True)
        first, second = [s], [c]
        for k in range(1, len(self.series)):
            weighted = [part.times(j) for j, part in enumerate(self._parts(1, k), 1)]
            rise = _convolved(weighted, second).over(float(k))
            fall = _convolved(weighted, first).over(float(k))
            first.append(rise)
            second.append(fall if sign > 0 else -fall)
        return Jet(_stacked(first)), Jet(_stacked(second))

    def tan(self) -> Jet:
        """h' = (1 + h^2) u'."""
        value = self.value.tangent()

        def rate(h: list[Interval]) -> Interval:
            return value.square() + _ONE if len(h) == 1 else _convolved(h, h)

        return self._chained(value, rate)

    # ------------------------------------------------------------------- kinks and choices

    def absolute(self) -> Jet:
        """|u|."""
        return self.largest(-self)._meeting(self.value.absolute())

    def largest(self, other: Jet) -> Jet:
        """max(u, v)."""
        difference = self - other
        either = _switches(difference)
        up, down = (difference.value.low >= 0) & ~either, (difference.value.high <= 0) & ~either
        value = Interval(
            torch.maximum(self.value.low, other.value.low),
            torch.maximum(self.value.high, other.value.high),
        )
        if self.constant and other.constant:
            return Jet(value[None], constant=True)
        count = max(len(self.series), len(other.series))
        return chosen(up, down, self, other, count, value, continuous=True)

    def smallest(self, other: Jet) -> Jet:
        """min(u, v)."""
        return -(-self).largest(-other)


@dataclass(frozen=True, eq=False)
class Choice:
    """A condition on cells: where it surely holds, and where it surely does not.

    ``switches`` are cells that are a point at which it changes: a value there is known, and no
    slope. ``count`` is that of the jets which were compared; None of constants.
    """

    yes: Tensor
    no: Tensor
    switches: Tensor
    count: int | None

    @classmethod
    def above(cls, a: Jet, b: Jet) -> Choice:
        """Whether a > b."""
        u, v = a.value, b.value
        return cls(u.low > v.high, u.high <= v.low, _switches(a - b), _count(a, b))

    @classmethod
    def differs(cls, a: Jet, b: Jet) -> Choice:
        """Whether a != b."""
        u, v = a.value, b.value
        yes, no = (u.low > v.high) | (u.high < v.low), (u.low == v.high) & (u.high == v.low)
        return cls(yes, no, _switches(a - b), _count(a, b))

    def __invert__(self) -> Choice:
        return Choice(self.no, self.yes, self.switches, self.count)

    def __and__(self, other: Choice) -> Choice:
        switches = self.switches | other.switches
        return Choice(self.yes & other.yes, self.no | other.no, switches, _count(self, other))


def _switches(difference: Jet) -> Tensor:
    """Cells that are a point at which a difference is exactly 0, and beside which it is not."""
    value, rest = difference.value, difference.series[1:]
    zero = (value.low == 0) & (value.high == 0)
    return zero & ((rest.low != 0) | (rest.high != 0)).any(0)


def _count(*parts: Jet | Choice) -> int | None:
    return max((p.count for p in parts if p.count is not None), default=None)


def choose(condition: Choice, a: Jet, b: Jet, *, continuous: bool = False) -> Jet:
    """The jet a where a condition holds, b where it does not, what both allow where it is open."""
    count, yes, no = _count(condition, a, b), condition.yes, condition.no
    found = chosen(yes, no, a, b, count or 1, continuous=continuous)
    if bool(condition.switches.any()):
        open_there = yes & ~condition.switches, no & ~condition.switches
        slopes = chosen(*open_there, a, b, count or 1, continuous=continuous)
        found = slopes._with_value(found.value)
    return Jet(found.series, constant=count is None)


def chosen(
    yes: Tensor, no: Tensor, a: Jet, b: Jet, count: int, value: Interval | None = None,
    *, continuous: bool = False,
) -> Jet:  # fmt: skip
    """The jet a on cells where ``yes`` is sure, b where ``no`` is, what both allow elsewhere.

    Of the ``count`` coefficients only the value is known there; a continuous choice keeps the
    first derivative.
    """
    first, second = _spread(a, count, yes), _spread(b, count, yes)
    lost = torch.zeros(count, 1, dtype=torch.bool)
    lost[2 if continuous else 1 :] = True
    both = first.hull(second).unknown_where(lost)
    if value is not None:
        both = Jet(both)._with_value(value).series
    return Jet(first.where(yes, second.where(no, both)))


def _spread(jet: Jet, count: int, like: Tensor) -> Interval:
    """The coefficients of a jet written out for every cell."""
    if not jet.constant:
        return jet.series
    low = torch.zeros(count, len(like), dtype=torch.float64)
    high = low.clone()
    low[0], high[0] = jet.value.low, jet.value.high
    return Interval(low, high)


# ---------------------------------------------------------------------------------------------
# series
# ---------------------------------------------------------------------------------------------


def _stacked(parts: list[Interval]) -> Interval:
    return Interval(torch.stack([p.low for p in parts]), torch.stack([p.high for p in parts]))


def _convolved(a: list[Interval], b: list[Interval]) -> Interval:
    """sum_i a_i b_{n-1-i} of as many as both have."""
    n = min(len(a), len(b))
    if n == 1:
        return a[0] * b[0]
    return (_stacked(a[:n]) * _stacked(b[:n][::-1])).sum()


def _product(a: Interval, b: Interval) -> Interval:
    """Coefficients of the product of two power series, as many as both have."""
    count = len(a)
    first = [i for k in range(count) for i in range(k + 1)]
    second = [k - i for k in range(count) for i in range(k + 1)]
    terms = a[first] * b[second]
    starts = [k * (k + 1) // 2 for k in range(count + 1)]
    return _stacked([terms[m:n].sum() for m, n in pairwise(starts)])


# ---------------------------------------------------------------------------------------------
# library functions made of others
# ---------------------------------------------------------------------------------------------


def _sigmoid(u: Tensor) -> Tensor:
    """To its last digits on either side: e^u/(1 + e^u) for u < 0."""
    small = torch.exp(-u.abs())
    return torch.where(u < 0, small, 1.0) / (1 + small)


def softplus(u: Tensor) -> Tensor:
    """ln(1 + e^u), relative to itself; torch's own is a straight line from its threshold on."""
    return u.clamp(min=0.0) + torch.log1p(torch.exp(-u.abs()))


def _logcosh(size: Tensor) -> Interval:
    """Of |u|: ln(1 + 2 sinh^2(u/2)) where that is small, else |u| + ln(1 + e^{-2|u|}) - ln 2."""
    near = torch.log1p(2 * torch.sinh(size.clamp(max=1.0) / 2).square())
    far = size + torch.log1p(torch.exp(-2 * size)) - math.log(2.0)
    values = torch.where(size < 1, near, far)
    return computed(values, values, slack=COMPOUND)


def _logarithm(u: Interval, compute: Callable[[Tensor], Tensor], pole: float) -> Interval:
    """Minus infinity at the pole is a bound; beyond it nothing is known."""
    return u.increasing(compute).unknown_where(u.low < pole)
