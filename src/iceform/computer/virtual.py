r"""Instructions before registers are assigned: what :mod:`~iceform.computer.fuse` writes.

A :class:`Register` is a variable that is not yet a place in memory. An instruction adds up reads of
registers to a and b and writes F(a + b) - G(a - b); F and G are curves: trees of formulas, steps,
or None for zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from iceform.computer.graph import Loop, Place
from iceform.computer.instructions import Write
from iceform.computer.ranges import Range
from iceform.functions.formulas import trees

__all__ = ["Code", "Copy", "Curve", "Read", "Register", "Step", "VirtualInstruction", "VirtualLoop"]


@dataclass(eq=False)
class Register:
    """A variable to be.

    Attributes
    ----------
    name
        For people.
    samples, width
        As of a node.
    range
        Of the components that it holds.
    clean
        Whether the components beyond its width are zero.
    writes
        What it holds before the first cycle; empty where an instruction writes it first.
    """

    name: str
    samples: bool
    width: int | None
    range: Range
    clean: bool = False
    writes: tuple[Write, ...] = ()
    scale: float = 1.0  # the value is this times what is held; a power of two

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Read:
    """One read: "at" (this lane's or lane 0's), "rowsum", "mean" or "like"."""

    how: str
    register: Register

    @property
    def range(self) -> Range:
        """Of what is read."""
        if self.how == "rowsum":
            return self.register.range.times(float(self.register.width or 1))
        return self.register.range

    @property
    def clean(self) -> bool:
        """Whether it reads zero beyond the width of a vector."""
        return self.how in ("at", "mean") and self.register.clean

    def __str__(self) -> str:
        return f"{self.how}[{self.register.name}]"


@dataclass(frozen=True)
class Step:
    r"""The curve of a comparison: ``offset + height tanh(sharpness (z - at))``.

    It is two table entries, with keys +-sharpness and values offset +- height, and so exact for
    itself; it stands for the jump at ``at``. ``gap`` is how near to it no argument may come,
    ``off`` what rounding offset and height has changed.
    """

    at: float
    sharpness: float
    gap: float
    offset: float
    height: float
    off: float = 0.0

    def beside(self) -> float:
        """What it is off by outside the gap."""
        return abs(self.height) * 2.0 * math.exp(-2.0 * self.sharpness * self.gap)


Curve = trees.Node | Step


@dataclass(eq=False)
class VirtualInstruction:
    """``dst <- F(a + b) - G(a - b)``; ``gains`` bound |d dst / d a| and |d dst / d b|."""

    dst: Register
    a: tuple[Read, ...]
    b: tuple[Read, ...]
    f: Curve | None
    g: Curve | None
    gains: tuple[float, float]
    note: str = ""
    place: Place | None = None
    narrowed: Range | None = None  # of the one argument, where more is known than the reads say
    copy: bool = False
    folded: float = 0.0  # what rounding the coefficients adds to the result, and kinks
    rounded: float = 0.0  # what sides of kinks add, times the unit roundoff

    def reads(self) -> tuple[Read, ...]:
        """All of them."""
        return self.a + self.b

    @property
    def plus(self) -> Range:
        """The range of a + b."""
        whole = _total(self.a) + _total(self.b)
        return whole if self.narrowed is None or self.f is None else whole.meet(self.narrowed)

    @property
    def minus(self) -> Range:
        """The range of a - b."""
        whole = _total(self.a) - _total(self.b)
        return whole if self.narrowed is None or self.g is None else whole.meet(self.narrowed)


def _total(reads: tuple[Read, ...]) -> Range:
    out = Range(0.0, 0.0)
    for read in reads:
        out = out + read.range
    return out


@dataclass(eq=False)
class VirtualLoop:
    """A loop: ``enter`` decides about the first turn, the end of ``body`` about further ones."""

    counter: Register | None
    body: Code
    guarded: bool  # whether it may make no turn, so that FLAG is asked before the first
    source: Loop
    states: tuple[Register, ...]


@dataclass(eq=False)
class Code:
    """Instructions and loops in order."""

    items: list[VirtualInstruction | VirtualLoop] = field(default_factory=list)


Copy = tuple[Register, Register]
