"""A node of a program, and what the table of operations says of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.errors import ProgramError

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class SourceLine:
    """A line of the author's file.

    Examples
    --------
    >>> SourceLine("step.py", 3)
    SourceLine(file='step.py', line=3)
    """

    file: str
    line: int


@dataclass(frozen=True)
class Moved:
    """How far an operation f moves when its arguments x are off by at most their radii.

    Attributes
    ----------
    first
        To first order: |J| times the radii, J the derivative of :meth:`NodeOperation.tangent`.
    rest
        A bound of the remainder |f(x - e) - f(x) + J e| for every e within the radii.

    Examples
    --------
    A product of 3 and -2, of which the one is off by 1/4 and the other by 1/2:

    >>> a, b, p, q = torch.tensor([3.0, -2.0, 0.25, 0.5])
    >>> moved = NodeOperation.table["mul"].moved(None, None, a * b, (a, b), (p, q))
    >>> float(moved.first), float(moved.rest)
    (2.0, 0.125)
    """

    first: Tensor
    rest: Tensor | float = 0.0


class NodeOperation:
    """An operation: one class that says all that is known of it.

    Defining a subclass with a ``name`` enters it into ``NodeOperation.table``. What its methods
    are for is in the table at the head of :mod:`iceform.program.operations`; those that a subclass
    leaves out say that nothing is known.

    Examples
    --------
    >>> NodeOperation.table["maximum"].bounds(None, Range(-1.0, 2.0), Range(0.0, 1.0))
    Range(low=0.0, high=2.0)
    """

    table: ClassVar[dict[str, NodeOperation]] = {}
    name: ClassVar[str] = ""
    shown: ClassVar[str] = ""  # what notes call it; its name if empty
    word: ClassVar[str] = "no_instruction"  # of the selector
    exact: ClassVar[bool] = False  # whether float64 has its value without rounding
    keeps_whole: ClassVar[bool] = False  # whether whole numbers make a whole number
    given: ClassVar[bool] = False  # whether a run is handed its value
    carried: ClassVar[bool] = False  # whether a loop carries it from turn to turn
    jumps: ClassVar[bool] = False  # whether it is constant but where it jumps

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            NodeOperation.table[cls.name] = cls()

    # --------------------------------------------------------------------- its shape and value

    def shape(self, attr: Any, *args: Any) -> tuple[bool, int | None]:
        """Whether it is one a sample, and its width, from the arguments': elementwise."""
        widths = [a.width for a in args if a.width is not None]
        for width in widths:
            if width != widths[0]:
                raise ProgramError(f"vectors of {widths[0]} and of {width} components do not fit")
        return any(a.samples for a in args), widths[0] if widths else None

    def value(self, run: Any, node: Node, *args: Any) -> Any:
        """The value on tensors, or on what stands in for them."""
        raise NotImplementedError

    def balls(self, run: Any, node: Node, *args: Any) -> Any:
        """The value on balls, where tensors' way will not do."""
        return self.value(run, node, *args)

    def accurate(self, run: Any, node: Node, *args: Any) -> Any:
        """The value, summed in an order that rounds less where :meth:`value` is told none."""
        return self.value(run, node, *args)

    # ---------------------------------------------------------------------- what it may be

    def bounds(self, node: Node, *args: Any) -> Any:
        """The range, from the arguments' ranges."""
        raise NotImplementedError

    def clean(self, node: Node, args: list[bool]) -> bool:
        """Whether 0 lies beyond the vector, told from where it does in the arguments."""
        return False

    def whole(self, node: Node, args: list[bool]) -> bool:
        """Whether it is a whole number for certain, told from which arguments are."""
        return self.keeps_whole and all(args)

    def critical(self, node: Node, argument: Tensor) -> Tensor | None:
        """How far the argument is from where the operation jumps or is singular; None of others."""
        return None

    # --------------------------------------------------------------------- how it is computed

    def select(self, code: Any, node: Node) -> Any:
        """What it becomes: its ``word`` of :class:`~iceform.computer.select.Selector`."""
        return getattr(code, self.word)(node)

    def terms(self, text: Any, node: Node, args: list[list[Any]]) -> list[Any]:
        """Its components in a text, from those of the arguments: one by one, by :meth:`term`.

        ``text`` is a :class:`~iceform.targets.text.emitting.TextEmitter`, which knows the data.
        """
        each = range(node.width or 1)
        return [self.term(text, node, *(a[k if len(a) > 1 else 0] for a in args)) for k in each]

    def term(self, text: Any, node: Node, *args: Any) -> Any:
        """One component in a text, from the arguments'."""
        return text.unknown(node)

    # -------------------------------------------------------------------- what a run is off by

    def at(self, node: Node, *args: Tensor) -> Node:
        """The node with what is known of it at these arguments, which what follows is shown."""
        return node

    def rounding(self, node: Node, out: Tensor, *args: Tensor) -> Tensor | float:
        """Bound of what :meth:`accurate` is off by in float64; where nothing is said, infinite."""
        return 0.0 if self.exact else math.inf

    def moved(self, run: Any, node: Node, out: Tensor, args: Tensors, radii: Tensors) -> Moved:
        """First order and remainder for arguments within ``radii``; infinite where none is said."""
        off = any(bool(radius.any()) for radius in radii)
        return Moved(torch.full_like(out, math.inf if off else 0.0))

    def tangent(self, run: Any, node: Node, *args: Tensor) -> Callable[..., Tensor]:
        """A function whose derivative at the arguments is J: pull-backs are torch's vjp of it."""
        return lambda *t: self.value(run, node, *t)

    def expand(self, run: Any, node: Node, apply: Callable[..., Any], *args: Any) -> Any:
        """The operation as others: ``apply(name, *args, attr=...)`` is one; None of a primitive."""
        return None

    @property
    def composite(self) -> bool:
        """Whether others are all that is said of it: the language writes them in its place."""
        return type(self).value is NodeOperation.value


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of a program, on the results of others.

    Attributes
    ----------
    op
        The operation's name, in ``NodeOperation.table``.
    args
        The nodes that it reads.
    samples
        Whether it has a value for every sample; else one for all.
    width
        The components of a vector; None of a number.
    attr
        What else the operation is told: a number, a function, axes.
    place, name
        The author's line, and what notes call it.

    Examples
    --------
    >>> x = Node("data", (), True, 2, "x")
    >>> total = Node("sum", (x,), True, None)
    >>> total.operation.bounds(total, Range(0.0, 1.0))
    Range(low=0.0, high=2.0000000000000004)
    """

    op: str
    args: tuple[Node, ...]
    samples: bool  # lives in every sample's lane, not in lane 0
    width: int | None  # None: a scalar
    attr: Any = None
    place: SourceLine | None = None
    name: str = ""

    @property
    def operation(self) -> NodeOperation:
        """Its row of the table."""
        return NodeOperation.table[self.op]

    @property
    def shown(self) -> str:
        """What a note calls it."""
        return self.name or self.operation.shown or self.op

    def __repr__(self) -> str:
        return f"<{self.op} in line {self.place.line if self.place else '?'}>"
