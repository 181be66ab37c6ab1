r"""The frozen computer as a stock encoder: programs are prompts, one checkpoint runs them all.

The block of ``iceform.computer`` in its residual form is four layers of attention, and one cycle
executes one instruction. An ALBERT shares its layers, so its depth is the number of cycles: one
group of four layers, ``num_hidden_layers`` = cycles. A BERT holds them side by side, unrolled.
The plans of the block's heads become rows and moves of a ``Design``; a head that carries more than
the head size becomes several with the same logit.

**What is proven.** A run is certified after the fact: the exact program is evaluated on the same
data in ball arithmetic, and the distance of the answer that the stock network gave is enclosed,
whatever norms, masks, tables and rounding did (``iceform.computer.proofs``). Nothing here adds to
the proof. That noise does not grow over cycles is the block's own property (``computer.block``)
and is tested: behind a norm copies are exact to rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.certificates import Certificate, Step
from iceform.computer.block import LAYERS
from iceform.computer.compile import Program
from iceform.computer.computer import Computer
from iceform.computer.heads import HeadPlan
from iceform.computer.prompt import Prompt
from iceform.errors import ProgramError, ShapeError
from iceform.targets.data import Domain
from iceform.targets.design import Design, Head, Move, Row, mirrored, power_of_four, unmirrored
from iceform.targets.target import Target
from iceform.validation import check_size

__all__ = ["StockComputer"]


@dataclass(frozen=True)
class StockComputer(Target):
    """A computer of given sizes and so many cycles.

    Parameters
    ----------
    width, lanes, variables, tables, instructions, table_tokens, logits
        As of :class:`iceform.computer.Computer`.
    cycles
        Instructions that a run may take; a program that has come to its halt stays there.
    dtype
        "float64" or "float32".
    """

    width: int
    lanes: int
    variables: int
    tables: int
    instructions: int
    table_tokens: int
    logits: int
    cycles: int
    dtype: str = "float64"

    kind: ClassVar[str] = "computer"
    title: ClassVar[str] = "programs that are in its prompt"
    architectures: ClassVar[tuple[str, ...]] = ("albert", "bert")
    why_not: ClassVar[dict[str, str]] = dict.fromkeys(
        ("gpt2", "llama"), "memory must see the units that come after it, which a causal mask hides"
    )

    def __post_init__(self) -> None:
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

    @property
    def positions(self) -> int:  # type: ignore[override]
        """Tokens of the longest prompt."""
        return self.computer.sizes.tokens

    @cached_property
    def design(self) -> Design:
        block = self.computer.block
        plans = [block.heads(name, residual=True) for name in LAYERS]
        size = power_of_four(max(len(_rows(p)[0]) for layer in plans for p in layer))
        names = [(name, j) for name, count in block.layout.features.sizes for j in range(count)]
        layers = tuple(
            tuple(head for plan in layer for head in _heads(plan, names, size)) for layer in plans
        )
        return Design(block.layout.features, layers, repeats=self.cycles)

    # -------------------------------------------------------------------------- prompt and answer

    def _prompt(self, program: Program | None, x: Tensor, y: Tensor, settings: Any) -> Prompt:
        if not isinstance(program, Program):
            raise ProgramError("this checkpoint runs programs: pass program=, from ice.compile")
        given = program.parameters(**settings)
        program.domain.check(x.double(), y.double(), given)
        flat = {
            name: (value if program.assembly.parameters[name] else value[0]).to(self.torch_dtype)
            for name, value in given.items()
        }
        return self.computer.prompt(program, x.to(self.torch_dtype), y.to(self.torch_dtype), **flat)

    def prompt(
        self, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> Tensor:
        return mirrored(self.design, self._prompt(program, x, y, settings).tokens)[None]

    def read(self, out: Tensor) -> Tensor:
        """All tokens' features; :meth:`outputs` finds a program's answers in them."""
        return unmirrored(self.design, out)[0]

    def blank(self, program: Program, tokens: int) -> Prompt:
        """The places of a program's prompt of so many tokens, with no data in them."""
        one, two = (
            Prompt(program.assembly, self.computer.layout, n, {}).kinds["memory"].stop
            for n in (1, 2)
        )
        more, rest = divmod(tokens - one, two - one)
        if rest or more < 0:
            raise ShapeError(
                f"no prompt of {program.name!r} has {tokens} tokens: they are {one} for one sample "
                f"and {two - one} for each other one"
            )
        return Prompt(program.assembly, self.computer.layout, 1 + more, {})

    def outputs(self, features: Tensor, prompt: Prompt) -> dict[str, Tensor]:
        """A program's answers, by name; refused if it has not come to its halt."""
        counter = int(prompt.counter(features))
        halts = {i.address for i in prompt.assembly.instructions if i.next == i.address}
        if counter not in halts:
            raise ProgramError(
                f"{prompt.assembly.name!r} is at instruction {counter} after {self.cycles} cycles "
                "and not at its halt; write the checkpoint with more cycles"
            )
        return {o.name: prompt.read(features, o) for o in prompt.assembly.outputs}

    def answers(
        self, network: Any, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> dict[str, Tensor]:
        """A program's answers, by a network that transformers has loaded."""
        prompt = self._prompt(program, x, y, settings)
        given = mirrored(self.design, prompt.tokens)[None].to(network.device)
        with torch.no_grad():
            hidden = network(inputs_embeds=given).last_hidden_state
        return self.outputs(self.read(hidden.cpu()), prompt)

    def run(self, network: Any, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        found = self.answers(network, x, y, **parameters)
        return torch.cat([value.flatten() for value in found.values()])

    def distance(
        self, value: Tensor, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> float:
        """From the algorithm run on tensors, in float64."""
        return self._enclosed(value, x, y, program, settings).error

    def judge(
        self, value: Tensor, x: Tensor, y: Tensor, attention: str, **parameters: Any
    ) -> tuple[Certificate, float]:
        program = parameters.pop("program", None)
        found = self._enclosed(value, x, y, program, parameters, attention)
        return found, found.error

    def _enclosed(
        self, value: Tensor, x: Tensor, y: Tensor, program: Program | None,
        settings: dict[str, Any], attention: str = "any",
    ) -> Certificate:  # fmt: skip
        """The proven distance of these answers from the exact program's, on these data."""
        prompt = self._prompt(program, x, y, settings)
        assert program is not None
        parts: dict[str, Tensor] = {}
        start = 0
        for output in prompt.assembly.outputs:
            like = prompt.answer(prompt.memory[output.variable], output)
            parts[output.name] = value[start : start + like.numel()].view(like.shape).double()
            start += like.numel()
        if not bool(torch.isfinite(value).all()):
            return self._certificate(math.inf, attention, "the answer holds NaN or infinity")
        dtype = self.torch_dtype
        found = program.enclosed(x.to(dtype).double(), y.to(dtype).double(), parts, **settings)
        why = f"the exact program on the same data in balls of {found.bits} bits"
        return self._certificate(found.distance, attention, why)

    def _certificate(self, distance: float, attention: str, why: str) -> Certificate:
        return Certificate.total(
            {"distance": distance},
            domain={"data": "of this run", "cycles": float(self.cycles)},
            dtype=self.torch_dtype,
            backend=f"transformers, {attention}",
            derivation=(Step("distance", "max |answer - ball|", distance, why),),
            compared="stock network's answer - exact program on these data",
        )

    def layout(self) -> list[str]:
        return [
            "one token per instruction",
            "one token per table entry",
            "one unit per lane",
            "the null token",
            "memory: one token per variable and lane",
        ]

    def domain(self, x: Tensor, y: Tensor, **parameters: Any) -> Domain:
        raise ProgramError("a program's run is certified when it has run: use ice.check")

    def certificate(self, domain: Domain, attention: str = "any", **parameters: Any) -> Certificate:
        raise ProgramError("a program's run is certified when it has run: use ice.check")

    def typical(self) -> None:
        return None

    def sizes(self) -> dict[str, Any]:
        return {
            "width": self.width, "lanes": self.lanes, "variables": self.variables,
            "tables": self.tables, "instructions": self.instructions,
            "table_tokens": self.table_tokens, "logits": self.logits, "cycles": self.cycles,
            "dtype": self.dtype,
        }  # fmt: skip


def _rows(plan: HeadPlan) -> tuple[Tensor, Tensor]:
    return torch.cat([t.query for t in plan.terms]), torch.cat([t.key for t in plan.terms])


def _heads(plan: HeadPlan, names: list[tuple[str, int]], size: int) -> Iterator[Head]:
    """One plan as heads of a size: the same logit, the values in parts."""
    queries, keys = _rows(plan)
    logit = tuple(
        (Row(_sparse(q, names)), Row(_sparse(k, names))) for q, k in zip(queries, keys, strict=True)
    )
    moves = [
        Move(Row(_sparse(v, names)), _sparse(o, names))
        for v, o in zip(plan.values, plan.out.T, strict=True)
    ]
    for start in range(0, len(moves), size):
        yield Head(plan.label, logit, tuple(moves[start : start + size]))


def _sparse(row: Tensor, names: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
    return {names[int(i)]: float(row[i]) for i in row.nonzero()[:, 0]}
