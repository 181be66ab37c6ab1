"""Computer: one frozen block of attention that executes programs given in its prompt."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.certificates import Attestation, Certificate, Ledger, Result
from iceform.certificates.attester import Attester
from iceform.computer import attest
from iceform.computer.block import TransformerBlock
from iceform.computer.compile import Program
from iceform.computer.costs import Cost, cost
from iceform.computer.cuda_graphs import CapturedSegments
from iceform.computer.fused import FastExecutor, State
from iceform.computer.instructions import FLAG, Assembly
from iceform.computer.interpret import own_cycles
from iceform.computer.layout import LEAST_VALUES, ComputerLayout, ComputerSizes
from iceform.computer.literal import (
    BranchWatch,
    ComputerTrace,
    Cycle,
    every_entry,
    loop,
    needed_entries,
    watch,
)
from iceform.computer.lookups import largest
from iceform.computer.prompt import (
    ProgramPrompt,
    check_largest,
    check_values,
    initial_memory,
    write_prompt,
)
from iceform.computer.running import run
from iceform.errors import CapacityError, ProgramError, ShapeError
from iceform.heads import FrozenNetwork
from iceform.run.base import other_weights
from iceform.validation import (
    check_capacity,
    check_choice,
    check_dtype,
    check_tensors,
    full_precision,
)

_PATIENCE = 2  # times the cycles that a program takes without attention; rounding may add turns

# Memory, how to get tokens, cycles, what was checked.
_Ran = tuple[Mapping[str, Tensor], Callable[[], Tensor], int]  # memory, tokens, cycles
_Cycles = Attester[tuple[State, State]]


@dataclass(frozen=True, eq=False)
class Execution:
    """What running a prompt left behind; :meth:`Computer.execute` returns it.

    Attributes
    ----------
    prompt
        What was written.
    memory
        What every variable holds at the end, shape (*batch, lanes, m).
    cycles
        Times that the block was applied.
    backend
        "literal" or "fused".
    attestation
        Which weights ran, and what running cycles again has shown.
    ledger
        What was computed where.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> computer = ice.Computer.for_programs(program)
    >>> X = torch.tensor([[0.5], [1.0], [-1.0]], dtype=torch.float64)
    >>> computer.execute(computer.prompt(program, X)).outputs["value"]
    tensor([0.7500], dtype=torch.float64)
    """

    prompt: ProgramPrompt
    memory: Mapping[str, Tensor]
    cycles: int
    backend: str
    attestation: Attestation
    ledger: Ledger
    _tokens: Callable[[], Tensor]

    @cached_property
    def tokens(self) -> Float[Tensor, "*b t d"]:
        """The tokens at the end."""
        return self._tokens().reshape(self.prompt.tokens.shape)

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The program's answers, by name."""
        prompt = self.prompt
        return {o.name: prompt.answer(self.memory[o.variable], o) for o in prompt.assembly.outputs}


