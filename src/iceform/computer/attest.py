"""Attestation of a fused run: random whole cycles, run again through the literal matrices.

A cycle is kept at random as (state before, state after) while the fused backend runs. Afterwards
the state before is written into tokens, one literal cycle is run on them, and memory, flag and
program counter are compared with the state after. Both sides are within their rounding of the same
instruction, so they differ by no more than both roundings together.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import EXP_UNITS, gamma
from iceform.computer.decode import DecodedInstruction
from iceform.computer.fused import FastExecutor, State
from iceform.computer.literal import Cycle
from iceform.computer.lookups import GRID_UNITS, Value, dense, part
from iceform.computer.rounding import column_facts

_LEAST = 0.01  # seconds that running again may take, or ``REPLAY_SHARE`` of the run


@dataclass
class Reservoir:
    """A uniform sample of the cycles of a run whose length is not known beforehand."""

    kept: list[tuple[State, State]] = field(default_factory=list)
    seen: int = 0
    draw: random.Random = field(default_factory=random.SystemRandom)

    def offer(self, states: Callable[[], tuple[State, State]]) -> None:
        """Keep this cycle, or not; only of one that is kept states are asked for."""
        self.seen += 1
        if len(self.kept) < tuning.REPLAYED:
            self.kept.append(states())
        elif (at := self.draw.randrange(self.seen)) < tuning.REPLAYED:
            self.kept[at] = states()


@dataclass(frozen=True)
class Replay:
    """What running cycles again has found."""

    rows: int
    difference: float
    allowed: float
    cycles: int


def replay(
    fused: FastExecutor,
    cycle: Cycle,
    tokens: Float[Tensor, "1 t d"],
    reservoir: Reservoir,
    spent: float,
) -> Replay:
    """Run kept cycles again, of one problem each, for a tenth of the run's time or 10 ms.

    ``fused`` and ``tokens`` may have fewer lanes than the run: then as many lanes are drawn. What
    averages over lanes is added up again, lane by lane in float64, and that average is in every
    lane that is drawn; cycles that attend to lanes by likeness are left out.
    """
    until = time.perf_counter() + max(tuning.REPLAY_SHARE * spent, _LEAST)
    worst, done = (0.0, 0.0), 0
    for before, after in reservoir.draw.sample(reservoir.kept, len(reservoir.kept)):
        drawn = _drawn(fused, before, after, reservoir.draw)
        if drawn is None:
            continue
        worst, done = max(worst, _compare(fused, cycle, tokens, *drawn), key=_excess), done + 1
        if time.perf_counter() > until:
            break
    return Replay(4 * done * tokens.shape[1], *worst, done)


def _drawn(
    fused: FastExecutor, before: State, after: State, draw: random.Random
) -> tuple[State, State, State] | None:
    """One problem before and after on as many lanes as there are to run it on, and on all of them.

    None where so few lanes do not tell.
    """
    row = draw.randrange(len(before.counters))
    lanes = len(fused.image.lanes) - 1
    there = before.before.shape[1] - 1
    whole = _one(before, row, None)
    if lanes >= there:
        return whole, _one(after, row, None), whole
    code = fused.fetched(_one(before, row, [0]))[0]
    named = {(read.kind, code.fields[read.field]) for read in fused.operation.reads}
    averaged = {name for kind, name in named if kind == "mean" and name in whole.memory}
    beside = {name for kind, name in named if kind != "mean"} | {code.fields["destination"]}
    if any(kind == "like" and name for kind, name in named) or averaged & beside:
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


def _excess(pair: tuple[float, float]) -> float:
    """How far a difference uses up what is allowed; anything not a number counts as too far."""
    difference, allowed = pair
    if math.isnan(difference):
        return math.inf
    return difference / allowed if allowed > 0 else (math.inf if difference > 0 else 0.0)


def _compare(
    fused: FastExecutor, cycle: Cycle, tokens: Tensor, before: State, after: State, whole: State
) -> tuple[float, float]:
    """Largest difference after one cycle, and what is allowed of all lanes, the ``whole`` state."""
    literal = fused.start(cycle(fused.write(tokens, before)))
    if literal.counters != after.counters:
        return math.inf, 0.0
    pairs = [(literal.memory[name], after.memory[name]) for name in after.memory]
    pairs.append((literal.flag, after.flag))
    difference = max(float((dense(a) - dense(b)).abs().max()) for a, b in pairs)
    code = fused.fetched(before)[0]
    return difference, allowed_difference(fused, code, whole)


def _one(state: State, row: int, lanes: list[int] | None) -> State:
    """One problem of a batch; of variables that samples hold, some of their lanes."""
    before = state.before[row : row + 1]
    if lanes is not None:
        before = before[:, [0, *(lane + 1 for lane in lanes)]]
    memory: dict[int, Value] = {
        name: part(value, slice(row, row + 1), lanes) for name, value in state.memory.items()
    }
    return State(memory, state.flag[row : row + 1], before, state.counters[row : row + 1])


def allowed_difference(fused: FastExecutor, code: DecodedInstruction, state: State) -> float:
    """Twice the rounding of the instruction, from what memory holds, plus that of the store."""
    unit = torch.finfo(state.flag.dtype).eps / 2
    sizes = dict.fromkeys(("a", "b", "old"), 0.0)
    for target, size in _sizes(fused, code, state):
        sizes[target] += size
    terms = _terms(fused, state)
    operation = fused.operation
    absolute = operation.arguments.abs()
    half = len(absolute) // 2
    reach = sizes["a"] * absolute[:half].sum(0) + sizes["b"] * absolute[half:].sum(0)
    off = gamma(terms, unit) * reach + _likeness(fused, code, state, unit) * absolute.sum(0)
    total = [(0.0, 0.0)] * absolute.shape[1]
    for heads in fused.alike:
        first = heads[0]
        one = _head(fused, code, first, float(reach[first]), float(off[first]), unit)
        for head in heads:
            total[head] = one
    heads_off, heads_size = operation.results.new_tensor(total).T
    moved = operation.results.abs().mT @ heads_off
    result = operation.results.abs().mT @ heads_size
    stored = operation.store.abs().sum(0).max()
    held = sizes["old"] + sizes["a"] + sizes["b"] + float(result.max())
    store = gamma(4 * half + 2, unit) * float(stored) * held + 2 * unit * _largest(state)
    return 2 * float(moved.max()) * max(1.0, float(stored)) + 2 * store


def _sizes(
    fused: FastExecutor, code: DecodedInstruction, state: State
) -> Iterator[tuple[str, float]]:
    """How large every read can make a, b and old."""
    for read in fused.operation.reads:
        held = state.memory.get(code.fields[read.field])
        if held is not None:
            parts = read.matrix.abs().sum(0).split(len(read.likeness))
            for target, part in zip(("a", "b", "old"), parts, strict=True):
                yield target, float(dense(held).abs().max()) * float(part.max())


def _head(
    fused: FastExecutor, code: DecodedInstruction, h: int, reach: float, off: float, unit: float
) -> tuple[float, float]:
    """A look-up's error for arguments of a size that are off by so much; and how large it is."""
    table, operation = fused.image.entries[code.fields["with table"]], fused.operation
    columns = (operation.slopes, operation.biases, operation.values)
    slopes, biases, values = (table @ matrix[:, h] for matrix in columns)
    ends = -reach - off, reach + off
    facts = column_facts(slopes, biases, values, *ends, unit, extra=GRID_UNITS)
    return facts.rounding + facts.slope * off + gamma(3, unit) * facts.largest, facts.largest


def _terms(fused: FastExecutor, state: State) -> int:
    """Numbers that are added up in an argument, at most: lanes, components, reads."""
    lanes = max(value.shape[1] for value in state.memory.values())
    return lanes + 1 + len(fused.operation.reads) * fused.image.layout.sizes.width


def _likeness(fused: FastExecutor, code: DecodedInstruction, state: State, unit: float) -> float:
    """The error of averages by likeness."""
    total = 0.0
    for read in fused.operation.reads:
        held = state.memory.get(code.fields[read.field])
        if read.kind == "like" and held is not None:
            asked, there = fused.wide(state.before), fused.wide(dense(held))
            size = float(there.abs().max())
            logit = asked.abs() @ read.likeness.abs() @ there.abs().mT
            off = (gamma(2 * there.shape[-1] + 2, unit)) * float(logit.max()) + EXP_UNITS * unit
            sums = 2 * gamma(there.shape[1] + 2, unit)
            total += (2 * math.tanh(off) + sums) * size * float(read.matrix.abs().sum(0).max())
    return total


def _largest(state: State) -> float:
    return max(float(dense(value).abs().max()) for value in state.memory.values())
