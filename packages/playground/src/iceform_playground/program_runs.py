"""Literal runs of the frozen computer, traced cycle by cycle, as the page steps through them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import exactly
from iceform.certificates import Attestation, ErrorBound
from iceform.computer import (
    LAYERS,
    Computer,
    ComputerTrace,
    Instruction,
    LayerAttention,
    Program,
    accounted,
    curve,
    enclosure_of,
    spelled,
)
from iceform.computer.library import EXAMPLES, LibraryExample
from iceform.errors import IntegrityError

PROGRAMS: dict[str, tuple[str, dict[str, float]]] = {  # title, and settings other than the usual
    "least_squares": ("Least squares", {"steps": 3}),
    "kernel_regression": ("Kernel regression", {}),
    "pagerank": ("PageRank", {}),
}
_TURNS = 8  # of a counted loop, where the settings name no number
_DIGITS = 6  # significant digits of numbers that are only drawn


@lru_cache(maxsize=1)
def the_computer() -> Computer:
    """One frozen block that holds every program of the library, on its example."""
    return Computer(
        width=8,
        lanes=16,
        variables=32,
        tables=32,
        instructions=64,
        table_tokens=1024,
        logits=1 << 35,
        values=1 << 15,
    )


def program_run(name: str) -> dict[str, Any]:
    """A program of the library on its example: the run, and the attention of every cycle."""
    example = EXAMPLES[name]
    program = example.compile()
    settings = {**_starts(example, program), **PROGRAMS[name][1]}
    trace = the_computer().trace(program, example.X, example.y, **settings)
    width = program.assembly.width
    return {
        "answer": _answer(example, program, settings, trace),
        "cycles": [
            {"layers": [_layer(layer, width) for layer in trace.layers(cycle)]}
            for cycle in range(trace.cycles)
        ],
    }


def _starts(example: LibraryExample, program: Program) -> dict[str, Any]:
    """The example's settings, with few turns of its loops."""
    given = program.parameters(**example.settings)
    few = {name: min(float(given[name][0]), _TURNS) for name in program.counts}
    return {**example.settings, **few}


def _numbers(values: Iterable[float]) -> list[float]:
    """Numbers to draw."""
    return [float(f"{v:.{_DIGITS}g}") for v in values]


# ---------------------------------------------------------------------------------------------
# the run
# ---------------------------------------------------------------------------------------------


def _answer(
    example: LibraryExample, program: Program, settings: dict[str, Any], trace: ComputerTrace
) -> dict[str, Any]:
    """Memory, counter and instruction of every cycle, the answers and what is proven of them.

    ``first_line`` is where the source begins in its file, ``off`` the largest difference of an
    answer from the exact program's in float64.
    """
    computer, function = the_computer(), example.algorithm.function
    source, first = inspect.getsourcelines(function)
    cost = computer.plan(program, len(example.X))
    exact = program.reference(example.X, example.y, **settings)
    named = exact if isinstance(exact, dict) else {"value": exact}
    given = program.parameters(**settings)
    bound = enclosure_of(
        program, example.X, example.y, trace.outputs, settings, computer.dtype, "literal"
    )
    attestation = Attestation(trace.network.check(), trace.network.expected or "", "literal")
    return {
        "name": program.name,
        "says": (function.__doc__ or f"{PROGRAMS[program.name][0]}.").split("\n")[0],
        "digest": computer.digest,
        "tokens": cost.tokens,
        "features": cost.features,
        "heads": cost.heads,
        "layers": len(LAYERS),
        "source": dedent("".join(source)).splitlines(),
        "first_line": first,
        "parameters": {
            name: float(given[name][0])
            for name, parameter in program.graph.parameters.items()
            if not parameter.vector
        },
        "instructions": [_instruction(program, i) for i in program.assembly.instructions],
        "variables": _variables(trace),
        "cycles": list(_cycles(trace)),
        "outputs": {name: value.flatten().tolist() for name, value in trace.outputs.items()},
        "off": max(float((v - named[name]).abs().max()) for name, v in trace.outputs.items()),
        "certificate": certificate_json(bound or program.certify(computer.dtype, **settings)[0]),
        "attestation": attestation.explain(),
        "ledger": accounted(trace.prompt, trace.cycles, stops=True).explain(),
    }


