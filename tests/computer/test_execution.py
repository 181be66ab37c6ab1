"""Runs: literal, fused and the program's meaning agree, and so do changed prompts and weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from iceform.computer import attest, library, lookups
from iceform.computer.compile import compile
from iceform.computer.computer import Computer
from iceform.computer.fused import FastExecutor
from iceform.computer.instructions import Instruction, Operand
from iceform.computer.layout import code
from iceform.computer.literal import every_entry
from iceform.errors import BoundError, IntegrityError, ProgramError
from iceform.heads import unchecked
from tests.computer import programs
from tests.computer.programs import PROGRAMS, Interpreter, memory_of, prompt_of

SAMPLES = 5
CLOSE = 1e-11  # of tables with values of a few, over forty cycles of contracting programs


def meaning(program, prompt, cycles):
    return Interpreter(program, memory_of(prompt, prompt.tokens)).run(cycles)


def assert_agree(prompt, run, exact, limit=CLOSE):
    for v in exact.program.variables:
        got = prompt.value(run.tokens, v.name).double().numpy()
        off = np.abs(got - exact.value(v.name)).max()
        assert off <= limit, f"{run.backend}: {v.name} is off by {off:.3e}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", ["literal", "fused"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_programs(name, backend, dtype):
    computer, prompt, cycles = prompt_of(name, SAMPLES, dtype)
    run = computer.execute(prompt, cycles, backend=backend)
    limit = CLOSE if dtype == torch.float64 else 3e-4
    assert_agree(prompt, run, meaning(prompt.assembly, prompt, cycles), limit)
    assert run.attestation.ok, run.attestation
    assert run.cycles == cycles
    assert (run.attestation.rows > 0) == (backend == "fused")
    assert not run.ledger.host


def test_programs_mean_what_they_are_for():
    """The interpreter itself, against formulas."""
    x, y = programs.data(0, SAMPLES, 3)
    w = torch.zeros(3, dtype=torch.float64)
    for _ in range(10):
        w = w - 0.5 * x.mT @ (x @ w - y) / SAMPLES
    _, prompt, _ = prompt_of("least squares", SAMPLES)
    np.testing.assert_allclose(
        meaning(prompt.assembly, prompt, 40).value("w")[0, :3].astype(float), w, atol=1e-10
    )
    x, y = programs.data(0, SAMPLES, 2)
    weights = torch.softmax(-2 * ((x - torch.tensor([-0.5, 0.5])) ** 2).sum(-1), 0)
    computer, prompt, _ = prompt_of("kernel regression", SAMPLES)
    got = computer.execute(prompt, backend="fused").outputs["answer"]
    torch.testing.assert_close(got, (weights @ y)[None], rtol=0, atol=1e-10)
    _, prompt, _ = prompt_of("filtering", SAMPLES)
    p = 1.5
    for _ in range(8):
        p = p - p * p / (p + 0.5) + 0.1
    assert abs(float(meaning(prompt.assembly, prompt, 40).value("p")[0, 0]) - p) < 1e-9


# ---------------------------------------------------------------------- branches and halts


@pytest.mark.parametrize("late", [True, False])
def test_a_loop_stops_where_its_data_say(late):
    """A thousand starts in one batch, each with its own number of turns."""
    program = programs.halving(late=late)
    computer = Computer.for_programs([program], lanes=1)
    draw = torch.Generator().manual_seed(4)
    start = 0.12 + 1.8 * torch.rand(3000, generator=draw, dtype=torch.float64)
    turns = torch.zeros_like(start)
    v = start.clone()
    near = torch.full_like(start, torch.inf)
    for _ in range(6):
        near = torch.minimum(near, (v - 0.1).abs())
        turns, v = torch.where(v > 0.1, turns + 1, turns), torch.where(v > 0.1, v / 2, v)
    clear = near > 0.02  # where the graded step is no sign, a program may not branch
    assert clear.sum() > 1000
    x = torch.zeros(int(clear.sum()), 1, 1, dtype=torch.float64)
    prompt = computer.prompt(program, x, start=start[clear])
    run = computer.execute(prompt, backend="fused")
    torch.testing.assert_close(64 * run.outputs["turns"], turns[clear], rtol=0, atol=1e-9)
    torch.testing.assert_close(run.outputs["v"], v[clear], rtol=0, atol=1e-10)
    few = prompt.with_tokens(prompt.tokens[:24])
    literal = computer.execute(few)
    torch.testing.assert_close(64 * literal.outputs["turns"], turns[clear][:24], rtol=0, atol=1e-9)
    assert run.cycles <= literal.cycles


def test_a_flag_too_near_to_zero_is_refused():
    program = programs.halving()
    computer = Computer.for_programs([program], lanes=1)
    x = torch.zeros(1, 1, dtype=torch.float64)
    prompt = computer.prompt(program, x, start=0.1 + 1e-7)
    with pytest.raises(BoundError, match="too near to 0 to decide a branch"):
        computer.execute(prompt, backend="fused")


def test_a_batch_is_its_problems():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    x, y = (torch.stack(parts) for parts in zip(*(programs.data(s, SAMPLES, 3) for s in range(4)),
                                                strict=True))  # fmt: skip
    batch = computer.prompt(prompt.assembly, x.reshape(2, 2, SAMPLES, 3), y.reshape(2, 2, SAMPLES))
    for backend in ("literal", "fused"):
        together = computer.execute(batch, 8, backend=backend).outputs["w"].reshape(4, 3)
        for i in range(4):
            alone = computer.execute(computer.prompt(prompt.assembly, x[i], y[i]), 8)
            torch.testing.assert_close(together[i], alone.outputs["w"], rtol=0, atol=1e-14)


# ---------------------------------------------------------------------- other prompts and weights


@contextmanager
def changed(buffer: torch.Tensor, at: object, factor: float) -> Iterator[None]:
    """A weight scaled for a while."""
    kept = buffer.clone()
    buffer[at] = factor * buffer[at]
    try:
        with unchecked():
            yield
    finally:
        buffer.copy_(kept)


def test_the_fused_way_is_taken_where_the_weights_are_the_frozen_ones():
    """With any other weight, or where every entry is asked for, the matrices are multiplied."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    assert computer.execute(prompt, 4).attestation.backend == "fused"
    assert computer.execute(prompt, 4, every=True).attestation.backend == "literal"
    reads = group_of(computer, 1)
    with changed(reads.w_v, reads.labels.index("b lane0"), 0.5):
        run = computer.execute(prompt, 4)
    assert run.attestation.backend == run.backend == "literal"
    assert not run.attestation.ok
    assert computer.execute(prompt, 4).backend == "fused"


