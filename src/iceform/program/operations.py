r"""The table of operations: all that is known of an operation, in one place.

A row is a class; defining it enters it into the table, also from outside the package. Passes over a
program look a row up by its node's ``op`` and call one of these:

===========  ====================================================================================
shape        whether it is one a sample, and its width, from the arguments'
value        the result on tensors (:class:`~iceform.computer.graph.Exact`,
             :class:`~iceform.program.tape.Tape`)
balls        the result in ball arithmetic, where the way of tensors does not work
             (:class:`~iceform.computer.proofs.Balls`)
bounds       the range of the result, from the arguments' (:class:`~iceform.computer.ranges.Ranges`)
rounding     a bound of what evaluating it in float64 rounds (the tape)
moved        how far the result moves when arguments are off: first order and remainder (the tape)
tangent      a function with the derivative of that first order, where the value's is another
expand       for an operation made of others: these, step by step (the tape, the language)
select       the instructions that it becomes (:class:`~iceform.computer.select.Selector`)
word         the one word of the selector for that, where one is enough
terms        its components in a text (:class:`~iceform.targets.text.emitting.TextEmitter`)
whole        whether the result is a whole number, given which arguments are
clean        whether components beyond a vector's width are 0, given of which arguments they are
critical     how near an argument is to a jump or a singularity
exact        whether float64 has the result without rounding
given        whether a run is handed the value
carried      whether a loop carries the value from turn to turn
jumps        whether the result is constant except where it jumps
shown        what notes call it
===========  ====================================================================================

A row without ``rounding`` or ``moved`` has an infinite bound on the tape. ``matmul``, ``affine``,
``softmax`` and ``move`` are steps of given networks, which find ranges in their own way: they have
no ``bounds``, and the language has no word for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval
from iceform.arithmetic.balls import ball_arithmetic
from iceform.arithmetic.units import EXP_UNDERFLOW, SAFE_MINIMUM, UNIT
from iceform.expressions import ScalarFunction
from iceform.expressions.ball_tensors import BallTensor
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.enclosing import jets
from iceform.expressions.formulas.functions import ball_function, evaluate, exact_value
from iceform.expressions.formulas.polynomials import line
from iceform.program.node import Moved, Node, NodeOperation, Tensors
from iceform.program.range import Range


def _but_for_masks(size: Tensor, *args: Tensor) -> Tensor:
    """A size that rounding is relative to; where an argument is infinite, as a mask is, none."""
    masked = reduce(torch.logical_or, (a.isinf() for a in args))
    return torch.where(masked & size.isinf(), 0.0, size)


def _times(size: Tensor, radius: Tensor) -> Tensor:
    """A slope times a radius: 0 where the radius is, even where the slope is infinite."""
    return torch.where(radius == 0, 0.0, size * radius)


# ---------------------------------------------------------------------------------------------
# what a program begins with
# ---------------------------------------------------------------------------------------------


class _GivenNode(NodeOperation):
    """A datum: "x", the features of a sample, or "y", its target (``attr``)."""

    name, given, exact = "data", True, True

    def clean(self, node: Node, args: list[bool]) -> bool:
        return True

    def select(self, code: Any, node: Node) -> Any:
        return code.given(node, node.attr)

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        found: list[Any] = text.columns(node)
        return found


class _ParameterNode(_GivenNode):
    """A parameter, by its name (``attr``)."""

    name = "parameter"

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        found: list[Any] = text.parameter(node)
        return found


class _CountNode(NodeOperation):
    """How many samples there are."""

    name, exact, keeps_whole = "count", True, True

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.tensor((run.samples,), dtype=torch.float64)

    def select(self, code: Any, node: Node) -> Any:
        return code.given(node, "samples")

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.constant(text.samples)


class _IndexNode(_CountNode):
    """Which sample this is, from 0 on."""

    name = "index"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.arange(run.samples, dtype=torch.float64)[:, None]

    def select(self, code: Any, node: Node) -> Any:
        return code.given(node, "index")

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.index()


class _StateNode(NodeOperation):
    """What a loop carries, at the start of a turn; ``attr`` is its name."""

    name, carried = "state", True


class _ResultNode(_StateNode):
    """The same after the loop."""

    name = "result"


# ---------------------------------------------------------------------------------------------
# moves: numbers are the same, elsewhere
# ---------------------------------------------------------------------------------------------


class _PassedNode(NodeOperation):
    """The argument, as it is."""

    keeps_whole, exact = True, True

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return args[0]

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0]

    def clean(self, node: Node, args: list[bool]) -> bool:
        return all(args)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        return Moved(self.value(run, node, *radii))

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return args[0]


class _StoredNode(_PassedNode):
    name, word = "stored", "held"


class _BoundedNode(_PassedNode):
    name, word = "bounded", "bounded"

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0].meet(Range(*node.attr))


class _SpreadNode(_PassedNode):
    name, word = "spread", "spread"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        width = node.width or 1
        return args[0].expand((run.samples, width) if node.samples else (width,))


class _ConcatNode(_PassedNode):
    name, word = "concat", "side_by_side"

    def shape(self, attr: Any, *args: Any) -> tuple[bool, int | None]:
        return any(a.samples for a in args), sum(a.width or 1 for a in args)

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.cat([run.lanes(a) if node.samples else a for a in args], -1)

    def bounds(self, node: Node, *args: Any) -> Any:
        return reduce(lambda a, b: a.join(b), args)

    def clean(self, node: Node, args: list[bool]) -> bool:
        return True

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        return [a for parts in args for a in parts]


class _ComponentNode(_PassedNode):
    name, word = "component", "component"

    def shape(self, attr: Any, *args: Any) -> tuple[bool, int | None]:
        return args[0].samples, None

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return args[0][..., node.attr : node.attr + 1]

    def clean(self, node: Node, args: list[bool]) -> bool:
        return False

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        return [args[0][node.attr]]


@dataclass(frozen=True)
class Moving:
    """The attribute of "move": a function that puts numbers elsewhere, and computes nothing.

    Attributes
    ----------
    function
        What it does to the arguments: a transposition, a choice of rows, padding.
    on_radii
        What it does to their errors, where it puts numbers in that are none of theirs: these are
        0 here. None for the same function.

    Examples
    --------
    >>> tape = Tape()
    >>> x = tape.leaf(torch.tensor([[1.0, 2.0]]), error=0.5)
    >>> tape.bound(tape.apply("move", x, attr=Moving(lambda t: t.mT)))
    tensor([[0.5000],
            [0.5000]], dtype=torch.float64)
    """

    function: Callable[..., Tensor]
    on_radii: Callable[..., Tensor] | None = None


class _MoveNode(_PassedNode):
    name = "move"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return node.attr.function(*args)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        return Moved((node.attr.on_radii or node.attr.function)(*radii))


# ---------------------------------------------------------------------------------------------
# numbers, sums and products
# ---------------------------------------------------------------------------------------------


class _ConstantNode(NodeOperation):
    name, exact, word = "constant", True, "number"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.full((node.width or 1,), float(node.attr), dtype=torch.float64)

    def bounds(self, node: Node, *args: Any) -> Any:
        return Range(node.attr, node.attr)

    def clean(self, node: Node, args: list[bool]) -> bool:
        return float(node.attr) == 0

    def whole(self, node: Node, args: list[bool]) -> bool:
        return float(node.attr).is_integer()

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.constant(float(node.attr))


class _NumbersNode(NodeOperation):
    name, exact, word = "numbers", True, "numbers"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.tensor(node.attr, dtype=torch.float64)

    def bounds(self, node: Node, *args: Any) -> Any:
        return Range(min(node.attr), max(node.attr))

    def clean(self, node: Node, args: list[bool]) -> bool:
        return True

    def whole(self, node: Node, args: list[bool]) -> bool:
        return all(float(v).is_integer() for v in node.attr)

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        return [text.terms.constant(v) for v in node.attr]


class _AddNode(NodeOperation):
    """a + b; with an attribute, that times b is added."""

    name, shown, keeps_whole, word = "add", "sum", True, "sum"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        a, b = args
        return torch.add(a, b) if node.attr is None else a + node.attr * b

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0] + args[1]

    def clean(self, node: Node, args: list[bool]) -> bool:
        return all(args)

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        factor = 1.0 if node.attr is None else abs(node.attr)
        a, b = args[0].abs(), factor * args[1].abs()
        kept = (a == 0) | (b == 0) if factor == 1 else torch.zeros((), dtype=torch.bool)
        return torch.where(kept, 0.0, 2 * UNIT * _but_for_masks(a + b, a, b))

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        return Moved(radii[0] + (1.0 if node.attr is None else abs(node.attr)) * radii[1])

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.add(*args)


class _MulNode(NodeOperation):
    name, shown, keeps_whole, word = "mul", "product", True, "product"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.mul(*args)

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0] * args[1]

    def clean(self, node: Node, args: list[bool]) -> bool:
        return any(args)

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        return UNIT * _but_for_masks(out.abs(), *args)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        (a, b), (p, q) = args, radii
        return Moved(_times(a.abs(), q) + _times(b.abs(), p), p * q)

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.product(*args)


class _MatmulNode(NodeOperation):
    """a b, matrices."""

    name = "matmul"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.matmul(*args)

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        return 2 * (args[0].shape[-1] + 2) * UNIT * (args[0].abs() @ args[1].abs())

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        (a, b), (p, q) = args, radii
        return Moved(a.abs() @ q + p @ b.abs(), p @ q)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The attribute of "affine": W x + b on the last axis.

    Attributes
    ----------
    weight, bias
        W of shape (k, m), and b of shape (k,).
    unit
        What each of their numbers is off by, relative to it.

    Examples
    --------
    >>> tape = Tape()
    >>> x = tape.leaf(torch.tensor([1.0, 2.0]))
    >>> weight, bias = torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    >>> tape.value(tape.apply("affine", x, attr=AffineMap(weight, bias)))
    tensor([2., 3.], dtype=torch.float64)
    """

    weight: Tensor
    bias: Tensor
    unit: float = 0.0


