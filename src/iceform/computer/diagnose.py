"""What a program's precision hangs on, on given data: lines, ties, divisors, and a bound to state.

All of it is measured, in float64; the proofs are a run's enclosure and the program's certificate.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from iceform.computer.graph import run_exactly
from iceform.computer.interpret import interpret
from iceform.errors import IceformError
from iceform.program import Node, Range

if TYPE_CHECKING:
    from iceform.computer.compile import Program


@dataclass(frozen=True)
class LineFinding:
    """One line of the algorithm and a number: what is lost there, or how near something came.

    ``limit`` is what a comparison's table tells apart; of a divisor, the end of its range.
    """

    line: int
    source: str
    value: float
    limit: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """What :meth:`Program.diagnose` finds, the worst first.

    Attributes
    ----------
    losses
        How far the answer moves when the tables of one line alone are used, and all other lines are
        exact.
    ties
        How near comparisons came to a tie, and roundings to the middle of two whole numbers.
    divisors
        How near values came to 0 that are divided by, or whose root or logarithm is taken.
    certificate
        The error that is known before the fact.
    undecided
        What it says may go another way than in the exact program, and in which line.
    bounds
        What to pass to ``compile`` as ``bounds`` for a finite one; None where nothing was found, or
        where it is finite already.
    """

    losses: tuple[LineFinding, ...]
    ties: tuple[LineFinding, ...]
    divisors: tuple[LineFinding, ...]
    certificate: float
    undecided: tuple[str, ...]
    bounds: Mapping[str, tuple[float, float]] | None

    def __str__(self) -> str:
        """The worst three lines of each kind, and what is known before the fact."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for f in self.losses[:3]:
            yield f"line {f.line} alone moves the answer by {f.value:.2g}: {f.source}"
        for f in self.ties[:3]:
            near = f"came within {f.value:.2g} of a tie, {f.limit:.2g} is refused"
            yield f"line {f.line} {near}: {f.source}"
        for f in self.divisors[:3]:
            near = f"divides by {f.value:.2g} or the like, its range ends at {f.limit:.2g}"
            yield f"line {f.line} {near}: {f.source}"
        if math.isfinite(self.certificate):
            yield f"before the fact: off by at most {self.certificate:.2g}"
            return
        why = f" ({'; '.join(self.undecided)})" if self.undecided else ""
        help = (
            f"compile with bounds={dict(self.bounds)}"
            if self.bounds is not None
            else ("no bound of a loop's names that was tried helps")
        )
        yield f"before the fact: nothing is known{why}; {help}"


def diagnose(program: Program, X: Tensor, y: Tensor, settings: Mapping[str, Any]) -> Diagnosis:
    """:meth:`Program.diagnose`."""
    given = {"x": X, "y": y[:, None], **program.parameters(**settings)}
    watched = _Watched(program)
    run_exactly(program.graph, given, watched.note)
    known = program.certify(**settings)[0]
    error = known.error
    return Diagnosis(
        tuple(_losses(program, X, y, settings)),
        watched.sorted(watched.ties),
        watched.sorted(watched.divisors),
        error,
        tuple(f"{k}: {v}" for k, v in known.domain.items() if str(v).startswith("perhaps")),
        None if math.isfinite(error) else _finite(program, watched.states, settings),
    )


class _Watched:
    """Exact values as they pass: the last of every node, and the nearest to what jumps."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.last: dict[Node, Tensor] = {}
        self.ties: dict[Node, tuple[float, float]] = {}
        self.divisors: dict[Node, tuple[float, float]] = {}
        self.states: dict[str, Range] = {}

    def note(self, node: Node, value: Tensor) -> None:
        self.last[node] = value
        if node.op == "state":
            low, high = (float(end) for end in value.aminmax())
            if math.isfinite(high - low):
                seen = Range(low, high)
                self.states[node.name] = seen.join(self.states.get(node.name, seen))
        if not node.args:
            return
        argument = self.last.get(node.args[0])
        apart = None if argument is None else node.operation.critical(node, argument)
        if apart is None:
            return
        if node.operation.jumps:
            self._nearest(self.ties, node, apart, self.program.fused.gaps.get(node, 0.0))
        else:
            allowed = self.program.ranges[node.args[0]]
            ends = (abs(allowed.low), abs(allowed.high))
            end = min(ends) if allowed.low * allowed.high > 0 else 0.0
            self._nearest(self.divisors, node, apart, end)

    def _nearest(
        self, found: dict[Node, tuple[float, float]], node: Node, value: Tensor, limit: float
    ) -> None:
        near = float(value.abs().min())
        found[node] = min((near, limit), found.get(node, (math.inf, limit)))

    def sorted(self, found: Mapping[Node, tuple[float, float]]) -> tuple[LineFinding, ...]:
        """The nearest first, one for each line."""
        each: dict[int, LineFinding] = {}
        for node, (near, limit) in sorted(found.items(), key=lambda item: item[1]):
            line = node.place.line if node.place is not None else 0
            each.setdefault(line, LineFinding(line, _source(self.program, line), near, limit))
        return tuple(each.values())


def _source(program: Program, line: int) -> str:
    place = program.graph.place
    return linecache.getline(place.file, line).strip() if place is not None and line else ""


def _losses(
    program: Program, X: Tensor, y: Tensor, settings: Mapping[str, Any]
) -> Iterator[LineFinding]:
    """Run after run, each with the tables of one line."""
    given, assembly = program.parameters(**settings), program.assembly
    exact = interpret(assembly, X, y, given, exact=True).outputs
    found = []
    for line in {i.line for i in assembly.instructions if i.line}:
        try:
            by_line = interpret(assembly, X, y, given, exact=True, tables_of=line).outputs
        except IceformError:
            off = math.inf
        else:
            off = max(float((by_line[name] - exact[name]).abs().max()) for name in exact)
        found.append(LineFinding(line, _source(program, line), off))
    yield from sorted(found, key=lambda f: -f.value if not math.isnan(f.value) else -math.inf)


def _finite(
    program: Program, states: Mapping[str, Range], settings: Mapping[str, Any]
) -> dict[str, tuple[float, float]] | None:
    """A bound of one name of a loop, or of all, with which something is known before the fact.

    It is what was seen, and as much once more at each end.
    """
    wider = {n: r.around() for n, r in states.items() if n in program.graph.names}
    for chosen in (*([n] for n in sorted(wider)), sorted(wider)):
        try:
            again = program.with_bounds({n: wider[n] for n in chosen})
            if math.isfinite(again.certify(**settings)[0].error):
                return {n: (wider[n].low, wider[n].high) for n in chosen}
        except IceformError:
            continue
    return None
