"""The trees that formulas are: numbers, the variable and whitelisted operations on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

KINKED = frozenset({"abs", "clip", "max", "min", "relu", "sign", "step"})


@dataclass(frozen=True)
class Number:
    """A rational number, exactly, and the name it was typed by if it has one.

    A number with a name (pi, e) holds the float64 next to what the name stands for.
    """

    value: Fraction
    name: str | None = None
    size = depth = 1
    constant = smooth = True


@dataclass(frozen=True)
class Variable:
    """The one variable."""

    size = depth = 1
    constant = False
    smooth = True


@dataclass(frozen=True)
class Operation:
    """An operator or a function on trees.

    Attributes
    ----------
    name
        One of ``+ - * / ^``, ``neg`` or a function.
    arguments
        What it acts on.
    size, depth
        Number of nodes, and the longest way down.
    constant, smooth
        Whether the variable is absent, and whether nothing in it has a kink or a jump.
    """

    name: str
    arguments: tuple[Node, ...]
    size: int = field(init=False, compare=False, repr=False)
    depth: int = field(init=False, compare=False, repr=False)
    constant: bool = field(init=False, compare=False, repr=False)
    smooth: bool = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        below = self.arguments
        facts = {
            "size": 1 + sum(a.size for a in below),
            "depth": 1 + max(a.depth for a in below),
            "constant": all(a.constant for a in below),
            "smooth": self.name not in KINKED and all(a.smooth for a in below),
            # Kept, since trees are the keys of what has been computed.
            "_hash": hash((self.name, below)),
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Operation], tuple[str, tuple[Node, ...]]]:
        """Made anew when it is unpickled: hashes of text differ from process to process."""
        return Operation, (self.name, self.arguments)


Node = Number | Variable | Operation


def jumps(tree: Node) -> bool:
    """Whether something in a tree jumps: a sign or a step."""
    if not isinstance(tree, Operation):
        return False
    return tree.name in ("sign", "step") or any(map(jumps, tree.arguments))
