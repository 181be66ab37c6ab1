r"""StreamMachine: one frozen look-up layer that data of any length streams through.

It is the layer of :mod:`iceform.attention.lookups`, with everything that describes a task in the
prompt: the frozen matrices only say where in a token key, query, value and position are, and hold
the margin. A chunk of data is as many prompts as its samples fill; the readout adds their answers.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.attention import Average, FrozenNetwork, Layout, LookUps
from iceform.attention.lookups import LARGEST_LOGIT
from iceform.backends import bind, resolve
from iceform.certificates import Attestation, Ledger, Witness
from iceform.errors import BoundError, ProgramError, ShapeError
from iceform.interpolation import Interpolant
from iceform.machine.sources import ArraySource, Source
from iceform.validation import check_capacity, check_size

Answer = TypeVar("Answer", covariant=True)

__all__ = ["LARGEST_LOGIT", "Running", "StreamMachine"]


class Streamed(Protocol[Answer]):
    """A program that loops a machine over data."""

    def stream(self, machine: Running, source: Source) -> Answer:
        """Pass over the data as often as needed."""
        ...


class StreamMachine:
    """One frozen layer for a class of data: its weights depend on these sizes alone.

    Parameters
    ----------
    dim
        Features of a sample, the constant one of an intercept included.
    samples
        Samples answered by one prompt.
    tokens
        Grid tokens per sample; ``samples * tokens`` is how many samples an average can see.
    backend
        How the network is evaluated: "auto", "literal", "fused" or "triton".
    """

    def __init__(
        self, dim: int, samples: int = 8, tokens: int = 129, backend: str = "auto"
    ) -> None:
        self.dim = check_size("dim", dim)
        self.samples = check_size("samples", samples)
        self.tokens = check_size("tokens", tokens)
        self.backend = resolve(backend)

    def __repr__(self) -> str:
        sizes = f"dim={self.dim}, samples={self.samples}, tokens={self.tokens}"
        return f"StreamMachine({sizes}, backend={self.backend!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamMachine) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[type[StreamMachine], tuple[int, int, int, str]]:
        """Sizes are all there is: another process builds the same weights."""
        return StreamMachine, (self.dim, self.samples, self.tokens, self.backend)

    @property
    def layout(self) -> Layout:
        """Where in a prompt everything is."""
        return Layout(self.dim, self.samples, self.tokens)

    @cached_property
    def network(self) -> FrozenNetwork:
        """The literal weights."""
        need = 8 * self.layout.weights
        check_capacity("the frozen layer", need, torch.device("cpu"), "use a smaller machine")
        return self.layout.build()

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights, as they are now."""
        return self.network.digest

    def start(self) -> Running:
        """The machine in a run: its weights are checked now."""
        return Running(self)

    def run(self, program: Streamed[Answer], x: Tensor | Source, y: Tensor | None = None) -> Answer:
        """Run a program on data; the answer comes with its certificate.

        Parameters
        ----------
        program
            One of ``iceform.algorithms`` that streams.
        x, y
            Samples (rows, dim) and labels (rows,) in float64, or a :class:`Source` of both.
        """
        if not hasattr(program, "stream"):
            raise ProgramError(f"not a program that streams: {program!r}; see iceform.algorithms")
        return program.stream(self.start(), _source(x, y))

    def look_up(self, table: Interpolant, z: Tensor) -> Tensor:
        """A(z) for every entry, in a run of its own."""
        return self.start().look_up(table, z)

    def average(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0
    ) -> Tensor:
        """The values' kernel average at the points, in a run of its own."""
        return self.start().average(x, values, points, gamma, ties)

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        if dim > self.dim:
            raise ProgramError(
                f"the data have {dim} features (a constant one for the intercept included), this "
                f"machine has {self.dim}; build one with dim >= {dim}"
            )

    def check_table(self, table: Interpolant) -> None:
        """Refuse a table that is longer than a block."""
        if table.tokens > self.tokens:
            raise ProgramError(
                f"the table has {table.tokens} tokens, a block of this machine {self.tokens}; "
                f"build one with tokens >= {table.tokens}"
            )
        if not (largest := _largest_logit(table)) <= LARGEST_LOGIT:
            raise ProgramError(
                f"the table's logits reach {largest:.3g}, the margin between blocks covers "
                f"{LARGEST_LOGIT:.3g}; lower its sharpness or narrow its range"
            )

    def check_sees(self, samples: int) -> None:
        """Refuse an average over more samples than a prompt holds."""
        most = self.samples * self.tokens
        if samples > most:
            raise ProgramError(
                f"a prompt of this machine sees {most} samples, got {samples}; build one with "
                f"tokens >= {-(-samples // self.samples)}"
            )

    def prompts(self, rows: int) -> int:
        """Prompts that ``rows`` samples take."""
        return -(-rows // self.samples)


@lru_cache(maxsize=512)
def _largest_logit(table: Interpolant) -> float:
    reach = max(table.high - table.grid.center, table.grid.center - table.low)
    return float((table.keys.slopes.abs() * reach + table.keys.biases.abs()).max())


def _source(x: Tensor | Source, y: Tensor | None) -> Source:
    if isinstance(x, Source):
        return x
    if not isinstance(x, Tensor) or x.ndim != 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(f"data must be a tensor (samples, dim), got {got}")
    labels = x.new_zeros(len(x)) if y is None else y
    source = ArraySource(x, labels)
    for name, values in (("x", x), ("y", labels)):
        if not bool(torch.isfinite(values).all()):
            raise BoundError(f"{name} holds NaN or infinity; fill or remove what is missing")
    return source


class Running:
    """A machine in a run: its backend under watch, and the ledger of what was done where.

    In another process it is the same machine in a run of its own, which nobody watches.

    Parameters
    ----------
    machine
        What runs.
    """

    def __init__(self, machine: StreamMachine) -> None:
        self.machine = machine
        self.ledger = Ledger()
        self.witness = Witness(bind(machine.network, machine.backend), self.ledger)

    def __reduce__(self) -> tuple[object, tuple[StreamMachine]]:
        return _elsewhere, (self.machine,)

    @property
    def dim(self) -> int:
        """Features of a sample."""
        return self.machine.dim

    @property
    def tokens(self) -> int:
        """Grid tokens per sample."""
        return self.machine.tokens

    @property
    def digest(self) -> str:
        """SHA-256 of the weights that run."""
        return self.witness.digest or ""

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        self.machine.check_dim(dim)

    def attest(self) -> Attestation:
        """Which weights ran, and what running rows again literally shows."""
        return self.witness.attest()

    # ---------------------------------------------------------------------------------- prompts

    def look_ups(
        self,
        table: Interpolant,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n"],
        w: Float[Tensor, "d"],
        offsets: Float[Tensor, "n"] | None = None,
    ) -> LookUps:
        """The prompts that answer sample i with (A(w.x_i - y_i) - o_i) (x_i, 1)."""
        self.machine.check_table(table)
        return LookUps(self.machine.layout, table, x, y, w, offsets)

    def kernel(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0
    ) -> Average:
        """The prompts that answer a point with the values' average, by e^{-gamma ||q - x_j||^2}.

        Of equally near samples the earlier one is preferred by the factor e^{ties}.
        """
        order = torch.arange(len(x), dtype=x.dtype, device=x.device)
        biases = -gamma * x.square().sum(-1) - ties * order
        return Average(self.machine.layout, 2 * gamma * x, biases, values, points)

    # ------------------------------------------------------------------------------- evaluation

    def total(self, prompt: LookUps) -> Float[Tensor, "d"]:
        """The sum of the samples' rows: one pass of the frozen layer, and a sum by the readout."""
        return self.witness.total(prompt)

    def count(self, prompt: LookUps) -> Tensor:
        """The sum of the look-ups themselves."""
        return self.witness.count(prompt)

    def look_up(self, table: Interpolant, z: Tensor) -> Tensor:
        """A(z) for every entry: numbers are samples of one feature, and w is 1."""
        flat = z.reshape(-1, 1)
        zeros, one = flat.new_zeros(len(flat)), flat.new_ones(1)
        return self.witness.run(self.look_ups(table, flat, zeros, one))[:, -1].reshape(z.shape)

    def average(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0
    ) -> Tensor:
        """The values' kernel average at the points."""
        return self.witness.run(self.kernel(x, values, points, gamma, ties))


@lru_cache(maxsize=16)
def _elsewhere(machine: StreamMachine) -> Running:
    return Running(machine)
