r"""An algorithm as a graph: values that are computed once, and loops around blocks of them.

A node is one operation on earlier nodes. Its value has a place and a shape: it lives in lane 0 or
in every sample's lane, and is a scalar or a vector. In arithmetic a scalar is a vector of width 1
that every operation spreads, and what lives in lane 0 is spread over the samples' lanes.

===========  ====================================================================================
constant     a number (``attr``)
numbers      a vector of numbers (``attr``, a tuple)
count        n, the number of samples
index        which sample this is: 0, 1, ..., n - 1
data         "x", the features of a sample, or "y", its target (``attr``)
parameter    by name (``attr``)
add, mul     of two nodes, elementwise
apply        a scalar function, elementwise; ``attr`` is its tree, a formula's
maximum,     of two nodes, elementwise
minimum
step         1 where the argument is positive, else 0: the value of a comparison; with ``attr =
             "or equal"`` also where it is 0
whole        of the nearest whole number, ``attr = (what, gap)``: itself ("nearest"), or 1 where it
             is 0 and else 0 ("zero"); the argument stays further than gap from every half
sum          of the components
mean         over the samples
attend       :math:`\sum_i p_i v_i` with :math:`p = \mathrm{softmax}_i(q \cdot k_i + b_i)` over the
             samples; arguments q, k, v and, if there is one, b; ``attr`` is None, or by how much
             the largest logit is above all others
concat       vectors and scalars side by side
component    number ``attr`` of a vector
spread       the argument, given to every component or to every sample's lane
bounded      the argument, of which the author says that it stays within ``attr = (low, high)``
stored       the argument, held in memory: what comes after is not fused with it
state        what a loop carries, at the start of a turn; ``attr`` is its name
result       the same after the loop
===========  ====================================================================================

A loop (:class:`Loop`) runs its block a number of times (``count``) or while a condition holds. The
condition is held rotated: ``first`` decides about the first turn, ``again``, computed in the block
from the new state, about each further one.

Nodes know the line in the author's file that asked for them, and refusals quote it.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from iceform.errors import CompileError, ProgramError
from iceform.program import Node, SourceLine

V = TypeVar("V")

CONSTANTS = ("constant", "numbers", "count", "index")  # operations without arguments


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
    """A block that runs ``count`` times, or first if ``first`` and further while ``again``."""

    body: Block
    carried: tuple[LoopVariable, ...]
    count: Node | None = None
    first: Node | None = None
    again: Node | None = None
    place: SourceLine | None = None


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
        return {c.attr for c in counts if c is not None and c.op == "parameter"}


class Arithmetic(Protocol[V]):
    """What a graph is run in: numbers, balls, ..."""

    def constant(self, node: Node) -> V:
        """The value of what is known without data: one of :data:`CONSTANTS`."""

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
        if node.op in ("data", "parameter"):
            return self.given(node)
        if node.op in CONSTANTS:
            return self.arithmetic.constant(node)
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
