"""Machine: one frozen look-up layer that data of any length streams through.

It is the layer of :mod:`iceform.heads.lookups`, with everything that describes a task in the
prompt: the frozen matrices only say where in a token key, query, value and position are, and hold
the margin. A chunk of data is as many prompts as its samples fill; the readout adds their answers.

A table lives in the prompt, so one that grows with the data (the same function on [-R, R] for
R = 1, 2, 4, ...) is another prompt to the same frozen weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iceform.arithmetic import at_most, exponent_of, times_power
from iceform.certificates import (
    Attestation,
    Certificate,
    Ledger,
    RecordingBackend,
    Result,
)
from iceform.errors import (
    BoundError,
    IceformError,
    IntegrityError,
    PrecisionError,
    ProgramError,
    ShapeError,
)
from iceform.expressions import Loss, ScalarFunction
from iceform.heads import (
    LARGEST_LOGIT,
    FrozenNetwork,
    LookUpLayout,
    LookUps,
    Prompt,
    SoftmaxAverage,
    Trace,
    trace_network,
)
from iceform.paper import Plan, plan_look_ups
from iceform.pretrained import Pretrained
from iceform.run import AblatedBackend, Backend, bind, resolve
from iceform.tables import Interpolant, raised
from iceform.validation import (
    check_capacity,
    check_choice,
    check_dtype,
    check_eps,
    check_size,
    dtype_name,
    guard,
    plain_tensor,
)
from iceform_estimators.machine.program import MachineProgram
from iceform_estimators.machine.sources import ArraySource, Source
from iceform_estimators.tuning import SATURATED, WIDEST

_NARROWEST = 1 / SATURATED
# A function that bends within some width gets tokens that crowd there on ranges wider than this.
_WIDE = 16.0
_ORDINARY = 2.0**60  # values up to this, and from its inverse, are averaged as they are


@dataclass(frozen=True, eq=False)
class ScalarTable:
    """A scalar function, tabulated as wide as it is needed.

    Parameters
    ----------
    function
        f.
    tokens
        Grid tokens of a table; None takes as many as a straight line needs (about 25).
    bend
        Where f bends, and within what width; None where it has kinks or bends everywhere.
    raised
        A table and what f is above its function: the same tokens, every value moved by as much.

    Examples
    --------
    >>> from iceform_estimators.machine import CLIP, IDENTITY
    >>> IDENTITY.on(3.0).grid.nodes.max().item() >= 4, CLIP.on(3.0).error < 0.01
    (True, True)
    """

    function: ScalarFunction
    tokens: int | None
    bend: tuple[float, float] | None = None
    raised: tuple[ScalarTable, float] | None = None

    def on(self, reach: float) -> Interpolant:
        """The table on [-R, R], R being the least power of two that covers ``reach``."""
        if not reach <= WIDEST:
            raise BoundError(
                f"a residual reaches {reach:.3g}, beyond {WIDEST:.3g}: the iteration diverges or "
                "the data are not scaled"
            )
        return _tabulate(self, 2.0 ** math.ceil(math.log2(max(reach, _NARROWEST))))


@lru_cache(maxsize=256)
def _tabulate(table: ScalarTable, reach: float) -> Interpolant:
    f = table.function
    if table.tokens is None:
        return Interpolant.identity(-reach, reach)
    if table.bend is not None and reach > _WIDE * table.bend[1]:
        f = replace(f, kinks=(table.bend[0],))
    if table.raised is not None:
        below, by = table.raised
        return raised(below.on(reach), by, f)
    return Interpolant.fit(f, -reach, reach, tokens=table.tokens)


IDENTITY = ScalarTable(ScalarFunction(lambda z: z, "identity", affine=(1.0, 0.0)), None)


def read_line(machine: MachineRun | Machine, z: Tensor) -> Tensor:
    """Look z up in the table of the identity, scaled so that z of any size is on the grid.

    A line through 0 may be read in any unit: powers of two leave the digits as they are.
    """
    reach = float(z.abs().max()) if z.numel() else 0.0
    if not math.isfinite(reach):
        raise BoundError(
            f"a prediction is {reach}: the samples hold NaN or infinity, or are so large that "
            "products overflow; fill or remove what is missing, and scale the rest down"
        )
    if reach == 0:
        return z
    unit = 2.0 ** math.ceil(math.log2(reach))
    return machine.look_up(IDENTITY.on(1.0), z / unit) * unit


# clip(z, -1, 1): Huber's derivative, and what a soft threshold takes away from z.
CLIP = ScalarTable(ScalarFunction(lambda z: z.clamp(-1, 1), "clip", (-1.0, 1.0)), 129)
# Its square, whose mean says how large residuals are.
CLIP_SQUARED = ScalarTable(
    ScalarFunction(lambda z: z.clamp(-1, 1).square(), "clip squared", (-1.0, 1.0)), 129
)


@lru_cache(maxsize=64)
def table_of(loss: Loss | Callable[[Tensor], Tensor], tokens: int) -> ScalarTable:
    """The table of a loss's derivative, or of a function."""
    if isinstance(loss, Loss):
        derivative = loss.derivative
        wanted = None if derivative.affine == (1.0, 0.0) else tokens
        below = None if loss.raised is None else (table_of(loss.raised[0], tokens), loss.raised[1])
        return ScalarTable(derivative, wanted, loss.curvature.corner, below)
    return ScalarTable(ScalarFunction(loss, getattr(loss, "__name__", "f")), tokens)


