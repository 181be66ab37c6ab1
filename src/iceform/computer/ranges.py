r"""Ranges: an interval for every node, from the domain of the data.

Interval arithmetic, rounded outward, one interval for all components and samples. A loop's states
start from what they have before it and are joined with what a turn makes of them until nothing
grows. States that go on growing get a bound:

* the author's (``bounds={"w": 4}``, or :func:`iceform.bounded` in the program);
* else one that is assumed: an end that never moved stays, others go to :data:`_SAFETY` times the
  largest size seen when the exact algorithm ran on :data:`_DRAWS` random data sets of the domain,
  half of them with targets that follow the features, with the default parameters. Where an
  operation has no range on that (a division, a root), and no value of the other sign was seen,
  none is assumed to come.

**An example** (``compile(..., example=(X, y))``) is seen in place of random data, every value of
it. What intervals make far larger than it was seen (:data:`_TOO_FAR`), and than what memory holds
as it is (:data:`~iceform.computer.virtual.PLAIN_SIZE`), is assumed to stay within
:data:`_FAR` times what was seen; what is compared is held to :data:`_NEAR` times, since a
comparison resolves a share of its range. Where a function has no range, a far larger one than it
was seen to have, or is far steeper, its argument is assumed to stay within :data:`_NEAR` times
what was seen, and, where that makes the difference, as far from 0 less a factor of :data:`_NEARER`:
of a value whose density at 0 is positive, the least of a fresh draw is below a thirty-second of the
least seen in one case of 33.

With a ``margin`` all of these are that number: ranges are narrow, what is known before the fact is
more, and more runs are refused.

All of it is checked in every run: an answer whose values left their bounds is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch

from iceform import tuning
from iceform.arithmetic import at_least, at_most
from iceform.arithmetic.units import OUTWARD_MANY
from iceform.computer.graph import Block, Graph, Loop, LoopVariable, refuse, run_exactly
from iceform.computer.virtual import PLAIN_SIZE
from iceform.errors import BoundError, ProgramError
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.polynomials import line
from iceform.program import Node, Range, outward, slope

_SAFETY = 2.0
# Of what was seen in an example, 8, 32, 256 and 32 times; see above.
_NEAR, _FAR, _TOO_FAR, _NEARER = _SAFETY**3, _SAFETY**5, _SAFETY**8, _SAFETY**5
SAMPLED = 256  # samples of a draw at most: means of more vary less
_LARGEST = 1e6  # a state that was seen larger than this is unbounded


@dataclass(frozen=True)
class ProgramDomain:
    """What the data and the parameters may be; ``features`` is of each feature, or empty."""

    x: Range
    y: Range
    parameters: Mapping[str, Range]
    samples: int
    features: tuple[Range, ...] = ()

    def of(self, node: Node) -> Range:
        """The range of a datum or a parameter."""
        if node.op == "data":
            return self.x if node.attr == "x" else self.y
        return self.parameters[node.attr]

    def check(self, X: Any, y: Any, parameters: Mapping[str, Any]) -> None:
        """Refuse data outside."""
        each = [(f"X[:, {j}]", X[..., j], r) for j, r in enumerate(self.features)]
        self._check([*(each or [("X", X, self.x)]), ("y", y, self.y)])
        self.check_parameters(parameters)

    def check_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Refuse parameters outside."""
        self._check([(n, v, self.parameters[n]) for n, v in parameters.items()])

    def _check(self, values: list[tuple[str, Any, Range]]) -> None:
        for name, value, allowed in values:
            inside = (value >= allowed.low) & (value <= allowed.high)
            if not bool(inside.all()):
                worst = float(value[~inside].flatten()[0])
                if not math.isfinite(worst):
                    mend = "no program computes with such a number"
                elif name in self.parameters:
                    mend = f"compile with {name}={_pair(allowed.join(Range(worst, worst)))}"
                else:
                    mend = f"scale the data, or compile with domain={self._wider(name, worst)}"
                raise BoundError(
                    f"{name} has the value {worst:.12g}, outside {allowed}, for which the program "
                    f"was compiled; {mend}"
                )

    def _wider(self, name: str, worst: float) -> str:
        """A domain with room for a value, and for others as far out again."""

        def holding(allowed: Range) -> str:
            far = 2 * worst - (allowed.low if worst < allowed.low else allowed.high)
            far = far if math.isfinite(far) else worst
            return _pair(allowed.join(Range(far, far)))

        if not name.startswith("X[") or not self.features:
            return f"{{{name[0].lower()!r}: {holding(self.y if name == 'y' else self.x)}}}"
        out = next(j for j in range(len(self.features)) if name == f"X[:, {j}]")
        each = [holding(r) if j == out else _pair(r) for j, r in enumerate(self.features)]
        return f"{{'x': [{', '.join(each)}]}}"