def refused(computer, prompt, error):
    """Whoever insists on what was written is told that something else is there."""
    with pytest.raises(error, match=r"backend='fused' .*; use backend='auto' or 'literal', which"):
        computer.execute(prompt, 1, backend="fused")


def group_of(computer, layer, group=-1):
    return computer.network.layers[layer].head_groups[group]


def test_a_shifted_table_value_changes_the_answer():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    tokens = prompt.tokens.clone()
    at = prompt.kinds["entry"].start + 20
    tokens[at, prompt.layout.features["f"]] += 0.1
    program = prompt.assembly
    times = replace(program.tables[0], f=program.tables[0].f + 0.1 * code(1 << 20, 49))
    other = replace(program, tables=(times, *program.tables[1:]))
    exact = meaning(other, prompt, 16)
    plain = meaning(program, prompt, 16)
    assert np.abs(exact.value("w") - plain.value("w")).max() > 1e-3
    other = prompt.with_tokens(tokens)
    refused(computer, other, ProgramError)
    run = computer.execute(other, 16)
    assert run.backend == "literal"
    assert_agree(prompt, run, exact)
    prompt.tokens.copy_(tokens)  # in place: nobody is told
    refused(computer, prompt, ProgramError)
    assert torch.equal(computer.execute(prompt, 16).tokens, run.tokens)


def test_another_destination_changes_the_answer():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    program, tokens = prompt.assembly, prompt.tokens.clone()
    to = 1 + [v.name for v in program.variables].index("g")
    tokens[2, prompt.layout.features["destination"]] = code(to, prompt.layout.size("destination"))
    instructions = list(program.instructions)
    instructions[2] = replace(instructions[2], dst="g")
    other = replace(program, instructions=tuple(instructions))
    exact = meaning(other, prompt, 12)
    assert np.abs(exact.value("w") - meaning(program, prompt, 12).value("w")).max() > 1e-3
    assert_agree(prompt, computer.execute(prompt.with_tokens(tokens), 12), exact)


