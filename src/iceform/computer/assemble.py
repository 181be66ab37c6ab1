"""Assembling: virtual instructions get addresses, successors, variables and tables.

**A loop** is a branch at its head: two instructions with one address, the first of the body for
FLAG > 0 and a pause for FLAG < 0. The end of the body goes back to the head. A loop that makes at
least one turn is entered at a copy of its first instruction. FLAG is never written just before a
branch: a pause goes between where nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iceform.computer.forms import Slots
from iceform.computer.fuse import Fused
from iceform.computer.graph import Graph
from iceform.computer.instructions import (
    FLAG,
    Assembly,
    Instruction,
    Operand,
    Output,
    TablePair,
    Variable,
)
from iceform.computer.places import refuse
from iceform.computer.registers import Memory, assign
from iceform.computer.tables import Tables
from iceform.computer.virtual import Code, Read, Register, VirtualInstruction, VirtualLoop

__all__ = ["MOST_VARIABLES", "Assembled", "assemble"]

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


def assemble(graph: Graph, fused: Fused, tables: Tables) -> Assembled:
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
        outputs, {p.name: graph.dim if p.vector else None for p in graph.parameters.values()},
    )  # fmt: skip
    assembly.check()
    return Assembled(assembly, tuple(s.virtual for s in slots), names)


def _used(made: list[Instruction], tables: Tables) -> list[TablePair]:
    named = {i.table for i in made}
    return [t for t in tables.made.values() if t.name in named]


# ---------------------------------------------------------------------------------------------
# addresses
# ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Placing:
    """Slots in order; ``open`` are those whose successor is the next address."""

    memory: Memory
    flag: Register
    slots: list[_Slot] = field(default_factory=list)
    open: list[_Slot] = field(default_factory=list)
    next_address: int = 0

    def placed(self, code: Code) -> list[_Slot]:
        """The whole program, with its halt."""
        self.code(code)
        halt = self.put(None)
        halt.next = halt.address
        self.open = []
        return self.slots

    def code(self, code: Code) -> None:
        """Items in order."""
        for item in code.items:
            if isinstance(item, VirtualLoop):
                self.loop(item)
            elif not self._idle(item):
                self.put(item)

    def _idle(self, i: VirtualInstruction) -> bool:
        return i.copy and self.memory.shared(i.dst, i.reads()[0].register)

    def put(self, virtual: VirtualInstruction | None, when: int = 0, address: int = -1) -> _Slot:
        """One more instruction; what was open goes on to it."""
        slot = _Slot(self._fresh() if address < 0 else address, virtual, when)
        for before in self.open:
            before.next = slot.address
        self.open = [slot]
        self.slots.append(slot)
        return slot

    def _fresh(self) -> int:
        self.next_address += 1
        return self.next_address - 1

    def loop(self, loop: VirtualLoop) -> None:
        """Head, body, and back."""
        body = self._first_is_plain(loop.body)
        if loop.guarded:
            self._pause_after_flag()
            entrance = None
        else:
            entrance = self.put(body.items[0])  # type: ignore[arg-type]
            self.open = []
        head = self._fresh()
        if loop.guarded:
            for before in self.open:
                before.next = head
            self.open = []
        first = _Slot(head, body.items[0], 1)  # type: ignore[arg-type]
        self.slots.append(first)
        self.open = [first, *([entrance] if entrance is not None else [])]
        self.code(Code(body.items[1:]))
        self._pause_after_flag()
        for last in self.open:
            last.next = head
        leave = _Slot(head, None, -1)
        self.slots.append(leave)
        self.open = [leave]

    def _first_is_plain(self, body: Code) -> Code:
        """The body with an instruction in front."""
        items = [i for i in body.items if isinstance(i, VirtualLoop) or not self._idle(i)]
        if items and isinstance(items[0], VirtualInstruction):
            return Code(items)
        return Code([_pause(self.flag), *items])

    def _pause_after_flag(self) -> None:
        if not self.open or any(
            s.virtual is not None and s.virtual.dst is self.flag for s in self.open
        ):
            self.put(None)


def _pause(flag: Register) -> VirtualInstruction:
    return None  # type: ignore[return-value]


# ---------------------------------------------------------------------------------------------
# names
# ---------------------------------------------------------------------------------------------


def _names(fused: Fused, memory: Memory) -> dict[Register, str]:
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


def _variables(memory: Memory, names: dict[Register, str]) -> tuple[Variable, ...]:
    out = []
    for group in memory.groups:
        writes = next((r.writes for r in group if r.writes), ())
        out.append(Variable(names[group[0]], "samples" if group[0].samples else "lane0", writes))
    return (*out, Variable(VOID, "lane0"))


def _instruction(slot: _Slot, names: dict[Register, str], tables: Tables) -> Instruction:
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
