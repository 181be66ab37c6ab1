r"""Sizes, all that the weights of the frozen computer depend on; and where things are in a token.

A name (a variable, a table, an address, a lane, a token) is written as a binary code, so that a
size of 2^k costs k features. Margins follow from the dtype and from the largest logit:

* :math:`\tau` is the least whole number with exp(-\tau) = 0 in the dtype;
* X, a power of 4, is at least :math:`\tau + \Lambda`, where no logit that is meant to be seen
  exceeds :math:`\Lambda`; a mask is W = 4 X.

Powers of 4 have exact square roots, so a mask is split between query and key without rounding.

**Tokens**: names for blocks of features, and maps that read them. Their kinds, each with a flag of
its own:

===========  =======================================================================================
null         answers what has no answer, with zeros, and every token that is not meant to ask
instruction  an address (``key``), the sign of the flag it wants (``sign``), and its fields: the
             variables of ten reads and the destination, the table, the next address
unit         one a lane: program counter, fetched fields, operands, result
memory       one variable of one lane: (``variable``, ``home``) and its value
entry        one entry of a table: its table, key (slope, bias) and values f, g
===========  =======================================================================================

Every other token is ``real``. A bit of a code is 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import next_power_of_two, power_of_four
from iceform.computer.instructions import (
    FLAG_BOUND,
    FLAG_GAP,
    READS,
    Assembly,
    Instruction,
    TablePair,
)
from iceform.errors import CapacityError
from iceform.heads import Features
from iceform.validation import check_dtype, check_size

LEAST_VALUES = 16  # that masks cover whatever the program
RESERVED = 1  # code 0 of a variable names none: the zero register


def underflow(dtype: torch.dtype) -> int:
    """tau: exp(-tau) rounds to exactly 0.

    Half of the smallest positive number is 2^-1075 (float64) or 2^-150 (float32); one more than
    its logarithm leaves room for the error of any implementation of exp.
    """
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    return math.ceil(math.log(2.0) - math.log(smallest)) + 1


@dataclass(frozen=True)
class MaskMargins:
    """What the masks weigh. ``away`` is X of a head, and its mask 4 X."""

    tau: int
    copy: float  # X of heads whose logits are masks alone
    see: float  # X of heads that also see logits of tables and likenesses
    fetch: float  # X of the head that also sees the flag
    flag: float  # S: the logit of a branch is S FLAG

    @classmethod
    def of(cls, logits: float, values: float, dtype: torch.dtype) -> MaskMargins:
        """For logits up to the given size, and values in memory.

        The flag is the value of a unit, and the head that fetches has a logit for the value of
        every token: masks must beat S times the largest value of all, not of a flag alone.
        """
        tau = underflow(dtype)
        flag = float(power_of_four(tau / (2 * FLAG_GAP)))
        fetch = float(power_of_four(tau + max(FLAG_BOUND, values) * flag))
        copy, see = float(power_of_four(tau)), float(power_of_four(tau + logits))
        return cls(tau, copy, see, fetch, flag)


@dataclass(frozen=True)
class ComputerSizes:
    """What a computer can hold: all that its weights depend on, beside the dtype.

    Attributes
    ----------
    width
        Components of a value.
    lanes
        Samples.
    variables, tables, instructions, table_tokens
        Of a program: names in memory (FLAG included), tables, instructions, and entries of all its
        tables together.
    logits
        The largest logit of a table or a likeness, in absolute value.
    values
        The largest component of what memory holds or an instruction returns, in absolute value.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> sizes = ComputerSizes.for_programs([ice.compile(energy, dim=1, samples=3).assembly], 3)
    >>> sizes.width, sizes.lanes, sizes.table_tokens
    (1, 4, 128)
    """

    width: int
    lanes: int
    variables: int
    tables: int
    instructions: int
    table_tokens: int
    logits: int = 1 << 14
    values: int = LEAST_VALUES

    def __post_init__(self) -> None:
        for field in fields(self):
            check_size(field.name, getattr(self, field.name))

    @property
    def tokens(self) -> int:
        """Tokens of the longest prompt, null, instructions, units, memory and tables together."""
        units = self.lanes + 1
        return 1 + self.instructions + units + self.lanes * self.variables + self.table_tokens

    @property
    def bits(self) -> dict[str, int]:
        """Bits of every kind of code."""
        return {
            "id": _bits(self.tokens),
            "address": _bits(self.instructions),
            "lane": _bits(self.lanes + 1),
            "variable": _bits(self.variables + RESERVED),
            "table": _bits(self.tables),
        }

    def margins(self, dtype: torch.dtype) -> MaskMargins:
        """The masks that these sizes need."""
        likeness = self.width * self.values**2  # of any result to any value
        return MaskMargins.of(float(max(self.logits, likeness)), self.values, check_dtype(dtype))

    @classmethod
    def needed(cls, program: Assembly, lanes: int) -> ComputerSizes:
        """The sizes of one program on so many samples; what is no program is refused."""
        program.check_form()
        return cls(
            width=program.width,
            lanes=max(1, lanes),
            variables=len(program.variables),
            tables=max(1, len(program.tables)),
            instructions=_addresses(program),
            table_tokens=max(1, sum(t.tokens for t in program.tables)),
            logits=math.ceil(largest_logit(program)),
            values=math.ceil(largest_value(program)),
        )

    @classmethod
    def for_programs(cls, programs: Iterable[Assembly], lanes: int) -> ComputerSizes:
        """The smallest powers of two that hold every one of them."""
        each = [cls.needed(program, lanes) for program in programs]
        if not each:
            raise CapacityError("a computer for no program has no sizes; name at least one")
        return cls(*(next_power_of_two(max(getattr(s, f.name) for s in each)) for f in fields(cls)))

    def check(self, program: Assembly, lanes: int) -> None:
        """Refuse what does not fit, before anything is built."""
        needed = ComputerSizes.needed(program, lanes)
        short = [
            f"{f.name} {getattr(needed, f.name)} (this computer: {getattr(self, f.name)})"
            for f in fields(self)
            if getattr(needed, f.name) > getattr(self, f.name)
        ]
        if short:
            raise CapacityError(
                f"the program {program.name!r} needs {', '.join(short)}; "
                "build one for it with Computer.for_programs"
            )


def _addresses(program: Assembly) -> int:
    """Room for every address, and for every instruction: a branch has two at one address."""
    last = max((i.address for i in program.instructions), default=0)
    return max(1 + last, len(program.instructions))


def largest_value(program: Assembly) -> float:
    """Bound of what memory holds: ranges of what is looked up, and of answers.

    Values between the two are operands of some look-up, and within its range; what data start with
    is checked when a prompt is written, what memory holds in the end when a run is over.
    """
    answers = {o.variable for o in program.outputs}
    written = {i.table for i in program.instructions if i.dst in answers}
    reaches = (max(abs(t.low), abs(t.high)) for t in program.tables)
    results = (_largest_within(t) for t in program.tables if t.name in written)
    return max(float(LEAST_VALUES), max(reaches, default=0.0), max(results, default=0.0))


def _largest_within(table: TablePair) -> float:
    """About the largest |F - G| for arguments in the table's range."""
    z = torch.linspace(table.low, table.high, tuning.PLACES, dtype=torch.float64)
    weights = torch.softmax(z[:, None] * table.slopes + table.biases, -1)
    f, g = weights @ table.f, weights @ table.g
    return max(float(f.max() - g.min()), float(g.max() - f.min()), 0.0)


