"""A run, watched: what a trace says is what ran."""

from __future__ import annotations

import pytest
import torch
from matplotlib.figure import Figure

from iceform import plots
from iceform.computer.block import LAYERS
from iceform.errors import ProgramError, ShapeError
from tests.computer import programs
from tests.computer.programs import Interpreter, memory_of, prompt_of

SAMPLES = 4


@pytest.fixture(scope="module")
def descent():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    return computer.trace(prompt.assembly, *programs.data(0, SAMPLES, 3), cycles=12)


@pytest.fixture(scope="module")
def loop():
    computer, prompt, _ = prompt_of("halving", 1)
    return computer.trace(prompt.assembly, torch.zeros(1, 1, dtype=torch.float64), start=1.1)


def test_a_trace_is_the_run(descent):
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    assert descent.cycles == 12
    assert descent.counters == [c % 4 for c in range(13)]
    exact = Interpreter(prompt.assembly, memory_of(prompt, prompt.tokens))
    for cycle in range(12):
        assert exact.next() == descent.instructions[cycle]
        name = exact.step().dst
        held = torch.tensor(exact.value(name).astype(float))
        torch.testing.assert_close(descent.memory[name][cycle + 1], held, rtol=0, atol=1e-11)
    end = computer.execute(prompt, 12, backend="literal").tokens
    assert torch.equal(descent.states[-1], end)


def test_a_trace_ends_where_the_program_does(loop):
    values = loop.memory["v"][:, 0, 0]
    assert values.unique().numel() == 5  # 1.1, .55, .275, .1375, .06875
    assert loop.counters[-1] == 4
    assert [i.when for i in loop.instructions].count(-1) == 1
    assert len(str(loop).splitlines()) == loop.cycles
    assert "v <- half(lane0[v], 0)" in str(loop)


def test_attention_by_name(descent):
    fetch = descent.attention(2)["fetch"].asked("fields")
    assert set(fetch) == {f"unit, {lane}" for lane in range(SAMPLES + 1)}
    assert all(seen == {"instruction, 2": 1.0} for seen in fetch.values())
    layers = descent.attention(3)
    assert tuple(layers) == LAYERS
    means = layers["read"].asked("b mean")["unit, 0"]
    assert means == {f"t, {lane}": 1 / SAMPLES for lane in range(1, SAMPLES + 1)}
    stored = layers["write"].asked("store")
    assert stored == {"w, 0": {"unit, 0": 1.0}}
    looked = layers["compute"].asked("G 0")["unit, 0"]
    assert {role.split(",")[0] for role in looked} == {"less"}
    with pytest.raises(ShapeError, match="cycle 12 was not run"):
        descent.attention(12)


def test_a_trace_is_of_one_problem():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    x, y = programs.data(0, SAMPLES, 3)
    with pytest.raises(ShapeError, match="one problem"):
        computer.trace(prompt.assembly, x[None], y[None], cycles=1)


@pytest.mark.parametrize("theme", [plots.LIGHT, plots.DARK], ids=lambda t: t.name)
def test_memory_over_time(loop, theme):
    figure = plots.memory(loop, theme=theme)
    assert isinstance(figure, Figure)
    top, bottom = figure.axes[:2]
    words = [text.get_text() for text in top.get_yticklabels()]
    assert words[2:4] == ["2+  v ← lane0[v]", "2−  idle ← 0"]
    assert len(top.collections[0].get_offsets()) == loop.cycles
    names = [text.get_text() for text in bottom.get_yticklabels()]
    assert names == ["v", "turns", "idle", "FLAG"]
    assert bottom.images[0].get_array().shape == (4, loop.cycles + 1)
    drawn = bottom.images[0].get_array()[0]
    torch.testing.assert_close(torch.tensor(drawn), loop.memory["v"][:, 0, 0])
    assert plots.png(figure)[:4] == b"\x89PNG"


def test_memory_of_chosen_variables(descent):
    figure = plots.memory(descent, ["x", "w"])
    rows = figure.axes[1].images[0].get_array().shape[0]
    assert rows == SAMPLES + 3
    with pytest.raises(ProgramError, match="there is no"):
        plots.memory(descent, ["nothing"])


def test_the_sides_of_a_branch_are_two_tokens(loop):
    roles = loop.prompt.roles
    assert len(set(roles)) == len(roles)
    turning = [cycle for cycle, i in enumerate(loop.instructions) if i.when]
    sides = {0: "", 1: "+", -1: "-"}
    for cycle in (turning[0], turning[-1]):
        i = loop.instructions[cycle]
        asked = loop.attention(cycle)["fetch"].asked("fields")["unit, 0"]
        assert asked == {f"instruction, {i.address}{sides[i.when]}": 1.0}
    assert loop.instructions[turning[0]].when != loop.instructions[turning[-1]].when


def test_whoever_watches_can_end_it():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    told = []

    def seen(cycles):
        told.append(cycles)
        if cycles == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        computer.trace(prompt.assembly, *programs.data(0, SAMPLES, 3), seen=seen)
    assert told == [1, 2, 3]


def test_answers_of_a_trace(descent):
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    ran = computer.execute(prompt, 12, backend="literal")
    assert descent.outputs.keys() == ran.outputs.keys()
    for name, value in ran.outputs.items():
        assert torch.equal(descent.outputs[name], value)
