"""The prompt: a program and its data as tokens.

Tokens in order: instructions, table entries, units (lane 0, 1, ... n), the null token, memory
(variable by variable, in a variable its lanes in order). Instructions, entries, units and the null
token are the program: they are the same bytes for all data of one number of samples. Of a memory
token only ``value`` depends on data: it is the sum of the variable's writes, affine in X, y and the
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer.instructions import (
    FLAG,
    Assembly,
    MemoryVariable,
    Output,
    TablePair,
    Write,
)
from iceform.computer.layout import (
    READ_FIELDS,
    RESERVED,
    ComputerLayout,
    ComputerSizes,
    code,
    token_counts,
)
from iceform.errors import BoundError, CapacityError, ProgramError, ShapeError
from iceform.validation import common_batch


@dataclass(frozen=True, eq=False)
class ProgramPrompt:
    """A program with its data, as tokens; :meth:`Computer.prompt` writes it.

    Attributes
    ----------
    assembly
        The program.
    layout
        Where the features of a token are.
    samples
        Lanes beside lane 0.
    memory
        What every variable starts with, shape (*batch, lanes, m).
    changed
        Tokens written by hand in place of those that program and memory make; else None.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> X = torch.tensor([[0.5], [1.0], [-1.0]], dtype=torch.float64)
    >>> prompt = ice.Computer.for_programs(program).prompt(program, X)
    >>> prompt.tokens.shape, prompt.memory["x"].flatten()
    (torch.Size([101, 114]), tensor([ 0.5000,  1.0000, -1.0000], dtype=torch.float64))
    """

    assembly: Assembly
    layout: ComputerLayout
    samples: int
    memory: Mapping[str, Tensor]
    changed: Tensor | None = None

    @property
    def batch(self) -> torch.Size:
        """Shape of the batch of problems."""
        if self.changed is not None:
            return self.changed.shape[:-2]
        return common_batch(*(v.shape[:-2] for v in self.memory.values()))

    @cached_property
    def tokens(self) -> Float[Tensor, "*b t d"]:
        """All of it as tokens."""
        return self._written() if self.changed is None else self.changed

    @property
    def is_written(self) -> bool:
        """Whether its tokens, where there are any yet, are those that program and memory make."""
        if self.changed is not None:
            return False
        return "tokens" not in vars(self) or torch.equal(self.tokens, self._written())

    def with_tokens(self, tokens: Float[Tensor, "*b t d"]) -> ProgramPrompt:
        """The same places with other tokens in them."""
        return replace(self, changed=tokens)

    def with_lanes(self, samples: int) -> ProgramPrompt:
        """The same program with the first few samples alone."""
        if samples not in self._shorter:
            kept = {
                v.name: self.memory[v.name][..., : len(_lanes(v, samples)), :]
                for v in self.assembly.variables
            }
            self._shorter[samples] = replace(self, samples=samples, memory=kept)
        return self._shorter[samples]

    @cached_property
    def _shorter(self) -> dict[int, ProgramPrompt]:
        return {}

    @cached_property
    def one_problem(self) -> ProgramPrompt:
        """The first problem of a batch, as a batch of one."""
        if self.changed is not None:
            return replace(self, changed=_first(self.changed))
        return replace(self, memory={name: _first(v) for name, v in self.memory.items()})

    @cached_property
    def kinds(self) -> dict[str, slice]:
        """The tokens of every kind, "null" included."""
        return _slices(token_counts(self.assembly, self.samples))

    @cached_property
    def variables(self) -> dict[str, slice]:
        """The memory tokens of every variable, lanes in order."""
        counts = {v.name: len(_lanes(v, self.samples)) for v in self.assembly.variables}
        return _slices(counts, self.kinds["memory"].start)

    def value(self, tokens: Float[Tensor, "*b t d"], name: str) -> Float[Tensor, "*b lanes m"]:
        """What a variable holds in these tokens, lane by lane."""
        at = self.layout.features["value"]
        return tokens[..., self.variables[name], at]

    def answer(self, held: Float[Tensor, "*b lanes m"], output: Output) -> Tensor:
        """An answer out of its variable: of lane 0 (*batch, k), of samples (*batch, n, k)."""
        if self.assembly.lanes(output.variable) == "lane0":
            held = held[..., 0, :]
        return output.of(held)

    def read(self, tokens: Float[Tensor, "*b t d"], output: Output) -> Tensor:
        """An answer out of tokens."""
        return self.answer(self.value(tokens, output.variable), output)

    def counter(self, tokens: Float[Tensor, "*b t d"]) -> Tensor:
        """The program counter, as lane 0 has it: (*batch) whole numbers."""
        bits = tokens[..., self.kinds["unit"].start, self.layout.features["counter"]]
        return (bits.round().long() << torch.arange(bits.shape[-1], device=bits.device)).sum(-1)

    @property
    def roles(self) -> list[str]:
        """What each token is, in words; no two are the same."""
        lanes = range(self.samples + 1)
        sides = {0: "", 1: "+", -1: "-"}
        names = [f"instruction, {i.address}{sides[i.when]}" for i in self.assembly.instructions]
        names += [f"{t.name}, {k}" for t in self.assembly.tables for k in range(t.tokens)]
        names += [f"unit, {lane}" for lane in lanes] + ["null"]
        for variable in self.assembly.variables:
            names += [f"{variable.name}, {lane}" for lane in _lanes(variable, self.samples)]
        return names

    def _written(self) -> Tensor:
        layout, assembly = self.layout, self.assembly
        rows = torch.cat(
            [
                _instructions(layout, assembly),
                _entries(layout, assembly),
                _units(layout, assembly, self.samples),
                _filled(layout, 1, {"null": torch.ones(1)}),
                _memory(layout, assembly, self.samples),
            ]
        )
        rows[:, layout.features["id"]] = code(torch.arange(len(rows)), layout.size("id"))
        like = self.memory[FLAG]
        tokens = rows.to(like).expand(*self.batch, *rows.shape).clone()
        for name, at in self.variables.items():
            tokens[..., at, layout.features["value"]] = self.memory[name]
        tokens[..., self.kinds["unit"], layout.features["value"]] = self.memory[FLAG]
        return tokens


def write_prompt(
    layout: ComputerLayout,
    assembly: Assembly,
    memory: Mapping[str, Float[Tensor, "*b lanes m"]],
    samples: int,
) -> ProgramPrompt:
    """A program with the given memory; dtype and device are the memory's."""
    _check(layout, assembly, memory)
    return ProgramPrompt(assembly, layout, samples, memory)


