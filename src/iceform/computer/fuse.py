"""Fusing: a graph with ranges becomes instructions, as few as there need be.

Every operation is selected as a form, a curve or an instruction. Nothing is computed before
somebody needs it (:mod:`~iceform.computer.virtual`). What a form or a curve can express is then one
instruction:

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

An instruction is written into the block that its node belongs to, so what a loop does not change is
computed before it. Data and parameters are read with the factor that is wanted, by writing them
into the prompt with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from iceform.arithmetic.intervals import above
from iceform.arithmetic.units import UNIT
from iceform.computer.emit import Emitter, Late, reads_of, short_name
from iceform.computer.graph import Block, Graph, Loop, refuse
from iceform.computer.instructions import Write
from iceform.computer.piecewise_linear import piecewise_linear
from iceform.computer.ranges import Ranges
from iceform.computer.side_by_side import attended, packed
from iceform.computer.virtual import (
    FunctionPair,
    JumpCurve,
    LinearForm,
    Pending,
    Read,
    Register,
    Slots,
    StairCurve,
    StepCurve,
    VirtualCode,
    VirtualInstruction,
    VirtualLoop,
    affine,
    compose,
    of_register,
    operation,
    paired,
    scale_of,
    scaled_curve,
)
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.polynomials import line
from iceform.program import Node, Range, SourceLine

_Z = trees.Variable()
_STEEPEST = 2.0**20  # the largest logit of a step's table: its gap is a share of the range
_LARGEST_CURVE = 256  # operations of one look-up's function: a chain of products doubles them
_SURE = 0.3  # sharpness times gap of a comparison that is looked up twice


class Selector(Emitter):
    """What each kind of node becomes."""

    def _late(self, node: Node) -> Late:
        rule: Callable[[Node], Late] | None = getattr(self, f"_of_{node.op}", None)
        if rule is None:
            raise refuse(
                f"{node.shown} has no instruction of its own; say what it is made of, as expand() "
                "of its row in the table of operations",
                node.place,
            )
        late = rule(node)
        if isinstance(late, FunctionPair):
            self.register_of_node[node] = self.register_of(late, node)
            return of_register(self.register_of_node[node])
        if self._narrower_than(node, late):
            self.register_of_node[node] = self.register_of(late, node)
            return of_register(self.register_of_node[node])
        return late

    def _narrower_than(self, node: Node, late: Late) -> bool:
        """Whether the example says more of a value than what it is made of: it is one of its own.

        What is then computed from it has the narrower range.
        """
        assumed = self.ranges.assumed.get(node)
        if assumed is None or assumed.by != "example" or node.op in ("data", "state"):
            return False
        if isinstance(late, Pending):
            return not isinstance(late.curve, JumpCurve)
        return isinstance(late, LinearForm) and late.range.size > 4 * self.ranges[node].size

    def _of_constant(self, node: Node) -> LinearForm:
        return LinearForm((), node.attr)

    def _of_numbers(self, node: Node) -> LinearForm:
        writes = tuple(Write("one", v, j, 1) for j, v in enumerate(node.attr))
        return of_register(self.preload(writes, False, node.width, self.ranges[node], "numbers"))

    def _of_count(self, node: Node) -> LinearForm:
        return of_register(self._given(node, "samples"))

    def _of_index(self, node: Node) -> LinearForm:
        return of_register(self._given(node, "index"))

    def _of_data(self, node: Node) -> LinearForm:
        return of_register(self._given(node, node.attr))

    def _of_parameter(self, node: Node) -> LinearForm:
        return of_register(self._given(node, node.attr))

    def _given(self, node: Node, source: str) -> Register:
        scale = scale_of(self.ranges[node])
        writes = (Write(source, 1 / scale, 0, node.width),)
        held = self.ranges[node].times(1 / scale)
        register = self.preload(writes, node.samples, node.width, held, source, scale)
        self.register_of_node[node] = register
        return register

    def _of_add(self, node: Node) -> Late:
        u, v = (self.value(a) for a in node.args)
        if isinstance(u, LinearForm) and isinstance(v, LinearForm):
            return self._sum(u, v, node)
        together = self._one_curve("+", u, v)
        if together is not None:
            return together
        if isinstance(u, Pending) and isinstance(v, Pending):
            bends = any(piecewise_linear(p.curve, p.range, self.eps) is not None for p in (u, v))
            pair = None if bends else paired(u, v) or self._paired_apart(u, v, node)
            if pair is not None and self._pair_fits(pair, node):
                return pair
        return self._sum(self.form(node.args[0]), self.form(node.args[1]), node)

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
        self.emit_line(register, middle, "part of a sum", node.place, node=node)
        held = LinearForm(((Read("at", register), 1.0),))
        sides = (
            replace(p, of=LinearForm((*held.terms, *((r, dict(p.of.terms)[r]) for r in flipped))))
            for p in (u, v)
        )
        return paired(*sides)

    def _pair_fits(self, pair: FunctionPair, node: Node) -> bool:
        slots = Slots(node.samples)
        return slots.fits(pair.a) and slots.fits(pair.b)

    def _sum(self, u: LinearForm, v: LinearForm, node: Node) -> LinearForm:
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
        if isinstance(late, LinearForm):
            if not late.terms:  # of a number: a look-up that has one value
                return self._curve_of(
                    late, compose(tree, trees.Number(Fraction(late.constant))), argument
                )
            if straight is not None and late.exact_line(*straight):
                return late.line(*straight)
            return self._curve_of(late, tree, argument)
        assert isinstance(late, Pending)
        curve = scaled_curve(late.curve, tree)
        if curve is None:
            return self._curve_of(of_register(self.register(argument)), tree, argument)
        return replace(late, curve=curve)

    def _curve_of(self, form: LinearForm, tree: trees.Node, argument: Node) -> Late:
        """tree(form) as a look-up."""
        signed = form.signs()
        if signed is None or not Slots(argument.samples).divided(tuple(r for r, _ in form.terms)):
            form = of_register(self.register(argument))
            signed = form.signs()
            assert signed is not None
        alpha, base = signed
        return Pending(compose(tree, affine(alpha, form.constant)), base,
                       self._base_range(argument, alpha, form, base))  # fmt: skip

    def _base_range(self, node: Node, alpha: float, form: LinearForm, base: LinearForm) -> Range:
        """Of U, from the reads, and from the range of the node that is alpha U + c."""
        known = self.ranges[node] - Range(form.constant, form.constant)
        return base.range.meet(known.times(1.0 / alpha))

    def _one_curve(self, name: str, u: Late, v: Late) -> Pending | None:
        """Two curves of one variable as one."""
        p, q = self._as_curve(u), self._as_curve(v)
        if (
            p is None
            or q is None
            or isinstance(p.curve, JumpCurve)
            or isinstance(q.curve, JumpCurve)
        ):
            return None
        if p.curve.size + q.curve.size > _LARGEST_CURVE:
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
        if isinstance(late, FunctionPair) or (signed := late.signs()) is None:
            return None
        alpha, base = signed
        return Pending(affine(alpha, late.constant), base, base.range)

    def _of_mul(self, node: Node) -> Late:
        u, v = (self.value(a) for a in node.args)
        if isinstance(u, LinearForm) and not u.terms:
            return self._of_apply(_scaled_node(node, u.constant, node.args[1]))
        if isinstance(v, LinearForm) and not v.terms:
            return self._of_apply(_scaled_node(node, v.constant, node.args[0]))
        together = self._one_curve("*", u, v)
        if together is not None and Slots(node.samples).divided(
            tuple(r for r, _ in together.of.terms)
        ):
            return together
        register = self.new_register(node)
        self._multiply(register, node.args[0], node.args[1], node)
        self.register_of_node[node] = register
        return of_register(register)

    def _of_maximum(self, node: Node) -> Late:
        return self._extreme(node, 1.0)

    def _of_minimum(self, node: Node) -> Late:
        return self._extreme(node, -1.0)

    def _extreme(self, node: Node, sign: float) -> Late:
        together = self._one_curve(
            "max" if sign > 0 else "min", *(self.value(a) for a in node.args)
        )
        straight = together is not None and piecewise_linear(
            together.curve, together.range, self.eps
        )
        larger = None if straight else self._larger_by(node)
        if larger is None and together is not None:
            return together
        if larger is not None:
            return self.form(node.args[1 if sign > 0 else 0]).plus(larger.line(sign, 0.0))
        u, v = (self.operand(a, node) for a in node.args)
        if u.terms[0][1] != v.terms[0][1]:
            u, v = (of_register(self.unscaled(self.register(a), node)) for a in node.args)
        if not (
            u.exact_sum(LinearForm((), v.constant)) and u.exact_sum(LinearForm((), -v.constant))
        ):
            u, v = (of_register(self.unscaled(self.register(a), node)) for a in node.args)
        alpha = u.terms[0][1]
        total, apart = u.constant + v.constant, u.constant - v.constant
        register = self.new_register(node)
        half = 0.5 / register.scale
        f = operation("*", half, affine(alpha, total))
        g = operation("*", -sign * half, operation("abs", affine(alpha, apart)))
        a, b = reads_of(u), reads_of(v)
        register.clean = all(r.clean for r in (*a, *b)) and total == apart == 0
        gain = abs(alpha) / register.scale
        self.emit(VirtualInstruction(register, a, b, f, g, (gain, gain), node.op, node.place), node)
        self.register_of_node[node] = register
        return of_register(register)

    def _larger_by(self, node: Node) -> LinearForm | None:
        """max(a - b, 0): max(a, b) is b and it, min(a, b) is a less it."""
        a, b = node.args
        span = self.ranges[a] - self.ranges[b]
        relu = trees.Operation("relu", (_Z,))
        if piecewise_linear(relu, span, self.eps) is None:
            return None
        u, v = self.form(a), self.form(b).line(-1.0, 0.0)
        apart = Register("", node.samples, node.width, span)
        if not u.exact_sum(v):
            u, v = of_register(self.register(a)), of_register(self.register(b)).line(-1.0, 0.0)
        self.emit_line(apart, u.plus(v), "apart", node.place, node=node)
        out = Register("", node.samples, node.width, Range(0.0, max(0.0, span.high)))
        self.look_up(out, Pending(relu, LinearForm(((Read("at", apart), 1.0),)), span), node.op,
                     node.place, node)  # fmt: skip
        return of_register(out)

    def _of_step(self, node: Node) -> Late:
        alpha, constant, base, base_range = self._looked_up(node)
        at = -constant / alpha
        reach = max(abs(base_range.low - at), abs(base_range.high - at), 2.0**-60)
        sharpness = 2.0 ** int(_floor_log2(_STEEPEST / reach))
        height = 0.5 if alpha > 0 else -0.5
        self.gaps[node] = above(Fraction(_SURE) / Fraction(sharpness) * abs(Fraction(alpha)))
        return Pending(StepCurve(at, sharpness, _SURE / sharpness, 0.5, height), base, base_range)

    def _looked_up(self, node: Node) -> tuple[float, float, LinearForm, Range]:
        """alpha, c, U and its range, where the argument of a node is alpha U + c."""
        form = self.form(node.args[0])
        signed = form.signs()
        if signed is None or not Slots(node.samples).divided(tuple(r for r, _ in form.terms)):
            form = of_register(self.register(node.args[0]))
            signed = form.signs()
            assert signed is not None
        alpha, base = signed
        return alpha, form.constant, base, self._base_range(node.args[0], alpha, form, base)

    def _of_whole(self, node: Node) -> Late:
        alpha, constant, base, base_range = self._looked_up(node)
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
        return Pending(stairs, base, base_range)

    def _of_sum(self, node: Node) -> LinearForm:
        argument = node.args[0]
        late = self.value(argument)
        if isinstance(late, LinearForm) and self._summable(late, argument):
            width = float(argument.width or 1)
            terms = tuple((replace(r, how="rowsum"), c) for r, c in late.terms)
            return LinearForm(terms, late.constant * width)
        register = self.cleaned(self.register(argument), node)
        return LinearForm(((Read("rowsum", register), register.scale),))

    def _summable(self, form: LinearForm, argument: Node) -> bool:
        width = float(argument.width or 1)
        return bool(form.terms) and LinearForm((), form.constant).exact_line(width, 0.0) and all(
            r.how == "at" and r.register.samples == argument.samples and r.register.clean
            and r.register.width == argument.width
            for r, _ in form.terms
        )  # fmt: skip

    def _of_mean(self, node: Node) -> LinearForm:
        argument = node.args[0]
        late = self.value(argument)
        if isinstance(late, LinearForm) and all(r.how == "at" for r, _ in late.terms):
            terms = tuple(
                (replace(r, how="mean") if r.register.samples else r, c) for r, c in late.terms
            )
            return LinearForm(terms, late.constant)
        register = self.register(argument)
        return LinearForm(((Read("mean", register), register.scale),))

    def _of_spread(self, node: Node) -> Late:
        late = self.value(node.args[0])
        if isinstance(late, LinearForm) and all(r.how == "at" for r, _ in late.terms):
            return late
        return of_register(self.register(node.args[0]))

    def _of_bounded(self, node: Node) -> Late:
        late = self.value(node.args[0])
        if isinstance(late, LinearForm):
            return late
        # The bound narrows what comes after: it belongs to a value of its own.
        return self._of_stored(node)

    def _of_stored(self, node: Node) -> Late:
        self.register_of_node[node] = self.register_of(self.value(node.args[0]), node)
        return of_register(self.register_of_node[node])

    def _of_attend(self, node: Node) -> Late:
        return attended(self, node)

    def _of_concat(self, node: Node) -> Late:
        register = packed(self, node.args, node)
        self.register_of_node[node] = register
        return of_register(register)

    def _of_component(self, node: Node) -> Late:
        """The product with e_j, summed up."""
        vector = self.operand(node.args[0], node)
        register = Register("", node.samples, self.width, self.ranges[node.args[0]].join(
            Range(0.0, 0.0)), clean=True, single=True)  # fmt: skip
        mask = of_register(self.mask(node.attr, 1))
        self.product(register, vector, mask, node, f"component {node.attr}")
        return LinearForm(((Read("rowsum", register), 1.0),))

    def _multiply(self, dst: Register, left: Node, right: Node, node: Node) -> None:
        u = self.operand(left, node)
        v = self.operand(right, node)
        self.product(dst, u, v, node, short_name(node))


def _scaled_node(node: Node, factor: float, argument: Node) -> Node:
    tree = operation("*", float(factor), _Z)
    return replace(node, op="apply", args=(argument,), attr=tree)


def _floor_log2(value: float) -> int:
    return math.frexp(value)[1] - 1


_DECIDED = (
    6.0  # sharpness times gap of what decides a branch: FLAG is within 2 e^-12 < 2^-10 of +-1
)
_COUNTER_GAP = 0.25  # a counter is at half numbers


@dataclass(frozen=True, eq=False)
class SelectedCode:
    """Instructions of registers; ``outputs`` are the registers with the answers."""

    code: VirtualCode
    outputs: dict[str, tuple[Register, int | None]]
    width: int
    flag: Register
    gaps: dict[Node, float]  # how near to a tie each comparison may come


def fuse(graph: Graph, ranges: Ranges, eps: float) -> SelectedCode:
    """The instructions of a graph; ``eps`` is what one look-up may be off by."""
    return Fuser(graph, ranges, eps).fused()


class Fuser(Selector):
    """One graph on its way to instructions."""

    def fused(self) -> SelectedCode:
        """All of it."""
        self.block(self.top)
        outputs = {}
        for name, node in self.graph.outputs.items():
            outputs[name] = (self.unscaled(self.register(node), node), node.width)
        return SelectedCode(self.code[self.top], outputs, self.width, self.flag, self.gaps)

    def block(self, block: Block) -> None:
        """Every item, in order."""
        before, self.current_block = self.current_block, block
        self.code[block] = VirtualCode()
        self._items(block)
        self.current_block = before

    def _items(self, block: Block) -> None:
        for item in block.items:
            if isinstance(item, Loop):
                self.loop(item)
            elif item not in self.pending:
                self.pending[item] = self._late(item)

    def loop(self, loop: Loop) -> None:
        """States, turns, and the question whether there is another."""
        outer, once = self.current_block, self.current_block is self.top
        states = {}
        for carried in loop.carried:
            state = self._state(carried.name, carried.state, carried.start, once)
            states[carried.state] = state
            self.pending[carried.state] = of_register(state)
            self.register_of_node[carried.state] = state
        counter = None if loop.count is None else self._counter(loop, loop.count, once)
        if loop.count is None:
            assert loop.first is not None
            self._ask(loop.first)
            guarded = True
        else:
            guarded = self.ranges[loop.count].low < 1
            if guarded and counter is not None:
                self._ask_counter(counter, loop.place)
        self._body(loop, states, counter)
        held = tuple(states.values())
        body = self.code[loop.body]
        made = VirtualLoop(counter, body, guarded, loop, held)
        self.code[outer].items.append(made)
        for carried in loop.carried:
            self.pending[carried.result] = of_register(states[carried.state])
            self.register_of_node[carried.result] = states[carried.state]

    def _body(self, loop: Loop, states: dict[Node, Register], counter: Register | None) -> None:
        before, self.current_block = self.current_block, loop.body
        self.code[loop.body] = VirtualCode()
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
        self.current_block = before

    def _fresh(self, node: Node, name: str, body: Block) -> Register:
        """A register with the node's value that no state's end of turn overwrites."""
        late = self.value(node)
        if self.block_of.get(node) is body and node.op not in ("state", "result"):
            known = self.register_of_node.get(node)
            if known is not None and not known.writes:
                return known
            register = self.register(node, name)
            if not register.writes and not self.is_state(register):
                return register
        register = self.new_register(node, name)
        self.compute(late, register, node)
        return register

    def _state(self, name: str, state: Node, start: Node, once: bool) -> Register:
        """The register of a state, holding what the loop starts with."""
        clean = state in self.clean
        register = self.new_register(state, name)
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

    def _counter(self, loop: Loop, count: Node, once: bool) -> Register:
        """Counts down from the number of turns less a half."""
        span = Range(-1.0, max(1.0, self.ranges[count].size))
        scale = scale_of(span)
        register = Register("turns", False, None, span.times(1 / scale), scale=scale)
        form = self.form(count).plus(LinearForm((), -0.5))
        writes = self.as_writes(form, None) if once else None
        if writes is not None:
            register.writes = tuple(replace(w, scale=w.scale / scale) for w in writes)
        else:
            self.emit_line(register, form, "turns left", loop.place)
        return register

    def _count_down(self, loop: Loop, counter: Register) -> None:
        self.emit_line(counter, of_register(counter).plus(LinearForm((), -1.0)), "one turn less",
                        loop.place)  # fmt: skip

    def _ask(self, condition: Node) -> None:
        """FLAG becomes +1 where the condition holds, else -1."""
        late = self.value(condition)
        if isinstance(late, Pending) and isinstance(late.curve, StepCurve):
            sign = replace(late.curve, offset=0.0, height=2 * late.curve.height)
            self.look_up_twice(self.flag, replace(late, curve=sign), "another turn?",
                                condition.place, None)  # fmt: skip
            return
        # A combination of comparisons is 0 or 1.
        held = of_register(self.register(condition))
        self._write_flag(held, StepCurve(0.5, 4 * _DECIDED, 0.25, 0.0, 1.0), condition.place)

    def _ask_counter(self, counter: Register, place: SourceLine | None) -> None:
        gap = _COUNTER_GAP / counter.scale
        held = LinearForm(((Read("at", counter), 1.0),))
        self._write_flag(held, StepCurve(0.0, _DECIDED / gap, gap, 0.0, 1.0), place)

    def _write_flag(self, form: LinearForm, step: StepCurve, place: SourceLine | None) -> None:
        self._look_up(self.flag, Pending(step, form, form.range), "another turn?", place)
