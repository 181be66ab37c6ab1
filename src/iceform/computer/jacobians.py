r"""A turn's derivative, entry by entry: intervals that hold wherever the states may be.

The entries of all states that depend on each other are numbered, and every value of a turn has an
interval for its derivative by each. So w - w/4 moves by 3/4 of w and not by 5/4, and a turn is a
matrix J of intervals.

**Norms.** Three are tried. Let N = max \|J\|, entry by entry.

* Errors after k turns are at most :math:`N^k E`. In the norm :math:`\max_i |e_i| / v_i`, for any
  weights v > 0, the factor is at most :math:`\max_i (N^k v)_i / v_i`. The weights are nearly N's
  leading eigenvector.
* N cannot see that an average moves by no more than what is averaged. So a bound of every row's sum
  is followed by itself (``size``); it is the factor in the largest entry.
* J is a matrix M and a radius R around it. In any basis S its Euclidean norm is at most
  :math:`\|S^{-1} M S\| + \||S^{-1}| R |S|\|`, as in :mod:`~iceform.computer.spectral`.

**Curves.** A value that is a function of one other value, entry by entry, such as a soft threshold,
is also differentiated as a whole, which may be sharper than part by part.

**Samples.** A mean of samples' derivatives has at most the norm of the largest one. So the box in
which a sample x lies is cut into cells, and J is found for samples that all lie in one cell. That
holds for means that enter once; where a mean goes back to the samples, the cells are joined. A
state that every sample has depends on its own sample, by intervals, and on the others, by a sum of
sizes.

**Choices.** c (a - b) + b with 0 <= c <= 1 moves between a and b, and so do maxima. Comparisons and
roundings move nothing: what they are off by, whichever way they are decided, is a turn's own error
(:mod:`~iceform.computer.budget`).

**Reach.** Intervals hold for values that leave their ranges by :data:`BEYOND` of their size, so
for errors that are as small as that: ``reach``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval
from iceform.arithmetic.units import OUTWARD, OUTWARD_MANY
from iceform.computer.graph import LoopVariable
from iceform.computer.loop_slices import (
    LoopSlice,
    NotApplicableError,
    RangesAtParameters,
    TurnRules,
)
from iceform.computer.ranges import choice
from iceform.computer.spectral import Powers, bases_of, rate_in
from iceform.computer.virtual import compose
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.polynomials import polynomial
from iceform.program import Node, Range, slope
from iceform.program.range import BEYOND

_Z = trees.Variable()


def _interval(r: Range) -> Interval:
    ends = torch.tensor([[r.low], [r.high]], dtype=torch.float64)
    return Interval(ends[0], ends[1])


@dataclass(frozen=True)
class _Moved:
    """A value's derivative.

    ``own``, of shape (cells, width, entries), is by states of lane 0 and of the same sample;
    ``others`` (width, entries) bounds the sum over all other samples; ``size`` (width) that by all
    states' largest entry.
    """

    own: Interval
    others: Tensor
    size: Tensor

    @classmethod
    def made(cls, own: Interval, others: Tensor, size: Tensor | None = None) -> _Moved:
        """With the size as far as entries tell it, or smaller."""
        rows = (own.magnitude.amax(0) + others).sum(-1) * OUTWARD_MANY
        return cls(own, others, rows if size is None else torch.minimum(rows, size * OUTWARD_MANY))

    def times(self, factor: Interval) -> _Moved:
        """By a number in an interval, of shape (width), or (cells, width)."""
        size = factor.magnitude.reshape(-1, factor.low.shape[-1]).amax(0)
        others = self.others * size[:, None] * OUTWARD_MANY
        wide = Interval(factor.low[..., None], factor.high[..., None])
        return _Moved.made(self.own * wide, others, self.size * size)

    def plus(self, other: _Moved) -> _Moved:
        own, others = self.own + other.own, (self.others + other.others) * OUTWARD
        return _Moved.made(own, others, self.size + other.size)

    def either(self, other: _Moved) -> _Moved:
        """Any average of both."""
        own = _together(self.own, other.own, Interval.hull)
        others = torch.maximum(self.others, other.others)
        return _Moved.made(own, others, torch.maximum(self.size, other.size))

    def meet(self, other: _Moved) -> _Moved:
        """What two ways of finding it allow."""
        own = _together(self.own, other.own, Interval.meet)
        others = torch.minimum(self.others, other.others)
        return _Moved.made(own, others, torch.minimum(self.size, other.size))

    def hulled(self) -> _Moved:
        """For samples that may lie anywhere."""
        own = Interval(self.own.low.amin(0, keepdim=True), self.own.high.amax(0, keepdim=True))
        return replace(self, own=own)

    def rows(self, chosen: slice) -> _Moved:
        return _Moved(
            Interval(self.own.low[:, chosen], self.own.high[:, chosen]),
            self.others[chosen], self.size[chosen],
        )  # fmt: skip

    def added_up(self) -> _Moved:
        """The sum over the components."""
        turned = Interval(self.own.low.transpose(0, 1), self.own.high.transpose(0, 1)).sum()
        own = Interval(turned.low[:, None], turned.high[:, None])
        return _Moved.made(own, self.others.sum(0, keepdim=True) * OUTWARD_MANY,
                           self.size.sum(0, keepdim=True))  # fmt: skip

    def wide(self, width: int) -> _Moved:
        """Given to every component."""
        own = Interval(*(end.expand(-1, width, -1) for end in (self.own.low, self.own.high)))
        return _Moved(own, self.others.expand(width, -1), self.size.expand(width))

    def across(self, sampled: Tensor) -> _Moved:
        """An average over the samples: what was of one is of all of them."""
        mine = self.own.magnitude.amax(0) * sampled
        own = Interval(self.own.low * ~sampled, self.own.high * ~sampled)
        return _Moved.made(own, (self.others + mine) * OUTWARD, self.size)


def _together(a: Interval, b: Interval, make: Callable[[Interval, Interval], Interval]) -> Interval:
    """Of one shape."""
    low, other = torch.broadcast_tensors(a.low, b.low)
    high, another = torch.broadcast_tensors(a.high, b.high)
    return make(Interval(low, high), Interval(other, another))


@dataclass(frozen=True, eq=False)
class TurnDerivative:
    """What is known of a turn.

    Attributes
    ----------
    own, others, sizes
        Of all entries together, as of a value.
    widths
        Entries of each state.
    reach
        Errors of states, in the largest entry, for which it holds.
    together
        Whether there is a Euclidean norm of all of it: no state is one a sample, or all are, and
        none depends on other samples.
    """

    own: Interval
    others: Tensor
    sizes: Tensor
    widths: tuple[int, ...]
    reach: float
    together: bool

    @property
    def largest(self) -> float:
        """In the largest entry."""
        return float(self.sizes.max())

    @cached_property
    def entries(self) -> Tensor:
        """N."""
        return (self.own.magnitude.amax(0) + self.others) * OUTWARD

    @cached_property
    def weights(self) -> Tensor:
        """Of the states: nearly those by which N brings errors least far apart."""
        v = torch.ones(len(self.entries), dtype=torch.float64)
        for _ in range(tuning.JACOBIAN_ENTRIES):
            v = v + self.entries @ v
            v = v / v.max() if bool(v.isfinite().all()) else torch.ones_like(v)
        each = v.clamp(min=BEYOND).split(self.widths)
        return torch.stack([part.max() for part in each])

    def by_entries(self, turns: int) -> Tensor:
        """Powers of N in the norm of these weights."""
        v = torch.cat([w.expand(n) for w, n in zip(self.weights, self.widths, strict=True)])
        out, moved = [1.0], v
        for _ in range(turns):
            moved = (self.entries @ moved) * OUTWARD_MANY
            out.append(float((moved / v).max()) * OUTWARD)
        found = torch.tensor(out, dtype=torch.float64)
        return found.nan_to_num(math.inf, math.inf)

    def in_bases(self) -> Powers | None:
        """Powers in the Euclidean norm."""
        if not (self.together and bool(self.own.magnitude.isfinite().all())):
            return None
        center = (self.own.low + self.own.high) / 2
        radius = torch.maximum(self.own.high - center, center - self.own.low) * OUTWARD_MANY
        middle = center.mean(0)
        v = torch.cat([w.expand(n) for w, n in zip(self.weights, self.widths, strict=True)])
        bases = [*bases_of(middle), torch.diag(v), torch.eye(len(v), dtype=torch.float64)]
        found = []
        for basis in bases:
            condition, rate = rate_in(center.to(basis.dtype), radius, basis)
            found.append((condition.max(), rate.max()))
        conditions, rates = (torch.stack(part)[None] for part in zip(*found, strict=True))
        return Powers(conditions, rates)


def turn_derivative(part: LoopSlice, values: RangesAtParameters) -> TurnDerivative | None:
    """Of a turn as it maps some of the states; None where nothing is known."""
    states = [c.state for c in part.carried]
    widths = tuple(s.width or 1 for s in states)
    if sum(widths) > tuning.JACOBIAN_ENTRIES:
        return None
    rules = _JacobianRules(values, states, widths)
    try:
        found = part.propagate(rules.found, rules.node)
        rows = [rules.row(found.get(c.next), c) for c in part.carried]
    except NotApplicableError:
        return None
    whole = _joined(rows)
    if not bool(whole.size.isfinite().all()):
        return None
    samples = {s.samples for s in states}
    together = len(samples) == 1 and not bool(whole.others.any())
    return TurnDerivative(whole.own, whole.others, whole.size, widths, rules.reach,
                          together)  # fmt: skip


def _joined(parts: Iterable[_Moved]) -> _Moved:
    """One below the other."""
    kept = list(parts)
    cells = max(len(m.own) for m in kept)
    ends = [
        torch.cat([end.expand(cells, -1, -1) for end in each], 1)
        for each in ([m.own.low for m in kept], [m.own.high for m in kept])
    ]
    return _Moved(Interval(*ends), torch.cat([m.others for m in kept]),
                  torch.cat([m.size for m in kept]))  # fmt: skip


@dataclass
class _JacobianRules(TurnRules):
    states: list[Node]
    widths: tuple[int, ...]
    found: dict[Node, _Moved] = field(default_factory=dict)
    curves: dict[Node, tuple[Node, trees.Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        eye, first = torch.eye(self.count, dtype=torch.float64), 0
        for state, width in zip(self.states, self.widths, strict=True):
            rows = eye[None, first : first + width]
            first += width
            self.found[state] = _Moved.made(Interval.point(rows), torch.zeros_like(rows[0]))

    @property
    def count(self) -> int:
        return sum(self.widths)

    @cached_property
    def sampled(self) -> Tensor:
        """Which entries every sample has."""
        each = [[s.samples] * n for s, n in zip(self.states, self.widths, strict=True)]
        return torch.tensor(list(itertools.chain(*each)))

    def still(self, width: int | None) -> _Moved:
        nothing = torch.zeros(1, width or 1, self.count, dtype=torch.float64)
        return _Moved.made(Interval.point(nothing), nothing[0])

    def row(self, moved: _Moved | None, carried: LoopVariable) -> _Moved:
        """Of a state's next value."""
        moved = self.still(None) if moved is None else moved
        apart = carried.state.samples and not carried.next.samples
        return (moved.hulled() if apart else moved).wide(carried.state.width or 1)

    # ------------------------------------------------------------------------------- values

    @cached_property
    def cells(self) -> Interval:
        """What the features of a sample may be, cell by cell: (cells, features)."""
        domain = self.values.ranges.domain
        dim = self.values.ranges.graph.dim
        each = domain.features or (domain.x,) * dim
        parts = max(1, int(tuning.JACOBIAN_CELLS ** (1 / dim) * OUTWARD_MANY))
        edges = [torch.linspace(r.low, r.high, parts + 1, dtype=torch.float64) for r in each]
        lows = torch.cartesian_prod(*(e[:-1] for e in edges)).reshape(-1, dim)
        highs = torch.cartesian_prod(*(e[1:] for e in edges)).reshape(-1, dim)
        return Interval(lows, highs)

    def value(self, node: Node) -> Interval:
        """Where a value lies, of shape (width) or (1), or the same for each cell."""
        if node.op == "data" and node.attr == "x":
            return self.cells
        if node.op == "component" and node.args[0].op in ("data", "numbers"):
            return self.value(node.args[0])[..., node.attr : node.attr + 1]
        if node.op == "numbers":
            return Interval.point(torch.tensor(node.attr, dtype=torch.float64))
        if node.op == "concat" and all(a.op == "component" for a in node.args):
            parts = [self.value(a) for a in node.args]
            if all(p.low.ndim == 2 for p in parts):
                ends = ([p.low for p in parts], [p.high for p in parts])
                return Interval(*(torch.cat(each, -1) for each in ends))
        return _interval(self.extended(node) if node in self.found else self.values[node])

    def extended(self, node: Node) -> Range:
        """Where a value may be whose states are off."""
        return self.beyond(node, float(self.found[node].size.max()))

    # ------------------------------------------------------------------------------- operations

    def node(self, node: Node, given: list[_Moved | None]) -> _Moved:
        """By the operation; ``given`` are the arguments' derivatives."""
        moved = [
            m.hulled() if m is not None and node.samples and not a.samples else m
            for m, a in zip(given, node.args, strict=True)
        ]
        found = self._by_operation(node, moved).wide(node.width or 1)
        curve = self._curve(node)
        if curve is None:
            return found
        base, tree = self.curves[node] = curve
        if polynomial(tree) is not None and len(polynomial(tree) or ()) <= 2:
            return found  # straight: entries tell as much
        reach, at = self.reach, self.extended(base)
        whole = self.found[base].times(_interval(Range(*slope(tree, at.low, at.high))))
        if bool((whole.size < found.size).all()):
            return found.meet(whole)
        self.reach = reach
        return found

    def _curve(self, node: Node) -> tuple[Node, trees.Node] | None:
        """Where a value is a function of one other, entry by entry: of which, and as a formula."""
        name = {"add": "+", "mul": "*", "maximum": "max", "minimum": "min"}.get(node.op)
        if node.op != "apply" and name is None:
            return None
        parts = [self.curves.get(a, (a, _Z)) if a in self.found else None for a in node.args]
        bases = {part[0] for part in parts if part is not None}
        if len(bases) != 1:
            return None
        (base,) = bases
        if (base.width, base.samples) != (node.width, node.samples):
            return None
        formulas = [
            part[1] if part is not None else self._number(a)
            for part, a in zip(parts, node.args, strict=True)
        ]
        if any(formula is None for formula in formulas):
            return None
        inner = tuple(formula for formula in formulas if formula is not None)
        tree = compose(node.attr, inner[0]) if name is None else trees.Operation(name, inner)
        return (base, tree) if tree.size <= tuning.JACOBIAN_ENTRIES else None

    def _number(self, node: Node) -> trees.Node | None:
        """A value that is one number at these parameters, as a formula without a variable."""
        if node.op in ("apply", "spread"):
            inner = self._number(node.args[0])
            return inner if inner is None or node.op == "spread" else compose(node.attr, inner)
        known = self.values[node]
        return trees.Number(Fraction(known.low)) if known.low == known.high else None

    def _by_operation(self, node: Node, moved: list[_Moved | None]) -> _Moved:
        chosen = self._choice(node)
        if chosen is not None:
            return chosen
        if node.op in ("step", "whole"):
            return self.still(node.width)
        if node.op in ("add", "mul", "maximum", "minimum", "attend", "concat"):
            found: _Moved = getattr(self, f"_{node.op}")(node, moved)
            return found
        (first,) = moved
        assert first is not None
        return self._of_one(node, first)

    def _choice(self, node: Node) -> _Moved | None:
        """Of a value between two, by how much it is one of them."""
        for share, difference, a, b in choice(node):
            if Range(0.0, 1.0).holds(self.values.ranges[share]):
                ends = self._of(a, node), self._of(b, node)
                found, moved = ends[0].either(ends[1]), self._of(share, node)
                if not moved.size.any():
                    return found
                at = self.extended(share)  # a bit outside 0 and 1, perhaps
                outside = _interval(Range(min(at.low, 0.0), max(at.high - 1.0, 0.0)))
                past = ends[0].plus(ends[1].times(_interval(Range(-1.0, -1.0)))).times(outside)
                return found.plus(past).plus(moved.times(self.value(difference)))
        return None

    def _of(self, node: object, where: Node) -> _Moved:
        moved = self.found.get(node) if isinstance(node, Node) else None
        if moved is None or not isinstance(node, Node):
            return self.still(None)
        return moved.hulled() if where.samples and not node.samples else moved

    def _of_one(self, node: Node, moved: _Moved) -> _Moved:
        argument = node.args[0]
        if node.op == "apply":
            straight = self.values.line(node)
            if straight is not None:
                return moved.times(_interval(straight[0]))
            at = self.extended(argument)
            return moved.times(_interval(Range(*slope(node.attr, at.low, at.high))))
        if node.op == "sum" and argument.width is not None:
            return moved.added_up()
        if node.op == "component":
            return moved.rows(slice(node.attr, node.attr + 1))
        if node.op == "mean" and argument.samples:
            return moved.across(self.sampled)
        if node.op not in ("bounded", "stored", "spread", "sum", "mean"):
            raise NotApplicableError
        return moved

    def _add(self, node: Node, moved: list[_Moved | None]) -> _Moved:
        a, b = (self.still(None) if m is None else m for m in moved)
        return a.plus(b)

    def _mul(self, node: Node, moved: list[_Moved | None]) -> _Moved:
        both = [
            self.still(None) if m is None else m.times(self.value(other))
            for m, other in zip(moved, reversed(node.args), strict=True)
        ]
        return both[0].plus(both[1])

    def _maximum(self, node: Node, moved: list[_Moved | None]) -> _Moved:
        a, b = (self.still(None) if m is None else m for m in moved)
        return a.either(b)

    _minimum = _maximum

    def _concat(self, node: Node, moved: list[_Moved | None]) -> _Moved:
        return _joined(
            self.still(None).wide(a.width or 1) if m is None else m
            for m, a in zip(moved, node.args, strict=True)
        )

    def _attend(self, node: Node, moved: list[_Moved | None]) -> _Moved:
        """An average by weights that are given, or whose query moves; or the largest value.

        Then d sum_i p_i v_i is the covariance of v_i and q . k_i under p, at most a fourth of the
        products of what they span.
        """
        query, key, value, *bias = moved
        if node.attr == "largest":
            return self.still(node.width) if value is None else value.hulled().across(self.sampled)
        if key is not None or any(b is not None for b in bias):
            raise NotApplicableError
        found = self.still(node.width) if value is None else value.hulled().across(self.sampled)
        if query is None:
            return found
        if node.attr is not None:  # a place: other weights are nothing only while it is whole
            raise NotApplicableError
        asked = query.times(_interval(self.values[node.args[1]])).added_up()
        span = self.values[node.args[2]] if value is None else self.extended(node.args[2])
        half = torch.tensor([0.5 * (span.high - span.low) * OUTWARD], dtype=torch.float64)
        return found.plus(asked.hulled().wide(node.width or 1).times(Interval(-half, half)))
