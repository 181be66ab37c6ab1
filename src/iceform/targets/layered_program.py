r"""A compiled program as the layers of an encoder: every instruction that runs is two of them.

**Tokens.** A null token, lane 0, one token per sample, one token per table entry. A lane token
holds every variable as features of its own, so memory is the residual stream and there is nothing
to fetch. Counted loops are unrolled, and instructions whose result no answer depends on (those
that count) are left out. Data, parameters and tables are in the prompt: n, step sizes, penalties
and the functions that are looked up may change, the number of turns may not.

**Two layers an instruction**, dst <- F(a + b) - G(a - b), at the lanes that hold dst:

1. *read*: a head that sees the token itself (codes of lanes) carries own values and sums of their
   components, one that sees all samples alike their mean, one that sees lane 0 its values, and one
   with the logits r . v a likeness, into the features ``plus`` (a + b) and ``minus`` (a - b). The
   first also takes away what dst held: a number minus itself is 0 exactly, whereas result - dst
   would be rounded as coarsely as dst is, and dst may have held something far larger.
2. *compute*: one head per component looks ``plus`` up in F, another ``minus`` in G; both write
   into dst. The head that sees the token itself takes away what ``plus`` and ``minus`` held.

Tokens that do not ask see the null token alone, whose values are 0. Masks are flags that are 0
exactly on what may be seen: they cost nothing at any size.

**Noise.** What is taken away is off by rounding relative to itself, so what remains of ``plus`` is
rounding of what it held one instruction ago; nothing is fed back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer.compile import Program
from iceform.computer.instructions import Instruction
from iceform.computer.layout import largest_logit, likenesses, underflow
from iceform.computer.prompt import initial_memory
from iceform.errors import CapacityError, ProgramError, ShapeError, TargetError
from iceform.heads import Design, Features, Head, Move, Row
from iceform.heads.design import in_parts
from iceform.targets.architectures import Architecture
from iceform.targets.pieces import ONE, added, erased, masked, routed, tokens_of
from iceform.targets.program_target import ProgramTarget, trace, turns_alike
from iceform.validation import check_size

HOMES = ("lane0", "samples")
_KINDS = ("null", *HOMES, "entry")  # of tokens
_SIDES = (("plus", "f", 1.0), ("minus", "g", -1.0))  # features, their table, and its sign in dst
Reads = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LayeredInstruction:
    """One instruction that runs: reads as (kind, variable), the table by its place in the prompt.

    ``asks`` is the variable whose value is r of a likeness; ``f`` and ``g`` say whether F and G
    are looked up at all.
    """

    dst: str
    a: Reads
    b: Reads
    table: int
    f: bool
    g: bool
    asks: str | None = None

    @property
    def sides(self) -> list[tuple[str, str, float]]:
        """Those of plus and minus that are looked up."""
        return [side for side in _SIDES if getattr(self, side[1])]

    @property
    def reads(self) -> set[str]:
        """Variables that it depends on."""
        named = {variable for _, variable in (*self.a, *self.b)}
        return named if self.asks is None else named | {self.asks}


@dataclass(frozen=True)
class LayeredProgram(ProgramTarget):
    """A program's instructions as layers; :meth:`of` makes it.

    Parameters
    ----------
    name
        The program's.
    width, lanes, entries
        Components of a value, the most samples, table entries in the prompt (those that a program
        does not need are hidden).
    variables
        (name, "lane0" or "samples") of those that answers depend on.
    lines
        The instructions in the order in which they run.
    tables
        How many the prompt holds.
    logits
        The largest logit of a table or a likeness.

    Examples
    --------
    >>> @ice.algorithm
    ... def slope(x, y, *, lr=0.5):
    ...     return lr * ice.mean(x * y)
    >>> program = ice.compile(slope, dim=1, samples=2, eps=1e-6)
    >>> spec = LayeredProgram.of(program, {"lr": 0.5})
    >>> len(spec.design.layers) == 2 * len(spec.lines)
    True
    """

    name: str
    width: int
    lanes: int
    entries: int
    variables: tuple[tuple[str, str], ...]
    lines: tuple[LayeredInstruction, ...]
    tables: int
    logits: int
    dtype: str = "float64"

    kind: ClassVar[str] = "layered_program"
    title: ClassVar[str] = "one program, its instructions as layers"
    causal: ClassVar[bool] = False
    why_causal: ClassVar[str] = (
        "lanes must see the tokens that come after them, which a causal mask hides"
    )

    @classmethod
    def unsuited(cls, known: Architecture) -> str:
        """Those whose layers are each their own can hold it."""
        same = (
            "its layers are all the same, and here every instruction has layers of its own; as an "
            f'{known.name} a program is in the prompt (mode="prompt")'
        )
        return super().unsuited(known) or (same if known.tied else "")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "lanes", "entries", "tables", "logits"):
            check_size(name, getattr(self, name))
        if not self.lines:
            raise ProgramError(f"{self.name} executes no instruction that an answer depends on")

    @classmethod
    def of(
        cls, program: Program, settings: Mapping[str, Any], dtype: str = "float64"
    ) -> LayeredProgram:
        """The layers that a program takes at these settings."""
        return cls._found(program, settings, dtype)[0]

    @classmethod
    def _found(
        cls, program: Program, settings: Mapping[str, Any], dtype: str
    ) -> tuple[LayeredProgram, list[str]]:
        """The layers of a program, and the names of its tables in the order of the prompt."""
        lines, tables = _lines(program, settings)
        assembly = program.assembly
        held = {o.variable for o in assembly.outputs}.union(*(i.reads | {i.dst} for i in lines))
        spec = cls(
            program.name, assembly.width, program.samples,
            max(1, sum(assembly.table(t).tokens for t in tables)),
            tuple((v.name, v.lanes) for v in assembly.variables if v.name in held),
            lines, max(1, len(tables)),
            1 << max(0, math.ceil(math.log2(largest_logit(assembly)))), dtype,
        )  # fmt: skip
        return spec, tables

    # ------------------------------------------------------------------------------- the stream

    @property
    def positions(self) -> int:  # type: ignore[override]
        """Tokens of the longest prompt."""
        return 2 + self.lanes + self.entries

    @property
    def bits(self) -> int:
        """How many binary digits tell the lanes apart."""
        return max(1, self.lanes.bit_length())

    @cached_property
    def homes(self) -> dict[str, str]:
        """For every variable, whether lane 0 or the samples hold it."""
        return dict(self.variables)

    @property
    def mask(self) -> float:
        """Hides a token whatever the logits are; a power of two."""
        tau = underflow(self.torch_dtype)
        return 2.0 ** math.ceil(math.log2(tau + 2 * self.logits))

    @property
    def copy(self) -> float:
        """The logit of one bit of a lane's code; a power of two."""
        return 2.0 ** math.ceil(math.log2(underflow(self.torch_dtype)))

    @cached_property
    def design(self) -> Design:
        blocks = dict.fromkeys(("null", *HOMES, "entry", "slope", "bias", "f", "g"), 1)
        blocks |= {"lane": self.bits, "absent": self.tables}
        blocks |= {"plus": self.width, "minus": self.width}
        blocks |= {_held(name): self.width for name, _ in self.variables}
        layers = in_parts(
            list(heads) for line in self.lines for heads in (self._read(line), self._compute(line))
        )
        return Design(Features(tuple(blocks.items())), layers, norm=self.norm)

    def _read(self, line: LayeredInstruction) -> Iterator[Head]:
        home, into = self.homes[line.dst], f"into {line.dst}"
        found: dict[str, list[Move]] = {}
        for kind, variable in dict.fromkeys((*line.a, *line.b)):
            where = self._seen(kind, variable)
            found.setdefault(where, []).extend(self._moves(line, kind, variable))
        found.setdefault("own", []).extend(erased([_held(line.dst)], self.width))
        for where, moves in found.items():
            if where == "own":
                logit = self._own(home)
            elif where in HOMES:
                logit = (self._only(where), self._routed(home))
            else:
                logit = self._alike(line.asks, where.removeprefix("like "), home)
            yield Head(f"read {where}, {into}", logit, tuple(moves))

    def _seen(self, kind: str, variable: str) -> str:
        """Which tokens a read sees; the mean of one lane is that lane."""
        if kind == "like":
            return f"like {variable}"
        return "own" if kind in ("own", "rowsum") else self.homes[variable]

    def _moves(self, line: LayeredInstruction, kind: str, variable: str) -> Iterator[Move]:
        in_a, in_b = (float(reads.count((kind, variable))) for reads in (line.a, line.b))
        parts, both = range(self.width), {"plus": in_a + in_b, "minus": in_a - in_b}
        weights = {name: both[name] for name, _, _ in line.sides if both[name]}
        if kind == "rowsum":
            total = Row({(_held(variable), i): 1.0 for i in parts})
            yield Move(total, {(n, j): weight for n, weight in weights.items() for j in parts})
        else:
            yield from added(_held(variable), self.width, weights)

    def _compute(self, line: LayeredInstruction) -> Iterator[Head]:
        home, held = self.homes[line.dst], _held(line.dst)
        for name, column, sign in line.sides:
            for j in range(self.width):
                logit = (
                    (Row.of(name, j), Row.of("slope")),
                    (ONE, Row.of("bias")),
                    (Row(constant=-self.mask), Row.of("absent", line.table)),
                    self._routed(home),
                )
                role = f"look {name}[{j}] up in {column.upper()} of table {line.table}"
                yield Head(
                    f"{role}, into {line.dst}", logit, (Move(Row.of(column), {(held, j): sign}),)
                )
        gone = [name for name, _, _ in line.sides]
        away = erased(gone, self.width)
        yield Head(f"take {', '.join(gone)} away", self._own(home), away)

    def _own(self, home: str) -> tuple[tuple[Row, Row], ...]:
        """Lanes see themselves: codes agree."""
        codes = tuple((Row.of("lane", b, self.copy), Row.of("lane", b)) for b in range(self.bits))
        return (*codes, self._routed(home))

    def _only(self, home: str) -> tuple[Row, Row]:
        return masked((name for name in _KINDS if name != home), self.mask)

    def _alike(self, asks: str | None, variable: str, home: str) -> tuple[tuple[Row, Row], ...]:
        """Logits r . v; before the first instruction r is 0."""
        parts = range(self.width)
        products = (
            () if asks is None
            else tuple((Row.of(_held(asks), j), Row.of(_held(variable), j)) for j in parts)
        )  # fmt: skip
        return (*products, self._only(self.homes[variable]), self._routed(home))

    def _routed(self, home: str) -> tuple[Row, Row]:
        """Tokens that do not ask see the null token, above masks, codes and logits."""
        route = 4 * max(self.mask, self.copy * self.bits)
        return routed((name for name in _KINDS if name != home), route)

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, program: Program, x: Tensor, y: Tensor, settings: Mapping[str, Any]
    ) -> Float[Tensor, "t f"]:
        names = self._tables(program, settings)
        given = self.written(program, x, y, settings)
        data = {**given, "x": x.to(self.torch_dtype), "y": y.to(self.torch_dtype)}
        memory = initial_memory(program.assembly, data, self.width)
        self._check_likeness(program, memory)
        n, at = len(x), self.design.features
        if n > self.lanes:
            raise CapacityError(
                f"{n} samples were given, and the layers hold {self.lanes}; compile "
                f"{self.name} with samples={n} and write it again"
            )
        tables = [program.assembly.table(name) for name in names]
        entries = [
            tokens_of(
                at, table.tokens, entry=1.0, slope=table.slopes, bias=table.biases, f=table.f,
                g=table.g, absent=(torch.arange(self.tables) != k).double(),
            )
            for k, table in enumerate(tables)
        ]  # fmt: skip
        spare = self.entries - sum(table.tokens for table in tables)
        codes = _code(torch.arange(n + 1), self.bits)
        lane0, samples = (
            {_held(name): memory[name] for name, home in self.variables if home == where}
            for where in HOMES
        )
        return torch.cat([
            tokens_of(at, 1, null=1.0, absent=1.0),
            tokens_of(at, 1, lane0=1.0, lane=codes[:1], absent=1.0, **lane0),
            tokens_of(at, n, samples=1.0, lane=codes[1:], absent=1.0, **samples),
            *entries,
            tokens_of(at, spare, entry=1.0, absent=1.0),
        ]).to(self.torch_dtype)  # fmt: skip

    def _tables(self, program: Program, settings: Mapping[str, Any]) -> list[str]:
        """The tables of a program whose instructions these layers are; others are refused."""
        other, tables = LayeredProgram._found(program, settings, self.dtype)
        for name in ("lines", "variables", "width"):
            if getattr(other, name) != getattr(self, name):
                raise ProgramError(
                    f"the layers are the instructions of {self.name}, and {program.name} at "
                    f"{dict(settings)} has other {name}; turns of loops are in the weights: write "
                    'it again, or write mode="prompt"'
                )
        for name in ("entries", "logits"):
            if getattr(other, name) > getattr(self, name):
                raise CapacityError(
                    f"{program.name} needs {name} {getattr(other, name)}, these layers were made "
                    f"for {getattr(self, name)}; write it again"
                )
        return tables

    def _check_likeness(self, program: Program, memory: Mapping[str, Tensor]) -> None:
        for name, result in likenesses(program.assembly).items():
            largest = float(memory[name].abs().sum(-1).max()) * result
            if not largest <= self.logits:
                raise CapacityError(
                    f"likeness to {name} makes logits up to {largest:.4g}, the masks were made for "
                    f"{self.logits}; scale the data"
                )

    def answers_in(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        n = len(features) - 2 - self.entries
        if not 1 <= n <= self.lanes:
            raise ShapeError(
                f"no prompt of {self.name} has {len(features)} tokens: they are "
                f"{2 + self.entries} and one per sample, of which it holds up to {self.lanes}"
            )
        out = {}
        for o in program.assembly.outputs:
            held = features[1 : 2 + n, self.design.features[_held(o.variable)]]
            out[o.name] = o.of(held[0] if self.homes[o.variable] == "lane0" else held[1:])
        return out

    decoded = answers_in

    def layout(self) -> list[str]:
        return [
            "null: null = 1",
            "lane 0: lane0 = 1, its code, what every variable of lane 0 starts with",
            "one token per sample: samples = 1, its code, what the samples' variables start with",
            "one token per table entry: entry = 1, slope, bias, f, g; absent[k] = 0 in table k",
        ]


def _lines(
    program: Program, settings: Mapping[str, Any]
) -> tuple[tuple[LayeredInstruction, ...], list[str]]:
    """The instructions that an answer depends on, and the names of their tables in order."""
    fix = 'write mode="prompt" with cycles='
    run = trace(program, settings, fix)
    if not turns_alike(program):
        raise TargetError(
            f"{program.name} has a loop with a turn for each sample, and a checkpoint has so many "
            f"layers for any number of them: {fix}"
        )
    needed = {o.variable for o in program.assembly.outputs}
    kept: list[tuple[Instruction, str | None]] = []
    for before, instruction in reversed(list(zip([None, *run[:-1]], run, strict=True))):
        if instruction.dst not in needed:
            continue
        reads = {*instruction.a.reads(), *instruction.b.reads()}
        is_like = any(kind == "like" for kind, _ in reads)
        asks = before.dst if before is not None and is_like else None
        needed.discard(instruction.dst)
        needed |= {v for _, v in reads} | ({asks} if asks else set())
        kept.append((instruction, asks))
    kept.reverse()
    tables = list(dict.fromkeys(i.table for i, _ in kept))
    columns = {name: program.assembly.table(name) for name in tables}
    return tuple(
        LayeredInstruction(
            i.dst, tuple(i.a.reads()), tuple(i.b.reads()), tables.index(i.table),
            bool(columns[i.table].f.any()), bool(columns[i.table].g.any()), asks,
        )
        for i, asks in kept
    ), tables  # fmt: skip


def _code(numbers: Tensor, bits: int) -> Tensor:
    """Binary codes of +-1."""
    return 2.0 * ((numbers[:, None] >> torch.arange(bits)) & 1) - 1


def _held(variable: str) -> str:
    """The features that hold a variable."""
    return f"[{variable}]"
