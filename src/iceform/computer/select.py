"""Selecting: a graph with ranges becomes instructions, as few as there need be.

Nothing is computed before somebody needs it: what is known of a node is a form or a curve
(:mod:`~iceform.computer.virtual`), and its row of the table of operations says which, by the words
of the :class:`Selector`. What one instruction can express is then one
(:mod:`~iceform.computer.writing`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from iceform.arithmetic.intervals import above
from iceform.arithmetic.units import UNIT
from iceform.computer.graph import Block, Graph, Loop, refuse, settled
from iceform.computer.instructions import Write
from iceform.computer.piecewise_linear import STEEPEST, piecewise_linear
from iceform.computer.ranges import Ranges
from iceform.computer.side_by_side import attended, packed
from iceform.computer.tables import bends_too_much
from iceform.computer.virtual import (
    Curve,
    FunctionPair,
    JumpCurve,
    LinearForm,
    Pending,
    Read,
    Register,
    SelectedCode,
    Slots,
    StairCurve,
    StepCurve,
    VirtualCode,
    VirtualInstruction,
    VirtualLoop,
    Z,
    affine,
    compose,
    of_register,
    operation,
    paired,
    scale_of,
    scaled_curve,
)
from iceform.computer.writing import CodeSite, InstructionWriter
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.polynomials import line
from iceform.program import Node, Range, SourceLine

_LARGEST_CURVE = 256  # operations of one look-up's function: a chain of products doubles them
_SURE = 0.3  # sharpness times gap of a comparison that is looked up twice
# Sharpness times the distance from 0 of where it jumps: 2^-36 of the range, and 2^-46. What is
# looked up last has a logit of 16 there, or of far more.
_BESIDE = 16 / STEEPEST
_BESIDE_SHARP = _BESIDE / 1024
# Sharpness times gap of what decides a branch: FLAG is within 2 e^-12 < 2^-10 of +-1.
_DECIDED = 6.0
_HALF_WAY = 0.25  # from a half, where counters are, or from 0 and 1, to where it is decided

Late = LinearForm | Pending  # what is known of a node before it is computed


def select(graph: Graph, ranges: Ranges, eps: float, *, sharp: bool = False) -> SelectedCode:
    """The instructions of a graph; ``eps`` is what one look-up may be off by.

    ``sharp`` comparisons take a look-up more, and decide a million times nearer to a tie.
    """
    writer = InstructionWriter(graph, ranges, eps, sharp=sharp)
    selector = Selector(ranges, writer)
    LoopSelector(graph, selector).block(graph.block)
    outputs = {
        name: (writer.unscaled(selector.register(node), writer.site(node)), node.width)
        for name, node in graph.outputs.items()
    }
    code = writer.code[graph.block]
    return SelectedCode(code, outputs, writer.width, writer.flag, selector.gaps)


class Selector:
    """What is known of each node, and in which register it is once it has been computed.

    Attributes
    ----------
    gaps
        How near to a tie each comparison may come.
    """

    def __init__(self, ranges: Ranges, writer: InstructionWriter) -> None:
        self.ranges, self.writer = ranges, writer
        self.gaps: dict[Node, float] = {}
        self._late: dict[Node, Late] = {}
        self._registers: dict[Node, Register] = {}

    def node(self, node: Node) -> None:
        """Select one node, whose arguments are."""
        if node in self._late:
            return
        late: Late = node.operation.select(self, node)
        if self._narrower_than(node, late):
            late = self._computed(late, node)
        self._late[node] = late

    def _narrower_than(self, node: Node, late: Late) -> bool:
        """Whether the example says more of a value than what it is made of: it is one of its own.

        What is then computed from it has the narrower range.
        """
        assumed = self.ranges.assumed.get(node)
        if assumed is None or assumed.by != "example" or node.operation.given:
            return False
        if isinstance(late, Pending):
            return not isinstance(late.curve, JumpCurve)
        return late.range.size > 4 * self.ranges[node].size

    # ------------------------------------------------------------------------- what is known

    def value(self, node: Node) -> Late:
        """What is known of a node."""
        return self._late[node]

    def form(self, node: Node) -> LinearForm:
        """A node as a form; curves are looked up."""
        late = self._late[node]
        return late if isinstance(late, LinearForm) else of_register(self.register(node))

    def factor(self, argument: Node, samples: bool, site: CodeSite) -> LinearForm:
        """An argument as alpha (sum of reads) + c, which one operand takes."""
        form = self.writer.factor(self.form(argument), samples, site)
        return of_register(self.register(argument)) if form is None else form

    def register(self, node: Node, name: str = "") -> Register:
        """The register that holds a node's value; computed now if it is not yet."""
        if node not in self._registers:
            late = self._late[node]
            held = _as_register(late)
            writes = None if held is not None else self.writer.as_writes(late, node.width)
            if held is not None and held.samples == node.samples:
                self._registers[node] = held
            elif writes is not None and not node.samples:
                span = self.ranges[node]
                self._registers[node] = self.writer.preload(writes, False, node.width, span)
            else:
                self._registers[node] = self.fresh(node, name)
        return self._registers[node]

    def fresh(self, node: Node, name: str = "") -> Register:
        """A new register with the value of a node."""
        register = self.writer.register(node, name)
        self._compute(self._late[node], register, node)
        return register

    def owned(self, node: Node, name: str) -> Register:
        """A register with the value of a node that nothing but this node's instruction fills."""
        known = self._registers.get(node)
        if known is None or known.writes:
            known = self.register(node, name)
        return self.fresh(node, name) if known.writes or known.carried else known

    def hold(self, node: Node, register: Register) -> LinearForm:
        """Note that a register holds a node's value."""
        self._registers[node] = register
        self._late[node] = of_register(register)
        return of_register(register)

    def _computed(self, late: Late, node: Node) -> LinearForm:
        """A late value of a node, in a register of its own."""
        register = self.writer.register(node)
        self._compute(late, register, node)
        return self.hold(node, register)

    def _compute(self, late: Late, register: Register, node: Node) -> None:
        site = self.writer.site(node)
        if isinstance(late, LinearForm):
            self.writer.line(register, late, node.shown, site)
        else:
            self.writer.look_up(register, late, node.shown, site)

    # ----------------------------------------------------------------- words of the operations

    def no_instruction(self, node: Node) -> NoReturn:
        """Refuse an operation that says neither what it becomes nor what it is made of."""
        raise refuse(
            f"{node.shown} has no instruction of its own; say what it is made of, as expand() "
            "of its row in the table of operations",
            node.place,
        )

    def number(self, node: Node) -> LinearForm:
        """The number that a node's attribute is."""
        return LinearForm((), node.attr)

    def numbers(self, node: Node) -> LinearForm:
        """A vector of numbers, which the prompt holds."""
        writes = tuple(Write("one", v, j, 1) for j, v in enumerate(node.attr))
        span = self.ranges[node]
        return of_register(self.writer.preload(writes, False, node.width, span, "numbers"))

    def given(self, node: Node, source: str) -> LinearForm:
        """What the prompt writes, by the name of a datum."""
        scale = scale_of(self.ranges[node])
        writes = (Write(source, 1 / scale, 0, node.width),)
        held = self.ranges[node].times(1 / scale)
        return self.hold(
            node, self.writer.preload(writes, node.samples, node.width, held, source, scale)
        )

    def sum(self, node: Node) -> Late:
        """The sum of two arguments: a form, one curve, or two curves in one instruction."""
        u, v = (self.value(a) for a in node.args)
        if isinstance(u, LinearForm) and isinstance(v, LinearForm):
            return self._added(u, v, node)
        together = self._one_curve("+", u, v)
        if together is not None:
            return together
        if isinstance(u, Pending) and isinstance(v, Pending):
            eps = self.writer.eps
            bends = any(piecewise_linear(p.curve, p.range, eps) is not None for p in (u, v))
            pair = None if bends else paired(u, v) or self._paired_apart(u, v, node)
            slots = Slots(node.samples)
            if pair is not None and slots.fits(pair.a) and slots.fits(pair.b):
                register = self.writer.register(node)
                self.writer.pair(register, pair, node.shown, self.writer.site(node))
                return self.hold(node, register)
        return self._added(self.form(node.args[0]), self.form(node.args[1]), node)

    def _paired_apart(self, u: Pending, v: Pending, node: Node) -> FunctionPair | None:
        """A pair of curves of c + b and c - b, with c a sum that is settled first."""
        mine, theirs = dict(u.of.terms), dict(v.of.terms)
        same = tuple((r, c) for r, c in u.of.terms if theirs.get(r) == c)
        flipped = [r for r in mine if theirs.get(r) == -mine[r]]
        apart = len(same) + len(flipped) == len(mine) == len(theirs)
        if not apart or len(same) < 2 or len({mine[r] for r in flipped}) != 1:
            return None
        middle = LinearForm(same)
        register = Register("", node.samples, node.width, middle.range)
        self.writer.line(register, middle, "part of a sum", self.writer.site(node))
        held = (Read("at", register), 1.0)
        sides = (
            replace(p, of=LinearForm((held, *((r, dict(p.of.terms)[r]) for r in flipped))))
            for p in (u, v)
        )
        return paired(*sides)

    def _added(self, u: LinearForm, v: LinearForm, node: Node) -> LinearForm:
        if u.exact_sum(v):
            return u.plus(v)
        first, second = node.args
        held = of_register(self.register(first))
        return held.plus(v if held.exact_sum(v) else of_register(self.register(second)))

    def function(self, node: Node) -> Late:
        """A scalar function, the attribute, of the argument."""
        return self.function_of(node.attr, node.args[0])

    def function_of(self, tree: trees.Node, argument: Node) -> Late:
        """Any scalar function of a node: a line of a form, else a curve."""
        late = self.value(argument)
        straight = line(tree)
        if isinstance(late, LinearForm):
            if not late.terms:  # of a number: a look-up that has one value
                at = trees.Number(Fraction(late.constant))
                return self._curve_of(late, compose(tree, at), argument)
            if straight is not None and late.exact_line(*straight):
                return late.line(*straight)
            return self._curve_of(late, tree, argument)
        curve = scaled_curve(late.curve, tree)
        if curve is None or self._bends_too_much(curve, late.range):
            return self._curve_of(of_register(self.register(argument)), tree, argument)
        return replace(late, curve=curve)

    def _curve_of(self, form: LinearForm, tree: trees.Node, argument: Node) -> Pending:
        """tree(form) as a look-up."""
        alpha, constant, base, span = self._looked_up(form, argument, argument.samples)
        return Pending(compose(tree, affine(alpha, constant)), base, span)

    def _looked_up(
        self, form: LinearForm, argument: Node, samples: bool
    ) -> tuple[float, float, LinearForm, Range]:
        """alpha, c, U and its range, where an argument is alpha U + c, U a sum for one look-up."""
        signed = form.signs()
        if signed is None or not Slots(samples).divided(form.reads):
            form = of_register(self.register(argument))
            signed = form.signs()
            assert signed is not None
        alpha, base = signed
        known = self.ranges[argument] - Range(form.constant, form.constant)
        return alpha, form.constant, base, base.range.meet(known.times(1.0 / alpha))

    def _bends_too_much(self, curve: Curve, span: Range) -> bool:
        """Whether no look-up should compute all of a curve: a kink of it is better by itself."""
        eps = self.writer.eps
        straight = piecewise_linear(curve, span, eps) is not None
        return not straight and bends_too_much(curve, span, eps)

    def _one_curve(self, name: str, u: Late, v: Late) -> Pending | None:
        """Two curves of one variable as one, if one look-up computes it well."""
        one = self._fused(name, u, v)
        return None if one is None or self._bends_too_much(one.curve, one.range) else one

    @staticmethod
    def _fused(name: str, u: Late, v: Late) -> Pending | None:
        """Two curves of one variable as one."""
        p, q = _as_curve(u), _as_curve(v)
        if p is None or q is None:
            return None
        if isinstance(p.curve, JumpCurve) or isinstance(q.curve, JumpCurve):
            return None
        if p.curve.size + q.curve.size > _LARGEST_CURVE:
            return None
        if p.of.base == q.of.base:
            return Pending(operation(name, p.curve, q.curve), p.of, p.range.meet(q.range))
        if p.of.base == q.of.line(-1.0, 0.0).base:
            curve = compose(q.curve, affine(-1.0, 0.0))
            return Pending(operation(name, p.curve, curve), p.of, p.range.meet(-q.range))
        return None

    def product(self, node: Node) -> Late:
        """The product of two arguments: a multiple, a curve of one variable, or squares."""
        left, right = node.args
        u, v = self.value(left), self.value(right)
        for number, other in ((u, right), (v, left)):
            if isinstance(number, LinearForm) and not number.terms:
                return self.function_of(operation("*", float(number.constant), Z), other)
        together = self._one_curve("*", u, v)
        if together is not None and Slots(node.samples).divided(together.of.reads):
            return together
        register, site = self.writer.register(node), self.writer.site(node)
        u, v = (self.factor(a, node.samples, site) for a in node.args)
        self.writer.product(register, u, v, node.shown, site)
        return self.hold(node, register)

    def extreme(self, node: Node, sign: float) -> Late:
        """The larger of two arguments (``sign`` 1), or the smaller."""
        name = "max" if sign > 0 else "min"
        together = self._one_curve(name, *(self.value(a) for a in node.args))
        straight = together is not None and piecewise_linear(
            together.curve, together.range, self.writer.eps
        )
        larger = None if straight else self._larger_by(node)
        if larger is not None:
            return self.form(node.args[1 if sign > 0 else 0]).plus(larger.line(sign, 0.0))
        if together is not None:
            return together
        site = self.writer.site(node)
        u, v = (self.factor(a, node.samples, site) for a in node.args)
        added = (LinearForm((), v.constant), LinearForm((), -v.constant))
        if u.terms[0][1] != v.terms[0][1] or not all(map(u.exact_sum, added)):
            u, v = (of_register(self.writer.unscaled(self.register(a), site)) for a in node.args)
        alpha = u.terms[0][1]
        total, apart = u.constant + v.constant, u.constant - v.constant
        register = self.writer.register(node)
        half = 0.5 / register.scale
        f = operation("*", half, affine(alpha, total))
        g = operation("*", -sign * half, operation("abs", affine(alpha, apart)))
        register.clean = all(r.clean for r in (*u.reads, *v.reads)) and total == apart == 0
        gain = abs(alpha) / register.scale
        made = VirtualInstruction(
            register, u.reads, v.reads, f, g, (gain, gain), node.op, node.place
        )
        self.writer.emit(made, site)
        return self.hold(node, register)

    def _larger_by(self, node: Node) -> LinearForm | None:
        """max(a - b, 0): max(a, b) is b and it, min(a, b) is a less it."""
        a, b = node.args
        span = self.ranges[a] - self.ranges[b]
        relu = trees.Operation("relu", (Z,))
        if piecewise_linear(relu, span, self.writer.eps) is None:
            return None
        u, v = self.form(a), self.form(b).line(-1.0, 0.0)
        apart = Register("", node.samples, node.width, span)
        if not u.exact_sum(v):
            u, v = of_register(self.register(a)), of_register(self.register(b)).line(-1.0, 0.0)
        site = self.writer.site(node)
        self.writer.line(apart, u.plus(v), "apart", site)
        out = Register("", node.samples, node.width, Range(0.0, max(0.0, span.high)))
        self.writer.look_up(out, Pending(relu, of_register(apart), span), node.op, site)
        return of_register(out)

    def comparison(self, node: Node) -> Pending:
        """1 where the argument is positive, else 0; of 0 itself, what the comparison says.

        So the jump lies beside 0, where 0 is still on the side on which it belongs when it is off
        by a little.
        """
        argument = node.args[0]
        alpha, constant, base, span = self._looked_up(self.form(argument), argument, node.samples)
        at = -constant / alpha
        reach = max(abs(span.low - at), abs(span.high - at), 2.0**-60)
        sharpness = 2.0 ** (math.frexp(STEEPEST / reach)[1] - 1)
        height = 0.5 if alpha > 0 else -0.5
        beside = (_BESIDE_SHARP if self.writer.sharp else _BESIDE) / sharpness
        at += -beside if (alpha > 0) == bool(node.attr) else beside
        apart = Fraction(_SURE) / Fraction(sharpness) + Fraction(beside)
        self.gaps[node] = above(apart * abs(Fraction(alpha)))
        return Pending(StepCurve(at, sharpness, _SURE / sharpness, 0.5, height), base, span)

    def nearest(self, node: Node) -> Pending:
        """The whole number that is nearest to the argument, or whether that is 0."""
        argument = node.args[0]
        alpha, constant, base, reach = self._looked_up(self.form(argument), argument, node.samples)
        kind, gap = node.attr
        span, most = self.ranges[node], 1 << 13  # entries of a table
        if kind == "nearest" and span.high - span.low >= most:
            raise refuse(
                f"the whole numbers in {span} have a table entry each, and {most} are the most; "
                "say that the value stays in less with ice.bounded(value, low, high)",
                node.place,
            )
        whole = range(int(span.low), int(span.high) + 1) if kind == "nearest" else (-1, 0, 1)
        values = tuple(float(k) if kind == "nearest" else float(k == 0) for k in whole)
        # Others than the nearest number weigh the square of the unit roundoff.
        sharpness = 2.0 ** math.ceil(math.log2(-math.log(UNIT) / gap))
        self.gaps[node] = gap
        stairs = StairCurve(alpha, constant, whole[0], values, sharpness, gap)
        return Pending(stairs, base, reach)

    def total(self, node: Node) -> LinearForm:
        """The sum of the components: read as such, where zeros lie beyond them."""
        argument = node.args[0]
        late, width = self.value(argument), float(argument.width or 1)
        if isinstance(late, LinearForm) and self._summable(late, argument):
            terms = tuple((replace(r, how="rowsum"), c) for r, c in late.terms)
            return LinearForm(terms, late.constant * width)
        register = self.writer.cleaned(self.register(argument), self.writer.site(node))
        return LinearForm(((Read("rowsum", register), register.scale),))

    def _summable(self, form: LinearForm, argument: Node) -> bool:
        width = float(argument.width or 1)
        return bool(form.terms) and LinearForm((), form.constant).exact_line(width, 0.0) and all(
            r.how == "at" and r.register.samples == argument.samples and r.register.clean
            and r.register.width == argument.width
            for r in form.reads
        )  # fmt: skip

    def mean(self, node: Node) -> LinearForm:
        """The mean over the samples, read as such."""
        argument = node.args[0]
        late = self.value(argument)
        if isinstance(late, LinearForm) and all(r.how == "at" for r in late.reads):
            terms = tuple(
                (replace(r, how="mean") if r.register.samples else r, c) for r, c in late.terms
            )
            return LinearForm(terms, late.constant)
        register = self.register(argument)
        return LinearForm(((Read("mean", register), register.scale),))

    def spread(self, node: Node) -> Late:
        """The argument, which every lane and component can read."""
        late = self.value(node.args[0])
        if isinstance(late, LinearForm) and all(r.how == "at" for r in late.reads):
            return late
        return of_register(self.register(node.args[0]))

    def bounded(self, node: Node) -> Late:
        """The argument, whose bound narrows what comes after: a value of its own."""
        late = self.value(node.args[0])
        return late if isinstance(late, LinearForm) else self.held(node)

    def held(self, node: Node) -> LinearForm:
        """The argument in a register of its own."""
        return self._computed(self.value(node.args[0]), node)

    def attended(self, node: Node) -> LinearForm:
        """The softmax average of the value."""
        return attended(self, node)

    def side_by_side(self, node: Node) -> LinearForm:
        """The arguments in one register."""
        return self.hold(node, packed(self, node.args, node.samples, self.writer.site(node)))

    def component(self, node: Node) -> LinearForm:
        """The product with e_j, summed up."""
        site = self.writer.site(node)
        vector = self.factor(node.args[0], node.samples, site)
        span = self.ranges[node.args[0]].join(Range(0.0, 0.0))
        register = Register("", node.samples, self.writer.width, span, clean=True, single=True)
        mask = of_register(self.writer.mask(node.attr, 1))
        self.writer.product(register, vector, mask, f"component {node.attr}", site)
        return LinearForm(((Read("rowsum", register), 1.0),))


