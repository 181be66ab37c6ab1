r"""How far a program's answers can be off, for all data of its domain: known before any run.

**One instruction.** It adds an error of its own: that of its table, of rounding
(:mod:`~iceform.computer.rounding`), and of coefficients that were rounded. It also passes on the
errors of its operands. With e_a and e_b what the operands of :math:`F(a + b) - G(a - b)` are off
by, its result is off by

.. math:: e_{dst} \le |\partial_a|\, e_a + |\partial_b|\, e_b + |p - q|\,(e_a^2 + e_b^2)
    + 2\,|p + q|\, e_a e_b + own

if F and G are polynomials with the second coefficients p and q; derivatives are bounded over the
ranges. Of other curves they are bounded over ranges that are wider by :math:`e_a + e_b`, and there
is no second order. This holds for arguments that the table holds. A look-up of any other argument
is still an average of the table's values, so it is off by no more than these and the range allow.
Values that are off may be larger than exact ones, and their rounding is too. Masks cover values up
to a certain size; a program that may exceed it has no certificate.

**The prompt.** A register that the prompt fills begins with the rounding of its sum of writes.

**Loops.** Let E be the errors of the states at the start of a turn, and M(E) those at its end. M is
monotone, so any E with M(E) <= E bounds the errors after any number of turns; it is tried with an E
a little larger than the errors that were reached. Until one is found a counted loop is followed
turn by turn, for as many turns as are given. Any other loop gets M(infinity). Where more is proven
of a loop at the given parameters (:mod:`~iceform.computer.loop_bounds`), its states' errors are
followed in that norm too, and the least bound counts. There a turn G takes states that are off by E
from G(w) to G(w + E), which the norm bounds, and adds the rest of M(E): all but what E alone moves.

**Beyond a vector.** A computer may have more components than a vector. They should be 0, are off by
something too, and are summed with the others. What a loop carries there is a state of its own: no
norm of the program's derivative knows of it, since 0 may lie where a turn is steeper. With E_b what
these components of some states are off by, a turn makes at most N E_b + a of it, for all E_b that
are no larger than c: slopes are those that hold for c, the columns of N are what c moves state by
state, and a is what is left of a turn's whole error. So E_b is followed by that recursion, as many
turns as there are, and what it reaches has to be no larger than c. Where what a loop computes of
zeros lies in the ranges of all its operands, a component beyond is one that a vector may have, and
what bounds those bounds it too.

**Turns.** All of this compares two runs that make the same turns. They do if every FLAG has the
right sign: if what it compares is further from a tie than its errors reach, for all data that are
not refused (:mod:`~iceform.computer.proofs`). Where that cannot be shown the certificate is
infinite, and says which line decides.

**What is missed.** Turns may undo each other's errors in a way that no norm here sees. Then the
bound grows from turn to turn. The enclosure of a run does not depend on any of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch

from iceform.arithmetic.intervals import above
from iceform.arithmetic.units import NOISE, OUTWARD, OUTWARD_MANY, OUTWARD_MOST, gamma
from iceform.certificates import Certificate, DerivationStep
from iceform.computer.assemble import Assembled
from iceform.computer.components import RegisterComponents, Share, coefficients, instructions_of
from iceform.computer.instructions import FLAG_GAP, Assembly, Instruction, TablePair
from iceform.computer.layout import largest_result, largest_value
from iceform.computer.loop_bounds import ErrorGrowth
from iceform.computer.piecewise_linear import STEEPEST
from iceform.computer.ranges import ProgramDomain, Ranges
from iceform.computer.rounding import (
    Likeness,
    argument_rounding,
    below_largest,
    instruction_rounding,
    others_weigh,
)
from iceform.computer.virtual import (
    Curve,
    JumpCurve,
    Read,
    Register,
    SelectedCode,
    StairCurve,
    VirtualCode,
    VirtualInstruction,
    VirtualLoop,
    steepest,
)
from iceform.computer.virtual import StepCurve as Comparison
from iceform.program import Range
from iceform.program.range import BEYOND
from iceform.tables import RoundingModel
from iceform.validation import unit_roundoff

_ROOM = 1 + BEYOND  # errors by so much larger are tried as those after any number of turns
_MOST_TURNS = 1024  # that a loop is followed whose turns nobody counts
_ATTEMPTS = 4  # at a bound of a loop's states that holds from turn to turn
_SURE = 1 - FLAG_GAP  # a branch whose FLAG is off by less is decided as it should be
_HULL = 1 + BEYOND  # rounding of an average of a table's values, in any dtype
_LOGITS = OUTWARD_MOST - 1  # relative: what logits, and exp of them, round by in float32 at most
_HELD = STEEPEST  # sizes in memory that kinks' rounding is stated for


@dataclass(frozen=True)
class Budget:
    """What one instruction adds: its table's error and its rounding.

    ``shift`` is what rounding moves the argument of a comparison by, ``room`` how far arguments may
    be off and still be the table's, ``most`` what the result is off by where they are not.
    """

    table: float
    rounding: float
    folded: float
    shift: float = 0.0
    room: float = math.inf
    most: float = math.inf

    @property
    def total(self) -> float:
        """All of it."""
        return (self.table + self.rounding + self.folded) * OUTWARD


def budget(
    assembled: Assembled, parts: RegisterComponents, samples: int, width: int, dtype: torch.dtype,
    backend: str,
) -> dict[VirtualInstruction, Budget]:  # fmt: skip
    """The own error of every instruction, on a computer of that width.

    A variable holds one register after another. What is read is as large as the register that is
    read; what a result replaces may be any of them.
    """
    names, largest = assembled.registers, dict[str, float]()
    for register, name in names.items():
        largest[name] = max(largest.get(name, 0.0), _size(register))
    out: dict[VirtualInstruction, Budget] = {}
    known: dict[tuple[object, ...], float] = {}
    held = max(1.0, max(largest.values(), default=0.0) / _HELD)
    before: Register | None = None
    for virtual, i in zip(assembled.virtual, assembled.assembly.instructions, strict=True):
        if virtual is None or virtual in out:
            before = None if virtual is None else virtual.dst
            continue
        table = assembled.assembly.table(i.table)
        bounds = {names[r.register]: _size(r.register) for r in virtual.reads()}
        likeness = _likeness(virtual, before, parts)
        before = virtual.dst
        reads = (*i.a.reads(), *i.b.reads())
        key = (i.table, likeness, *(bounds[n] for _, n in reads), largest[i.dst])
        if key not in known:
            known[key] = _rounding(
                assembled, i, bounds, largest[i.dst], samples, width, dtype, backend, likeness
            )
        rounding = known[key] + unit_roundoff(dtype) * virtual.rounded * held
        shift = (
            0.0
            if table.jump is None
            else _shift(assembled.assembly, i, bounds, samples, width, dtype)
        )
        own = table.f_error + table.g_error, rounding, virtual.folded
        most = virtual.dst.range.size + _HULL * largest_result(assembled.assembly, i)
        most = most if math.isfinite(sum(own)) else math.inf
        out[virtual] = Budget(*own, shift, _room(virtual, table), most)
    return out


def _likeness(
    i: VirtualInstruction, before: Register | None, parts: RegisterComponents
) -> Likeness | None:
    """What is known of an instruction's read by likeness, which asks with the result before it."""
    found = [r for r in i.reads() if r.how == "like"]
    if not found or before is None:
        return None
    asked, held = parts.ranges(before), parts.ranges(found[0].register)
    logits = math.fsum(q.size * v.size for q, v in zip(asked, held, strict=False))
    # Where the query should be 0, it is off by less than this share of its size.
    logits += BEYOND**2 * max(q.size for q in asked) * math.fsum(v.size for v in held)
    size = max(held[place].size for place in found[0].values)
    return Likeness(found[0].apart, found[0].sharpness, logits * OUTWARD, max(size, NOISE))


