"""Assemblies written by hand, and an interpreter of them that shares no line with the computer.

The interpreter works in extended precision (numpy.longdouble), one lane at a time, on the tables of
an assembly: what it returns is what an instruction means, to about 1e-19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from iceform.computer.computer import Computer
from iceform.computer.instructions import (
    FLAG,
    Assembly,
    Instruction,
    MemoryVariable,
    Operand,
    Output,
    TablePair,
    Write,
)
from iceform.computer.prompt import ProgramPrompt
from iceform.tables import Grid

Function = Callable[[torch.Tensor], torch.Tensor]
Memory = dict[str, dict[int, np.ndarray]]


def zero(z: torch.Tensor) -> torch.Tensor:
    return 0 * z


def identity(z: torch.Tensor) -> torch.Tensor:
    return z


def quarter_square(z: torch.Tensor) -> torch.Tensor:
    return z * z / 4


def minus(z: torch.Tensor) -> torch.Tensor:
    return -z


def table(
    name: str, f: Function, g: Function, low: float, high: float, cells: int, *,
    c: float = 0.25, guards: int = 12,
) -> TablePair:  # fmt: skip
    """Keys on an even grid around the middle of [low, high], values fitted by least squares."""
    h, middle = (high - low) / cells, (low + high) / 2
    nodes = low + h * torch.arange(-guards, cells + guards + 1, dtype=torch.float64)
    slopes = 2 * c / h**2 * (nodes - middle)
    biases = -c / h**2 * (nodes**2 - middle**2)
    z = torch.linspace(low, high, max(1201, 4 * cells + 1), dtype=torch.float64)
    phi = torch.softmax(z[:, None] * slopes + biases, -1)
    ridge = torch.cat([phi, 1e-13 * torch.eye(len(nodes), dtype=torch.float64)])

    def fitted(function: Function) -> torch.Tensor:
        wanted = torch.cat([function(z), torch.zeros(len(nodes), dtype=torch.float64)])
        return torch.linalg.lstsq(ridge, wanted[:, None], driver="gelsd").solution[:, 0]

    values = [fitted(f), fitted(g)]
    errors = [float((phi @ v - w(z)).abs().max()) for v, w in zip(values, (f, g), strict=True)]
    return TablePair(name, slopes, biases, *values, low, high, *errors)


def parabola(low: float, high: float, a: float, b: float, d: float) -> TablePair:
    """A table of 4 cells and 12 guards whose values lie on a parabola."""
    grid, c = Grid(low, high, 4, 12), 0.25
    keys = grid.keys(c)
    f = a * (grid.nodes.square() - grid.spacing**2 / (2 * c)) + b * grid.nodes + d
    biases = keys.biases - keys.slopes * grid.center
    return TablePair("parabola", keys.slopes, biases, f, 0 * f, low, high, 0.0, 0.0)


def times(reach: float, cells: int = 24) -> TablePair:
    return table("times", quarter_square, quarter_square, -reach, reach, cells)


def linear(name: str, scale: float, reach: float) -> TablePair:
    return table(name, lambda z: scale * z, zero, -reach, reach, 16)


def less(reach: float) -> TablePair:
    return table("less", zero, minus, -reach, reach, 16)


def flag_variable() -> MemoryVariable:
    return MemoryVariable(FLAG, "lane0", (Write("one"),))


def _assembly(
    name: str,
    width: int,
    dim: int,
    variables: Sequence[MemoryVariable],
    tables: Sequence[TablePair],
    instructions: Sequence[Instruction],
    outputs: Sequence[Output],
    **parameters: int | None,
) -> Assembly:
    made = Assembly(name, width, dim, (flag_variable(), *variables), tuple(tables),
                    tuple(instructions), tuple(outputs), parameters)  # fmt: skip
    made.check()
    return made


@cache
def least_squares(dim: int = 3, lr: float = 0.5) -> Assembly:
    """w <- w - lr mean(x (x . w - y)), for ever."""
    variables = (
        MemoryVariable("x", "samples", (Write("x", width=dim),)),
        MemoryVariable("minus y", "samples", (Write("y", -1.0),)),
        MemoryVariable("t", "samples"),
        MemoryVariable("g", "samples"),
        MemoryVariable("w", "lane0"),
    )
    program = (
        Instruction(0, "t", Operand(own="x"), Operand(lane0="w"), "times", 1),
        Instruction(1, "g", Operand(rowsum="t"), Operand(own="minus y"), "rate", 2),
        Instruction(2, "t", Operand(own="g"), Operand(own="x"), "times", 3),
        Instruction(3, "w", Operand(lane0="w"), Operand(mean="t"), "less", 0),
    )
    tables = (times(3.0), linear("rate", lr, 6.0), less(5.0))
    return _assembly("least squares", dim, dim, variables, tables, program,
                     (Output("w", "w", dim), Output("residuals", "g")))  # fmt: skip


@cache
def kernel_regression(dim: int = 2, gamma: float = 2.0) -> Assembly:
    """The kernel average of y at a query, by likeness: keys are (x, |x|^2), values beside them.

    |x|^2 is computed by the program; the query (2 gamma q, -gamma, 0) is a parameter.
    """
    width = dim + 2
    variables = (
        MemoryVariable("x", "samples", (Write("x", width=dim),)),
        MemoryVariable("y", "samples", (Write("y", first=dim + 1, width=1),)),
        MemoryVariable("at", "lane0", (Write("one", first=dim, width=1),)),
        MemoryVariable("s", "samples"),
        MemoryVariable("key", "samples"),
        MemoryVariable("query", "lane0", (Write("query", width=dim + 1),)),
        MemoryVariable("answer", "lane0"),
        MemoryVariable("r", "lane0"),
    )
    program = (
        Instruction(0, "s", Operand(own="x"), Operand(own="x"), "times", 1),
        Instruction(1, "s", Operand(rowsum="s"), Operand(lane0="at"), "times", 2),
        Instruction(2, "key", Operand(own="x"), Operand(own="s"), "add", 3),
        Instruction(3, "key", Operand(own="key"), Operand(own="y"), "add", 4),
        Instruction(4, "r", Operand(lane0="query"), Operand(), "add", 5),
        Instruction(5, "answer", Operand(like="key"), Operand(), "add", 6),
        Instruction(6, "r", Operand(lane0="query"), Operand(), "add", 6),
    )
    tables = (times(4.0), linear("add", 1.0, 6.0))
    return _assembly("kernel regression", width, dim, variables, tables, program,
                     (Output("answer", "answer", 1, dim + 1),), query=dim + 1)  # fmt: skip


@cache
def halving(*, late: bool = True) -> Assembly:
    """while v > 0.1: v /= 2, with the turns counted; ``late`` waits a cycle before the branch."""
    variables = (
        MemoryVariable("v", "lane0", (Write("start"),)),
        MemoryVariable("turns", "lane0"),
        MemoryVariable("step", "lane0", (Write("one", 1 / 64),)),
        MemoryVariable("idle", "lane0"),
    )
    program = [
        Instruction(0, FLAG, Operand(lane0="v"), Operand(), "above", 1),
        Instruction(1, "idle", Operand(), Operand(), "add", 2),
        Instruction(2, "v", Operand(lane0="v"), Operand(), "half", 3, when=1),
        Instruction(2, "idle", Operand(), Operand(), "add", 4, when=-1),
        Instruction(3, "turns", Operand(lane0="turns"), Operand(lane0="step"), "add", 0),
        Instruction(4, "idle", Operand(), Operand(), "add", 4),
    ]
    above = table("above", lambda z: torch.erf((z - 0.1) / 0.02), zero, -2.0, 2.0, 400)
    tables = (above, linear("half", 0.5, 2.0), linear("add", 1.0, 2.0))
    outputs = (Output("v", "v"), Output("turns", "turns"))
    made = _assembly("halving", 1, 1, variables, tables, program, outputs, start=None)
    if late:
        return made
    program[0] = replace(program[0], next=2)
    return replace(made, instructions=tuple(program))


@cache
def filtering(noise: float = 0.5, drift: float = 0.1) -> Assembly:
    """The variance of a scalar Kalman filter: p <- p - p^2/(p + r) + q, for ever."""
    variables = (
        MemoryVariable("p", "lane0", (Write("start"),)),
        MemoryVariable("r", "lane0", (Write("one", noise),)),
        MemoryVariable("q", "lane0", (Write("one", drift),)),
        MemoryVariable("s", "lane0"),
        MemoryVariable("gain", "lane0"),
        MemoryVariable("t", "lane0"),
    )
    program = (
        Instruction(0, "s", Operand(lane0="p", own="r"), Operand(), "inverse", 1),
        Instruction(1, "gain", Operand(own="p"), Operand(lane0="s"), "times", 2),
        Instruction(2, "t", Operand(own="gain"), Operand(own="p"), "times", 3),
        Instruction(3, "p", Operand(own="p"), Operand(own="t"), "less", 4),
        Instruction(4, "p", Operand(own="p"), Operand(own="q"), "add", 0),
    )
    inverse = table("inverse", lambda z: 1 / z, zero, 0.4, 3.0, 96, guards=8)
    tables = (inverse, times(5.0), less(4.0), linear("add", 1.0, 4.0))
    return _assembly("filtering", 1, 1, variables, tables, program, (Output("p", "p"),),
                     start=None)  # fmt: skip


# ---------------------------------------------------------------------- what programs mean


def look_up(pair: TablePair, column: torch.Tensor, z: np.ndarray) -> np.ndarray:
    """softmax(slopes z + biases) . column, entry by entry."""
    slopes, biases, values = (_wide(t) for t in (pair.slopes, pair.biases, column))
    logits = z[..., None] * slopes + biases
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights * values).sum(-1) / weights.sum(-1)


def _wide(value: torch.Tensor) -> np.ndarray:
    return value.detach().double().numpy().astype(np.longdouble)


class Interpreter:
    """One problem, one instruction at a time."""

    def __init__(self, program: Assembly, memory: Mapping[str, torch.Tensor]) -> None:
        self.program = program
        self.memory: Memory = {
            v.name: {lane: _wide(memory[v.name][i])
                     for i, lane in enumerate(self._lanes(v, len(memory[v.name])))}
            for v in program.variables
        }  # fmt: skip
        width = next(iter(memory.values())).shape[-1]
        self.zeros = np.zeros(width, dtype=np.longdouble)
        self.counter = 0
        self.before: dict[int, np.ndarray] = {}

    @staticmethod
    def _lanes(variable: MemoryVariable, count: int) -> range:
        return range(1) if variable.lanes == "lane0" else range(1, count + 1)

    def value(self, name: str) -> np.ndarray:
        return np.stack([self.memory[name][lane] for lane in sorted(self.memory[name])])

    def next(self) -> Instruction:
        return self.program.fetch(self.counter, float(self.memory[FLAG][0][0]))

    def step(self) -> Instruction:
        """Execute one instruction and say which."""
        i = self.next()
        pair = self.program.table(i.table)
        results = {}
        for lane in self.memory[i.dst]:
            a, b = (self._operand(o, lane) for o in (i.a, i.b))
            results[lane] = look_up(pair, pair.f, a + b) - look_up(pair, pair.g, a - b)
        self.memory[i.dst] = dict(results)
        self.before, self.counter = results, i.next
        return i

    def run(self, cycles: int) -> Interpreter:
        for _ in range(cycles):
            self.step()
        return self

    def _operand(self, operand: Operand, lane: int) -> np.ndarray:
        total = self.zeros
        for kind, name in operand.reads():
            total = total + self._read(kind, self.memory[name], lane)
        return total

    def _read(self, kind: str, held: dict[int, np.ndarray], lane: int) -> np.ndarray:
        if kind == "own":
            return held.get(lane, self.zeros)
        if kind == "rowsum":
            return self.zeros + held.get(lane, self.zeros).sum()
        if kind == "lane0":
            return held.get(0, self.zeros)
        values = np.stack(list(held.values()))
        if kind == "mean":
            return values.sum(0) / len(values)
        logits = values @ self.before.get(lane, self.zeros)
        weights = np.exp(logits - logits.max())
        return weights @ values / weights.sum()


def data(seed: int, samples: int, dim: int, dtype: torch.dtype = torch.float64):
    """Samples and targets in [-1, 1]."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(samples, dim, generator=draw, dtype=torch.float64) - 1
    y = 2 * torch.rand(samples, generator=draw, dtype=torch.float64) - 1
    return x.to(dtype), y.to(dtype)


