"""A program on the frozen computer, stepped through: one literal run, traced.

Only programs of the library run here. To compile an algorithm is to run its author's Python, and a
server must not do that for whoever asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor

from iceform.certificates import Attestation
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
    interpret,
    spelled,
)
from iceform.computer.library import EXAMPLES, Example
from iceform.errors import CapacityError, IntegrityError, ProgramError
from iceform_playground import questions as asked
from iceform_playground.answers import (
    AttentionAnswer,
    CertificateAnswer,
    CycleAnswer,
    CycleStep,
    HeadAnswer,
    InstructionAnswer,
    OutputAnswer,
    ParameterAnswer,
    ProgramAnswer,
    ProgramOption,
    VariableAnswer,
    numbers,
)
from iceform_playground.task import Pulse

_TURNS = 8  # of a counted loop, to begin with
_MOST_BYTES = 384 << 20  # of the tokens of all cycles, which a trace keeps
_ACRONYMS = {"pagerank": "PageRank", "k_means": "k-means", "bellman_ford": "Bellman-Ford"}


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


def programs() -> list[ProgramOption]:
    """What can be stepped through."""
    return [ProgramOption(name=name, title=_title(name)) for name in EXAMPLES]


def _title(name: str) -> str:
    return _ACRONYMS.get(name, name.replace("_", " ").capitalize())


@lru_cache(maxsize=len(EXAMPLES))
def _compiled(name: str) -> Program:
    return EXAMPLES[name].compile()


@dataclass(frozen=True, eq=False)
class _Run:
    """A program with its example and settings."""

    example: Example
    program: Program
    settings: dict[str, Any]

    @classmethod
    def of(cls, question: asked.ProgramQuestion) -> _Run:
        """Checked, before anything is run."""
        if question.program not in EXAMPLES:
            raise ProgramError(
                f"no program is called {question.program!r}; there are {', '.join(EXAMPLES)}"
            )
        example, program = EXAMPLES[question.program], _compiled(question.program)
        offered = _scalars(program)
        for name in question.settings:
            if name not in offered:
                raise ProgramError(
                    f"{program.name} has no parameter {name!r} that is a number; it has "
                    f"{', '.join(offered) or 'none'}"
                )
        settings = {**_starts(example, program), **question.settings}
        run = cls(example, program, settings)
        program.domain.check(example.X, example.y, program.parameters(**settings))
        run.check_length()
        return run

    def check_length(self) -> None:
        """Refuse a run that is too long to be kept, by interpreting it without attention."""
        example, most = self.example, asked.MOST_CYCLES
        cost = the_computer().plan(self.program, len(example.X))
        most = min(most, _MOST_BYTES // cost.token_bytes - 1)
        cycles = 0

        def seen(*_: object) -> None:
            nonlocal cycles
            cycles += 1
            if cycles > most:
                raise CapacityError(
                    f"{self.program.name} takes more than {most} cycles with these settings, the "
                    "most that this page keeps; take fewer steps, or a larger tolerance"
                )

        given = self.program.parameters(**self.settings)
        interpret.interpret(self.program.assembly, example.X, example.y, given, seen=seen)

    def trace(self, pulse: Pulse) -> ComputerTrace:
        """The literal run, every cycle kept."""
        example = self.example
        return the_computer().trace(
            self.program, example.X, example.y, seen=lambda _: pulse(), **self.settings
        )


_LAST: dict[Hashable, tuple[_Run, ComputerTrace]] = {}  # the run that was asked for last


def _traced(question: asked.ProgramQuestion, pulse: Pulse) -> tuple[_Run, ComputerTrace]:
    """A run and its trace; the last one is kept, so that its other cycles can be shown."""
    key = question.program, tuple(sorted(question.settings.items()))
    if key not in _LAST:
        run = _Run.of(question)
        pulse()
        _LAST.clear()  # before the next takes its memory
        _LAST[key] = run, run.trace(pulse)
    return _LAST[key]


def _scalars(program: Program) -> list[str]:
    return [name for name, p in program.graph.parameters.items() if not p.vector]


def _starts(example: Example, program: Program) -> dict[str, Any]:
    """The example's settings, with few turns of its loops."""
    given = program.parameters(**example.settings)
    few = {name: min(float(given[name][0]), _TURNS) for name in program.counts}
    return {**example.settings, **few}


# ---------------------------------------------------------------------------------------------
# the run
# ---------------------------------------------------------------------------------------------


def step_through(question: asked.ProgramQuestion, pulse: Pulse) -> ProgramAnswer:
    """Memory, counter and instruction of every cycle, the answers and what is proven of them."""
    run, trace = _traced(question, pulse)
    program, example, computer = run.program, run.example, the_computer()
    source, first = inspect.getsourcelines(example.algorithm.function)
    cost = computer.plan(program, len(example.X))
    outputs = _outputs(run, trace)
    return ProgramAnswer(
        name=program.name,
        says=(example.algorithm.function.__doc__ or f"{_title(program.name)}.").split("\n")[0],
        digest=computer.digest,
        tokens=cost.tokens,
        features=cost.features,
        heads=cost.heads,
        layers=len(LAYERS),
        source=dedent("".join(source)).splitlines(),
        first_line=first,
        parameters=_parameters(run),
        instructions=[_instruction(program, i) for i in program.assembly.instructions],
        variables=_variables(trace),
        cycles=list(_cycles(trace)),
        outputs=outputs,
        off=max(abs(a - b) for o in outputs for a, b in zip(o.value, o.exact, strict=True)),
        certificate=_certificate(run, trace),
        attestation=_attested(trace).explain(),
        ledger=_ledger(trace),
    )


