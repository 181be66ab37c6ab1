"""Programs that are stepped through: what is sent is the trace of a literal run."""

from __future__ import annotations

import pytest
import torch

from iceform.computer import Computer
from iceform.computer.library import EXAMPLES
from iceform.errors import BoundError, CapacityError, ProgramError, ShapeError
from iceform_playground import questions as asked
from iceform_playground import stepping
from iceform_playground.stepping import attention, programs, step_through, the_computer
from iceform_playground.task import Stopped
from iceform_playground.tasks import TASKS, catalogue

QUICK = ("least_squares", "softmax_attention", "bisection")


def unhurried() -> None:
    pass


def run(program: str, **settings: float):
    return step_through(asked.ProgramQuestion(program=program, settings=settings), unhurried)


def traced(program: str, **settings: float):
    example = EXAMPLES[program]
    given = {**example.settings, **settings}
    return the_computer().trace(example.compile(), example.X, example.y, **given)


def memory_at(answer, cycle: int) -> dict[str, torch.Tensor]:
    held = {v.name: v.start for v in answer.variables}
    for step in answer.cycles[:cycle]:
        held |= step.changed
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in held.items()}


@pytest.mark.parametrize("name", QUICK)
def test_it_is_the_trace(name):
    settings = {"steps": 3.0} if "steps" in EXAMPLES[name].settings else {}
    answer, trace = run(name, **settings), traced(name, **settings)
    assert type(answer).model_validate_json(answer.model_dump_json()) == answer
    assert len(answer.cycles) == trace.cycles
    instructions = trace.prompt.assembly.instructions
    assert [instructions[step.instruction] for step in answer.cycles] == trace.instructions
    for cycle in range(trace.cycles + 1):
        for variable, held in memory_at(answer, cycle).items():
            exact = trace.memory[variable][cycle, :, : trace.prompt.assembly.width]
            torch.testing.assert_close(held.expand_as(exact), exact, rtol=1e-5, atol=0)
    for output in answer.outputs:
        assert output.value == trace.outputs[output.name].flatten().tolist()
    assert answer.digest == the_computer().digest == trace.network.digest


def test_what_is_proven_is_what_a_run_proves():
    example = EXAMPLES["bisection"]
    answer = run("bisection", tolerance=0.02)
    result = the_computer().run(example.compile(), example.X, example.y, tolerance=0.02)
    assert answer.certificate.error == result.enclosure.error
    assert answer.certificate.domain == {k: str(v) for k, v in result.enclosure.domain.items()}
    assert answer.off <= answer.certificate.error + 1e-14
    assert answer.digest[:12] in answer.attestation
    assert f"{len(answer.cycles)}" in answer.ledger


def test_the_attention_is_the_traces():
    question = asked.CycleQuestion(program="least_squares", settings={"steps": 2.0}, cycle=6)
    seen = attention(question, unhurried)
    trace = traced("least_squares", steps=2.0)
    for layer, found in zip(seen.layers, trace.layers(6), strict=True):
        assert layer.layer == found.layer
        shown = {head.name: head for head in layer.heads}
        asked_of = {name: found.asked(name) for name in found.heads if name != "self"}
        assert layer.copies == len(found.roles)
        assert layer.idle == sum(not asks for asks in asked_of.values())
        for name, asks in asked_of.items():
            if name not in shown:
                assert not asks or int(name.split()[1]) >= trace.prompt.assembly.width
                continue
            head = shown[name]
            assert set(head.queries) == set(asks)
            for query, row in zip(head.queries, head.weights, strict=True):
                sent = {k: w for k, w in zip(head.keys, row, strict=True) if w}
                assert sent == pytest.approx(asks[query], rel=1e-5)
    fields = seen.layers[0].heads[0]
    address = trace.instructions[6].address
    assert (fields.name, fields.keys) == ("fields", [f"instruction, {address}"])


def test_other_settings_are_another_prompt_for_the_same_weights():
    one, two = run("ridge", steps=2.0), run("ridge", steps=3.0, lr=0.25)
    assert one.digest == two.digest
    assert len(one.cycles) < len(two.cycles)
    assert one.outputs[0].value != two.outputs[0].value
    assert {p.name: p.value for p in two.parameters} == {"alpha": 0.1, "lr": 0.25, "steps": 3.0}


def test_the_source_is_the_authors():
    answer = run("bisection")
    assert answer.source[1] == "def bisection(x, y, *, tolerance=0.01):"
    lines = [answer.source[i.line - answer.first_line] for i in answer.instructions if i.line]
    assert any("while while_(high - low > tolerance)" in line for line in lines)
    assert run("softmax_attention").instructions[-1].halts


@pytest.mark.parametrize(
    ("program", "settings", "error", "says"),
    [
        ("no_such", {}, ProgramError, "no program is called 'no_such'"),
        ("ridge", {"beta": 1.0}, ProgramError, "no parameter 'beta' that is a number; it has"),
        ("k_means", {"first": 1.0}, ProgramError, "no parameter 'first' that is a number"),
        ("ridge", {"lr": 50.0}, BoundError, "lr"),
        ("ridge", {"steps": 900.0}, CapacityError, "more than 300 cycles .* take fewer steps"),
    ],
)
def test_what_is_refused(program, settings, error, says):
    with pytest.raises(error, match=says):
        run(program, **settings)


def test_a_cycle_that_was_not_run():
    with pytest.raises(ShapeError, match="cycle 3 was not run; there were 3"):
        attention(asked.CycleQuestion(program="softmax_attention", cycle=3), unhurried)


def test_a_run_ends_when_nobody_waits():
    beats = 0

    def pulse():
        nonlocal beats
        beats += 1
        if beats == 5:
            raise Stopped

    with pytest.raises(Stopped):
        step_through(asked.ProgramQuestion(program="ridge", settings={"lr": 0.125}), pulse)
    assert beats == 5
    assert run("ridge", lr=0.125).cycles  # nothing half-run was kept


def test_everything_of_the_library_is_offered():
    assert [one.name for one in catalogue().programs] == list(EXAMPLES)
    assert len({one.title for one in programs()}) == len(EXAMPLES)
    assert {"program", "cycle"} <= set(TASKS)


@pytest.mark.slow
def test_every_program_on_the_one_computer():
    compiled = [example.compile() for example in EXAMPLES.values()]
    assert the_computer() == Computer.for_programs(compiled)
    digests = set()
    for name in EXAMPLES:
        answer = run(name)
        digests.add(answer.digest)
        assert answer.off <= answer.certificate.error + 1e-14
        assert len(answer.cycles) <= asked.MOST_CYCLES
        last = asked.CycleQuestion(program=name, cycle=len(answer.cycles) - 1)
        assert [layer.layer for layer in attention(last, unhurried).layers] == list(stepping.LAYERS)
    assert len(digests) == 1
