"""The fused run: what the block does with a program, without attention over memory.

A prompt that was written from a program is that program: its instructions, its tables and its
memory. With the weights that the sizes imply the block executes them, so they are executed here.
Reads become indexing, means and, for likeness, attention over the lanes; look-ups remain softmax
over a table, or the polynomial that the table is (:mod:`iceform.computer.lookups`). A product of
two operands is multiplied out where something else than a sum of it is read. Only lanes that hold
the destination are computed, or all where the next instruction may ask by likeness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.computer.instructions import FLAG, Assembly, Instruction, undecided
from iceform.computer.layout import MaskMargins, code
from iceform.computer.lookups import Extents, ScaledValue, TableLookup, Value, dense
from iceform.computer.prompt import ProgramPrompt
from iceform.errors import ProgramError


@dataclass(frozen=True, eq=False)
class State:
    """Between two cycles: memory, flag, result of the instruction before, program counters."""

    memory: Mapping[str, Value]  # (b, lanes, m)
    flag: Float[Tensor, "b m"]
    before: Float[Tensor, "b units m"]
    counters: tuple[int, ...]

    @classmethod
    def read(cls, prompt: ProgramPrompt, tokens: Float[Tensor, "b t d"]) -> State:
        """The state that tokens of a prompt hold."""
        at, units = prompt.layout.features, tokens[:, prompt.kinds["unit"]]
        return cls(
            _narrowed({name: prompt.value(tokens, name) for name in prompt.variables}),
            units[:, 0, at["value"]],
            units[:, :, at["before"]],
            tuple(prompt.counter(tokens).tolist()),
        )

    def written(
        self, prompt: ProgramPrompt, tokens: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b t d"]:
        """Tokens of a prompt that hold this state."""
        layout, tokens = prompt.layout, tokens.clone()
        for name, at in prompt.variables.items():
            tokens[:, at, layout.features["value"]] = dense(self.memory[name])
        units = tokens[:, prompt.kinds["unit"]]
        units[..., layout.features["value"]] = self.flag[:, None]
        units[..., layout.features["before"]] = self.before
        bits = code(torch.tensor(self.counters), layout.size("counter")).to(tokens)
        units[..., layout.features["counter"]] = bits[:, None]
        return tokens


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What running an instruction takes, found once: lanes that are computed and written, reads."""

    lanes: range
    place: range
    all_lanes: bool
    reads: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
    table: TableLookup