def _as_curve(late: Late) -> Pending | None:
    if isinstance(late, Pending):
        return late
    signed = late.signs()
    if signed is None:
        return None
    alpha, base = signed
    return Pending(affine(alpha, late.constant), base, base.range)


def _as_register(late: Late) -> Register | None:
    if isinstance(late, LinearForm) and late.constant == 0 and len(late.terms) == 1:
        read, coefficient = late.terms[0]
        if read.how == "at" and coefficient == read.register.scale:
            return read.register
    return None


class LoopSelector:
    """The blocks of a graph in order: their nodes, and loops with states, turns and questions."""

    def __init__(self, graph: Graph, selector: Selector) -> None:
        self.top, self.selector, self.writer = graph.block, selector, selector.writer
        self._clean: dict[Node, bool] = {}
        settled(graph.block, _is_clean, self._clean)

    def block(self, block: Block) -> None:
        """A block from its beginning."""
        self.writer.code[block] = VirtualCode()
        self._items(block)

    def _items(self, block: Block) -> None:
        for item in block.items:
            if isinstance(item, Loop):
                self._loop(item)
            else:
                self.selector.node(item)

    def _loop(self, loop: Loop) -> None:
        """States, turns, and the question whether there is another."""
        outer, once = self.writer.block, self.writer.block is self.top
        states = {}
        for carried in loop.carried:
            states[carried.state] = self._state(carried.name, carried.state, carried.start, once)
            self.selector.hold(carried.state, states[carried.state])
        counter = None if loop.count is None else self._counter(loop, loop.count, once)
        guarded = loop.count is None or self.selector.ranges[loop.count].low < 1
        if loop.first is not None:
            self._ask(loop.first)
        elif guarded and counter is not None:
            self._ask_counter(counter, loop.place)
        self.writer.block = loop.body
        self._body(loop, states, counter)
        self.writer.block = outer
        body, held = self.writer.code[loop.body], tuple(states.values())
        self.writer.code[outer].items.append(VirtualLoop(counter, body, guarded, loop, held))
        for carried in loop.carried:
            self.selector.hold(carried.result, states[carried.state])

    def _body(self, loop: Loop, states: dict[Node, Register], counter: Register | None) -> None:
        here = self.writer.here(loop.place)
        self.writer.code[loop.body] = VirtualCode()
        nested = any(isinstance(i, Loop) for i in loop.body.items)
        if counter is not None:
            fewer = of_register(counter).plus(LinearForm((), -1.0))
            self.writer.line(counter, fewer, "one turn less", here)
            if not nested:
                self._ask_counter(counter, loop.place)
        self._items(loop.body)
        if loop.again is not None:
            self._ask(loop.again)
        new = {}
        for carried in loop.carried:
            register = self._after_turn(carried.next, carried.name, loop.body)
            if states[carried.state].clean:
                register = self.writer.cleaned(register, self.writer.site(carried.next))
            new[carried.state] = register
        if counter is not None and nested:
            self._ask_counter(counter, loop.place)
        for node, state in states.items():
            note = f"{state.name} for the next turn"
            self.writer.line(state, of_register(new[node]), note, here, copy=True)

    def _after_turn(self, node: Node, name: str, body: Block) -> Register:
        """A register with the node's value that no state's end of turn overwrites."""
        if self.writer.site(node).block is body and not node.operation.carried:
            return self.selector.owned(node, name)
        return self.selector.fresh(node, name)

    def _state(self, name: str, state: Node, start: Node, once: bool) -> Register:
        """The register of a state, holding what the loop starts with."""
        register = self.writer.register(state, name)
        register.clean, register.carried = self._clean[state], True
        if once and self._preloaded(register, self.selector.value(start)):
            return register
        begin, site = self.selector.register(start), self.writer.here(start.place)
        if register.clean:
            begin = self.writer.cleaned(begin, self.writer.site(start))
        self.writer.line(register, of_register(begin), f"{name} to begin with", site, copy=True)
        return register

    def _preloaded(self, register: Register, late: Late) -> bool:
        """Whether the prompt can write a late value into a register, which then it does."""
        writes = self.writer.as_writes(late, register.width)
        if writes is not None:
            register.writes = tuple(replace(w, scale=w.scale / register.scale) for w in writes)
        return writes is not None

    def _counter(self, loop: Loop, count: Node, once: bool) -> Register:
        """Counts down from the number of turns less a half."""
        span = Range(-1.0, max(1.0, self.selector.ranges[count].size))
        scale = scale_of(span)
        register = Register("turns", False, None, span.times(1 / scale), scale=scale)
        form = self.selector.form(count).plus(LinearForm((), -0.5))
        if not (once and self._preloaded(register, form)):
            self.writer.line(register, form, "turns left", self.writer.here(loop.place))
        return register

    def _ask(self, condition: Node) -> None:
        """FLAG becomes +1 where the condition holds, else -1."""
        late = self.selector.value(condition)
        if isinstance(late, Pending) and isinstance(late.curve, StepCurve):
            sign = replace(late.curve, offset=0.0, height=2 * late.curve.height)
            site = self.writer.here(condition.place)
            self.writer.compare(self.writer.flag, replace(late, curve=sign), "another turn?", site)
            return
        # A combination of comparisons is 0 or 1.
        held = of_register(self.selector.register(condition))
        self._write_flag(
            held, StepCurve(0.5, _DECIDED / _HALF_WAY, _HALF_WAY, 0.0, 1.0), condition.place
        )

    def _ask_counter(self, counter: Register, place: SourceLine | None) -> None:
        gap = _HALF_WAY / counter.scale
        held = LinearForm(((Read("at", counter), 1.0),))
        self._write_flag(held, StepCurve(0.0, _DECIDED / gap, gap, 0.0, 1.0), place)

    def _write_flag(self, form: LinearForm, step: StepCurve, place: SourceLine | None) -> None:
        site = self.writer.here(place)
        pending = Pending(step, form, form.range)
        self.writer.by_table(self.writer.flag, pending, "another turn?", site)


def _is_clean(node: Node, args: list[bool]) -> bool:
    """Whether zeros lie beyond a vector, told from the graph alone."""
    return node.width is not None and node.operation.clean(node, args)