def query(dim: int, gamma: float = 2.0) -> torch.Tensor:
    at = torch.linspace(-0.5, 0.5, dim, dtype=torch.float64)
    return torch.cat([2 * gamma * at, torch.tensor([-gamma], dtype=torch.float64)])


PROGRAMS: dict[str, tuple[Callable[[], Assembly], dict[str, object], int]] = {
    "least squares": (least_squares, {}, 40),
    "kernel regression": (kernel_regression, {"query": query(2)}, 9),
    "halving": (halving, {"start": 1.7}, 30),
    "halving, no wait": (lambda: halving(late=False), {"start": 1.7}, 24),
    "filtering": (filtering, {"start": 1.5}, 40),
}

assert math.isclose(float(np.finfo(np.longdouble).eps), 2.0**-63), "extended precision is needed"


@cache
def computer_for(name: str, samples: int, dtype: torch.dtype = torch.float64) -> Computer:
    return Computer.for_programs([PROGRAMS[name][0]()], lanes=samples, dtype=dtype)


def prompt_of(name: str, samples: int, dtype: torch.dtype = torch.float64, seed: int = 0):
    """A computer, a program's prompt for it, and how many cycles to run."""
    make, parameters, cycles = PROGRAMS[name]
    program, computer = make(), computer_for(name, samples, dtype)
    x, y = data(seed, samples, program.dim, dtype)
    return computer, computer.prompt(program, x, y, **parameters), cycles


def memory_of(prompt: ProgramPrompt, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    return {v.name: prompt.value(tokens, v.name) for v in prompt.assembly.variables}
