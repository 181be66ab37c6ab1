r"""How errors of a loop's states grow over its turns, where more is known than derivatives' sizes.

A turn maps states w to G(w). The computer's turn is off by some :math:`\eta` from G at the states
that it is given, so with :math:`E_t` what they are off by after t turns

.. math:: |E_T| \le p_T |E_0| + \eta\,(p_0 + p_1 + \dots + p_{T-1}),

where :math:`p_k` bounds the norm of the product of any k turns' derivatives. There are four ways to
such bounds, each in a file or a class of its own; a loop may have several, and the best counts:

* one vector, descent and what does not push apart after it (:mod:`~iceform.computer.euclidean`);
* vectors that a turn combines by polynomials of mean(x x') (:mod:`~iceform.computer.spectral`);
* :class:`_MaxNormRules`, in the largest entry: averages by fixed weights and maxima add nothing;
* :func:`_positive`, loops that multiply and add what is not negative.

States that do not depend on each other are bounded apart, those that others depend on first: to
these they are values of a known range, off by what is known of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.arithmetic.units import OUTWARD, OUTWARD_FEW
from iceform.computer.euclidean import euclidean
from iceform.computer.graph import Loop
from iceform.computer.loop_slices import LoopSlice, NotApplicableError, RangesAtParameters
from iceform.computer.spectral import spectral
from iceform.program import Node, Range, slope


@dataclass(frozen=True)
class ErrorGrowth:
    """Bounds of what k turns do to errors.

    Attributes
    ----------
    states
        Which of the states that the loop carries, by number.
    description
        The bound in words.
    powers
        T to (p_0, ..., p_T); None where a rate is all there is.
    rate
        p_k = rate^k; infinite where that is not known.
    euclidean
        Whether the norm is that of all states together; else it is the largest entry.
    """

    states: tuple[int, ...]
    description: str
    euclidean: bool
    rate: float = math.inf
    powers: Callable[[int], Tensor] | None = None

    def norm(self, errors: Iterable[tuple[float, int]]) -> float:
        """Of states' errors, each so much in so many entries."""
        if not self.euclidean:
            return max(e for e, _ in errors)
        return math.sqrt(math.fsum(n * e * e for e, n in errors)) * OUTWARD

    def after(self, turns: int | None, begin: float, own: float) -> float:
        """The error in so many turns, or in any number of them."""
        if turns is None:
            if not self.rate < 1:
                return math.inf
            return max(begin, (self.rate * begin + own / (1 - self.rate)) * OUTWARD)
        powers = self._powers(turns)
        left, made = float(powers.max()), float(powers[:-1].sum())  # in any of the turns
        total = (left * begin if begin else 0.0) + (made * own if own else 0.0)
        return max(begin, total * (1 + turns * 2.0**-50) * OUTWARD)

    def _powers(self, turns: int) -> Tensor:
        if self.powers is not None:
            return self.powers(turns)
        return self.rate ** torch.arange(turns + 1, dtype=torch.float64) * OUTWARD


def growths(loop: Loop, values: RangesAtParameters) -> Iterator[ErrorGrowth]:
    """What is proven of a loop at given scalar parameters, in every way there is."""
    if any(isinstance(item, Loop) for item in loop.body.items):
        return
    needs = _needs(loop)
    for states in _groups([needs[c.next] for c in loop.carried]):
        part = LoopSlice(loop.body, tuple(loop.carried[k] for k in states))
        rate = euclidean(part, values)
        if rate is not None:
            yield ErrorGrowth(
                states, f"a turn's derivative has norm {at_most(rate, '.6g')}", True, rate
            )
        powers = spectral(part, values)
        if powers is not None:
            yield ErrorGrowth(states, "turns are polynomials of mean(x x')", True, powers=powers)
        largest = _largest(part, values)
        if largest is not None:
            told = f"a turn moves the largest entry by {at_most(largest, '.6g')}"
            yield ErrorGrowth(states, told, False, largest)
        alone = all(needs[c.next] <= set(states) for c in part.carried)
        ratio = _positive(part, values) if alone else None
        if ratio is not None:
            in_all = at_most(ratio, ".6g")
            told = f"a turn multiplies and adds what is not negative, by {in_all} in all"
            yield ErrorGrowth(states, told, False, powers=partial(_constant, ratio))


def _constant(value: float, turns: int) -> Tensor:
    return torch.full((turns + 1,), value, dtype=torch.float64)


def _needs(loop: Loop) -> dict[Node, set[int]]:
    """The states that every node of a turn depends on, by number."""
    found: dict[Node, set[int]] = defaultdict(set)
    found |= {c.state: {k} for k, c in enumerate(loop.carried)}
    for item in loop.body.items:
        assert not isinstance(item, Loop)
        found[item] = set().union(*(found[a] for a in item.args))
    return found


def _groups(needs: list[set[int]]) -> list[tuple[int, ...]]:
    """States that depend on each other together, those that others depend on first."""
    reached = [{k} | found for k, found in enumerate(needs)]
    for _ in needs:
        reached = [set().union(*(reached[j] for j in found)) for found in reached]
    groups = {
        tuple(j for j in sorted(found) if k in reached[j]): len(found)
        for k, found in enumerate(reached)
    }
    return sorted(groups, key=groups.__getitem__)


