"""Programs drawn until check admits them: literal, fused, three layers and meaning agree."""

import random
from functools import cache

import numpy as np
import pytest
import torch

from iceform.computer import FLAG
from iceform.computer.block import ThreeLayerBlock
from iceform.computer.computer import Computer
from iceform.computer.instructions import (
    READS,
    Assembly,
    Instruction,
    MemoryVariable,
    Operand,
    Output,
    Write,
)
from iceform.errors import ProgramError
from iceform.targets.stock_block import StockBlock, fetched
from tests.computer import programs

F64 = torch.float64
CYCLES, LANES, LENGTH, RANGE = 12, 3, 7, 20.0
VARIABLES = (
    MemoryVariable(FLAG, "lane0", (Write("one", -1.0),)),
    MemoryVariable("x", "samples", (Write("x", width=2),)),
    MemoryVariable("s", "samples", (Write("y"),)),
    MemoryVariable("g", "lane0", (Write("one", 0.5),)),
    MemoryVariable("h", "lane0"),
)


@cache
def tables():
    wave = programs.table("wave", lambda z: torch.sin(z / 2), lambda z: torch.tanh(z / 3) / 2,
                          -RANGE, RANGE, 96)  # fmt: skip
    sign = programs.table("sign", lambda z: torch.tanh(z / 2), programs.zero, -RANGE, RANGE, 96)
    return wave, sign


def _operand(draw, dst):
    """Reads where variables live; a few anywhere, and likenesses whoever asks."""
    home = ("x", "s") if dst in ("x", "s") else ("g", "h")
    lives = {"own": home, "rowsum": home, "lane0": ("g", "h")}
    every = ("x", "s", "g", "h")
    chosen = [r for r in READS if draw.random() < (0.12 if r == "like" else 0.4)]
    return Operand(
        **{r: draw.choice(every if draw.random() < 0.03 else lives.get(r, every)) for r in chosen}
    )


def drawn(seed):
    """The first program of this seed that check admits, and how many it refused before."""
    draw = random.Random(seed)
    for refused in range(10_000):
        code = []
        for address in range(LENGTH):
            sides = (1, -1) if draw.random() < 0.3 else (0,)
            for when in sides:
                dst = draw.choice([FLAG, "x", "s", "g", "h"])
                a, b = (_operand(draw, dst) for _ in "ab")
                table = "sign" if dst == FLAG else "wave"
                code.append(Instruction(address, dst, a, b, table, draw.randrange(LENGTH), when))
        program = Assembly("drawn", 2, 2, VARIABLES, tables(), tuple(code), (Output("g", "g", 2),))
        try:
            program.check()
        except ProgramError:
            continue
        return program, refused
    raise AssertionError("no program was admitted")


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 60))]
)
def test_what_check_admits_runs_as_it_means(seed):
    program, _ = drawn(seed)
    computer = Computer.for_programs([program], lanes=LANES)
    x, y = programs.data(seed, LANES, 2)
    prompt = computer.prompt(program, x, y)
    exact = programs.Interpreter(program, programs.memory_of(prompt, prompt.tokens))
    exact.run(CYCLES)
    ends = {b: computer.execute(prompt, CYCLES, backend=b).tokens for b in ("literal", "fused")}
    tokens = computer.network.layers[0](prompt.tokens)
    three = ThreeLayerBlock(computer.layout, computer.sizes.margins(F64)).network(F64)
    for _ in range(CYCLES):
        tokens = three(tokens)
    ends["three layers"] = tokens
    stock = StockBlock(computer.layout, computer.sizes.margins(F64))
    features, network = stock.held(fetched(prompt)), stock.network(F64)
    for _ in range(CYCLES):
        features = network(features)
    ends["stock"] = stock.spread(features)
    for backend, found in ends.items():
        for v in VARIABLES:
            off = np.abs(prompt.value(found, v.name).numpy() - exact.value(v.name)).max()
            assert off <= 1e-10, f"{backend}: {v.name} is off by {off:.1e}"


def test_every_kind_of_read_and_a_branch_are_among_them():
    kinds, branches, refused = set(), 0, 0
    for seed in range(6):
        program, before = drawn(seed)
        refused += before
        kinds |= {k for i in program.instructions for o in (i.a, i.b) for k, _ in o.reads()}
        branches += bool(program.branches)
    assert kinds == set(READS)
    assert branches >= 2
    assert refused >= 6
