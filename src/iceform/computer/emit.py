"""Emitting: forms, products and look-ups written as instructions of registers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from iceform.arithmetic.intervals import above
from iceform.computer.graph import Block, Graph, Loop, refuse
from iceform.computer.instructions import Write
from iceform.computer.piecewise_linear import PiecewiseLinear, piecewise_linear
from iceform.computer.ranges import Ranges
from iceform.computer.tables import low_degree
from iceform.computer.virtual import (
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
    negative,
    of_register,
    operation,
    quarter_square,
    scale_of,
    steepest,
    times,
)
from iceform.program import Node, NodeOperation, Range, SourceLine

Late = LinearForm | Pending | FunctionPair

# A comparison that is a value is looked up twice: tanh(0.3) > 0.29 is made 1 by 64 times the slope.
AGAIN = StepCurve(0.0, 64.0, 0.29, 0.0, 1.0)


class Emitter:
    """Registers, and the instructions that fill them.

    An instruction is written into the code of the block that its node belongs to, or into the
    current one.
    """

    def __init__(self, graph: Graph, ranges: Ranges, eps: float) -> None:
        self.graph, self.ranges, self.eps = graph, ranges, eps
        self.width = graph.dim
        self.top = graph.block
        self.pending: dict[Node, Late] = {}
        self.register_of_node: dict[Node, Register] = {}
        self.block_of = _homes(graph.block)
        self.depth = _depths(graph.block)
        self.code: dict[Block, VirtualCode] = {}
        self.current_block = graph.block
        self.written: dict[tuple[tuple[Write, ...], float, bool], Register] = {}
        self.clean = clean_states(graph.block)
        self.gaps: dict[Node, float] = {}
        self.flag = Register("FLAG", False, None, Range(-1.0, 1.0), writes=(Write("one"),))

    def register(self, node: Node, name: str = "") -> Register:
        """The register that holds a node's value; computed now if it is not yet."""
        if node not in self.register_of_node:
            late = self.value(node)
            held = _as_register(late)
            writes = None if held is not None else self.as_writes(late, node.width)
            if held is not None and held.samples == node.samples:
                self.register_of_node[node] = held
            elif writes is not None and not node.samples:
                self.register_of_node[node] = self.preload(
                    writes, node.samples, node.width, self.ranges[node]
                )
            else:
                self.register_of_node[node] = self.register_of(late, node, name)
        return self.register_of_node[node]

    def register_of(self, late: Late, node: Node, name: str = "") -> Register:
        """A new register with a value of a node."""
        register = self.new_register(node, name)
        self.compute(late, register, node)
        return register

    def new_register(self, node: Node, name: str = "") -> Register:
        scale = scale_of(self.ranges[node])
        held = self.ranges[node].times(1 / scale)
        return Register(name or node.name, node.samples, node.width, held, scale=scale)

    def preload(
        self, writes: tuple[Write, ...], samples: bool, width: int | None, range: Range,
        name: str = "", scale: float = 1.0,
    ) -> Register:  # fmt: skip
        """A register that the prompt fills."""
        key = (writes, scale, samples)
        if key not in self.written:
            clean = width is not None and all(w.width is not None for w in writes)
            for write in writes:
                self.width = max(self.width, write.first + (write.width or 0))
            self.written[key] = Register(name, samples, width, range, clean, writes, scale)
        return self.written[key]

    def mask(self, first: int, width: int, size: float = 1.0) -> Register:
        """Ones in some components, held as ``size``, a power of two.

        A product by squares is off by rounding of the larger factor's: a mask as large as what it
        is multiplied with costs nothing.
        """
        self.width = max(self.width, first + width)
        name = f"e{first}" if width == 1 else "ones"
        return self.preload((Write("one", size, first, width),), False, first + width,
                            Range(0.0, size), name, 1 / size)  # fmt: skip

    def cleaned(self, register: Register, node: Node) -> Register:
        """The register with zeros beyond its width."""
        if register.clean:
            return register
        out = Register("", register.samples, register.width, register.range.join(Range(0.0, 0.0)),
                       clean=True, scale=register.scale)  # fmt: skip
        mask = of_register(self.mask(0, register.width or 1))
        self.product(out, of_register(register), mask, node, "zeros beyond the vector")
        return out

    def unscaled(self, register: Register, node: Node) -> Register:
        """A register that holds the value itself."""
        if register.scale == 1:
            return register
        held = register.range.times(register.scale)
        out = Register(register.name, register.samples, register.width, held, register.clean)
        self.emit_line(out, of_register(register), "as it is", node.place, node=node)
        return out

    def as_writes(self, late: Late, width: int | None) -> tuple[Write, ...] | None:
        """What the prompt would have to write; None where it is more than data."""
        if not isinstance(late, LinearForm):
            return None
        writes = []
        for read, coefficient in late.terms:
            if read.how != "at" or not read.register.writes or self.is_state(read.register):
                return None
            if (read.register.width is None) != (width is None) and read.register.width is not None:
                return None
            for w in read.register.writes:
                if Fraction(w.scale) * Fraction(coefficient) != Fraction(w.scale * coefficient):
                    return None
                writes.append(replace(w, scale=w.scale * coefficient))
        if late.constant != 0 or not writes:
            span = None if width is None else width
            writes.append(Write("one", late.constant, 0, span))
        return tuple(writes)

    def is_state(self, register: Register) -> bool:
        return any(
            r is register for n, r in self.register_of_node.items() if n.op in ("state", "result")
        )

    def together(self, parts: tuple[Node, ...], like: Node) -> Node:
        """A node in the lanes of ``like`` that belongs to the innermost block of its parts."""
        homes = [self.block_of.get(p, self.current_block) for p in parts]
        depths = [self.depth.get(h, 0) for h in homes]
        node = Node("concat", parts, like.samples, None, None, like.place)
        self.block_of[node] = homes[depths.index(max(depths))]
        return node

    def value(self, node: Node) -> Late:
        """What is known of a node."""
        return self.pending[node]

    def form(self, node: Node) -> LinearForm:
        """A node as a form; curves are looked up."""
        late = self.value(node)
        return late if isinstance(late, LinearForm) else of_register(self.register(node))

    def compute(self, late: Late, dst: Register, node: Node) -> None:
        """Write a late value into a register."""
        if isinstance(late, LinearForm):
            self.emit_line(dst, late, node.name or short_name(node), node.place, node=node)
        elif isinstance(late, Pending):
            self.look_up(dst, late, short_name(node), node.place, node)
        else:
            if dst.scale != 1:
                late = replace(late, f=times(late.f, 1 / dst.scale), g=times(late.g, 1 / dst.scale))
            gains = self._pair_gains(late)
            probe = VirtualInstruction(self.flag, late.a, late.b, late.f, late.g, gains)
            known = all(map(_has_zero, (late.f, late.g), (probe.plus, probe.minus)))
            dst.clean = all(r.clean for r in (*late.a, *late.b)) and (
                known and at_zero(late.f) == at_zero(late.g)
            )
            self.emit(
                VirtualInstruction(
                    dst, late.a, late.b, late.f, late.g, gains, short_name(node), node.place
                ),
                node,
            )

    def _pair_gains(self, pair: FunctionPair) -> tuple[float, float]:
        probe = VirtualInstruction(self.flag, pair.a, pair.b, pair.f, pair.g, (0.0, 0.0))
        total = steepest(pair.f, probe.plus) + steepest(pair.g, probe.minus)
        return total, total

    def look_up(
        self,
        dst: Register,
        pending: Pending,
        note: str,
        place: SourceLine | None,
        node: Node | None,
    ) -> None:
        """``curve(U)``, in the units of the register."""
        pieces = piecewise_linear(pending.curve, pending.range, self.eps)
        if pieces is not None and node is not None:
            self._by_pieces(dst, pending, pieces, note, node)
            return
        curve = times(pending.curve, 1 / dst.scale) if dst.scale != 1 else pending.curve
        self._look_up(dst, replace(pending, curve=curve), note, place, node)

    def _by_pieces(
        self, dst: Register, pending: Pending, pieces: PiecewiseLinear, note: str, node: Node
    ) -> None:
        """A curve of straight pieces: comparisons, and products with their distances from kinks."""
        place, whole = node.place, pending.range
        held = self._one_read(pending, dst, node)
        z = LinearForm(((Read("at", held), 1.0),))
        parts = LinearForm((), pieces.value)
        alone = pieces.value == 0 and len(pieces.kinks) == 1
        for bend in pieces.kinks:
            side = Register("", dst.samples, dst.width, Range(-1.0, 1.0))
            slope = Register("", dst.samples, dst.width, bend.range)
            first, second = bend.steps(whole, self.eps)
            self._look_up(side, Pending(first, z, whole), "side of a kink", place, node, True)
            once_more = Pending(second, of_register(side), side.range)
            self._look_up(slope, once_more, "slope there", place, node, True)
            away = LinearForm(z.terms, -bend.at)
            span = away.range * bend.range
            part = dst if alone else Register("", dst.samples, dst.width, span)
            made = note if alone else "part of a curve"
            kink, rounded = bend.off(whole, self.eps)
            own = pieces.off if bend is pieces.kinks[0] else 0.0
            self.product(part, away, of_register(slope), node, made, (kink + own, rounded))
            parts = parts.plus(of_register(part))
        if not alone:
            self.emit_line(dst, parts, note, place, node=node)

    def _one_read(self, pending: Pending, dst: Register, node: Node) -> Register:
        """The register with a look-up's argument."""
        if len(pending.of.terms) == 1:
            read, sign = pending.of.terms[0]
            if read.how == "at" and sign == 1 and read.register.samples == dst.samples:
                return read.register
        register = Register("", dst.samples, dst.width, pending.range)
        self.emit_line(register, pending.of, "argument", node.place, node=node)
        return register

    def look_up_twice(
        self,
        dst: Register,
        pending: Pending,
        note: str,
        place: SourceLine | None,
        node: Node | None,
    ) -> None:
        """A comparison as a value: -1 to 1 first, then made steeper, scaled and shifted."""
        step = pending.curve
        assert isinstance(step, StepCurve)
        middle = Register("", dst.samples, dst.width, Range(-1.0, 1.0))
        plain = replace(step, offset=0.0, height=1.0, off=0.0)
        self._look_up(middle, replace(pending, curve=plain), "compared", place, node, again=True)
        sharp = replace(AGAIN, offset=step.offset, height=step.height, off=step.off)
        once_more = Pending(sharp, of_register(middle), middle.range)
        self._look_up(dst, once_more, note, place, node, again=True)

    def _look_up(
        self, dst: Register, pending: Pending, note: str, place: SourceLine | None,
        node: Node | None = None, again: bool = False,
    ) -> None:  # fmt: skip
        """``curve(U)``: by F if U is a sum, by G if it is a difference."""
        if isinstance(pending.curve, StepCurve) and dst is not self.flag and not again:
            self.look_up_twice(dst, pending, note, place, node)
            return
        slots = Slots(dst.samples)
        pending = replace(pending, of=self.local(pending.of, dst.samples, node))
        plus = tuple(r for r, c in pending.of.terms if c > 0)
        minus = tuple(r for r, c in pending.of.terms if c < 0)
        gain = steepest(pending.curve, pending.range)
        if minus and not plus:
            plus, minus = minus, ()
            pending = replace(pending, curve=mirrored(pending.curve), range=-pending.range)
        if not minus:
            divided = slots.divided(plus)
            if divided is not None:
                a, b = divided
                self.emit(
                    VirtualInstruction(
                        dst, a, b, pending.curve, None, (gain, gain), note, place, pending.range
                    ),
                    node,
                )
                self._mark_clean(dst, (*a, *b), pending)
                return
        elif slots.fits(plus) and slots.fits(minus):
            curve = negative(pending.curve)
            self.emit(
                VirtualInstruction(
                    dst, plus, minus, None, curve, (gain, gain), note, place, pending.range
                ),
                node,
            )
            self._mark_clean(dst, (*plus, *minus), pending)
            return
        register = Register("", dst.samples, dst.width, pending.range)
        self.emit_line(register, pending.of, "argument", place, node=node)
        self._look_up(dst, replace(pending, of=of_register(register)), note, place, node, again)

    def _mark_clean(self, dst: Register, reads: tuple[Read, ...], pending: Pending) -> None:
        if dst.width is not None and dst is not self.flag and not dst.clean:
            stays = at_zero(pending.curve) == 0 and _has_zero(pending.curve, pending.range)
            dst.clean = all(r.clean for r in reads) and stays

    def operand(self, argument: Node, node: Node) -> LinearForm:
        """An argument of ``node`` as alpha (sum of reads) + c, which one operand takes."""
        form = self.local(self.form(argument), node.samples, node)
        fitted = self._uniform(form, node.samples)
        return of_register(self.register(argument)) if fitted is None else fitted

    def local(self, form: LinearForm, samples: bool, node: Node | None) -> LinearForm:
        """The form with what only lane 0 can read put where every lane can."""
        terms = []
        for read, coefficient in form.terms:
            if not Slots(samples).kinds(read):
                register = Register("", False, None, read.range)
                line = LinearForm(((read, 1.0),))
                self.emit_line(register, line, "for every lane", None, node=node)
                terms.append((Read("at", register), coefficient))
            else:
                terms.append((read, coefficient))
        return LinearForm(tuple(terms), form.constant)

    def _uniform(self, form: LinearForm, samples: bool) -> LinearForm | None:
        """The form with one coefficient for all reads; data may be written with another."""
        if not form.terms:
            return None
        alpha = next((c for r, c in form.terms if not self._is_data(r)), form.terms[0][1])
        terms: list[tuple[Read, float]] = []
        for read, coefficient in form.terms:
            same = read if coefficient == alpha else self._rescaled(read, coefficient, alpha)
            if same is None:
                return None
            terms.append((same, alpha))
        if not Slots(samples).fits(tuple(r for r, _ in terms)):
            return None
        return LinearForm(tuple(terms), form.constant)

    def _is_data(self, read: Read) -> bool:
        return read.how == "at" and bool(read.register.writes) and not self.is_state(read.register)

    def _rescaled(self, read: Read, coefficient: float, alpha: float) -> Read | None:
        """The same datum, written so that it is read with the coefficient alpha."""
        if not self._is_data(read):
            return None
        ratio = Fraction(coefficient) / Fraction(alpha)
        if Fraction(float(ratio)) != ratio:
            return None
        writes = []
        for w in read.register.writes:
            scale = Fraction(w.scale) * ratio
            if Fraction(float(scale)) != scale:
                return None
            writes.append(replace(w, scale=float(scale)))
        old = read.register
        name = f"-{old.name}" if ratio == -1 else f"{float(ratio):g}*{old.name}"
        new = self.preload(
            tuple(writes), old.samples, old.width, old.range.times(float(ratio)), name
        )
        return replace(read, register=new)

    def product(
        self, dst: Register, u: LinearForm, v: LinearForm, node: Node, note: str,
        off: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        """A product of two forms, each of one coefficient; ``off`` as of :meth:`Bend.off`."""
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
            u, v = (self._settled(form, dst, node) for form in (u, v))
            k, shift_u, shift_v = u.terms[0][1] * v.terms[0][1] / dst.scale, 0.0, 0.0
        f = quarter_square(k, shift_u + shift_v)
        g = quarter_square(k, shift_u - shift_v)
        a, b = reads_of(u), reads_of(v)
        gain_a = abs(k) * (total_of(b) + Range(shift_v, shift_v)).size
        gain_b = abs(k) * (total_of(a) + Range(shift_u, shift_u)).size
        if dst.width is not None and not dst.clean:
            dst.clean = (all(r.clean for r in a) and shift_u == 0) or (
                all(r.clean for r in b) and shift_v == 0
            )
        instruction = VirtualInstruction(dst, a, b, f, g, (gain_a, gain_b), note, node.place)
        instruction.folded, instruction.rounded = off[0] / dst.scale, off[1] / dst.scale
        self.emit(instruction, node)

    def _settled(self, form: LinearForm, dst: Register, node: Node) -> LinearForm:
        scale = scale_of(form.range)
        held = form.range.times(1 / scale)
        register = Register("", dst.samples, dst.width, held, scale=scale)
        self.emit_line(register, form, "factor", node.place, node=node)
        return of_register(register)

    def emit_line(
        self, dst: Register, form: LinearForm, note: str, place: SourceLine | None, *,
        copy: bool = False, node: Node | None = None,
    ) -> None:  # fmt: skip
        """A form: two groups of equal coefficients at a time."""
        slots = Slots(dst.samples)
        form = self.local(form, dst.samples, node)
        if dst.scale != 1:
            form = form.line(1 / dst.scale, 0.0)
        copy = copy and len(form.terms) == 1 and form.terms[0][1] == 1
        groups: dict[float, tuple[Read, ...]] = {}
        for read, coefficient in form.terms:
            groups[coefficient] = (*groups.get(coefficient, ()), read)
        if len(groups) <= 1:
            alpha, reads = next(iter(groups.items()), (1.0, ()))
            divided = slots.divided(reads)
            if divided is not None:
                a, b = divided
                if not dst.clean and dst.width is not None and not copy:
                    dst.clean = all(r.clean for r in reads) and form.constant == 0
                self.emit(
                    VirtualInstruction(dst, a, b, affine(alpha, form.constant), None,
                                       (abs(alpha), abs(alpha)), note, place, copy=copy), node,
                )  # fmt: skip
                return
        elif len(groups) == 2:
            (alpha, a), (beta, b) = groups.items()
            if slots.fits(a) and slots.fits(b):
                self._emit_two(dst, alpha, a, beta, b, form.constant, note, place, node)
                return
        taken = self._first_part(form, slots)
        register = Register("", dst.samples, dst.width, taken.range)
        self.emit_line(register, taken, "part of a sum", place, node=node)
        rest = tuple(t for t in form.terms if t not in taken.terms)
        left = LinearForm(((Read("at", register), 1.0), *rest), form.constant)
        self.emit_line(dst, left.line(dst.scale, 0.0), note, place, node=node)

    def _first_part(self, form: LinearForm, slots: Slots) -> LinearForm:
        """As many terms as one instruction adds up, at least two."""
        taken = LinearForm(form.terms[:1])
        for term in form.terms[1:]:
            more = LinearForm((*taken.terms, term))
            groups: dict[float, tuple[Read, ...]] = {}
            for read, coefficient in more.terms:
                groups[coefficient] = (*groups.get(coefficient, ()), read)
            if len(groups) <= 2 and all(slots.fits(g) for g in groups.values()):
                taken = more
        if len(taken.terms) == 1:
            (_, coefficient), (_, second) = form.terms[:2]
            if coefficient == second:
                return LinearForm(form.terms[:2])
            raise refuse("a sum of this kind has no instruction; name its parts", None)
        return taken

    def _emit_two(
        self, dst: Register, alpha: float, a: tuple[Read, ...], beta: float, b: tuple[Read, ...],
        constant: float, note: str, place: SourceLine | None, node: Node | None,
    ) -> None:  # fmt: skip
        """The line alpha a + beta b + c."""
        p, q = (alpha + beta) / 2, (alpha - beta) / 2
        f = affine(p, constant) if p != 0 else None
        g = operation("neg", affine(q, 0.0 if p != 0 else constant)) if q != 0 else None
        if not dst.clean and dst.width is not None:
            dst.clean = all(r.clean for r in (*a, *b)) and constant == 0
        off = abs(Fraction(p) + Fraction(q) - Fraction(alpha)) * Fraction(total_of(a).size)
        off += abs(Fraction(p) - Fraction(q) - Fraction(beta)) * Fraction(total_of(b).size)
        instruction = VirtualInstruction(dst, a, b, f, g, (abs(alpha), abs(beta)), note, place)
        instruction.folded = above(off)
        self.emit(instruction, node)

    def emit(self, instruction: VirtualInstruction, node: Node | None = None) -> None:
        block = self.current_block if node is None else self.block_of.get(node, self.current_block)
        self.code[block].items.append(instruction)


def _homes(block: Block) -> dict[Node, Block]:
    homes: dict[Node, Block] = {}
    for item in block.items:
        if isinstance(item, Loop):
            homes.update(_homes(item.body))
            homes.update({c.state: item.body for c in item.carried})
            homes.update({c.result: block for c in item.carried})
        else:
            homes[item] = block
    return homes


def _depths(block: Block, depth: int = 0) -> dict[Block, int]:
    """How many loops are around each block."""
    found = {block: depth}
    for item in block.items:
        if isinstance(item, Loop):
            found.update(_depths(item.body, depth + 1))
    return found


def reads_of(form: LinearForm) -> tuple[Read, ...]:
    """Its reads, without their coefficients."""
    return tuple(r for r, _ in form.terms)


def total_of(reads: tuple[Read, ...]) -> Range:
    """The range of their sum."""
    return LinearForm(tuple((r, 1.0) for r in reads)).range


def _as_register(late: Late) -> Register | None:
    if isinstance(late, LinearForm) and late.constant == 0 and len(late.terms) == 1:
        read, coefficient = late.terms[0]
        if read.how == "at" and coefficient == read.register.scale:
            return read.register
    return None


def short_name(node: Node) -> str:
    """What a note calls a node."""
    return node.shown


# ---------------------------------------------------------------------------------------------
# which values are zero beyond their vector, told from the graph alone: a program may run on a
# computer wider than it needs, and what lies beyond a vector must add nothing to sums
# ---------------------------------------------------------------------------------------------


def _has_zero(curve: Curve, span: Range) -> bool:
    """Whether a table for these arguments knows the curve at 0; those of sums and products do."""
    return low_degree(curve) or span.low <= 0 <= span.high


def clean_states(block: Block) -> set[Node]:
    """The states whose start is clean and that every turn keeps so."""
    known: dict[Node, bool] = {}
    _cleaned_block(block, known)
    return {n for n, clean in known.items() if n.op == "state" and clean}


def _cleaned_block(block: Block, known: dict[Node, bool]) -> None:
    for item in block.items:
        if isinstance(item, Loop):
            _cleaned_loop(item, known)
        else:
            known[item] = item.width is not None and _clean(item, [known[a] for a in item.args])


def _cleaned_loop(loop: Loop, known: dict[Node, bool]) -> None:
    for c in loop.carried:
        known[c.state] = known[c.start]
    while True:
        _cleaned_block(loop.body, known)
        spoilt = [c for c in loop.carried if known[c.state] and not known[c.next]]
        if not spoilt:
            break
        for c in spoilt:
            known[c.state] = False
    for c in loop.carried:
        known[c.result] = known[c.state]


def _clean(node: Node, args: list[bool]) -> bool:
    if node.op in ("data", "parameter"):
        return True
    row = NodeOperation.table.get(node.op)
    return row is not None and row.clean(node, args)