def _pair(allowed: Range) -> str:
    """As one types it, rounded outward."""
    return f"({at_least(allowed.low, '.6g')}, {at_most(allowed.high, '.6g')})"


@dataclass(frozen=True)
class Assumed:
    """A bound that was not proven: of ``node``, by the author, by runs, or by the example."""

    node: Node
    name: str
    range: Range
    by: str = "author"

    def __str__(self) -> str:
        who = {"author": "you say", "example": "as in the example, checked in every run"}
        return f"{self.name} in {self.range} ({who.get(self.by, 'assumed, checked in every run')})"


@dataclass
class Ranges:
    """The range of every node, and what they rest on."""

    graph: Graph
    domain: ProgramDomain
    bounds: Mapping[str, Range]
    known: dict[Node, Range] = field(default_factory=dict)
    assumed: dict[Node, Assumed] = field(default_factory=dict)
    example: Mapping[Node, Range] = field(default_factory=dict)  # every value's, if there is one
    margin: float | None = None  # beyond the example; None for the usual ones
    _seen: Mapping[Node, Range] | None = None

    def __getitem__(self, node: Node) -> Range:
        return self.known[node]

    def checked(self) -> dict[Node, Range]:
        """What every run has to check of each value with an assumption.

        An end that follows from the others needs no check: what a loop begins with and what a turn
        makes of values within their bounds keeps it, or the value that a bound was put on does.
        Values may lie at such an end, where no arithmetic could tell on which side.
        """
        loops = self.graph.block.loops()
        sources: dict[Node, tuple[Node, ...]] = {
            c.state: (c.start, c.next) for loop in loops for c in loop.carried
        }
        sources |= {node: node.args for node in self.assumed if node.op == "bounded"}
        return {
            node: assumed.range.open_beyond([self.known[n] for n in sources.get(node, ())])
            for node, assumed in self.assumed.items()
        }

    # ------------------------------------------------------------------------------------ blocks

    def block(self, block: Block) -> None:
        """Every node of a block, in order."""
        for item in block.items:
            if isinstance(item, Loop):
                self.loop(item)
            else:
                self.known[item] = self.node(item)

    def node(self, node: Node) -> Range:
        """One node, from its arguments."""
        if node.op in ("data", "parameter"):
            return self.domain.of(node)
        found = self._ruled(node)
        seen = self.example.get(node)
        if seen is not None:
            found = self._as_seen(node, seen, found)
        args = [self.known[a] for a in node.args]
        if not found.finite and all(a.finite for a in args):
            mend = "" if self.example else "; compile(..., example=(X, y)) finds most bounds itself"
            raise refuse(f"{_unbounded(node, args)}{self._made_of(node)}{mend}", node.place)
        return found

    def _ruled(self, node: Node) -> Range:
        """By interval arithmetic."""
        args = [self.known[a] for a in node.args]
        if node.op in ("count", "index"):
            most = float(self.domain.samples)
            return Range(1.0, most) if node.op == "count" else Range(0.0, most - 1)
        if node.op == "component":
            return self._component(node.args[0], node.attr)
        found: Range = node.operation.bounds(node, *args)
        if node.op == "mul":
            found = found.meet(self._powers(node))
        between = self._between(node)
        if between is not None:
            found = found.meet(between)
        if node.op == "bounded":
            self.assumed[node] = Assumed(node, _told(node), found)
        return found

    def _component(self, vector: Node, at: int) -> Range:
        """Of one component: a feature has a domain of its own, and so has each part of a concat."""
        if vector.op == "data" and self.domain.features:
            return self.domain.features[at]
        if vector.op != "concat":
            return self.known[vector]
        for part in vector.args:
            if at < (part.width or 1):
                return self.known[part] if part.width is None else self._component(part, at)
            at -= part.width or 1
        raise AssertionError(vector)

    def _as_seen(self, node: Node, seen: Range, found: Range) -> Range:
        """No larger than the example has it, and its argument no nearer to 0."""
        if node.op == "step":
            argument = node.args[0]
            most = (self.margin or _NEAR) * self.example[argument].size
            if 0 < 2 * most < self.known[argument].size:
                self.known[argument] = self._narrowed(argument, Range(-most, most))
            return found
        if not seen.finite or seen.size == 0 or not node.args or node.op == "attend":
            return found
        if node in self.assumed:
            return found.meet(self.assumed[node].range)
        too_far = self.margin or _TOO_FAR
        curved = node.op == "apply" and line(node.attr) is None
        if curved and node.args[0].op != "parameter":
            return self._function_as_seen(node, seen, found)
        if found.size <= max(too_far * seen.size, PLAIN_SIZE if self.margin is None else 0.0):
            return found
        most = _FAR * seen.size
        near = Range(-most, most) if self.margin is None else self._near(self._rounded(seen))
        return self._narrowed(node, near, found)

    def _function_as_seen(self, node: Node, seen: Range, found: Range) -> Range:
        """A function, no larger and no steeper than near to where its argument was seen."""
        (argument,), too_far = node.args, self.margin or _TOO_FAR
        near = self._near(self.example[argument])
        size, steepness = self._on(node, near)
        steepest = self._steepness(node)
        tame = math.isfinite(steepest) and steepest <= too_far * steepness
        if tame and found.size <= too_far * seen.size:
            return found
        most = (self.margin or _NEAR) * self.example[argument].size
        far = Range(-most, most)
        farther, steeper = self._on(node, far)
        enough = farther <= too_far * size and steeper <= too_far * steepness
        self.known[argument] = self._narrowed(argument, far if enough else near)
        return self._ruled(node)

    @staticmethod
    def _rounded(seen: Range) -> Range:
        """With the other side of an end at 0, which may be rounding's alone."""
        least = seen.size * (OUTWARD_MANY - 1)
        apart = min(abs(seen.low), abs(seen.high)) > least
        return seen if apart else seen.join(Range(-least, least))

    def _near(self, seen: Range) -> Range:
        """What is assumed of a value that was seen, where all of it matters."""
        if self.margin is None:
            return seen.beyond(_NEAR, _NEARER)
        return seen.beyond(self.margin, self.margin)

    def _on(self, node: Node, near: Range) -> tuple[float, float]:
        """How large and how steep a function would be if its argument stayed within ``near``."""
        (argument,) = node.args
        before = self.known[argument]
        self.known[argument] = before.meet(near)
        size, steepness = self._ruled(node).size, self._steepness(node)
        self.known[argument] = before
        return (size, steepness) if math.isfinite(steepness) else (math.inf, math.inf)

    def _steepness(self, node: Node) -> float:
        """The largest slope of a function; infinite where no table holds it, as a root at 0."""
        at = self.known[node.args[0]]
        return max(map(abs, slope(node.attr, at.low, at.high)))

    def _narrowed(self, node: Node, seen: Range, found: Range | None = None) -> Range:
        """The range of a node with an assumption: ends that are proven are not checked."""
        found = self.known[node] if found is None else found
        low, high = seen.low, seen.high
        checked = Range(
            low if low > found.low else -math.inf, high if high < found.high else math.inf
        )
        if checked.low > -math.inf or checked.high < math.inf:
            old = self.assumed[node].range if node in self.assumed else checked
            self._assume(node, self._named(node), checked.meet(old), "example")
        return found.meet(checked)

    def _named(self, node: Node) -> str:
        """What an assumption calls a node; no two are called alike."""
        if node in self.assumed:
            return self.assumed[node].name
        name = f"{node.shown} in line {node.place.line if node.place else '?'}"
        alike = sum(a.name.partition(" (")[0] == name for a in self.assumed.values())
        return f"{name} ({alike + 1})" if alike else name

    def _powers(self, node: Node) -> Range:
        """A product by its factors, equal ones together: (a v) v is a v^2, and v^2 >= 0."""
        powers: dict[Node, int] = {}
        out, todo = Range(1.0, 1.0), [node]
        while todo:
            one = todo.pop()
            slope = line(one.attr) if one.op == "apply" else None
            if one.op == "mul" or (slope is not None and slope[1] == 0):
                todo += one.args
                out = out if slope is None else out * outward(slope[0], slope[0])
            else:
                powers[one] = powers.get(one, 0) + 1
        for factor, power in powers.items():
            out = out * self.known[factor].power(power)
        return out

    def _made_of(self, node: Node) -> str:
        """What a range rests on that can be given a narrower one: parameters, names of loops."""
        found, todo, seen = {}, [node], set()
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            todo += one.args
            if one.op == "parameter":
                found[f"{one.attr}=(low, high)"] = f"{one.attr} in {self.known[one]}"
            elif one.op == "state" and one in self.assumed:
                name = self.assumed[one].name
                found[f"bounds={{{name!r}: (low, high)}}"] = f"{name} in {self.known[one]}"
        if not found:
            return ""
        given, ranges = ", ".join(sorted(found)), ", ".join(sorted(found.values()))
        return f"; it comes from {ranges}, and compile takes narrower ranges: {given}"

    def _between(self, node: Node) -> Range | None:
        """The hull of a and b, where a node is c (a - b) + b and 0 <= c <= 1, as of where."""
        for share, _, *ends in choice(node):
            if Range(0.0, 1.0).holds(self.known[share]):
                a, b = (self.known[v] if isinstance(v, Node) else _point(v) for v in ends)
                return a.join(b)
        return None

    def loop(self, loop: Loop) -> None:
        """States joined with what a turn makes of them, until they hold."""
        for carried in loop.carried:
            start = self.known[carried.start]
            if carried.state in self.assumed and self.assumed[carried.state].by == "runs":
                del self.assumed[carried.state]  # of a turn around it, where less was known
            stated = None if carried.counter else self.bounds.get(carried.name)
            if stated is not None:
                self._assume(carried.state, carried.name, stated.join(start), "author")
        self._begin(loop)
        rounds = 0
        while growing := self._grown(loop, widen=rounds >= tuning.RANGES_PLAIN):
            rounds += 1
            wrong = isinstance(growing, ProgramError) or self._past(growing)
            if rounds > tuning.RANGES_ROUNDS or wrong:
                if not self._bounded(loop, growing) and isinstance(growing, ProgramError):
                    raise growing
                self._begin(loop)
                rounds = 0
        for carried in loop.carried:
            start, new = self.known[carried.start], self.known[carried.next]
            after = self._of_state(carried.state, start.join(new))
            told = self.assumed.get(carried.result)
            self.known[carried.result] = after if told is None else after.meet(told.range)

    def _begin(self, loop: Loop) -> None:
        """States as before the first turn, or as they are assumed."""
        for carried in loop.carried:
            start = self.known[carried.start]
            if carried.counter and loop.most is not None:
                start = Range(start.low, max(start.high, self.known[loop.most].high))
            self.known[carried.state] = self._of_state(carried.state, start)

    def _grown(self, loop: Loop, widen: bool) -> list[LoopVariable] | ProgramError:
        """Run a turn, join the states with it; those that were not held, or what went wrong."""
        try:
            self.block(loop.body)
        except ProgramError as error:
            return error
        grown = []
        for carried in loop.carried:
            old, new = self.known[carried.state], self.known[carried.next]
            if carried.counter:  # at most the number of turns, where the last one ends
                self.known[carried.next] = new.meet(old)
            elif carried.state not in self.assumed and not old.holds(new):
                joined = old.join(new).widened(old) if widen else old.join(new)
                if not joined.finite:
                    return refuse(f"{carried.name} outgrows float64 in this loop", loop.place)
                self.known[carried.state] = joined
                grown.append(carried)
        return grown

    def _past(self, growing: list[LoopVariable]) -> bool:
        """Whether states have grown to more than the example's."""
        seen = [(self.known[c.state], self.example.get(c.state)) for c in growing]
        most = self.margin or _TOO_FAR
        return any(s is not None and not r.size <= most * s.size for r, s in seen)

    def _bounded(self, loop: Loop, growing: list[LoopVariable] | ProgramError) -> bool:
        """Whether states were given bounds: those that grow, or that grew until all went wrong."""
        if isinstance(growing, ProgramError):
            free = [c for c in loop.carried if c.state not in self.assumed]
            growing = [c for c in free if self.known[c.state] != self.known[c.start]]
        for carried in growing:
            self._bound(loop, carried)
        return bool(growing) or self._one_signed(loop)

    def _bound(self, loop: Loop, carried: LoopVariable) -> None:
        """Ends that moved go to a multiple of what was seen."""
        name, seen = carried.name, self._seen_of(carried.state).size
        if not seen <= _LARGEST:
            raise refuse(
                f"{name} has no bounded range in this loop, and was seen to reach {seen:.3g} with "
                f"the default parameters; state a bound, bounds={{{name!r}: ...}}, or write the "
                "loop so that it stays bounded",
                loop.place,
            )
        if self.margin is not None:
            near = self._near(self._seen_of(carried.state)).join(self.known[carried.start])
            return self._assume(carried.state, name, near, self._witness)
        factor = _NEAR if self.example else _SAFETY
        size = 2.0 ** math.ceil(math.log2(factor * max(seen, 2.0**-20)))
        start, known = self.known[carried.start], self.known[carried.state]
        low = known.low if known.low == start.low else min(-size, start.low)
        high = known.high if known.high == start.high else max(size, start.high)
        self._assume(carried.state, name, Range(low, high), self._witness)

    def _one_signed(self, loop: Loop) -> bool:
        """Whether bounds on both sides of 0 became one-sided, as what was seen is."""
        changed = False
        for carried in loop.carried:
            assumed, seen = self.assumed.get(carried.state), self._seen_of(carried.state)
            if (
                assumed is None
                or assumed.by == "author"
                or not assumed.range.low < 0 < assumed.range.high
            ):
                continue
            if seen.low >= 0 or seen.high <= 0:
                factor = _NEARER if self.example else _SAFETY
                near = Range(seen.low / factor, assumed.range.high)
                near = near if seen.low >= 0 else Range(assumed.range.low, seen.high / factor)
                near = near.join(self.known[carried.start])
                self._assume(carried.state, carried.name, near, self._witness)
                changed |= near != assumed.range
        return changed

    @property
    def _witness(self) -> str:
        return "example" if self.example else "runs"

    def _assume(self, node: Node, name: str, bound: Range, by: str) -> None:
        self.assumed[node] = Assumed(node, name, bound, by)

    def _of_state(self, state: Node, otherwise: Range) -> Range:
        return self.assumed[state].range if state in self.assumed else otherwise

    def _seen_of(self, node: Node) -> Range:
        if self._seen is None:
            self._seen = self.example or _seen_in_runs(self.graph, self.domain)
        return self._seen.get(node, Range(0.0, 0.0))


