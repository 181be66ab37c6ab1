"""Assembling: virtual instructions get registers, addresses, successors, variables and tables.

**Registers.** One is live from where it is written to where it is last read, round loops as often
as it takes; one that the prompt fills is live from the start. Two registers interfere if one is
written while the other is live. The source and the target of a copy that do not interfere become
one register and the copy disappears: most states of loops are written where they are held. What
does not interfere and lives in the same lanes may share a variable.

**Addresses.** A loop is a branch at its head: two instructions with one address, the first of the
body for FLAG > 0 and a pause for FLAG < 0. The end of the body goes back to the head. A loop that
makes at least one turn is entered at a copy of its first instruction. FLAG is never written just
before a branch: a pause goes between where nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from iceform.computer.graph import Graph, refuse
from iceform.computer.instructions import (
    FLAG,
    Assembly,
    Instruction,
    MemoryVariable,
    Operand,
    Output,
    TablePair,
)
from iceform.computer.tables import ProgramTables
from iceform.computer.virtual import (
    Read,
    Register,
    SelectedCode,
    Slots,
    VirtualCode,
    VirtualInstruction,
    VirtualLoop,
)
from iceform.program import SourceLine


@dataclass(eq=False)
class RegisterAllocation:
    """Which variable holds each register, and the line at which the most are alive."""

    place: dict[Register, int]
    groups: list[list[Register]]
    fullest: SourceLine | None

    def shared(self, a: Register, b: Register) -> bool:
        """Whether two registers are one variable."""
        return self.place[a] == self.place[b]


def assign(fused: SelectedCode) -> RegisterAllocation:
    """Registers to variables."""
    live = _Liveness(fused)
    live.program()
    return _Colouring(live).memory()


@dataclass(eq=False)
class _Liveness:
    fused: SelectedCode
    registers: dict[Register, None] = field(default_factory=dict)
    clashes: dict[Register, set[Register]] = field(default_factory=dict)
    copies: list[tuple[Register, Register]] = field(default_factory=list)
    most: int = 0
    fullest: SourceLine | None = None

    def program(self) -> None:
        """Backwards from the answers."""
        self._know(self.fused.flag)
        for register, _ in self.fused.outputs.values():
            self._know(register)
        after = {r for r, _ in self.fused.outputs.values()}
        before = self.code(self.fused.code, after)
        given = {r for r in self.registers if r.writes} | before
        for a, b in combinations(
            given & (before | {r for r in given if r.writes and r in after}), 2
        ):
            self._clash(a, b)
        for register in self.registers:
            if register is not self.fused.flag:
                self._clash(register, self.fused.flag)

    def code(self, code: VirtualCode, after: set[Register]) -> set[Register]:
        """What is live before, given what is live after."""
        live = set(after)
        for item in reversed(code.items):
            live = self.loop(item, live) if isinstance(item, VirtualLoop) else self.one(item, live)
        return live

    def loop(self, loop: VirtualLoop, after: set[Register]) -> set[Register]:
        """Round and round until nothing more is live at the head."""
        head = set(after)
        while True:
            before = self.code(loop.body, head | after)
            if before <= head:
                return head
            head |= before

    def one(self, i: VirtualInstruction, live: set[Register]) -> set[Register]:
        """An instruction reads before it writes."""
        self._know(i.dst)
        if i.place is not None and len(live) > self.most:
            self.most, self.fullest = len(live), i.place
        source = i.reads()[0].register if i.copy else None
        for other in live:
            if other is not i.dst and other is not source:
                self._clash(i.dst, other)
        if source is not None and (i.dst, source) not in self.copies:
            self.copies.append((i.dst, source))
        reads = [r.register for r in i.reads()]
        for register in reads:  # in order: what is known first is placed first
            self._know(register)
        return (live - {i.dst}) | set(reads)

    def _know(self, register: Register) -> None:
        self.registers.setdefault(register)
        self.clashes.setdefault(register, set())

    def _clash(self, a: Register, b: Register) -> None:
        self._know(a)
        self._know(b)
        self.clashes[a].add(b)
        self.clashes[b].add(a)


@dataclass(eq=False)
class _Colouring:
    live: _Liveness

    def memory(self) -> RegisterAllocation:
        """Copies first, then the rest."""
        self.owner = {r: r for r in self.live.registers}
        self.groups = {r: [r] for r in self.live.registers}
        for dst, source in self.live.copies:
            self._try(dst, source)
        roots = [r for r in self.live.registers if self._root(r) is r]
        named = sorted(roots, key=lambda r: not any(m.writes for m in self.groups[r]))
        kept: list[Register] = []
        for root in named:
            if not any(self._try(other, root) for other in kept):
                kept.append(root)
        groups = [self.groups[r] for r in kept]
        place = {r: k for k, group in enumerate(groups) for r in group}
        return RegisterAllocation(place, groups, self.live.fullest)

    def _root(self, register: Register) -> Register:
        while self.owner[register] is not register:
            register = self.owner[register]
        return register

    def _try(self, a: Register, b: Register) -> bool:
        """Make two one, where nothing speaks against it."""
        a, b = self._root(a), self._root(b)
        if a is b:
            return True
        mine, other = self.groups[a], self.groups[b]
        filled = any(r.writes for r in mine) and any(r.writes for r in other)
        if (
            a.samples != b.samples
            or filled
            or any(s in self.live.clashes[r] for r in mine for s in other)
        ):
            return False
        self.owner[b] = a
        self.groups[a] = mine + self.groups.pop(b)
        return True


VOID = "void"  # pauses and halts write here
MOST_VARIABLES = 64  # names that a program may have


@dataclass(eq=False)
class _Slot:
    """An instruction that is being placed."""

    address: int
    virtual: VirtualInstruction | None  # None: a pause
    when: int = 0
    next: int = -1


@dataclass(frozen=True, eq=False)
class Assembled:
    """The program, and the virtual instruction behind each of its instructions."""

    assembly: Assembly
    virtual: tuple[VirtualInstruction | None, ...]
    registers: Mapping[Register, str]


def assemble(graph: Graph, fused: SelectedCode, tables: ProgramTables) -> Assembled:
    """The program of a fused graph."""
    memory = assign(fused)
    names = _names(fused, memory)
    if len(set(names.values())) + 1 > MOST_VARIABLES:
        raise refuse(
            f"{graph.name} needs {len(set(names.values())) + 1} variables at once, and a program "
            f"may have {MOST_VARIABLES}; keep fewer values alive, or split the algorithm; the most "
            "are alive here",
            memory.fullest or graph.place,
        )
    slots = _Placing(memory, fused.flag).placed(fused.code)
    made = [_instruction(s, names, tables) for s in slots]
    variables = _variables(memory, names)
    outputs = tuple(
        Output(name, names[register], width) for name, (register, width) in fused.outputs.items()
    )
    assembly = Assembly(
        graph.name, fused.width, graph.dim, variables, tuple(_used(made, tables)), tuple(made),
        outputs, {p.name: p.width(graph.dim) for p in graph.parameters.values()},
    )  # fmt: skip
    assembly.check()
    return Assembled(assembly, tuple(s.virtual for s in slots), names)


def _used(made: list[Instruction], tables: ProgramTables) -> list[TablePair]:
    named = {i.table for i in made}
    return [t for t in tables.made.values() if t.name in named]


# ---------------------------------------------------------------------------------------------
# addresses
# ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Placing:
    """Slots in order; ``open`` are those whose successor is the next address."""

    memory: RegisterAllocation
    flag: Register
    slots: list[_Slot] = field(default_factory=list)
    open: list[_Slot] = field(default_factory=list)
    next_address: int = 0

    def placed(self, code: VirtualCode) -> list[_Slot]:
        """The whole program, with its halt."""
        self.items(code.items)
        halt = self.put(None)
        self.go_on(halt.address)
        return self.slots

    def items(self, items: list[VirtualInstruction | VirtualLoop]) -> None:
        """Instructions and loops in order."""
        for item in items:
            if isinstance(item, VirtualLoop):
                self.loop(item)
            elif not self._idle(item):
                self.put(item)

    def _idle(self, i: VirtualInstruction) -> bool:
        return i.copy and self.memory.shared(i.dst, i.reads()[0].register)

    def put(self, virtual: VirtualInstruction | None) -> _Slot:
        """One more instruction, or a pause; what was open goes on to it."""
        slot = _Slot(self._fresh(), virtual)
        self.go_on(slot.address)
        self.open = [slot]
        self.slots.append(slot)
        return slot

    def go_on(self, address: int) -> None:
        """Everything that is open goes on to an address."""
        for slot in self.open:
            slot.next = address
        self.open = []

    def _fresh(self) -> int:
        self.next_address += 1
        return self.next_address - 1

    def loop(self, loop: VirtualLoop) -> None:
        """Head, body, and back."""
        items = [i for i in loop.body.items if isinstance(i, VirtualLoop) or not self._idle(i)]
        first: VirtualInstruction | None = None  # a pause, where the body begins with a loop
        if items and isinstance(items[0], VirtualInstruction):
            first, items = items[0], items[1:]
        entered: list[_Slot] = []
        if loop.guarded:
            self._pause_after_flag()
        else:
            self.put(first)
            entered, self.open = self.open, []
        head = self._fresh()
        self.go_on(head)
        again, leave = _Slot(head, first, 1), _Slot(head, None, -1)
        self.slots.append(again)
        self.open = [again, *entered]
        self.items(items)
        self._pause_after_flag()
        self.go_on(head)
        self.slots.append(leave)
        self.open = [leave]

    def _pause_after_flag(self) -> None:
        """FLAG is not written just before it is asked."""
        written = (s.virtual is not None and s.virtual.dst is self.flag for s in self.open)
        if not self.open or any(written):
            self.put(None)


# ---------------------------------------------------------------------------------------------
# names
# ---------------------------------------------------------------------------------------------


def _names(fused: SelectedCode, memory: RegisterAllocation) -> dict[Register, str]:
    """A name for every register's variable: the author's where there is one."""
    taken: set[str] = {FLAG, VOID}
    names: dict[Register, str] = {}
    for group in memory.groups:
        if fused.flag in group:
            names.update(dict.fromkeys(group, FLAG))
            continue
        wanted = next((r.name for r in group if r.name), "s" if group[0].samples else "g")
        name, k = wanted, 1
        while name in taken:
            k += 1
            name = f"{wanted}.{k}"
        taken.add(name)
        names.update(dict.fromkeys(group, name))
    return names


def _variables(
    memory: RegisterAllocation, names: dict[Register, str]
) -> tuple[MemoryVariable, ...]:
    out = []
    for group in memory.groups:
        writes = next((r.writes for r in group if r.writes), ())
        out.append(
            MemoryVariable(names[group[0]], "samples" if group[0].samples else "lane0", writes)
        )
    return (*out, MemoryVariable(VOID, "lane0"))


def _instruction(slot: _Slot, names: dict[Register, str], tables: ProgramTables) -> Instruction:
    i = slot.virtual
    if i is None:
        note = "halt" if slot.next == slot.address and slot.when == 0 else "pause"
        return Instruction(
            slot.address, VOID, Operand(), Operand(), tables.line().name, slot.next, slot.when, note
        )
    line = i.place.line if i.place is not None else 0
    return Instruction(
        slot.address, names[i.dst], _operand(i.a, i.dst, names), _operand(i.b, i.dst, names),
        tables.table(i).name, slot.next, slot.when, i.note, line,
    )  # fmt: skip


def _operand(reads: tuple[Read, ...], dst: Register, names: dict[Register, str]) -> Operand:
    kinds = Slots(dst.samples).assigned(reads)
    assert kinds is not None, reads
    return Operand(**{kind: names[read.register] for kind, read in kinds.items()})
