"""A compiled program as text: its instructions, what each is off by, its tables and its memory."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from iceform.arithmetic import at_least, at_most
from iceform.computer.budget import Budget
from iceform.computer.instructions import Instruction, MemoryVariable, TablePair, Write
from iceform.computer.virtual import VirtualInstruction
from iceform.expressions.formulas.printing import brief

if TYPE_CHECKING:
    from iceform.computer.compile import Program


def explain(program: Program) -> str:
    """The program as assembly, with the error budget of each instruction."""
    parts = [
        _head(program),
        "\n".join(["memory", *_memory(program)]),
        "\n".join(["tables", *_tables(program)]),
        "\n".join(["instructions: dst <- F(a + b) - G(a - b)", *_instructions(program)]),
        program.certificate.explain(),
    ]
    return "\n\n".join(parts)


def _head(program: Program) -> str:
    a = program.assembly
    lines = [
        f"{a.name}: {len(a.instructions)} instructions, {len(a.variables)} variables of width "
        f"{a.width}, {len(a.tables)} tables with {sum(t.tokens for t in a.tables)} entries",
        f"for at most {program.samples} samples of {a.dim} features",
    ]
    assumed = program.ranges.assumed.values()
    return "\n".join([*lines, *(f"  {one}" for one in assumed)])


def _memory(program: Program) -> Iterator[str]:
    for v in program.assembly.variables:
        where = "every sample" if v.lanes == "samples" else "lane 0"
        yield f"  {v.name:<10} {where:<13} {_written(v)}".rstrip()


def _written(variable: MemoryVariable) -> str:
    return " + ".join(map(_write, variable.writes))


def _write(write: Write) -> str:
    factor = f"{write.scale:g} * " if write.scale != 1 else ""
    source = {"one": "1"}.get(write.source, write.source)
    if write.width is None:
        return f"{factor}{source}"
    return f"{factor}{source} in {write.first}..{write.first + write.width - 1}"


def _tables(program: Program) -> Iterator[str]:
    for t in program.assembly.tables:
        low, high = at_most(t.low, ".4g"), at_least(t.high, ".4g")
        off = math.nextafter(t.f_error + t.g_error, math.inf)  # what the sum rounds to, and more
        yield (
            f"  {t.name:<4} {t.tokens:>4} entries on [{low}, {high}]  "
            f"F = {curve(t, 'f')}, G = {curve(t, 'g')}, off by {at_most(off, '.1e')}"
        )


def curve(table: TablePair, column: str) -> str:
    """The function that a table's column "f" or "g" stands for, in few letters.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> table = ice.compile(energy, dim=1, samples=3).assembly.tables[0]
    >>> curve(table, "f"), curve(table, "g")
    ('z*z', '0')
    """
    function = getattr(table, f"exact_{column}")
    if function is None:
        return "0"
    return brief(str(function.name), 40)


def _instructions(program: Program) -> Iterator[str]:
    file = program.graph.place.file if program.graph.place is not None else ""
    shown = 0
    for virtual, i in zip(program.assembled.virtual, program.assembly.instructions, strict=True):
        if i.line and i.line != shown:
            shown = i.line
            yield f"  # line {i.line}: {linecache.getline(file, i.line).strip()}"
        yield _instruction(i, virtual, program.budget)


def spelled(i: Instruction) -> str:
    """An instruction as assembly: destination, table, operands, and where it goes on.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> spelled(ice.compile(energy, dim=1, samples=3).assembly.instructions[1])
    'g        <- T1   a = mean[x]'
    """
    text = f"{i.dst:<8} <- {i.table:<4} a = {i.a}"
    text += f", b = {i.b}" if str(i.b) != "0" else ""
    return text + (f"  -> {i.next}" if i.next != i.address + 1 else "")


def _instruction(
    i: Instruction, virtual: VirtualInstruction | None, own: Mapping[VirtualInstruction, Budget]
) -> str:
    when = {0: "   ", 1: " if", -1: "els"}[i.when]
    text = f"  {i.address:>3} {when} {spelled(i)}"
    if virtual is None:
        return f"{text}  ({i.note})"
    error = own[virtual]
    table, rounding = at_most(error.table, ".0e"), at_most(error.rounding, ".0e")
    return f"{text}  ({i.note}; table {table}, rounding {rounding})"
