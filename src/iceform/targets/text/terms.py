"""An algorithm's values as scalar expressions: one per component, the same one only once.

A term is ``number``, ``read`` (of a slot), ``index`` (the number of the sample at hand), ``affine``
(coefficient times a term plus a constant), ``add``, ``product``, ``call`` (of a function that the
text machine has), ``table`` (of one that it has not), ``total`` (the sum over the samples),
``attended`` (a softmax over the samples), ``picked`` (one so sharp that the sample with the largest
key has all the weight), ``part`` (one component of these) or ``at`` (of the sample nearest to a
place). A term that differs from sample to sample is *lane*.

Softmax in fixed point has no room for scores of thousands. The two that the language is full of
need none: scores that fall off as a steep parabola of the sample's number are a read at its top,
and a query of millions picks the largest key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from iceform import tuning
from iceform.arithmetic.units import UNIT
from iceform.errors import ProgramError
from iceform.expressions.formulas import trees

HALF = Fraction(1, 2)
_SHARP = math.sqrt(1 / UNIT)  # a query that leaves nothing of keys that differ visibly
_STEEP = -math.log(UNIT)  # by how much a score must fall so that nothing is left of its sample


@dataclass(eq=False)
class Slot:
    """A scalar, or an array with a cell for each sample, before it has a name."""

    array: bool
    hint: str = ""


@dataclass(frozen=True, eq=False)
class ScalarTerm:
    """One expression; see the module."""

    kind: str
    args: tuple[ScalarTerm, ...]
    attr: Any
    lane: bool
    number: int  # in the order in which terms were made

    @property
    def value(self) -> Fraction:
        """Of a number."""
        assert isinstance(self.attr, Fraction)
        return self.attr


class TermTable:
    """Makes terms of so many samples, simplified as they are made; equal ones are one object.

    ``bits`` are the significant ones of the machine's numbers.
    """

    def __init__(self, samples: int, bits: int) -> None:
        self.samples = samples
        self._nearly_half = Fraction(2**bits - 1, 2 ** (bits + 1))  # the level below 1/2
        self._least = Fraction(1, 2**bits)  # what whole numbers may be off
        self._made: dict[tuple[Any, ...], ScalarTerm] = {}

    def _make(
        self, kind: str, args: tuple[ScalarTerm, ...], attr: Any = None, lane: bool | None = None
    ) -> ScalarTerm:
        key = (kind, tuple(a.number for a in args), attr)
        if key not in self._made:
            lane = any(a.lane for a in args) if lane is None else lane
            self._made[key] = ScalarTerm(kind, args, attr, lane, len(self._made))
        return self._made[key]

    def constant(self, value: float | Fraction) -> ScalarTerm:
        """A number, exactly."""
        return self._make("number", (), Fraction(value))

    def read(self, slot: Slot) -> ScalarTerm:
        """What a slot holds: of the sample at hand, if it is an array."""
        return self._make("read", (), slot, slot.array)

    def affine(self, a: ScalarTerm, factor: Fraction, shift: Fraction | int = 0) -> ScalarTerm:
        """Factor times a plus shift."""
        if a.kind == "number" or factor == 0:
            return self.constant(shift + (factor * a.value if factor else 0))
        if a.kind == "affine":
            inner, moved = a.attr
            return self.affine(a.args[0], factor * inner, factor * moved + shift)
        if factor == 1 and shift == 0:
            return a
        return self._make("affine", (a,), (Fraction(factor), Fraction(shift)))

    def add(self, a: ScalarTerm, b: ScalarTerm) -> ScalarTerm:
        """The sum."""
        for one, other in ((a, b), (b, a)):
            if one.kind == "number":
                return self.affine(other, Fraction(1), one.value)
        (p, c, u), (q, d, v) = _split(a), _split(b)
        if u is v:
            return self.affine(u, p + q, c + d)
        return self._make("add", (a, b))

    def subtract(self, a: ScalarTerm, b: ScalarTerm) -> ScalarTerm:
        """The difference."""
        return self.add(a, self.affine(b, Fraction(-1)))

    def product(self, a: ScalarTerm, b: ScalarTerm) -> ScalarTerm:
        """The product; that of a term and its reciprocal is 1."""
        for one, other in ((a, b), (b, a)):
            if one.kind == "number":
                return self.affine(other, one.value)
            if one.kind == "affine" and one.attr[1] == 0:
                return self.affine(self.product(one.args[0], other), one.attr[0])
            if one.kind == "call" and one.attr == "recip" and one.args[0] is other:
                return self.constant(1)
        return self._make("product", (a, b) if a.number <= b.number else (b, a))

    def call(self, name: str, *args: ScalarTerm) -> ScalarTerm:
        """A function of the machine; ``step`` and ``recip`` free of scales."""
        a = args[0]
        if a.kind == "affine" and name == "recip" and a.attr[1] == 0:
            return self.affine(self.call(name, a.args[0]), 1 / a.attr[0])
        if a.kind == "affine" and name == "step":
            factor, shift = a.attr
            sign = Fraction(1 if factor > 0 else -1)
            args = (self.affine(a.args[0], sign, shift / abs(factor)),)
        if name == "recip" and a.kind == "number" and a.value:
            return self.constant(1 / a.value)
        if all(x.kind == "number" for x in args):
            return self.constant(_in_floats(name, *(float(x.value) for x in args)))
        return self._make("call", args, name)

    def table(self, name: str, a: ScalarTerm) -> ScalarTerm:
        """A function that the machine has not, at arguments from 0 to its table's end."""
        return self._make("table", (a,), name)

    def index(self) -> ScalarTerm:
        """The number of the sample at hand, from 0 on."""
        return self._make("index", (), None, True)

    def nearest(self, a: ScalarTerm) -> ScalarTerm:
        """The nearest whole number, of what is not half-way between two.

        Where ``a`` is a quotient and a little more, as in ``//`` and ``%``, it is the largest whole
        number that is not larger: a quotient in levels may be a level short, so that the remainder
        decides.
        """
        factor, shift, inner = _split(a)
        if abs(shift + HALF) > self._least:
            return self.call("floor", self.affine(a, Fraction(1), self._nearly_half))
        over = _quotient(inner)
        if over is not None and factor == 1:
            return self._divided(*over)
        if factor > 0 and factor.numerator == 1:
            return self._divided(inner, self.constant(factor.denominator))
        return self.call("floor", self.affine(a, Fraction(1), HALF))

    def _divided(self, a: ScalarTerm, b: ScalarTerm) -> ScalarTerm:
        """The whole part of a / b: the nearest one, less 1 where that leaves less than nothing."""
        share = self.call("recip", b)
        quotient = self.product(a, share)
        near = self.call("floor", self.affine(quotient, Fraction(1), self._nearly_half))
        rest = self.subtract(a, self.product(near, b))
        short = self.call("step", self.affine(self.product(rest, share), Fraction(-1)))
        return self.subtract(near, short)

    def is_zero(self, a: ScalarTerm) -> ScalarTerm:
        """1 where the nearest whole number is 0, else 0."""
        if _split(a)[0] < 0:
            a = self.affine(a, Fraction(-1))
        return self.call("step", self.affine(self.call("abs", a), Fraction(-1), HALF))

    def at(self, value: ScalarTerm, place: ScalarTerm) -> ScalarTerm:
        """A value of the sample nearest to a place; beyond the ends, of the one there."""
        if not value.lane:
            return value
        if value.kind == "affine":
            return self.affine(self.at(value.args[0], place), *value.attr)
        place = self.call("min", place, self.constant(self.samples - 1))
        if value.kind == "index":
            return self.call("max", place, self.constant(0))
        return self._make("at", (value, place), None, place.lane)

    def total(self, a: ScalarTerm) -> ScalarTerm:
        """The sum over the samples."""
        if not a.lane:
            return self.affine(a, Fraction(self.samples))
        if a.kind == "affine":
            factor, shift = a.attr
            return self.affine(self.total(a.args[0]), factor, self.samples * shift)
        if a.kind == "product":
            for one, other in (a.args, a.args[::-1]):
                if not one.lane:
                    return self.product(one, self.total(other))
        return self._make("total", (a,), None, False)

    def attended(
        self, query: list[ScalarTerm], key: list[ScalarTerm], value: list[ScalarTerm],
        bias: ScalarTerm | None, lane: bool,
    ) -> list[ScalarTerm]:  # fmt: skip
        """The components of a softmax over the samples."""
        if bias is None:
            place = self._place(query, key)
            if place is not None:
                return [self.at(v, place) for v in value]
            chosen = self._chosen(query, key, value)
            if chosen is not None and not chosen.lane:  # all keys are equal
                return [self.at(v, self.constant(0)) for v in value]
            if chosen is not None:
                whole = self._make("picked", (chosen, *value), None, False)
                return [self.part(whole, k) for k in range(len(value))]
        args = (*query, *key, *value, *(() if bias is None else (bias,)))
        whole = self._make("attended", args, (len(query), len(value)), lane)
        return [self.part(whole, k) for k in range(len(value))]

    def part(self, whole: ScalarTerm, k: int) -> ScalarTerm:
        """One component of a softmax over the samples."""
        return self._make("part", (whole,), k)

    def _place(self, query: list[ScalarTerm], key: list[ScalarTerm]) -> ScalarTerm | None:
        """Where scores -steep (i - place)^2 of sample number i have their top."""
        if len(query) != 2 or query[1].kind != "number":
            return None
        own = self.index()
        (slope, low, first), (curve, more, second) = _split(key[0]), _split(key[1])
        if (first, second) != (own, self.product(own, own)) or low or more:
            return None
        steep = -query[1].value * curve
        return None if steep < _STEEP else self.affine(query[0], slope / (2 * steep))

    def _chosen(
        self, query: list[ScalarTerm], key: list[ScalarTerm], value: list[ScalarTerm]
    ) -> ScalarTerm | None:
        """The key whose largest has all the weight; of equal ones the first, or it is no matter.

        Which it is, the key says itself: it gives way a little from each sample to the next.
        """
        if len(query) != 1 or query[0].kind != "number" or query[0].value < _SHARP:
            return None
        if value == key:
            return key[0]
        parts = key[0].args if key[0].kind == "add" else (key[0], self.constant(0))
        for one, other in (parts, parts[::-1]):
            factor, shift, own = _split(one)
            if own.kind == "index" and -self._least < self.samples * factor < 0 == shift:
                return other
        return None

    # ------------------------------------------------------------------------------- formulas

    def formula(self, tree: trees.Node, z: ScalarTerm) -> ScalarTerm:
        """A formula's tree at a term, by what the machine has."""
        if isinstance(tree, trees.Variable):
            return z
        if isinstance(tree, trees.Number):
            return self.constant(tree.value)
        args = [self.formula(a, z) for a in tree.arguments]
        rule = _COMPOSED.get(tree.name)
        return rule(self, *args) if rule is not None else self.call(tree.name, *args)

    def power(self, base: ScalarTerm, exponent: ScalarTerm) -> ScalarTerm:
        """A power: by products and roots, else by logarithm and exponential."""
        by = exponent.value if exponent.kind == "number" else None
        if by == -HALF:
            return self.call("rsqrt", base)
        if by == HALF:
            return self.call("sqrt", base)
        if by is not None and by < 0:
            return self.call("recip", self.power(base, self.constant(-by)))
        if by is not None and by.denominator == 1 and by <= tuning.TEXT_POWER:
            out = self.constant(1)
            for _ in range(int(by)):
                out = self.product(out, base)
            return out
        return self.call("exp", self.product(self.call("log", base), exponent))

    def sign(self, a: ScalarTerm) -> ScalarTerm:
        """1, 0 or -1."""
        return self.subtract(self.call("step", a), self.call("step", self.affine(a, Fraction(-1))))