def _room(i: VirtualInstruction, table: TablePair) -> float:
    """From the arguments of an instruction to the ends of its table."""
    spans = [span for span, curve in ((i.plus, i.f), (i.minus, i.g)) if curve is not None]
    return min(min(span.low - table.low, table.high - span.high) for span in spans)


def _shift(
    assembly: Assembly, i: Instruction, bounds: Mapping[str, float], samples: int, width: int,
    dtype: torch.dtype,
) -> float:  # fmt: skip
    """How far rounding may shift the argument z of a comparison.

    It is that of the reads, and of the logits s (z - at). s is a power of two, so s z is exact;
    s at is rounded when it is written; their difference is rounded relative to itself, which takes
    no z across the tie.
    """
    unit, at = unit_roundoff(dtype), abs(assembly.table(i.table).jump or 0.0)
    read = argument_rounding(assembly, i, bounds, samples=samples, width=width, unit=unit)
    return 2 * read + gamma(3, unit) * at


def _rounding(
    assembled: Assembled, i: Instruction, bounds: Mapping[str, float], replaced: float,
    samples: int, width: int, dtype: torch.dtype, backend: str, likeness: Likeness | None,
) -> float:  # fmt: skip
    table = assembled.assembly.table(i.table)
    if table.jump is not None:
        return _of_jump(table, replaced, unit_roundoff(dtype), backend)
    found = instruction_rounding(
        assembled.assembly, i, bounds, samples=samples, width=width, dtype=dtype, backend=backend,
        likeness=likeness, used=assembled.assembly.width, replaced=replaced,
    )  # fmt: skip
    return (
        _by_interpolants(table, samples + width, dtype) if math.isnan(found.total) else found.total
    )


def _of_jump(table: TablePair, held: float, unit: float, backend: str) -> float:
    """Rounding of a comparison's result, and of storing it.

    One value has a weight of nearly 1: it is rounded when it is written, weighted and added up.
    What its weight lacks is in the bound of a comparison outside its gap.
    """
    largest = float(max(table.f.abs().max(), table.g.abs().max()))
    stored = unit * (2 * largest + held) * (1 + unit) if backend == "literal" else 0.0
    return 8 * unit * largest + stored


def _by_interpolants(table: TablePair, terms: int, dtype: torch.dtype) -> float:
    """Where keys are so steep that cells bound nothing: the interpolants' own bounds."""
    unit, total = unit_roundoff(dtype), 0.0
    for it in (table.f_interpolant, table.g_interpolant):
        if it is None:
            continue
        reach = max(abs(table.low), abs(table.high)) + abs(it.grid.center)
        model = RoundingModel(unit, squared=False, magnitude=reach, dot_terms=2)
        argument = gamma(terms + 10, unit) * 4 * reach
        total += it.rounding(model) + it.steepness * argument + 8 * unit * it.size
    return total


