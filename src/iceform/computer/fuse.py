r"""Fusing: a graph with ranges becomes instructions, as few as there need be.

Nothing is computed before somebody needs it (:mod:`~iceform.computer.forms`). What a form or a
curve can express is then one instruction:

======================================  =====================================================
alpha a + beta b + c                    F = p z + c, G = -q z, p, q = (alpha +- beta)/2
k (a + c)(b + e)                        F = k (z + c + e)^2/4, G = k (z + c - e)^2/4
f(a + b), f(a - b)                      F = f, or G = -f
max(a, b), min(a, b)                    F = z/2, G = -+|z|/2
f(a + b) + g(a - b)                     F = f, G = -g (a soft threshold, by a table)
a > b                                   a step: two entries
======================================  =====================================================

Where a table with a kink is not good enough, curves of straight pieces are comparisons and
products (:mod:`~iceform.computer.bends`): three instructions a kink.

An instruction is written into the block that its node belongs to, so what a loop does not change is
computed before it. Data and parameters are read with the factor that is wanted, by writing them
into the prompt with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iceform.computer.forms import Form, Pending, of_register, scale_of
from iceform.computer.graph import Block, Graph, Loop, Node, Place
from iceform.computer.ranges import Range, Ranges
from iceform.computer.select import Selector
from iceform.computer.virtual import Code, Read, Register, Step, VirtualLoop

__all__ = ["Fused", "Fuser", "fuse"]

_DECIDED = (
    6.0  # sharpness times gap of what decides a branch: FLAG is within 2 e^-12 < 2^-10 of +-1
)
_COUNTER_GAP = 0.25  # a counter is at half numbers


@dataclass(frozen=True, eq=False)
class Fused:
    """Instructions of registers; ``outputs`` are the registers with the answers."""

    code: Code
    outputs: dict[str, tuple[Register, int | None]]
    width: int
    flag: Register
    gaps: dict[Node, float]  # how near to a tie each comparison may come


def fuse(graph: Graph, ranges: Ranges, eps: float) -> Fused:
    """The instructions of a graph; ``eps`` is what one look-up may be off by."""
    return Fuser(graph, ranges, eps).fused()


class Fuser(Selector):
    """One graph on its way to instructions."""

    def fused(self) -> Fused:
        """All of it."""
        self.block(self.top)
        outputs = {}
        for name, node in self.graph.outputs.items():
            outputs[name] = (self.unscaled(self.register(node), node), node.width)
        return Fused(self.code[self.top], outputs, self.width, self.flag, self.gaps)

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

    def loop(self, loop: Loop) -> None:
        """States, turns, and the question whether there is another."""
        outer, once = self.now, self.now is self.top
        states = {}
        for carried in loop.carried:
            state = self._state(carried.name, carried.state, carried.start, once)
            states[carried.state] = state
            self.late[carried.state] = of_register(state)
            self.held[carried.state] = state
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
        form = self.form(count).plus(Form((), -0.5))
        writes = self.as_writes(form, None) if once else None
        if writes is not None:
            register.writes = tuple(replace(w, scale=w.scale / scale) for w in writes)
        else:
            self.emit_line(register, form, "turns left", loop.place)
        return register

    def _count_down(self, loop: Loop, counter: Register) -> None:
        self.emit_line(counter, of_register(counter).plus(Form((), -1.0)), "one turn less",
                        loop.place)  # fmt: skip

    def _ask(self, condition: Node) -> None:
        """FLAG becomes +1 where the condition holds, else -1."""
        late = self.value(condition)
        if isinstance(late, Pending) and isinstance(late.curve, Step):
            sign = replace(late.curve, offset=0.0, height=2 * late.curve.height)
            self.look_up_twice(self.flag, replace(late, curve=sign), "another turn?",
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
        self._look_up(self.flag, Pending(step, form, form.range), "another turn?", place)
