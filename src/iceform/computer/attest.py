"""Attestation of a fused run: random whole cycles, run again through the literal matrices.

A cycle is kept at random as (state before, state after) while the fused backend runs. Afterwards
the state before is written into tokens, one literal cycle is run on them, and memory, flag and
program counter are compared with the state after. Both sides are within their rounding of the same
instruction, so they differ by no more than both roundings together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from iceform.certificates.attester import Comparison, Replay
from iceform.computer.fused import FastExecutor, State
from iceform.computer.instructions import Instruction
from iceform.computer.literal import Cycle
from iceform.computer.lookups import Value, dense, largest, part
from iceform.computer.prompt import ProgramPrompt
from iceform.computer.rounding import instruction_rounding

LEAST = 0.01  # seconds that running again may take, or ``REPLAY_SHARE`` of the run


def cycle_questions(
    fused: FastExecutor, cycle: Cycle, prompt: ProgramPrompt, pair: tuple[State, State],
    draw: random.Random,
) -> Iterator[Replay]:  # fmt: skip
    """One problem of a cycle, to be run again literally; nothing where few lanes do not tell.

    ``fused`` and ``prompt`` may have fewer lanes than the run: then as many lanes are drawn. What
    averages over lanes is added up again, lane by lane in float64, and that average is in every
    lane that is drawn; cycles that attend to lanes by likeness are left out.
    """
    drawn = _drawn(fused, *pair, draw)
    if drawn is not None:
        yield Replay(partial(_compare, fused, cycle, prompt, *drawn))


def _drawn(
    fused: FastExecutor, before: State, after: State, draw: random.Random
) -> tuple[State, State, State] | None:
    """One problem before and after on as many lanes as there are to run it on, and on all of them.

    None where so few lanes do not tell.
    """
    row = draw.randrange(len(before.counters))
    lanes, there = fused.samples, before.before.shape[1] - 1
    whole = _one(before, row, None)
    if lanes >= there:
        return whole, _one(after, row, None), whole
    instruction = fused.fetched(_one(before, row, [0]))[0]
    named = set(instruction.reads())
    averaged = {name for kind, name in named if kind == "mean"}
    beside = {name for kind, name in named if kind != "mean"} | {instruction.dst}
    if fused.asks(instruction) or averaged & beside:
        return None
    chosen = sorted(draw.sample(range(there), lanes))
    averages = {name: _average(whole.memory[name], lanes) for name in averaged}
    pair = (_one(state, row, chosen) for state in (before, after))
    few, then = (replace(state, memory={**state.memory, **averages}) for state in pair)
    return few, then, whole


def _average(value: Value, lanes: int) -> Tensor:
    """The average over all lanes, added up from what each of them holds, in each of so many."""
    held = dense(value)
    if held.shape[1] == 1:
        return held
    return held.double().mean(1, keepdim=True).to(held.dtype).expand(-1, lanes, -1)


def _compare(
    fused: FastExecutor, cycle: Cycle, prompt: ProgramPrompt,
    before: State, after: State, whole: State,
) -> Comparison:  # fmt: skip
    """Largest difference after one cycle, and what is allowed of all lanes, the ``whole`` state."""
    tokens = prompt.tokens.reshape(-1, *prompt.tokens.shape[-2:])
    literal, rows = State.read(prompt, cycle(before.written(prompt, tokens))), 4 * tokens.shape[-2]
    if literal.counters != after.counters:
        return Comparison(rows, math.inf, 0.0)
    pairs = [(literal.memory[name], after.memory[name]) for name in after.memory]
    pairs.append((literal.flag, after.flag))
    off = torch.cat([(dense(a) - dense(b)).abs().flatten() for a, b in pairs]).max()
    allowed = allowed_difference(fused, fused.fetched(before)[0], before, whole)
    return Comparison(rows, float(off), allowed)


def _one(state: State, row: int, lanes: list[int] | None) -> State:
    """One problem of a batch; of variables that samples hold, some of their lanes."""
    before = state.before[row : row + 1]
    if lanes is not None:
        before = before[:, [0, *(lane + 1 for lane in lanes)]]
    memory: dict[str, Value] = {
        name: part(value, slice(row, row + 1), lanes) for name, value in state.memory.items()
    }
    return State(memory, state.flag[row : row + 1], before, state.counters[row : row + 1])


def allowed_difference(
    fused: FastExecutor, instruction: Instruction, before: State, whole: State
) -> float:
    """What is proven of both executions of an instruction, from what ``whole`` memory holds.

    Its table is taken as wide as the arguments that are met in the lanes ``before``.
    """
    bounds = {name: float(size) for name, size in largest(whole.memory).items()}
    table, dtype = fused.assembly.table(instruction.table), whole.flag.dtype
    reach = max(float(z.abs().max()) for z in fused.arguments(instruction, before))
    if not -table.low >= reach <= table.high:
        low, high = min(table.low, -reach), max(table.high, reach)
        table = replace(table, low=low, high=high)
    lanes = max(value.shape[1] for value in whole.memory.values())
    both = (
        instruction_rounding(
            fused.assembly, instruction, bounds, samples=lanes, width=fused.width, dtype=dtype,
            backend=backend, table=table,
        )
        for backend in ("literal", "fused")
    )  # fmt: skip
    return sum(rounding.total for rounding in both)
