r"""Loops whose turns bring errors no further apart, in the Euclidean norm.

Let a loop carry one vector w and let a turn map it to

.. math:: w' = \Phi\bigl(\alpha w + \tfrac1n \sum_i \varphi(w \cdot x_i, \ldots)\, x_i + b\bigr),

b free of w. The derivative of what is in the brackets is
:math:`\alpha I + \frac1n \sum_i \delta_i x_i x_i^\top` with :math:`\delta_i = \varphi'`, a
symmetric matrix, whose eigenvalues lie in

.. math:: [\alpha_{lo} + \min(\delta_{lo}, 0) L,\; \alpha_{hi} + \max(\delta_{hi}, 0) L],
          \qquad L = \sup |x|^2,

so its norm is the larger end's size, on the whole box of states. :math:`\Phi`, a function of every
entry or a sum of several, multiplies it by a diagonal matrix of the size of its slopes: a soft
threshold, :math:`\max(u - t, 0) - \max(-u - t, 0)`, has slopes 0 and 1 where t >= 0, since its
parts are never inclined at once, and so has a projection onto a box. Gradient descent on a convex
loss with a step of at most 2/L is such a loop, with a proximal step after it too; interval
arithmetic on its entries does not see it.

The derivative is found by walking the turn's graph; a turn of another form has none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from iceform.arithmetic.units import OUTWARD_FEW
from iceform.computer.loop_slices import LoopSlice, NotApplicableError, RangesAtParameters
from iceform.expressions.formulas import trees
from iceform.program import Node, Range, slope

_ZERO, _ONE, _UNIT = Range(0.0, 0.0), Range(1.0, 1.0), Range(0.0, 1.0)
_MOST_RAMPS = 6


@dataclass(frozen=True)
class _StateDerivative:
    """The derivative of a node by the state: what ``identity`` and ``outer`` are factors of.

    ``kind`` is "vector" (alpha I + mean delta x x'), "product" (diag(x) alpha), "scalar" (delta x'
    a sample) or "sample" (delta x x' a sample).
    """

    kind: str
    identity: Range = _ZERO
    outer: Range = _ZERO

    def times(self, factor: Range) -> _StateDerivative:
        return replace(self, identity=self.identity * factor, outer=self.outer * factor)

    def plus(self, other: _StateDerivative) -> _StateDerivative:
        if self.kind != other.kind:
            raise NotApplicableError
        return replace(
            self, identity=self.identity + other.identity, outer=self.outer + other.outer
        )


@dataclass(frozen=True)
class _Ramp:
    """``factor`` where the base is above ``at``, or below it, and 0 on the other side."""

    factor: Range
    above: bool
    at: Range


@dataclass(frozen=True)
class _NormOfDerivative:
    """A function of every entry of a vector: D U with U the derivative of the node ``base``.

    D is diagonal with entries in ``slopes`` and the ramps that are inclined there.
    """

    base: Node
    norm: float  # of U
    slopes: Range = _ZERO
    ramps: tuple[_Ramp, ...] = ()

    def times(self, factor: Range) -> _NormOfDerivative:
        ramps = tuple(replace(r, factor=r.factor * factor) for r in self.ramps)
        return replace(self, slopes=self.slopes * factor, ramps=ramps)

    def plus(self, other: _NormOfDerivative) -> _NormOfDerivative:
        if self.base is not other.base:
            raise NotApplicableError
        return replace(self, slopes=self.slopes + other.slopes, ramps=self.ramps + other.ramps)

    @property
    def size(self) -> float:
        """Of the whole derivative: every set of ramps that may be inclined at one point."""
        if len(self.ramps) > _MOST_RAMPS:
            raise NotApplicableError
        choices = itertools.product((False, True), repeat=len(self.ramps))
        sizes = [self._sum(on).size for on in choices if self._possible(on)]
        return max(sizes) * self.norm * OUTWARD_FEW

    def _sum(self, on: tuple[bool, ...]) -> Range:
        total = self.slopes
        for ramp, inclined in zip(self.ramps, on, strict=True):
            total = total + ramp.factor if inclined else total
        return total

    def _possible(self, on: tuple[bool, ...]) -> bool:
        """Whether some entry may be on these sides of all ends; at an end it is on both."""
        low, high = -math.inf, math.inf
        for ramp, inclined in zip(self.ramps, on, strict=True):
            if ramp.above == inclined:
                low = max(low, ramp.at.low)
            else:
                high = min(high, ramp.at.high)
        return low < high or not any(on)


def euclidean(part: LoopSlice, values: RangesAtParameters) -> float | None:
    """Bound the norm of a turn's derivative, of loops that carry one vector; None for others."""
    carried, width = part.carried[0], part.carried[0].state.width
    if len(part.carried) != 1 or width is None or carried.state.samples:
        return None
    walk = _EuclideanRules(values, values.largest_square(width))
    known: dict[Node, _StateDerivative | _NormOfDerivative] = {
        carried.state: _StateDerivative("vector", identity=_ONE)
    }
    try:
        found = part.propagate(known, lambda node, _: walk.node(node, known)).get(carried.next)
        return None if found is None else walk.norm(found)
    except NotApplicableError:
        return None


@dataclass
class _EuclideanRules:
    values: RangesAtParameters
    largest: float

    def norm(self, found: _StateDerivative | _NormOfDerivative) -> float:
        """Of a vector's derivative."""
        if isinstance(found, _NormOfDerivative):
            return found.size
        if found.kind != "vector":
            raise NotApplicableError
        low = found.identity.low + min(found.outer.low, 0.0) * self.largest
        high = found.identity.high + max(found.outer.high, 0.0) * self.largest
        return max(abs(low), abs(high)) * OUTWARD_FEW

    def node(
        self, node: Node, known: Mapping[Node, _StateDerivative | _NormOfDerivative]
    ) -> _StateDerivative | _NormOfDerivative:
        """By the operation."""
        slopes = [known.get(a) for a in node.args]
        if node.op == "add":
            return self._add(slopes)
        if node.op == "mul":
            return self._mul(node, slopes)
        present = [s for s in slopes if s is not None]
        if len(present) > 1:  # attention, a comparison, a choice
            raise NotApplicableError
        (inner,) = present
        if node.op == "apply":
            return self._apply(node, inner, known)
        if node.op in ("maximum", "minimum"):
            return self._bent(node.args[0] if slopes[0] is inner else node.args[1], inner, _UNIT)
        return inner if node.op in ("bounded", "stored") else self._reduced(node, inner)

    def _reduced(self, node: Node, inner: _StateDerivative | _NormOfDerivative) -> _StateDerivative:
        kind = inner.kind if isinstance(inner, _StateDerivative) else "bent"
        if isinstance(inner, _StateDerivative) and (node.op, kind) == ("sum", "product"):
            return _StateDerivative("scalar", outer=inner.identity)
        if isinstance(inner, _StateDerivative) and (node.op, kind) == ("mean", "sample"):
            return _StateDerivative("vector", outer=inner.outer)
        raise NotApplicableError

    def _add(
        self, slopes: list[_StateDerivative | _NormOfDerivative | None]
    ) -> _StateDerivative | _NormOfDerivative:
        first, *more = (s for s in slopes if s is not None)
        if not more:
            return first
        (second,) = more
        if isinstance(first, _StateDerivative) and isinstance(second, _StateDerivative):
            return first.plus(second)
        if isinstance(first, _NormOfDerivative) and isinstance(second, _NormOfDerivative):
            return first.plus(second)
        raise NotApplicableError

    def _apply(
        self,
        node: Node,
        inner: _StateDerivative | _NormOfDerivative,
        known: Mapping[Node, _StateDerivative | _NormOfDerivative],
    ) -> _StateDerivative | _NormOfDerivative:
        straight = self.values.line(node)
        if straight is not None:
            return inner.times(straight[0])
        at = self.values.ranges[node.args[0]]
        slopes = Range(*slope(node.attr, at.low, at.high))
        if isinstance(inner, _StateDerivative) and inner.kind == "scalar":
            return inner.times(slopes)
        if isinstance(node.attr, trees.Operation) and node.attr.name == "relu":
            ramp = self._ramp(node.args[0], known)
            if ramp is not None and node.attr.arguments == (trees.Variable(),):
                return ramp
        return self._bent(node.args[0], inner, slopes)

    def _bent(
        self, base: Node, inner: _StateDerivative | _NormOfDerivative, slopes: Range
    ) -> _NormOfDerivative:
        return _NormOfDerivative(base, self.norm(inner), slopes)

    def _ramp(
        self, node: Node, known: Mapping[Node, _StateDerivative | _NormOfDerivative]
    ) -> _NormOfDerivative | None:
        """relu(factor base + shift) of a node that is so."""
        factor, shift = _ONE, _ZERO
        while True:
            straight = self.values.line(node)
            kept = [a for a in node.args if a in known]
            if straight is not None:
                factor, shift = factor * straight[0], shift + factor * straight[1]
            elif node.op == "add" and len(kept) == 1:
                (other,) = (a for a in node.args if a not in known)
                shift = shift + factor * self.values[other]
            else:
                break
            (node,) = kept
        if not (factor.low > 0 or factor.high < 0):
            return None
        ramp = _Ramp(factor, factor.low > 0, _inverse(factor) * -shift)
        return _NormOfDerivative(node, self.norm(known[node]), ramps=(ramp,))

    def _mul(
        self, node: Node, slopes: list[_StateDerivative | _NormOfDerivative | None]
    ) -> _StateDerivative | _NormOfDerivative:
        present = [s for s in slopes if s is not None]
        if len(present) != 1:
            raise NotApplicableError
        (inner,) = present
        factor = node.args[0] if slopes[0] is None else node.args[1]
        if factor.op == "data" and factor.attr == "x":
            return self._by_x(inner)
        vector = isinstance(inner, _NormOfDerivative) or inner.kind == "vector"
        if factor.width is not None or (factor.samples and vector):
            raise NotApplicableError
        return inner.times(self.values[factor])

    def _by_x(self, inner: _StateDerivative | _NormOfDerivative) -> _StateDerivative:
        if isinstance(inner, _StateDerivative) and inner.kind == "vector" and inner.outer == _ZERO:
            return _StateDerivative("product", identity=inner.identity)
        if isinstance(inner, _StateDerivative) and inner.kind == "scalar":
            return _StateDerivative("sample", outer=inner.outer)
        raise NotApplicableError


def _inverse(factor: Range) -> Range:
    if factor.low == factor.high and abs(factor.low) == 1:
        return factor
    return Range(
        math.nextafter(1 / factor.high, -math.inf), math.nextafter(1 / factor.low, math.inf)
    )
