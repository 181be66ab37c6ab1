"""Instructions before registers are assigned: what :mod:`~iceform.computer.select` makes.

A :class:`Register` is a variable that is not yet a place in memory. An instruction adds up reads of
registers to a and b and writes F(a + b) - G(a - b); F and G are curves: trees of formulas, steps,
or None for zero.

**Values that are not yet computed.** An operand, or a table, may still take them in, and then they
cost nothing:

* A :class:`LinearForm` is a sum of reads with coefficients, plus a number. Additions, negations,
  sums of components and means are such forms.
* A :class:`Pending` is a curve of a form whose coefficients are all +1 or -1. A chain of scalar
  functions, or any expression of one variable, is such a curve, and so one look-up.

Two curves that make one instruction are a :class:`FunctionPair`, F(a + b) - G(a - b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch

from iceform.arithmetic.intervals import above
from iceform.arithmetic.units import UNIT
from iceform.computer.graph import Loop
from iceform.computer.instructions import Write
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.functions import evaluate
from iceform.expressions.formulas.polynomials import line, polynomial
from iceform.program import Node, Range, SourceLine, slope

# A power of two by which two logits differ that the softmax decides between: 64, and e^-64 is below
# the unit roundoff.
DECISIVE = 2.0 ** math.ceil(math.log2(-math.log(UNIT)))
# Two thirds of the digits say which value is the largest, 2^35, and the rest how much others weigh.
LARGEST = 2.0 ** round(-math.log2(UNIT) * 2 / 3)


@dataclass(eq=False)
class Register:
    """A variable to be.

    Attributes
    ----------
    name
        For people.
    samples, width
        As of a node.
    range
        Of the components that it holds.
    clean
        Whether the components beyond its width are zero.
    writes
        What it holds before the first cycle; empty where an instruction writes it first.
    """

    name: str
    samples: bool
    width: int | None
    range: Range
    clean: bool = False
    writes: tuple[Write, ...] = ()
    scale: float = 1.0  # the value is this times what is held; a power of two
    single: bool = False  # a product a b with b zero in all components but one
    carried: bool = False  # from turn to turn of a loop: what it starts with is not what it holds

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Read:
    """One read: "at" (this lane's or lane 0's), "rowsum", "mean" or "like"."""

    how: str
    register: Register
    # "like": by how much the largest logit is known to be above all others; infinity says that the
    # largest value is read, with logits of LARGEST times each
    apart: float = 0.0

    @property
    def range(self) -> Range:
        """Of what is read."""
        if self.how == "rowsum":
            return self.register.range.times(float(self.register.width or 1))
        return self.register.range

    @property
    def clean(self) -> bool:
        """Whether it reads zero beyond the width of a vector."""
        return self.how in ("at", "mean") and self.register.clean

    @property
    def is_data(self) -> bool:
        """Whether the prompt fills what is read, and nothing else does."""
        return self.how == "at" and bool(self.register.writes) and not self.register.carried

    def __str__(self) -> str:
        return f"{self.how}[{self.register.name}]"


class JumpCurve:
    """A curve that jumps: no formula, but a table of its own kind."""

    def line(self, slope: Fraction, intercept: Fraction) -> Any:
        """``slope`` times the curve, and ``intercept``; what was off grows, and what rounds."""
        raise NotImplementedError

    def mirrored(self) -> Any:
        """The curve of -z."""
        raise NotImplementedError

    def steepest(self) -> float:
        """Bound of the slope away from the gap."""
        raise NotImplementedError


@dataclass(frozen=True)
class StepCurve(JumpCurve):
    r"""The curve of a comparison: ``offset + height tanh(sharpness (z - at))``.

    It is two table entries, with keys +-sharpness and values offset +- height, and so exact for
    itself; it stands for the jump at ``at``. ``gap`` is how near to it no argument may come,
    ``off`` what rounding offset and height has changed.
    """

    at: float
    sharpness: float
    gap: float
    offset: float
    height: float
    off: float = 0.0

    def beside(self) -> float:
        """What it is off by outside the gap."""
        return abs(self.height) * 2.0 * math.exp(-2.0 * self.sharpness * self.gap)

    def line(self, slope: Fraction, intercept: Fraction) -> StepCurve:
        exact = slope * Fraction(self.offset) + intercept, slope * Fraction(self.height)
        offset, height = map(float, exact)
        rounded = abs(exact[0] - Fraction(offset)) + abs(exact[1] - Fraction(height))
        off = above(abs(slope) * Fraction(self.off) + rounded)
        return replace(self, offset=offset, height=height, off=off)

    def mirrored(self) -> StepCurve:
        return replace(self, at=-self.at, height=-self.height)

    def steepest(self) -> float:
        return 2 * self.sharpness * self.beside()


@dataclass(frozen=True)
class StairCurve(JumpCurve):
    r"""A function of the whole number that is nearest to ``slope z + shift``.

    It is one entry for each whole number k from ``first`` on, with the logit -c (u - k)^2 at u =
    slope z + shift, c the sharpness, but for what all entries share. Further than ``gap`` from the
    middle of two whole numbers, a neighbour of the nearest weighs at most e^(-2 c gap), and all
    others together at most three times that, since they fall off faster. ``off`` is as of a step.
    """

    slope: float
    shift: float
    first: int
    values: tuple[float, ...]
    sharpness: float
    gap: float
    off: float = 0.0

    def moved(self, by: float) -> float:
        """What it is off by for an argument z that is off by so much."""
        apart = 2 * self.sharpness * (self.gap - abs(self.slope) * by)
        spread = max(self.values) - min(self.values)
        return spread * min(1.0, 3 * math.exp(-max(0.0, apart)))

    def line(self, slope: Fraction, intercept: Fraction) -> StairCurve:
        exact = [slope * Fraction(v) + intercept for v in self.values]
        values = tuple(map(float, exact))
        rounded = max(abs(Fraction(v) - e) for v, e in zip(values, exact, strict=True))
        return replace(self, values=values, off=above(abs(slope) * Fraction(self.off) + rounded))

    def mirrored(self) -> StairCurve:
        return replace(self, slope=-self.slope)

    def steepest(self) -> float:
        return 2 * self.sharpness * abs(self.slope) * self.moved(0.0)


Curve = trees.Node | StepCurve | StairCurve


@dataclass(eq=False)
class VirtualInstruction:
    """``dst <- F(a + b) - G(a - b)``; ``gains`` bound |d dst / d a| and |d dst / d b|."""

    dst: Register
    a: tuple[Read, ...]
    b: tuple[Read, ...]
    f: Curve | None
    g: Curve | None
    gains: tuple[float, float]
    note: str = ""
    place: SourceLine | None = None
    narrowed: Range | None = None  # of the one argument, where more is known than the reads say
    copy: bool = False
    folded: float = 0.0  # what rounding the coefficients adds to the result, and kinks
    rounded: float = 0.0  # what sides of kinks add, times the unit roundoff

    def reads(self) -> tuple[Read, ...]:
        """All of them."""
        return self.a + self.b

    @property
    def apart(self) -> float:
        """By how much the largest logit is above all others, where it asks for likeness."""
        return max((r.apart for r in self.reads() if math.isfinite(r.apart)), default=0.0)

    @property
    def plus(self) -> Range:
        """The range of a + b."""
        whole = _total(self.a) + _total(self.b)
        return whole if self.narrowed is None or self.f is None else whole.meet(self.narrowed)

    @property
    def minus(self) -> Range:
        """The range of a - b."""
        whole = _total(self.a) - _total(self.b)
        return whole if self.narrowed is None or self.g is None else whole.meet(self.narrowed)


def _total(reads: tuple[Read, ...]) -> Range:
    out = Range(0.0, 0.0)
    for read in reads:
        out = out + read.range
    return out


@dataclass(eq=False)
class VirtualLoop:
    """A loop: ``enter`` decides about the first turn, the end of ``body`` about further ones."""

    counter: Register | None
    body: VirtualCode
    guarded: bool  # whether it may make no turn, so that FLAG is asked before the first
    source: Loop
    states: tuple[Register, ...]


@dataclass(eq=False)
class VirtualCode:
    """Instructions and loops in order."""

    items: list[VirtualInstruction | VirtualLoop] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class SelectedCode:
    """Instructions of registers; ``outputs`` are the registers with the answers."""

    code: VirtualCode
    outputs: dict[str, tuple[Register, int | None]]
    width: int
    flag: Register
    gaps: dict[Node, float]  # how near to a tie each comparison may come


PLAIN_SIZE = 32.0  # values of sizes from 1/32 to 32 are held as they are
_MOST_BITS = 300  # of a scale: a product of three is still a number, and one over it too

Z = trees.Variable()


def operation(name: str, *arguments: trees.Node | float) -> trees.Node:
    """A tree, written down as it stands: nothing is folded in floating point."""
    nodes = tuple(trees.Number(Fraction(a)) if isinstance(a, float) else a for a in arguments)
    return trees.Operation(name, nodes)


@dataclass(frozen=True)
class LinearForm:
    """``sum coefficient * read + constant``."""

    terms: tuple[tuple[Read, float], ...]
    constant: float = 0.0

    def plus(self, other: LinearForm) -> LinearForm:
        """Added up, read by read; numbers are added exactly or not at all."""
        found: dict[Read, float] = dict(self.terms)
        for read, coefficient in other.terms:
            found[read] = found.get(read, 0.0) + coefficient
        terms = tuple((r, c) for r, c in found.items() if c != 0)
        return LinearForm(terms, self.constant + other.constant)

    @property
    def reads(self) -> tuple[Read, ...]:
        """The reads, without their coefficients."""
        return tuple(r for r, _ in self.terms)

    def exact_sum(self, other: LinearForm) -> bool:
        """Whether :meth:`plus` rounds nothing."""
        mine, theirs = dict(self.terms), dict(other.terms)
        pairs = [(mine[r], theirs[r]) for r in mine if r in theirs]
        pairs.append((self.constant, other.constant))
        return all(Fraction(a) + Fraction(b) == Fraction(a + b) for a, b in pairs)

    def line(self, slope: float, intercept: float) -> LinearForm:
        """``slope * self + intercept``."""
        terms = tuple((r, slope * c) for r, c in self.terms if slope * c != 0)
        return LinearForm(terms, slope * self.constant + intercept)

    def exact_line(self, slope: float, intercept: float) -> bool:
        """Whether :meth:`line` rounds nothing."""
        products = [(slope, c) for _, c in self.terms] + [(slope, self.constant)]
        exact = all(Fraction(a) * Fraction(b) == Fraction(a * b) for a, b in products)
        whole = Fraction(slope) * Fraction(self.constant) + Fraction(intercept)
        return exact and whole == Fraction(slope * self.constant + intercept)

    @property
    def range(self) -> Range:
        """What the reads' ranges allow."""
        out = Range(self.constant, self.constant)
        for read, coefficient in self.terms:
            out = out + read.range.times(coefficient)
        return out

    def signs(self) -> tuple[float, LinearForm] | None:
        """``(alpha, U)`` with self = alpha U + constant, where U's coefficients are +-1."""
        if not self.terms:
            return None
        alpha = self.terms[0][1]
        if any(abs(c) != abs(alpha) for _, c in self.terms):
            return None
        return alpha, LinearForm(tuple((r, c / alpha) for r, c in self.terms))

    @property
    def base(self) -> frozenset[tuple[Read, float]]:
        """The reads and their coefficients, in no order."""
        return frozenset(self.terms)


