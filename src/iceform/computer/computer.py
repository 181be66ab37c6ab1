"""Computer: one frozen block of attention that executes programs given in its prompt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.attention import FrozenNetwork
from iceform.computer.attest import Attestation, Reservoir, replay
from iceform.computer.block import Block
from iceform.computer.costs import Cost, cost
from iceform.computer.fused import Fused
from iceform.computer.image import Image
from iceform.computer.instructions import Assembly
from iceform.computer.integrity import check_weights
from iceform.computer.layout import Layout
from iceform.computer.literal import Cycle, Graphed, every_entry, needed_entries
from iceform.computer.prompt import Prompt, initial_memory, write_prompt
from iceform.computer.recognise import recognise
from iceform.computer.sizes import Sizes
from iceform.computer.watching import ComputerTrace, watch
from iceform.errors import CapacityError, ProgramError, ShapeError
from iceform.validation import check_capacity, check_choice, check_dtype, check_tensors

__all__ = ["Computer", "Execution"]

_LOOK = 64  # cycles between two looks at whether a literal run has come to a halt
_LIMIT = 1 << 20  # cycles after which a program that should halt is taken not to


@dataclass(frozen=True, eq=False)
class Execution:
    """What a run left behind.

    Attributes
    ----------
    prompt
        What was written.
    tokens
        What the block made of it, shape (*batch, tokens, features).
    cycles
        Times that the block was applied.
    backend
        "literal" or "fused".
    attestation
        What was checked.
    """

    prompt: Prompt
    tokens: Tensor
    cycles: int
    backend: str
    attestation: Attestation

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The program's answers, by name."""
        outputs = self.prompt.assembly.outputs
        return {output.name: self.prompt.read(self.tokens, output) for output in outputs}


