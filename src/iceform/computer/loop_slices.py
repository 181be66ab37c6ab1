"""Ranges at given parameters: narrower than those of all parameters that a program is for.

With them, what proofs about a loop's turns share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from iceform.arithmetic.intervals import above, below
from iceform.computer.graph import Block, Loop, LoopVariable
from iceform.computer.ranges import Ranges
from iceform.expressions.formulas.polynomials import polynomial
from iceform.program import Node, Range
from iceform.program.range import BEYOND

D = TypeVar("D")


class NotApplicableError(Exception):
    """A turn of another form than is asked for."""


@dataclass(frozen=True)
class LoopSlice:
    """A turn, with no loop in it, as it maps some of the states; the others are given."""

    body: Block
    carried: tuple[LoopVariable, ...]

    def propagate(
        self, known: dict[Node, D], rule: Callable[[Node, list[D | None]], D]
    ) -> dict[Node, D]:
        """Apply a rule to every node that depends on the states, in order, and return all results.

        ``known`` holds the rule's values of the states; ``rule`` gets a node and the values of its
        arguments (None for arguments that do not depend on the states).
        """
        for item in self.body.items:
            assert not isinstance(item, Loop)
            if any(a in known for a in item.args):
                known[item] = rule(item, [known.get(a) for a in item.args])
        return known


@dataclass
class RangesAtParameters:
    """The range of every node outside a loop's states, with scalar parameters as they are given."""

    ranges: Ranges
    settings: Mapping[str, float]
    _known: dict[Node, Range] = field(default_factory=dict)

    def __getitem__(self, node: Node) -> Range:
        if node not in self._known:
            self._known[node] = self._value(node)
        return self._known[node]

    def _value(self, node: Node) -> Range:
        if node.op == "parameter" and node.attr in self.settings:
            value = self.settings[node.attr]
            return Range(value, value)
        known = self.ranges[node]
        if node.op in ("add", "mul"):
            a, b = (self[arg] for arg in node.args)
            return known.meet(a + b if node.op == "add" else a * b)
        straight = self.line(node)
        if straight is not None:
            return known.meet(self[node.args[0]] * straight[0] + straight[1])
        if node.op in ("stored", "spread", "bounded"):
            return known.meet(self[node.args[0]])
        return known

    @staticmethod
    def line(node: Node) -> tuple[Range, Range] | None:
        """Slope and intercept of a straight line of one argument."""
        known = polynomial(node.attr) if node.op == "apply" else None
        if known is None or len(known) > 2:
            return None
        shift, slope = (Fraction(known[k]) if k < len(known) else Fraction(0) for k in (0, 1))
        return Range(below(slope), above(slope)), Range(below(shift), above(shift))

    def largest_square(self, width: int) -> float:
        """L, the largest |x|^2 of the domain."""
        reach = self.ranges.domain.x * self.ranges.domain.x
        return Range(0.0, max(0.0, reach.high)).times(float(width)).high


@dataclass
class TurnRules:
    """What rules for derivatives share: they hold for states that are off, by ``reach`` at most."""

    values: RangesAtParameters
    reach: float = field(default=math.inf, init=False)  # in the largest entry

    def room(self, node: Node) -> float:
        """How far a value may leave its range: a share of the end that is nearer to 0."""
        known = self.values.ranges[node]
        nearest = min(abs(known.low), abs(known.high))
        return BEYOND * max(known.size if known.low <= 0 <= known.high else nearest, BEYOND**4)

    def beyond(self, node: Node, moved: float) -> Range:
        """A range with that room, which errors must leave it that move it by ``moved`` of them."""
        known, room = self.values.ranges[node], self.room(node)
        if moved > 0:
            self.reach = min(self.reach, room / moved * (1 - BEYOND))
        return Range(known.low - room, known.high + room)