# ---------------------------------------------------------------------------------------------
# operations
# ---------------------------------------------------------------------------------------------


def choice(node: Node) -> Iterator[tuple[Node, Node, Node | Fraction, Node | Fraction]]:
    """c, a - b, a and b where a node is c (a - b) + b, as of where."""
    added = node.args[1] if node.op == "add" else _number_added(node.attr)
    if added is None or node.op not in ("add", "apply") or node.args[0].op != "mul":
        return
    product = node.args[0]
    for share, difference in (product.args, product.args[::-1]):
        first = _first_of(difference, added)
        if first is not None:
            yield share, difference, first, added


def _first_of(difference: Node, b: Node | Fraction) -> Node | Fraction | None:
    """a, where ``difference`` is a - b."""
    args, tree = difference.args, difference.attr
    if isinstance(b, Fraction):
        less = difference.op == "apply" and tree == _less(trees.Variable(), trees.Number(b))
        return args[0] if less else None
    if difference.op == "add" and args[1].op == "apply" and args[1].args == (b,):
        return args[0] if args[1].attr == trees.Operation("neg", (trees.Variable(),)) else None
    if difference.op == "apply" and args == (b,) and isinstance(tree, trees.Operation):
        a = tree.arguments[0]
        if isinstance(a, trees.Number) and tree == _less(a, trees.Variable()):
            return a.value
    return None


