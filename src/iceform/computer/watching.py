"""A run, watched: memory, program counter and attention of every cycle, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.attention import FrozenNetwork
from iceform.attention.variants import ProjectedAttention
from iceform.computer.block import LAYERS
from iceform.computer.instructions import Instruction
from iceform.computer.literal import Cycle
from iceform.computer.prompt import Prompt
from iceform.errors import ShapeError

__all__ = ["ComputerTrace", "LayerAttention", "watch"]


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """One layer's attention in one cycle."""

    layer: str
    heads: Mapping[str, Float[Tensor, "t t"]]  # rows ask, columns answer
    roles: tuple[str, ...]

    def asked(self, head: str) -> dict[str, dict[str, float]]:
        """Who attends to whom, by name; tokens that attend to the null token alone are left out."""
        found = {}
        for role, row in zip(self.roles, self.heads[head], strict=True):
            seen = {self.roles[k]: float(row[k]) for k in row.nonzero()[:, 0].tolist()}
            if set(seen) != {"null"}:
                found[role] = seen
        return found


@dataclass(frozen=True, eq=False)
class ComputerTrace:
    """What every cycle found and left.

    Attributes
    ----------
    prompt
        What was written.
    states
        The tokens before every cycle and after the last, shape (cycles + 1, tokens, features).
    network
        The block that ran.
    """

    prompt: Prompt
    states: Tensor
    network: FrozenNetwork

    @property
    def cycles(self) -> int:
        """Cycles that were run."""
        return len(self.states) - 1

    @cached_property
    def counters(self) -> list[int]:
        """The address before every cycle and after the last."""
        found: list[int] = self.prompt.counter(self.states).tolist()
        return found

    @cached_property
    def instructions(self) -> list[Instruction]:
        """What every cycle executed, by the program counter and the flag in its tokens."""
        flags = self.states[:-1, self.prompt.kinds["unit"].start, self._value][:, 0].tolist()
        fetch = self.prompt.assembly.fetch
        return [fetch(at, flag) for at, flag in zip(self.counters, flags, strict=False)]

    @property
    def memory(self) -> dict[str, Float[Tensor, "c lanes m"]]:
        """Every variable's values before every cycle and after the last."""
        names = [v.name for v in self.prompt.assembly.variables]
        return {name: self.prompt.value(self.states, name) for name in names}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The program's answers as they stand after the last cycle, by name."""
        prompt = self.prompt
        return {o.name: prompt.read(self.states[-1], o) for o in prompt.assembly.outputs}

    def attention(self, cycle: int) -> dict[str, LayerAttention]:
        """Every layer's attention in a cycle, from the literal matrices."""
        return {found.layer: found for found in self.layers(cycle)}

    def layers(self, cycle: int) -> Iterator[LayerAttention]:
        """The same layer by layer: what was not kept takes no memory."""
        if not 0 <= cycle < self.cycles:
            raise ShapeError(f"cycle {cycle} was not run; there were {self.cycles}, from 0")
        tokens, roles = self.states[cycle], tuple(self.prompt.roles)
        for name, layer in zip(LAYERS, self.network.layers, strict=True):
            assert isinstance(layer, ProjectedAttention)
            yield LayerAttention(name, layer.attend(tokens), roles)
            tokens = layer(tokens)

    @property
    def _value(self) -> slice:
        return self.prompt.layout.features["value"]

    def __str__(self) -> str:
        """One line a cycle: the instruction, and what its destination then holds."""
        lines = []
        for cycle, i in enumerate(self.instructions):
            held = self.prompt.value(self.states[cycle + 1], i.dst)[0]
            shown = ", ".join(f"{v:.6g}" for v in held.tolist())
            text = f"{i.dst} <- {i.table}({i.a}, {i.b})"
            lines.append(f"{cycle:5d}  @{i.address:<3d} {text:<48} [{shown}]")
        return "\n".join(lines)


def watch(
    network: FrozenNetwork,
    cycle: Cycle,
    prompt: Prompt,
    cycles: int | None,
    seen: Callable[[int], None] | None = None,
) -> ComputerTrace:
    """Run a prompt of one problem and keep the tokens of every cycle.

    ``cycles`` None ends with the cycle that brings the program to an instruction naming itself;
    ``seen`` is told how many have been run, after each.
    """
    if prompt.tokens.ndim != 2:
        raise ShapeError(
            f"a trace is of one problem, got tokens of shape {tuple(prompt.tokens.shape)}"
        )
    halts = {i.address for i in prompt.assembly.instructions if i.halts}
    states = [prompt.tokens]
    with torch.no_grad():
        while len(states) <= cycles if cycles is not None else not _at(prompt, states[-1], halts):
            states.append(cycle(states[-1].clone()))
            if seen is not None:
                seen(len(states) - 1)
    return ComputerTrace(prompt, torch.stack(states), network)


def _at(prompt: Prompt, tokens: Tensor, addresses: set[int]) -> bool:
    return int(prompt.counter(tokens)) in addresses
