"""The table of operations: what a node's value is, in tensors and in balls, and what it may be.

A row is a class, and defining one enters it into the table, from outside the package too. The
passes look it up by the node's name: :class:`~iceform.computer.exact.Exact` asks for ``value``,
:class:`~iceform.computer.proofs.Balls` for ``balls``, :class:`~iceform.computer.ranges.Ranges` for
``bounds``; notes call a node by ``shown``; ``whole`` says whether whole numbers give one, and
``clean`` whether what lies beyond a vector stays 0.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import torch

from iceform.arithmetic.balls import ball_arithmetic
from iceform.computer.graph import Node, NodeOperation
from iceform.computer.ranges import Range
from iceform.expressions.ball_tensors import BallTensor
from iceform.expressions.formulas.functions import ball_function, evaluate


class _PassedNode(NodeOperation):
    """The argument, as it is."""

    whole = True

    def value(self, run: Any, node: Node, a: Any) -> Any:
        return a

    def bounds(self, node: Node, a: Any) -> Any:
        return a

    def clean(self, node: Node, args: list[bool]) -> bool:
        return all(args)


class _StoredNode(_PassedNode):
    name = "stored"


class _BoundedNode(_PassedNode):
    name = "bounded"

    def bounds(self, node: Node, a: Any) -> Any:
        return a.meet(Range(*node.attr))


class _SpreadNode(_PassedNode):
    name = "spread"

    def value(self, run: Any, node: Node, a: Any) -> Any:
        width = node.width or 1
        return a.expand((run.samples, width) if node.samples else (width,))


class _AddNode(_PassedNode):
    name, shown = "add", "sum"

    def value(self, run: Any, node: Node, a: Any, b: Any) -> Any:  # type: ignore[override]
        return torch.add(a, b)

    def bounds(self, node: Node, a: Any, b: Any) -> Any:  # type: ignore[override]
        return a + b


class _MulNode(NodeOperation):
    name, shown, whole = "mul", "product", True

    def value(self, run: Any, node: Node, a: Any, b: Any) -> Any:
        return torch.mul(a, b)

    def bounds(self, node: Node, a: Any, b: Any) -> Any:
        return a * b

    def clean(self, node: Node, args: list[bool]) -> bool:
        return any(args)


class _MaximumNode(_AddNode):
    name, shown = "maximum", ""

    def value(self, run: Any, node: Node, a: Any, b: Any) -> Any:  # type: ignore[override]
        return torch.maximum(a, b)

    def bounds(self, node: Node, a: Any, b: Any) -> Any:  # type: ignore[override]
        return Range(max(a.low, b.low), max(a.high, b.high))


class _MinimumNode(_AddNode):
    name, shown = "minimum", ""

    def value(self, run: Any, node: Node, a: Any, b: Any) -> Any:  # type: ignore[override]
        return torch.minimum(a, b)

    def bounds(self, node: Node, a: Any, b: Any) -> Any:  # type: ignore[override]
        return Range(min(a.low, b.low), min(a.high, b.high))


class _ApplyNode(NodeOperation):
    name, shown = "apply", "function"

    def value(self, run: Any, node: Node, a: Any) -> Any:
        return evaluate(node.attr, a)

    def balls(self, run: Any, node: Node, a: Any) -> Any:
        return ball_function(node.attr)(a)

    def bounds(self, node: Node, a: Any) -> Any:
        return a.of(node.attr)

    def clean(self, node: Node, args: list[bool]) -> bool:
        return args[0] and float(evaluate(node.attr, torch.zeros(1, dtype=torch.float64))) == 0


class _StepNode(NodeOperation):
    name = "step"

    def value(self, run: Any, node: Node, a: Any) -> Any:
        return (a >= 0 if node.attr else a > 0).to(a)

    def balls(self, run: Any, node: Node, a: Any) -> Any:
        decided = not any(t.contains(0) for t in a.flat)
        run.note(node, list(a.flat), decided, "a comparison is too close to a tie to be decided")
        arb = ball_arithmetic().arb
        return np.frompyfunc(lambda t: arb(1 if t > 0 else 0), 1, 1)(a)

    def bounds(self, node: Node, a: Any) -> Any:
        return Range(0.0, 1.0)


class _WholeNode(NodeOperation):
    name = "whole"

    def value(self, run: Any, node: Node, a: Any) -> Any:
        nearest = torch.floor(a + 0.5)
        return (nearest == 0).to(nearest) if node.attr[0] == "zero" else nearest

    def balls(self, run: Any, node: Node, a: Any) -> Any:
        if not all(t.is_finite() for t in a.flat):
            run.note(node, [], False, "what is to be rounded is known too roughly")
        near = [math.floor(float(t.mid()) + 0.5) for t in a.flat]
        apart = [s * (t - k) + 0.5 for t, k in zip(a.flat, near, strict=True) for s in (1, -1)]
        why = "which whole number is nearest cannot be decided"
        run.note(node, apart, all(t > 0 for t in apart), why)
        numbers = [float(k == 0) if node.attr[0] == "zero" else float(k) for k in near]
        return BallTensor.of(torch.tensor(numbers, dtype=torch.float64).reshape(a.shape))

    def bounds(self, node: Node, a: Any) -> Any:
        if node.attr[0] == "zero" or not a.finite:
            return Range(0.0, 1.0) if node.attr[0] == "zero" else a
        return Range(math.floor(a.low + 0.5), math.floor(a.high + 0.5))


class _SumNode(NodeOperation):
    name, whole = "sum", True

    def value(self, run: Any, node: Node, a: Any) -> Any:
        return a.sum(-1, keepdim=True)

    def bounds(self, node: Node, a: Any) -> Any:
        return a.times(float(node.args[0].width or 1))


class _MeanNode(_PassedNode):
    name, whole = "mean", False

    def value(self, run: Any, node: Node, a: Any) -> Any:
        return a.mean(-2)


class _AttendNode(NodeOperation):
    name = "attend"

    def value(self, run: Any, node: Node, q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        scores = q @ run.lanes(k).T
        if bias is not None:
            scores = scores + run.lanes(bias)[:, 0]
        return torch.softmax(scores, -1) @ run.lanes(v)

    def bounds(self, node: Node, q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        return v


class _ConcatNode(NodeOperation):
    name, whole = "concat", True

    def value(self, run: Any, node: Node, *parts: Any) -> Any:
        return torch.cat([run.lanes(a) if node.samples else a for a in parts], -1)

    def bounds(self, node: Node, *parts: Any) -> Any:
        return reduce(lambda a, b: a.join(b), parts)

    def clean(self, node: Node, args: list[bool]) -> bool:
        return True


class _ComponentNode(NodeOperation):
    name, whole = "component", True

    def value(self, run: Any, node: Node, a: Any) -> Any:
        return a[..., node.attr : node.attr + 1]

    def bounds(self, node: Node, a: Any) -> Any:
        return a


class _ConstantNode(NodeOperation):
    name = "constant"

    def value(self, run: Any, node: Node) -> Any:
        return torch.full((node.width or 1,), float(node.attr), dtype=torch.float64)

    def bounds(self, node: Node) -> Any:
        return Range(node.attr, node.attr)

    def clean(self, node: Node, args: list[bool]) -> bool:
        return float(node.attr) == 0


class _NumbersNode(NodeOperation):
    name = "numbers"

    def value(self, run: Any, node: Node) -> Any:
        return torch.tensor(node.attr, dtype=torch.float64)

    def bounds(self, node: Node) -> Any:
        return Range(min(node.attr), max(node.attr))

    def clean(self, node: Node, args: list[bool]) -> bool:
        return True