def test_a_scaled_value_map_changes_the_answer():
    """W_V of the head that reads b from lane 0, times 1/2: w counts half as an operand b."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    reads = group_of(computer, 1)
    with changed(reads.w_v, reads.labels.index("b lane0"), 0.5):
        found = computer.execute(prompt, 16)
        refused(computer, prompt, IntegrityError)
    x, y = programs.data(0, SAMPLES, 3)
    w = torch.zeros(3, dtype=torch.float64)
    for _ in range(4):
        w = w - 0.5 * x.mT @ (x @ (w / 2) - y) / SAMPLES
    torch.testing.assert_close(found.outputs["w"], w, rtol=0, atol=1e-10)
    assert not found.attestation.ok
    assert found.attestation.backend == "literal"


def test_a_doubled_sharpness_changes_the_answer():
    """W_Q of every look-up of F, times 2: the same table at twice the inverse temperature."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    program, look_ups = prompt.assembly, group_of(computer, 2)
    f = [i for i, label in enumerate(look_ups.labels) if label.startswith("F")]
    with changed(look_ups.w_q, f, 2.0):
        found = computer.execute(prompt, 2)
    sharp = [replace(t, slopes=2 * t.slopes, biases=2 * t.biases) for t in program.tables]
    x, y = programs.data(0, SAMPLES, 3)
    pair, rate = sharp[0], sharp[1]
    t = programs.look_up(pair, pair.f, x.numpy()) - programs.look_up(
        program.tables[0], program.tables[0].g, x.numpy()
    )
    width = computer.sizes.width
    padding = (programs.look_up(pair, pair.f, np.zeros(1)) - programs.look_up(
        program.tables[0], program.tables[0].g, np.zeros(1)))[0] * (width - 3)  # fmt: skip
    g = programs.look_up(rate, rate.f, t.sum(-1) + padding - y.numpy())
    assert np.abs(found.outputs["residuals"].numpy() - g).max() < CLOSE
    assert np.abs(t).max() > 1e-4  # at the table's own sharpness w = 0 gives 0


