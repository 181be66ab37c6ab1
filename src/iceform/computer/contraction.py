r"""Loops whose turns bring errors no further apart, in the Euclidean norm.

Let a loop carry one vector w and let a turn map it to

.. math:: w' = \alpha w + \tfrac1n \sum_i \varphi(w \cdot x_i, \ldots)\, x_i + b,

b free of w.

Its derivative is :math:`\alpha I + \frac1n \sum_i \delta_i x_i x_i^\top` with
:math:`\delta_i = \varphi'`, a symmetric matrix, whose eigenvalues lie in

.. math:: [\alpha_{lo} + \min(\delta_{lo}, 0) L,\; \alpha_{hi} + \max(\delta_{hi}, 0) L],
          \qquad L = \sup |x|^2,

so its norm :math:`\rho` is the larger end's size, on the whole box of states, and with an own error
of :math:`\eta` a turn the error after T turns is at most
:math:`\rho^T e_0 + \eta (1 + \rho + \dots + \rho^{T-1})`. Gradient descent on a convex loss with a
step below 2/L is such a loop; interval arithmetic on its entries does not see it.

The derivative is found by walking the turn's graph; a turn of another form has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from iceform.computer.enclosures import slope
from iceform.computer.graph import Block, Loop, Node
from iceform.computer.ranges import Range, Ranges
from iceform.functions.formulas.polynomials import line

__all__ = ["contraction"]

_ZERO, _ONE = Range(0.0, 0.0), Range(1.0, 1.0)


class _OtherError(Exception):
    """A turn of another form."""


@dataclass(frozen=True)
class _Slope:
    """The derivative of a node by the state: what ``identity`` and ``outer`` are factors of.

    ``kind`` is "vector" (alpha I + mean delta x x'), "product" (diag(x) alpha), "scalar" (delta x'
    a sample) or "sample" (delta x x' a sample).
    """

    kind: str
    identity: Range = _ZERO
    outer: Range = _ZERO

    def times(self, factor: Range) -> _Slope:
        return replace(self, identity=self.identity * factor, outer=self.outer * factor)

    def plus(self, other: _Slope) -> _Slope:
        if self.kind != other.kind:
            raise _OtherError
        return replace(
            self, identity=self.identity + other.identity, outer=self.outer + other.outer
        )


def contraction(loop: Loop, ranges: Ranges, settings: Mapping[str, float]) -> float | None:
    """Bound rho of the norm of a turn's derivative, at given scalar parameters; None for others."""
    width = loop.carried[0].state.width if len(loop.carried) == 1 else None
    if width is None:
        return None
    (carried,) = loop.carried
    try:
        found = _Walk(ranges, settings, carried.state).block(loop.body).get(carried.next)
    except _OtherError:
        return None
    if found is None or found.kind != "vector":
        return None
    reach = ranges.domain.x * ranges.domain.x
    largest = Range(0.0, max(0.0, reach.high)).times(float(width)).high
    low = found.identity.low + min(found.outer.low, 0.0) * largest
    high = found.identity.high + max(found.outer.high, 0.0) * largest
    return max(abs(low), abs(high)) * (1 + 2.0**-50)


@dataclass
class _Walk:
    ranges: Ranges
    settings: Mapping[str, float]
    state: Node

    def block(self, block: Block) -> dict[Node, _Slope]:
        """The slope of every node that depends on the state."""
        known = {self.state: _Slope("vector", identity=_ONE)}
        for item in block.items:
            if isinstance(item, Loop):
                raise _OtherError
            if any(a in known for a in item.args):
                known[item] = self.node(item, known)
        return known

    def node(self, node: Node, known: Mapping[Node, _Slope]) -> _Slope:
        """By the operation."""
        slopes = [known.get(a) for a in node.args]
        if node.op == "add":
            return self._add(slopes)
        if node.op == "mul":
            return self._mul(node, slopes)
        inner = slopes[0] if len(slopes) == 1 else None
        if inner is None:  # attention, a comparison, a choice
            raise _OtherError
        if node.op == "apply":
            return self._apply(node, inner)
        if node.op == "sum" and inner.kind == "product":
            return _Slope("scalar", outer=inner.identity)
        if node.op == "mean" and inner.kind == "sample":
            return _Slope("vector", outer=inner.outer)
        if node.op in ("bounded", "stored"):
            return inner
        raise _OtherError

    def _add(self, slopes: list[_Slope | None]) -> _Slope:
        present = [s for s in slopes if s is not None]
        return present[0] if len(present) == 1 else present[0].plus(present[1])

    def _apply(self, node: Node, inner: _Slope) -> _Slope:
        straight = line(node.attr)
        if straight is not None:
            return inner.times(Range(straight[0], straight[0]))
        if inner.kind != "scalar":
            raise _OtherError
        at = self.ranges[node.args[0]]
        return inner.times(Range(*slope(node.attr, at.low, at.high)))

    def _mul(self, node: Node, slopes: list[_Slope | None]) -> _Slope:
        if None not in slopes:
            raise _OtherError
        inner = next(s for s in slopes if s is not None)
        factor = node.args[0] if slopes[0] is None else node.args[1]
        if factor.op == "data" and factor.attr == "x":
            return self._by_x(inner)
        if factor.width is not None or (factor.samples and inner.kind == "vector"):
            raise _OtherError
        return inner.times(self._value(factor))

    def _by_x(self, inner: _Slope) -> _Slope:
        if inner.kind == "vector" and inner.outer == _ZERO:
            return _Slope("product", identity=inner.identity)
        if inner.kind == "scalar":
            return _Slope("sample", outer=inner.outer)
        raise _OtherError

    def _value(self, factor: Node) -> Range:
        if factor.op == "parameter" and factor.attr in self.settings:
            value = self.settings[factor.attr]
            return Range(value, value)
        return self.ranges[factor]
