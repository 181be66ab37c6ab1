"""Programs without attention: instructions interpreted on memory, with tables or exactly.

With tables, this is what the frozen computer computes, up to rounding. Exactly, F and G are the
functions that the tables stand for: what the program means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform import tuning
from iceform.computer.instructions import FLAG, Assembly, Instruction, Operand, TablePair
from iceform.computer.prompt import ProgramPrompt, initial_memory
from iceform.errors import BoundError, CapacityError
from iceform.expressions import ScalarFunction

Seen = Callable[[Instruction, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, eq=False)
class Interpreted:
    """Memory after the halt, the answers, and how many cycles it took."""

    memory: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    cycles: int


def written(
    assembly: Assembly, X: Tensor, y: Tensor, parameters: Mapping[str, Tensor], width: int
) -> dict[str, Tensor]:
    """What a prompt holds before the first cycle: (n, width) of samples, (width,) of lane 0."""
    given = {
        name: (value if assembly.parameters.get(name) else value[0]).to(X.dtype)
        for name, value in parameters.items()
    }
    memory = initial_memory(assembly, {**given, "x": X, "y": y}, width)
    return {name: v if assembly.lanes(name) == "samples" else v[0] for name, v in memory.items()}


def interpret(
    assembly: Assembly,
    X: Tensor,
    y: Tensor,
    parameters: Mapping[str, Tensor],
    *,
    exact: bool = False,
    tables_of: int | None = None,
    width: int | None = None,
    most_cycles: int = tuning.COMPUTER_LIMIT,
    seen: Seen | None = None,
) -> Interpreted:
    """Run a program from address 0 to its halt.

    Parameters
    ----------
    X, y, parameters
        The data, shapes (n, d) and (n,), and a tensor for every parameter.
    exact
        Whether F and G are the functions that the tables stand for.
    tables_of
        A line of the author's file whose instructions use their tables all the same.
    width
        Components of the machine; None for as many as the program needs.
    seen
        Told of every instruction with a + b, a - b and the result.
    """
    width = assembly.width if width is None else width
    memory = written(assembly, X, y, parameters, width)
    return _interpreted(assembly, memory, most_cycles, exact=exact, tables_of=tables_of, seen=seen)


def own_cycles(prompt: ProgramPrompt, most: int) -> int:
    """Cycles to the halt of what a prompt holds, in float64 and without attention: the longest.

    ``most`` where it has not come to a halt by then.
    """
    assembly, batch, found = prompt.assembly, prompt.batch, 0
    if not any(i.halts for i in assembly.instructions):
        return most
    memory = {
        name: held.expand(*batch, -1, -1).reshape(-1, *held.shape[-2:]).double().cpu()
        for name, held in prompt.memory.items()
    }
    for k in range(batch.numel()):
        held = {n: v[k] if assembly.lanes(n) == "samples" else v[k, 0] for n, v in memory.items()}
        try:
            found = max(found, _interpreted(assembly, held, most).cycles)
        except CapacityError:
            return most
    return found


def _interpreted(
    assembly: Assembly, memory: dict[str, Tensor], most_cycles: int, *, exact: bool = False,
    tables_of: int | None = None, seen: Seen | None = None,
) -> Interpreted:  # fmt: skip
    run = _Interpreter(assembly, memory, exact, tables_of)
    address, cycles = 0, 0
    while True:
        instruction = assembly.fetch(address, float(run.memory[FLAG][0]))
        if instruction.halts:
            break
        if cycles == most_cycles:
            raise CapacityError(
                f"{assembly.name} did not halt within {most_cycles} cycles; raise most_cycles, or "
                "look at its loops"
            )
        arguments = run.cycle(instruction)
        if seen is not None:
            seen(instruction, *arguments)
        address, cycles = instruction.next, cycles + 1
    outputs = {o.name: o.of(run.memory[o.variable]) for o in assembly.outputs}
    return Interpreted(run.memory, outputs, cycles)


class _Interpreter:
    """Memory, and one cycle at a time."""

    def __init__(
        self, assembly: Assembly, memory: dict[str, Tensor], exact: bool, tables_of: int | None
    ) -> None:
        self.assembly, self.memory, self.exact = assembly, memory, exact
        self.tables_of = tables_of
        self.tables = {t.name: t for t in assembly.tables}
        self.result: Tensor | None = None

    def cycle(self, i: Instruction) -> tuple[Tensor, Tensor, Tensor]:
        """Execute an instruction; a + b, a - b and the result."""
        held = self.memory[i.dst]
        a, b = self._operand(i.a, held), self._operand(i.b, held)
        table = self.tables[i.table]
        exact = self.exact and i.line != self.tables_of
        out = self._column(table, a + b, "f", exact) - self._column(table, a - b, "g", exact)
        self.memory[i.dst] = out
        self.result = out
        return a + b, a - b, out

    def _operand(self, operand: Operand, like: Tensor) -> Tensor:
        total = torch.zeros_like(like)
        for kind, name in operand.reads():
            total = total + self._read(kind, self.memory[name])
        return total

    def _read(self, kind: str, value: Tensor) -> Tensor:
        if kind == "rowsum":
            return value.sum(-1, keepdim=True)
        if kind == "mean":
            return value.mean(0) if value.ndim == 2 else value
        if kind == "like":
            if self.result is None:
                raise BoundError("the first instruction asks by likeness, with nothing to ask for")
            rows = value if value.ndim == 2 else value[None]
            return torch.softmax(self.result @ rows.T, -1) @ rows
        return value

    def _column(self, table: TablePair, z: Tensor, column: str, exact: bool) -> Tensor:
        values = getattr(table, column)
        if exact:
            function: ScalarFunction | None = getattr(table, f"exact_{column}")
            return torch.zeros_like(z) if function is None else function.call(z)
        if not values.any():
            return torch.zeros_like(z)
        found: Tensor = torch.softmax(z[..., None] * table.slopes + table.biases, -1) @ values
        return found