def initial_memory(
    assembly: Assembly, data: Mapping[str, Tensor], width: int
) -> dict[str, Float[Tensor, "*b lanes m"]]:
    """What every variable holds before the first cycle.

    Parameters
    ----------
    assembly
        The program.
    data
        "x" (*batch, n, d), "y" (*batch, n), and the program's parameters (*batch) or (*batch, k).
    width
        Components of a value.
    """
    x = data["x"]
    known = {**data, "one": x.new_ones(()), "samples": x.new_tensor(float(x.shape[-2]))}
    known["index"] = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
    return {
        v.name: _starts_with(v, known, x.shape[-2], width, assembly) for v in assembly.variables
    }


def _starts_with(
    variable: MemoryVariable,
    data: Mapping[str, Tensor],
    samples: int,
    width: int,
    assembly: Assembly,
) -> Tensor:
    lanes = len(_lanes(variable, samples))
    # What goes to every component is held once.
    held = width if any(write.width is not None for write in variable.writes) else 1
    total = data["x"].new_zeros(lanes, held)
    for write in variable.writes:
        total = total + _written(variable, write, data, lanes, held, assembly)
    return total.expand(*total.shape[:-1], width)


def _written(
    variable: MemoryVariable,
    write: Write,
    data: Mapping[str, Tensor],
    lanes: int,
    width: int,
    assembly: Assembly,
) -> Tensor:
    """One datum as (*batch, lanes, width), zero outside the components that it is written to."""
    if write.source not in data:
        raise ProgramError(
            f"{assembly.name!r} writes {write.source!r} into {variable.name}; it was not given"
        )
    datum = _per_lane(write, data[write.source], assembly)
    count = width if write.width is None else write.width
    if datum.shape[-1] not in (1, count):
        raise ShapeError(
            f"{write.source} has {datum.shape[-1]} components, {assembly.name!r} takes {count}"
        )
    placed = datum.new_zeros(*datum.shape[:-2], lanes, width)
    placed[..., write.first : write.first + count] = write.scale * datum
    return placed


def _per_lane(write: Write, datum: Tensor, assembly: Assembly) -> Tensor:
    """A datum with an axis for lanes and one for components."""
    if write.source == "x":
        return datum
    if write.source in ("y", "index"):
        return datum[..., None]
    vector = assembly.parameters.get(write.source) is not None
    return datum[..., None, :] if vector else datum[..., None, None]


def variable_numbers(assembly: Assembly) -> dict[str, int]:
    """The number that stands for every variable in a code."""
    return {v.name: RESERVED + i for i, v in enumerate(assembly.variables)}


# ---------------------------------------------------------------------- tokens of each kind