class Computer:
    """A frozen block for a class of programs: its weights depend on these sizes alone.

    Parameters
    ----------
    width
        Components of a value.
    lanes
        Samples.
    variables, tables, instructions, table_tokens
        Of a program, the largest there may be; ``table_tokens`` counts the entries of all tables.
    logits
        The largest logit of a table or a likeness. Masks cover it.
    dtype
        float64 or float32.
    """

    def __init__(
        self,
        width: int,
        lanes: int,
        variables: int,
        tables: int,
        instructions: int,
        table_tokens: int,
        logits: int = 1 << 14,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.sizes = Sizes(width, lanes, variables, tables, instructions, table_tokens, logits)
        self.dtype = check_dtype(dtype)
        self.layout = Layout.of(self.sizes)
        self.block = Block(self.layout, self.sizes.margins(self.dtype))

    @classmethod
    def for_programs(
        cls, programs: Iterable[Any], *, lanes: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Computer:  # fmt: skip
        """The smallest computer, in powers of two, that holds every one of these programs.

        ``lanes`` is the number of samples; programs that were compiled for one know theirs.
        """
        programs = list(programs)
        most = max([lanes or 0, *(getattr(p, "samples", None) or 0 for p in programs)])
        if most < 1:
            raise ShapeError("these programs do not say for how many samples; give lanes=")
        sizes = Sizes.for_programs([assembly_of(p) for p in programs], most)
        return cls(**vars(sizes), dtype=dtype)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in vars(self.sizes).items())
        return f"Computer({sizes}, dtype={self.dtype})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Computer) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[type[Computer], tuple[Any, ...]]:
        """Sizes are all there is: another process builds the same weights."""
        return Computer, (*astuple(self.sizes), self.dtype)

    # ------------------------------------------------------------------ the weights

    @cached_property
    def network(self) -> FrozenNetwork:
        """The plain block: attention and nothing else."""
        return self._sealed(residual=False)

    @cached_property
    def residual_network(self) -> FrozenNetwork:
        """The same block on a residual stream."""
        return self._sealed(residual=True)

    def _sealed(self, *, residual: bool) -> FrozenNetwork:
        network = self.block.network(self.dtype, residual=residual)
        self._expected[residual] = network.digest
        return network

    @cached_property
    def _expected(self) -> dict[bool, str]:
        """The digest of either form, as it was built from the sizes."""
        return {}

    @property
    def digest(self) -> str:
        """SHA-256 of the plain block's weights, from their bytes as they are now."""
        return self.network.digest

    def plan(
        self, program: Any, samples: int | None = None, *, cycles: int | None = None, batch: int = 1
    ) -> Cost:
        """What a run would cost; refused where the program does not fit. Nothing is built."""
        assembly, lanes = assembly_of(program), self._samples(program, samples)
        self.sizes.check(assembly, lanes)
        return cost(self.sizes, assembly, lanes, self.dtype, cycles=cycles, batch=batch)

    def _samples(self, program: Any, samples: int | None) -> int:
        known = samples or getattr(program, "samples", None)
        if known is None:
            raise ShapeError("this program does not say for how many samples; give samples=")
        return int(known)

    # ------------------------------------------------------------------ running

    def prompt(self, program: Any, x: Tensor, y: Tensor | None = None, **parameters: Any) -> Prompt:
        """A program and its data as tokens.

        Parameters
        ----------
        program
            An assembly, or a compiled program.
        x, y
            Samples (*batch, n, d) and targets (*batch, n) in the computer's dtype.
        parameters
            Of the program, by name.
        """
        assembly = assembly_of(program)
        self._check_data(assembly, x, y)
        samples, batch = x.shape[-2], x.shape[:-2].numel()
        needed = self.plan(assembly, samples, batch=batch)
        check_capacity(
            f"the prompt of {assembly.name!r}", needed.total_bytes, x.device,
            "take fewer samples or a smaller batch",
        )  # fmt: skip
        data = {"x": x, "y": x.new_zeros(x.shape[:-1]) if y is None else y}
        data |= _settings(assembly, parameters, x)
        memory = initial_memory(assembly, data, self.sizes.width)
        return write_prompt(self.layout, assembly, memory, samples)

    def _check_data(self, assembly: Assembly, x: Tensor, y: Tensor | None) -> None:
        if not isinstance(x, Tensor) or x.ndim < 2 or 0 in x.shape:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"x must be a tensor (*batch, samples, {assembly.dim}), got {got}")
        tensors: dict[str, tuple[Tensor, tuple[int, ...]]] = {"x": (x, (x.shape[-2], assembly.dim))}
        if y is not None:
            tensors["y"] = (y, (x.shape[-2],))
        check_tensors(tensors, self.dtype, x.device)

    def execute(
        self,
        prompt: Prompt,
        cycles: int | None = None,
        *,
        backend: str = "literal",
        every: bool = False,
        residual: bool = False,
    ) -> Execution:
        """Apply the block to a prompt.

        Parameters
        ----------
        prompt
            From :meth:`prompt`, or one whose tokens were changed.
        cycles
            How often; None runs until the program comes to an instruction that names itself.
        backend
            "literal" multiplies the matrices; "fused" computes what they and the tokens say.
        every
            Compute every attention entry, not only those that can differ from 0.
        residual
            Run the block that works on a residual stream.
        """
        check_choice("backend", backend, ("literal", "fused"))
        network = (self.residual_network if residual else self.network).to(prompt.tokens.device)
        expected = self._expected[residual]
        found = check_weights(network, expected)
        flat = prompt.tokens.reshape(-1, *prompt.tokens.shape[-2:])
        cycle = self._cycle(network, prompt, every=every or found != expected)
        if backend == "fused":
            tokens, done, checked = self._fused(network, cycle, flat, cycles)
        else:
            tokens, done = self._literal(cycle, prompt, flat, cycles)
            checked = {"note": "every row is literal"}
        attestation = Attestation(found, expected, backend, **checked)
        return Execution(prompt, tokens.reshape(prompt.tokens.shape), done, backend, attestation)

    def _cycle(self, network: FrozenNetwork, prompt: Prompt, *, every: bool) -> Cycle:
        return every_entry(network) if every else needed_entries(network, prompt.kinds)

    def _literal(
        self, cycle: Cycle, prompt: Prompt, tokens: Tensor, cycles: int | None
    ) -> tuple[Tensor, int]:
        tokens, done = tokens.clone(), 0
        with torch.no_grad():
            while cycles is None or done < cycles:
                turns = _LOOK if cycles is None else min(_LOOK, cycles - done)
                for _ in range(turns):
                    tokens = cycle(tokens)
                done += turns
                if cycles is None and _all_halt(prompt, tokens):
                    break
                _check_limit(done, cycles)
        return tokens, done

    def _fused(
        self, network: FrozenNetwork, cycle: Cycle, tokens: Tensor, cycles: int | None
    ) -> tuple[Tensor, int, dict[str, Any]]:
        fused = Fused(recognise(network, self.block), Image.of(self.layout, tokens))
        reservoir, done, started = Reservoir(), 0, time.perf_counter()
        with torch.no_grad():
            state = fused.start(tokens)
            while cycles is None or done < cycles:
                if cycles is None and fused.halted(state):
                    break
                before, state, done = state, fused.cycle(state), done + 1
                reservoir.offer(before, state)
                _check_limit(done, cycles)
            found = replay(fused, cycle, tokens, reservoir, time.perf_counter() - started)
        return fused.write(tokens, state), done, vars(found)

    def trace(
        self, program: Any, x: Tensor, y: Tensor | None = None, *, cycles: int | None = None,
        **parameters: Any,
    ) -> ComputerTrace:  # fmt: skip
        """Run a program on one data set and keep every cycle: memory, counter and attention."""
        prompt = self.prompt(program, x, y, **parameters)
        network = self.network.to(x.device)
        changed = check_weights(network, self._expected[False]) != self._expected[False]
        return watch(network, self._cycle(network, prompt, every=changed), prompt, cycles)

    def graphed(self, prompt: Prompt, turns: int = 1) -> Graphed:
        """The literal cycle as one CUDA graph on a copy of the prompt's tokens."""
        network = self.network.to(prompt.tokens.device)
        check_weights(network, self._expected[False])
        tokens = prompt.tokens.reshape(-1, *prompt.tokens.shape[-2:]).clone()
        return Graphed(needed_entries(network, prompt.kinds), tokens, turns)


