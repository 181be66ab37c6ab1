r"""An algorithm as a graph: values that are computed once, and loops around blocks of them.

A node is one operation on earlier nodes. Its value has a place and a shape: it lives in lane 0 or
in every sample's lane, and is a scalar or a vector. In arithmetic a scalar is a vector of width 1
that every operation spreads, and what lives in lane 0 is spread over the samples' lanes.

Which operations there are, and what ``attr`` says of each, is the table of :mod:`iceform.program`.

A loop (:class:`Loop`) runs its block a number of times (``count``) or while a condition holds. The
condition is held rotated: ``first`` decides about the first turn, ``again``, computed in the block
from the new state, about each further one.

Nodes know the line in the author's file that asked for them, and refusals quote it.
"""

from __future__ import annotations

import linecache
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from iceform.errors import CompileError, ProgramError
from iceform.program import Node, SourceLine

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class LoopVariable:
    """A name that changes in a loop."""

    name: str
    start: Node  # before the first turn
    state: Node  # at the start of a turn
    next: Node  # at its end
    result: Node  # after the loop
    counter: bool = False  # the number of the turn, from 0 on


@dataclass(frozen=True, eq=False)
class Loop:
    """A block that runs ``count`` times, or first if ``first`` and further while ``again``.

    ``most`` is a value that the number of turns is at most, where one is known.
    """

    body: Block
    carried: tuple[LoopVariable, ...]
    count: Node | None = None
    first: Node | None = None
    again: Node | None = None
    place: SourceLine | None = None
    most: Node | None = None


@dataclass(eq=False)
class Block:
    """Nodes and loops in the order in which they run."""

    items: list[Node | Loop] = field(default_factory=list)

    def loops(self) -> Iterator[Loop]:
        """Every loop, those in loops included."""
        for item in self.items:
            if isinstance(item, Loop):
                yield item
                yield from item.body.loops()

    def walk(self) -> Iterator[Node]:
        """Every node, those in loops included."""
        for item in self.items:
            if isinstance(item, Loop):
                yield from item.body.walk()
                yield from (c.result for c in item.carried)
            else:
                yield item


@dataclass(frozen=True)
class Parameter:
    """A parameter of an algorithm: its default, and whether it is a vector, of which length.

    A vector without a length is as long as x, and its default one number for all. ``whole`` says
    that the default is written as a whole number: it is one where the program needs it to be.
    """

    name: str
    default: float | tuple[float, ...]
    vector: bool = False
    length: int | None = None
    whole: bool = False

    def width(self, dim: int) -> int | None:
        """Components for samples of ``dim`` features; None for a scalar."""
        return (self.length or dim) if self.vector else None


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced algorithm for samples of ``dim`` features."""

    name: str
    dim: int
    block: Block
    outputs: Mapping[str, Node]
    parameters: Mapping[str, Parameter]
    packed: str = "one"  # how the author returned them: "one", "tuple", "list" or "dict"
    names: frozenset[str] = frozenset()  # that loops carry, needed or not
    place: SourceLine | None = None
    whole: frozenset[str] = frozenset()  # parameters that have to be whole numbers

    @property
    def counts(self) -> set[str]:
        """The parameters that count turns of a loop."""
        counts = [loop.count for loop in self.block.loops()]
        return {c.attr for c in counts if c is not None and c.operation.given}


class Arithmetic(Protocol[V]):
    """What a graph is run in: numbers, balls, ..."""

    def compute(self, node: Node, args: list[V]) -> V:
        """The value of an operation."""

    def positive(self, value: V, where: SourceLine | None) -> bool:
        """Whether a condition's value, 0 or 1, is 1."""

    def whole(self, value: V) -> int:
        """A number of turns."""


@dataclass
class _GraphExecution(Generic[V]):
    """One execution of a graph."""

    arithmetic: Arithmetic[V]
    given: Callable[[Node], V]
    seen: Callable[[Node, V], None]
    most_turns: int
    known: dict[Node, V] = field(default_factory=dict)

    def block(self, block: Block) -> None:
        for item in block.items:
            if isinstance(item, Loop):
                self.loop(item)
            else:
                self.known[item] = self.value(item)
                self.seen(item, self.known[item])

    def value(self, node: Node) -> V:
        if node.operation.given:
            return self.given(node)
        return self.arithmetic.compute(node, [self.known[a] for a in node.args])

    def loop(self, loop: Loop) -> None:
        state = [self.known[c.start] for c in loop.carried]
        turns = self._turns(loop)
        while next(turns):
            for carried, value in zip(loop.carried, state, strict=True):
                self.known[carried.state] = value
                self.seen(carried.state, value)
            self.block(loop.body)
            state = [self.known[c.next] for c in loop.carried]
        for carried, value in zip(loop.carried, state, strict=True):
            self.known[carried.result] = value
            self.seen(carried.state, value)
            self.seen(carried.result, value)

    def _turns(self, loop: Loop) -> Iterator[bool]:
        if loop.count is not None:
            for _ in range(self.arithmetic.whole(self.known[loop.count])):
                yield True
            yield False
            return
        assert loop.first is not None
        assert loop.again is not None
        condition = loop.first
        for _ in range(self.most_turns):
            yield self.arithmetic.positive(self.known[condition], loop.place)
            condition = loop.again
        raise ProgramError(
            f"a while_ loop did not stop within {self.most_turns} turns; its condition may never "
            "fail on these data"
        )