def largest_logit(program: Assembly) -> float:
    """Bound of every logit of the program's tables and of the likenesses that it asks for."""
    return max(1.0, _largest_of_tables(program), *_likenesses(program))


def _largest_of_tables(program: Assembly) -> float:
    """Bound of |slope z + bias| over all tables and all arguments z of any of them.

    An entry of one table meets the arguments of every other, behind a mask that has to beat it.
    """
    reach = max((max(abs(t.low), abs(t.high)) for t in program.tables), default=0.0)
    logits = (float((t.slopes.abs() * reach + t.biases.abs()).max()) for t in program.tables)
    return max(logits, default=0.0)


def _likenesses(program: Assembly) -> Iterator[float]:
    for asked, result in likenesses(program).items():
        yield program.width * result * largest_written(program, asked)


def likenesses(program: Assembly) -> dict[str, float]:
    """Variables read by likeness, each with a bound of the results r that ask for it."""
    asked: dict[str, float] = {}
    for i in program.instructions:
        for name in {v for kind, v in i.reads() if kind == "like"}:
            before = (j for j in program.instructions if j.next == i.address)
            bound = max((largest_result(program, j) for j in before), default=0.0)
            asked[name] = max(asked.get(name, 0.0), bound)
    return asked


def largest_written(program: Assembly, variable: str) -> float:
    """Bound of what instructions write into a variable."""
    writers = (i for i in program.instructions if i.dst == variable)
    return max((largest_result(program, i) for i in writers), default=0.0)