_SAMPLES, _TOKENS = 8, 129  # by default: samples of a prompt, and grid tokens of each
# Where calls come in from outside, whatever modes are on there.
_BORDER = ("__init__", "average", "look_up", "prompt", "run", "start", "trace")


class Machine(Pretrained, kept_as="Machine"):
    """One frozen look-up layer, many programs: its weights depend on sizes alone.

    Tables are in the prompt, and data of any length are many prompts. ``samples * tokens`` is how
    many samples an average can see.

    Parameters
    ----------
    dim
        Most features of a sample, the constant one of an intercept included.
    samples, tokens
        Samples of a prompt, and look-up tokens of each.
    eps
        What a look-up may be off by; a table that does not hold it is refused. None accepts what
        comes out.
    layout
        "stream", the one there is. (A whole head in the prompt is a
        :class:`iceform.paper.library.PromptLibrary`.)
    dtype, backend
        As for a construction.

    Examples
    --------
    >>> import torch
    >>> from iceform_estimators import Machine, algorithms
    >>> x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    >>> result = Machine(dim=2).run(algorithms.LinearRegression(), x, 2 * x[:, 0] + 1)
    >>> print(f"{float(result.coef[0]):.6f}", result.certificate.error < 1e-9)
    2.000000 True
    """

    def __init__(
        self,
        dim: int = 8,
        samples: int = _SAMPLES,
        eps: float | None = None,
        *,
        layout: str = "stream",
        tokens: int = _TOKENS,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> None:
        _check_layout(layout)
        self.dim = check_size("dim", dim)
        self.samples, self.tokens = check_size("samples", samples), check_size("tokens", tokens)
        self.eps, self.dtype = check_eps(eps), check_dtype(dtype)
        self.backend = resolve(backend)
        self._insists = backend != "auto"

    @property
    def _sizes(self) -> dict[str, Any]:
        """What it is built from."""
        return {
            "dim": self.dim, "samples": self.samples, "eps": self.eps, "tokens": self.tokens,
            "dtype": self.dtype, "backend": self.backend,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Machine({', '.join(f'{name}={value!r}' for name, value in self._sizes.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._sizes == other._sizes

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Sizes are all there is: another process builds the same weights."""
        return _rebuilt, (self._sizes,)

    def run(self, program: MachineProgram, x: Tensor | Source, y: Tensor | None = None) -> Result:
        """Run a program on data; the answer comes with its certificate, attestation and ledger.

        Parameters
        ----------
        program
            One of ``iceform_estimators.algorithms``.
        x, y
            Samples (samples, dim) and labels (samples,), or a :class:`Source` of both. They may be
            long and are not copied: what reads them again later (``without_attention()``) is
            refused where they have changed, and what a result needs to answer is copied. No
            gradient flows back to them.
        """
        _check_program(program)
        source = _source(x, y)
        result = program.verifiable(program.stream(self.start(), source), source)
        return replace(result, ablated=_WithoutLookUps(self, program, source))

    def trace(self, program: MachineProgram, x: Tensor, y: Tensor | None = None) -> Trace:
        """What the layer does with the program's first prompt."""
        prompt = self.prompt(program, x, y)
        return trace_network(
            self.network, prompt.tokens, features=prompt.features, roles=prompt.roles
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.network.digest

    def to(self, device: str | torch.device) -> Self:
        """Move the frozen weights to a device. Data run where they lie, whatever this says."""
        self.network.to(device)
        return self

    @property
    def geometry(self) -> LookUpLayout:
        """Where in a prompt everything is."""
        return LookUpLayout(self.dim, self.samples, self.tokens)

    @cached_property
    def network(self) -> FrozenNetwork:
        """The literal weights."""
        need = 8 * self.geometry.weights
        check_capacity("the frozen layer", need, torch.device("cpu"), "use a smaller machine")
        return self.geometry.build(self.dtype)

    def bind(self) -> Backend:
        """The backend on the weights, which are checked now; by default it runs any weights."""
        return bind(self.network, self.backend if self._insists else "auto")

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network and of one prompt."""
        return plan_look_ups(self.geometry, self.samples, self.tokens, self.dtype)

    def prompt(self, program: MachineProgram, x: Tensor, y: Tensor | None = None) -> Prompt:
        """The tokens of the program's first prompt, as the frozen network reads them."""
        _check_program(program)
        asked = program.opening(self.start(), _source(x, y))
        return Prompt(next(asked.chunks())[0], self.geometry.raw, self.geometry.roles)

    def describe(self) -> dict[str, Any]:
        """What the machine is built from, JSON-ready."""
        dtype = dtype_name(self.dtype)
        return {**self._sizes, "layout": "stream", "dtype": dtype, "digest": self.digest}

    def card(self) -> tuple[str, dict[str, str]]:
        """For people."""
        return "One frozen softmax-attention layer that runs every program by prompt alone.", {}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Sizes, and the weights that they imply."""
        return {"machine": self.describe()}, dict(self.network.state_dict())

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Machine:
        """The machine that :meth:`describe` says, refused where its weights are others."""
        saved = content["machine"]
        _check_layout(saved.get("layout", "stream"))
        try:
            sizes = {k: saved[k] for k in ("dim", "samples", "eps", "tokens", "backend")}
            machine = cls(**sizes, dtype=getattr(torch, saved["dtype"]))
        except (KeyError, TypeError, AttributeError, IceformError) as broken:
            raise IntegrityError(f"the folder cannot be read as a machine: {broken!r}") from None
        built = machine.network.state_dict()
        same = tensors.keys() == built.keys() and all(
            tensors[k].dtype == t.dtype and torch.equal(tensors[k], t) for k, t in built.items()
        )
        if not same or machine.digest != saved.get("digest"):
            raise IntegrityError("the folder holds weights that are not this machine's")
        return machine

    def start(self) -> MachineRun:
        """The machine in a run: its weights are checked now."""
        return MachineRun(self)

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
        if self.eps is not None and not table.error <= self.eps:
            raise PrecisionError(
                f"this table is certified to {at_most(table.error, '.3g')}, not to the machine's "
                "eps = "
                f"{self.eps:.3g}; use a larger eps, or a machine with more tokens",
                best=table.error,
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


guard(Machine, _BORDER)


def _check_layout(layout: str) -> None:
    if layout == "rows":
        raise ProgramError(
            "the machine in rows is iceform.paper.library.PromptLibrary: whole heads in the prompt "
            "of one two-layer network; leave layout out here"
        )
    check_choice("layout", layout, ("stream",))


def _check_program(program: Any) -> None:
    if not isinstance(program, MachineProgram):
        raise ProgramError(f"not a program: {program!r}; see iceform_estimators.algorithms")


@dataclass(frozen=True, eq=False)
class _WithoutLookUps:
    """The same run with attention taken out, on data that are noticed when they change."""

    machine: Machine
    program: MachineProgram
    source: Source

    def __call__(self) -> Tensor:
        answer: Tensor = self.program.stream(
            MachineRun(self.machine, attention=False), self.source
        ).value
        return answer


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
    x = plain_tensor("x", x)
    source = ArraySource(x, x.new_zeros(len(x)) if y is None else y)
    for name, values in (("x", source.x), ("y", source.y)):
        if not bool(torch.isfinite(values).all()):
            raise BoundError(f"{name} holds NaN or infinity; fill or remove what is missing")
    return source


def _rebuilt(sizes: dict[str, Any]) -> Machine:
    return Machine(**sizes)


class MachineRun:
    """A machine in a run: its backend under watch, and the ledger of what was done where.

    In another process it is the same machine in a run of its own, which nobody watches.

    Parameters
    ----------
    machine
        What runs.
    attention
        False takes it out: look-ups return what is looked up.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> run = Machine(2).start()
    >>> z = torch.tensor([0.25, -0.5]).double()
    >>> from iceform_estimators.machine import IDENTITY
    >>> print(run.look_up(IDENTITY.on(1.0), z).numpy().round(9))
    [ 0.25 -0.5 ]
    """

    def __init__(self, machine: Machine, *, attention: bool = True) -> None:
        self.machine, self.ledger = machine, Ledger()
        self.witness: Backend = (
            RecordingBackend(machine.bind(), self.ledger)
            if attention
            else AblatedBackend(machine.network)
        )

    def __reduce__(self) -> tuple[object, tuple[Machine, bool]]:
        return _elsewhere, (self.machine, isinstance(self.witness, RecordingBackend))

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

    @property
    def backend(self) -> str:
        """How the network is evaluated."""
        return self.machine.backend

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        self.machine.check_dim(dim)

    def result(
        self, answer: Tensor | Callable[[], Tensor], certificate: Certificate, passes: int,
        **rest: Any,
    ) -> Result:  # fmt: skip
        """An answer with this run's name to it."""
        certificate = replace(certificate, backend=self.backend)
        return Result(answer, certificate, self.attest(), self.ledger, passes, **rest)

    def attest(self) -> Attestation:
        """Which weights ran, and what running rows again literally shows."""
        if isinstance(self.witness, RecordingBackend):
            return self.witness.attest()
        return Attestation.none("attention was taken out")

    # ---------------------------------------------------------------------------------- prompts

    def look_ups(
        self,
        table: Interpolant,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n"],
        w: Float[Tensor, "d"],
        offsets: Float[Tensor, "n"] | None = None,
        factors: Float[Tensor, "n"] | None = None,
    ) -> LookUps:
        """The prompts that answer sample i with c_i (A(w.x_i - y_i) - o_i) (x_i, 1)."""
        self.machine.check_table(table)
        offsets = None if offsets is None else self._cast(offsets)
        factors = None if factors is None else self._cast(factors)
        x, y, w = self._cast(x), self._cast(y), self._cast(w)
        return LookUps(self.machine.geometry, table, x, y, w, offsets, factors=factors)

    def kernel(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0,
        seen: Bool[Tensor, "q n"] | None = None,
    ) -> SoftmaxAverage:  # fmt: skip
        """The prompts that answer a point with the values' average, by e^{-gamma ||q - x_j||^2}.

        Of equally near samples the earlier one is preferred by the factor e^{ties}. ``seen`` hides
        samples from points.
        """
        order = torch.arange(len(x), dtype=x.dtype, device=x.device)
        biases = -gamma * x.square().sum(-1) - ties * order
        return self.asked(2 * gamma * x, biases, values, points, seen)

    def weighed(
        self, logs: Float[Tensor, "q n"], values: Tensor, seen: Bool[Tensor, "q n"]
    ) -> Tensor:
        """The values' average by e^{logs}, of what each row of ``logs`` sees: keys are 0."""
        zero = logs.new_zeros(max(logs.shape), 1)
        held, units = self._in_units(values)
        asked = self.asked(zero[: logs.shape[1]], logs, held, zero[: len(logs)], seen)
        return times_power(self.witness.run(asked).to(values), units)

    def asked(
        self, keys: Tensor, biases: Tensor, values: Tensor, points: Tensor,
        seen: Tensor | None = None,
    ) -> SoftmaxAverage:  # fmt: skip
        """The prompts that answer a point with the values' average, by e^{q.key_j + bias_j}."""
        keys, biases, values, points = (self._cast(t) for t in (keys, biases, values, points))
        return SoftmaxAverage(self.machine.geometry, keys, biases, values, points, seen)

    def _cast(self, t: Tensor) -> Tensor:
        """As the machine's dtype holds it."""
        return t.to(self.machine.dtype)

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
        rows = self.witness.run(self.look_ups(table, flat, zeros, one))
        return rows[:, -1].reshape(z.shape).to(z)

    def average(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0,
        seen: Bool[Tensor, "q n"] | None = None,
    ) -> Tensor:  # fmt: skip
        """The values' kernel average at the points."""
        held, units = self._in_units(values)
        asked = self.kernel(x, held, points, gamma, ties, seen)
        return times_power(self.witness.run(asked).to(values), units)

    def _in_units(self, values: Float[Tensor, "n v"]) -> tuple[Tensor, Tensor]:
        """Columns as every dtype holds them, and the powers of two that they are in units of.

        Those of ordinary size are left as they are; others have entries of at most 1.
        """
        largest = values.abs().amax(0)
        usual = (largest >= 1 / _ORDINARY) & (largest <= _ORDINARY)
        units = torch.where(usual, 0, exponent_of(largest))
        if bool((units != 0).any()):
            self.ledger.note("host", "powers of two that values of odd size are in units of")
        return times_power(values, -units), units


@lru_cache(maxsize=16)
def _elsewhere(machine: Machine, attention: bool) -> MachineRun:
    return MachineRun(machine, attention=attention)