class Computer:
    """A frozen block of attention that runs every program within its sizes.

    Its weights depend on the sizes alone: program and data are written into the prompt. Ask
    :meth:`for_programs` for the smallest one that holds given programs.

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
    values
        The largest component of a value, of memory and of what instructions return.
    dtype
        float64 or float32.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> computer = ice.Computer.for_programs(program)
    >>> result = computer.run(program, torch.tensor([[0.5], [1.0], [-1.0]]))
    >>> result.value, result.certificate.kind, result.enclosure.error < 1e-14
    (tensor([0.7500], dtype=torch.float64), 'proven', True)
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
        values: int = LEAST_VALUES,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.sizes = ComputerSizes(
            width, lanes, variables, tables, instructions, table_tokens, logits, values
        )
        self.dtype = check_dtype(dtype)
        self.layout = ComputerLayout.of(self.sizes)
        self.block = TransformerBlock(self.layout, self.sizes.margins(self.dtype))

    @classmethod
    @full_precision
    def for_programs(
        cls, programs: Any, *, lanes: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Computer:  # fmt: skip
        """The smallest computer, in powers of two, that holds every one of these programs, or one.

        ``lanes`` is the number of samples; programs that were compiled for one know theirs.
        """
        programs = list(programs) if isinstance(programs, Iterable) else [programs]
        if not programs:
            raise ProgramError("a computer is sized for at least one program, got none")
        assemblies = [assembly_of(p) for p in programs]
        most = max([lanes or 0, *(getattr(p, "samples", None) or 0 for p in programs)])
        if most < 1:
            raise ShapeError("these programs do not say for how many samples; give lanes=")
        sizes = ComputerSizes.for_programs(assemblies, most)
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
        """The plain block, attention and nothing else."""
        return self._sealed(residual=False)

    @cached_property
    def residual_network(self) -> FrozenNetwork:
        """The same block on a residual stream."""
        return self._sealed(residual=True)

    @full_precision
    def _sealed(self, *, residual: bool) -> FrozenNetwork:
        return self.block.network(self.dtype, residual=residual).seal()

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

    @full_precision
    def prompt(
        self, program: Any, x: Tensor, y: Tensor | None = None, **parameters: Any
    ) -> ProgramPrompt:
        """A program and its data as tokens.

        Parameters
        ----------
        program
            An assembly, or a compiled program.
        x, y
            Samples (*batch, n, d) and targets (*batch, n) in the computer's dtype.
        parameters
            Of the program, by name; of a compiled one, those that are not given have its defaults.
        """
        assembly = assembly_of(program)
        if hasattr(program, "written"):
            parameters = {k: v.to(self.dtype) for k, v in program.written(**parameters).items()}
        self._check_data(assembly, x, y)
        self.sizes.check(assembly, x.shape[-2])
        data = {"x": x, "y": x.new_zeros(x.shape[:-1]) if y is None else y}
        data |= _settings(assembly, parameters, x)
        memory = initial_memory(assembly, data, self.sizes.width)
        return write_prompt(self.layout, assembly, memory, x.shape[-2])

    def _check_data(self, assembly: Assembly, x: Tensor, y: Tensor | None) -> None:
        if not isinstance(x, Tensor) or x.ndim < 2 or 0 in x.shape:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"x must be a tensor (*batch, samples, {assembly.dim}), got {got}")
        tensors: dict[str, tuple[Tensor, tuple[int, ...]]] = {"x": (x, (x.shape[-2], assembly.dim))}
        if y is not None:
            tensors["y"] = (y, (x.shape[-2],))
        check_tensors(tensors, self.dtype, x.device)

    @full_precision
    def run(
        self, program: Program, x: Tensor, y: Tensor | None = None, *, backend: str = "auto",
        **settings: Any,
    ) -> Result:  # fmt: skip
        """Run a compiled program to its halt: the answer, its proof, attestation and ledger.

        Parameters
        ----------
        program
            From :func:`iceform.computer.compile`.
        x, y
            Samples (n, d) and targets (n,) within the program's domain.
        backend
            "auto", "literal" or "fused": see :meth:`execute`.
        settings
            Parameters of the algorithm, by name; others than at compile time are another prompt.

        Raises
        ------
        BoundError
            If data, parameters or a state leave what the program was compiled for.
        PrecisionError
            If a comparison came too near to a tie.
        """
        return run(self, program, x, y, backend=backend, **settings)

    @full_precision
    def execute(
        self,
        prompt: ProgramPrompt,
        cycles: int | None = None,
        *,
        backend: str = "auto",
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
            "literal" multiplies the matrices with the tokens; "fused" executes the program that was
            written. "auto" is "fused" where every bit of weights and tokens is as sizes, program
            and data imply, and "literal" where one is not, or where ``every`` or ``residual`` asks
            for the matrices; "fused" then refuses.
        every
            Compute every attention entry, not only those that can differ from 0.
        residual
            Run the block that works on a residual stream.
        """
        check_choice("backend", backend, ("auto", "literal", "fused"))
        whole = self.residual_network if residual else self.network
        network = _on(next(iter(prompt.memory.values())).device, whole)
        found, expected = network.check(), network.expected or ""
        built, written = found == expected, backend != "literal" and prompt.is_written
        if backend == "auto":
            backend = "fused" if built and written and not (every or residual) else "literal"
        if backend == "fused":
            if not built:
                raise other_weights(backend, network, found)
            if not written:
                raise ProgramError(
                    "backend='fused' executes the program that was written, and the tokens of this "
                    "prompt are others; use backend='auto' or 'literal', which read them"
                )
            memory, tokens, done, attestation = self._fused(network, found, every, prompt, cycles)
        else:
            memory, tokens, done = self._literal(network, found, every or not built, prompt, cycles)
            attestation = Attestation(found, expected, backend)
        ledger = accounted(prompt, done, stops=cycles is None)
        return Execution(prompt, memory, done, backend, attestation, ledger, tokens)

    def _cycle(self, network: FrozenNetwork, prompt: ProgramPrompt, *, every: bool) -> Cycle:
        return every_entry(network) if every else needed_entries(network, prompt.kinds)

    def _literal(
        self,
        network: FrozenNetwork,
        found: str,
        every: bool,
        prompt: ProgramPrompt,
        cycles: int | None,
    ) -> _Ran:
        self._check_memory(prompt)
        cycle = self._cycle(network, prompt, every=every)
        sealed = found == network.expected and prompt.changed is None
        watch = BranchWatch(cycle, prompt) if sealed else None
        own = own_cycles(prompt, tuning.COMPUTER_LIMIT) if sealed and cycles is None else None
        _check_limit(0, cycles, own)
        tokens, done = _flat(prompt.tokens).clone(), 0
        with torch.no_grad():
            while cycles is None or done < cycles:
                turns = (
                    tuning.COMPUTER_LOOK
                    if cycles is None
                    else min(tuning.COMPUTER_LOOK, cycles - done)
                )
                tokens, done = loop(watch or cycle, tokens, turns), done + turns
                if watch is not None:
                    watch.check()
                if cycles is None and _all_halt(prompt, tokens):
                    break
                _check_limit(done, cycles, own)
        shape = tokens.reshape(*prompt.batch, *tokens.shape[-2:])
        memory = {v.name: prompt.value(shape, v.name) for v in prompt.assembly.variables}
        check_values(self.sizes, memory, "ends")
        return memory, lambda: tokens, done

    @cached_property
    def _executors(self) -> SmallCache[FastExecutor]:
        return SmallCache()

    @cached_property
    def certificates(self) -> SmallCache[tuple[Program, Certificate]]:
        """Of programs that were run, at their parameters."""
        return SmallCache()

    def _executor(self, prompt: ProgramPrompt, *, closed: bool = True) -> FastExecutor:
        """The program of a prompt; its tables are read once for the same numbers in them."""
        assembly, like = prompt.assembly, prompt.memory[FLAG]
        columns = [torch.stack([t.slopes, t.biases, t.f, t.g], -1) for t in assembly.tables]
        whole = torch.cat(columns).to(like)

        def make() -> FastExecutor:
            names, sizes = [t.name for t in assembly.tables], [t.tokens for t in assembly.tables]
            entries = dict(zip(names, whole.split(sizes), strict=True))
            width, margins = self.sizes.width, self.block.margins
            return FastExecutor(assembly, prompt.samples, width, margins, entries, closed)

        key = id(assembly), prompt.samples, like.device, closed
        return self._executors.get(key, make, whole).again()

    def _fused(
        self, network: FrozenNetwork, weights: str, every: bool, prompt: ProgramPrompt,
        cycles: int | None,
    ) -> tuple[*_Ran, Attestation]:  # fmt: skip
        fused, state, attester = self._looped(prompt, cycles, closed=True)
        if fused.outside:
            fused, state, attester = self._looped(prompt, cycles, closed=False)
        with torch.no_grad():
            attestation = self._replayed(network, weights, every, prompt, attester)
        check_largest(self.sizes, largest(state.memory), "ends")
        names = [v.name for v in prompt.assembly.variables]
        memory = _LazyMemory(
            {name: partial(fused.held, state, name) for name in names}, prompt.batch
        )

        def tokens() -> Tensor:  # of long data they are written only where they are asked for
            return state.written(prompt, _flat(prompt.tokens))

        return memory, tokens, attester.seen, attestation

    def _looped(
        self, prompt: ProgramPrompt, cycles: int | None, *, closed: bool
    ) -> tuple[FastExecutor, State, _Cycles]:
        """Cycle after cycle, some of them kept to be run again."""
        fused = self._executor(prompt, closed=closed)
        whole = {name: v.expand(*prompt.batch, -1, -1) for name, v in prompt.memory.items()}
        state = fused.begin({name: _flat(value) for name, value in whole.items()})
        attester = _Cycles(tuning.REPLAYED, seconds=attest.LEAST)
        stretches = CapturedSegments.of(fused, state)
        with torch.no_grad():
            while cycles is None or attester.seen < cycles:
                if cycles is None and fused.halted(state):
                    break
                most = None if cycles is None else cycles - attester.seen
                ran = None if stretches is None else stretches.run(state, most)
                if ran is None:
                    before, state = state, fused.cycle(state)
                    attester.offer(partial(_pair, before, state))
                else:
                    state = ran.state
                    for at in range(ran.cycles):
                        attester.offer(partial(ran.between, at))
                _check_limit(attester.seen, cycles)
        return fused, state, attester

    def _replayed(
        self, network: FrozenNetwork, weights: str, every: bool, prompt: ProgramPrompt,
        attester: _Cycles,
    ) -> Attestation:  # fmt: skip
        """Random cycles run again: with all lanes, or, where tokens would be too many, with few.

        What averages over lanes is then added up again by itself; a cycle that attends to lanes by
        likeness can only be run again with all of them.
        """
        lanes = self._replayable(prompt)
        short = prompt.one_problem.with_lanes(lanes)
        few, cycle = self._executor(short), self._cycle(network, short, every=every)

        def note(done: int) -> str:
            said = f"{done} cycles of {attester.seen} run again"
            if lanes < prompt.samples:
                said += f", on {lanes} of {prompt.samples} lanes, and none that attends to lanes"
            return said

        return attester.attest(
            weights, network.expected or "", "fused",
            lambda pair: attest.cycle_questions(few, cycle, short, pair, attester.draw), note,
        )  # fmt: skip

    def _replayable(self, prompt: ProgramPrompt) -> int:
        """All lanes, or as many as a literal cycle can be run on in a moment."""
        lanes, instructions = prompt.samples, prompt.assembly.instructions
        alike = any(i.a.like or i.b.like for i in instructions)  # which few lanes cannot tell
        limit = tuning.COMPUTER_REPLAYED if alike else tuning.COMPUTER_REPLAYED_QUICKLY
        while lanes > 1 and (entries := self._entries(prompt.assembly, lanes)) > limit:
            limit = tuning.COMPUTER_FEW_REPLAYED
            lanes = max(1, min(lanes - 1, int(lanes * (limit / entries) ** 0.5)))
        return lanes

    def _entries(self, assembly: Assembly, lanes: int) -> int:
        return cost(self.sizes, assembly, lanes, self.dtype).entries

    def _check_memory(self, prompt: ProgramPrompt) -> None:
        """Refuse tokens that would not fit, before they are written."""
        batch = prompt.batch.numel()
        needed = self.plan(prompt.assembly, prompt.samples, batch=batch)
        device = next(iter(prompt.memory.values())).device
        check_capacity(
            f"the tokens of {prompt.assembly.name!r}", needed.total_bytes, device,
            "take fewer samples, a smaller batch, or the fused backend",
        )  # fmt: skip

    @full_precision
    def trace(
        self, program: Any, x: Tensor, y: Tensor | None = None, *, cycles: int | None = None,
        seen: Callable[[int], None] | None = None, **parameters: Any,
    ) -> ComputerTrace:  # fmt: skip
        """Run a program on one data set and keep every cycle: memory, counter and attention.

        Parameters
        ----------
        program, x, y, parameters
            As for :meth:`prompt`, without a batch.
        cycles
            How many; None for as many as the program takes to its halt.
        seen
            Told the number of cycles so far, after each; what it raises ends the run.
        """
        prompt = self.prompt(program, x, y, **parameters)
        network = _on(x.device, self.network)
        cycle = self._cycle(network, prompt, every=network.check() != network.expected)
        return watch(network, cycle, prompt, cycles, seen)