def largest_result(program: Assembly, instruction: Instruction) -> float:
    """Bound of what an instruction writes."""
    return program.table(instruction.table).largest


def token_counts(program: Assembly, samples: int) -> dict[str, int]:
    """Tokens of every kind, in the order of a prompt."""
    return {
        "instruction": len(program.instructions),
        "entry": sum(t.tokens for t in program.tables),
        "unit": samples + 1,
        "null": 1,
        "memory": sum(samples if v.lanes == "samples" else 1 for v in program.variables),
    }


def _bits(count: int) -> int:
    """Bits that tell so many things apart."""
    return max(1, (count - 1).bit_length())


KINDS = ("instruction", "unit", "memory", "entry")
OPERANDS = ("a", "b")
ENTRY = ("slope", "bias", "f", "g")
READ_FIELDS = tuple(f"{operand} {read}" for operand in OPERANDS for read in READS)


def code(number: Tensor | int, bits: int) -> Tensor:
    """Binary digits, lowest first: shape (*number, bits), float64."""
    numbers = torch.as_tensor(number)
    return ((numbers[..., None] >> torch.arange(bits)) & 1).double()


@dataclass(frozen=True)
class ComputerLayout:
    """The features of a computer's tokens."""

    sizes: ComputerSizes
    features: Features

    @classmethod
    def of(cls, sizes: ComputerSizes) -> ComputerLayout:
        """In order: kinds, names, values, a table's entry, an instruction's fields, and fetched."""
        bits, width = sizes.bits, sizes.width
        blocks = dict.fromkeys(("real", "null", *KINDS), 1)
        blocks |= {"id": bits["id"], "counter": bits["address"], "lane": bits["lane"]}
        blocks |= {"home": bits["lane"], "variable": bits["variable"]}
        blocks |= dict.fromkeys(("value", "a", "b", "old", "result", "before"), width)
        blocks |= {"table": bits["table"]} | dict.fromkeys(ENTRY, 1)
        blocks |= {"key": bits["address"], "sign": 1}
        for prefix in ("", "fetched "):
            blocks |= {prefix + name: size for name, size in field_sizes(sizes).items()}
        return cls(sizes, Features.of(**blocks))

    @property
    def fields(self) -> dict[str, int]:
        """An instruction's fields and their sizes."""
        return field_sizes(self.sizes)

    @property
    def scratch(self) -> tuple[str, ...]:
        """What a unit forgets at the end of a cycle."""
        return ("a", "b", "old", "result", *(f"fetched {name}" for name in self.fields))

    def size(self, name: str) -> int:
        """Features of a block."""
        at = self.features[name]
        return int(at.stop - at.start)

    def columns(self, *names: str) -> Tensor:
        """The features of these blocks, in order."""
        return torch.cat([torch.arange(self.features.total)[self.features[n]] for n in names])


def field_sizes(sizes: ComputerSizes) -> dict[str, int]:
    """Ten reads, the destination, the table, the next address."""
    bits = sizes.bits
    names = dict.fromkeys((*READ_FIELDS, "destination"), bits["variable"])
    return names | {"with table": bits["table"], "next": bits["address"]}
