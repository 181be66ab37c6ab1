"""A traced algorithm becomes instructions on slots: loops as loops, samples in arrays.

Components of vectors are apart: three features are three arrays with a cell for each sample. What
differs from sample to sample is computed in loops over the samples; a mean is a sum in such a loop
and a factor; ``attend`` is two of them, one for the scores and their maximum and one for the
exponentials, or a read at a computed index, or a search for the largest, where it is one.
``repeat`` and ``while_`` are loops around all that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NoReturn

from torch import Tensor

from iceform.computer.graph import Block, Graph, Loop, whole
from iceform.errors import ProgramError
from iceform.program import Node
from iceform.targets.text.allocating import Mark, TextPlace
from iceform.targets.text.term_lines import ONE, TermWriter
from iceform.targets.text.terms import ScalarTerm, Slot
from iceform.targets.text.words import TextSizes


class TextEmitter(TermWriter):
    """Writes the instructions of one algorithm on one set of data.

    Attributes
    ----------
    outputs
        For each answer and component what it is read from: a slot, or a number.
    """

    def __init__(
        self, graph: Graph, X: Tensor, y: Tensor, parameters: dict[str, Tensor], sizes: TextSizes
    ) -> None:
        super().__init__(sizes, len(X))
        self.X, self.y, self.parameters = X, y, parameters
        self.outputs: dict[str, list[Slot | Fraction]] = {}
        self._values: dict[Node, list[ScalarTerm]] = {}
        self._depth = 0  # of loops around what is written
        self._block(graph.block)
        roots = {name: self._components(node) for name, node in graph.outputs.items()}
        self._settle([t for parts in roots.values() for t in parts])
        self.outputs = {name: [self._held(t) for t in parts] for name, parts in roots.items()}

    # ------------------------------------------------------------------------ nodes and blocks

    def _block(self, block: Block) -> None:
        for item in block.items:
            if isinstance(item, Loop):
                self._loop(item)

    def _components(self, node: Node) -> list[ScalarTerm]:
        if node not in self._values:
            self._values[node] = self._terms_of(node)
        return self._values[node]

    def _terms_of(self, node: Node) -> list[ScalarTerm]:
        """The components of a node as terms of its arguments', by its row of the table."""
        args = [self._components(a) for a in node.args]
        found: list[ScalarTerm] = node.operation.terms(self, node, args)
        return found

    def unknown(self, node: Node) -> NoReturn:
        """Refuse an operation whose row says no terms."""
        raise ProgramError(f"the operation {node.op} has no text; run the program on ice.Computer")

    def mean(self, components: list[ScalarTerm]) -> list[ScalarTerm]:
        """Over the samples."""
        share = Fraction(1, self.samples)
        return [self.terms.affine(self.terms.total(a), share) for a in components]

    def parameter(self, node: Node) -> list[ScalarTerm]:
        """The numbers of a parameter, one for every component."""
        given = self.parameters[node.attr].reshape(-1).tolist()
        several = len(given) > 1
        return [self.terms.constant(given[k if several else 0]) for k in range(node.width or 1)]

    def columns(self, node: Node) -> list[ScalarTerm]:
        """What is read of samples: an array for each column."""
        columns = self.X.T if node.attr == "x" else self.y[None]
        slots = [Slot(True) for _ in columns]
        for slot, column in zip(slots, columns, strict=True):
            self.data[slot] = [Fraction(v) for v in column.tolist()]
        return [self.terms.read(slot) for slot in slots]

    # ----------------------------------------------------------------------------------- loops

    def _loop(self, loop: Loop) -> None:
        """A loop of the algorithm: its states, its turns, what it leaves."""
        turns = None
        if loop.count is not None:
            turns = whole(float(self._components(loop.count)[0].value))
        starts = [t for c in loop.carried for t in self._components(c.start)]
        states = [self._states(c.state, c.name) for c in loop.carried]
        for carried, slots in zip(loop.carried, states, strict=True):
            read = [self.terms.read(slot) for slot in slots]
            self._values[carried.state] = self._values[carried.result] = read
        wanted = [t for node in _from_outside(loop) for t in self._components(node)]
        self._settle([*starts, *(t for t in wanted if not self._of_index(t))])
        pairs = []
        for carried, slots in zip(loop.carried, states, strict=True):
            begun = self._components(carried.start)
            pairs += [(s, begun[k if len(begun) > 1 else 0]) for k, s in enumerate(slots)]
        self._begin(pairs)
        first = None if loop.first is None else self._components(loop.first)[0]
        if turns == 0 or (first is not None and first.kind == "number" and first.value <= 0):
            return
        after = Mark()
        count = self._counter(turns) if turns is not None else None
        if first is not None and first.kind != "number":
            self._jump_unless(first, after)
        self._turns(loop, states, count)
        self.code.append(after)

    def _of_index(self, term: ScalarTerm) -> bool:
        """Whether it is made of the sample's number alone, and is computed where it is needed."""
        return (
            term.lane
            and term.kind != "read"
            and all(a.kind == "index" or self._of_index(a) for a in term.args if a.lane)
        )

    def _states(self, state: Node, name: str) -> list[Slot]:
        return [
            Slot(state.samples, name if k == 0 and not state.samples else "")
            for k in range(state.width or 1)
        ]

    def _begin(self, pairs: list[tuple[Slot, ScalarTerm]]) -> None:
        """Give states their first values: in the data where they are numbers and this runs once."""
        rest = []
        for slot, term in pairs:
            if term.kind == "number" and self._depth == 0:
                self.data[slot] = [term.value] * (self.samples if slot.array else 1)
            else:
                rest.append((slot, term))
        self._copy(rest)

    def _counter(self, turns: int) -> Slot:
        count = Slot(False)
        if self._depth == 0:
            self.data[count] = [Fraction(turns)]
        else:
            self._emit(count, "copy", [Fraction(turns)])
        return count

    def _turns(self, loop: Loop, states: list[list[Slot]], count: Slot | None) -> None:
        outer, self._settled = self._settled, dict(self._settled)
        self._depth += 1
        top = Mark()
        self.code.append(top)
        self._block(loop.body)
        nexts = [self._components(c.next) for c in loop.carried]
        again = None if loop.again is None else self._condition(self._components(loop.again)[0])
        self._settle([t for new in nexts for t in new])
        test = None
        if again is not None:
            test = Slot(False)
            self._prepare([again])
            self._into(test, again)
        pairs = []
        for slots, new in zip(states, nexts, strict=True):
            pairs += [(s, new[k if len(new) > 1 else 0]) for k, s in enumerate(slots)]
        self._copy(pairs)
        if count is not None:
            self._emit(count, "-", [count, ONE], ">", top)
        else:
            assert test is not None
            self._emit(test, "copy", [test], ">", top)
        self._depth -= 1
        self._settled = outer

    def _condition(self, term: ScalarTerm) -> ScalarTerm:
        """What is positive where a condition holds."""
        return term.args[0] if term.kind == "call" and term.attr == "step" else term

    def _jump_unless(self, term: ScalarTerm, target: Mark) -> None:
        condition, test = self._condition(term), Slot(False)
        self._prepare([condition])
        self._into(test, condition)
        self._emit(test, "copy", [test], "<=", target)

    def _copy(self, pairs: list[tuple[Slot, ScalarTerm]]) -> None:
        """Give slots new values all at once: none is overwritten before it has been read."""
        moves = [(slot, self._held(term)) for slot, term in pairs]
        moves = [(slot, place) for slot, place in moves if place is not slot]
        lanes = [m for m in moves if m[0].array]
        for slot, place in _in_order([m for m in moves if not m[0].array]):
            self._emit(slot, "copy", [place])
        if lanes:
            with self._over_samples():
                for slot, place in _in_order(lanes):
                    self._emit(self._cell_of(slot), "copy", [self._element(place)])


