r"""The one instruction of the frozen computer, and the programs made of it.

**Instruction.** ``dst <- F(a + b) - G(a - b)``, elementwise in vectors of ``width`` components, at
once in every lane that holds ``dst``. F and G are the two values columns of one table
(:class:`TablePair`), which share their keys:

.. math:: F(z) = \sum_k p_k(z) f_k, \quad G(z) = \sum_k p_k(z) g_k, \quad
          p(z) = \mathrm{softmax}_k(s_k z + b_k).

**Lanes.** Lane 0 holds what is global, lanes 1 .. n one sample each. A variable lives in lane 0
(``"lane0"``) or in every sample's lane (``"samples"``), never in both.

**Operands.** An operand is the sum of at most five reads, each of one variable v:

======  ==========================================================================================
own     v of this lane; v must live where ``dst`` does
rowsum  the sum of the components of ``own``, in every component
mean    the mean of v over the lanes that hold it
lane0   v of lane 0
like    the softmax average of v over the lanes that hold it, with logits r . v, where r is this
        lane's result of the instruction before (in time), whatever that wrote to; the instruction
        before must write to the same kind of lanes
======  ==========================================================================================

A read that names no variable reads the zero register.

**Control.** Instructions start at address 0. Every one names its successor. Two with one address
and opposite ``when`` are a branch: the one with ``when = +1`` is fetched if the first component of
the lane-0 variable :data:`FLAG` is positive, the other if it is negative. Whenever a branch is met,
2^-10 <= \|FLAG\| <= 2, and it was not written by the instruction executed just before, so a machine
may look at it one cycle late. :meth:`Assembly.check` refuses what can be seen to break this before
a run: a start or a table. What data decide is looked at where a branch is met, and refused there.
An instruction that names itself is a halt: it may be executed any number of times more, and its
result is always the same.

**Vectors and scalars.** A vector of d <= width components is held in the components from 0 on (or
from a stated first one); a scalar is held in *every* component, so that it multiplies a vector
without further ado, and is read from component 0. A variable is *clean* if the components beyond
its vector are zero up to the error of the tables that wrote them. Every rowsum is of a clean
variable, and in every like r or v is clean, so a program means the same on a wider computer.

**Before the first cycle** a variable holds the sum of its writes (:class:`Write`), zero where it
has none: what is written is affine in the data and in the parameters, with coefficients that the
program fixes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from iceform.errors import BoundError, ProgramError
from iceform.expressions import ScalarFunction
from iceform.tables import Interpolant

_Item = TypeVar("_Item", "MemoryVariable", "TablePair")

FLAG = "FLAG"  # the lane-0 variable whose sign decides branches
FLAG_GAP = 2.0**-10  # which it does where |FLAG| is at least this
FLAG_BOUND = 2.0  # and at most this
READS = ("own", "rowsum", "mean", "lane0", "like")


@dataclass(frozen=True)
class Operand:
    """A sum of reads; ``None`` is the zero register."""

    own: str | None = None
    rowsum: str | None = None
    mean: str | None = None
    lane0: str | None = None
    like: str | None = None

    def reads(self) -> Iterator[tuple[str, str]]:
        """The reads that name a variable, as (kind, variable)."""
        for kind in READS:
            name = getattr(self, kind)
            if name is not None:
                yield kind, name

    def __str__(self) -> str:
        return " + ".join(f"{kind}[{name}]" for kind, name in self.reads()) or "0"


@dataclass(frozen=True)
class Instruction:
    """``dst <- F(a + b) - G(a - b)`` with the F and G of ``table``, then on to ``next``.

    ``when`` is 0, or +1 / -1 for the two sides of a branch; ``note`` says in words what it does and
    ``line`` is the line of the source that asked for it (0: none).

    Examples
    --------
    >>> from iceform.computer.library import EXAMPLES
    >>> program = EXAMPLES["logistic"].compile()
    >>> first, *_ = program.assembly.instructions
    >>> first.address, first.next, first.note
    (0, 1, 'another turn?')
    """

    address: int
    dst: str
    a: Operand
    b: Operand
    table: str
    next: int
    when: int = 0
    note: str = ""
    line: int = 0

    def reads(self) -> Iterator[tuple[str, str]]:
        """The reads of both operands, as (kind, variable)."""
        yield from self.a.reads()
        yield from self.b.reads()

    @property
    def halts(self) -> bool:
        """Whether it names itself."""
        return self.next == self.address and self.when == 0


@dataclass(frozen=True, eq=False)
class TablePair:
    """F and G on shared keys: ``softmax_k(slopes[k] z + biases[k])`` against two columns of values.

    Attributes
    ----------
    name
        Unique in its assembly.
    slopes, biases
        The keys, float64, shape (tokens,); the centre of the grid is folded into the biases.
    f, g
        The values of F and G, float64, shape (tokens,).
    low, high
        The range of arguments for which the errors hold.
    f_error, g_error
        Bounds of sup |F - exact F| and sup |G - exact G| there, in exact arithmetic.
    exact_f, exact_g
        The functions that F and G stand for; None is the zero function.
    f_interpolant, g_interpolant
        Where the values come from; None for zeros and for tables with keys of their own.
    assumptions
        What the errors take for granted; empty where they are proven.
    jump, gap
        Of a comparison's table: where the function that it stands for jumps, and how near to that
        no argument may come for the errors to hold.
    """

    name: str
    slopes: Tensor
    biases: Tensor
    f: Tensor
    g: Tensor
    low: float
    high: float
    f_error: float
    g_error: float
    exact_f: ScalarFunction | None = None
    exact_g: ScalarFunction | None = None
    f_interpolant: Interpolant | None = None
    g_interpolant: Interpolant | None = None
    assumptions: tuple[str, ...] = ()
    jump: float | None = None
    gap: float = 0.0

    @property
    def tokens(self) -> int:
        """Entries of the table."""
        return len(self.slopes)

    def check(self) -> None:
        """Refuse columns that are no table: of different lengths, empty, or not finite."""
        columns = (self.slopes, self.biases, self.f, self.g)
        if len({c.shape for c in columns}) != 1 or self.slopes.ndim != 1 or not self.tokens:
            shapes = ", ".join(str(tuple(c.shape)) for c in columns)
            raise ProgramError(
                f"the columns of table {self.name!r} have shapes {shapes}; give each entry a "
                "slope, a bias, and values f and g"
            )
        if not all(bool(c.isfinite().all()) for c in columns):
            raise ProgramError(f"table {self.name!r} holds NaN or infinity; fit it on its range")

    @property
    def largest(self) -> float:
        """|F - G| <= max |f_k| + max |g_k|: look-ups are averages of their values."""
        return float(self.f.abs().max() + self.g.abs().max())


@dataclass(frozen=True)
class Write:
    """``scale`` times a datum, written into a variable before the first cycle.

    ``source`` is "x" (a sample's features), "y" (its target), "one" (the number 1), "samples" (n),
    "index" (which sample it is, from 0 on), or the name of a parameter. It goes to the components
    ``first .. first + width - 1``; ``width = None`` writes a scalar into every component of the
    machine.
    """

    source: str
    scale: float = 1.0
    first: int = 0
    width: int | None = None


@dataclass(frozen=True)
class MemoryVariable:
    """A name in memory: ``lanes`` is "samples" or "lane0"; ``writes`` is what it starts with."""

    name: str
    lanes: str
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True)
class Output:
    """Where an answer is read: a scalar from component ``first``, a vector from ``width``."""

    name: str
    variable: str
    width: int | None = None  # None: a scalar
    first: int = 0

    def of(self, held: Float[Tensor, "*b m"]) -> Tensor:
        """The answer out of what its variable holds: a number, or ``width`` components."""
        if self.width is None:
            return held[..., self.first]
        return held[..., self.first : self.first + self.width]


@dataclass(frozen=True, eq=False)
class Assembly:
    """A program for the frozen computer: everything that is written into the prompt but the data.

    Attributes
    ----------
    name
        The algorithm's.
    width
        The components that it needs; a computer may have more.
    dim
        d, the features of a sample.
    variables, tables, instructions
        In prompt order; FLAG is among the variables.
    outputs
        The answers, in order.
    parameters
        Names of the parameters that writes refer to, with their width (None: scalar).
    """

    name: str
    width: int
    dim: int
    variables: tuple[MemoryVariable, ...]
    tables: tuple[TablePair, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Output, ...]
    parameters: dict[str, int | None] = field(default_factory=dict)

    def variable(self, name: str) -> MemoryVariable:
        """The variable of that name."""
        return _named(self.variables, name, "variable")

    def table(self, name: str) -> TablePair:
        """The table of that name."""
        return _named(self.tables, name, "table")

    def lanes(self, name: str) -> str:
        """Where a variable lives."""
        return self.variable(name).lanes

    @cached_property
    def _by_address(self) -> dict[int, tuple[Instruction, ...]]:
        found: dict[int, tuple[Instruction, ...]] = {}
        for i in self.instructions:
            found[i.address] = (*found.get(i.address, ()), i)
        return found

    @cached_property
    def branches(self) -> frozenset[int]:
        """The addresses at which FLAG decides."""
        return frozenset(i.address for i in self.instructions if i.when)

    def at(self, address: int) -> tuple[Instruction, ...]:
        """The instruction at an address; two where it is a branch."""
        return self._by_address.get(address, ())

    def fetch(self, address: int, flag: float) -> Instruction:
        """The instruction that runs at an address when FLAG is ``flag``.

        Raises
        ------
        BoundError
            If it is a branch, and FLAG does not decide it.
        """
        found = self.at(address)
        if address in self.branches:
            check_decided(address, abs(flag), abs(flag))
        return next(i for i in found if i.when == 0 or (i.when > 0) == (flag > 0))

    def check(self) -> None:
        """Refuse what is no program, or breaks a rule of this module's docstring."""
        self.check_form()
        for instruction in self.instructions:
            self._check_reads(instruction)
            self._check_control(instruction)

    def check_form(self) -> None:
        """Refuse what is no program, as every computer does that is sized for it.

        The rest of :meth:`check` is about what instructions mean: a computer also executes one
        that reads a variable where it does not live (as 0), or that branches without a wait.
        """
        self._check_names()
        self._check_memory()
        for table in self.tables:
            table.check()
        self._check_addresses()
        self.check_flag()

    def _check_names(self) -> None:
        """A name has one meaning: codes are given by it."""
        for kind, items in (("variables", self.variables), ("tables", self.tables)):
            names = [item.name for item in items]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ProgramError(
                    f"two {kind} of {self.name!r} are called {twice[0]!r}; rename one"
                )

    def _check_memory(self) -> None:
        """Variables live somewhere, and what is written to them or read out is in the width."""
        for v in self.variables:
            if v.lanes not in ("samples", "lane0"):
                raise ProgramError(
                    f"{v.name} lives in {v.lanes!r}; a variable lives in 'samples' or 'lane0'"
                )
            for w in v.writes:
                if v.lanes == "lane0" and w.source in ("x", "y"):
                    raise ProgramError(
                        f"{v.name} starts with {w.source} and lives in lane 0, which holds no "
                        "sample; let it live in 'samples'"
                    )
                self._check_components(f"what {v.name} starts with", w.first, w.width)
        for output in self.outputs:
            self.variable(output.variable)
            self._check_components(f"the answer {output.name}", output.first, output.width)

    def _check_components(self, what: str, first: int, width: int | None) -> None:
        if not (first >= 0 and (width is None or 1 <= width <= self.width - first)):
            raise ProgramError(
                f"{what} takes {width} components from {first} on, and the program has {self.width}"
            )

    def _check_addresses(self) -> None:
        """Whole numbers, 0 among them; at each one instruction, or the two sides of a branch."""
        addresses = {i.address for i in self.instructions}
        if 0 not in addresses:
            raise ProgramError(f"{self.name!r} has no instruction at address 0, where a run starts")
        for address in addresses:
            if not (isinstance(address, int) and address >= 0):
                raise ProgramError(f"an address is a whole number from 0 on, not {address!r}")
            whens = sorted(i.when for i in self.at(address))
            if whens not in ([0], [-1, 1]):
                raise ProgramError(
                    f"address {address} has instructions with when = {whens}; one with 0, or two "
                    "with -1 and +1, are an instruction"
                )

    def check_flag(self) -> None:
        """Refuse a FLAG that is not what the masks of the fetch are made for, as far as is seen."""
        self._check_start()
        for instruction in self.instructions:
            if instruction.dst == FLAG:
                self._check_sign(instruction)

    def _check_start(self) -> None:
        """FLAG is there, and decides what it is asked before anything is written to it."""
        flag = next((v for v in self.variables if v.name == FLAG), None)
        if flag is None or flag.lanes != "lane0":
            raise ProgramError(f"{self.name!r} has no variable {FLAG} in lane 0; every program has")
        asked = self._asked_before_written()
        if asked is None:
            return
        first = [w for w in flag.writes if w.width is None or w.first == 0]
        given = sorted({w.source for w in first} - {"one"})
        if given:
            raise ProgramError(
                f"{FLAG} starts with {given[0]}, and the branch at {asked} asks for it before it "
                "is written; start it with a number, Write('one'), or compare first"
            )
        start = math.fsum(w.scale for w in first)
        if not FLAG_GAP <= abs(start) <= FLAG_BOUND:
            raise ProgramError(
                f"{FLAG} starts with {start:.3g}, and the branch at {asked} asks for it before it "
                f"is written; a branch is decided where {FLAG_GAP:.3g} <= |{FLAG}| <= "
                f"{FLAG_BOUND:g}, so start it with Write('one'), or compare first"
            )

    def _asked_before_written(self) -> int | None:
        """A branch that a run can come to before an instruction has written FLAG."""
        seen, todo = set(), [0]
        while todo:
            address = todo.pop()
            if address in seen:
                continue
            seen.add(address)
            if address in self.branches:
                return address
            todo += [i.next for i in self.at(address) if i.dst != FLAG]
        return None

    def _check_reads(self, i: Instruction) -> None:
        home = self.lanes(i.dst)
        self.table(i.table)
        for kind, name in i.reads():
            lanes = self.lanes(name)
            if (kind in ("own", "rowsum") and lanes != home) or (
                kind == "lane0" and lanes != "lane0"
            ):
                raise ProgramError(
                    f"instruction {i.address} writes {i.dst} ({home}) and reads {kind}[{name}], "
                    f"which lives in {lanes}"
                )

    def _check_control(self, i: Instruction) -> None:
        following = self.at(i.next)
        if not following:
            raise ProgramError(f"instruction {i.address} goes on to {i.next}, where there is none")
        if i.dst == FLAG and any(j.when for j in following):
            raise ProgramError(
                f"instruction {i.address} writes FLAG just before the branch at {i.next}; put an "
                "instruction between them"
            )
        for j in following:
            if (j.a.like or j.b.like) and self.lanes(j.dst) != self.lanes(i.dst):
                raise ProgramError(
                    f"instruction {j.address} asks by likeness with the result of {i.address}, "
                    "which was computed for other lanes"
                )

    def _check_sign(self, i: Instruction) -> None:
        """What is written to FLAG is at most what masks cover, and can be decided at all."""
        table = self.table(i.table)
        largest = table.largest
        if not largest <= FLAG_BOUND:
            raise ProgramError(
                f"instruction {i.address} may write up to {largest:.4g} into {FLAG}; the margin of "
                f"the fetch covers {FLAG_BOUND:g}, write a sign there"
            )
        if not largest >= FLAG_GAP:
            raise ProgramError(
                f"instruction {i.address} writes at most {largest:.3g} into {FLAG}, which decides "
                f"a branch from {FLAG_GAP:.3g} on; write a sign there"
            )


def check_decided(address: int, least: float, most: float) -> None:
    """Refuse sizes of FLAG at a branch that are not what its masks are made for.

    Raises
    ------
    BoundError
        Names the branch and the value.
    """
    if not least >= FLAG_GAP:
        raise undecided(address, least)
    if not most <= FLAG_BOUND:
        raise BoundError(
            f"at address {address} the flag is {most:.3g}, and masks cover {FLAG_BOUND:g}; write a "
            "sign there"
        )


def undecided(address: int, size: float) -> BoundError:
    """The refusal of a branch at which FLAG is too near to 0."""
    return BoundError(
        f"at address {address} the flag is {size:.3g}, too near to 0 to decide a branch: that "
        f"takes {FLAG_GAP:.3g}; compare things that differ by more"
    )


def _named(items: tuple[_Item, ...], name: str, kind: str) -> _Item:
    for item in items:
        if item.name == name:
            return item
    raise ProgramError(f"there is no {kind} {name!r} in this program")