def _parameters(run: _Run) -> list[ParameterAnswer]:
    program, given = run.program, run.program.parameters(**run.settings)
    ranges = program.domain.parameters
    return [
        ParameterAnswer(
            name=name,
            value=float(given[name][0]),
            low=ranges[name].low,
            high=ranges[name].high,
            whole=name in program.counts,
        )
        for name in _scalars(program)
    ]


def _instruction(program: Program, i: Instruction) -> InstructionAnswer:
    table = program.assembly.table(i.table)
    return InstructionAnswer(
        address=i.address,
        when=i.when,
        text=spelled(i),
        f=curve(table, "f"),
        g=curve(table, "g"),
        note=i.note,
        line=i.line,
        halts=i.halts,
    )


def _held(trace: ComputerTrace) -> dict[str, Tensor]:
    """Memory over time, (cycles + 1, lanes, components), one component where all are equal."""
    width, found = trace.prompt.assembly.width, {}
    for name, values in trace.memory.items():
        used = values[..., :width]
        same = bool((used == used[..., :1]).all())
        found[name] = used[..., :1] if same else used
    return found


def _variables(trace: ComputerTrace) -> list[VariableAnswer]:
    held = _held(trace)
    return [
        VariableAnswer(name=v.name, lanes=v.lanes, start=_rows(held[v.name][0]))
        for v in trace.prompt.assembly.variables
    ]


def _cycles(trace: ComputerTrace) -> Iterator[CycleStep]:
    held, all_of_them = _held(trace), list(trace.prompt.assembly.instructions)
    for cycle, instruction in enumerate(trace.instructions):
        changed = {
            name: _rows(values[cycle + 1])
            for name, values in held.items()
            if not torch.equal(values[cycle], values[cycle + 1])
        }
        yield CycleStep(instruction=all_of_them.index(instruction), changed=changed)


def _rows(values: Tensor) -> list[list[float]]:
    return [numbers(lane) for lane in values.tolist()]


def _outputs(run: _Run, trace: ComputerTrace) -> list[OutputAnswer]:
    exact = run.program.reference(run.example.X, run.example.y, **run.settings)
    named = exact if isinstance(exact, dict) else {"value": exact}
    return [
        OutputAnswer(
            name=name, value=value.flatten().tolist(), exact=named[name].flatten().tolist()
        )
        for name, value in trace.outputs.items()
    ]


def _certificate(run: _Run, trace: ComputerTrace) -> CertificateAnswer:
    example, dtype = run.example, the_computer().dtype
    enclosure = enclosure_of(
        run.program, example.X, example.y, trace.outputs, run.settings, dtype, "literal"
    )
    return CertificateAnswer.of(enclosure or run.program.certify(dtype, **run.settings)[0])


def _attested(trace: ComputerTrace) -> Attestation:
    return Attestation(trace.network.check(), trace.network.expected or "", "literal")


def _ledger(trace: ComputerTrace) -> str:
    return accounted(trace.prompt, trace.cycles, stops=True).explain()


# ---------------------------------------------------------------------------------------------
# one cycle
# ---------------------------------------------------------------------------------------------


def attention(question: asked.CycleQuestion, pulse: Pulse) -> CycleAnswer:
    """Who attends to whom in a cycle, in every layer."""
    run, trace = _traced(question, pulse)
    layers = []
    for found in trace.layers(question.cycle):
        layers.append(_layer(found, run.program.assembly.width))
        pulse()
    return CycleAnswer(digest=the_computer().digest, cycle=question.cycle, layers=layers)


def _layer(found: LayerAttention, width: int) -> AttentionAnswer:
    own = found.heads["self"]
    copies = int((own == torch.eye(len(own), dtype=own.dtype)).all(1).sum())
    if copies != len(own):
        raise IntegrityError(f"{len(own) - copies} tokens are not copied by the self head")
    looked = {name: weights for name, weights in found.heads.items() if name != "self"}
    used = {name: weights for name, weights in looked.items() if _component(name) < width}
    heads = [head for name, weights in used.items() if (head := _head(name, weights, found.roles))]
    return AttentionAnswer(
        layer=found.layer,
        copies=copies,
        idle=len(used) - len(heads),
        hidden=len(looked) - len(used),
        heads=heads,
    )


def _component(head: str) -> int:
    """The component that a head of the compute layer looks up; 0 for all others."""
    column, _, number = head.partition(" ")
    return int(number) if column in ("F", "G") else 0


def _head(name: str, weights: Tensor, roles: tuple[str, ...]) -> HeadAnswer | None:
    """Tokens that ask something else than the null token, and those that answer them."""
    null = roles.index("null")
    asking = (weights[:, null] != 1).nonzero()[:, 0]
    if not len(asking):
        return None
    answering = (weights[asking] > 0).any(0).nonzero()[:, 0]
    return HeadAnswer(
        name=name,
        queries=[roles[i] for i in asking.tolist()],
        keys=[roles[i] for i in answering.tolist()],
        weights=[numbers(row) for row in weights[asking][:, answering].tolist()],
    )
