"""The counting bound on a prompt's bits, and what the encoding has."""

import itertools
import math
from dataclasses import replace

import torch

from iceform.computer import Computer, library
from iceform.computer.compile import compile
from iceform.computer.layout import ComputerSizes
from iceform.computer.prompt_bits import PromptBits

F64 = torch.float64
SIZES = ComputerSizes(width=2, lanes=2, variables=4, tables=2, instructions=2, table_tokens=64)


def operands(samples, alone):
    """Every operand of the family: own, rowsum, mean and lane0 of a variable or of none."""
    zero = torch.zeros_like(samples[0])
    held = [zero, *samples]
    reads = (lambda v: v, lambda v: v.sum(1, keepdim=True).expand_as(v),
             lambda v: v.mean(0, keepdim=True).expand_as(v))  # fmt: skip
    for own, rowsum, mean in itertools.product(held, repeat=3):
        for first in (zero, *alone):
            yield reads[0](own) + reads[1](rowsum) + reads[2](mean) + first


def test_no_two_programs_of_the_family_answer_alike():
    """p sample variables, q of lane 0, two tables: ((p + 1)^6 (q + 1)^2 2) different answers."""
    torch.manual_seed(0)
    for p, q in ((2, 0), (1, 1)):
        assert answers(p, q) == 2 * (p + 1) ** 6 * (q + 1) ** 2
    assert PromptBits.of(SIZES).needed == math.log2(2 * 3**6)


def answers(p, q):
    samples = [torch.randn(2, 2, dtype=F64) for _ in range(p)]
    alone = [torch.randn(1, 2, dtype=F64).expand(2, 2) for _ in range(q)]
    found = set()
    for a, b in itertools.product(list(operands(samples, alone)), repeat=2):
        for j in range(2):
            answer = j / 2 + (a + b) ** 2 - (a - b)
            found.add(tuple(round(v, 9) for v in answer.flatten().tolist()))
    return len(found)


def test_fields_are_those_of_the_built_prompt():
    """Features of an instruction's token that any program can set, the sign's two bits as one."""
    program = compile(library.lasso, dim=3, samples=4)
    computer = Computer.for_programs([program])
    layout, sizes = computer.layout, computer.sizes
    coded = sum(layout.size(name) for name in (*layout.fields, "key"))
    found = PromptBits.of(sizes)
    assert found.fields == sizes.instructions * (coded + 2)
    tokens = computer.prompt(program, torch.zeros(4, 3, dtype=F64), torch.zeros(4, dtype=F64))
    rows = tokens.tokens[tokens.kinds["instruction"]]
    free = {*layout.columns(*layout.fields, "key", "sign").tolist()}
    fixed = [j for j in range(rows.shape[1]) if j not in free and j not in
             layout.columns("id").tolist()]  # fmt: skip
    assert bool((rows[:, fixed] == rows[:1, fixed]).all())
    assert found.stored == sizes.instructions * rows.shape[1] * 64


def test_the_encoding_is_within_a_constant_of_the_bound():
    """14/9 for sizes that grow alike; never below 1."""
    ratios = [
        PromptBits.of(replace(SIZES, variables=k, tables=k, instructions=k)).ratio
        for k in (16, 64, 256)
    ]
    assert ratios == sorted(ratios, reverse=True)
    assert 14 / 9 < ratios[-1] < 3.5
    assert PromptBits.of(replace(SIZES, lanes=1)).needed == 0
