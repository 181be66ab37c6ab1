"""Branches are decided: the flag is looked at where it starts, is written, and is met."""

from dataclasses import replace

import pytest
import torch

from iceform.computer import FLAG, computer
from iceform.computer.computer import Computer
from iceform.computer.instructions import (
    Assembly,
    Instruction,
    MemoryVariable,
    Operand,
    Output,
    Write,
)
from iceform.computer.interpret import own_cycles
from iceform.errors import BoundError, CapacityError, ProgramError
from tests.computer import programs as by_hand


def branch(*writes, table=None):
    """w becomes 1 or 2 as the flag says; ``table`` writes it first, where it is given."""
    one = by_hand.table("one", lambda z: 0 * z + 1, by_hand.zero, -4, 4, 16)
    two = by_hand.table("two", lambda z: 0 * z + 2, by_hand.zero, -4, 4, 16)
    first = () if table is None else (
        Instruction(0, FLAG, Operand(lane0="t"), Operand(), table.name, 1),
        Instruction(1, "w", Operand(), Operand(), "one", 2),
    )  # fmt: skip
    at = 2 * bool(first)
    code = (
        *first,
        Instruction(at, "w", Operand(), Operand(), "one", at + 1, +1),
        Instruction(at, "w", Operand(), Operand(), "two", at + 1, -1),
        Instruction(at + 1, "void", Operand(), Operand(), "one", at + 1),
    )
    names = (
        MemoryVariable(FLAG, "lane0", writes),
        MemoryVariable("w", "lane0"),
        MemoryVariable("void", "lane0"),
        MemoryVariable("t", "lane0", (Write("t"),)),
        MemoryVariable("x", "samples", (Write("x", width=1),)),
    )
    tables = (one, two) if table is None else (one, two, table)
    return Assembly("branch", 1, 1, names, tables, code, (Output("w", "w"),), {"t": None})


def executed(program, backend, cycles=None, t=0.0, dtype=torch.float64):
    machine = Computer.for_programs([program], lanes=2, dtype=dtype)
    x, y = torch.zeros(2, 1, dtype=dtype), torch.zeros(2, dtype=dtype)
    return machine.execute(machine.prompt(program, x, y, t=t), cycles, backend=backend)


@pytest.mark.parametrize("writes", [
    (), (Write("one", 1e-7),), (Write("one", -5e-4),), (Write("one", 2.5),), (Write("t"),),
    (Write("one"), Write("one", -1.0)), (Write("one"), Write("t")),
])  # fmt: skip
def test_a_flag_that_does_not_decide_at_the_start_is_refused_by_name(writes):
    program = branch(*writes)
    with pytest.raises(ProgramError, match="FLAG starts with"):
        program.check()
    with pytest.raises(ProgramError, match="FLAG starts with"):
        executed(program, "literal", 1)