class _AffineNode(NodeOperation):
    name = "affine"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.nn.functional.linear(args[0], node.attr.weight, node.attr.bias)

    def accurate(self, run: Any, node: Node, *args: Any) -> Any:
        return _in_pairs(args[0], node.attr.weight) + node.attr.bias

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        weight, bias = node.attr.weight.abs(), node.attr.bias.abs()
        count = weight.shape[-1] + 3
        depth = min(count, tuning.TAPE_LEAF + count.bit_length() + 3)
        terms = torch.nn.functional.linear(args[0].abs(), weight, bias)
        found: Tensor = 2 * (depth * UNIT + count * node.attr.unit) * terms
        return found

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        return Moved(torch.nn.functional.linear(radii[0], node.attr.weight.abs()))


def _in_pairs(x: Tensor, weight: Tensor) -> Tensor:
    """W x in halves, down to a few terms."""
    size = weight.shape[-1]
    if size <= tuning.TAPE_LEAF:
        return torch.nn.functional.linear(x, weight)
    half = size // 2
    return _in_pairs(x[..., :half], weight[:, :half]) + _in_pairs(x[..., half:], weight[:, half:])


class _SumNode(NodeOperation):
    """Over the components; with an attribute, over axes that are kept or not: (axes, kept)."""

    name, keeps_whole, word = "sum", True, "total"
    axes: tuple[tuple[int, ...], bool] = ((-1,), True)

    def _count(self, node: Node, a: Any) -> float:
        return 1.0

    def shape(self, attr: Any, *args: Any) -> tuple[bool, int | None]:
        return args[0].samples, None

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        axes, keep = node.attr or self.axes
        return args[0].sum(axes, keepdim=keep) / self._count(node, args[0])

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0].times(float(node.args[0].width or 1))

    def accurate(self, run: Any, node: Node, *args: Any) -> Any:
        axes, keep = node.attr or self.axes
        total = args[0]
        for axis in axes:
            while (size := total.shape[axis]) > 1:
                half = size // 2
                pairs = total.narrow(axis, 0, half) + total.narrow(axis, half, half)
                odd = [total.narrow(axis, 2 * half, 1)] if size % 2 else []
                total = torch.cat([pairs, *odd], axis)
        total = total / self._count(node, args[0])
        return total if keep else total.sum(axes)  # of one term each

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        axes, _ = node.attr or self.axes
        levels = sum((args[0].shape[axis]).bit_length() for axis in axes)
        size: Tensor = self.value(None, node, args[0].abs())
        return 2 * (levels + 2) * UNIT * size

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        return Moved(self.value(run, node, *radii))

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        return [reduce(text.terms.add, args[0])]