class _LazyMemory(Mapping[str, Tensor]):
    """What variables hold, multiplied out where somebody asks."""

    def __init__(self, ask: Mapping[str, Callable[[], Tensor]], batch: torch.Size) -> None:
        self.ask, self.batch = ask, batch

    def __getitem__(self, name: str) -> Tensor:
        held = self.ask[name]()
        return held.reshape(*self.batch, *held.shape[-2:])

    def __iter__(self) -> Iterator[str]:
        return iter(self.ask)

    def __len__(self) -> int:
        return len(self.ask)


_Cached = TypeVar("_Cached")


class SmallCache(Generic[_Cached]):
    """What a few keys, and tokens compared number by number, were found to mean."""

    def __init__(self, most: int = 8) -> None:
        self.held: dict[Hashable, tuple[Tensor | None, _Cached]] = {}
        self.most = most

    def get(
        self, key: Hashable, make: Callable[[], _Cached], tokens: Tensor | None = None
    ) -> _Cached:
        """What is kept for a key and tokens, or made for them now."""
        kept = self.held.get(key)
        if kept is not None and (tokens is None or _same(kept[0], tokens)):
            return kept[1]
        made = make()
        self.held.pop(key, None)
        if len(self.held) >= self.most:
            self.held.pop(next(iter(self.held)))
        self.held[key] = None if tokens is None else tokens.clone(), made
        return made


