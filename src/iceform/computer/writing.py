"""Writing: forms, products and look-ups as instructions of registers.

======================================  =====================================================
alpha a + beta b + c                    F = p z + c, G = -q z, p, q = (alpha +- beta)/2
k (a + c)(b + e)                        F = k (z + c + e)^2/4, G = k (z + c - e)^2/4
f(a + b), f(a - b)                      F = f, or G = -f
max(a, b), min(a, b)                    F = z/2, G = -+|z|/2
f(a + b) + g(a - b)                     F = f, G = -g (a soft threshold, by a table)
a > b                                   a step: two entries
======================================  =====================================================

Where a table with a kink is not good enough, curves of straight pieces are comparisons and
products (:mod:`~iceform.computer.piecewise_linear`): three instructions a kink.

Data and parameters are read with the factor that is wanted, by writing them into the prompt with
it. A program may run on a computer wider than it needs, so it is noted of every register whether
zeros lie beyond its vector: only then may its components be summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from iceform.arithmetic.intervals import above
from iceform.arithmetic.units import UNIT
from iceform.computer.graph import Block, Graph, Loop, refuse
from iceform.computer.instructions import Write
from iceform.computer.piecewise_linear import STEEPEST, piecewise_linear
from iceform.computer.ranges import Ranges
from iceform.computer.tables import low_degree
from iceform.computer.virtual import (
    PLAIN_SIZE,
    Curve,
    FunctionPair,
    LinearForm,
    Pending,
    Read,
    Register,
    Slots,
    StepCurve,
    VirtualCode,
    VirtualInstruction,
    affine,
    at_zero,
    mirrored,
    of_register,
    operation,
    quarter_square,
    scale_of,
    steepest,
    times,
)
from iceform.program import Node, Range, SourceLine

# A comparison that is a value is looked up twice: tanh(0.3) > 0.29 is made 1 by 64 times the slope
# for certain, and what is nearer to a tie by a steeper one most likely.
_AGAIN = StepCurve(0.0, STEEPEST, 0.29, 0.0, 1.0)


@dataclass(frozen=True)
class CodeSite:
    """Where an instruction goes: a block, and the line that asked for it."""

    block: Block
    place: SourceLine | None


class InstructionWriter:
    """Registers, and the instructions that fill them, block by block.

    Attributes
    ----------
    block
        The one that is being written.
    width
        Components that the program needs so far.
    flag
        The register that decides branches.
    """

    def __init__(self, graph: Graph, ranges: Ranges, eps: float, *, sharp: bool = False) -> None:
        self.ranges, self.eps, self.sharp = ranges, eps, sharp
        self.width = graph.dim
        self.block = graph.block
        self.code: dict[Block, VirtualCode] = {}
        self.flag = Register("FLAG", False, None, Range(-1.0, 1.0), writes=(Write("one"),))
        self._depth: dict[Block, int] = {}
        self._home: dict[Node, Block] = {}
        self._note_homes(graph.block, 0)
        self._preloaded: dict[tuple[tuple[Write, ...], float, bool], Register] = {}

    # ------------------------------------------------------------------------------------ places

    def _note_homes(self, block: Block, depth: int) -> None:
        self._depth[block] = depth
        for item in block.items:
            if isinstance(item, Loop):
                self._note_homes(item.body, depth + 1)
                self._home |= {c.state: item.body for c in item.carried}
                self._home |= {c.result: block for c in item.carried}
            else:
                self._home[item] = block

    def site(self, node: Node) -> CodeSite:
        """In the block that a node belongs to, so that what a loop does not change is before it."""
        return CodeSite(self._home[node], node.place)

    def innermost(self, nodes: tuple[Node, ...], place: SourceLine | None) -> CodeSite:
        """In the innermost block that one of some nodes belongs to."""
        return CodeSite(max((self._home[n] for n in nodes), key=self._depth.__getitem__), place)

    def here(self, place: SourceLine | None) -> CodeSite:
        """In the block that is being written."""
        return CodeSite(self.block, place)

    # --------------------------------------------------------------------------------- registers

    def register(self, node: Node, name: str = "") -> Register:
        """A new register for the value of a node."""
        scale = scale_of(self.ranges[node])
        held = self.ranges[node].times(1 / scale)
        return Register(name or node.name, node.samples, node.width, held, scale=scale)

    def preload(
        self, writes: tuple[Write, ...], samples: bool, width: int | None, range: Range,
        name: str = "", scale: float = 1.0,
    ) -> Register:  # fmt: skip
        """A register that the prompt fills."""
        key = (writes, scale, samples)
        if key not in self._preloaded:
            clean = width is not None and all(w.width is not None for w in writes)
            for write in writes:
                self.width = max(self.width, write.first + (write.width or 0))
            self._preloaded[key] = Register(name, samples, width, range, clean, writes, scale)
        return self._preloaded[key]

    def mask(self, first: int, width: int, size: float = 1.0) -> Register:
        """Ones in some components, held as ``size``, a power of two.

        A product by squares is off by rounding of the larger factor's: a mask as large as what it
        is multiplied with costs nothing.
        """
        self.width = max(self.width, first + width)
        name = f"e{first}" if width == 1 else "ones"
        return self.preload((Write("one", size, first, width),), False, first + width,
                            Range(0.0, size), name, 1 / size)  # fmt: skip

    def cleaned(self, register: Register, site: CodeSite) -> Register:
        """The register with zeros beyond its width."""
        if register.clean:
            return register
        out = Register("", register.samples, register.width, register.range.join(Range(0.0, 0.0)),
                       clean=True, scale=register.scale)  # fmt: skip
        mask = of_register(self.mask(0, register.width or 1))
        self.product(out, of_register(register), mask, "zeros beyond the vector", site)
        return out

    def unscaled(self, register: Register, site: CodeSite) -> Register:
        """A register that holds the value itself."""
        if register.scale == 1:
            return register
        held = register.range.times(register.scale)
        out = Register(register.name, register.samples, register.width, held, register.clean)
        self.line(out, of_register(register), "as it is", site)
        return out

    def as_writes(self, late: LinearForm | Pending, width: int | None) -> tuple[Write, ...] | None:
        """What the prompt would have to write; None where it is more than data."""
        if not isinstance(late, LinearForm):
            return None
        writes: list[Write] = []
        for read, coefficient in late.terms:
            spread = (read.register.width is None) != (width is None)
            if not read.is_data or (spread and read.register.width is not None):
                return None
            factored = _factored(read.register.writes, Fraction(coefficient))
            if factored is None:
                return None
            writes += factored
        if late.constant != 0 or not writes:
            writes.append(Write("one", late.constant, 0, width))
        return tuple(writes)

    # ----------------------------------------------------------------------------------- look-ups

    def look_up(self, dst: Register, pending: Pending, note: str, site: CodeSite) -> None:
        """``curve(U)``; a curve of straight pieces by them, where a table will not do."""
        if piecewise_linear(pending.curve, pending.range, self.eps) is not None:
            self._by_pieces(dst, pending, note, site)
            return
        if dst.scale != 1:
            pending = replace(pending, curve=times(pending.curve, 1 / dst.scale))
        if isinstance(pending.curve, StepCurve):
            self.compare(dst, pending, note, site)
        else:
            self.by_table(dst, pending, note, site)

    def _by_pieces(self, dst: Register, pending: Pending, note: str, site: CodeSite) -> None:
        """A curve of straight pieces: comparisons, and products with their distances from kinks."""
        whole = pending.range
        pieces = piecewise_linear(pending.curve, whole, self.eps)
        assert pieces is not None
        z = LinearForm(((Read("at", self._one_read(pending, dst, site)), 1.0),))
        parts = LinearForm((), pieces.value)
        alone = pieces.value == 0 and len(pieces.kinks) == 1
        for bend in pieces.kinks:
            side = Register("", dst.samples, dst.width, Range(-1.0, 1.0))
            slope = Register("", dst.samples, dst.width, bend.range)
            first, second = bend.steps(whole, self.eps)
            self.by_table(side, Pending(first, z, whole), "side of a kink", site)
            once_more = Pending(second, of_register(side), side.range)
            self.by_table(slope, once_more, "slope there", site)
            away = LinearForm(z.terms, -bend.at)
            span = away.range * bend.range
            part = dst if alone else Register("", dst.samples, dst.width, span)
            made = note if alone else "part of a curve"
            kink, rounded = bend.off(whole, self.eps)
            own = pieces.off if bend is pieces.kinks[0] else 0.0
            self.product(part, away, of_register(slope), made, site, (kink + own, rounded))
            parts = parts.plus(of_register(part))
        if not alone:
            self.line(dst, parts, note, site)

    def _one_read(self, pending: Pending, dst: Register, site: CodeSite) -> Register:
        """The register with a look-up's argument."""
        if len(pending.of.terms) == 1:
            read, sign = pending.of.terms[0]
            if read.how == "at" and sign == 1 and read.register.samples == dst.samples:
                return read.register
        return self._argument(pending, dst, site)

    def _argument(self, pending: Pending, dst: Register, site: CodeSite) -> Register:
        register = Register("", dst.samples, dst.width, pending.range)
        self.line(register, pending.of, "argument", site)
        return register

    def compare(self, dst: Register, pending: Pending, note: str, site: CodeSite) -> None:
        """A comparison as a value: -1 to 1 first, then made steeper, scaled and shifted.

        A sharp one is made steeper twice.
        """
        step = pending.curve
        assert isinstance(step, StepCurve)
        pending = replace(pending, curve=replace(step, offset=0.0, height=1.0, off=0.0))
        for _ in range(2 if self.sharp else 1):
            middle = Register("", dst.samples, dst.width, Range(-1.0, 1.0))
            self.by_table(middle, pending, "compared", site)
            pending = Pending(_AGAIN, of_register(middle), middle.range)
        sharp = replace(_AGAIN, offset=step.offset, height=step.height, off=step.off)
        self.by_table(dst, replace(pending, curve=sharp), note, site)

    def by_table(self, dst: Register, pending: Pending, note: str, site: CodeSite) -> None:
        """``curve(U)`` by one table: by F if U is a sum, by G if it is a difference."""
        slots = Slots(dst.samples)
        pending = replace(pending, of=self.local(pending.of, dst.samples, site))
        plus = tuple(r for r, c in pending.of.terms if c > 0)
        minus = tuple(r for r, c in pending.of.terms if c < 0)
        gain = steepest(pending.curve, pending.range)
        if minus and not plus:
            plus, minus = minus, ()
            of, curve = pending.of.line(-1.0, 0.0), mirrored(pending.curve)
            pending = Pending(curve, of, -pending.range)
        f: Curve | None = pending.curve
        g: Curve | None = None
        if not minus:
            sides = slots.divided(plus)
        else:
            sides = (plus, minus) if slots.fits(plus) and slots.fits(minus) else None
            f, g = None, times(pending.curve, -1.0)
        if sides is None:
            held = of_register(self._argument(pending, dst, site))
            self.by_table(dst, replace(pending, of=held), note, site)
            return
        made = VirtualInstruction(dst, *sides, f, g, (gain, gain), note, site.place, pending.range)
        self.emit(made, site)
        stays = at_zero(pending.curve) == 0 and _has_zero(pending.curve, pending.range)
        _note_clean(dst, made.reads(), stays)

    def pair(self, dst: Register, pair: FunctionPair, note: str, site: CodeSite) -> None:
        """Two curves, of a sum and of the difference of the same reads."""
        if dst.scale != 1:
            pair = replace(pair, f=times(pair.f, 1 / dst.scale), g=times(pair.g, 1 / dst.scale))
        made = VirtualInstruction(dst, pair.a, pair.b, pair.f, pair.g, (0.0, 0.0), note, site.place)
        total = steepest(pair.f, made.plus) + steepest(pair.g, made.minus)
        made.gains = total, total
        known = _has_zero(pair.f, made.plus) and _has_zero(pair.g, made.minus)
        _note_clean(dst, made.reads(), known and at_zero(pair.f) == at_zero(pair.g))
        self.emit(made, site)

    # ----------------------------------------------------------------------- products and sums

    def factor(self, form: LinearForm, samples: bool, site: CodeSite) -> LinearForm | None:
        """The form as alpha (sum of reads) + c, which one operand takes; None where it is none.

        Data may be written with another factor.
        """
        form = self.local(form, samples, site)
        if not form.terms:
            return None
        alpha = next((c for r, c in form.terms if not r.is_data), form.terms[0][1])
        terms: list[tuple[Read, float]] = []
        for read, coefficient in form.terms:
            same = read if coefficient == alpha else self._rescaled(read, coefficient, alpha)
            if same is None:
                return None
            terms.append((same, alpha))
        if not Slots(samples).fits(tuple(r for r, _ in terms)):
            return None
        return LinearForm(tuple(terms), form.constant)

    def local(self, form: LinearForm, samples: bool, site: CodeSite) -> LinearForm:
        """The form with what only lane 0 can read put where every lane can."""
        terms = []
        for read, coefficient in form.terms:
            if not Slots(samples).kinds(read):
                register = Register("", False, None, read.range)
                line = LinearForm(((read, 1.0),))
                self.line(register, line, "for every lane", replace(site, place=None))
                terms.append((Read("at", register), coefficient))
            else:
                terms.append((read, coefficient))
        return LinearForm(tuple(terms), form.constant)

    def _rescaled(self, read: Read, coefficient: float, alpha: float) -> Read | None:
        """The same datum, written so that it is read with the coefficient alpha."""
        ratio = Fraction(coefficient) / Fraction(alpha)
        old = read.register
        writes = _factored(old.writes, ratio) if read.is_data else None
        if writes is None or Fraction(float(ratio)) != ratio:
            return None
        name = f"-{old.name}" if ratio == -1 else f"{float(ratio):g}*{old.name}"
        span = old.range.times(float(ratio))
        return replace(read, register=self.preload(writes, old.samples, old.width, span, name))

    def product(
        self, dst: Register, u: LinearForm, v: LinearForm, note: str, site: CodeSite,
        off: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        """A product of two forms, each of one coefficient; ``off`` as of :meth:`Kink.off`."""
        alpha, beta = u.terms[0][1], v.terms[0][1]
        k = alpha * beta / dst.scale
        shift_u, shift_v = u.constant / alpha, v.constant / beta
        exact = (
            Fraction(alpha) * Fraction(beta) == Fraction(k) * Fraction(dst.scale)
            and Fraction(u.constant) == Fraction(shift_u) * Fraction(alpha)
            and Fraction(v.constant) == Fraction(shift_v) * Fraction(beta)
            and Fraction(shift_u) + Fraction(shift_v) == Fraction(shift_u + shift_v)
            and Fraction(shift_u) - Fraction(shift_v) == Fraction(shift_u - shift_v)
        )
        if not exact:
            u, v = (self._settled(form, dst, site) for form in (u, v))
            k, shift_u, shift_v = u.terms[0][1] * v.terms[0][1] / dst.scale, 0.0, 0.0
        k /= _coarser(dst, abs(k) * max(u.range.size / abs(alpha), v.range.size / abs(beta)) ** 2)
        f = quarter_square(k, shift_u + shift_v)
        g = quarter_square(k, shift_u - shift_v)
        a, b = u.reads, v.reads
        gain_a = abs(k) * (total_of(b) + Range(shift_v, shift_v)).size
        gain_b = abs(k) * (total_of(a) + Range(shift_u, shift_u)).size
        _note_clean(dst, a, shift_u == 0)
        _note_clean(dst, b, shift_v == 0)
        made = VirtualInstruction(dst, a, b, f, g, (gain_a, gain_b), note, site.place)
        made.folded, made.rounded = off[0] / dst.scale, off[1] / dst.scale
        self.emit(made, site)

    def _settled(self, form: LinearForm, dst: Register, site: CodeSite) -> LinearForm:
        scale = scale_of(form.range)
        held = form.range.times(1 / scale)
        register = Register("", dst.samples, dst.width, held, scale=scale)
        self.line(register, form, "factor", site)
        return of_register(register)

    def line(
        self, dst: Register, form: LinearForm, note: str, site: CodeSite, *, copy: bool = False
    ) -> None:
        """A form: two groups of equal coefficients at a time."""
        slots = Slots(dst.samples)
        form = self.local(form, dst.samples, site)
        if dst.scale != 1:
            form = form.line(1 / dst.scale, 0.0)
        copy = copy and len(form.terms) == 1 and form.terms[0][1] == 1
        groups = _by_coefficient(form)
        if len(groups) <= 1:
            alpha, reads = next(iter(groups.items()), (1.0, ()))
            divided = slots.divided(reads)
            if divided is not None:
                _note_clean(dst, reads, form.constant == 0 and not copy)
                f, gains = affine(alpha, form.constant), (abs(alpha), abs(alpha))
                self.emit(
                    VirtualInstruction(dst, *divided, f, None, gains, note, site.place, copy=copy),
                    site,
                )
                return
        elif len(groups) == 2 and all(map(slots.fits, groups.values())):
            self._two_groups(dst, groups, form.constant, note, site)
            return
        taken = self._first_part(form, slots)
        register = Register("", dst.samples, dst.width, taken.range)
        self.line(register, taken, "part of a sum", site)
        rest = tuple(t for t in form.terms if t not in taken.terms)
        left = LinearForm(((Read("at", register), 1.0), *rest), form.constant)
        self.line(dst, left.line(dst.scale, 0.0), note, site)

    def _first_part(self, form: LinearForm, slots: Slots) -> LinearForm:
        """As many terms as one instruction adds up, at least two."""
        taken = LinearForm(form.terms[:1])
        for term in form.terms[1:]:
            more = LinearForm((*taken.terms, term))
            groups = _by_coefficient(more)
            if len(groups) <= 2 and all(map(slots.fits, groups.values())):
                taken = more
        if len(taken.terms) == 1:
            (_, coefficient), (_, second) = form.terms[:2]
            if coefficient == second:
                return LinearForm(form.terms[:2])
            raise refuse("a sum of this kind has no instruction; name its parts", None)
        return taken

    def _two_groups(
        self, dst: Register, groups: dict[float, tuple[Read, ...]], constant: float, note: str,
        site: CodeSite,
    ) -> None:  # fmt: skip
        """The line alpha a + beta b + c."""
        (alpha, a), (beta, b) = groups.items()
        p, q = (alpha + beta) / 2, (alpha - beta) / 2
        f = affine(p, constant) if p != 0 else None
        g = operation("neg", affine(q, 0.0 if p != 0 else constant)) if q != 0 else None
        _note_clean(dst, (*a, *b), constant == 0)
        off = abs(Fraction(p) + Fraction(q) - Fraction(alpha)) * Fraction(total_of(a).size)
        off += abs(Fraction(p) - Fraction(q) - Fraction(beta)) * Fraction(total_of(b).size)
        made = VirtualInstruction(dst, a, b, f, g, (abs(alpha), abs(beta)), note, site.place)
        made.folded = above(off)
        self.emit(made, site)

    def emit(self, instruction: VirtualInstruction, site: CodeSite) -> None:
        """One instruction, the last of its block so far."""
        self.code[site.block].items.append(instruction)


def _coarser(dst: Register, squares: float) -> float:
    """By how much the unit of a product's register is made larger; 1 if it may stay.

    The product is a difference of squares. Where rounding of these alone would fill the register,
    because next to nothing is multiplied with a far larger number, it holds rounding in a unit in
    which that is small.
    """
    rounding = UNIT * squares * PLAIN_SIZE
    if dst.scale >= 1 or rounding <= 1:
        return 1.0
    factor = min(2.0 ** math.ceil(math.log2(rounding)), 1 / dst.scale)
    dst.scale *= factor
    dst.range = dst.range.times(1 / factor)
    return factor


def total_of(reads: tuple[Read, ...]) -> Range:
    """The range of their sum."""
    return LinearForm(tuple((r, 1.0) for r in reads)).range


def _factored(writes: tuple[Write, ...], factor: Fraction) -> tuple[Write, ...] | None:
    """What the prompt writes, by a factor; None where that rounds."""
    exact = [Fraction(w.scale) * factor for w in writes]
    if any(Fraction(float(scale)) != scale for scale in exact):
        return None
    return tuple(replace(w, scale=float(s)) for w, s in zip(writes, exact, strict=True))


def _by_coefficient(form: LinearForm) -> dict[float, tuple[Read, ...]]:
    """The reads that have each coefficient."""
    groups: dict[float, tuple[Read, ...]] = {}
    for read, coefficient in form.terms:
        groups[coefficient] = (*groups.get(coefficient, ()), read)
    return groups


def _note_clean(dst: Register, reads: tuple[Read, ...], keeps_zero: bool) -> None:
    """Zeros lie beyond a vector where they do in what is read, and 0 is mapped to 0."""
    if dst.width is not None and keeps_zero and all(r.clean for r in reads):
        dst.clean = True


def _has_zero(curve: Curve, span: Range) -> bool:
    """Whether a table for these arguments knows the curve at 0; those of sums and products do."""
    return low_degree(curve) or span.low <= 0 <= span.high