def _less(a: trees.Node, b: trees.Node) -> trees.Node:
    return trees.Operation("-", (a, b))


def _point(number: Fraction) -> Range:
    return Range(float(number), float(number))  # numbers of programs are float64's


def _number_added(tree: Any) -> Fraction | None:
    """c of z + c."""
    if isinstance(tree, trees.Operation) and tree.name == "+":
        first, second = tree.arguments
        if isinstance(first, trees.Variable) and isinstance(second, trees.Number):
            return second.value
    return None


def _told(node: Node) -> str:
    return node.name or f"the value bounded in line {node.place.line if node.place else '?'}"


def _unbounded(node: Node, args: list[Range]) -> str:
    argument = args[0]
    if node.op == "apply" and isinstance(node.attr, trees.Operation):
        name = node.attr.name
        if name in ("/", "^") and argument.low <= 0 <= argument.high:
            return (
                f"this divides by a value in {argument}, which contains 0; say that it stays away "
                "from 0 with ice.bounded(value, low, high), or add a positive constant to it; of a "
                "value v of either sign, 1/v is (2 * (v > 0) - 1) / abs(v)"
            )
        return f"{name} has no bounded range on {argument}"
    return f"the range of this {node.op} is not bounded"


# ---------------------------------------------------------------------------------------------
# what is seen
# ---------------------------------------------------------------------------------------------