@dataclass(frozen=True, eq=False)
class FastExecutor:
    """A program on so many samples, as the block executes it.

    Attributes
    ----------
    assembly, samples
        The program, and lanes beside lane 0.
    width, margins
        Of the computer: components of a value, and what decides a branch.
    entries
        Of every table, slope, bias, f and g as tokens hold them, shape (tokens, 4).
    closed
        Whether tables may be taken for the polynomials that they are.
    watched
        What arguments were met: of one run.
    """

    assembly: Assembly
    samples: int
    width: int
    margins: MaskMargins
    entries: Mapping[str, Float[Tensor, "k 4"]]
    closed: bool = True
    watched: Extents = field(default_factory=Extents)
    _tables: dict[str, TableLookup] = field(default_factory=dict)
    _steps: dict[int, _Prepared] = field(default_factory=dict)
    _indices: dict[tuple[range, range], Tensor] = field(default_factory=dict)

    def again(self) -> FastExecutor:
        """The same program for another run: tables are shared, what is noted is not."""
        return replace(self, watched=Extents())

    @property
    def lanes(self) -> range:
        """All of them."""
        return range(self.samples + 1)

    @cached_property
    def places(self) -> dict[str, range]:
        """The lanes that hold each variable."""
        each = {"lane0": range(1), "samples": range(1, self.samples + 1)}
        return {v.name: each[v.lanes] for v in self.assembly.variables}

    def begin(self, memory: Mapping[str, Float[Tensor, "b lanes m"]]) -> State:
        """The state before the first cycle."""
        flag = memory[FLAG][:, 0]
        before = flag.new_zeros(len(flag), len(self.lanes), 1)
        return State(_narrowed(memory), flag, before, (0,) * len(flag))

    def held(self, state: State, name: str) -> Float[Tensor, "b lanes m"]:
        """What a variable holds, with all its lanes and components."""
        lanes = len(self.places[name])
        return dense(state.memory[name]).expand(len(state.counters), lanes, self.width)

    def cycle(self, state: State) -> State:
        """One instruction, in every problem of the batch."""
        groups = self._fetch(state)
        if len(groups) == 1:
            return self.execute(groups[0][0], state)
        for instruction, rows in groups:
            state = _merged(state, self.execute(instruction, _rows(state, rows)), rows)
        return state

    def fetched(self, state: State) -> list[Instruction]:
        """The instructions that the problems of a batch run next."""
        return [instruction for instruction, _ in self._fetch(state)]

    def halted(self, state: State) -> bool:
        """Whether every problem has come to an instruction that names itself."""
        return self._halts.issuperset(state.counters)

    @cached_property
    def _halts(self) -> frozenset[int]:
        return frozenset(i.address for i in self.assembly.instructions if i.halts)

    # ------------------------------------------------------------------ fetch

    def _fetch(self, state: State) -> list[tuple[Instruction, list[int]]]:
        """Which problems run which instruction."""
        if len(state.counters) == 1 and len(found := self.assembly.at(state.counters[0])) == 1:
            return [(found[0], [0])]
        groups: dict[int, tuple[Instruction, list[int]]] = {}
        for counter in sorted(set(state.counters)):
            rows = [i for i, other in enumerate(state.counters) if other == counter]
            for instruction, chosen in self._choose(counter, state, rows):
                groups.setdefault(id(instruction), (instruction, []))[1].extend(chosen)
        return list(groups.values())

    def _choose(
        self, counter: int, state: State, rows: list[int]
    ) -> list[tuple[Instruction, list[int]]]:
        found = self.assembly.at(counter)
        if len(found) == 1:
            return [(found[0], rows)]
        if sorted(i.when for i in found) != [-1, 1]:
            raise ProgramError(f"there is no instruction, and no branch, at address {counter}")
        flags = state.flag[:, 0].tolist()  # the host waits for a GPU once
        if not all(2 * self.margins.flag * abs(flags[r]) >= self.margins.tau for r in rows):
            raise undecided(counter, min(abs(flags[r]) for r in rows))
        sides = [(i, [r for r in rows if flags[r] * i.when > 0]) for i in found]
        return [(instruction, members) for instruction, members in sides if members]

    # ------------------------------------------------------------------ execute

    def execute(self, instruction: Instruction, state: State) -> State:
        """One instruction."""
        step = self._step(instruction)
        lanes, place = step.lanes, step.place
        a, b = self._operands(step, state)
        result = step.table(a, b, self.watched)
        memory, flag = dict(state.memory), state.flag
        memory[instruction.dst] = (
            result if lanes == place else self._aligned(dense(result), lanes, place)
        )
        if instruction.dst == FLAG:
            flag = self.wide(dense(result)[:, lanes.index(0)])
        before = self._remembered(result) if step.all_lanes else state.before
        return State(memory, flag, before, (instruction.next,) * len(state.counters))

    def arguments(self, instruction: Instruction, state: State) -> tuple[Tensor, Tensor]:
        """What an instruction looks up: a + b and a - b."""
        a, b = self._operands(self._step(instruction), state)
        return a + b, a - b

    def asks(self, instruction: Instruction) -> bool:
        """Whether an instruction asks by likeness, with the result of the one before."""
        return bool(instruction.a.like or instruction.b.like)

    def _step(self, instruction: Instruction) -> _Prepared:
        if id(instruction) not in self._steps:
            a, b = (tuple(operand.reads()) for operand in (instruction.a, instruction.b))
            lanes, place = self._lanes(instruction), self.places[instruction.dst]
            self._steps[id(instruction)] = _Prepared(
                lanes, place, lanes == self.lanes, (a, b), self._table(instruction.table)
            )
        return self._steps[id(instruction)]

    def _lanes(self, instruction: Instruction) -> range:
        """The lanes whose results are needed."""
        if any(map(self.asks, self.assembly.at(instruction.next))):
            return self.lanes
        return self.places[instruction.dst]

    def _operands(self, step: _Prepared, state: State) -> tuple[Tensor, Tensor]:
        a, b = (self._read(reads, state, step.lanes) for reads in step.reads)
        return a, b

    def _read(self, reads: tuple[tuple[str, str], ...], state: State, lanes: range) -> Tensor:
        """An operand: (batch, lanes or 1, m or 1)."""
        total: Tensor | None = None
        for kind, name in reads:
            share = self._found(kind, name, state, lanes)
            if share is not None:
                total = dense(share) if total is None else total + dense(share)
        return self._nothing.expand(len(state.counters), 1, 1) if total is None else total

    @cached_property
    def _nothing(self) -> Tensor:
        """The zero register."""
        return next(iter(self.entries.values())).new_zeros(1, 1, 1)

    def _found(self, kind: str, name: str, state: State, lanes: range) -> Value | None:
        """What a read finds: None where the null token answers."""
        held, place = state.memory[name], self.places[name]
        if kind == "mean" and held.shape[1] > 1:
            return held.mean() if isinstance(held, ScaledValue) else held.mean(1, keepdim=True)
        if kind == "mean":
            return held
        if kind in ("own", "rowsum"):
            held = held if lanes == place else self._aligned(dense(held), place, lanes)
            return held if kind == "own" else self._summed(held)
        held = dense(held)
        if kind == "like":
            before = self.wide(self._aligned(state.before, self.lanes, lanes))
            held = self.wide(held)
            return torch.softmax(before @ held.mT, -1) @ held
        return held[:, :1] if 0 in place else None

    def _summed(self, held: Value) -> Tensor:
        """The sum of all components, which every component takes."""
        if isinstance(held, ScaledValue):
            return held.times(self._ones)
        return self.wide(held) @ self._ones

    @cached_property
    def _ones(self) -> Tensor:
        return self._nothing.new_ones(self.width, 1)

    @property
    def outside(self) -> bool:
        """Whether an argument has left where a closed form is its table: then run without them."""
        return self.watched.outside()

    def _table(self, name: str) -> TableLookup:
        if name not in self._tables:
            slopes, biases, f, g = (column.contiguous() for column in self.entries[name].T)
            self._tables[name] = TableLookup(slopes, biases, f, g, closed=self.closed)
        return self._tables[name]

    def wide(self, value: Tensor) -> Tensor:
        """With all components, where equal ones were kept once."""
        if value.shape[-1] == self.width:
            return value
        return value.expand(*value.shape[:-1], self.width)

    def _remembered(self, result: Value) -> Tensor:
        return dense(result).expand(-1, len(self.lanes), -1)

    def _aligned(self, held: Tensor, lanes: range, wanted: range) -> Tensor:
        """Rows of some lanes as those of others; zeros where there are none."""
        if lanes == wanted:
            return held
        held = held.expand(-1, len(lanes), -1)
        if len(wanted) == 1 and wanted[0] in lanes:
            at = lanes.index(wanted[0])
            return held[:, at : at + 1]
        if (lanes, wanted) not in self._indices:
            rows = [lanes.index(lane) if lane in lanes else len(lanes) for lane in wanted]
            self._indices[lanes, wanted] = torch.tensor(rows, device=held.device)
        padded = torch.cat([held, torch.zeros_like(held[:, :1])], 1)
        return padded[:, self._indices[lanes, wanted]]


