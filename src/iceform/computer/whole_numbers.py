"""Which values of a graph are whole numbers, told from the graph alone.

Two whole numbers are equal or at least 1 apart, so a comparison of them is decided half-way: ``i <
n`` is a question about n - i - 1/2, which is never 0. Real numbers have no such luck, and equal
ones are a tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from torch import Tensor

from iceform.computer.exact import whole
from iceform.computer.graph import Block, Graph, Loop, Parameter
from iceform.errors import ProgramError
from iceform.expressions.formulas import trees
from iceform.expressions.formulas.polynomials import line
from iceform.program import Node, NodeOperation

_FUNCTIONS = frozenset({"+", "-", "*", "neg", "abs", "max", "min", "relu", "sign", "step", "clip"})


def decide_half_way(block: Block, parameters: Mapping[str, Parameter]) -> frozenset[str]:
    """Move every comparison of whole numbers, in place, to the middle of two of them.

    A read at a place that is no whole number for certain is attention like any other from here on.
    Returns the parameters that these comparisons take for whole, since their defaults are.
    """
    counts = {loop.count for loop in block.loops()}
    known = {node: True for node in counts if node is not None}
    known |= {n: True for n in block.walk() if n.op == "parameter" and parameters[n.attr].whole}
    _note(block, known)
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


def _note(block: Block, known: dict[Node, bool]) -> None:
    for item in block.items:
        if isinstance(item, Loop):
            _note_loop(item, known)
        else:
            known[item] = known.get(item, False) or _whole(item, known)


def _note_loop(loop: Loop, known: dict[Node, bool]) -> None:
    """States are whole that begin so and that every turn keeps so."""
    for c in loop.carried:
        known[c.state] = known[c.start]
    while True:
        inside = dict(known)
        _note(loop.body, inside)
        spoilt = [c for c in loop.carried if inside[c.state] and not inside[c.next]]
        if not spoilt:
            break
        for c in spoilt:
            known[c.state] = False
    known |= inside
    for c in loop.carried:
        known[c.result] = known[c.state]


def _whole(node: Node, known: dict[Node, bool]) -> bool:
    if node.op in ("count", "index", "step", "whole"):
        return True
    if node.op in ("constant", "numbers"):
        numbers = node.attr if node.op == "numbers" else (node.attr,)
        return all(float(v).is_integer() for v in numbers)
    if node.op == "apply":
        flat = line(node.attr)
        if flat is not None and flat[0] == 0:  # 0 * y + 1, say
            return flat[1].is_integer()
        return known[node.args[0]] and _keeps(node.attr)
    row = NodeOperation.table.get(node.op)
    return row is not None and row.whole and all(known[a] for a in _summed(node) or node.args)


def _summed(node: Node) -> tuple[Node, ...]:
    """What is summed over the samples, where a node is such a sum: n times a mean."""
    if node.op != "mul" or {a.op for a in node.args} != {"mean", "count"}:
        return ()
    return tuple(a.args[0] for a in node.args if a.op == "mean")


def _keeps(tree: trees.Node) -> bool:
    """Whether a function of whole numbers has whole values, told from how it is written."""
    if isinstance(tree, trees.Variable):
        return True
    if isinstance(tree, trees.Number):
        return tree.name is None and tree.value.denominator == 1
    if tree.name == "^":
        base, exponent = tree.arguments
        return _keeps(base) and isinstance(exponent, trees.Number) and exponent.value in range(1, 9)
    return tree.name in _FUNCTIONS and all(map(_keeps, tree.arguments))


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
        elif item.op == "attend" and item.attr is not None:
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
