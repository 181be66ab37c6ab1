r"""The frozen computer as a stock encoder: programs are prompts, one checkpoint runs them all.

The block of ``iceform.computer`` in its residual form is four layers of attention, and one cycle
executes one instruction. An ALBERT shares its layers, so its depth is the number of cycles: one
group of four layers, ``num_hidden_layers`` = cycles. A BERT holds them side by side, unrolled.
The block's design is held in a mirrored stream; a head that carries more than the head size becomes
several with the same logit.

**What is proven** is proven run by run (``program_target``). That noise does not grow over cycles
is the block's own property (``computer.block``) and is tested: behind a norm copies are exact to
rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.certificates import Certificate
from iceform.computer.compile import Program
from iceform.computer.computer import Computer
from iceform.computer.prompt import ProgramPrompt
from iceform.errors import ProgramError, ShapeError
from iceform.heads import Design
from iceform.heads.design import in_parts
from iceform.targets.program_target import ProgramTarget
from iceform.validation import check_size


@dataclass(frozen=True)
class StockComputer(ProgramTarget):
    """A computer of given sizes and so many cycles.

    Parameters
    ----------
    width, lanes, variables, tables, instructions, table_tokens, logits, values
        As of :class:`iceform.computer.Computer`.
    cycles
        Instructions that a run may take; a program that has come to its halt stays there.
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
    (4, 3)
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
        self.computer.sizes  # noqa: B018

    @classmethod
    def for_programs(
        cls, programs: Iterable[Program], cycles: int, dtype: str = "float64"
    ) -> StockComputer:
        """The smallest one that holds these programs."""
        found = Computer.for_programs(programs, dtype=getattr(torch, dtype))
        return cls(**vars(found.sizes), cycles=cycles, dtype=dtype)

    @cached_property
    def computer(self) -> Computer:
        """The computer that is written."""
        sizes = {k: v for k, v in self.sizes().items() if k not in ("cycles", "dtype")}
        return Computer(**sizes, dtype=self.torch_dtype)

    def known(self, program: Program, settings: Mapping[str, Any]) -> Certificate:
        width = self.computer.sizes.width
        return program.certified_on(width, self.torch_dtype, "literal", settings)[0]

    @property
    def positions(self) -> int:  # type: ignore[override]
        """Tokens of the longest prompt."""
        return self.computer.sizes.tokens

    @cached_property
    def design(self) -> Design:
        block = self.computer.block.design(residual=True)
        layers = in_parts(block.layers)
        return replace(block, layers=layers, repeats=self.cycles, norm=self.norm)

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, program: Program, x: Tensor, y: Tensor, settings: Mapping[str, Any]
    ) -> Float[Tensor, "t f"]:
        given = self.written(program, x, y, settings)
        dtype = self.torch_dtype
        return self.computer.prompt(program, x.to(dtype), y.to(dtype), **given).tokens

    def answers_in(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        prompt = self.blank(program, len(features))
        counter = int(prompt.counter(features))
        halts = {i.address for i in prompt.assembly.instructions if i.next == i.address}
        if counter not in halts:
            raise ProgramError(
                f"{prompt.assembly.name!r} is at instruction {counter} after {self.cycles} cycles "
                "and not at its halt; write the checkpoint with more cycles"
            )
        return self.decoded(features, program)

    def decoded(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        prompt = self.blank(program, len(features))
        return {o.name: prompt.read(features, o) for o in prompt.assembly.outputs}

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