class _MeanNode(_SumNode):
    """Over the samples; with an attribute, over those axes."""

    name, keeps_whole, word = "mean", False, "mean"
    axes = (-2,), False

    def shape(self, attr: Any, *args: Any) -> tuple[bool, int | None]:
        return False, args[0].width

    def _count(self, node: Node, a: Any) -> float:
        axes, _ = node.attr or self.axes
        return float(math.prod(a.shape[axis] for axis in axes))

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0]

    def clean(self, node: Node, args: list[bool]) -> bool:
        return all(args)

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        found: list[Any] = text.mean(args[0])
        return found


# ---------------------------------------------------------------------------------------------
# scalar functions, and what jumps
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _LocalFunction:
    """A scalar function where it is evaluated: an enclosure of its values, and a slope."""

    call: Any  # a tree, or a ScalarFunction
    low: Tensor
    high: Tensor
    slope: Tensor


class _ApplyNode(NodeOperation):
    """A scalar function, a tree or a :class:`~iceform.expressions.ScalarFunction`.

    On the tape its slope is a number a place, the middle of an enclosure, and what it is off by is
    part of the remainder: f(x - e) - f(x) = -f'(s) e with s between.
    """

    name, shown, word = "apply", "function", "function"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        f = node.attr
        return f.call(args[0]) if isinstance(f, ScalarFunction) else evaluate(f, args[0])

    def balls(self, run: Any, node: Node, *args: Any) -> Any:
        return ball_function(node.attr)(args[0])

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[0].of(node.attr)

    def clean(self, node: Node, args: list[bool]) -> bool:
        return args[0] and float(evaluate(node.attr, torch.zeros(1, dtype=torch.float64))) == 0

    def at(self, node: Node, *args: Tensor) -> Node:
        (low, high), (least, most) = _between(node.attr, args[0], args[0])
        slope = (0.5 * least + 0.5 * most).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return replace(node, attr=_LocalFunction(node.attr, low, high, slope))

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        return torch.maximum(out - node.attr.low, node.attr.high - out)

    def tangent(self, run: Any, node: Node, *args: Tensor) -> Callable[..., Tensor]:
        return partial(torch.mul, node.attr.slope)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        (z,), (radius,), slope = args, radii, node.attr.slope
        ends = ((z - radius, -math.inf), (z + radius, math.inf))
        box = (torch.nextafter(end, torch.full_like(end, far)) for end, far in ends)
        _, (least, most) = _between(node.attr.call, *box)
        apart = torch.maximum(slope - least, most - slope)
        return Moved(slope.abs() * radius, _times(apart, radius))

    def whole(self, node: Node, args: list[bool]) -> bool:
        straight = line(node.attr)
        if straight is not None and straight[0] == 0:  # 0 * y + 1, say
            return straight[1].is_integer()
        return args[0] and _keeps_whole(node.attr)

    def critical(self, node: Node, argument: Tensor) -> Tensor | None:
        return argument if _singular(node.attr) else None

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.formula(node.attr, args[0])


