"""Stretches of a fused run between two branches, each captured as one CUDA graph.

A fused cycle is a dozen small operations, and on a GPU launching them takes longer than they do.
What an instruction does depends on data only where a branch looks at the flag: from one branch to
the next the operations are the same every time. So a stretch that comes again with operands of the
same shapes is captured once and then launched as a whole.

A graph works where it was captured. What a stretch reads is copied to where the graph reads it,
unless it is a tensor that the run began with; what it writes is copied out, since memory may hold
products (:mod:`iceform.computer.lookups`) of tensors that the next launch would overwrite. Every
cycle of a launched stretch can be run again literally: the states between are in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform import tuning
from iceform.computer.fused import FastExecutor, State
from iceform.computer.instructions import Instruction
from iceform.computer.lookups import ScaledValue, Value
from iceform.run.loops import record

_BEFORE = ""  # the last result, beside the names of variables


@dataclass(frozen=True, eq=False)
class SegmentRun:
    """A stretch that was run: how many cycles, the state after them, and those between."""

    cycles: int
    state: State
    given: State
    stretch: _Segment

    def between(self, cycle: int) -> tuple[State, State]:
        """Copies of the states before and after a cycle, counted from 0."""
        before, after = (self.stretch.reached(self.given, at) for at in (cycle, cycle + 1))
        return before, after


class CapturedSegments:
    """What a run has met so far.

    Parameters
    ----------
    fused
        The program.
    start
        The state before its first cycle.
    """

    @classmethod
    def of(cls, fused: FastExecutor, start: State) -> CapturedSegments | None:
        """Where there is something to gain: on a GPU."""
        return cls(fused, start) if _pays(start.flag) else None

    def __init__(self, fused: FastExecutor, start: State) -> None:
        self.fused, self._start = fused, start
        self._fixed = {id(leaf) for value in start.memory.values() for leaf in _leaves(value)}
        self._codes: dict[int, list[Instruction]] = {}
        self._met: dict[Hashable, _Segment | None] = {}

    def run(self, state: State, most: int | None) -> SegmentRun | None:
        """All cycles up to the next branch, at most so many; None where they are run one by one.

        That is so the first time, which is when kernels are compiled and tables are read, and where
        problems of a batch run different instructions.
        """
        fetched = self.fused.fetched(state)
        if len(fetched) > 1:
            return None
        code = fetched[0]
        if id(code) not in self._codes:
            self._codes[id(code)] = list(self._straight(code))
        codes = self._codes[id(code)]
        if len(codes) < 2 or (most is not None and len(codes) > most):
            return None
        read = self._read(codes)
        held = {name: _held(state, name) for name in read}
        key = (id(code), *((name, self._kind(value)) for name, value in held.items()))
        if key not in self._met:
            self._met[key] = None
            return None
        stretch = self._met[key]
        if stretch is None:
            own = {name: _mapped(value, self._own) for name, value in held.items()}
            stretch = self._met[key] = _Segment(self.fused, codes, own, state)
        stretch.launch(held)
        return SegmentRun(len(codes), stretch.reached(state, len(codes)), state, stretch)

    def _straight(self, code: Instruction) -> Iterator[Instruction]:
        """The instructions until a branch or a halt."""
        for _ in range(tuning.COMPUTER_GRAPHS_LONGEST):
            yield code
            following = self.fused.assembly.at(code.next)
            if len(following) != 1 or following[0].next == following[0].address:
                return
            code = following[0]

    def _read(self, codes: list[Instruction]) -> list[str]:
        """What they read before it is written."""
        read: dict[str, None] = {}
        written: set[str] = set()
        for code in codes:
            for _, name in code.reads():
                if name not in written:
                    read[name] = None
            written.add(code.dst)
        return [_BEFORE, *read] if any(map(self.fused.asks, codes)) else [*read]

    def _kind(self, value: Value) -> Hashable:
        leaves = [(id(t) if id(t) in self._fixed else None, t.shape) for t in _leaves(value)]
        return (type(value), *leaves)

    def _own(self, leaf: Tensor) -> Tensor:
        return leaf if id(leaf) in self._fixed else leaf.clone()


class _Segment:
    """Instructions in a graph.

    Parameters
    ----------
    fused, codes
        The program, and which of its instructions.
    own
        What they read, where the graph will read it.
    state
        The state that they are captured in.
    """

    def __init__(
        self,
        fused: FastExecutor,
        codes: list[Instruction],
        own: dict[str, Value],
        state: State,
    ) -> None:
        self.own = own
        memory = {**state.memory, **{name: v for name, v in own.items() if name}}
        before = own.get(_BEFORE, state.before)
        assert isinstance(before, Tensor)
        start = replace(state, memory=memory, before=before)
        self.left = torch.zeros((), dtype=torch.bool, device=state.flag.device)
        capturing = fused.again()
        capturing.watched.share(fused.watched)

        def body() -> list[State]:
            states = [start]
            for code in codes:
                states.append(capturing.execute(code, states[-1]))
            self.left |= capturing.watched.beyond()
            return states

        self.states, self.replay = record(body)
        fused.watched.also.append(self.left)

    def launch(self, held: dict[str, Value]) -> None:
        """Run it on what is held now."""
        for name, value in held.items():
            for into, leaf in zip(_leaves(self.own[name]), _leaves(value), strict=True):
                if into is not leaf:
                    into.copy_(leaf)
        self.replay()

    def reached(self, given: State, cycles: int) -> State:
        """A copy of the state after so many cycles, the run's own where nothing was written."""
        start, here = self.states[0], self.states[cycles]
        copied: dict[int, Tensor] = {}

        def copy(leaf: Tensor) -> Tensor:
            if id(leaf) not in copied:
                copied[id(leaf)] = leaf.clone()
            return copied[id(leaf)]

        fixed = {id(leaf) for value in given.memory.values() for leaf in _leaves(value)}

        def own(leaf: Tensor) -> Tensor:
            return leaf if id(leaf) in fixed else copy(leaf)

        memory = {
            name: _mapped(here.memory[name], own) if here.memory[name] is not start.memory[name]
            else value
            for name, value in given.memory.items()
        }  # fmt: skip
        return State(
            memory,
            copy(here.flag) if here.flag is not start.flag else given.flag,
            copy(here.before) if here.before is not start.before else given.before,
            here.counters,
        )


def _pays(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _held(state: State, name: str) -> Value:
    return state.before if name == _BEFORE else state.memory[name]


def _leaves(value: Value) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    return tuple(t for t in (value.of, value.factor, value.offset) if t is not None)


def _mapped(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    if isinstance(value, Tensor):
        return change(value)
    offset = None if value.offset is None else change(value.offset)
    return ScaledValue(change(value.of), change(value.factor), offset)