@dataclass(frozen=True)
class Pending:
    """``curve(U)``, U a form of +-1 coefficients without a number; ``range`` is U's."""

    curve: Curve
    of: LinearForm
    range: Range


@dataclass(frozen=True)
class FunctionPair:
    """``f(a + b) - g(a - b)``."""

    f: Curve
    g: Curve
    a: tuple[Read, ...]
    b: tuple[Read, ...]


def of_register(register: Register) -> LinearForm:
    """The value that a register holds."""
    return LinearForm(((Read("at", register), register.scale),))


# ---------------------------------------------------------------------------------------------
# curves
# ---------------------------------------------------------------------------------------------


def compose(outer: trees.Node, inner: trees.Node) -> trees.Node:
    """outer(inner(z)), written down as it stands."""
    if isinstance(outer, trees.Variable):
        return inner
    if isinstance(outer, trees.Number):
        return outer
    return trees.Operation(outer.name, tuple(compose(a, inner) for a in outer.arguments))


def affine(slope: float, intercept: float) -> trees.Node:
    """``slope z + intercept``."""
    out: trees.Node = Z
    if slope == -1:
        out = operation("neg", Z)
    elif slope != 1:
        out = operation("*", slope, Z)
    return out if intercept == 0 else operation("+", out, intercept)


