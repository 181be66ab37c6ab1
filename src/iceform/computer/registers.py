"""Registers: live ranges, copies that need not be made, and places in memory.

A register is live from where it is written to where it is last read, round loops as often as it
takes; one that the prompt fills is live from the start. Two registers interfere if one is written
while the other is live. The source and the target of a copy that do not interfere become one
register and the copy disappears: most states of loops are written where they are held. What does
not interfere and lives in the same lanes may share a variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from iceform.computer.fuse import Fused
from iceform.computer.graph import Place
from iceform.computer.virtual import Code, Register, VirtualInstruction, VirtualLoop

__all__ = ["Memory", "assign"]


@dataclass(eq=False)
class Memory:
    """Which variable holds each register, and the line at which the most are alive."""

    place: dict[Register, int]
    groups: list[list[Register]]
    fullest: Place | None

    def shared(self, a: Register, b: Register) -> bool:
        """Whether two registers are one variable."""
        return self.place[a] == self.place[b]


def assign(fused: Fused) -> Memory:
    """Registers to variables."""
    live = _Liveness(fused)
    live.program()
    return _Colouring(live).memory()


@dataclass(eq=False)
class _Liveness:
    fused: Fused
    registers: dict[Register, None] = field(default_factory=dict)
    clashes: dict[Register, set[Register]] = field(default_factory=dict)
    copies: list[tuple[Register, Register]] = field(default_factory=list)
    most: int = 0
    fullest: Place | None = None

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

    def code(self, code: Code, after: set[Register]) -> set[Register]:
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

    def memory(self) -> Memory:
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
        return Memory(place, groups, self.live.fullest)

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