def _split(a: ScalarTerm) -> tuple[Fraction, Fraction, ScalarTerm]:
    if a.kind == "affine":
        return *a.attr, a.args[0]
    return Fraction(1), Fraction(0), a


def _quotient(a: ScalarTerm) -> tuple[ScalarTerm, ScalarTerm] | None:
    """What is divided by what, if a term is a product with a reciprocal."""
    if a.kind == "product":
        for one, other in (a.args, a.args[::-1]):
            if one.kind == "call" and one.attr == "recip":
                return other, one.args[0]
    return None


def _in_floats(name: str, *args: float) -> float:
    """A function of constants."""
    a = args[0]
    plain: dict[str, Callable[[], float]] = {
        "recip": lambda: 1 / a,
        "rsqrt": lambda: a**-0.5,
        "sigmoid": lambda: 1 / (1 + math.exp(-a)),
        "step": lambda: float(a > 0),
        "abs": lambda: abs(a),
        "max": lambda: max(args),
        "min": lambda: min(args),
    }
    try:
        return plain[name]() if name in plain else float(getattr(math, name)(a))
    except (ValueError, ArithmeticError):
        raise ProgramError(f"{name}({a:g}) has no value. Change the parameter it is of.") from None


def _exp_of(t: TermTable, a: ScalarTerm, factor: int) -> ScalarTerm:
    return t.call("exp", t.affine(a, Fraction(factor)))