# ---------------------------------------------------------------------------------------------
# the largest entry
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _EntryDerivative:
    """How a value moves with the states: by ``own`` of the same entry, and ``rest`` of any."""

    own: Mapping[Node, Range]
    rest: float = 0.0

    @property
    def size(self) -> float:
        """In the largest entry."""
        return (math.fsum(r.size for r in self.own.values()) + self.rest) * OUTWARD_FEW

    def mixed(self, factor: float = 1.0) -> _EntryDerivative:
        """Entries of another place than they came from."""
        return _EntryDerivative({}, self.size * factor)

    def times(self, factor: Range) -> _EntryDerivative:
        own = {state: r * factor for state, r in self.own.items()}
        return _EntryDerivative(own, self.rest * factor.size * OUTWARD_FEW)

    def plus(self, other: _EntryDerivative) -> _EntryDerivative:
        own = {s: a + b for s, a, b in self._beside(other)}
        return _EntryDerivative(own, (self.rest + other.rest) * OUTWARD_FEW)

    def either(self, other: _EntryDerivative) -> _EntryDerivative:
        """Any average of both."""
        own = {s: a.join(b) for s, a, b in self._beside(other)}
        joined = _EntryDerivative(own, max(self.rest, other.rest))
        return min(
            joined, _EntryDerivative({}, max(self.size, other.size)), key=lambda moved: moved.size
        )

    def _beside(self, other: _EntryDerivative) -> Iterator[tuple[Node, Range, Range]]:
        zero = Range(0.0, 0.0)
        for state in {**self.own, **other.own}:
            yield state, self.own.get(state, zero), other.own.get(state, zero)


_STILL = _EntryDerivative({})


@dataclass
class _MaxNormRules:
    r"""Derivatives in the largest entry.

    An average by weights that do not depend on the states moves by no more than what is averaged,
    max(a, b) - max(a', b') is an average of a - a' and b - b', and w - w/4 moves by 3/4 of w, not
    by 5/4.
    """

    values: RangesAtParameters

    def node(self, node: Node, moved: list[_EntryDerivative | None]) -> _EntryDerivative:
        """By the operation."""
        known = {
            "add": self._add, "mul": self._mul, "maximum": self._either, "minimum": self._either,
            "attend": self._attend, "concat": self._concat,
        }  # fmt: skip
        rule = known.get(node.op)
        if rule is not None:
            return rule(node, moved)
        (first,) = moved
        assert first is not None
        if node.op == "apply":
            at = self.values.ranges[node.args[0]]
            return first.times(Range(*slope(node.attr, at.low, at.high)))
        if node.op in ("bounded", "stored", "spread"):
            return first
        if node.op in ("mean", "component", "sum"):
            return first.mixed(float(node.args[0].width or 1) if node.op == "sum" else 1.0)
        raise NotApplicableError

    def _add(self, node: Node, moved: list[_EntryDerivative | None]) -> _EntryDerivative:
        a, b = (_STILL if m is None else m for m in moved)
        return a.plus(b)

    def _either(self, node: Node, moved: list[_EntryDerivative | None]) -> _EntryDerivative:
        a, b = (_STILL if m is None else m for m in moved)
        return a.either(b)

    def _attend(self, node: Node, moved: list[_EntryDerivative | None]) -> _EntryDerivative:
        value = moved[2]
        if value is None or any(m is not None for k, m in enumerate(moved) if k != 2):
            raise NotApplicableError
        return value.mixed()

    def _concat(self, node: Node, moved: list[_EntryDerivative | None]) -> _EntryDerivative:
        return _EntryDerivative({}, max(m.size for m in moved if m is not None))

    def _mul(self, node: Node, moved: list[_EntryDerivative | None]) -> _EntryDerivative:
        both = [
            _STILL if m is None else m.times(self._factor(other, other_moved))
            for m, other, other_moved in zip(
                moved, reversed(node.args), reversed(moved), strict=True
            )
        ]
        return both[0].plus(both[1])

    def _factor(self, node: Node, moved: _EntryDerivative | None) -> Range:
        """Of what moves itself, all that it may be."""
        return self.values[node] if moved is None else self.values.ranges[node]


def _largest(part: LoopSlice, values: RangesAtParameters) -> float | None:
    known = {c.state: _EntryDerivative({c.state: Range(1.0, 1.0)}) for c in part.carried}
    try:
        found = part.propagate(known, _MaxNormRules(values).node)
    except NotApplicableError:
        return None
    sizes = [found[c.next].size for c in part.carried if c.next in found]
    rate = max(sizes, default=0.0)
    return rate if math.isfinite(rate) else None


# ---------------------------------------------------------------------------------------------
# what is not negative
# ---------------------------------------------------------------------------------------------


def _positive(part: LoopSlice, values: RangesAtParameters) -> float | None:
    r"""Of a loop w' = J w + c with J, c >= 0, a bound of all its powers' largest row sums.

    States begin at w_0 >= a > 0 and are at most b, so :math:`J^k 1 \le J^k w_0 / a \le w_k / a \le
    b / a`.
    """
    known = {c.state for c in part.carried}
    for item in part.body.items:
        assert not isinstance(item, Loop)
        if any(a in known for a in item.args):
            if not _keeps_sign(item, known, values):
                return None
            known.add(item)
    if not all(c.next in known for c in part.carried):
        return None
    least = min(values[c.start].low for c in part.carried)
    most = max(values.ranges[c.state].high for c in part.carried)
    return most / least * OUTWARD if least > 0 and math.isfinite(most) else None


def _keeps_sign(node: Node, known: set[Node], values: RangesAtParameters) -> bool:
    """Whether a node is a combination of the states whose coefficients are not negative."""
    others = [values[a] for a in node.args if a not in known]
    if node.op == "add":
        return all(r.low >= 0 for r in others)
    if node.op == "mul":
        return len(others) == 1 and others[0].low >= 0
    if node.op == "apply":
        straight = values.line(node)
        return straight is not None and min(straight[0].low, straight[1].low) >= 0
    if node.op == "attend":
        return node.args[2] in known and not any(
            a in known for k, a in enumerate(node.args) if k != 2
        )
    return node.op in ("sum", "mean", "spread", "component", "stored")
