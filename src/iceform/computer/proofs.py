r"""What is proven of a run: the exact program, enclosed on the same data.

The answer that was computed is a list of floating-point numbers, known exactly. The exact program
is run in ball arithmetic (:mod:`~iceform.computer.balls`) with as many bits as it takes for the
radius of its answer to be a small share of the distance. The distance is then enclosed, whatever
the tables, the rounding and the attention did: the proof rests on the graph of the algorithm alone.

Two things are refused. A comparison that came nearer to a tie than its table can tell apart, since
the run may have taken the other turn; and a state that left the bound that it was compiled with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from iceform.arithmetic.balls import ball_arithmetic
from iceform.computer.balls import Balls, UndecidedError, ball_array, uppermost
from iceform.computer.graph import Graph, Node, run
from iceform.computer.places import refuse
from iceform.computer.ranges import Assumed, Ranges
from iceform.errors import BoundError, PrecisionError

__all__ = ["Enclosure", "enclose"]

_BITS = 128  # to begin with
_MOST_BITS = 1 << 13
_SHARE = 2.0**-10  # of the distance that the radius of the exact answer may be
_NOTHING = 2.0**-60  # distances below this need no finer radius


@dataclass(frozen=True, eq=False)
class Enclosure:
    """The exact program on one set of data against what was computed.

    Attributes
    ----------
    distance
        Proven bound of |computed - exact| in every entry of every answer.
    radius
        Of the exact answers.
    bits
        Of the arithmetic.
    nearest
        For every comparison (by its line) how near it came to a tie, at least.
    turns
        Turns of data-dependent loops.
    """

    distance: float
    radius: float
    bits: int
    nearest: Mapping[int, float]
    turns: int


def enclose(
    graph: Graph,
    ranges: Ranges,
    gaps: Mapping[Node, float],
    given: Mapping[str, Tensor],
    computed: Mapping[str, Tensor],
) -> Enclosure:
    """Enclose the distance of computed answers from the exact ones.

    Parameters
    ----------
    graph, ranges, gaps
        The algorithm, its ranges, and how near each comparison may come to a tie.
    given
        Data and parameters as the exact arithmetic has them, scalars 1 wide.
    computed
        The answers, scalars 1 wide.

    Raises
    ------
    PrecisionError
        If a comparison came too near to a tie.
    BoundError
        If a state left the bound that was assumed of it.
    """
    bits, why = _BITS, ""
    while True:
        try:
            found = _at(graph, ranges, given, computed, bits)
            _check_ties(found[0], gaps)
        except UndecidedError as undecided:
            found, why = None, str(undecided)
        if found is not None:
            balls, distance, radius = found
            if radius <= _SHARE * max(distance, _NOTHING) or bits >= _MOST_BITS:
                nearest = {_line(n): v for n, v in balls.nearest.items()}
                return Enclosure(distance, radius, bits, nearest, balls.turns)
        if bits >= _MOST_BITS:
            raise PrecisionError(
                f"{why} with {bits} bits; change the data, the number of steps, or what is compared"
            )
        bits *= 2


def _at(
    graph: Graph,
    ranges: Ranges,
    given: Mapping[str, Tensor],
    computed: Mapping[str, Tensor],
    bits: int,
) -> tuple[Balls, float, float]:
    flint = ball_arithmetic()
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        inputs = {name: ball_array(value) for name, value in given.items()}
        balls = Balls(len(given["x"]))
        exact = run(graph, balls, lambda n: inputs[n.attr], _watch(ranges))
        gaps = [abs(ball_array(computed[name]) - value).flatten() for name, value in exact.items()]
        distance = max(uppermost(g) for part in gaps for g in part)
        radius = max(uppermost(b.rad()) for value in exact.values() for b in value.flatten())
    finally:
        flint.ctx.prec = before
    return balls, distance if not math.isnan(distance) else math.inf, radius


def _watch(ranges: Ranges) -> Any:
    """Refuse a run whose exact values leave what was assumed of them."""

    def seen(node: Node, value: Any) -> None:
        assumed: Assumed | None = ranges.assumed.get(node)
        if assumed is None:
            return
        for ball in value.flat:
            if ball <= assumed.range.high and ball >= assumed.range.low:
                continue
            if not (ball > assumed.range.high or ball < assumed.range.low):  # nor certainly outside
                raise UndecidedError(
                    f"whether {assumed.name} stays in {assumed.range} cannot be decided"
                )
            mend = (
                "widen the bound that this line states"
                if node.op == "bounded"
                else f"compile with bounds={{{assumed.name!r}: ...}}"
            )
            error = refuse(
                f"{assumed.name} reaches {float(ball.mid()):.6g} on these data, outside "
                f"{assumed.range}, for which the program was compiled; {mend}",
                node.place,
            )
            raise BoundError(str(error))

    return seen


def _check_ties(balls: Balls, gaps: Mapping[Node, float]) -> None:
    for node, nearest in balls.nearest.items():
        gap = gaps.get(node, 0.0)
        if nearest < gap <= balls.reached[node]:
            raise UndecidedError("how near a comparison came to a tie cannot be decided")
        if nearest < gap:
            error = refuse(
                f"a comparison came within {nearest:.3g} of a tie, and its table tells values "
                f"{gap:.3g} apart; change the data, what they are compared with, or the domain",
                node.place,
            )
            raise PrecisionError(str(error))


def _line(node: Node) -> int:
    return node.place.line if node.place is not None else 0
