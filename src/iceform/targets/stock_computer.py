r"""The frozen computer as a stock encoder: programs are prompts, one checkpoint runs them all.

One cycle of the block executes one instruction. An ALBERT shares its layers, so its depth is the
number of cycles: one group of three layers (``stock_block``), ``num_hidden_layers`` = cycles. A
BERT holds them side by side, unrolled. The block's design is held in a mirrored stream; a head that
carries more than the head size becomes several with the same logit.

**What is proven** is proven run by run (``program_target``). That noise does not grow over cycles
is the block's own property (``computer.block``) and is tested: behind a norm copies are exact to
rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import next_power_of_two, power_of_four
from iceform.certificates import Certificate
from iceform.codec import decode
from iceform.computer.compile import Program
from iceform.computer.computer import Computer
from iceform.computer.layout import RESERVED, ComputerSizes
from iceform.computer.prompt import ProgramPrompt
from iceform.errors import ProgramError, ShapeError
from iceform.heads import Design
from iceform.heads.design import in_parts
from iceform.targets.program_target import ProgramTarget
from iceform.targets.stock_block import StockBlock, fetched
from iceform.validation import check_size

_EXACT = 16  # rows of a logit up to which a head is as wide as a power of four: its root is exact


@dataclass(frozen=True)
class StockComputer(ProgramTarget):
    """A computer of given sizes and so many cycles.

    Parameters
    ----------
    width, lanes, variables, tables, instructions, table_tokens, logits, values
        As of :class:`iceform.computer.Computer`.
    cycles
        Instructions that a run may take; a program that has come to its halt stays there.
    layers
        Of a cycle: 3, or 4 of folders from before there were three, whose block is that of
        ``iceform.computer`` with all of its features.
    dtype
        "float64" or "float32".

    Examples
    --------
    >>> @ice.algorithm
    ... def slope(x, y, *, lr=0.5):
    ...     return lr * ice.mean(x * y)
    >>> program = ice.compile(slope, dim=1, samples=2, eps=1e-6)
    >>> spec = StockComputer.for_programs([program], cycles=3)
    >>> len(spec.design.layers), spec.design.repeats
    (3, 3)
    """

    width: int
    lanes: int
    variables: int
    tables: int
    instructions: int
    table_tokens: int
    logits: int
    values: int
    cycles: int
    layers: int = 3
    dtype: str = "float64"

    kind: ClassVar[str] = "computer"
    title: ClassVar[str] = "programs that are in its prompt"
    causal: ClassVar[bool] = False
    why_causal: ClassVar[str] = (
        "memory must see the units that come after it, which a causal mask hides"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("cycles", self.cycles)
        if self.layers not in (3, 4):
            raise ProgramError(f"a cycle is 3 layers, or 4 of an old folder, not {self.layers}")
        self.computer.sizes  # noqa: B018

    @classmethod
    def for_programs(
        cls, programs: Iterable[Program], cycles: int, dtype: str = "float64"
    ) -> StockComputer:
        """The smallest one that holds these programs: codes of all bits, one of them for none."""
        programs = list(programs)
        sizes = dict(vars(Computer.for_programs(programs, dtype=getattr(torch, dtype)).sizes))
        most = max(len(p.assembly.variables) for p in programs)
        sizes["variables"] = next_power_of_two(most + RESERVED) - RESERVED
        return cls(**sizes, cycles=cycles, dtype=dtype)

    @classmethod
    def from_record(cls, sizes: dict[str, Any], parameters: dict[str, Any]) -> StockComputer:
        """Of a folder; those that do not say how many layers a cycle is have four."""
        return decode(cls, {"layers": 4, **sizes, **parameters})

    @cached_property
    def computer(self) -> Computer:
        """The computer that is written."""
        sizes = {f.name: getattr(self, f.name) for f in fields(ComputerSizes)}
        return Computer(**sizes, dtype=self.torch_dtype)

    @cached_property
    def block(self) -> StockBlock | None:
        """What is written; None where it is the computer's own."""
        own = self.computer
        return StockBlock(own.layout, own.block.margins) if self.layers == 3 else None

    def known(self, program: Program, settings: Mapping[str, Any]) -> Certificate:
        width = self.computer.sizes.width
        return program.certified_on(width, self.torch_dtype, "literal", settings)[0]

    @property
    def positions(self) -> int:  # type: ignore[override]
        """Tokens of the longest prompt."""
        return self.computer.sizes.tokens

    @cached_property
    def design(self) -> Design:
        block = self.block or self.computer.block
        found = block.design(residual=True)
        rows = max(len(head.logit) for layer in found.layers for head in layer)
        size = power_of_four(rows) if rows <= _EXACT or self.block is None else -(-rows // 8) * 8
        layers = in_parts(found.layers, size)
        heads = max(*map(len, layers), -(-2 * found.features.total // size))
        return replace(
            found, layers=layers, repeats=self.cycles, norm=self.norm, blocks=(heads, size)
        )

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, program: Program, x: Tensor, y: Tensor, settings: Mapping[str, Any]
    ) -> Float[Tensor, "t f"]:
        given = self.written(program, x, y, settings)
        dtype = self.torch_dtype
        prompt = self.computer.prompt(program, x.to(dtype), y.to(dtype), **given)
        return prompt.tokens if self.block is None else self.block.held(fetched(prompt))

    def answers_in(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        prompt = self.blank(program, len(features))
        counter = int(prompt.counter(self._spread(features)))
        halts = {i.address for i in prompt.assembly.instructions if i.next == i.address}
        if counter not in halts:
            raise ProgramError(
                f"{prompt.assembly.name!r} is at instruction {counter} after {self.cycles} cycles "
                "and not at its halt; write the checkpoint with more cycles"
            )
        return self.decoded(features, program)

    def decoded(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        prompt, held = self.blank(program, len(features)), self._spread(features)
        return {o.name: prompt.read(held, o) for o in prompt.assembly.outputs}

    def _spread(self, features: Float[Tensor, "t f"]) -> Float[Tensor, "t g"]:
        return features if self.block is None else self.block.spread(features)

    def blank(self, program: Program, tokens: int) -> ProgramPrompt:
        """The places of a program's prompt of so many tokens, with no data in them."""
        one, two = (
            ProgramPrompt(program.assembly, self.computer.layout, n, {}).kinds["memory"].stop
            for n in (1, 2)
        )
        more, rest = divmod(tokens - one, two - one)
        if rest or more < 0:
            raise ShapeError(
                f"no prompt of {program.name!r} has {tokens} tokens: they are {one} for one sample "
                f"and {two - one} for each other one"
            )
        return ProgramPrompt(program.assembly, self.computer.layout, 1 + more, {})

    def layout(self) -> list[str]:
        return [
            "one token per instruction",
            "one token per table entry",
            "one unit per lane",
            "the null token",
            "memory: one token per variable and lane",
        ]