def _filled(layout: ComputerLayout, count: int, blocks: Mapping[str, Tensor]) -> Tensor:
    rows = torch.zeros(count, layout.features.total, dtype=torch.float64)
    for name, values in blocks.items():
        rows[:, layout.features[name]] = values.double()
    return rows


def _real(kind: str) -> dict[str, Tensor]:
    return {"real": torch.ones(1), kind: torch.ones(1)}


def _instructions(layout: ComputerLayout, assembly: Assembly) -> Tensor:
    lines, tables = assembly.instructions, [t.name for t in assembly.tables]
    numbers = {
        "key": [i.address for i in lines],
        "with table": [tables.index(i.table) for i in lines],
        "next": [i.next for i in lines],
    }
    names = {"destination": [i.dst for i in lines]}
    for operand, read in (field.split() for field in READ_FIELDS):
        names[f"{operand} {read}"] = [getattr(getattr(i, operand), read) for i in lines]
    known = variable_numbers(assembly)
    numbers |= {field: [known.get(v, 0) for v in each] for field, each in names.items()}
    blocks = {field: code(torch.tensor(v), layout.size(field)) for field, v in numbers.items()}
    blocks["sign"] = torch.tensor([[float(i.when)] for i in lines])
    return _filled(layout, len(lines), _real("instruction") | blocks)


def _entries(layout: ComputerLayout, assembly: Assembly) -> Tensor:
    each = [_table(layout, number, table) for number, table in enumerate(assembly.tables)]
    return torch.cat(each)


def _table(layout: ComputerLayout, number: int, table: TablePair) -> Tensor:
    columns = {"slope": table.slopes, "bias": table.biases, "f": table.f, "g": table.g}
    blocks = _real("entry") | {name: column[:, None] for name, column in columns.items()}
    return _filled(layout, table.tokens, blocks | {"table": code(number, layout.size("table"))})


def _units(layout: ComputerLayout, assembly: Assembly, samples: int) -> Tensor:
    lanes = torch.arange(samples + 1)
    blocks = _real("unit") | {
        "lane": code(lanes, layout.size("lane")),
        "variable": code(variable_numbers(assembly)[FLAG], layout.size("variable")),
    }
    return _filled(layout, len(lanes), blocks)


def _memory(layout: ComputerLayout, assembly: Assembly, samples: int) -> Tensor:
    each, numbers = [], variable_numbers(assembly)
    for variable in assembly.variables:
        lanes = torch.tensor(_lanes(variable, samples))
        blocks = _real("memory") | {
            "home": code(lanes, layout.size("home")),
            "variable": code(numbers[variable.name], layout.size("variable")),
        }
        each.append(_filled(layout, len(lanes), blocks))
    return torch.cat(each)


def _lanes(variable: MemoryVariable, samples: int) -> range:
    return range(1) if variable.lanes == "lane0" else range(1, samples + 1)


def _first(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-2:])[:1]


def _slices(counts: Mapping[str, int], start: int = 0) -> dict[str, slice]:
    found = {}
    for name, count in counts.items():
        found[name] = slice(start, start + count)
        start += count
    return found


# ---------------------------------------------------------------------- what is refused


def _check(layout: ComputerLayout, assembly: Assembly, memory: Mapping[str, Tensor]) -> None:
    names = {v.name for v in assembly.variables}
    assembly.check_flag()
    if set(memory) != names:
        raise ProgramError(f"memory holds {sorted(memory)}, the program has {sorted(names)}")
    _check_finite(memory)
    check_values(layout.sizes, memory)


def check_values(sizes: ComputerSizes, memory: Mapping[str, Tensor], when: str = "starts") -> None:
    """Values are what the masks cover."""
    found = {n: v.abs().max() if v.numel() else v.new_zeros(()) for n, v in memory.items()}
    check_largest(sizes, found, when)


def check_largest(sizes: ComputerSizes, largest: Mapping[str, Tensor], when: str) -> None:
    """The same of the largest component of every variable; the host waits for a GPU once."""
    found = torch.stack(list(largest.values())).tolist()
    for name, size in zip(largest, found, strict=True):
        if size > sizes.values:
            raise CapacityError(
                f"{name} {when} with {size:.4g}, this computer was sized for values up to "
                f"{sizes.values}: its masks cover no more; scale the data, or build one with "
                f"values={math.ceil(size)}"
            )


def _check_finite(memory: Mapping[str, Tensor]) -> None:
    for name, value in memory.items():
        if not bool(torch.isfinite(value).all()):
            raise BoundError(f"{name} would start with NaN or infinity; mend the data")
