"""The block: what one cycle computes, in either form, against the instruction's meaning."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from iceform.computer.computer import Computer
from iceform.computer.instructions import Instruction, Operand
from iceform.computer.layout import ComputerSizes, MaskMargins, underflow
from iceform.computer.library import EXAMPLES
from iceform.computer.literal import every_entry, needed_entries
from iceform.computer.rounding import instruction_rounding
from iceform.errors import CapacityError, ShapeError
from iceform.heads.variants import ProjectedAttention
from tests.computer import programs
from tests.computer.programs import PROGRAMS, Interpreter, memory_of, prompt_of

SAMPLES = 5
FORMS = [
    pytest.param(False, True, id="plain, every entry"),
    pytest.param(False, False, id="plain, needed entries"),
    pytest.param(True, True, id="residual, every entry"),
    pytest.param(True, False, id="residual, needed entries"),
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("residual", "every"), FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cycle_is_the_instruction(name, residual, every, dtype):
    """Every cycle, from what memory holds, is within the stated rounding of the instruction."""
    computer, prompt, cycles = prompt_of(name, SAMPLES, dtype)
    network = computer.residual_network if residual else computer.network
    cycle = every_entry(network) if every else needed_entries(network, prompt.kinds)
    program, tokens = prompt.assembly, prompt.tokens.clone()
    exact = Interpreter(program, memory_of(prompt, tokens))
    for turn in range(min(cycles, 10) if every else cycles):
        before = memory_of(prompt, tokens)
        exact.memory = Interpreter(program, before).memory
        instruction = exact.step()
        allowed = instruction_rounding(
            program, instruction, {n: float(v.abs().max()) for n, v in before.items()},
            samples=SAMPLES, width=computer.sizes.width, dtype=dtype,
        ).total  # fmt: skip
        tokens = cycle(tokens)
        for v in program.variables:
            got = prompt.value(tokens, v.name).double().numpy()
            limit = allowed if v.name == instruction.dst else 0.0
            off = np.abs(got - exact.value(v.name)).max()
            assert off <= limit, f"turn {turn}, {v.name}: off by {off:.3e}, allowed {limit:.3e}"
        assert prompt.counter(tokens) == exact.counter


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_large_values_in_memory_ask_for_nothing(residual):
    """Memory of -480 once saw an instruction: the head that fetches has a logit for its value."""
    example = EXAMPLES["value_iteration"]
    program = example.compile()
    computer = Computer.for_programs([program])
    assert computer.sizes.values >= 480
    prompt = computer.prompt(program, example.X, example.y, **example.settings)
    ran = [computer.execute(prompt, 15, residual=residual, every=e) for e in (True, False)]
    assert max(float(value.abs().max()) for value in ran[0].memory.values()) > 400
    for name, value in ran[0].memory.items():
        torch.testing.assert_close(value, ran[1].memory[name], rtol=0, atol=1e-11)
    torch.testing.assert_close(ran[0].tokens, ran[1].tokens, rtol=0, atol=1e-11)


def test_data_beyond_what_masks_cover_are_refused():
    program = programs.least_squares()
    computer = Computer.for_programs([program], lanes=SAMPLES)
    x, y = programs.data(2, SAMPLES, 3)
    with pytest.raises(CapacityError, match=r"sized for values up to .*values=\d+"):
        computer.prompt(program, x * 1e6, y)


def test_one_digest_for_every_program():
    made = [make() for make, _, _ in PROGRAMS.values()]
    computer = Computer.for_programs(made, lanes=SAMPLES)
    before = computer.digest
    for (_, parameters, _), program in zip(PROGRAMS.values(), made, strict=True):
        x, y = programs.data(1, SAMPLES, program.dim)
        run = computer.execute(computer.prompt(program, x, y, **parameters), 12)
        assert run.attestation.weights == before == computer.digest
    exact = Interpreter(made[0], memory_of(*_least_squares_on(computer, made[0]))).run(12)
    prompt, _ = _least_squares_on(computer, made[0])
    off = np.abs(computer.execute(prompt, 12).outputs["w"].numpy() - exact.value("w")[0, :3]).max()
    assert off < 1e-12, off


def _least_squares_on(computer, program):
    prompt = computer.prompt(program, *programs.data(1, SAMPLES, program.dim))
    return prompt, prompt.tokens


def test_weights_depend_on_sizes_alone():
    sizes = {"width": 2, "lanes": 4, "variables": 8, "tables": 2, "instructions": 4}
    one, same = (Computer(**sizes, table_tokens=64) for _ in range(2))
    assert one.digest == same.digest == pickle.loads(pickle.dumps(one)).digest
    others = [dict(sizes, **{name: 2 * value}) for name, value in sizes.items()]
    digests = {Computer(**other, table_tokens=64).digest for other in others}
    assert len(digests | {one.digest}) == 1 + len(sizes)
    assert one.residual_network.digest != one.digest
    assert not list(one.network.parameters())


def test_masks_leave_exact_zeros_and_ones():
    """Fetch, own and lane-0 reads, stores and copies put all of their weight on one key."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    tokens, kinds = prompt.tokens, prompt.kinds
    one_hot = {"self", "fields", "a own", "a lane0", "b own", "b lane0", "a rowsum", "old", "store"}
    answers = {"fields": "instruction", "F 0": "entry", "b mean": "memory", "store": "unit"}
    for layer in computer.network.layers:
        assert isinstance(layer, ProjectedAttention)
        for label, weights in layer.attend(tokens).items():
            if label in one_hot:
                assert set(weights.unique().tolist()) == {0.0, 1.0}, label
            if label in answers:
                seen = torch.zeros(len(tokens), dtype=torch.bool)
                seen[kinds[answers[label]]] = seen[kinds["null"]] = True
                assert not weights[:, ~seen].any(), label
        tokens = layer(tokens)