def _half_sum(t: TermTable, a: ScalarTerm, sign: int) -> ScalarTerm:
    """(e^a + sign e^-a) / 2."""
    both = t.add(_exp_of(t, a, 1), t.affine(_exp_of(t, a, -1), Fraction(sign)))
    return t.affine(both, HALF)


def _log1p_exp(t: TermTable, a: ScalarTerm, factor: int) -> ScalarTerm:
    """log(1 + e^(factor |a|)), factor < 0."""
    return t.call("log", t.affine(_exp_of(t, t.call("abs", a), factor), Fraction(1), 1))


def _logcosh(t: TermTable, a: ScalarTerm) -> ScalarTerm:
    return t.affine(
        t.add(t.call("abs", a), _log1p_exp(t, a, -2)), Fraction(1), Fraction(-math.log(2))
    )


def _max0(t: TermTable, a: ScalarTerm) -> ScalarTerm:
    return t.call("max", a, t.constant(0))


def _half_step(t: TermTable, a: ScalarTerm) -> ScalarTerm:
    """The formulas' step: 1/2 at 0."""
    return t.affine(t.sign(a), HALF, HALF)


def _atan(t: TermTable, a: ScalarTerm) -> ScalarTerm:
    """By a table of [0, 1]: beyond, pi/2 minus that of the reciprocal."""
    size = t.call("abs", a)
    small = t.table("atan", t.call("min", size, t.call("recip", size)))
    large = t.affine(small, Fraction(-2), Fraction(math.pi / 2))
    beyond = t.call("step", t.affine(size, Fraction(1), -1))
    return t.product(t.sign(a), t.add(small, t.product(beyond, large)))


