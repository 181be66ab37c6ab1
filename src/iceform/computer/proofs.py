r"""What is proven of a run: the exact program, enclosed on the same data.

The answer that was computed is a list of floating-point numbers, known exactly. The exact program
is run in ball arithmetic with as many bits as it takes for the
radius of its answer to be a small share of the distance. The distance is then enclosed, whatever
the tables, the rounding and the attention did: the proof rests on the graph of the algorithm alone.

Two things are refused. A comparison that came nearer to a tie than its table can tell apart, where
the answer is off by more than eps, since the run may have taken the other turn; and a state that
left the bound that it was compiled with. Where the answer is within eps all the same, it is given:
the distance is a proof, whatever the comparison said. Nothing is then known of the run before it.

**Balls.** A value is an array of balls (``flint.arb``): midpoints of some hundred bits, and radii
that hold every rounding. Data and parameters are floating-point numbers, so known exactly. A
comparison is decided where its ball does not contain 0, or is 0 itself; how near it came to a tie
is noted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_most
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.arithmetic.intervals import above
from iceform.computer.graph import Exact, Graph, refuse, run, whole
from iceform.computer.ranges import Assumed, Ranges
from iceform.errors import BoundError, PrecisionError
from iceform.expressions.ball_tensors import BallTensor
from iceform.program import Node, SourceLine


class UndecidedError(PrecisionError):
    """A comparison whose ball contains 0, or a bound that a ball straddles: more bits may tell."""

    def __init__(self, why: str, place: SourceLine | None = None) -> None:
        super().__init__(why)
        self.place = place


def available() -> bool:
    """Whether there is ball arithmetic."""
    try:
        import flint  # noqa: F401
    except ImportError:
        return False
    return True


def lowest(ball: Any) -> float:
    """A double that is at most every point of a ball; 0 of the ball that is exactly 0."""
    if ball == 0:
        return 0.0
    return math.nextafter(float(ball.lower()), -math.inf) if ball.is_finite() else -math.inf


# ---------------------------------------------------------------------------------------------
# the arithmetic
# ---------------------------------------------------------------------------------------------


@dataclass
class Balls(Exact):
    """The same operations on tensors of balls, and what only balls have to decide.

    ``nearest`` is, for every comparison, a lower bound of how near it came to a tie, and
    ``reached`` an upper one.
    """

    samples: int
    nearest: dict[Node, float] = field(default_factory=dict)
    reached: dict[Node, float] = field(default_factory=dict)
    turns: int = 0

    def compute(self, node: Node, args: list[Any]) -> Any:
        """The value of an operation: balls' own, or what it is of tensors."""
        return BallTensor.of(node.operation.balls(self, node, *args))

    def positive(self, value: Any, where: SourceLine | None) -> bool:
        """Whether a condition's value, 0 or 1, is 1."""
        goes_on = super().positive(value, where)
        self.turns += goes_on
        return goes_on

    def whole(self, value: Any) -> int:
        """A number of turns."""
        return whole(float(value[0].mid()))

    def note(self, node: Node, apart: list[Any], decided: bool, why: str) -> None:
        """How near values came to where something jumps; refused where balls do not decide."""
        if apart:
            self._nearest_of(node, apart)
        if not decided:
            raise UndecidedError(why, node.place)

    def _nearest_of(self, node: Node, apart: list[Any]) -> None:
        sizes = [abs(t) for t in apart]
        least, surely = min(map(lowest, sizes)), min(map(uppermost, sizes))
        self.nearest[node] = min(self.nearest.get(node, math.inf), least)
        self.reached[node] = min(self.reached.get(node, math.inf), surely)


# ---------------------------------------------------------------------------------------------
# a run
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExactDistance:
    """The exact program on one set of data against what was computed.

    Attributes
    ----------
    distance
        Proven bound of |computed - exact| in every entry of every answer.
    relative
        The same over the size of each entry, where that is larger than 1.
    radius
        Of the exact answers.
    bits
        Of the arithmetic.
    nearest
        For every comparison (by its line) how near it came to a tie, at least.
    turns
        Turns of data-dependent loops.
    near
        Lines whose comparisons came nearer to a tie than their tables tell apart.
    """

    distance: float
    relative: float
    radius: float
    bits: int
    nearest: Mapping[int, float]
    turns: int
    near: tuple[int, ...] = ()


