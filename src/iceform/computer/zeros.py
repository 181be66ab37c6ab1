r"""What a turn does beyond vectors, in components that a computer has and a program does not.

Data, lists of numbers and what is made side by side are 0 there; sums, products and functions of
one variable act there as on any other component. So a program with one component more, whose data
are 0, says what states are multiplied by there: an interval for the derivative of each by each, by
the rules of :mod:`~iceform.computer.jacobians` at values that are 0 or follow from it. It need not
be as small as within the vector, where data may be kept away from 0. Of numbers and of reads at
other samples, a component beyond depends by no derivative: what they are off by is a turn's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from iceform.computer.loop_slices import LoopSlice, NotApplicableError, RangesAtParameters
from iceform.computer.ranges import choice
from iceform.expressions.formulas.polynomials import line
from iceform.program import Node, Range, outward, slope
from iceform.program.range import BEYOND

_ZERO = Range(0.0, 0.0)
_NEAR = Range(-(BEYOND**2), BEYOND**2)  # of 0, for errors that are no larger
_GIVEN = ("data", "parameter", "numbers", "concat", "state", "result")
_ELEMENTS = ("add", "mul", "apply", "maximum", "minimum", "mean", "stored", "bounded", "spread")

Moved = Mapping[Node, Range]


def beyond_vectors(part: LoopSlice, values: RangesAtParameters) -> list[list[float]] | None:
    """Bounds of derivatives of states by states beyond vectors; None where nothing is known."""
    states = [c.state for c in part.carried]
    found: dict[Node, Moved] = {s: {s: Range(1.0, 1.0)} for s in states if s.width is not None}
    try:
        part.propagate(found, _Zeros(values, found).moved)
    except NotApplicableError:
        return None
    rows = (found.get(c.next, {}) for c in part.carried)
    return [[row.get(s, _ZERO).size for s in states] for row in rows]


@dataclass
class _Zeros:
    """Values and derivatives of the component beyond."""

    values: RangesAtParameters
    found: Mapping[Node, Moved]
    known: dict[Node, Range] = field(default_factory=dict)

    def __getitem__(self, node: Node) -> Range:
        """Where a value lies there; of a number, what it is."""
        if node not in self.known:
            self.known[node] = self._value(node)
        return self.known[node]

    def _value(self, node: Node) -> Range:
        if node.width is None:
            own = self.values[node]
            room = BEYOND * max(own.size, BEYOND**4)
            return Range(own.low - room, own.high + room)
        if node.op == "constant":
            return Range(node.attr, node.attr)
        if node.op == "attend":
            return self[node.args[2]]
        if node.op in _GIVEN:
            return _NEAR
        if node.op == "spread" and node.args[0].width is None:
            return self[node.args[0]]
        if node.op not in _ELEMENTS:
            raise NotApplicableError
        found: Range = node.operation.bounds(node, *(self[a] for a in node.args))
        return found

    def moved(self, node: Node, given: list[Moved | None]) -> Moved:
        """By the operation; ``given`` are the arguments' derivatives."""
        if node.width is None or node.op in ("concat", "step", "whole"):
            if node.op in ("step", "whole") and any(given):
                raise NotApplicableError
            return {}
        for share, _, a, b in choice(node):
            if share.width is None and _decided(share):
                ends = [self.found.get(v, {}) if isinstance(v, Node) else {} for v in (a, b)]
                return _merged(ends, Range.join)
        return self._moved(node, [{} if m is None else m for m in given])

    def _moved(self, node: Node, given: list[Moved]) -> Moved:
        if node.op == "attend":
            return given[2]
        if node.op not in _ELEMENTS:
            raise NotApplicableError
        if node.op == "mul":
            given = [_scaled(m, self[a]) for m, a in zip(given, reversed(node.args), strict=True)]
        if len(given) == 2:
            return _merged(given, Range.__add__ if node.op in ("add", "mul") else Range.join)
        return given[0] if node.op != "apply" else _scaled(given[0], self._slope(node))

    def _slope(self, node: Node) -> Range:
        straight, at = line(node.attr), self[node.args[0]]
        if straight is not None:
            return outward(straight[0], straight[0])
        return Range(*slope(node.attr, at.low - BEYOND**2, at.high + BEYOND**2))


def _decided(share: Node) -> bool:
    """Whether a share is 0 or 1 whatever is compared."""
    if share.op in ("mul", "maximum", "minimum"):
        return all(map(_decided, share.args))
    return share.op == "step" or (share.op == "whole" and share.attr[0] == "zero")


def _scaled(moved: Moved, factor: Range) -> Moved:
    return {state: r * factor for state, r in moved.items()}


def _merged(parts: list[Moved], make: Callable[[Range, Range], Range]) -> Moved:
    states = {s for part in parts for s in part}
    return {s: reduce(make, (part.get(s, _ZERO) for part in parts)) for s in states}
