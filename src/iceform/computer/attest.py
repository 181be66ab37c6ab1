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

from iceform.arithmetic.units import EXP_UNITS, gamma
from iceform.certificates.attester import Comparison, Replay
from iceform.computer.fused import FastExecutor, State
from iceform.computer.instructions import Instruction, Operand
from iceform.computer.layout import READ_FIELDS
from iceform.computer.literal import Cycle
from iceform.computer.lookups import GRID_UNITS, Value, dense, part
from iceform.computer.prompt import ProgramPrompt
from iceform.computer.rounding import column_facts

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
    named = {*instruction.a.reads(), *instruction.b.reads()}
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
    allowed = allowed_difference(fused, fused.fetched(before)[0], whole)
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


def allowed_difference(fused: FastExecutor, instruction: Instruction, state: State) -> float:
    """Twice the rounding of the instruction, from what memory holds, plus that of the store."""
    unit, width = torch.finfo(state.flag.dtype).eps / 2, fused.width
    reach = sum(_size(fused, operand, state) for operand in (instruction.a, instruction.b))
    lanes = max(value.shape[1] for value in state.memory.values())
    terms = lanes + 1 + (len(READ_FIELDS) + 1) * width  # added up in an argument, at most
    off = gamma(terms, unit) * reach + 2 * _likeness(fused, instruction, state, unit)
    slopes, biases, f, g = fused.entries[instruction.table].T
    moved, result = 0.0, 0.0
    for values in (f, g):
        ends = -reach - off, reach + off
        facts = column_facts(slopes, biases, values, *ends, unit, extra=GRID_UNITS)
        moved += facts.rounding + facts.slope * off + gamma(3, unit) * facts.largest
        result += facts.largest
    # The store adds the result and takes off what was there: twice what either is off by.
    held = reach + result + float(dense(state.memory[instruction.dst]).abs().max())
    store = gamma(4 * width + 2, unit) * 2 * held + 2 * unit * _largest(state)
    return 4 * moved + 2 * store


def _size(fused: FastExecutor, operand: Operand, state: State) -> float:
    """How large its reads can make an operand."""
    grown = {"rowsum": fused.width}
    return sum(
        float(dense(state.memory[name]).abs().max()) * grown.get(kind, 1)
        for kind, name in operand.reads()
    )


def _likeness(fused: FastExecutor, instruction: Instruction, state: State, unit: float) -> float:
    """The error of averages by likeness."""
    total = 0.0
    for name in filter(None, (instruction.a.like, instruction.b.like)):
        asked, there = fused.wide(state.before), fused.wide(dense(state.memory[name]))
        logit = asked.abs() @ there.abs().mT
        off = gamma(2 * there.shape[-1] + 2, unit) * float(logit.max()) + EXP_UNITS * unit
        sums = 2 * gamma(there.shape[1] + 2, unit)
        total += (2 * math.tanh(off) + sums) * float(there.abs().max())
    return total


def _largest(state: State) -> float:
    return max(float(dense(value).abs().max()) for value in state.memory.values())