# Functions that have whole values at whole numbers, and that an argument of 0 may be too near for.
_WHOLE_VALUES = ("+", "-", "*", "neg", "abs", "max", "min", "relu", "sign", "step", "clip")
_SINGULAR = ("/", "^", "log", "sqrt")


def _keeps_whole(tree: trees.Node) -> bool:
    """Whether a function of whole numbers has whole values, told from how it is written."""
    if isinstance(tree, trees.Variable):
        return True
    if isinstance(tree, trees.Number):
        return tree.name is None and tree.value.denominator == 1
    if tree.name == "^":
        base, by = tree.arguments
        return _keeps_whole(base) and isinstance(by, trees.Number) and by.value in range(1, 9)
    return tree.name in _WHOLE_VALUES and all(map(_keeps_whole, tree.arguments))


def _singular(tree: trees.Node) -> bool:
    """Whether a function is not smooth, or infinite, at 0 itself."""
    if not isinstance(tree, trees.Operation) or tree.name not in _SINGULAR:
        return False
    inner = tree.arguments[1 if tree.name == "/" else 0]
    power = exact_value(tree.arguments[1]) if tree.name == "^" else None
    smooth = power is not None and power.denominator == 1 and power >= 0
    return isinstance(inner, trees.Variable) and not smooth


