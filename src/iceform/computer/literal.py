"""The literal run: W_Q, W_K, W_V and W_O multiply tokens, cycle after cycle.

``every`` entry of every attention matrix can be computed; that is the definition. With the weights
that the sizes imply almost all of them are known before: a token that does not ask attends to the
null token alone, whose values are zeros, and a key of the wrong kind has a weight of exactly 0 (the
theorem of the block). So only the rows of tokens that ask are computed, and of those only the
columns of keys that can answer:

=======  =======================  =====================
layer    rows                     columns
=======  =======================  =====================
fetch    units                    instructions
read     units                    the null token, memory
compute  units                    entries
write    units, memory            units, the null token
=======  =======================  =====================

A row of a self head has one entry, which is 1. A network that is not the one the sizes imply is
always run in full.

A run can be watched: memory, program counter and attention of every cycle, by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer.block import LAYERS
from iceform.computer.instructions import Instruction, check_decided
from iceform.computer.prompt import ProgramPrompt
from iceform.errors import BoundError, ShapeError
from iceform.heads import FrozenNetwork
from iceform.heads.variants import HeadGroup, ProjectedAttention

Cycle = Callable[[Tensor], Tensor]


def every_entry(network: FrozenNetwork) -> Cycle:
    """One cycle with all of its attention entries."""
    return network.__call__


def needed_entries(network: FrozenNetwork, kinds: Mapping[str, slice]) -> Cycle:
    """One cycle with the entries that can differ from 0, in place; for sealed weights only."""
    unit, null, memory = kinds["unit"], kinds["null"], kinds["memory"]
    rows = [unit, unit, unit, slice(unit.start, memory.stop)]
    answering = slice(null.start, memory.stop)
    columns = [kinds["instruction"], answering, kinds["entry"], slice(unit.start, null.stop)]
    layers = [layer for layer in network.layers if isinstance(layer, ProjectedAttention)]
    heads = [layer.head_groups[-1] for layer in layers]
    turn = _turn(layers[-1])

    def cycle(tokens: Float[Tensor, "*b t d"]) -> Float[Tensor, "*b t d"]:
        for group, asking, answers in zip(heads[:-1], rows, columns, strict=False):
            tokens[..., asking, :] += group(tokens[..., asking, :], tokens[..., answers, :])
        stored = heads[-1](tokens[..., rows[-1], :], tokens[..., columns[-1], :])
        tokens[..., unit, :] = turn(tokens[..., unit, :])
        tokens[..., rows[-1], :] += stored
        return tokens

    return cycle


def _turn(layer: ProjectedAttention) -> Cycle:
    """What the self head of the last layer does to a unit, whose row is one entry of weight 1."""
    own: HeadGroup = layer.head_groups[0]

    def turn(units: Tensor) -> Tensor:
        moved = own.project(own.values(units))
        return units + moved if layer.residual else moved

    return turn


class BranchWatch:
    """A cycle, and what FLAG is wherever a branch is met; what it finds stays on the device."""

    def __init__(self, cycle: Cycle, prompt: ProgramPrompt) -> None:
        assembly, tokens = prompt.assembly, prompt.tokens
        self.cycle, self.prompt, self.assembly = cycle, prompt, assembly
        last = max(i.address for i in assembly.instructions)
        self.known = torch.zeros(last + 2, dtype=torch.bool, device=tokens.device)
        self.known[[i.address for i in assembly.instructions]] = True
        self.branch = torch.zeros_like(self.known)
        self.branch[sorted(assembly.branches)] = True
        at = prompt.layout.features["value"].start
        self.flag = (..., prompt.kinds["unit"].start, at)
        # Address, least and largest |FLAG| of branches, and an address without an instruction.
        self.least = tokens.new_full((2,), math.inf)
        self.most = tokens.new_tensor([0.0, 0.0])
        self.lost = torch.full((), -1, dtype=torch.long, device=tokens.device)

    def __call__(self, tokens: Tensor) -> Tensor:
        """One cycle."""
        counter = self.prompt.counter(tokens).flatten()
        address = counter.clamp(0, len(self.known) - 1)
        size = tokens[self.flag].flatten().abs().nan_to_num(0.0)
        met = self.branch[address]
        self.least = _extreme(self.least, torch.where(met, size, math.inf), address, largest=False)
        self.most = _extreme(self.most, torch.where(met, size, 0.0), address, largest=True)
        astray = torch.where(self.known[address], -1, counter).max()
        self.lost = torch.where(self.lost < 0, astray, self.lost)
        return self.cycle(tokens)

    def check(self) -> None:
        """Refuse a run in which a branch was not decided, or the counter went astray.

        Raises
        ------
        BoundError
            Names the address and what was found there.
        """
        for found in (self.least, self.most):
            size, address = found.tolist()
            if 0 < size < math.inf or (size == 0 and found is self.least):
                check_decided(int(address), size, size)
        if int(self.lost) >= 0:
            raise BoundError(
                f"the program counter shows {int(self.lost)}, where {self.assembly.name!r} has no "
                "instruction: values have left what the masks of this dtype cover; scale the data, "
                "or use dtype=torch.float64"
            )


def _extreme(known: Tensor, sizes: Tensor, address: Tensor, *, largest: bool) -> Tensor:
    """(size, address) of the more extreme of what is known and of what is found."""
    at = sizes.argmax() if largest else sizes.argmin()
    found = torch.stack([sizes[at], address[at].to(sizes)])
    beyond = found[0] > known[0] if largest else found[0] < known[0]
    return torch.where(beyond, found, known)


def loop(cycle: Cycle, tokens: Tensor, cycles: int) -> Tensor:
    """Nothing between cycles but the loop."""
    for _ in range(cycles):
        tokens = cycle(tokens)
    return tokens


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """One layer's attention in one cycle: who attends to whom.

    Attributes
    ----------
    layer
        The layer's name.
    heads
        Attention by the heads' names: rows are the tokens that ask, columns those that answer.
    roles
        What each token is.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> computer = ice.Computer.for_programs(program)
    >>> X = torch.ones(3, 1, dtype=torch.float64)
    >>> trace = computer.trace(program, X)
    >>> trace.attention(0)["fetch"].asked("fields")["unit, 0"]
    {'instruction, 0': 1.0}
    """

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
    """The tokens before and after every cycle of a run; :meth:`Computer.trace` returns it.

    Attributes
    ----------
    prompt
        What was written.
    states
        The tokens before every cycle and after the last, shape (cycles + 1, tokens, features).
    network
        The block that ran.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> computer = ice.Computer.for_programs(program)
    >>> trace = computer.trace(program, torch.ones(3, 1, dtype=torch.float64))
    >>> trace.cycles, trace.counters, {k: v.round() for k, v in trace.outputs.items()}
    (2, [0, 1, 2], {'value': tensor([1.], dtype=torch.float64)})
    """

    prompt: ProgramPrompt
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
    prompt: ProgramPrompt,
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


def _at(prompt: ProgramPrompt, tokens: Tensor, addresses: set[int]) -> bool:
    return int(prompt.counter(tokens)) in addresses