def _erf(t: TermTable, a: ScalarTerm) -> ScalarTerm:
    size = t.call("min", t.call("abs", a), t.constant(TABLES["erf"][1]))
    return t.product(t.sign(a), t.table("erf", size))


# functions that are tables in an array: the function, and where the table that begins at 0 ends
TABLES: dict[str, tuple[Callable[[float], float], float]] = {
    "atan": (math.atan, 1.0),
    "erf": (math.erf, 3.0),
}
_COMPOSED: dict[str, Callable[..., ScalarTerm]] = {
    "+": lambda t, a, b: t.add(a, b),
    "-": lambda t, a, b: t.subtract(a, b),
    "*": lambda t, a, b: t.product(a, b),
    "/": lambda t, a, b: t.product(a, t.call("recip", b)),
    "^": lambda t, a, b: t.power(a, b),
    "neg": lambda t, a: t.affine(a, Fraction(-1)),
    "relu": _max0,
    "clip": lambda t, a, low, high: t.call("min", t.call("max", a, low), high),
    "sign": lambda t, a: t.sign(a),
    "step": _half_step,
    "cosh": lambda t, a: _half_sum(t, a, 1),
    "sinh": lambda t, a: _half_sum(t, a, -1),
    "expm1": lambda t, a: t.affine(t.call("exp", a), Fraction(1), -1),
    "log1p": lambda t, a: t.call("log", t.affine(a, Fraction(1), 1)),
    "logcosh": _logcosh,
    "softplus": lambda t, a: t.add(_max0(t, a), _log1p_exp(t, a, -1)),
    "tan": lambda t, a: t.product(t.call("sin", a), t.call("recip", t.call("cos", a))),
    "atan": _atan,
    "erf": _erf,
}