def certificate_json(certificate: ErrorBound) -> dict[str, Any]:
    """A certificate or an enclosure for the page; a number that is not finite is null."""
    return {
        "error": _finite(certificate.error),
        "kind": certificate.kind,
        "terms": {name: _finite(value) for name, value in certificate.terms.items()},
        "domain": {
            name: value if isinstance(value, str) else exactly(value)
            for name, value in certificate.domain.items()
        },
        "derivation": [
            {**vars(step), "value": _finite(step.value)} for step in certificate.derivation
        ],
        "assumptions": list(certificate.assumptions),
    }


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _instruction(program: Program, i: Instruction) -> dict[str, Any]:
    """Assembly, what its table computes, and the line that asked for it."""
    table = program.assembly.table(i.table)
    return {
        "address": i.address, "when": i.when, "text": spelled(i), "f": curve(table, "f"),
        "g": curve(table, "g"), "note": i.note, "line": i.line, "halts": i.halts,
    }  # fmt: skip


def _memory(trace: ComputerTrace) -> dict[str, Tensor]:
    """Memory over time, (cycles + 1, lanes, components), one component where all are equal."""
    width, memory = trace.prompt.assembly.width, {}
    for name, values in trace.memory.items():
        used = values[..., :width]
        same = bool((used == used[..., :1]).all())
        memory[name] = used[..., :1] if same else used
    return memory


def _variables(trace: ComputerTrace) -> list[dict[str, Any]]:
    memory = _memory(trace)
    return [
        {"name": v.name, "lanes": v.lanes, "start": _rows(memory[v.name][0])}
        for v in trace.prompt.assembly.variables
    ]


def _cycles(trace: ComputerTrace) -> Iterator[dict[str, Any]]:
    """Which instruction each cycle executed, and what then was different in memory."""
    memory, all_of_them = _memory(trace), list(trace.prompt.assembly.instructions)
    for cycle, instruction in enumerate(trace.instructions):
        changed = {
            name: _rows(values[cycle + 1])
            for name, values in memory.items()
            if not torch.equal(values[cycle], values[cycle + 1])
        }
        yield {"instruction": all_of_them.index(instruction), "changed": changed}


def _rows(values: Tensor) -> list[list[float]]:
    return [_numbers(lane) for lane in values.tolist()]


# ---------------------------------------------------------------------------------------------
# one cycle
# ---------------------------------------------------------------------------------------------


def _layer(seen: LayerAttention, width: int) -> dict[str, Any]:
    """Who attends to whom in a layer.

    ``copies`` of its tokens are copied to themselves by the self head; ``idle`` heads are asked by
    nobody, and ``hidden`` ones look components up that this program does not use.
    """
    own = seen.heads["self"]
    copies = int((own == torch.eye(len(own), dtype=own.dtype)).all(1).sum())
    if copies != len(own):
        raise IntegrityError(f"{len(own) - copies} tokens are not copied by the self head")
    looked = {name: weights for name, weights in seen.heads.items() if name != "self"}
    used = {name: weights for name, weights in looked.items() if _component(name) < width}
    heads = [head for name, weights in used.items() if (head := _head(name, weights, seen.roles))]
    return {
        "layer": seen.layer, "copies": copies, "idle": len(used) - len(heads),
        "hidden": len(looked) - len(used), "heads": heads,
    }  # fmt: skip


def _component(head: str) -> int:
    """The component that a head of the compute layer looks up; 0 for all others."""
    column, _, number = head.partition(" ")
    return int(number) if column in ("F", "G") else 0


def _head(name: str, weights: Tensor, roles: tuple[str, ...]) -> dict[str, Any] | None:
    """Tokens that ask something else than the null token, and those that answer them."""
    null = roles.index("null")
    asking = (weights[:, null] != 1).nonzero()[:, 0]
    if not len(asking):
        return None
    answering = (weights[asking] > 0).any(0).nonzero()[:, 0]
    return {
        "name": name,
        "queries": [roles[i] for i in asking.tolist()],
        "keys": [roles[i] for i in answering.tolist()],
        "weights": [_numbers(row) for row in weights[asking][:, answering].tolist()],
    }
