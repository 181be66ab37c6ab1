r"""How errors of a loop's states grow over its turns: better bounds than turn by turn.

A turn maps states w to G(w). The computer's turn differs from G by at most some :math:`\eta`. So if
states are off by :math:`E_t` after t turns,

.. math:: |E_T| \le p_T |E_0| + \eta\,(p_0 + p_1 + \dots + p_{T-1}),

where :math:`p_k` bounds the norm of the product of any k turns' derivatives. Three theories find
such bounds. A loop may have several, and the best one counts:

* :mod:`~iceform.computer.spectral`: states are vectors, changed by means of samples times what they
  are multiplied with, as in gradient descent, perhaps with a proximal step after it;
* :mod:`~iceform.computer.jacobians`: any states, by intervals for the entries of the derivative;
* :func:`_positive`: turns that multiply and add numbers that are not negative.

States that do not depend on each other are bounded one group after the other, in the order in which
they depend. To a later group, states of an earlier one are values of known range and known error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.arithmetic.units import OUTWARD
from iceform.computer.graph import Loop
from iceform.computer.jacobians import TurnDerivative, turn_derivative
from iceform.computer.loop_slices import LoopSlice, RangesAtParameters
from iceform.computer.spectral import VectorTurn, vector_turn
from iceform.computer.zeros import beyond_vectors
from iceform.program import Node


@dataclass(frozen=True)
class ErrorGrowth:
    """Bounds of what k turns do to errors, in a norm.

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
    weights
        Of the states, whose entries are divided by them; empty where all are 1.
    reach
        Errors in the largest entry for which it is proven.
    outer
        Bounds of the states' derivatives by each other beyond vectors; None where none are known.
    """

    states: tuple[int, ...]
    description: str
    euclidean: bool
    rate: float = math.inf
    powers: Callable[[int], Tensor] | None = None
    weights: tuple[float, ...] = ()
    reach: float = math.inf
    outer: list[list[float]] | None = None

    def norm(self, errors: Sequence[tuple[float, int]]) -> float:
        """Of states' errors, each so much in so many entries."""
        if not self.euclidean:
            weights = self.weights or (1.0,) * len(errors)
            return max(e / w for (e, _), w in zip(errors, weights, strict=True)) * OUTWARD
        return math.sqrt(math.fsum(n * e * e for e, n in errors)) * OUTWARD

    def of_states(self, bound: float) -> list[float]:
        """The largest entry of each state, where the norm is at most ``bound``."""
        found = [bound * w * OUTWARD for w in self.weights or (1.0,) * len(self.states)]
        return found if max(found) <= self.reach else [math.inf] * len(found)

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
        outer = beyond_vectors(part, values)
        yield from (
            replace(growth, outer=outer) for growth in _of_part(part, states, needs, values)
        )


def _of_part(
    part: LoopSlice, states: tuple[int, ...], needs: dict[Node, set[int]],
    values: RangesAtParameters,
) -> Iterator[ErrorGrowth]:  # fmt: skip
    """Of states that depend on each other."""
    vectors = vector_turn(part, values)
    yield from () if vectors is None else _of_vectors(states, vectors)
    turn = turn_derivative(part, values)
    yield from () if turn is None else _of_entries(states, turn)
    alone = all(needs[c.next] <= set(states) for c in part.carried)
    ratios = _positive(part, values) if alone else None
    if ratios is not None:
        in_all = at_most(ratios[0], ".6g")
        told = f"a turn multiplies and adds what is not negative, by {in_all} in all"
        yield ErrorGrowth(states, told, False, powers=partial(_constant, *ratios))


def _of_vectors(states: tuple[int, ...], turn: VectorTurn) -> Iterator[ErrorGrowth]:
    """By polynomials of H, in the Euclidean norm."""
    if turn.rate < math.inf:
        told = f"a turn's derivative has norm {at_most(turn.rate, '.6g')}"
        yield ErrorGrowth(states, told, True, turn.rate, reach=turn.reach)
    if turn.powers is not None:
        yield ErrorGrowth(states, "turns are polynomials of mean(x x')", True, powers=turn.powers)


def _of_entries(states: tuple[int, ...], turn: TurnDerivative) -> Iterator[ErrorGrowth]:
    """By a turn's derivative: in the largest entry, weighted, and in a basis of its own."""
    known = ErrorGrowth(states, "", False, reach=turn.reach)
    told = f"a turn moves the largest entry by {at_most(turn.largest, '.6g')}"
    yield replace(known, description=told, rate=turn.largest)
    rate = float(turn.by_entries(1)[1])
    told = f"a turn moves entries, weighted, by {at_most(rate, '.6g')}"
    weights = tuple(turn.weights.tolist())
    yield replace(
        known, description=told, rate=rate, powers=turn.by_entries, weights=weights
    )  # fmt: skip
    powers = turn.in_bases()
    if powers is not None:
        told = "turns' derivatives are within matrices of known norm"
        yield replace(known, description=told, powers=powers, euclidean=True)


def _constant(value: float, last: float, turns: int) -> Tensor:
    return torch.tensor([value] * turns + [last], dtype=torch.float64)


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
# what is not negative
# ---------------------------------------------------------------------------------------------


def _positive(part: LoopSlice, values: RangesAtParameters) -> tuple[float, float] | None:
    r"""Of a loop w' = J w + c with J, c >= 0, bounds of J's powers' largest row sums.

    States begin at w_0 >= a > 0 and are at most b, so :math:`J^k 1 \le J^k w_0 / a \le w_k / a \le
    b / a`. What the last turn makes may be more than a state, whose bound is checked as it begins a
    turn: the second bound is of as many powers as there are turns.
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
    last = max(most, *(values.ranges[c.next].high for c in part.carried))
    usable = least > 0 and math.isfinite(last)
    return (most / least * OUTWARD, last / least * OUTWARD) if usable else None


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