def test_a_variable_that_a_lane_does_not_hold_reads_as_zero():
    program = programs.least_squares()
    odd = Instruction(0, "w", Operand(own="x", lane0="w"), Operand(mean="minus y"), "rate", 0)
    program = replace(program, instructions=(odd,))
    computer = Computer.for_programs([program], lanes=SAMPLES)
    x, y = programs.data(2, SAMPLES, 3)
    got = computer.execute(computer.prompt(program, x, y), 1).outputs["w"]
    torch.testing.assert_close(got, (-y.mean() / 2).expand(3), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- margins


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exp_of_minus_tau_is_zero(dtype):
    tau = underflow(dtype)
    assert torch.exp(torch.tensor(-float(tau), dtype=dtype)) == 0
    assert torch.exp(torch.tensor(-float(tau) + 3, dtype=dtype)) > 0
    margins = MaskMargins.of(1e6, 100.0, dtype)
    assert margins.see >= tau + 1e6
    assert margins.fetch >= tau + 100 * margins.flag
    assert all(
        m == 4.0 ** round(np.log2(m) / 2) for m in (margins.copy, margins.see, margins.fetch)
    )


def test_a_table_of_800_entries_beside_a_narrow_one():
    """Logits of the wide table reach far beyond a mask of 512; another table's mask covers them."""
    wide = programs.table("times", torch.sin, programs.zero, -20.0, 20.0, 776)
    assert wide.tokens == 801
    program = programs.least_squares()
    one = Instruction(0, "g", Operand(own="x"), Operand(), "times", 1)
    two = Instruction(1, "t", Operand(own="x"), Operand(), "rate", 1)
    tables = (wide, *program.tables[1:])
    program = replace(program, instructions=(one, two), tables=tables)
    computer = Computer.for_programs([program], lanes=4)
    assert computer.block.margins.see > 512
    x = torch.linspace(-20, 20, 12, dtype=torch.float64).reshape(4, 3)
    x[0, 0], x[3, 2] = -19.5, 19.5
    prompt = computer.prompt(program, x)
    tokens = computer.execute(prompt, 2, every=True).tokens
    torch.testing.assert_close(prompt.value(tokens, "g")[:, :3], x.sin(), rtol=0, atol=1e-10)
    small = ComputerSizes.needed(program, 4).__dict__ | {"logits": 256}
    with pytest.raises(CapacityError, match=r"logits \d+ \(this computer: 256\)"):
        Computer(**small).prompt(program, x)


# ---------------------------------------------------------------------- sizes and costs


def test_sizes_are_the_smallest_powers_of_two():
    made = [make() for make, _, _ in PROGRAMS.values()]
    sizes = Computer.for_programs(made, lanes=5).sizes
    assert (sizes.width, sizes.lanes, sizes.variables) == (4, 8, 16)
    assert all(value & (value - 1) == 0 for value in vars(sizes).values())
    with pytest.raises(ShapeError, match="lanes="):
        Computer.for_programs(made)


def test_a_program_that_does_not_fit_is_refused_before_anything_is_built():
    program = programs.least_squares()
    computer = Computer(2, 4, 4, 2, 2, 32)
    with pytest.raises(CapacityError, match=r"width 3 \(this computer: 2\)") as caught:
        computer.plan(program, 9)
    for name in ("lanes 9", "variables 6", "tables 3", "instructions 4", "table_tokens"):
        assert name in str(caught.value)
    assert "network" not in vars(computer)


def test_the_plan_says_what_is_built():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    plan = computer.plan(prompt.assembly, SAMPLES, cycles=7)
    network = computer.network
    assert (plan.tokens, plan.features) == tuple(prompt.tokens.shape)
    assert plan.heads == sum(len(layer.labels) for layer in network.layers)
    assert plan.weight_bytes == sum(b.numel() * b.element_size() for b in network.buffers())
    assert plan.entries < plan.every_entry / 20
    assert "7 cycles" in str(plan)
