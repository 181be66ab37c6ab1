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
from iceform.computer.instructions import FLAG_GAP, Assembly, Instruction, TablePair
from iceform.computer.layout import largest_result, largest_value
from iceform.computer.loop_bounds import ErrorGrowth
from iceform.computer.piecewise_linear import STEEPEST
from iceform.computer.ranges import ProgramDomain, Ranges
from iceform.computer.rounding import argument_rounding, instruction_rounding, others_weigh
from iceform.computer.virtual import (
    LARGEST,
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
from iceform.expressions.formulas.polynomials import polynomial
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
    assembled: Assembled, samples: int, width: int, dtype: torch.dtype, backend: str
) -> dict[VirtualInstruction, Budget]:
    """The own error of every instruction, on a computer of that width."""
    bounds: dict[str, float] = {}
    for register, name in assembled.registers.items():
        bounds[name] = max(bounds.get(name, 0.0), _size(register))
    out: dict[VirtualInstruction, Budget] = {}
    known: dict[tuple[object, ...], float] = {}
    held = max(1.0, max(bounds.values(), default=0.0) / _HELD)
    for virtual, i in zip(assembled.virtual, assembled.assembly.instructions, strict=True):
        if virtual is None or virtual in out:
            continue
        table = assembled.assembly.table(i.table)
        reads = (*i.a.reads(), *i.b.reads())
        key = (i.table, virtual.apart, *(bounds[n] for _, n in reads), bounds[i.dst])
        if key not in known:
            known[key] = _rounding(
                assembled, i, bounds, samples, width, dtype, backend, virtual.apart
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
    assembled: Assembled, i: Instruction, bounds: Mapping[str, float], samples: int, width: int,
    dtype: torch.dtype, backend: str, apart: float,
) -> float:  # fmt: skip
    table = assembled.assembly.table(i.table)
    if table.jump is not None:
        return _of_jump(table, bounds[i.dst], unit_roundoff(dtype), backend)
    found = instruction_rounding(
        assembled.assembly, i, bounds, samples=samples, width=width, dtype=dtype, backend=backend,
        apart=apart, used=assembled.assembly.width,
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
    samples: int
    width: int
    turns: Mapping[VirtualLoop, tuple[int, int]]
    growths: Mapping[VirtualLoop, tuple[ErrorGrowth, ...]]
    flag: Register
    held: float  # the largest value that masks cover
    off: dict[Register, float] = field(default_factory=dict)
    before: Register | None = None
    rest: dict[Register, float] = field(default_factory=dict)  # beyond the one component
    beyond: dict[Register, float] = field(default_factory=dict)  # beyond a vector's components
    summed: float = 1.0  # what rounding makes of errors that are summed, at most
    used: dict[VirtualLoop, dict[tuple[int, ...], ErrorGrowth]] = field(default_factory=dict)
    sure: dict[Register, float] = field(default_factory=dict)  # sizes that comparisons have
    undecided: dict[str, str] = field(default_factory=dict)  # what may go another way, and how
    plain: bool = False  # what is off counts in full, so that differences say what a turn adds
    linear: bool = False  # what states move, along the slopes of the pass before, and nothing else
    slopes: dict[VirtualInstruction, tuple[float, float]] = field(default_factory=dict)
    near: dict[tuple[VirtualInstruction, float], float] = field(default_factory=dict)
    bends: dict[VirtualInstruction, tuple[float, float] | None] = field(default_factory=dict)

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
        least = {state: self.off.get(state, 0.0) for state in loop.states}
        turn_by_turn, self.undecided = (self.off, self.undecided), {}
        for growth in self.growths.get(loop, ()):
            states = [loop.states[k] for k in growth.states]
            bounds = self._grown(loop, growth, states, begin, during)
            if any(b < least[s] * s.scale for s, b in zip(states, bounds, strict=True)):
                self.used.setdefault(loop, {})[growth.states] = growth
            for known in (least, during):  # bounds hold in every turn
                known |= {
                    s: min(known[s], b / s.scale) for s, b in zip(states, bounds, strict=True)
                }  # fmt: skip
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
        kept = loop.states if loop.counter is None else (*loop.states, loop.counter)
        during = {state: self.off.get(state, 0.0) for state in kept}
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
            self._turn(loop, {**self.off, **dict.fromkeys(loop.states, math.inf)})
            self._turn(loop, dict(self.off))  # what is only copied is known now
        return self._more(during)

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
        room = {state: _ROOM * self.off.get(state, 0.0) for state in loop.states}
        self.off, self.undecided = {**self.off, **room}, dict(self.undecided)
        self.code(loop.body)
        if all(self.off[state] <= error for state, error in room.items()):
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
    ) -> list[float]:
        """Bounds of some states' errors, by a norm in which turns are known to bring them together.

        A turn adds more where its states are already off: they are factors, and they decide
        comparisons. So a turn's own error is found for states that are off by a bit more than the
        bound. If the bound that follows is no larger than that, it holds from turn to turn.
        Other states are off by what is known of them in any turn.
        """
        before, tried = {**begin, **during}, [0.0] * len(states)
        added = self._turned(loop, before | dict.fromkeys(states, 0.0))
        for attempt in range(_ATTEMPTS):
            bounds = self._bounded(loop, growth, states, begin, added)
            if attempt and all(b <= most for b, most in zip(bounds, tried, strict=True)):
                return bounds
            if not max(bounds) < math.inf:
                break
            tried = [bound + bound / 8 for bound in bounds]
            given = {s: b / s.scale for s, b in zip(states, tried, strict=True)}
            added = self._added(loop, before, given)
        return [math.inf] * len(states)

    def _added(
        self, loop: VirtualLoop, before: Mapping[Register, float], given: dict[Register, float]
    ) -> dict[Register, float]:
        """What a turn adds: the states' errors after it, less what their old errors alone become.

        Both are found along the same slopes, those that hold for all errors together, and with
        products of errors. So the difference has every term that is not of the states alone.
        """
        self.plain = True
        whole = self._turned(loop, {**before, **given})
        self.linear = True
        moved = self._turned(loop, given)
        self.plain = self.linear = False
        added = {s: whole[s] * OUTWARD_MANY - moved[s] for s in given}
        return {s: math.inf if math.isnan(e) else max(e, 0.0) for s, e in added.items()}

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
    ) -> list[float]:
        """Of the states, if every turn adds so much."""
        turns = self.turns[loop][1] if loop in self.turns else None
        own = growth.norm([self._entries(s, added[s]) for s in states])
        start = growth.norm([self._entries(s, begin.get(s, 0.0)) for s in states])
        return growth.of_states(growth.after(turns, start, own))

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
        off = self.off[i.dst] = min((error + own.total) * OUTWARD, most)
        if i.dst.single:  # where b is 0, errors of a move nothing
            self.rest[i.dst] = (rest + own.total) * OUTWARD_MANY
        if i.dst.clean:
            self.beyond[i.dst] = min((outside + own.total) * OUTWARD_MANY, off)
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
        # 0 whatever the other operand is, as a product with a mask.
        _, product = self.bends.get(i) or (0.0, 0.0)
        return math.fsum(
            _times(slope, off) + _times(_times(product, other), off)
            for (reads, slope, other), off in zip(operands, beyond, strict=True)
            if reads in zero
        )

    def _at_zero(self, i: VirtualInstruction, a: float, b: float, room: float) -> float:
        """How far from 0 a result is whose operands should be 0, and are off by a and b."""
        if not 0 < a + b < math.inf:
            return 0.0 if a + b == 0 else math.inf
        around = Range(-(a + b), a + b)
        spans = [(c, r) for c, r in ((i.f, i.plus), (i.g, i.minus)) if c is not None]
        if not all(Range(r.low - room, r.high + room).holds(around) for _, r in spans):
            return math.inf
        if not self.bends.get(i):
            return math.fsum(steepest(c, around) for c, _ in spans) * (a + b)
        squares, product = self.bends[i] or (0.0, 0.0)
        f, g = (_straight(curve) for curve in (i.f, i.g))
        first = above(abs(f - g)) * a + above(abs(f + g)) * b
        return first + _times(squares, a * a + b * b) + _times(product, a * b)

    def _beyond(self, read: Read) -> float:
        """Of components beyond a clean vector; of those that loops carry, as of the others."""
        register = read.register
        if read.is_data:
            return 0.0
        off = self.off.get(register, 0.0)
        return off if register.carried else min(self.beyond.get(register, off), off)

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

    def _below(self, asks: float, size: float) -> float:
        """What an average by logits of LARGEST times the values is below the largest of them.

        ``asks`` is what the factor is off by. See :mod:`iceform.computer.samples`.
        """
        turned = math.tanh(self.width * asks * size / 2) if asks else 0.0
        return self.samples / (math.e * LARGEST) + 2 * size * turned

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
            asks, size = self.off.get(self.before, 0.0), read.register.range.size
            moved = self.width * (self.before.range.size * error + size * asks + asks * error)
            moved = math.inf if math.isnan(moved) else moved
            if self.plain:
                size, free = size + error, moved / 2
            else:
                free = math.tanh(moved / 2)
            if not read.apart:
                return error + 2 * size * free
            if self.linear or read.apart == math.inf:  # no derivative knows of weights at a place
                return error if self.linear else error + self._below(asks, size + error)
            # What rounding adds rests on this too: where it is infinite, any average is possible.
            others = others_weigh(moved, read.apart, self.samples)
            return error + 2 * size * min(free, others) if math.isfinite(others) else math.inf
        return error


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
    factors = []
    for curve in (i.f, i.g):
        if isinstance(curve, JumpCurve):
            return 0.0, 0.0
        known = () if curve is None else polynomial(curve)
        if known is None or len(known) > 3:
            return None
        factors.append(known[2] if len(known) == 3 else Fraction(0))
    p, q = factors
    return above(abs(p - q)), above(2 * abs(p + q))


def _straight(curve: Curve | None) -> Fraction:
    """The slope of a polynomial at 0."""
    known = () if curve is None or isinstance(curve, JumpCurve) else polynomial(curve) or ()
    return Fraction(known[1]) if len(known) > 1 else Fraction(0)


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
    own = budget(assembled, ranges.domain.samples, width, dtype, backend)
    written = _written(assembled, ranges.domain, dtype)
    held = largest_value(assembled.assembly)
    errors = _Errors(own, ranges.domain.samples, width, turns, growths, fused.flag, held, written)
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