_NOTHING = Budget(0.0, 0.0, 0.0)
_ANY = Range(-math.inf, math.inf)


@dataclass
class _Errors:
    """The errors of registers, carried through the code instruction by instruction.

    ``off`` is what each register is off by. ``rest`` is the same for those components of a
    ``single`` register that should be 0, and ``beyond`` for those that the computer has and a
    vector does not: they should be 0 too, and are summed with the others. ``sure`` says how far
    from 0 a comparison's result is for certain.
    ``plain`` counts errors in full, even where a range caps them, and ``linear`` leaves out every
    error but the states': with these two, :meth:`_added` takes a difference of two passes.
    """

    own: Mapping[VirtualInstruction, Budget]
    parts: RegisterComponents
    samples: int
    width: int
    turns: Mapping[VirtualLoop, tuple[int, int]]
    growths: Mapping[VirtualLoop, tuple[ErrorGrowth, ...]]
    flag: Register
    held: float  # the largest value that masks cover
    off: dict[Register, float] = field(default_factory=dict)
    added: dict[Register, float] = field(default_factory=dict)  # by a register's own instruction
    before: Register | None = None
    rest: dict[Register, float] = field(default_factory=dict)  # beyond the one component
    beyond: dict[Register, float] = field(default_factory=dict)  # beyond a vector's components
    each: dict[Register, list[float]] = field(default_factory=dict)  # of sums, by components
    outer: dict[Register, Register] = field(default_factory=dict)  # of states, what is beyond them
    summed: float = 1.0  # what rounding makes of errors that are summed, at most
    used: dict[VirtualLoop, dict[tuple[int, ...], ErrorGrowth]] = field(default_factory=dict)
    sure: dict[Register, float] = field(default_factory=dict)  # sizes that comparisons have
    undecided: dict[str, str] = field(default_factory=dict)  # what may go another way, and how
    plain: bool = False  # what is off counts in full, so that differences say what a turn adds
    linear: bool = False  # what states move, along the slopes of the pass before, and nothing else
    slopes: dict[VirtualInstruction, tuple[float, float]] = field(default_factory=dict)
    near: dict[tuple[VirtualInstruction, float], float] = field(default_factory=dict)
    bends: dict[VirtualInstruction, tuple[float, float] | None] = field(default_factory=dict)
    at_zero: dict[VirtualInstruction, tuple[float, float]] = field(default_factory=dict)
    zeros: dict[Register, Range] = field(default_factory=dict)  # what data of 0 come to
    within: set[VirtualInstruction] = field(default_factory=set)  # that read zeros as any data

    def __post_init__(self) -> None:
        states = [s for s in self.parts.states if s.clean and (s.width or 0) < self.width]
        self.outer = {s: Register("", s.samples, None, Range(0.0, 0.0)) for s in states}

    def code(self, code: VirtualCode) -> None:
        """In order."""
        for item in code.items:
            if isinstance(item, VirtualLoop):
                self.loop(item)
            else:
                self.one(item)

    def loop(self, loop: VirtualLoop) -> None:
        """Turn by turn, and in every norm that something is proven in: the least counts."""
        begin, undecided = dict(self.off), dict(self.undecided)
        during = self._followed(loop)
        least = {state: self.off.get(state, 0.0) for state in self._kept(loop)}
        turn_by_turn, self.undecided = (self.off, self.undecided), {}
        for growth in self.growths.get(loop, ()):
            states = [loop.states[k] for k in growth.states]
            bounds = self._grown(loop, growth, states, begin, during)
            if any(bounds[s] < least[s] for s in states):
                self.used.setdefault(loop, {})[growth.states] = growth
            for known in (least, during):  # bounds hold in every turn
                known |= {s: min(known[s], bound) for s, bound in bounds.items()}
        if loop not in self.used:
            self.off, self.undecided = turn_by_turn
            return
        if loop.counter is not None:
            least[loop.counter] = turn_by_turn[0].get(loop.counter, 0.0)
        self.off, self.undecided = {**begin, **during}, undecided
        self.code(loop.body)
        for register, error in least.items():
            self.off[register] = max(error, begin.get(register, 0.0))

    def _followed(self, loop: VirtualLoop) -> dict[Register, float]:
        """Follow the loop turn by turn, from the least number of turns to the most.

        Returns for each state the largest error that it has in any turn; errors may also fall.
        """
        least, most = self.turns.get(loop, (0, _MOST_TURNS))
        counter = [] if loop.counter is None else [loop.counter]
        during = {state: self.off.get(state, 0.0) for state in (*self._kept(loop), *counter)}
        asked = 8
        for turn in range(1, most + 1):
            counted = 0.0 if loop.counter is None else self.off.get(loop.counter, 0.0)
            if turn > least:
                self._turn(loop, dict(self.off))
            else:
                self.code(loop.body)
            during = self._more(during)
            if turn < asked:
                continue
            asked *= 2
            if self._settles(loop):
                if loop.counter is not None:  # it is off by as much more in every turn
                    more = (self.off[loop.counter] - counted) * (most - turn)
                    self.off[loop.counter] += more * (1 + most * (OUTWARD - 1))
                    self._turn(loop, dict(self.off))
                return self._more(during)
        if loop not in self.turns:
            self._turn(loop, {**self.off, **dict.fromkeys(self._kept(loop), math.inf)})
            self._turn(loop, dict(self.off))  # what is only copied is known now
        return self._more(during)

    def _kept(self, loop: VirtualLoop) -> list[Register]:
        """What a loop's errors are followed of: its states, and what is beyond them."""
        return [*loop.states, *(self.outer[s] for s in loop.states if s in self.outer)]

    def _more(self, during: dict[Register, float]) -> dict[Register, float]:
        return {state: max(error, self.off.get(state, 0.0)) for state, error in during.items()}

    def _turn(self, loop: VirtualLoop, start: dict[Register, float]) -> None:
        """One more turn from given errors, or none."""
        begin, self.off = self.off, start
        self.code(loop.body)
        for register, error in begin.items():
            self.off[register] = max(self.off.get(register, 0.0), error)

    def _settles(self, loop: VirtualLoop) -> bool:
        """Whether errors a little larger stay so; then they are the errors."""
        held = self.off, self.undecided
        room = {state: _ROOM * self.off.get(state, 0.0) for state in self._kept(loop)}
        self.off, self.undecided = {**self.off, **room}, dict(self.undecided)
        self.code(loop.body)
        if all(self.off.get(state, 0.0) <= error for state, error in room.items()):
            self.off |= room
            return True
        self.off, self.undecided = held
        return False

    def _grown(
        self,
        loop: VirtualLoop,
        growth: ErrorGrowth,
        states: list[Register],
        begin: Mapping[Register, float],
        during: Mapping[Register, float],
    ) -> dict[Register, float]:
        """Bounds of some states' errors, by a norm in which turns are known to bring them together.

        A turn adds more where its states are already off: they are factors, and they decide
        comparisons. So a turn's own error is found for states that are off by a bit more than the
        bound. If the bound that follows is no larger than that, it holds from turn to turn.
        Other states are off by what is known of them in any turn.
        """
        outer = [self.outer[s] for s in states if s in self.outer]
        given = dict.fromkeys((*states, *outer), 0.0)
        before, moves = {**begin, **during}, dict.fromkeys(outer, dict.fromkeys(outer, 0.0))
        added: Mapping[Register, float] = self._turned(loop, {**before, **given})
        for attempt in range(_ATTEMPTS):
            bounds = self._bounded(loop, growth, states, begin, added)
            beyond = self._beyond_vectors(loop, growth, begin, added, moves)
            bounds |= self._like_others(loop, beyond, bounds, begin, added)
            if attempt and all(b <= given[s] for s, b in bounds.items()):
                return bounds
            if not max(bounds.values()) < math.inf:
                break
            given = {s: bound + bound / 8 for s, bound in bounds.items()}
            added, moves = self._added(loop, before, given, outer)
        return dict.fromkeys((*states, *outer), math.inf)

    def _added(
        self, loop: VirtualLoop, before: Mapping[Register, float], given: dict[Register, float],
        outer: list[Register],
    ) -> tuple[dict[Register, float], dict[Register, dict[Register, float]]]:  # fmt: skip
        """What a turn adds: the states' errors after it, less what their old errors alone become.

        Both are found along the same slopes, those that hold for all errors together, and with
        products of errors. So the difference has every term that is not of the states alone. Of
        components beyond vectors, with what each of them alone becomes.
        """
        self.plain = True
        whole = self._turned(loop, {**before, **given})
        self.linear = True
        moved = self._turned(loop, {s: e for s, e in given.items() if s not in outer})
        moves = {s: self._turned(loop, {s: given[s]}) for s in outer}
        self.plain = self.linear = False
        moved |= {s: math.fsum(found.get(s, 0.0) for found in moves.values()) for s in outer}
        added = {s: whole.get(s, 0.0) * OUTWARD_MANY - moved.get(s, 0.0) for s in given}
        shares = {
            s: {t: found.get(t, 0.0) / given[s] if given[s] else 0.0 for t in outer}
            for s, found in moves.items()
        }
        return {s: math.inf if math.isnan(e) else max(e, 0.0) for s, e in added.items()}, shares

    def _turned(self, loop: VirtualLoop, off: Mapping[Register, float]) -> dict[Register, float]:
        """What registers are off by after a turn."""
        self.off = dict(off)
        self.code(loop.body)
        return self.off

    def _bounded(
        self,
        loop: VirtualLoop,
        growth: ErrorGrowth,
        states: list[Register],
        begin: Mapping[Register, float],
        added: Mapping[Register, float],
    ) -> dict[Register, float]:
        """Of the states, if every turn adds so much."""
        turns = self.turns[loop][1] if loop in self.turns else None
        own = growth.norm([self._entries(s, added[s]) for s in states])
        start = growth.norm([self._entries(s, begin.get(s, 0.0)) for s in states])
        bounds = growth.of_states(growth.after(turns, start, own))
        return {s: bound / s.scale for s, bound in zip(states, bounds, strict=True)}

    def _beyond_vectors(
        self,
        loop: VirtualLoop,
        growth: ErrorGrowth,
        begin: Mapping[Register, float],
        added: Mapping[Register, float],
        moves: Mapping[Register, Mapping[Register, float]],
    ) -> dict[Register, float]:
        """Of components beyond vectors, if turns add so much and multiply so."""
        turns = self.turns[loop][1] if loop in self.turns else None
        now = {s: begin.get(s, 0.0) for s in moves}
        most = dict(now)
        states = [(n, loop.states[k]) for n, k in enumerate(growth.states)]
        each = {self.outer[s]: (n, s.scale) for n, s in states if s in self.outer}

        def turned(e: Mapping[Register, float]) -> dict[Register, float]:
            """By the instructions' slopes at 0, or by the program's derivative there."""
            found = {}
            for t, (row, scale) in each.items():
                by_all = math.fsum(_times(moves[s][t], e[s]) for s in each)
                near = all(e[s] * by <= BEYOND**2 for s, (_, by) in each.items())
                if growth.outer is not None and near:
                    known = growth.outer[row]
                    parts = (_times(known[n], e[s]) * by / scale for s, (n, by) in each.items())
                    by_all = min(by_all, math.fsum(parts))
                found[t] = (by_all + added.get(t, 0.0)) * OUTWARD_MANY
            return found

        for _ in range(_MOST_TURNS if turns is None else turns):
            before, now = now, turned(now)
            most = {s: max(e, now[s]) for s, e in most.items()}
            if all(now[s] <= before[s] for s in now):
                return most
        room = {s: _ROOM * e for s, e in most.items()}
        settled = turns is not None or all(e <= room[s] for s, e in turned(room).items())
        return room if settled else dict.fromkeys(moves, math.inf)

    def _like_others(
        self,
        loop: VirtualLoop,
        beyond: Mapping[Register, float],
        bounds: Mapping[Register, float],
        begin: Mapping[Register, float],
        added: Mapping[Register, float],
    ) -> dict[Register, float]:
        """Of components beyond vectors: no more than of others, where a vector may have them."""
        own = {self.outer[s]: s for s in bounds if s in self.outer}
        alike = all(self._is_within(i) for i in instructions_of(loop.body)) and all(
            known.get(o, 0.0) <= known.get(s, 0.0)
            for o, s in own.items()
            for known in (begin, added)
        )
        return {o: min(e, bounds[own[o]]) if alike else e for o, e in beyond.items()}

    def _entries(self, state: Register, error: float) -> tuple[float, int]:
        """What a state's value is off by, in each of so many entries; its register holds less."""
        return error * state.scale, state.width or 1

    def one(self, i: VirtualInstruction) -> None:
        """One instruction."""
        a, b = self._operand(i.a), self._operand(i.b)
        own = _NOTHING if self.linear else self._larger(i)
        step = i.f if isinstance(i.f, JumpCurve) else i.g
        if isinstance(step, Comparison) and math.isfinite(step.gap):
            error = rest = 0.0 if self.linear else self._compared(i, step, a + b, own)
        elif isinstance(step, StairCurve):
            error = rest = 0.0 if self.linear else step.moved((a + b + own.shift) / (1 - _LOGITS))
        else:
            self.sure.pop(i.dst, None)
            error, rest = self._smooth(i, a, b, own.room)
        outside = self._outside(i, a, b, own) if i.dst.clean else math.inf
        most = math.inf if self.plain else own.most
        if i in self.parts.shares and not self.plain:
            error = min(error, self._shared(self.parts.shares[i]))
        off = self.off[i.dst] = min((error + own.total) * OUTWARD, most)
        self.added[i.dst] = own.total
        if i.dst in self.parts.sums:
            self._note_components(i, own.total)
        if i.dst.single:  # where b is 0, errors of a move nothing
            self.rest[i.dst] = (rest + own.total) * OUTWARD_MANY
        if i.dst.clean:
            self._note_beyond(i, outside, own.total)
        elif i.dst.width is not None and not self.zeros.get(i.dst, _ANY).finite:
            self.zeros[i.dst] = self._of_zeros(i)
        self.before = i.dst
        line = f"line {i.place.line}" if i.place is not None else "a line of the compiler's"
        if i.dst is self.flag and not off < _SURE:
            self.undecided[f"turns decided in {line}"] = "perhaps others than the exact program's"
        if not off <= max(self.held - i.dst.range.size, i.dst.range.size / _HELD):
            self.undecided[f"values in {line}"] = "perhaps larger than what masks cover"

    def _larger(self, i: VirtualInstruction) -> Budget:
        """Its own error, with the rounding of values that are larger because they are off.

        Rounding grows with products of at most two sizes, such as a query's and a key's. The result
        of a comparison is an average of -1 and 1 whatever it is off by, so it is no larger.
        """
        own = self.own.get(i, _NOTHING)
        asks = [self.before] if self.before and any(r.how == "like" for r in i.reads()) else []
        kept = [i.dst, *(r.register for r in i.reads()), *asks]
        off = (BEYOND if r in self.sure else self.off.get(r, 0.0) / _size(r) for r in kept)
        share = 1 + max(off)
        rounding, shift = (_times(e, share * share) for e in (own.rounding, own.shift))
        return replace(own, rounding=rounding, shift=shift)

    def _smooth(
        self, i: VirtualInstruction, a: float, b: float, room: float
    ) -> tuple[float, float]:
        """Of operands that are off by a and b; and where b is 0, but for its error."""
        if not a + b <= room:
            self.slopes[i] = math.inf, math.inf
            return self.slopes[i]
        if i not in self.bends:
            self.bends[i] = _bends(i)
        squares, product = self.bends[i] or (0.0, 0.0)
        if not self.linear:
            self.slopes[i] = i.gains if self.bends[i] else self._steepest(i, a + b, room)
        by_a, by_b = self.slopes[i]
        rest = _times(by_b, b) + _times(squares, b * b) + _times(product, a * b)
        return _times(by_a, a) + _times(squares, a * a) + rest, rest

    def _outside(self, i: VirtualInstruction, a: float, b: float, own: Budget) -> float:
        """What is left of errors beyond a vector's components, where the result should be 0."""
        operands = list(zip((i.a, i.b), self.slopes.get(i, ()), (b, a), strict=False))
        zero = [reads for reads, *_ in operands if all(r.clean for r in reads)]
        jumps = isinstance(i.f, JumpCurve) or isinstance(i.g, JumpCurve)
        if jumps or not zero or (len(zero) < 2 and not (i.a and i.b)):
            return math.inf
        beyond = [math.fsum(self._beyond(r) for r in reads) for reads, *_ in operands]
        if len(zero) == 2:
            return self._at_zero(i, beyond[0], beyond[1], own.room)
        # 0 whatever the other operand is, as a product with a mask; beyond a vector it is what its
        # zeros come to, which may be more than it ever is within.
        if not self.bends.get(i):
            return math.inf
        _, product = self.bends[i] or (0.0, 0.0)
        f, g = (_straight(curve) for curve in (i.f, i.g))
        first = i.a in zero
        straight = above(abs(f - g if first else f + g))
        others = self._zero_of(i.b if first else i.a).size + operands[0 if first else 1][2]
        return _times(straight + _times(product, others), beyond[0 if first else 1])

    def _is_within(self, i: VirtualInstruction) -> bool:
        """Whether what operands are of zeros lies where they are within vectors."""
        if i in self.within or i.dst.width is None:
            return True
        for reads in (i.a, i.b):
            low, high = (math.fsum(getattr(r.range, end) for r in reads) for end in ("low", "high"))
            slack = NOISE * max(abs(low), abs(high))
            if not Range(low - slack, high + slack).holds(self._zero_of(reads)):
                return False
        self.within.add(i)
        return True

    def _zero_of(self, reads: tuple[Read, ...]) -> Range:
        """What an operand is beyond a vector, where data are 0; anything if nobody knows."""
        found = Range(0.0, 0.0)
        for read in reads:
            if read.how == "rowsum" or read.register.width is None:
                found += read.range
            elif not read.register.clean:
                found += self.zeros.get(read.register, _ANY)
        return found

    def _of_zeros(self, i: VirtualInstruction) -> Range:
        """The same of what an instruction makes."""
        a, b = self._zero_of(i.a), self._zero_of(i.b)
        if not (a.finite and b.finite) or isinstance(i.f, JumpCurve) or isinstance(i.g, JumpCurve):
            return _ANY
        nothing = Range(0.0, 0.0)
        f = nothing if i.f is None else (a + b).of(i.f)
        g = nothing if i.g is None else (a - b).of(i.g)
        return f - g

    def _note_beyond(self, i: VirtualInstruction, outside: float, own: float) -> None:
        """Of components beyond a vector: as of the others, where all that is read is so too."""
        found, off = (outside + own) * OUTWARD_MANY, self.off[i.dst]
        within = self._is_within(i)
        alike = within and all(self._beyond(r) <= self.off.get(r.register, 0.0) for r in i.reads())
        if self.plain:
            known = math.isfinite(outside) or not (alike or (self.linear and within))
            found = found if known else off
        elif alike:
            found = min(found, off)
        if i.dst in self.outer:
            self.off[self.outer[i.dst]] = found
        else:
            self.beyond[i.dst] = found

    def _at_zero(self, i: VirtualInstruction, a: float, b: float, room: float) -> float:
        """How far from 0 a result is whose operands should be 0, and are off by a and b."""
        if not 0 < a + b < math.inf:
            return 0.0 if a + b == 0 else math.inf
        if not self.linear:
            self.at_zero[i] = self._slopes_at_zero(i, Range(-(a + b), a + b), room)
        by_a, by_b = self.at_zero.get(i, (0.0, 0.0))
        squares, product = self.bends.get(i) or (0.0, 0.0)
        first = _times(by_a, a) + _times(by_b, b)
        return first + _times(squares, a * a + b * b) + _times(product, a * b)

    def _slopes_at_zero(
        self, i: VirtualInstruction, around: Range, room: float
    ) -> tuple[float, float]:
        """By a and by b; infinite where the table does not hold all that is around 0."""
        spans = [(c, r) for c, r in ((i.f, i.plus), (i.g, i.minus)) if c is not None]
        if not all(Range(r.low - room, r.high + room).holds(around) for _, r in spans):
            return math.inf, math.inf
        if self.bends.get(i):
            f, g = (_straight(curve) for curve in (i.f, i.g))
            return above(abs(f - g)), above(abs(f + g))
        return (math.fsum(steepest(c, around) for c, _ in spans),) * 2

    def _beyond(self, read: Read) -> float:
        """Of components beyond a clean vector."""
        register = read.register
        if read.is_data or (register.carried and (register.width or 0) >= self.width):
            return 0.0
        if register in self.outer:
            return self.off.get(self.outer[register], 0.0)
        return self.beyond.get(register, self.off.get(register, 0.0))

    def _steepest(self, i: VirtualInstruction, off: float, room: float) -> tuple[float, float]:
        """Slopes also where an argument leaves its range by what it is off, or by a bit more."""
        if not off:
            return i.gains
        least = NOISE * max(i.plus.size, i.minus.size)
        off = min(2.0 ** math.frexp(max(off, least))[1], room)
        if (i, off) not in self.near:
            spans = [(c, r) for c, r in ((i.f, i.plus), (i.g, i.minus)) if c is not None]
            around = ((c, Range(r.low - off, r.high + off)) for c, r in spans)
            self.near[i, off] = math.fsum(steepest(c, r) for c, r in around)
        return self.near[i, off], self.near[i, off]

    def _compared(
        self, i: VirtualInstruction, step: Comparison, moved: float, own: Budget
    ) -> float:
        """A comparison of what is off by ``moved``, and so nearer to a tie than its gap.

        The second look-up of one knows how far from 0 the first one is for certain; of an average
        of such values, which may be as near to 0 as one likes, that says nothing.
        """
        alone = len(i.a) == 1 and not i.b and i.a[0].how == "at"
        first = i.a[0].register if alone else None
        known = self.sure.get(first) if first is not None and step.at == 0 else None
        apart = step.sharpness * ((step.gap - moved if known is None else known) - own.shift)
        apart *= 1 - _LOGITS
        self.sure.pop(i.dst, None)
        if abs(step.height) == 1 and step.offset == 0:
            self.sure[i.dst] = math.tanh(apart) - own.rounding
        less = math.exp(-2 * apart) if apart > 0 else math.inf
        return 2 * abs(step.height) * (less / (1 + less) if less < 1 else 1.0)

    def _operand(self, reads: tuple[Read, ...]) -> float:
        return math.fsum(self._read(r) for r in reads)

    def _read(self, read: Read) -> float:
        error = self.off.get(read.register, 0.0)
        if read.how == "rowsum":
            if read.register.single:
                rest = self.rest.get(read.register, error)
                return error + _times((self.width - 1) * self.summed, min(rest, error))
            components = read.register.width or self.width
            others = (self.width - components) * self.summed
            return components * error + _times(others, self._beyond(read))
        if read.how == "like" and self.before is not None:
            return self._like(read, self.before)
        return error

    def _like(self, read: Read, asked: Register) -> float:
        """Of a read by likeness: what values are off by, and what logits are moved by.

        What all logits are moved by alike moves nothing, so a query that is off counts with half
        of what keys span. Weights that are moved by as much take an average of values by half of
        that times what these span; plainly, a span of values that are off themselves. What is not
        needed is an average of keys, and multiplied with 0.
        """
        held, kept = read.register, slice(read.values.start, read.values.stop)
        values = self._components(held)[kept]
        if self.linear and (read.apart or read.sharpness):
            return max(values)  # no derivative knows of weights at a place, or of the largest value
        moved = self._logits(asked, held, bool(read.sharpness))
        if read.sharpness:
            return max(values) + below_largest(moved, read.sharpness, self.samples)
        free = moved / 2 if self.plain else math.tanh(moved / 2)
        if read.apart:
            # What rounding adds rests on this too: where it is infinite, any average is possible.
            others = others_weigh(moved, read.apart, self.samples)
            free = min(free, others) if math.isfinite(others) else math.inf
        spans = (r.high - r.low + (2 * e if self.plain else 0.0)
                 for r, e in zip(self.parts.ranges(held)[kept], values, strict=True))  # fmt: skip
        return max(e + _times(span, free) for e, span in zip(values, spans, strict=True))

    def _logits(self, asked: Register, held: Register, largest: bool) -> float:
        """What logits are moved by, but for what is the same in all: products of components.

        Where the largest value is asked for, keys are what is averaged, and count as they are.
        """
        queries, keys = (
            list(zip(self.parts.ranges(r), self._components(r), strict=True)) for r in (asked, held)
        )
        beyond = [(Range(0.0, 0.0), self._beyond(Read("at", r))) for r in (asked, held)]
        total = []
        for place in range(max(len(queries), len(keys))):
            q, by_query = queries[place] if place < len(queries) else beyond[0]
            k, by_key = keys[place] if place < len(keys) else beyond[1]
            total.append(_times(by_query, (k.high - k.low) / 2 + by_key))
            total.append(0.0 if largest else _times(q.size, by_key))
        total.append(max(0, self.width - len(total) // 2) * _times(beyond[0][1], beyond[1][1]))
        return math.fsum(total) * OUTWARD_MANY if all(map(math.isfinite, total)) else math.inf

    def _components(self, register: Register) -> list[float]:
        """What each component is off by."""
        off, places = self.off.get(register, 0.0), range(register.width or 1)
        if register.single:
            rest = min(off, self.rest.get(register, off))
            return [off if place == places[-1] else rest for place in places]
        if register.writes and not register.carried:
            return [off if r.size else 0.0 for r in self.parts.ranges(register)]
        return [min(off, e) for e in self.each.get(register, [off] * len(places))]

    def _note_components(self, i: VirtualInstruction, added: float) -> None:
        """Of a sum of others, component by component."""
        total = [added] * (i.dst.width or 1)
        for read, c in self.parts.sums[i.dst].items():
            each, beyond = self._components(read.register), self._beyond(read)
            for place in range(len(total)):
                off = each[place] if place < len(each) else beyond
                total[place] += _times(above(abs(c)), off)
        self.each[i.dst] = [e * OUTWARD_MANY for e in total]

    def _shared(self, known: Share) -> float:
        """Of an instruction that adds a share of something: all of it followed together."""
        ends = (
            math.fsum(_times(above(abs(c)), self._read(r)) for r, c in end.items())
            for end in known.ends
        )
        made = [known.product, *([] if known.difference is None else [known.difference])]
        own = math.fsum(_times(above(c), self.added[r]) for r, c in made)
        most = known.size + math.fsum(map(self._read, known.of))
        by_share = _times(self.off.get(known.share, 0.0), above(abs(known.factor)) * most)
        return (max(ends) + own + by_share) * OUTWARD_MANY


def _times(slope: float, off: float) -> float:
    """A slope times an error: 0 if either is, even where the other is infinite."""
    return slope * off if slope and off else 0.0


def _size(register: Register) -> float:
    """Of its values, as their rounding is found."""
    return max(register.range.size, NOISE)


def _bends(i: VirtualInstruction) -> tuple[float, float] | None:
    """Of F = p z^2 + ... and G = q z^2 + ..., the second order's factors of a^2 + b^2 and of a b.

    p (a + b)^2 - q (a - b)^2 = (p - q) (a^2 + b^2) + 2 (p + q) a b. What jumps has none but at its
    jump, which a product with the distance from it makes up for; None for other curves.
    """
    if isinstance(i.f, JumpCurve) or isinstance(i.g, JumpCurve):
        return 0.0, 0.0
    f, g = coefficients(i.f, 2), coefficients(i.g, 2)
    if f is None or g is None:
        return None
    return above(abs(f[2] - g[2])), above(2 * abs(f[2] + g[2]))


def _straight(curve: Curve | None) -> Fraction:
    """The slope of a polynomial of at most the second degree at 0; 0 for what jumps."""
    return (coefficients(curve, 2) or (Fraction(0),) * 3)[1]


def certify(
    fused: SelectedCode,
    assembled: Assembled,
    ranges: Ranges,
    turns: Mapping[VirtualLoop, tuple[int, int]],
    growths: Mapping[VirtualLoop, tuple[ErrorGrowth, ...]],
    width: int,
    dtype: torch.dtype = torch.float64,
    backend: str = "literal",
) -> tuple[Certificate, dict[VirtualInstruction, Budget]]:
    """The certificate over the domain, and every instruction's own error.

    A computer has ``width`` components, perhaps more than the program: those should be 0, and are
    off by something too.
    """
    parts = RegisterComponents(fused.code, ranges.domain)
    own = budget(assembled, parts, ranges.domain.samples, width, dtype, backend)
    written = _written(assembled, ranges.domain, dtype)
    held = largest_value(assembled.assembly)
    samples = ranges.domain.samples
    errors = _Errors(own, parts, samples, width, turns, growths, fused.flag, held, written)
    errors.summed += gamma(width, unit_roundoff(dtype))
    errors.code(fused.code)
    terms = {name: errors.off.get(register, 0.0) for name, (register, _) in fused.outputs.items()}
    if errors.undecided:
        terms = dict.fromkeys(terms, math.inf)
    worst = max(terms.values())
    assumptions = dict.fromkeys(a for t in assembled.assembly.tables for a in t.assumptions)
    certificate = Certificate(
        worst,
        {"tables, rounding and what they grow to": worst},
        domain=_domain(ranges, turns, errors),
        dtype=dtype,
        backend=backend,
        derivation=tuple(
            DerivationStep(name, "errors through the program", e, "derivatives over the ranges")
            for name, e in terms.items()
        ),
        assumptions=tuple(assumptions),
        compared="computed - exact program",
        kind="estimated" if assumptions else "proven",
    )
    return certificate, own


def _written(
    assembled: Assembled, domain: ProgramDomain, dtype: torch.dtype
) -> dict[Register, float]:
    """What registers are off by before the first cycle: the rounding of sums of writes."""
    sizes = {name: r.size for name, r in domain.parameters.items()}
    sizes |= dict.fromkeys(("samples", "index"), float(domain.samples))
    sizes |= {"x": domain.x.size, "y": domain.y.size, "one": 1.0}
    unit, cast = unit_roundoff(dtype), 2 * (dtype != torch.float64)  # a datum, and its scale
    found = {}
    for register in assembled.registers:
        writes = register.writes
        scaled = any(abs(math.frexp(w.scale)[0]) != 0.5 for w in writes if w.scale)
        terms = max(0, len(writes) - 1) + scaled + cast
        size = math.fsum(abs(w.scale) * sizes[w.source] for w in writes)
        found[register] = gamma(terms, unit) * size * OUTWARD
    return {register: off for register, off in found.items() if off}


def _domain(
    ranges: Ranges, turns: Mapping[VirtualLoop, tuple[int, int]], errors: _Errors
) -> dict[str, float | str]:
    domain: dict[str, float | str] = {"x": str(ranges.domain.x), "y": str(ranges.domain.y)}
    domain.update({name: str(r) for name, r in ranges.domain.parameters.items()})
    for assumed in ranges.assumed.values():
        domain[assumed.name] = f"{assumed.range}, checked in every run"
    if turns:
        domain["turns"] = ", ".join(str(most) for _, most in turns.values())
    grown = [growth.description for each in errors.used.values() for growth in each.values()]
    if grown:
        domain["parameters"] = f"those given; {'; '.join(dict.fromkeys(grown))}"
    return {**domain, **errors.undecided}
