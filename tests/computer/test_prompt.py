"""Prompts: what depends on data, what is refused, how answers are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from iceform.computer.computer import Computer
from iceform.computer.instructions import FLAG, Output
from iceform.errors import BoundError, CapacityError, DtypeError, ProgramError, ShapeError
from tests.computer import programs
from tests.computer.programs import PROGRAMS, prompt_of

SAMPLES = 6


def _bytes(tokens: torch.Tensor) -> bytes:
    return tokens.contiguous().numpy().tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_tokens_are_the_same_bytes_for_all_data(name):
    _, one, _ = prompt_of(name, SAMPLES, seed=1)
    _, other, _ = prompt_of(name, SAMPLES, seed=2)
    memory = one.kinds["memory"]
    assert memory.stop == len(one.tokens)
    assert _bytes(one.tokens[: memory.start]) == _bytes(other.tokens[: memory.start])
    value = one.layout.features["value"]
    rest = torch.ones(one.tokens.shape[-1], dtype=torch.bool)
    rest[value] = False
    assert _bytes(one.tokens[memory][:, rest]) == _bytes(other.tokens[memory][:, rest])


def test_data_enter_affinely():
    """P(s u + (1 - s) v) = s P(u) + (1 - s) P(v), in every feature of every token."""
    program = programs.kernel_regression()
    computer = Computer.for_programs([program], lanes=SAMPLES)
    (x, y), (u, v) = programs.data(1, SAMPLES, 2), programs.data(2, SAMPLES, 2)
    q = programs.query(2)
    mixed = computer.prompt(program, x / 4 + 3 * u / 4, y / 4 + 3 * v / 4, query=q / 4)
    one, other = (
        computer.prompt(program, x, y, query=q),
        computer.prompt(program, u, v, query=0 * q),
    )
    expected = one.tokens / 4 + 3 * other.tokens / 4
    torch.testing.assert_close(mixed.tokens, expected, rtol=0, atol=1e-15)


def test_every_token_has_a_role_and_every_feature_a_name():
    _, prompt, _ = prompt_of("least squares", SAMPLES)
    tokens, features = prompt.tokens.shape
    assert len(prompt.roles) == tokens
    assert len(prompt.layout.features.names()) == features
    assert prompt.roles[prompt.variables["x"].start] == "x, 1"
    assert prompt.roles[prompt.kinds["null"].start] == "null"


def test_answers_are_read_by_lane_and_by_width():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    x, y = programs.data(0, SAMPLES, 3)
    read = {o.name: prompt.read(prompt.tokens, o) for o in prompt.assembly.outputs}
    assert read["w"].shape == (3,)
    assert read["residuals"].shape == (SAMPLES,)
    torch.testing.assert_close(prompt.read(prompt.tokens, Output("x", "x", 2, 1)), x[:, 1:])
    torch.testing.assert_close(prompt.read(prompt.tokens, Output("y", "minus y")), -y)
    batch = computer.prompt(prompt.assembly, torch.stack([x, -x]), torch.stack([y, y]))
    assert batch.tokens.shape == (2, *prompt.tokens.shape)
    assert torch.equal(batch.tokens[0], prompt.tokens)
    assert batch.read(batch.tokens, prompt.assembly.outputs[1]).shape == (2, SAMPLES)


def test_fewer_samples_than_lanes():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    x, y = programs.data(0, 3, 3)
    got = computer.execute(computer.prompt(prompt.assembly, x, y), 4).outputs["w"]
    torch.testing.assert_close(got, 0.5 * (x.mT @ y) / 3, rtol=0, atol=1e-12)
    assert computer.sizes.lanes > SAMPLES > 3


# ---------------------------------------------------------------------- what is refused


def test_bad_data_are_refused():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    x, y = programs.data(0, SAMPLES, 3)
    with pytest.raises(BoundError, match="x would start with NaN"):
        computer.prompt(prompt.assembly, x.log(), y)
    with pytest.raises(ShapeError, match="x must be"):
        computer.prompt(prompt.assembly, x[0], y)
    with pytest.raises(ShapeError, match="x "):
        computer.prompt(prompt.assembly, x[:, :2], y)
    with pytest.raises(ShapeError, match="y "):
        computer.prompt(prompt.assembly, x, y[:3])
    with pytest.raises(DtypeError, match=r"x has dtype torch\.float32"):
        computer.prompt(prompt.assembly, x.float(), y.float())
    with pytest.raises(CapacityError, match=r"lanes 9 \(this computer: 8\)"):
        computer.prompt(prompt.assembly, *programs.data(0, 9, 3))


def test_a_parameter_that_is_missing_is_named():
    program = programs.halving()
    computer = Computer.for_programs([program], lanes=1)
    with pytest.raises(ProgramError, match="writes 'start' into v; it was not given"):
        computer.prompt(program, torch.zeros(1, 1, dtype=torch.float64))


def test_a_parameter_that_is_not_the_programs_is_named():
    program = programs.halving()
    computer = Computer.for_programs([program], lanes=1)
    with pytest.raises(ProgramError, match="has no parameter 'begin'; it has start"):
        computer.prompt(program, torch.zeros(1, 1, dtype=torch.float64), begin=1.0)


def test_a_flag_that_is_no_sign_is_refused():
    program = programs.halving()
    loud = replace(program.instructions[0], table="half", dst=FLAG)
    tables = tuple(replace(t, f=4 * t.f) if t.name == "half" else t for t in program.tables)
    changed = replace(program, instructions=(loud, *program.instructions[1:]), tables=tables)
    with pytest.raises(ProgramError, match=r"may write up to .* into FLAG"):
        Computer.for_programs([changed], lanes=1)
    computer = Computer.for_programs([program], lanes=1)
    with pytest.raises(ProgramError, match=r"may write up to .* into FLAG"):
        computer.prompt(changed, torch.zeros(1, 1, dtype=torch.float64), start=1.0)