def enclose(
    graph: Graph,
    ranges: Ranges,
    gaps: Mapping[Node, float],
    given: Mapping[str, Tensor],
    computed: Mapping[str, Tensor],
    eps: float = 0.0,
) -> ExactDistance:
    """Enclose the distance of computed answers from the exact ones.

    Parameters
    ----------
    graph, ranges, gaps
        The algorithm, its ranges, and how near each comparison may come to a tie.
    given
        Data and parameters as the exact arithmetic has them, scalars 1 wide.
    computed
        The answers, scalars 1 wide.
    eps
        What answers may be off by, relative to their size where that is larger than 1, although a
        comparison came too near to a tie.

    Raises
    ------
    PrecisionError
        If a comparison came too near to a tie, and the answer is off by more.
    BoundError
        If a state left the bound that was assumed of it.
    """
    bits = tuning.PROOFS_BITS
    while True:
        try:
            found = _at(graph, ranges, given, computed, bits)
            ties = _ties(found[0], gaps)
        except UndecidedError as undecided:
            found, why = None, undecided
        if found is not None:
            balls, distance, relative, radius = found
            if (
                radius <= tuning.PROOFS_SHARE * max(distance, tuning.PROOFS_NOTHING)
                or bits >= tuning.PROOFS_MOST_BITS
            ):
                for node in ties:
                    if node.op == "whole" or not relative <= eps:
                        raise _tie(node, balls.nearest[node], gaps[node], distance)
                nearest = {_line(n): v for n, v in balls.nearest.items()}
                lines = tuple(map(_line, ties))
                return ExactDistance(distance, relative, radius, bits, nearest, balls.turns, lines)
        if bits >= tuning.PROOFS_MOST_BITS:
            error = refuse(
                f"{why} with {bits} bits; change the data, the number of steps, or what is "
                "compared. Equal numbers are a tie at any precision: write z > 0 for relu(z) > 0, "
                "v > v.max() - 1e-4 for the largest component, u < v - 1e-4 where a sample meets "
                "itself, and a bit less than 0.5 for what a share of the samples is compared with",
                why.place,
            )
            raise PrecisionError(str(error))
        bits *= 2


def _at(
    graph: Graph,
    ranges: Ranges,
    given: Mapping[str, Tensor],
    computed: Mapping[str, Tensor],
    bits: int,
) -> tuple[Balls, float, float, float]:
    with balls_of(bits):
        inputs = {name: BallTensor.of(value) for name, value in given.items()}
        balls = Balls(len(given["x"]))
        exact = run(graph, balls, lambda n: inputs[n.attr], _watch(ranges))
        pairs = [(BallTensor.of(computed[name]), value) for name, value in exact.items()]
        gaps = [uppermost(gap) for ours, value in pairs for gap in abs(ours - value).flat]
        sizes = [max(1.0, lowest(abs(v))) for ours, _ in pairs for v in ours.flat]
        radius = max(value.widest() for value in exact.values())
    gaps = [math.inf if math.isnan(gap) else gap for gap in gaps]
    shares = (
        above(Fraction(g) / Fraction(s)) if math.isfinite(g) else g
        for g, s in zip(gaps, sizes, strict=True)
    )
    return balls, max(gaps), max(shares), radius


def _watch(ranges: Ranges) -> Any:
    """Refuse a run whose exact values leave what was assumed of them."""
    checked = ranges.checked()

    def seen(node: Node, value: Any) -> None:
        assumed: Assumed | None = ranges.assumed.get(node)
        if assumed is None:
            return
        low, high = checked[node].low, checked[node].high
        for ball in value.flat:
            if low <= ball <= high:
                continue
            if not (ball > high or ball < low):  # nor certainly outside
                raise UndecidedError(
                    f"whether {assumed.name} stays in {assumed.range} cannot be decided", node.place
                )
            mend = (
                "widen the bound that this line states"
                if node.op == "bounded"
                else "compile with an example that has such values, or state ice.bounded there"
                if assumed.by == "example" and node.op != "state"
                else f"compile with bounds={{{assumed.name!r}: ...}}"
            )
            error = refuse(
                f"{assumed.name} reaches {float(ball.mid()):.6g} on these data, outside "
                f"{assumed.range}, for which the program was compiled; {mend}",
                node.place,
            )
            raise BoundError(str(error))

    return seen


def _ties(balls: Balls, gaps: Mapping[Node, float]) -> list[Node]:
    """Comparisons that came nearer to a tie than they are told apart."""
    near = [n for n, nearest in balls.nearest.items() if nearest < gaps.get(n, 0.0)]
    for node in near:
        if gaps[node] <= balls.reached[node]:
            raise UndecidedError(
                "how near a comparison came to a tie cannot be decided", node.place
            )
    return near


def _tie(node: Node, nearest: float, gap: float, distance: float) -> PrecisionError:
    """The refusal of one."""
    if node.op == "whole":
        message = (
            f"a value came within {nearest:.3g} of the middle between two whole numbers, and "
            f"this line needs {at_most(gap, '.6g')}: == and indices are for values that are "
            "whole, such as torch.round(v); what is rounded may not lie half-way"
        )
    else:
        message = (
            f"a comparison came within {nearest:.3g} of a tie, its table tells values "
            f"{at_most(gap, '.3g')} apart, and the answer is off by {at_most(distance, '.2g')}; "
            "change the data or what they are compared with, or narrow the "
            "range: the domain, bounds={...} of a name, ice.bounded of a value; where a sample "
            "meets itself, leave it a gap: u < v - 1e-4"
        )
    return PrecisionError(str(refuse(message, node.place)))


def _line(node: Node) -> int:
    return node.place.line if node.place is not None else 0