def quarter_square(k: float, shift: float) -> trees.Node:
    """A quarter of k (z + shift)^2."""
    square = operation("^", affine(1.0, shift), 2.0)
    return operation("*", k / 4, square)


def steepest(curve: Curve, on: Range) -> float:
    """Bound of the slope of a curve away from the gap of a step."""
    if isinstance(curve, JumpCurve):
        return curve.steepest()
    more = 0.0 if on.low < on.high else 2.0**-20
    low, high = slope(curve, on.low - more, on.high + more)
    return max(abs(low), abs(high))


def mirrored(curve: Curve) -> Curve:
    """The curve of -z."""
    if isinstance(curve, JumpCurve):
        return curve.mirrored()
    return compose(curve, affine(-1.0, 0.0))


def times(curve: Curve, factor: float) -> Curve:
    """A curve by a power of two, or by -1."""
    if isinstance(curve, JumpCurve):
        return curve.line(Fraction(factor), Fraction(0))
    return operation("neg", curve) if factor == -1 else operation("*", factor, curve)


def scale_of(range: Range) -> float:
    """The power of two that a register divides a value by: 1 unless it is large or small.

    A product by squares is off by rounding of the square of the larger factor.
    """
    if range.size == 0 or 1 / PLAIN_SIZE <= range.size <= PLAIN_SIZE:
        return 1.0
    return 2.0 ** max(-_MOST_BITS, min(round(math.log2(range.size)), _MOST_BITS))


