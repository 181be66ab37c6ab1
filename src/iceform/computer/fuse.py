r"""Fusing: a graph with ranges becomes instructions, as few as there need be.

Nothing is computed before somebody needs it (:mod:`~iceform.computer.forms`). What a form or a curve
can express is then one instruction:

======================================  =====================================================
alpha a + beta b + c                    F = p z + c, G = -q z, p, q = (alpha +- beta)/2
k (a + c)(b + e)                        F = k (z + c + e)^2/4, G = k (z + c - e)^2/4
f(a + b), f(a - b)                      F = f, or G = -f
max(a, b), min(a, b)                    F = z/2, G = -+|z|/2
f(a + b) + g(a - b)                     F = f, G = -g (a soft threshold is one instruction)
a > b                                   a step: two entries
======================================  =====================================================

An instruction is written into the block that its node belongs to, so what a loop does not change is
computed before it. Data and parameters are read with the factor that is wanted, by writing them
into the prompt with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from iceform.computer.clean import clean_states
from iceform.computer.enclosures import slope
from iceform.computer.forms import (
    Form,
    Pair,
    Pending,
    Slots,
    affine,
    compose,
    of_register,
    operation,
    paired,
    scaled_curve,
)
from iceform.computer.graph import Block, Graph, Loop, Node, Place
from iceform.computer.instructions import Write
from iceform.computer.packing import attended, packed
from iceform.computer.places import refuse
from iceform.computer.ranges import Range, Ranges
from iceform.computer.virtual import (
    Code,
    Curve,
    Read,
    Register,
    Step,
    VirtualInstruction,
    VirtualLoop,
)
from iceform.functions.formulas import trees
from iceform.functions.formulas.functions import evaluate
from iceform.functions.formulas.polynomials import line

__all__ = ["Fused", "Fuser", "fuse"]

Late = Form | Pending | Pair

_Z = trees.Variable()
_STEEPEST = 2.0**20  # the largest logit of a step's table: its gap is a share of the range
# A comparison that is a value is looked up twice: tanh(0.3) > 0.29 is made 1 by 64 times the slope.
_SURE, _AGAIN = 0.3, Step(0.0, 64.0, 0.29, 0.0, 1.0)
_DECIDED = 6.0  # of one that decides a branch: FLAG is within 2 e^-12 < 2^-10 of +-1
_PLAIN_SIZE = 32.0  # values of sizes from 1/32 to 32 are held as they are
_COUNTER_GAP = 0.25  # a counter is at half numbers


@dataclass(frozen=True, eq=False)
class Fused:
    """Instructions of registers; ``outputs`` are the registers with the answers."""

    code: Code
    outputs: dict[str, tuple[Register, int | None]]
    width: int
    flag: Register
    gaps: dict[Node, float]  # how near to a tie each comparison may come


def fuse(graph: Graph, ranges: Ranges) -> Fused:
    """The instructions of a graph."""
    return Fuser(graph, ranges).fused()


class Fuser:
    """One graph on its way to instructions."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        self.graph, self.ranges = graph, ranges
        self.width = graph.dim
        self.top = graph.block
        self.late: dict[Node, Late] = {}
        self.held: dict[Node, Register] = {}
        self.home = _homes(graph.block)
        self.depth = _depths(graph.block)
        self.code: dict[Block, Code] = {}
        self.now = graph.block
        self.written: dict[tuple[tuple[Write, ...], float], Register] = {}
        self.clean = clean_states(graph.block)
        self.gaps: dict[Node, float] = {}
        self.flag = Register("FLAG", False, None, Range(-1.0, 1.0), writes=(Write("one"),))

    def fused(self) -> Fused:
        """All of it."""
        self.block(self.top)
        outputs = {}
        for name, node in self.graph.outputs.items():
            outputs[name] = (self.unscaled(self.register(node), node), node.width)
        return Fused(self.code[self.top], outputs, self.width, self.flag, self.gaps)

    # ------------------------------------------------------------------------------------ blocks

    def block(self, block: Block) -> None:
        """Every item, in order."""
        before, self.now = self.now, block
        self.code[block] = Code()
        self._items(block)
        self.now = before

    def _items(self, block: Block) -> None:
        for item in block.items:
            if isinstance(item, Loop):
                self.loop(item)
            elif item not in self.late:
                self.late[item] = self._late(item)

    def together(self, parts: tuple[Node, ...], like: Node) -> Node:
        """A node in the lanes of ``like`` that belongs to the innermost block of its parts."""
        homes = [self.home.get(p, self.now) for p in parts]
        depths = [self.depth.get(h, 0) for h in homes]
        node = Node("concat", parts, like.samples, None, None, like.place)
        self.home[node] = homes[depths.index(max(depths))]
        return node

    def value(self, node: Node) -> Late:
        """What is known of a node."""
        return self.late[node]

    # ------------------------------------------------------------------------------------- loops

    def loop(self, loop: Loop) -> None:
        """States, turns, and the question whether there is another."""
        outer, once = self.now, self.now is self.top
        states = {}
        for carried in loop.carried:
            state = self._state(carried.name, carried.state, carried.start, once)
            states[carried.state] = state
            self.late[carried.state] = of_register(state)
            self.held[carried.state] = state
        counter = None if loop.count is None else self._counter(loop.count, once)
        if loop.count is None:
            assert loop.first is not None
            self._ask(loop.first)
            guarded = True
        else:
            guarded = self.ranges[loop.count].low < 1
            if guarded:
                self._ask_counter(counter, loop.place)
        self._body(loop, states, counter)
        self.code[outer].items.append(
            VirtualLoop(counter, self.code[loop.body], guarded, loop.place, _count(loop))
        )
        for carried in loop.carried:
            self.late[carried.result] = of_register(states[carried.state])
            self.held[carried.result] = states[carried.state]

    def _body(self, loop: Loop, states: dict[Node, Register], counter: Register | None) -> None:
        before, self.now = self.now, loop.body
        self.code[loop.body] = Code()
        nested = any(isinstance(i, Loop) for i in loop.body.items)
        if counter is not None:
            self._count_down(loop, counter)
            if not nested:
                self._ask_counter(counter, loop.place)
        self._items(loop.body)
        new = {}
        if loop.again is not None:
            self._ask(loop.again)
        for carried in loop.carried:
            fresh = self._fresh(carried.next, carried.name, loop.body)
            clean = states[carried.state].clean
            new[carried.state] = self.cleaned(fresh, carried.next) if clean else fresh
        if counter is not None and nested:
            self._ask_counter(counter, loop.place)
        for node, state in states.items():
            self.emit_line(state, of_register(new[node]), f"{state.name} for the next turn",
                            loop.place, copy=True)  # fmt: skip
        self.now = before

    def _fresh(self, node: Node, name: str, body: Block) -> Register:
        """A register with the node's value that no state's end of turn overwrites."""
        late = self.value(node)
        if self.home.get(node) is body and node.op not in ("state", "result"):
            known = self.held.get(node)
            if known is not None and not known.writes:
                return known
            register = self.register(node, name)
            if not register.writes and not self._is_state(register):
                return register
        register = self._new(node, name)
        self._compute(late, register, node)
        return register

    def _is_state(self, register: Register) -> bool:
        return any(r is register for n, r in self.held.items() if n.op in ("state", "result"))

    def _state(self, name: str, state: Node, start: Node, once: bool) -> Register:
        """The register of a state, holding what the loop starts with."""
        clean = state in self.clean
        register = self._new(state, name)
        register.clean = clean
        writes = self.as_writes(self.value(start), state.width) if once else None
        if writes is not None:
            register.writes = tuple(replace(w, scale=w.scale / register.scale) for w in writes)
            return register
        begin = self.register(start)
        begin = self.cleaned(begin, start) if clean else begin
        self.emit_line(
            register, of_register(begin), f"{name} to begin with", start.place, copy=True
        )
        return register

    def _counter(self, count: Node, once: bool) -> Register:
        """Counts down from the number of turns less a half."""
        span = Range(-1.0, max(1.0, self.ranges[count].size))
        scale = _scale(span)
        register = Register("turns", False, None, span.times(1 / scale), scale=scale)
        form = self._form(count).plus(Form((), -0.5))
        writes = self.as_writes(form, None) if once else None
        if writes is not None:
            register.writes = tuple(replace(w, scale=w.scale / scale) for w in writes)
        else:
            self.emit_line(register, form, "turns left", count.place)
        return register

    def _count_down(self, loop: Loop, counter: Register) -> None:
        self.emit_line(counter, of_register(counter).plus(Form((), -1.0)), "one turn less",
                        loop.place)  # fmt: skip

    def _ask(self, condition: Node) -> None:
        """FLAG becomes +1 where the condition holds, else -1."""
        late = self.value(condition)
        if isinstance(late, Pending) and isinstance(late.curve, Step):
            sign = replace(late.curve, offset=0.0, height=2 * late.curve.height)
            self._look_up_twice(self.flag, replace(late, curve=sign), "another turn?",
                                condition.place, None)  # fmt: skip
            return
        # A combination of comparisons is 0 or 1.
        held = of_register(self.register(condition))
        self._write_flag(held, Step(0.5, 4 * _DECIDED, 0.25, 0.0, 1.0), condition.place)

    def _ask_counter(self, counter: Register, place: Place | None) -> None:
        gap = _COUNTER_GAP / counter.scale
        held = Form(((Read("at", counter), 1.0),))
        self._write_flag(held, Step(0.0, _DECIDED / gap, gap, 0.0, 1.0), place)

    def _write_flag(self, form: Form, step: Step, place: Place | None) -> None:
        self._write_flag_pending(Pending(step, form, form.range), place)

    def _write_flag_pending(self, pending: Pending, place: Place | None) -> None:
        self._look_up(self.flag, pending, "another turn?", place)

    # ------------------------------------------------------------------------------ what is late

    def _late(self, node: Node) -> Late:
        rule: Callable[[Node], Late] = getattr(self, f"_of_{node.op}")
        late = rule(node)
        if isinstance(late, Pair):
            self.held[node] = self.register_of(late, node)
            return of_register(self.held[node])
        return late

    def _of_constant(self, node: Node) -> Form:
        return Form((), node.attr)

    def _of_mask(self, node: Node) -> Form:
        return of_register(self.mask(*node.attr))

    def _of_data(self, node: Node) -> Form:
        return of_register(self._given(node, node.attr))

    def _of_parameter(self, node: Node) -> Form:
        return of_register(self._given(node, node.attr))

    def _given(self, node: Node, source: str) -> Register:
        scale = _scale(self.ranges[node])
        register = self.preload((Write(source, 1 / scale, 0, node.width),), node.samples, node.width,
                                self.ranges[node].times(1 / scale), source, scale)  # fmt: skip
        self.held[node] = register
        return register

    def _of_add(self, node: Node) -> Late:
        u, v = (self.value(a) for a in node.args)
        if isinstance(u, Form) and isinstance(v, Form):
            return self._sum(u, v, node)
        together = self._one_curve("+", u, v)
        if together is not None:
            return together
        if isinstance(u, Pending) and isinstance(v, Pending):
            pair = paired(u, v) or self._paired_apart(u, v, node)
            if pair is not None and self._pair_fits(pair, node):
                return pair
        return self._sum(self._form(node.args[0]), self._form(node.args[1]), node)

    def _paired_apart(self, u: Pending, v: Pending, node: Node) -> Pair | None:
        """A pair of curves of c + b and c - b, with c a sum that is settled first."""
        mine, theirs = dict(u.of.terms), dict(v.of.terms)
        same = tuple((r, c) for r, c in u.of.terms if theirs.get(r) == c)
        flipped = [r for r in mine if theirs.get(r) == -mine[r]]
        apart = len(same) + len(flipped) == len(mine) == len(theirs)
        if not apart or len(same) < 2 or len({mine[r] for r in flipped}) != 1:
            return None
        middle = Form(same)
        register = Register("", node.samples, node.width, middle.range)
        self.emit_line(register, middle, "part of a sum", node.place, node=node)
        held = Form(((Read("at", register), 1.0),))
        sides = (
            replace(p, of=Form((*held.terms, *((r, dict(p.of.terms)[r]) for r in flipped))))
            for p in (u, v)
        )
        return paired(*sides)

    def _pair_fits(self, pair: Pair, node: Node) -> bool:
        slots = Slots(node.samples)
        return slots.fits(pair.a) and slots.fits(pair.b)

    def _sum(self, u: Form, v: Form, node: Node) -> Form:
        if u.exact_sum(v):
            return u.plus(v)
        first = of_register(self.register(node.args[0]))
        return (
            first.plus(v)
            if first.exact_sum(v)
            else first.plus(of_register(self.register(node.args[1])))
        )

    def _of_apply(self, node: Node) -> Late:
        tree, argument = node.attr, node.args[0]
        late = self.value(argument)
        straight = line(tree)
        if isinstance(late, Form):
            if straight is not None and late.exact_line(*straight) and late.terms:
                return late.line(*straight)
            return self._curve_of(late, tree, argument)
        assert isinstance(late, Pending)
        curve = scaled_curve(late.curve, tree)
        if curve is None:
            return self._curve_of(of_register(self.register(argument)), tree, argument)
        return replace(late, curve=curve)

    def _curve_of(self, form: Form, tree: trees.Node, argument: Node) -> Late:
        """tree(form) as a look-up."""
        signed = form.signs()
        if signed is None or not Slots(argument.samples).divided(tuple(r for r, _ in form.terms)):
            form = of_register(self.register(argument))
            signed = form.signs()
            assert signed is not None
        alpha, base = signed
        return Pending(compose(tree, affine(alpha, form.constant)), base,
                       self._base_range(argument, alpha, form, base))  # fmt: skip

    def _base_range(self, node: Node, alpha: float, form: Form, base: Form) -> Range:
        """Of U, from the reads, and from the range of the node that is alpha U + c."""
        known = self.ranges[node] - Range(form.constant, form.constant)
        return base.range.meet(known.times(1.0 / alpha))

    def _one_curve(self, name: str, u: Late, v: Late) -> Pending | None:
        """Two curves of one variable as one."""
        p, q = self._as_curve(u), self._as_curve(v)
        if p is None or q is None or isinstance(p.curve, Step) or isinstance(q.curve, Step):
            return None
        if p.of.base == q.of.base:
            return Pending(operation(name, p.curve, q.curve), p.of, p.range.meet(q.range))
        flipped = q.of.line(-1.0, 0.0)
        if p.of.base == flipped.base:
            curve = compose(q.curve, affine(-1.0, 0.0))
            return Pending(operation(name, p.curve, curve), p.of, p.range.meet(-q.range))
        return None

    def _as_curve(self, late: Late) -> Pending | None:
        if isinstance(late, Pending):
            return late
        if isinstance(late, Pair) or (signed := late.signs()) is None:
            return None
        alpha, base = signed
        return Pending(affine(alpha, late.constant), base, base.range)

    def _of_mul(self, node: Node) -> Late:
        u, v = (self.value(a) for a in node.args)
        if isinstance(u, Form) and not u.terms:
            return self._of_apply(_scaled_node(node, u.constant, node.args[1]))
        if isinstance(v, Form) and not v.terms:
            return self._of_apply(_scaled_node(node, v.constant, node.args[0]))
        together = self._one_curve("*", u, v)
        if together is not None and Slots(node.samples).divided(
            tuple(r for r, _ in together.of.terms)
        ):
            return together
        register = self._new(node)
        self._multiply(register, node.args[0], node.args[1], node)
        self.held[node] = register
        return of_register(register)

    def _of_maximum(self, node: Node) -> Late:
        return self._extreme(node, 1.0)

    def _of_minimum(self, node: Node) -> Late:
        return self._extreme(node, -1.0)

    def _extreme(self, node: Node, sign: float) -> Late:
        together = self._one_curve(
            "max" if sign > 0 else "min", *(self.value(a) for a in node.args)
        )
        if together is not None:
            return together
        u, v = (self.operand(a, node) for a in node.args)
        if u.terms[0][1] != v.terms[0][1]:
            u, v = (of_register(self.unscaled(self.register(a), node)) for a in node.args)
        if not (u.exact_sum(Form((), v.constant)) and u.exact_sum(Form((), -v.constant))):
            u, v = (of_register(self.unscaled(self.register(a), node)) for a in node.args)
        alpha = u.terms[0][1]
        total, apart = u.constant + v.constant, u.constant - v.constant
        register = self._new(node)
        half = 0.5 / register.scale
        f = operation("*", half, affine(alpha, total))
        g = operation("*", -sign * half, operation("abs", affine(alpha, apart)))
        a, b = _reads(u), _reads(v)
        register.clean = all(r.clean for r in (*a, *b)) and total == apart == 0
        gain = abs(alpha) / register.scale
        self._emit(
            VirtualInstruction(register, a, b, f, g, (gain, gain), node.op, node.place), node
        )
        self.held[node] = register
        return of_register(register)

    def _of_step(self, node: Node) -> Late:
        form = self._form(node.args[0])
        signed = form.signs()
        if signed is None or not Slots(node.samples).divided(tuple(r for r, _ in form.terms)):
            form = of_register(self.register(node.args[0]))
            signed = form.signs()
            assert signed is not None
        alpha, base = signed
        at = -form.constant / alpha
        base_range = self._base_range(node.args[0], alpha, form, base)
        reach = max(abs(base_range.low - at), abs(base_range.high - at), 2.0**-60)
        sharpness = 2.0 ** int(_floor_log2(_STEEPEST / reach))
        height = 0.5 if alpha > 0 else -0.5
        self.gaps[node] = _up(Fraction(_SURE) / Fraction(sharpness) * abs(Fraction(alpha)))
        return Pending(Step(at, sharpness, _SURE / sharpness, 0.5, height), base, base_range)

    def _of_sum(self, node: Node) -> Form:
        argument = node.args[0]
        late = self.value(argument)
        if isinstance(late, Form) and self._summable(late, argument):
            width = float(argument.width or 1)
            terms = tuple((replace(r, how="rowsum"), c) for r, c in late.terms)
            return Form(terms, late.constant * width)
        register = self.cleaned(self.register(argument), node)
        return Form(((Read("rowsum", register), register.scale),))

    def _summable(self, form: Form, argument: Node) -> bool:
        width = float(argument.width or 1)
        return bool(form.terms) and Form((), form.constant).exact_line(width, 0.0) and all(
            r.how == "at" and r.register.samples == argument.samples and r.register.clean
            and r.register.width == argument.width
            for r, _ in form.terms
        )  # fmt: skip

    def _of_mean(self, node: Node) -> Form:
        argument = node.args[0]
        late = self.value(argument)
        if isinstance(late, Form) and all(r.how == "at" for r, _ in late.terms):
            terms = tuple(
                (replace(r, how="mean") if r.register.samples else r, c) for r, c in late.terms
            )
            return Form(terms, late.constant)
        register = self.register(argument)
        return Form(((Read("mean", register), register.scale),))

    def _of_spread(self, node: Node) -> Late:
        late = self.value(node.args[0])
        if isinstance(late, Form) and all(r.how == "at" for r, _ in late.terms):
            return late
        return of_register(self.register(node.args[0]))

    def _of_bounded(self, node: Node) -> Late:
        late = self.value(node.args[0])
        if isinstance(late, Form):
            return late
        # The bound narrows what comes after: it belongs to a value of its own.
        return self._of_stored(node)

    def _of_stored(self, node: Node) -> Late:
        self.held[node] = self.register_of(self.value(node.args[0]), node)
        return of_register(self.held[node])

    def _of_attend(self, node: Node) -> Late:
        return attended(self, node)

    def _of_concat(self, node: Node) -> Late:
        register = packed(self, node.args, node)
        self.held[node] = register
        return of_register(register)

    def _of_component(self, node: Node) -> Late:
        """v e_j, summed up."""
        vector = self.operand(node.args[0], node)
        register = Register("", node.samples, self.width, self.ranges[node.args[0]].join(
            Range(0.0, 0.0)), clean=True)  # fmt: skip
        mask = of_register(self.mask(node.attr, 1))
        self.product(register, vector, mask, node, f"component {node.attr}")
        return Form(((Read("rowsum", register), 1.0),))

    # ------------------------------------------------------------------------------ registers

    def register(self, node: Node, name: str = "") -> Register:
        """The register that holds a node's value; computed now if it is not yet."""
        if node not in self.held:
            late = self.value(node)
            held = _as_register(late)
            writes = None if held is not None else self.as_writes(late, node.width)
            if held is not None and held.samples == node.samples:
                self.held[node] = held
            elif writes is not None and not node.samples:
                self.held[node] = self.preload(writes, node.samples, node.width, self.ranges[node])
            else:
                self.held[node] = self.register_of(late, node, name)
        return self.held[node]

    def register_of(self, late: Late, node: Node, name: str = "") -> Register:
        """A new register with a value of a node."""
        register = self._new(node, name)
        self._compute(late, register, node)
        return register

    def _new(self, node: Node, name: str = "") -> Register:
        scale = _scale(self.ranges[node])
        held = self.ranges[node].times(1 / scale)
        return Register(name or node.name, node.samples, node.width, held, scale=scale)

    def preload(
        self, writes: tuple[Write, ...], samples: bool, width: int | None, range: Range,
        name: str = "", scale: float = 1.0,
    ) -> Register:  # fmt: skip
        """A register that the prompt fills."""
        key = (writes, scale)
        if key not in self.written:
            clean = width is not None and all(w.width is not None for w in writes)
            for write in writes:
                self.width = max(self.width, write.first + (write.width or 0))
            self.written[key] = Register(name, samples, width, range, clean, writes, scale)
        return self.written[key]

    def mask(self, first: int, width: int) -> Register:
        """Ones in some components."""
        self.width = max(self.width, first + width)
        return self.preload((Write("one", 1.0, first, width),), False, first + width,
                            Range(0.0, 1.0), f"e{first}" if width == 1 else f"ones{width}")  # fmt: skip

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
        if not isinstance(late, Form):
            return None
        writes = []
        for read, coefficient in late.terms:
            if read.how != "at" or not read.register.writes or self._is_state(read.register):
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

    # --------------------------------------------------------------------------- instructions

    def _form(self, node: Node) -> Form:
        """A node as a form; curves are looked up."""
        late = self.value(node)
        return late if isinstance(late, Form) else of_register(self.register(node))

    def _compute(self, late: Late, dst: Register, node: Node) -> None:
        """Write a late value into a register."""
        if isinstance(late, Form):
            self.emit_line(dst, late, node.name or _short(node), node.place, node=node)
        elif isinstance(late, Pending):
            self.look_up(dst, late, _short(node), node.place, node)
        else:
            if dst.scale != 1:
                late = replace(late, f=_times(late.f, 1 / dst.scale), g=_times(late.g, 1 / dst.scale))
            gains = self._pair_gains(late)
            dst.clean = all(r.clean for r in (*late.a, *late.b)) and (
                _at_zero(late.f) == _at_zero(late.g)
            )
            self._emit(
                VirtualInstruction(
                    dst, late.a, late.b, late.f, late.g, gains, _short(node), node.place
                ),
                node,
            )

    def _pair_gains(self, pair: Pair) -> tuple[float, float]:
        probe = VirtualInstruction(self.flag, pair.a, pair.b, pair.f, pair.g, (0.0, 0.0))
        total = _steepest(pair.f, probe.plus) + _steepest(pair.g, probe.minus)
        return total, total

    def look_up(
        self, dst: Register, pending: Pending, note: str, place: Place | None, node: Node | None
    ) -> None:
        """``curve(U)``, in the units of the register."""
        curve = _times(pending.curve, 1 / dst.scale) if dst.scale != 1 else pending.curve
        self._look_up(dst, replace(pending, curve=curve), note, place, node)

    def _look_up_twice(
        self, dst: Register, pending: Pending, note: str, place: Place | None, node: Node | None
    ) -> None:
        """A comparison as a value: -1 to 1 first, then made steeper, scaled and shifted."""
        step = pending.curve
        assert isinstance(step, Step)
        middle = Register("", dst.samples, dst.width, Range(-1.0, 1.0))
        plain = replace(step, offset=0.0, height=1.0)
        self._look_up(middle, replace(pending, curve=plain), "compared", place, node, again=True)
        sharp = replace(_AGAIN, offset=step.offset, height=step.height)
        once_more = Pending(sharp, of_register(middle), middle.range)
        self._look_up(dst, once_more, note, place, node, again=True)

    def _look_up(
        self, dst: Register, pending: Pending, note: str, place: Place | None,
        node: Node | None = None, again: bool = False,
    ) -> None:  # fmt: skip
        """``curve(U)``: by F if U is a sum, by G if it is a difference."""
        if isinstance(pending.curve, Step) and dst is not self.flag and not again:
            self._look_up_twice(dst, pending, note, place, node)
            return
        slots = Slots(dst.samples)
        pending = replace(pending, of=self._local(pending.of, dst.samples, node))
        plus = tuple(r for r, c in pending.of.terms if c > 0)
        minus = tuple(r for r, c in pending.of.terms if c < 0)
        gain = _steepest(pending.curve, pending.range)
        if minus and not plus:
            plus, minus = minus, ()
            pending = replace(pending, curve=_mirrored(pending.curve), range=-pending.range)
        if not minus:
            divided = slots.divided(plus)
            if divided is not None:
                a, b = divided
                self._emit(VirtualInstruction(dst, a, b, pending.curve, None, (gain, gain), note, place,
                                              pending.range), node)  # fmt: skip
                self._mark_clean(dst, (*a, *b), pending.curve)
                return
        elif slots.fits(plus) and slots.fits(minus):
            self._emit(VirtualInstruction(dst, plus, minus, None, _negative(pending.curve),
                                          (gain, gain), note, place, pending.range), node)  # fmt: skip
            self._mark_clean(dst, (*plus, *minus), pending.curve)
            return
        register = Register("", dst.samples, dst.width, pending.range)
        self.emit_line(register, pending.of, "argument", place, node=node)
        self._look_up(dst, replace(pending, of=of_register(register)), note, place, node, again)

    def _mark_clean(self, dst: Register, reads: tuple[Read, ...], curve: Curve) -> None:
        if dst.width is not None and dst is not self.flag and not dst.clean:
            dst.clean = all(r.clean for r in reads) and _at_zero(curve) == 0

    def _multiply(self, dst: Register, left: Node, right: Node, node: Node) -> None:
        u = self.operand(left, node)
        v = self.operand(right, node)
        self.product(dst, u, v, node, _short(node))

    def operand(self, argument: Node, node: Node) -> Form:
        """An argument of ``node`` as alpha (sum of reads) + c, which one operand takes."""
        form = self._local(self._form(argument), node.samples, node)
        fitted = self._uniform(form, node.samples)
        return of_register(self.register(argument)) if fitted is None else fitted

    def _local(self, form: Form, samples: bool, node: Node | None) -> Form:
        """The form with what only lane 0 can read put where every lane can."""
        terms = []
        for read, coefficient in form.terms:
            if not Slots(samples).kinds(read):
                register = Register("", False, None, read.range)
                line = Form(((read, 1.0),))
                self.emit_line(register, line, "for every lane", None, node=node)
                read = Read("at", register)
            terms.append((read, coefficient))
        return Form(tuple(terms), form.constant)

    def _uniform(self, form: Form, samples: bool) -> Form | None:
        """The form with one coefficient for all reads, data written with another sign if need be."""
        if not form.terms:
            return None
        alpha = next((c for r, c in form.terms if not self._is_data(r)), form.terms[0][1])
        terms: list[tuple[Read, float]] = []
        for read, coefficient in form.terms:
            if coefficient != alpha:
                if not self._is_data(read):
                    return None
                scaled = self._rescaled(read, coefficient, alpha)
                if scaled is None:
                    return None
                read = scaled
            terms.append((read, alpha))
        if not Slots(samples).fits(tuple(r for r, _ in terms)):
            return None
        return Form(tuple(terms), form.constant)

    def _is_data(self, read: Read) -> bool:
        return read.how == "at" and bool(read.register.writes) and not self._is_state(read.register)

    def _rescaled(self, read: Read, coefficient: float, alpha: float) -> Read | None:
        """The same datum, written so that it is read with the coefficient alpha."""
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

    def product(self, dst: Register, u: Form, v: Form, node: Node, note: str) -> None:
        """dst <- u v, both of one coefficient."""
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
        f = _quarter_square(k, shift_u + shift_v)
        g = _quarter_square(k, shift_u - shift_v)
        a, b = _reads(u), _reads(v)
        gain_a = abs(k) * (_total(b) + Range(shift_v, shift_v)).size
        gain_b = abs(k) * (_total(a) + Range(shift_u, shift_u)).size
        if dst.width is not None and not dst.clean:
            dst.clean = (all(r.clean for r in a) and shift_u == 0) or (
                all(r.clean for r in b) and shift_v == 0
            )
        self._emit(VirtualInstruction(dst, a, b, f, g, (gain_a, gain_b), note, node.place), node)

    def _settled(self, form: Form, dst: Register, node: Node) -> Form:
        scale = _scale(form.range)
        held = form.range.times(1 / scale)
        register = Register("", dst.samples, dst.width, held, scale=scale)
        self.emit_line(register, form, "factor", node.place, node=node)
        return of_register(register)

    def emit_line(
        self, dst: Register, form: Form, note: str, place: Place | None, *,
        copy: bool = False, node: Node | None = None,
    ) -> None:  # fmt: skip
        """dst <- a form: two groups of equal coefficients at a time."""
        slots = Slots(dst.samples)
        form = self._local(form, dst.samples, node)
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
                self._emit(
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
        left = Form(((Read("at", register), 1.0), *rest), form.constant)
        self.emit_line(dst, left.line(dst.scale, 0.0), note, place, node=node)

    def _first_part(self, form: Form, slots: Slots) -> Form:
        """As many terms as one instruction adds up, at least two."""
        taken = Form(form.terms[:1])
        for term in form.terms[1:]:
            more = Form((*taken.terms, term))
            groups: dict[float, tuple[Read, ...]] = {}
            for read, coefficient in more.terms:
                groups[coefficient] = (*groups.get(coefficient, ()), read)
            if len(groups) <= 2 and all(slots.fits(g) for g in groups.values()):
                taken = more
        if len(taken.terms) == 1:
            (read, coefficient), (other, second) = form.terms[:2]
            if coefficient == second:
                return Form(form.terms[:2])
            raise refuse("a sum of this kind has no instruction; name its parts", None)
        return taken

    def _emit_two(
        self, dst: Register, alpha: float, a: tuple[Read, ...], beta: float, b: tuple[Read, ...],
        constant: float, note: str, place: Place | None, node: Node | None,
    ) -> None:  # fmt: skip
        """alpha a + beta b + c."""
        p, q = (alpha + beta) / 2, (alpha - beta) / 2
        f = affine(p, constant) if p != 0 else None
        g = operation("neg", affine(q, 0.0 if p != 0 else constant)) if q != 0 else None
        if not dst.clean and dst.width is not None:
            dst.clean = all(r.clean for r in (*a, *b)) and constant == 0
        off = abs(Fraction(p) + Fraction(q) - Fraction(alpha)) * Fraction(_total(a).size)
        off += abs(Fraction(p) - Fraction(q) - Fraction(beta)) * Fraction(_total(b).size)
        instruction = VirtualInstruction(dst, a, b, f, g, (abs(alpha), abs(beta)), note, place)
        instruction.folded = _up(off)
        self._emit(instruction, node)

    def _emit(self, instruction: VirtualInstruction, node: Node | None = None) -> None:
        block = self.now if node is None else self.home.get(node, self.now)
        self.code[block].items.append(instruction)


# ---------------------------------------------------------------------------------------------
# small things
# ---------------------------------------------------------------------------------------------


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


def _count(loop: Loop) -> str:
    """What counts the turns: a parameter's name, a number, or nothing that is known."""
    known = loop.count is not None and loop.count.op in ("parameter", "constant")
    return str(loop.count.attr) if known and loop.count is not None else ""


def _quarter_square(k: float, shift: float) -> trees.Node:
    square = operation("^", affine(1.0, shift), 2.0)
    return operation("*", 0.25 * k, square)


def _reads(form: Form) -> tuple[Read, ...]:
    return tuple(r for r, _ in form.terms)


def _total(reads: tuple[Read, ...]) -> Range:
    return Form(tuple((r, 1.0) for r in reads)).range


def _steepest(curve: Curve, on: Range) -> float:
    """Bound of the slope of a curve away from the gap of a step."""
    if isinstance(curve, Step):
        return 2 * curve.sharpness * curve.beside()
    low, high = (
        slope(curve, on.low, on.high)
        if on.low < on.high
        else slope(curve, on.low - 2.0**-20, on.high + 2.0**-20)
    )
    return max(abs(low), abs(high))


def _mirrored(curve: Curve) -> Curve:
    """z -> curve(-z)."""
    if isinstance(curve, Step):
        return replace(curve, at=-curve.at, height=-curve.height)
    return compose(curve, affine(-1.0, 0.0))


def _negative(curve: Curve) -> Curve:
    if isinstance(curve, Step):
        return replace(curve, offset=-curve.offset, height=-curve.height)
    return operation("neg", curve)


def _times(curve: Curve, factor: float) -> Curve:
    """A curve by a power of two."""
    if isinstance(curve, Step):
        return replace(curve, offset=factor * curve.offset, height=factor * curve.height)
    return operation("*", factor, curve)


def _scale(range: Range) -> float:
    """The power of two that a register divides a value by: 1 unless it is large or small.

    A product by squares is off by rounding of the square of the larger factor.
    """
    if range.size == 0 or 1 / _PLAIN_SIZE <= range.size <= _PLAIN_SIZE:
        return 1.0
    return 2.0 ** round(math.log2(range.size))


def _at_zero(curve: Curve) -> float:
    if isinstance(curve, Step):
        return 1.0
    return float(evaluate(curve, torch.zeros(1, dtype=torch.float64)))


def _as_register(late: Late) -> Register | None:
    if isinstance(late, Form) and late.constant == 0 and len(late.terms) == 1:
        read, coefficient = late.terms[0]
        if read.how == "at" and coefficient == read.register.scale:
            return read.register
    return None


def _scaled_node(node: Node, factor: float, argument: Node) -> Node:
    tree = operation("*", float(factor), _Z)
    return replace(node, op="apply", args=(argument,), attr=tree)


def _short(node: Node) -> str:
    return node.name or {"apply": "function", "mul": "product", "add": "sum"}.get(node.op, node.op)


def _floor_log2(value: float) -> int:
    return math.frexp(value)[1] - 1


def _up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
