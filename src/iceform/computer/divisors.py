r"""Divisors of either sign: c/v as (c/|v|) sign(v), where an example shows both.

No table holds 1/v on both sides of 0, and a range that contains 0 has no bounded quotient. But |v|
stays away from 0 where v does, so with s = 1 for v > 0 and -1 else,

.. math:: |v| = s v,\qquad c/v = s\, (c/|v|),

a comparison, two products and a look-up. That |v| stays away from 0 is then assumed of it as of any
divisor that an example shows, and checked in every run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from iceform.computer.graph import Block, Loop, refuse
from iceform.expressions.formulas import trees
from iceform.program import Node, Range

_Z = trees.Variable()
_SIGN = trees.Operation(
    "-", (trees.Operation("*", (trees.Number(Fraction(2)), _Z)), trees.Number(Fraction(1)))
)


def divide_by_either_sign(block: Block, seen: Mapping[Node, Range]) -> bool:
    """Rewrite, in place, what divides by a value that was seen on both sides of 0.

    Returns whether there was something.
    """
    found = False
    for item in list(block.items):
        if isinstance(item, Loop):
            found |= divide_by_either_sign(item.body, seen)
            continue
        odd = _divides(item)
        if odd is None or not _both_signs(item, seen):
            continue
        found = True
        before, shared = block.items.index(item), (item.samples, item.width)
        (divisor,) = item.args
        above = Node("step", (divisor,), *shared, None, item.place)
        sign = Node("apply", (above,), *shared, _SIGN, item.place)
        size = Node("mul", (sign, divisor), *shared, None, item.place, "divisor's size")
        new = [above, sign, size]
        _becomes(item, args=(size,))
        if odd:
            share = Node("apply", (size,), *shared, item.attr, item.place)
            new.append(share)
            _becomes(item, op="mul", args=(sign, share), attr=None)
        block.items[before:before] = new
    return found


def _becomes(node: Node, **fields: Any) -> None:
    """Nobody has seen the graph yet."""
    for name, value in fields.items():
        object.__setattr__(node, name, value)


def _divides(node: Node) -> bool | None:
    """Whether a node is c/v, or an odd power of it; None of what divides by no value."""
    tree = node.attr
    if node.op != "apply" or not isinstance(tree, trees.Operation):
        return None
    first, *others = tree.arguments
    if tree.name == "/" and isinstance(first, trees.Number) and others == [_Z]:
        return True
    power = others[0].value if others and isinstance(others[0], trees.Number) else Fraction(0)
    if tree.name == "^" and first == _Z and power < 0 and power.denominator == 1:
        return power.numerator % 2 == 1
    return None


def _both_signs(node: Node, seen: Mapping[Node, Range]) -> bool:
    """Whether an example has the divisor on both sides of 0; refused where it is 0."""
    divisor, quotient = (seen.get(n) for n in (node.args[0], node))
    if divisor is None or not divisor.low <= 0 <= divisor.high:
        return False
    if quotient is None or not math.isfinite(quotient.size):
        raise refuse(
            "this divides by 0 on the example; where that is meant to be passed over, divide by "
            "ice.where(v == 0, 1, v), or by v plus a small constant",
            node.place,
        )
    return True
