r"""How many turns a ``while_`` makes at most, where what it compares falls by so much in each.

A turn goes on while a > 0. Where a is a sum of states, numbers and what no turn changes, it changes
by the same sum of what a turn adds to each state. If that is at most -d < 0 over the ranges, and a
is at most A after the first turn, a is positive after A/d turns at most, the first not counted:
``i < n`` where a turn adds 1 to i, or doubles an i from 1 on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from iceform.computer.graph import Loop
from iceform.computer.ranges import Ranges
from iceform.expressions.formulas.polynomials import polynomial
from iceform.program import Node, Range, outward

_Sum = dict[Node | None, Fraction]  # coefficients of nodes, and under None what is added


def most_turns(loop: Loop, ranges: Ranges) -> int | None:
    """The most turns of a loop that a question ends; None where nothing is known."""
    bounds = [] if loop.again is None else [_turns(a, loop, ranges) for a in _asked(loop.again)]
    return min((turns for turns in bounds if turns is not None), default=None)


def _asked(condition: Node) -> Iterator[Node]:
    """What has to be positive, all of it, for a condition to hold."""
    if condition.op == "step":
        yield condition.args[0]
    elif condition.op == "mul":
        for part in condition.args:
            yield from _asked(part)


def _turns(value: Node, loop: Loop, ranges: Ranges) -> int | None:
    inside = set(loop.body.walk())
    # What is asked of is what a turn ends with: it changes by what the next turn adds to it.
    following = {c.next: c for c in loop.carried} | {c.state: c for c in loop.carried}
    change: _Sum = {}
    for node, factor in _summed(value, inside - following.keys()).items():
        if node in following:
            carried = following[node]
            _add(change, _summed(carried.next, inside), factor)
            _add(change, {carried.state: Fraction(1)}, -factor)
        elif node in inside:
            return None
    total = Range(0.0, 0.0)
    for node, factor in change.items():
        span = Range(1.0, 1.0) if node is None else ranges[node]
        total += span * outward(float(factor), float(factor))
    most = ranges[value].high
    if not (total.high < 0 and math.isfinite(most)):
        return None
    return 1 + max(0, math.ceil(Fraction(most) / -Fraction(total.high)))


def _summed(node: Node, inside: set[Node]) -> _Sum:
    """A node as a sum of multiples of others, and of a number; exact."""
    if node.op == "constant":
        return {None: Fraction(node.attr)}
    if node in inside and node.op in ("spread", "stored", "bounded"):
        return _summed(node.args[0], inside)
    known = polynomial(node.attr) if node.op == "apply" else None
    if node in inside and known is not None and len(known) <= 2:
        out: _Sum = {}
        number, slope = (*known, Fraction(0), Fraction(0))[:2]
        _add(out, {None: number}, Fraction(1))
        _add(out, _summed(node.args[0], inside), slope)
        return out
    if node in inside and node.op == "add":
        out = {}
        for argument in node.args:
            _add(out, _summed(argument, inside), Fraction(1))
        return out
    return {node: Fraction(1)}


def _add(into: _Sum, more: _Sum, factor: Fraction) -> None:
    for node, own in more.items():
        into[node] = into.get(node, Fraction(0)) + own * factor
        if not into[node]:
            del into[node]
