"""Expressions of one variable: numbers, the variable, and operations on them.

Formulas that are typed and torch functions that are followed are such trees. What an operation is
stands in one table (:mod:`iceform.expressions.formulas.table`). Parts of a tree may be shared, and
a torch function may be thousands of operations deep, so trees are walked part by part
(:func:`fold`), each part once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

V = TypeVar("V")


@dataclass(frozen=True)
class Number:
    """A rational number, exactly, and the name it was typed by if it has one.

    A number with a name (pi, e) holds the float64 next to what the name stands for.
    """

    value: Fraction
    name: str | None = None
    size = depth = 1
    constant = True
    arguments = ()


@dataclass(frozen=True)
class Variable:
    """The one variable."""

    size = depth = 1
    constant = False
    arguments = ()


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator or a function on trees.

    Attributes
    ----------
    name
        One of ``+ - * / ^``, ``neg``, a comparison or a function: a row of the table.
    arguments
        What it acts on.
    size, depth
        Number of nodes, and the longest way down.
    constant
        Whether the variable is absent.
    """

    name: str
    arguments: tuple[Node, ...]
    size: int = field(init=False, repr=False)
    depth: int = field(init=False, repr=False)
    constant: bool = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        below = self.arguments
        facts = {
            "size": 1 + sum(a.size for a in below),
            "depth": 1 + max(a.depth for a in below),
            "constant": all(a.constant for a in below),
            # Kept, since trees are the keys of what has been computed.
            "_hash": hash((self.name, below)),
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Operation) or self._hash != other._hash:
            return self is other
        return self.name == other.name and self.arguments == other.arguments

    def __reduce__(self) -> tuple[type[Operation], tuple[str, tuple[Node, ...]]]:
        """Made anew when it is unpickled: hashes of text differ from process to process."""
        return Operation, (self.name, self.arguments)


Node = Number | Variable | Operation


@lru_cache(maxsize=1024)
def parts(tree: Node) -> tuple[Node, ...]:
    """Every part of a tree once, each after what it acts on; the tree itself is the last."""
    order: dict[Node, None] = {}
    todo = [tree]
    while todo:
        below = [a for a in todo[-1].arguments if a not in order]
        if below and todo[-1] not in order:
            todo += reversed(below)
        else:
            order[todo.pop()] = None
    return tuple(order)


def fold(tree: Node, compute: Callable[[Node, list[V]], V]) -> V:
    """What ``compute`` makes of a tree, given what it made of the tree's arguments.

    Example
    -------
    >>> from fractions import Fraction
    >>> sum_of = Operation("+", (Variable(), Number(Fraction(2))))
    >>> fold(sum_of, lambda node, below: 3 if node == Variable() else sum(below, 0))
    3
    """
    known: dict[Node, V] = {}
    for node in parts(tree):
        known[node] = compute(node, [known[a] for a in node.arguments])
    return known[tree]