def _ignore(node: Node, value: object) -> None:
    return None


MOST_TURNS = 100_000  # of a while_ loop before it is taken for one that does not stop


def run(
    graph: Graph,
    arithmetic: Arithmetic[V],
    given: Callable[[Node], V],
    seen: Callable[[Node, V], None] = _ignore,
    most_turns: int = MOST_TURNS,
) -> dict[str, V]:
    """Run a graph in some arithmetic; ``seen`` is told of every value as it is computed."""
    run = _GraphExecution(arithmetic, given, seen, most_turns)
    run.block(graph.block)
    return {name: run.known[node] for name, node in graph.outputs.items()}


# ---------------------------------------------------------------------------------------------
# on tensors
# ---------------------------------------------------------------------------------------------


class Exact:
    """The arithmetic of tensors: the reference in float64, and on tensors of balls the proof.

    Of shape (n, width) in the samples' lanes and (width,) in lane 0; scalars are 1 wide.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def compute(self, node: Node, args: list[Tensor]) -> Tensor:
        """The value of an operation."""
        found: Tensor = node.operation.value(self, node, *args)
        return found

    def positive(self, value: Tensor, where: SourceLine | None) -> bool:
        """Whether a condition's value, 0 or 1, is 1."""
        return bool(value > 0.5)

    def whole(self, value: Tensor) -> int:
        """A number of turns."""
        return whole(float(value))

    def lanes(self, value: Tensor) -> Tensor:
        """A value, given to every sample's lane."""
        return value if value.ndim == 2 else value.expand(self.samples, -1)


def whole(turns: float) -> int:
    """A number of turns, or a refusal."""
    if not (math.isfinite(turns) and turns == int(turns) and turns >= 0):
        raise ProgramError(f"repeat takes a whole number of turns, got {turns:g}")
    return int(turns)


def run_exactly(
    graph: Graph, given: Mapping[str, Tensor], seen: Callable[[Node, Tensor], None] | None = None,
    most_turns: int = MOST_TURNS,
) -> dict[str, Tensor]:  # fmt: skip
    """A graph's answers on data and parameters by name, as columns."""
    watch = seen or (lambda node, value: None)
    found = run(graph, Exact(len(given["x"])), lambda node: given[node.attr], watch, most_turns)
    return {name: shown(value, graph.outputs[name].width) for name, value in found.items()}


def as_column(value: object, vector: bool) -> Tensor:
    """Data or a parameter as the arithmetic has it: float64, scalars 1 wide."""
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError):
        raise ProgramError(f"data and parameters are numbers, got {value!r}") from None
    return tensor if vector else tensor[..., None]


def shown(value: Tensor, width: int | None) -> Tensor:
    """A value without the axis of a scalar."""
    return value[..., 0] if width is None else value


def settled(
    block: Block, rule: Callable[[Node, list[bool]], bool], known: dict[Node, bool]
) -> None:
    """Note of every node whether ``rule`` says something of it, given of which arguments it does.

    It holds of a state if it holds of what the loop begins with, and every turn keeps it.
    """
    for item in block.items:
        if isinstance(item, Node):
            known[item] = rule(item, [known[a] for a in item.args])
            continue
        holding = {c.state: known[c.start] for c in item.carried}
        spoilt: list[LoopVariable] | None = None
        while spoilt is None or spoilt:
            known |= holding
            settled(item.body, rule, known)
            spoilt = [c for c in item.carried if known[c.state] and not known[c.next]]
            holding |= {c.state: False for c in spoilt}
        known |= {c.result: known[c.state] for c in item.carried}


# ---------------------------------------------------------------------------------------------
# the author's lines
# ---------------------------------------------------------------------------------------------


_OURS = Path(__file__).parent
_LIBRARY = str(_OURS / "library")  # is written in the language
_INSIDE = (
    str(_OURS), str(_OURS.parent / "__init__.py"), str(Path(torch.__file__).parent), "<frozen",
)  # fmt: skip


def source_line() -> SourceLine | None:
    """The line that called into the language."""
    frame = sys._getframe(1)
    while frame is not None and _internal(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


def raised(error: BaseException) -> SourceLine | None:
    """The author's line in which something went wrong."""
    found, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _internal(file) and "site-packages" not in file:
            found = SourceLine(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _internal(file: str) -> bool:
    return file.startswith(_INSIDE) and not file.startswith(_LIBRARY)


def refuse(message: str, place: SourceLine | None) -> CompileError:
    """The exception for what cannot be compiled, with the line that asks for it."""
    if place is None:
        return CompileError(message)
    source = linecache.getline(place.file, place.line).strip()
    text = f'{message}\n  in "{place.file}", line {place.line}:\n    {source}'
    return CompileError(text, place.file, place.line, source)