def seen_in_run(
    graph: Graph, given: Mapping[str, torch.Tensor], seen: dict[Node, Range], most_turns: int
) -> None:
    """Join every node's range in an exact run with what was ``seen`` before."""

    def note(node: Node, value: torch.Tensor) -> None:
        low, high = (float(end) for end in value.aminmax())
        now = Range(-math.inf, math.inf) if math.isnan(high - low) else Range(low, high)
        seen[node] = now.join(seen.get(node, now))

    run_exactly(graph, given, note, most_turns)


def _seen_in_runs(graph: Graph, domain: ProgramDomain) -> dict[Node, Range]:
    """Every value's range in runs on random data with the default parameters."""
    seen: dict[Node, Range] = {}
    generator = torch.Generator().manual_seed(0)
    few = replace(domain, samples=min(domain.samples, SAMPLED))
    for draw in range(tuning.RANGES_DRAWS):
        given = drawn(graph, few, generator)
        if draw % 2:
            given["y"] = _following(given["x"], given["y"], generator)
        try:
            seen_in_run(graph, given, seen, tuning.RANGES_TURNS)
        except ProgramError:
            continue
    return seen


def _following(x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same targets, in the order of a direction of x: what is learnt from noise stays small."""
    side = x @ torch.randn(x.shape[1], 1, dtype=torch.float64, generator=generator)
    return y.sort(0).values[side.argsort(0).argsort(0)[:, 0]]


def drawn(
    graph: Graph, domain: ProgramDomain, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Random data of the domain, and the default parameters, as the exact arithmetic has them."""

    def uniform(allowed: Range, *shape: int) -> torch.Tensor:
        u = torch.rand(*shape, dtype=torch.float64, generator=generator)
        return allowed.low + (allowed.high - allowed.low) * u

    given = {
        "x": uniform(domain.x, domain.samples, graph.dim),
        "y": uniform(domain.y, domain.samples, 1),
    }
    for p in graph.parameters.values():
        width = p.width(graph.dim) or 1
        given[p.name] = (
            uniform(domain.parameters[p.name], width)
            if p.vector
            else torch.full((1,), float(p.default), dtype=torch.float64)  # type: ignore[arg-type]
        )
    return given


def find_ranges(
    graph: Graph, domain: ProgramDomain, bounds: Mapping[str, Range],
    example: Mapping[Node, Range] | None = None, margin: float | None = None,
) -> Ranges:  # fmt: skip
    """The range of every node of a graph; ``example`` is what was seen of each."""
    ranges = Ranges(graph, domain, bounds, example=example or {}, margin=margin)
    for name in set(bounds) - graph.names:
        raise refuse(
            f"bounds names {name!r}; the loops of this algorithm carry {sorted(graph.names)}",
            graph.place,
        )
    ranges.block(graph.block)
    return ranges