def _narrowed(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every variable with one component where all are equal: two looks at all of them."""
    first = _all_equal({name: value[:, : tuning.FUSED_FEW] for name, value in memory.items()})
    narrow = _all_equal({name: memory[name] for name in first})
    return {name: v[..., :1] if name in narrow else v for name, v in memory.items()}


def _all_equal(memory: Mapping[str, Tensor]) -> set[str]:
    """The variables whose components are all equal."""
    once = {name for name, v in memory.items() if v.stride(-1) == 0}
    rest = [name for name in memory if name not in once]
    if not rest:
        return once
    same = torch.stack([(memory[n] == memory[n][..., :1]).all() for n in rest]).tolist()
    return once | {name for name, equal in zip(rest, same, strict=True) if equal}


def _rows(state: State, rows: list[int]) -> State:
    return State(
        {name: dense(value)[rows] for name, value in state.memory.items()},
        state.flag[rows],
        state.before[rows],
        tuple(state.counters[i] for i in rows),
    )


def _merged(state: State, part: State, rows: list[int]) -> State:
    """A state with some of its problems replaced."""
    memory = {name: _replaced(v, part.memory[name], rows) for name, v in state.memory.items()}
    counters = list(state.counters)
    for row, counter in zip(rows, part.counters, strict=True):
        counters[row] = counter
    return replace(
        state,
        memory=memory,
        flag=_replaced(state.flag, part.flag, rows),
        before=_replaced(state.before, part.before, rows),
        counters=tuple(counters),
    )


def _replaced(held: Value, changed: Value, rows: list[int]) -> Tensor:
    whole, part = dense(held), dense(changed)
    sizes = [max(a, b) for a, b in zip(whole.shape[1:], part.shape[1:], strict=True)]
    out = whole.expand(-1, *sizes).clone()
    out[rows] = part
    return out