def _from_outside(loop: Loop) -> list[Node]:
    """The nodes that a loop reads and that are not computed in it."""
    inside = set(loop.body.walk()) | {c.state for c in loop.carried}
    inside |= {c.state for inner in loop.body.loops() for c in inner.carried}
    read: dict[Node, None] = {}

    def visit(block: Block) -> None:
        for item in block.items:
            if isinstance(item, Loop):
                ends = [c.start for c in item.carried] + [c.next for c in item.carried]
                read.update(dict.fromkeys(n for n in (*ends, item.first, item.again) if n))
                visit(item.body)
            else:
                read.update(dict.fromkeys(item.args))

    visit(loop.body)
    ends = [c.next for c in loop.carried] + [n for n in (loop.again,) if n]
    read.update(dict.fromkeys(ends))
    return [n for n in read if n not in inside]


def _in_order(
    moves: Sequence[tuple[Slot, TextPlace]],
) -> Iterator[tuple[Slot, TextPlace]]:
    """Moves one after the other that have the effect of all at once."""
    left = list(moves)
    while left:
        for k, (slot, _) in enumerate(left):
            if all(place is not slot for j, (_, place) in enumerate(left) if j != k):
                yield left.pop(k)
                break
        else:  # a cycle: one of its values is put aside
            slot = left[0][0]
            aside = Slot(False)
            yield aside, slot
            left = [(s, aside if p is slot else p) for s, p in left]