def _on(device: torch.device, network: FrozenNetwork) -> FrozenNetwork:
    """A network on a device; moving one that is there would forget what it was compared with."""
    there = next(network.buffers()).device == device
    return network if there else network.to(device)


def _pair(before: State, after: State) -> tuple[State, State]:
    return before, after


def _same(kept: Tensor | None, tokens: Tensor) -> bool:
    return kept is not None and torch.equal(kept, tokens)


def _flat(tensor: Tensor) -> Tensor:
    """With one axis for the batch."""
    return tensor.reshape(-1, *tensor.shape[-2:])


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


def _all_halt(prompt: ProgramPrompt, tokens: Tensor) -> bool:
    halts = {i.address for i in prompt.assembly.instructions if i.halts}
    return set(prompt.counter(tokens).flatten().tolist()) <= halts


def accounted(prompt: ProgramPrompt, cycles: int, *, stops: bool) -> Ledger:
    """The ledger of a run: what the prompt holds, what attention computes, and what the host does.

    Parameters
    ----------
    prompt
        What ran.
    cycles
        How often the block was applied.
    stops
        Whether the host looked for the program's halt.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> prompt = ice.Computer.for_programs(program).prompt(program, torch.ones(3, 1).double())
    >>> print(accounted(prompt, 3, stops=True))
    prompt    program tokens, the same for all data; memory affine in the data
    attention cycles of the frozen block, four layers each x 3
    readout   answers copied out of memory tokens
    host      looks at the program counter, to end the loop at a halt
    """
    ledger = Ledger()
    ledger.note("prompt", "program tokens, the same for all data; memory affine in the data")
    ledger.note("attention", "cycles of the frozen block, four layers each", cycles)
    ledger.note("readout", "answers copied out of memory tokens", len(prompt.assembly.outputs))
    if stops:
        ledger.note("host", "looks at the program counter, to end the loop at a halt")
    return ledger


def _check_limit(done: int, cycles: int | None, own: int | None = None) -> None:
    if own == tuning.COMPUTER_LIMIT:
        raise CapacityError(
            f"the program does not come to a halt within {own} cycles; give cycles= to run so many"
        )
    if own is not None and done >= _PATIENCE * own + tuning.COMPUTER_LOOK:
        raise CapacityError(
            f"the program has not come to a halt after {done} cycles; its instructions, run in "
            f"float64 without attention, take {own}: a comparison is lost in the rounding of this "
            "dtype; scale the data, use dtype=torch.float64, or give cycles= to run so many"
        )
    if cycles is None and done >= tuning.COMPUTER_LIMIT:
        raise CapacityError(
            f"the program has not come to a halt after {done} cycles; give cycles= to run so many"
        )