def test_a_scaled_likeness_changes_the_answer():
    computer, prompt, cycles = prompt_of("kernel regression", SAMPLES)
    reads = group_of(computer, 1)
    head = reads.labels.index("a like")
    rows = reads.w_q[head].any(-1).nonzero()[:, 0]
    before = prompt.layout.features["before"]
    like = [int(r) for r in rows if reads.w_q[head, r, before].any()]
    with changed(reads.w_q, (head, like), 0.25):
        found = computer.execute(prompt, cycles)
    x, y = programs.data(0, SAMPLES, 2)
    weights = torch.softmax(-0.5 * ((x - torch.tensor([-0.5, 0.5])) ** 2).sum(-1), 0)
    torch.testing.assert_close(found.outputs["answer"], (weights @ y)[None], rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- what is refused


def test_the_fast_path_runs_no_other_weights():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    reads, compute = group_of(computer, 1), group_of(computer, 2)
    cases = [
        (reads.w_q, 0, 0.01),  # masks that do not mask
        (reads.w_o, (slice(None), prompt.layout.features["real"]), torch.nan),
        (compute.w_k, (3, 0), 1 + 2.0**-52),
        (group_of(computer, 3, 0).w_o, (0, prompt.layout.features["id"]), 0.5),
    ]
    for buffer, at, factor in cases:
        with changed(buffer, at, factor):
            refused(computer, prompt, IntegrityError)
    assert computer.execute(prompt, 1, backend="fused").attestation.ok


@pytest.mark.parametrize("factor", [torch.nan, 2.0, 1 + 2.0**-50])
@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_weights_that_were_written_to_do_not_run(factor, backend):
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    buffer = group_of(computer, 1).w_v
    kept = buffer.clone()
    try:
        buffer.data[0] *= factor  # through .data: no version counter moves
        with pytest.raises(IntegrityError, match="the frozen weights were changed"):
            computer.execute(prompt, 1, backend=backend)
        buffer.numpy()[:] = kept.numpy()
        buffer.numpy()[0, 0, 0] += 1.0
        with pytest.raises(IntegrityError, match="the frozen weights were changed"):
            computer.execute(prompt, 1, backend=backend)
    finally:
        buffer.copy_(kept)
    assert computer.execute(prompt, 1, backend=backend).attestation.ok


def test_weights_of_nan_answer_nan():
    """The literal run is made of its weights."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    for layer in range(4):
        with changed(group_of(computer, layer).w_v, slice(None), torch.nan):
            got = computer.execute(prompt, 4)
        assert not torch.isfinite(got.outputs["w"]).any()


def test_needed_entries_are_only_for_the_computers_own_weights():
    """With a weight changed, a run without integrity is the whole network's."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    store = group_of(computer, 3)
    with changed(store.w_q, slice(None), 0.0):
        tokens = computer.execute(prompt, 2).tokens
        expected = every_entry(computer.network)(every_entry(computer.network)(prompt.tokens))
    assert torch.equal(tokens, expected)
    assert tokens[prompt.kinds["entry"], prompt.layout.features["value"]].any()


# ---------------------------------------------------------------------- attestation


def test_attestation_finds_a_fused_run_that_computes_something_else(monkeypatch):
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    honest = lookups.TableLookup.__call__

    def dishonest(self, a, b, watched):
        return lookups.dense(honest(self, a, b, watched)) * (1 + 1e-9)

    assert computer.execute(prompt, 12, backend="fused").attestation.ok
    monkeypatch.setattr(lookups.TableLookup, "__call__", dishonest)
    with pytest.raises(IntegrityError, match=r"off by .* from the literal matrices"):
        computer.execute(prompt, 12, backend="fused")
    with unchecked():
        attestation = computer.execute(prompt, 12, backend="fused").attestation
    assert not attestation.ok
    assert attestation.difference > attestation.allowed > 0


def test_long_data_are_run_without_their_tokens():
    """The tokens of a few lanes tell the program; many lanes go through windows of the tables."""
    program = programs.least_squares()
    computer = Computer.for_programs([program], lanes=8192)
    x, y = programs.data(5, 8192, 3)
    prompt = computer.prompt(program, x, y)
    run = computer.execute(prompt, 12, backend="fused")
    assert "tokens" not in vars(prompt)
    w = torch.zeros(3, dtype=torch.float64)
    for _ in range(3):
        w = w - 0.5 * x.mT @ (x @ w - y) / len(x)
    torch.testing.assert_close(run.outputs["w"], w, rtol=0, atol=1e-11)
    assert run.attestation.ok
    assert run.attestation.rows > 0


def test_an_average_that_leaves_out_a_lane_is_noticed(monkeypatch):
    """Of many lanes few are run again, and what was added up over all of them."""
    program = programs.least_squares()
    computer = Computer.for_programs([program], lanes=8192)
    x, y = programs.data(5, 8192, 3)
    prompt = computer.prompt(program, x, y)
    right = FastExecutor._found

    def wrong(self, kind, name, state, lanes):
        held = state.memory[name]
        if kind == "mean" and held.shape[1] > 1:
            whole = lookups.dense(held)
            return whole[:, :-1].sum(1, keepdim=True) / whole.shape[1]
        return right(self, kind, name, state, lanes)

    said = computer.execute(prompt, 12, backend="fused").attestation
    assert said.ok
    assert "of 8192 lanes" in said.note
    monkeypatch.setattr(FastExecutor, "_found", wrong)
    monkeypatch.setattr(attest, "LEAST", 60.0)  # seconds: every cycle that is kept
    with unchecked():
        found = computer.execute(prompt, 12, backend="fused").attestation
    assert found.ok is False
    assert found.difference > found.allowed > 0


def test_arguments_beyond_a_parabola_are_looked_up():
    """Outside its range a table is no line, and the run is made again without closed forms."""
    pair = programs.parabola(-1.0, 1.0, 0.0, 1.0, 0.0)
    one = Instruction(0, "t", Operand(own="x"), Operand(), pair.name, 0)
    program = replace(programs.least_squares(), instructions=(one,), tables=(pair,))
    computer = Computer.for_programs([program], lanes=8192)
    x, y = programs.data(5, 8192, 3)
    for extreme, leaves in ((1.0, False), (6.0, True)):
        x[7] = extreme
        run = computer.execute(computer.prompt(program, x, y), 1, backend="fused")
        exact = programs.look_up(pair, pair.f, x[:9].numpy().astype(np.longdouble))
        assert np.abs(run.memory["t"][:9, :3].numpy() - exact).max() < CLOSE
        assert (np.abs(exact[7] - extreme).max() > 1e-3) == leaves


def test_the_tokens_at_the_end_are_the_literal_ones():
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    found, literal = (computer.execute(prompt, 8, backend=b) for b in ("fused", "literal"))
    features = torch.ones(prompt.tokens.shape[-1], dtype=torch.bool)
    features[prompt.layout.columns("before")] = False
    torch.testing.assert_close(found.tokens[:, features], literal.tokens[:, features])


def test_a_table_changed_in_place_is_looked_up_as_it_is():
    """What is kept of a program's tables is compared with them, number by number."""
    computer, prompt, _ = prompt_of("least squares", SAMPLES)
    program = prompt.assembly
    tables = [replace(t, f=t.f.clone()) for t in program.tables]
    x, y = programs.data(0, SAMPLES, 3)
    own = replace(program, tables=tuple(tables))
    before = computer.execute(computer.prompt(own, x, y), 16, backend="fused").outputs["w"]
    tables[0].f[20] += 0.1
    prompt = computer.prompt(own, x, y)
    after = [computer.execute(prompt, 16, backend=b).outputs["w"] for b in ("fused", "literal")]
    torch.testing.assert_close(*after, rtol=0, atol=1e-10)
    assert float((after[0] - before).abs().max()) > 1e-3


def test_the_host_only_looks_at_the_program_counter():
    computer, prompt, _ = prompt_of("halving", 1)
    for backend in ("literal", "fused"):
        run = computer.execute(prompt, backend=backend)
        assert len(run.ledger.host) == 1
        assert "program counter" in run.ledger.host[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this compares with a GPU")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gpu_runs_the_same_cycles(dtype):
    computer, prompt, _ = prompt_of("least squares", SAMPLES, dtype)
    x, y = (t.cuda() for t in programs.data(0, SAMPLES, 3, dtype))
    expected = computer.execute(computer.prompt(prompt.assembly, x, y), 12)
    computer.network.cpu()
    here = computer.execute(prompt, 12).outputs["w"]
    limit = 1e-13 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(expected.outputs["w"].cpu(), here, rtol=0, atol=limit)


def test_reading_nothing_is_zero():
    """An instruction without operands looks 0 up."""
    _, prompt, _ = prompt_of("halving", 1)
    assert prompt.assembly.instructions[1].a == Operand()
    computer, prompt, _ = prompt_of("halving", 1)
    run = computer.execute(prompt, 2)
    assert prompt.value(run.tokens, "idle").abs().max() < 1e-12


@pytest.mark.slow
def test_two_hundred_steps_of_logistic_regression():
    """64 samples, 4 features, from the first instruction to the halt: one network, looped."""
    draw = torch.Generator().manual_seed(0)
    X = 2 * torch.rand(64, 4, dtype=torch.float64, generator=draw) - 1
    slope = torch.tensor([1.0, -0.5, 0.3, 0.0], dtype=torch.float64)
    noise = torch.randn(64, dtype=torch.float64, generator=draw)
    y = (X @ slope + noise > 0).double()
    program = compile(library.logistic, 4, 64, bounds={"w": 4.0})
    computer = Computer.for_programs([program])
    result = computer.run(program, X, y, steps=200)
    exact = library.logistic(X, y, steps=200)
    certificate = result.enclosure
    assert (certificate.kind, certificate.backend) == ("proven", "literal")
    assert certificate.error <= 1e-10
    assert float((result.value - exact).abs().max()) <= certificate.error + 1e-14
    assert result.passes > 200 * 5
    counted = [times for where, _, times in result.ledger if where == "attention"]
    assert counted == [result.passes]