def _between(f: Any, low: Tensor, high: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Enclosures of the values, and of the slopes, between two places."""
    cells = Interval(low.flatten().cpu(), high.flatten().cpu())
    jet = f.jets(cells, 1) if isinstance(f, ScalarFunction) else jets(f, cells, 1)
    found = (jet[0], jet[1])
    return [tuple(e.to(low.device).reshape(low.shape) for e in (k.low, k.high)) for k in found]  # type: ignore[misc]


class _MaximumNode(_PassedNode):
    """With d = a - b > 0, max(a - e, b - f) = a - e + max(0, e - f - d)."""

    name = "maximum"
    sign = 1.0

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.maximum(*args)

    def bounds(self, node: Node, *args: Any) -> Any:
        return Range(max(a.low for a in args), max(a.high for a in args))

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        ahead, (p, q) = self.sign * (args[0] - args[1]), radii
        first = torch.where(ahead > 0, p, torch.where(ahead < 0, q, 0.5 * (p + q)))
        rest = (p + q - ahead.abs()).clamp(min=0.0).nan_to_num(nan=math.inf)
        return Moved(first, rest)

    def select(self, code: Any, node: Node) -> Any:
        return code.extreme(node, self.sign)

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return text.terms.call("max" if self.sign > 0 else "min", *args)


class _MinimumNode(_MaximumNode):
    name, sign = "minimum", -1.0

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.minimum(*args)

    def bounds(self, node: Node, *args: Any) -> Any:
        return Range(min(a.low for a in args), min(a.high for a in args))


class _JumpNode(NodeOperation):
    """A whole number, constant between its jumps."""

    jumps = True

    def whole(self, node: Node, args: list[bool]) -> bool:
        return True

    def tangent(self, run: Any, node: Node, *args: Tensor) -> Callable[..., Tensor]:
        return lambda t: 0.0 * t


class _StepNode(_JumpNode):
    name, exact, word = "step", True, "comparison"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        (a,) = args
        return (a >= 0 if node.attr else a > 0).to(a)

    def balls(self, run: Any, node: Node, *args: Any) -> Any:
        (a,) = args
        decided = all(t == 0 or not t.contains(0) for t in a.flat)
        run.note(node, list(a.flat), decided, "a comparison is too close to a tie to be decided")
        arb, at_tie = ball_arithmetic().arb, 1 if node.attr else 0
        return np.frompyfunc(lambda t: arb(1 if t > 0 else at_tie if t == 0 else 0), 1, 1)(a)

    def bounds(self, node: Node, *args: Any) -> Any:
        return Range(0.0, 1.0)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        near = (args[0].abs() <= radii[0]) & (radii[0] > 0)
        return Moved(torch.zeros_like(out), near.to(out))

    def critical(self, node: Node, argument: Tensor) -> Tensor | None:
        return argument

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        if not node.attr:
            return text.terms.call("step", *args)
        below = text.terms.call("step", text.terms.affine(args[0], Fraction(-1)))
        return text.terms.affine(below, Fraction(-1), 1)


class _WholeNode(_JumpNode):
    name, word = "whole", "nearest"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        nearest = torch.floor(args[0] + 0.5)
        return (nearest == 0).to(nearest) if node.attr[0] == "zero" else nearest

    def balls(self, run: Any, node: Node, *args: Any) -> Any:
        (a,) = args
        if not all(t.is_finite() for t in a.flat):
            run.note(node, [], False, "what is to be rounded is known too roughly")
        near = [math.floor(float(t.mid()) + 0.5) for t in a.flat]
        apart = [s * (t - k) + 0.5 for t, k in zip(a.flat, near, strict=True) for s in (1, -1)]
        why = "which whole number is nearest cannot be decided"
        run.note(node, apart, all(t > 0 for t in apart), why)
        numbers = [float(k == 0) if node.attr[0] == "zero" else float(k) for k in near]
        return BallTensor.of(torch.tensor(numbers, dtype=torch.float64).reshape(a.shape))

    def bounds(self, node: Node, *args: Any) -> Any:
        (a,) = args
        if node.attr[0] == "zero" or not a.finite:
            return Range(0.0, 1.0) if node.attr[0] == "zero" else a
        return Range(math.floor(a.low + 0.5), math.floor(a.high + 0.5))

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        return self._jumps(args[0], 2 * UNIT * args[0].abs().clamp(min=1.0)).to(out)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        most = 1.0 if node.attr[0] == "zero" else 1.0 + radii[0]
        jumps = self._jumps(args[0], radii[0]) & (radii[0] > 0)
        return Moved(torch.zeros_like(out), torch.where(jumps, most, 0.0))

    def _jumps(self, a: Tensor, radius: Tensor) -> Tensor:
        """Whether a half lies within the radius, or may."""
        away = (a - torch.floor(a) - 0.5).abs()
        return ~(away > (1 + 2 * UNIT) * radius + UNIT)

    def critical(self, node: Node, argument: Tensor) -> Tensor | None:
        return (argument - argument.floor()) - 0.5

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        return (text.terms.is_zero if node.attr[0] == "zero" else text.terms.nearest)(*args)


# ---------------------------------------------------------------------------------------------
# attention
# ---------------------------------------------------------------------------------------------


class _SoftmaxNode(NodeOperation):
    r"""Over the last axis.

    Along a segment l - t e the weights have :math:`p_i'' = p_i ((e_i - \bar e)^2 - \mathrm{Var})`,
    mean and variance by p, and with |e| <= m they grow by at most e^{2m}. Logits so far
    below the largest that e^x underflows weigh nothing.
    """

    name = "softmax"

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        return torch.softmax(args[0], -1)

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        # exp within 2 units, its argument within a unit of the gap; then a sum and a quotient.
        (x,) = args
        gaps = (x.amax(-1, keepdim=True) - x).clamp(max=EXP_UNDERFLOW)
        worst = (out * gaps).sum(-1, keepdim=True)
        return 2 * UNIT * out * (gaps + worst + x.shape[-1] + 8)

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        (logits,), (radius,) = args, radii
        least = (logits - radius).amax(-1, keepdim=True)
        alive = logits + radius >= least - EXP_UNDERFLOW
        radius = torch.where(alive, radius, 0.0)
        grown = (2 * radius.amax(-1, keepdim=True)).exp()
        mean = (out * radius).sum(-1, keepdim=True)
        square = (out * radius**2).sum(-1, keepdim=True)
        bent = torch.maximum((radius + mean * grown) ** 2, square * grown)
        return Moved(out * (radius + mean), 0.5 * grown * out * bent + SAFE_MINIMUM)


class _AttendNode(NodeOperation):
    """A softmax average over the samples; with an attribute, what it is so near to.

    A number: the value at the whole place that the query asks for, whose logit is so far above all
    others (:func:`iceform.at`). "largest": the largest value (:func:`iceform.max`).
    """

    name, word = "attend", "attended"

    def shape(self, attr: Any, *args: Any) -> tuple[bool, int | None]:
        return args[0].samples, args[2].width

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        q, k, v, *bias = args
        if node.attr is not None:
            return self._exactly(run, node, q, run.lanes(v))
        scores = q @ run.lanes(k).T
        if bias:
            scores = scores + run.lanes(bias[0])[:, 0]
        return torch.softmax(scores, -1) @ run.lanes(v)

    def _exactly(self, run: Any, node: Node, query: Any, values: Any) -> Any:
        """What is read at places, or the largest value."""
        if node.attr == "largest":
            return reduce(torch.maximum, values.unbind(0))
        place = query[..., :1] / (2 * node.attr**2)
        near = [float(p) for p in place.flatten()]
        rows = [math.floor(p + 0.5) if math.isfinite(p) else 0 for p in near]
        found = values[[min(max(row, 0), len(values) - 1) for row in rows]]
        return (found if node.samples else found[0]) + 0 * place

    def whole(self, node: Node, args: list[bool]) -> bool:
        return node.attr is not None and args[0] and args[2]

    def bounds(self, node: Node, *args: Any) -> Any:
        return args[2]

    def expand(self, run: Any, node: Node, apply: Callable[..., Any], *args: Any) -> Any:
        q, k, v, *bias = args
        lanes = Moving(run.lanes)
        row = Moving(lambda b: run.lanes(b)[:, 0])
        return attention(
            apply, q, apply("move", k, attr=lanes), apply("move", v, attr=lanes),
            *(apply("move", b, attr=row) for b in bias),
        )  # fmt: skip

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        bias = args[3][0] if len(args) > 3 else None
        found: list[Any] = text.terms.attended(*args[:3], bias, node.samples)
        return found


def attention(apply: Callable[..., Any], q: Any, k: Any, v: Any, *biases: Any) -> Any:
    """softmax(q k' + b) v, by the operations that it is made of.

    Parameters
    ----------
    apply
        ``apply(name, *args, attr=...)`` makes one operation, as :meth:`Tape.apply` does.
    q, k, v
        Queries (n, d), keys (m, d) and values (m, k), in the form that ``apply`` takes.
    biases
        What is added to the logits (n, m).

    Examples
    --------
    >>> tape = Tape()
    >>> one = tape.leaf(torch.tensor([[1.0]]))
    >>> keys, values = tape.leaf(torch.tensor([[0.0], [0.0]])), tape.leaf(torch.eye(2))
    >>> tape.value(attention(tape.apply, one, keys, values))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    logits = apply("matmul", q, apply("move", k, attr=Moving(_turned)))
    for bias in biases:
        logits = apply("add", logits, bias)
    return apply("matmul", apply("softmax", logits), v)


def _turned(x: Tensor) -> Tensor:
    return x.mT
