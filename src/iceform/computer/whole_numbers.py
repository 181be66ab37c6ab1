"""Which values of a graph are whole numbers, told from the graph alone.

Two whole numbers are equal or at least 1 apart, so a comparison of them is decided half-way: ``i <
n`` is a question about n - i - 1/2, which is never 0. Real numbers have no such luck, and equal
ones are a tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from torch import Tensor

from iceform.computer.graph import Block, Graph, Loop, Parameter, settled, whole
from iceform.errors import ProgramError
from iceform.expressions.formulas import trees
from iceform.program import Node


def decide_half_way(block: Block, parameters: Mapping[str, Parameter]) -> frozenset[str]:
    """Move every comparison of whole numbers, in place, to the middle of two of them.

    A read at a place that is no whole number for certain is attention like any other from here on.
    Returns the parameters that these comparisons take for whole, since their defaults are.
    """
    counts = {loop.count for loop in block.loops()}
    known: dict[Node, bool] = {}

    def whole_number(node: Node, args: list[bool]) -> bool:
        if node in counts or (node.op == "parameter" and parameters[node.attr].whole):
            return True
        summed = [known[a] for a in _summed(node)]
        return node.operation.whole(node, summed or args)

    settled(block, whole_number, known)
    todo = _move(block, known)
    before: dict[Node, tuple[Node, ...]] = {
        c.state: (c.start, c.next) for loop in block.loops() for c in loop.carried
    }
    before |= {c.result: (c.state,) for loop in block.loops() for c in loop.carried}
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            made_of = (*node.args, *before.get(node, ()), *_summed(node))
            todo += [a for a in made_of if known.get(a)]  # what is moved was compared: it is there
    return frozenset(n.attr for n in seen if n.op == "parameter")


def check_whole(graph: Graph, values: Mapping[str, Tensor]) -> None:
    """Refuse a parameter that a graph takes for whole, or counts turns with, and that is not."""
    for name in graph.counts:
        whole(float(values[name]))
    for name in sorted(graph.whole - graph.counts):
        if not float(values[name]).is_integer():
            default = graph.parameters[name].default
            raise ProgramError(
                f"{name} is compared with whole numbers, and its default is one; got "
                f"{float(values[name]):g}. Give it the default {default!r}, not {default:g}, to "
                "compare real numbers"
            )


def _summed(node: Node) -> tuple[Node, ...]:
    """What is summed over the samples, where a node is such a sum: n times a mean."""
    if node.op != "mul" or {a.op for a in node.args} != {"mean", "count"}:
        return ()
    return tuple(a.args[0] for a in node.args if a.op == "mean")


def _move(block: Block, known: dict[Node, bool]) -> list[Node]:
    """Returns what is compared, and places that are read at."""
    compared: list[Node] = []
    for item in list(block.items):
        if isinstance(item, Loop):
            compared += _move(item.body, known)
        elif item.op == "step" and known[item.args[0]]:
            (argument,) = item.args
            half = trees.Number(Fraction(1, 2) if item.attr else Fraction(-1, 2))
            tree = trees.Operation("+", (trees.Variable(), half))
            moved = Node("apply", item.args, argument.samples, argument.width, tree, item.place)
            block.items.insert(block.items.index(item), moved)
            object.__setattr__(item, "args", (moved,))  # nobody has seen the graph yet
            compared.append(argument)
        elif item.op == "attend" and item.attr not in (None, "largest"):
            place = _place(item)
            if known[place]:
                compared.append(place)
            else:
                object.__setattr__(item, "attr", None)
    return compared


def _place(node: Node) -> Node:
    """Of a read at a place, the place: what the query's first component is a multiple of."""
    (first, _) = node.args[0].args
    return first.args[0] if first.op == "apply" else first