def at_zero(curve: Curve) -> float:
    """The value at 0; 1 for a curve that jumps, which is not exactly 0 there."""
    if isinstance(curve, JumpCurve):
        return 1.0
    return float(evaluate(curve, torch.zeros(1, dtype=torch.float64)))


def scaled_curve(curve: Curve, tree: trees.Node) -> Curve | None:
    """tree(curve(z)); None where the curve jumps and the tree is no line."""
    if not isinstance(curve, JumpCurve):
        return compose(tree, curve)
    if line(tree) is None:
        return None
    intercept, slope = (*(polynomial(tree) or ()), Fraction(0), Fraction(0))[:2]
    return curve.line(slope, intercept)


def paired(p: Pending, q: Pending) -> FunctionPair | None:
    """Both added up as one instruction, where one is a curve of a + b and the other of a - b."""
    if isinstance(p.curve, JumpCurve) or isinstance(q.curve, JumpCurve):
        return None
    mine, theirs = dict(p.of.terms), dict(q.of.terms)
    if mine.keys() != theirs.keys():
        return None
    same = [r for r in mine if mine[r] == theirs[r]]
    other = [r for r in mine if mine[r] != theirs[r]]
    if (
        not same
        or not other
        or len({mine[r] for r in same}) > 1
        or len({mine[r] for r in other}) > 1
    ):
        return None
    sign, with_other = mine[same[0]], mine[other[0]]
    flip = affine(sign, 0.0)
    # p is of sign (a + b) or sign (a - b), and q of the other.
    sums, differences = (p, q) if sign == with_other else (q, p)
    assert not isinstance(sums.curve, JumpCurve)
    assert not isinstance(differences.curve, JumpCurve)
    f = compose(sums.curve, flip)
    g = operation("neg", compose(differences.curve, flip))
    return FunctionPair(f, g, tuple(same), tuple(other))


# ---------------------------------------------------------------------------------------------
# operands
# ---------------------------------------------------------------------------------------------


class Slots:
    """Which read of an operand each term can be, for an instruction that writes to given lanes."""

    def __init__(self, samples: bool) -> None:
        self.samples = samples

    def kinds(self, read: Read) -> tuple[str, ...]:
        """The kinds of read that give it."""
        if read.how == "rowsum" and read.register.samples != self.samples:
            return ()
        if read.how != "at":
            return (read.how,)
        if read.register.samples:
            return ("own",) if self.samples else ()
        # Lane 0 alone holds it: the mean over the lanes that hold it is itself.
        return ("lane0", "mean") if self.samples else ("own", "lane0", "mean")

    def assigned(self, reads: tuple[Read, ...]) -> dict[str, Read] | None:
        """One kind for each read, all different; None where there is no way."""
        taken: dict[str, Read] = {}
        for read in sorted(reads, key=lambda r: len(self.kinds(r))):
            free = [k for k in self.kinds(read) if k not in taken]
            if not free:
                return None
            taken[free[0]] = read
        return taken

    def fits(self, reads: tuple[Read, ...]) -> bool:
        """Whether they make one operand."""
        return self.assigned(reads) is not None

    def divided(self, reads: tuple[Read, ...]) -> tuple[tuple[Read, ...], tuple[Read, ...]] | None:
        """The reads as two operands."""
        a: tuple[Read, ...] = ()
        b: tuple[Read, ...] = ()
        for read in reads:
            if self.fits((*a, read)):
                a = (*a, read)
            elif self.fits((*b, read)):
                b = (*b, read)
            else:
                return None
        return a, b
