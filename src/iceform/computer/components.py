r"""What virtual instructions say of single components, and of several instructions together.

**Places.** Values lie side by side in one register: a key beside a value, and the query beside
zeros. An error of the value is none of the key's, and moves no logit. So where registers are sums
of others, component by component, their ranges and errors are those of the components' sums.

**Shares.** ``where``, and minima and maxima by pieces, are :math:`o = \sum_r o_r r + \kappa p` with
a product :math:`p = \varphi c d` of a share c in [low, high] and a sum :math:`d = \sum_r d_r r`.
For any c that is

.. math:: o = \sum_r (o_r + \kappa \varphi c\, d_r)\, r,

so with e_r what the registers are off by, o is off by at most the larger one, at c = low and
c = high, of :math:`\sum_r |o_r + \kappa \varphi c\, d_r|\, e_r` (which is convex in c), and by what
the three instructions add: :math:`|\kappa|` times the product's own error, :math:`|\kappa \varphi|
\max |c|` times that of d, and :math:`|\kappa \varphi|\, (|d| + e_d)` times what c is off by. So b +
c (a - b) is off by no more than a or b, where instruction after instruction would add up a and
twice b. A comparison by which a minimum is taken is that of what is computed: z M(z) is max(z, 0)
of the z that is off, and the bound holds for it as for a share that is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from iceform.computer.ranges import ProgramDomain
from iceform.computer.virtual import (
    Curve,
    JumpCurve,
    Read,
    Register,
    VirtualCode,
    VirtualInstruction,
    VirtualLoop,
)
from iceform.expressions.formulas.polynomials import polynomial
from iceform.program import Range, outward

Sum = Mapping[Read, Fraction]
_NOTHING, _ZERO = Range(0.0, 0.0), Fraction(0)


@dataclass(frozen=True)
class Share:
    """An instruction o with a product of a share and a sum in it, as one sum of reads.

    ``ends`` are the sum's coefficients at both ends of the share's range. ``factor`` is kappa phi
    and ``size`` that of d, which is the reads ``of`` and a number. ``product`` and ``difference``
    are the registers whose own errors come on top, times the numbers beside them.
    """

    ends: tuple[Sum, Sum]
    share: Register
    factor: Fraction
    size: float
    of: tuple[Read, ...]
    product: tuple[Register, Fraction]
    difference: tuple[Register, Fraction] | None


def coefficients(curve: Curve | None, most: int) -> tuple[Fraction, ...] | None:
    """Of a polynomial, most + 1 of them; None for other curves."""
    known = () if curve is None else None if isinstance(curve, JumpCurve) else polynomial(curve)
    if known is None or len(known) > most + 1:
        return None
    return (*known, *(_ZERO,) * (most + 1 - len(known)))


def summed(i: VirtualInstruction) -> Sum | None:
    """The result as a sum of reads, but for a number; None where it is none."""
    f, g = coefficients(i.f, 1), coefficients(i.g, 1)
    if f is None or g is None:
        return None
    found: dict[Read, Fraction] = {}
    for reads, factor in ((i.a, f[1] - g[1]), (i.b, f[1] + g[1])):
        for read in reads:
            found[read] = found.get(read, _ZERO) + factor
    return found


@dataclass(frozen=True)
class RegisterComponents:
    """Of every register of a program."""

    code: VirtualCode
    domain: ProgramDomain

    @cached_property
    def made(self) -> Mapping[Register, VirtualInstruction]:
        """The instruction of a register that has one, and is no state of a loop."""
        each = list(instructions_of(self.code))
        often = Counter(i.dst for i in each)
        return {i.dst: i for i in each if often[i.dst] == 1 and not (i.dst.carried or i.dst.writes)}

    @cached_property
    def states(self) -> list[Register]:
        """What loops carry."""
        return [state for loop in _loops(self.code) for state in loop.states]

    @cached_property
    def sums(self) -> Mapping[Register, Sum]:
        """Registers that are sums of others, component by component, with zeros beyond."""
        found = {r: summed(i) for r, i in self.made.items() if r.clean and not r.single}
        return {r: s for r, s in found.items() if s and all(read.how == "at" for read in s)}

    @cached_property
    def _known(self) -> dict[Register, tuple[Range, ...]]:
        return {}

    def ranges(self, register: Register) -> tuple[Range, ...]:
        """Where each component lies."""
        if register not in self._known:
            self._known[register] = tuple(self._ranges(register))
        return self._known[register]

    def _ranges(self, register: Register) -> Iterator[Range]:
        for place in range(register.width or 1):
            yield self._range(register, place)

    def _range(self, register: Register, place: int) -> Range:
        if register.writes and not register.carried:
            written = _NOTHING
            for w in register.writes:
                if w.width is None or w.first <= place < w.first + w.width:
                    written = written + self._datum(w.source).times(w.scale)
            return written
        if register.single:
            return register.range if place == (register.width or 1) - 1 else _NOTHING
        if register not in self.sums:
            return register.range
        total = _NOTHING
        for read, c in self.sums[register].items():
            each = self.ranges(read.register)
            here = each[place] if place < len(each) else _NOTHING
            total = total + here * outward(float(c), float(c))
        return total.meet(register.range)

    def _datum(self, source: str) -> Range:
        most = float(self.domain.samples)
        given = {
            "one": Range(1.0, 1.0), "samples": Range(1.0, most), "index": Range(0.0, most - 1),
            "x": self.domain.x, "y": self.domain.y, **self.domain.parameters,
        }  # fmt: skip
        return given[source]

    @cached_property
    def shares(self) -> Mapping[VirtualInstruction, Share]:
        """Instructions that are better followed with those before them."""
        return dict(self._shares(self.code))

    def _shares(self, code: VirtualCode) -> Iterator[tuple[VirtualInstruction, Share]]:
        # Where each register of this block was last written; all that a loop writes at its end.
        at: dict[Register, int] = {}
        for number, item in enumerate(code.items):
            if isinstance(item, VirtualLoop):
                yield from self._shares(item.body)
                at |= {i.dst: number for i in instructions_of(item.body)}
                continue
            found = self._share(item, at)
            if found is not None:
                yield item, found
            at[item.dst] = number

    def _share(self, i: VirtualInstruction, at: Mapping[Register, int]) -> Share | None:
        whole = summed(i) or {}
        for read, kappa in whole.items():
            product = self.made.get(read.register)
            if product is None or read.how != "at" or product.dst not in at:
                continue
            rest = {r: c for r, c in whole.items() if r != read}
            for share, phi, others, number in _factors(product):
                inner, made = self._inner(others, at)
                # What is summed up must be the same now as when d was made.
                begun = at[product.dst if made is None else made]
                since = any(at.get(r.register, -1) > begun for r in inner)
                if since or not inner.keys() & rest.keys():
                    continue
                factor, most = kappa * phi, Fraction(share.range.size)
                low, high = (
                    _plus(rest, inner, factor * Fraction(end))
                    for end in (share.range.low, share.range.high)
                )
                size = sum((r.range for r in others), number).size
                own = None if made is None else (made, abs(factor) * most)
                return Share((low, high), share, factor, size, others, (product.dst, abs(kappa)),
                             own)  # fmt: skip
        return None

    def _inner(
        self, others: tuple[Read, ...], at: Mapping[Register, int]
    ) -> tuple[Sum, Register | None]:
        """What is multiplied with a share, as a sum, and the register with it if there is one."""
        if len(others) == 1 and others[0].how == "at" and others[0].register in at:
            made = self.made.get(others[0].register)
            found = None if made is None else summed(made)
            if made is not None and found is not None:
                return found, made.dst
        return dict.fromkeys(others, Fraction(1)), None


def _plus(a: Sum, b: Sum, factor: Fraction) -> Sum:
    return {r: a.get(r, _ZERO) + factor * b.get(r, _ZERO) for r in {**a, **b}}


def _factors(
    i: VirtualInstruction,
) -> Iterator[tuple[Register, Fraction, tuple[Read, ...], Range]]:
    """c, phi, and d as reads and a number, where the result is phi c (reads + number) + ...

    F - G = 4 p (a + s)(b + t), but for a number, if both have the second coefficient p.
    """
    f, g = coefficients(i.f, 2), coefficients(i.g, 2)
    if f is None or g is None or f[2] != g[2] or not f[2]:
        return
    shifts = (f[1] + g[1]) / (4 * f[2]), (f[1] - g[1]) / (4 * f[2])
    for c, shift, d, number in ((i.a, shifts[0], i.b, shifts[1]), (i.b, shifts[1], i.a, shifts[0])):
        if len(c) == 1 and c[0].how == "at" and not shift:
            yield c[0].register, 4 * f[2], d, outward(float(number), float(number))


def instructions_of(code: VirtualCode) -> Iterator[VirtualInstruction]:
    """Every instruction of code, those of its loops too."""
    for block in (code, *(loop.body for loop in _loops(code))):
        yield from (item for item in block.items if isinstance(item, VirtualInstruction))


def _loops(code: VirtualCode) -> Iterator[VirtualLoop]:
    for item in code.items:
        if isinstance(item, VirtualLoop):
            yield item
            yield from _loops(item.body)