@pytest.mark.parametrize("flag", [2.0**-10, -(2.0**-10), 1.0, -2.0])
@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_what_check_lets_pass_is_executed_as_it_says(flag, backend):
    program = branch(Write("one", flag))
    program.check()
    found = executed(program, backend).outputs["w"]
    torch.testing.assert_close(
        found, torch.tensor(1.0 if flag > 0 else 2.0, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_tables_that_cannot_decide_are_refused():
    for height, words in ((3.0, "may write up to 3"), (1e-7, "writes at most 1e-07")):
        table = by_hand.table("sign", lambda z, c=height: 0 * z + c, by_hand.zero, -4, 4, 16)
        table = replace(table, f=torch.full_like(table.f, height), g=0 * table.g)
        with pytest.raises(ProgramError, match=words):
            branch(Write("one"), table=table).check()


@pytest.mark.parametrize("backend", ["literal", "fused"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_branch_that_data_leave_open_is_refused_where_it_is_met(backend, dtype):
    """FLAG is written as erf(t): a sign for most t, and next to nothing for some."""
    sign = by_hand.table("sign", torch.erf, by_hand.zero, -4, 4, 64)
    program = branch(table=sign)  # which starts with 0, and is written before it is asked
    program.check()
    for t, wanted in ((3.0, 1.0), (-3.0, 2.0), (0.01, 1.0)):
        found = executed(program, backend, t=t, dtype=dtype).outputs["w"]
        assert abs(float(found) - wanted) < 1e-5
    for cycles in (None, 3):
        with pytest.raises(BoundError, match=r"at address 2 the flag is .* too near to 0"):
            executed(program, backend, cycles, t=1e-5, dtype=dtype)


def test_a_literal_run_is_bounded_by_the_programs_own_cycles(monkeypatch):
    program = by_hand.halving()
    machine = Computer.for_programs([program], lanes=2)
    x, y = torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    prompt = machine.prompt(program, x, y, start=1.7)
    run = machine.execute(prompt, backend="literal")
    assert own_cycles(prompt, 1000) == machine.execute(prompt, backend="fused").cycles
    assert own_cycles(prompt, 1000) <= run.cycles
    assert own_cycles(prompt, 10) == 10  # not at its halt by then
    # A machine that never sees its halt, as when the rounding of a dtype eats a comparison.
    monkeypatch.setattr(computer, "_all_halt", lambda prompt, tokens: False)
    with pytest.raises(CapacityError, match=r"halt after 128 cycles.*take 2\d: a comp"):
        machine.execute(prompt, backend="literal")
    forever = by_hand.least_squares(1)
    machine = Computer.for_programs([forever], lanes=2)
    with pytest.raises(CapacityError, match="does not come to a halt"):
        machine.execute(machine.prompt(forever, x, y), backend="literal")


# ---------------------------------------------------------------------- what a program is

V, C = branch(Write("one")).variables, branch(Write("one")).instructions
NO_PROGRAM = {
    "variables .* called 'w'": {"variables": (*V, MemoryVariable("w", "samples"))},
    "lives in 'elsewhere'": {"variables": (*V, MemoryVariable("q", "elsewhere"))},
    "holds no sample": {"variables": (*V, MemoryVariable("q", "lane0", (Write("x", width=1),)))},
    "1 components from 4 on": {
        "variables": (*V, MemoryVariable("q", "lane0", (Write("one", first=4, width=1),)))
    },
    "no variable 'nothing'": {"outputs": (Output("w", "nothing"),)},
    "answer w takes 3 components": {"outputs": (Output("w", "w", 3),)},
    "no instruction at address 0": {
        "instructions": tuple(replace(i, address=i.address + 3, next=i.next + 3) for i in C)
    },
    "whole number from 0 on, not -1": {
        "instructions": (*C, Instruction(-1, "w", Operand(), Operand(), "one", -1))
    },
    r"when = \[2\]": {"instructions": (*C, Instruction(7, "w", Operand(), Operand(), "one", 0, 2))},
}


@pytest.mark.parametrize("words", NO_PROGRAM)
def test_what_is_no_program_is_refused_by_name(words):
    """By check, and before a computer is sized for it."""
    wrong = replace(branch(Write("one")), **NO_PROGRAM[words])
    for refuse in (wrong.check, lambda: Computer.for_programs([wrong], lanes=2)):
        with pytest.raises(ProgramError, match=words):
            refuse()


def test_columns_that_are_no_table_are_refused():
    program = branch(Write("one"))
    one, two = program.tables
    for table, words in (
        (replace(one, name="two"), "tables .* called 'two'"),
        (replace(one, f=one.f[:-1]), r"table 'one' have shapes \(41,\), \(41,\), \(40,\)"),
        (replace(one, f=float("nan") * one.f), "table 'one' holds NaN"),
    ):
        with pytest.raises(ProgramError, match=words):
            Computer.for_programs([replace(program, tables=(table, two))], lanes=2)