def assembly_of(program: Any) -> Assembly:
    """The assembly of a compiled program, or the assembly itself."""
    assembly = getattr(program, "assembly", program)
    if not isinstance(assembly, Assembly):
        raise ProgramError(f"not a program for the frozen computer: {program!r}")
    return assembly


def _settings(assembly: Assembly, given: Mapping[str, Any], like: Tensor) -> dict[str, Tensor]:
    """Parameters as tensors: of one number (*batch), of several (*batch, k)."""
    unknown = sorted(set(given) - set(assembly.parameters))
    if unknown:
        there = ", ".join(assembly.parameters) or "none"
        raise ProgramError(f"{assembly.name!r} has no parameter {unknown[0]!r}; it has {there}")
    found = {}
    for name, value in given.items():
        tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        single = assembly.parameters[name] is None and tensor.numel() == 1
        found[name] = tensor.reshape(()) if single else tensor
    return found


def _all_halt(prompt: Prompt, tokens: Tensor) -> bool:
    halts = {i.address for i in prompt.assembly.instructions if i.halts}
    return set(prompt.counter(tokens).flatten().tolist()) <= halts


def _check_limit(done: int, cycles: int | None) -> None:
    if cycles is None and done >= _LIMIT:
        raise CapacityError(
            f"the program has not come to a halt after {done} cycles; give cycles= to run so many"
        )
