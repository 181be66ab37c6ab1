"""Machine: frozen weights that every program runs on, by prompt alone; and what a program is.

Two layouts. ``rows`` (thm:attn_sim_attn) is given a whole attention head in the prompt, two layers
multiply it out and attend. ``stream`` (thm:attn_sim_f) is given look-up tables, and data of any
length as many prompts. Either way the weights depend on sizes and bounds only.

A program is data as tokens, a task in the prompt, a readout, a loop, an exact answer. That of a run
is enclosed in ball arithmetic, beside what the run returned (:class:`Verifier`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.arithmetic.doubled import Doubled
from iceform.attention import Average, FrozenNetwork, LookUps, Prompt
from iceform.attention.inspection import Trace, trace_network
from iceform.certificates import Attestation, Certificate, Ledger, Result, Step, Verification
from iceform.constructions import Plan
from iceform.errors import PrecisionError, ProgramError, ShapeError
from iceform.pretrained import Pretrained
from iceform.validation import check_choice, full_precision, guard, tensor_of
from iceform_estimators.machine.sources import ArraySource, Source

if TYPE_CHECKING:
    from iceform_estimators.machine.rows import Rows
    from iceform_estimators.machine.stream import Stream

ENGINES = ("rows", "stream")


@dataclass(frozen=True)
class Sizes:
    """What a program asks of a machine."""

    tokens: int
    features: int
    head_dim: int
    value_dim: int
    bound: float  # largest |entry| of a token
    weight_bound: float  # largest |entry| of a target weight
    reach: float  # largest sum of |weight x token| terms
    logits: float  # largest |logit| a target can make
    nonzeros: int  # nonzero products of a weight row and a token

    def cover(self, other: Sizes) -> Sizes:
        """The least sizes that serve both."""
        names = [f.name for f in fields(self)]
        return Sizes(**{n: max(getattr(self, n), getattr(other, n)) for n in names})

    def check_fits(self, need: Sizes, program: str) -> None:
        """Refuse a program that does not fit, naming the dimension that is short."""
        short = [
            f"{f.name} (needs {getattr(need, f.name):.6g}, has {getattr(self, f.name):.6g})"
            for f in fields(self)
            if not getattr(need, f.name) <= getattr(self, f.name)
        ]
        if short:
            raise ProgramError(
                f"{program} does not fit this machine: {', '.join(short)}; build one with "
                "Machine.for_programs([...])"
            )


@dataclass(frozen=True)
class Target:
    """The head that a pass emulates, and the tokens it reads.

    ``queries`` are the tokens whose outputs are read.
    """

    tokens: Tensor  # (tokens, features)
    w_k: Tensor  # (head_dim, features)
    w_q: Tensor  # (head_dim, features)
    w_v: Tensor  # (value_dim, features)
    queries: slice

    def exact(self) -> Tensor:
        """The target head itself, in float64."""
        t, k, q, v = (m.double() for m in (self.tokens, self.w_k, self.w_q, self.w_v))
        weights = torch.softmax((t[self.queries] @ q.mT) @ (t @ k.mT).mT, -1)
        return weights @ (t @ v.mT)


class Program(Pretrained):
    """What a machine runs: an algorithm as prompts.

    A subclass supplies :meth:`rows` (with :meth:`sizes` and :meth:`targets`), :meth:`stream` (with
    :meth:`opening`), or both; those are the engines that run it.
    """

    @classmethod
    def engines(cls) -> tuple[str, ...]:
        """The layouts that run it."""
        return tuple(e for e in ENGINES if getattr(cls, e) is not getattr(Program, e))

    @property
    def label(self) -> str:
        """As in tables."""
        return type(self).__name__

    def label_shape(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the second input: one number per sample unless a program says otherwise."""
        return (x.shape[0],)

    def enclosed(self, found: Result, given: Any) -> list[tuple[Any, Any]]:
        """Numbers that were found on given data, each beside a ball that holds the exact one."""
        raise ProgramError(f"{self.label} does not say what its exact answer is")

    def verifiable(
        self, found: Result, x: Tensor | Source | None = None, y: Tensor | None = None
    ) -> Result:
        """The result of a run, whose certificate verifies; without data, on those given again."""
        verifier = Verifier(self, found, None) if x is None else Verifier.of(self, found, x, y)
        return replace(found, certificate=replace(found.certificate, _verifier=verifier))

    # ------------------------------------------------------------------------- a head in the prompt

    def rows(self, machine: Any, x: Tensor, y: Tensor | None) -> Result:
        """Loop a machine that is given whole heads."""
        raise NotImplementedError

    def sizes(self, dim: int, samples: int) -> Sizes:
        """What :meth:`rows` asks of a machine, for data of this shape."""
        raise NotImplementedError

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        """The head and tokens of the first pass of :meth:`rows`."""
        raise NotImplementedError

    # ------------------------------------------------------------------------- tables in the prompt

    def stream(self, machine: Any, source: Source) -> Result:
        """Loop a machine that data of any length stream through."""
        raise NotImplementedError

    def opening(self, machine: Any, source: Source) -> LookUps | Average:
        """The first prompts of :meth:`stream`."""
        raise NotImplementedError


def balanced(w_k: Tensor, w_q: Tensor, k_size: Tensor, q_size: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each head dimension so that keys and queries are equally large.

    Their inner product does not change; the range that look-ups must cover does.
    """
    tiny = math.sqrt(torch.finfo(torch.float64).tiny)
    scale = ((q_size + tiny) / (k_size + tiny)).sqrt()
    return w_k * scale[:, None], w_q / scale[:, None]


_LIBRARY: list[Callable[[int], Sequence[Program]]] = []


def set_library(programs: Callable[[int], Sequence[Program]]) -> None:
    """Say which programs a machine is sized for unless told otherwise.

    Algorithms are a level below machines; they make themselves known from there.
    """
    _LIBRARY[:] = [programs]


def library(tokens: int) -> Sequence[Program]:
    """The programs that a machine is sized for unless told otherwise."""
    if not _LIBRARY:
        raise ProgramError(
            "no library of programs is known to size a machine for; say programs=[...], or import "
            "iceform_estimators.algorithms"
        )
    return _LIBRARY[0](tokens)


_KEPT = 1 << 16  # entries of data that are kept with a certificate; ball arithmetic is slow anyway
_FINER = 3  # times the bits are doubled where an enclosure is too wide to tell


@dataclass(frozen=True, eq=False)
class Given:
    """The data of a run, as they were given."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(
        cls, x: Tensor | Source, y: Tensor | None, weights: Tensor | None = None
    ) -> Given | None:
        """A copy in float64; None of data that are not in memory."""
        if isinstance(x, ArraySource):
            return cls.of(x.x, x.y, x.weights)
        if not isinstance(x, Tensor):
            return None
        y = x.new_zeros(len(x)) if y is None else y
        x, y = (part.detach().to("cpu", torch.float64, copy=True) for part in (x, y))
        if weights is not None:
            weights = weights.detach().to("cpu", torch.float64, copy=True)
        return cls(x, y, weights)

    @property
    def source(self) -> ArraySource:
        """To walk over."""
        return ArraySource(self.x, self.y, weights=self.weights)

    @property
    def each(self) -> list[float]:
        """What samples weigh, one by one."""
        return [1.0] * len(self.x) if self.weights is None else self.weights.tolist()


@dataclass(frozen=True, eq=False)
class Verifier:
    """What ``certificate.verify()`` of a run calls.

    Data of up to 65,536 entries are kept; others are given to it again, as the machine took them.
    In another process it is gone, as the data are.
    """

    program: Program
    found: Result
    given: Given | None

    @classmethod
    def of(cls, program: Program, found: Result, x: Tensor | Source, y: Tensor | None) -> Verifier:
        """Of a run on these data."""
        data = x.x if isinstance(x, ArraySource) else x
        small = isinstance(data, Tensor) and data.numel() <= _KEPT
        return cls(program, found, Given.of(x, y) if small else None)

    def data(self) -> tuple[Tensor, ...]:
        """What is kept of the data."""
        kept = self.given
        parts = (kept.x, kept.y, kept.weights) if kept is not None else ()
        return tuple(part for part in parts if part is not None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _Gone, ()

    def __call__(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        given = self.given
        if inputs:
            parts = [tensor_of(f"input {k}", part) for k, part in enumerate(inputs)]
            if parts[0].ndim != 2:
                raise ShapeError(
                    "verify takes X of shape (n, d) and what goes with it, got "
                    f"{tuple(parts[0].shape)}"
                )
            given = Given.of(*parts, *[None] * (len(parts) < 2))
        if given is None:
            raise ProgramError(
                f"the data were more than {_KEPT} entries, or not in memory, and are not kept; "
                "give them again: certificate.verify(X, y)"
            )
        with balls_of(bits) as flint:
            return self._enclose(flint, given, certified, bits)

    def _enclose(self, flint: Any, given: Given, certified: float, bits: int) -> Verification:
        for finer in range(_FINER + 1):
            flint.ctx.prec = bits << finer
            try:
                pairs = self.program.enclosed(self.found, given)
            except PrecisionError:
                if finer == _FINER:
                    raise
                continue
            gaps = [abs(a - b) for a, b in pairs]
            measured = max(map(uppermost, gaps), default=0.0)
            if measured <= certified or any(gap > flint.arb(certified) for gap in gaps):
                break
        else:
            if math.isfinite(measured):
                raise PrecisionError(
                    f"the exact answer is enclosed to {at_most(measured, '.2g')} by "
                    f"{bits << _FINER} bits, not "
                    f"near enough to tell whether {at_most(certified, '.2g')} holds; "
                    "verify(bits=...) helps"
                )
        # Written so that NaN fails.
        return Verification(measured <= certified, measured, certified, flint.ctx.prec)


class _Gone:
    """In the place of a verifier that was pickled."""

    def __call__(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        raise ProgramError(
            "this certificate came from another process or a file, without its run; fit again and "
            "verify there"
        )


def moved(values: Tensor, dtype: torch.dtype) -> Tensor:
    """How far numbers go when they are stored: to 0, where the dtype has none so small."""
    return (values - values.to(dtype).to(values)).abs()


def stored(found: Result, dtype: torch.dtype, worst: float) -> Result:
    """The same answer for whoever stores it in less precision, which moves it by ``worst``."""
    name = str(dtype).removeprefix("torch.")
    terms = {**found.certificate.terms, f"stored as {name}": worst}
    error = math.nextafter(math.fsum(terms.values()), math.inf)
    verifier, errors, last = found.certificate._verifier, dict(found.errors), []
    if errors.get("intercept"):
        by = float(moved(found.intercept, dtype).max())
        errors["intercept"] = math.nextafter(errors["intercept"] + by, math.inf)
        told = f"as above, and stored as {name}"
        last = [Step("intercept", "bound of its distance", errors["intercept"], told)]
    if isinstance(verifier, Verifier):
        parts = dict(found.parts)
        if "intercept" in parts:
            parts["intercept"] = parts["intercept"].to(dtype)
        rounded = replace(verifier.found, answer=found.value.to(dtype), parts=parts, errors=errors)
        verifier = replace(verifier, found=rounded)
    steps, excess = (*found.certificate.derivation, *last), found.certificate.excess
    if excess is not None:  # how much F grows by rounding is not known here
        over = (
            f"{excess.over or 'all lines'}, found being the answer before it was stored as {name}"
        )
        excess = replace(excess, over=over)
    certificate = replace(
        found.certificate, error=error, terms=terms, derivation=steps, excess=excess,
        _verifier=verifier,
    )  # fmt: skip
    return replace(found, certificate=certificate, errors=errors)


# Where calls come in from outside, whatever modes are on there.
_BORDER = ("__init__", "attend", "average", "look_up", "prompt", "specialize", "start", "trace")


class Machine(Pretrained, kept_as="Machine"):
    """One frozen network, many programs (thm:attn_sim_stats_methods).

    Parameters
    ----------
    dim, samples
        The largest data of a prompt: features, and samples (16 for rows, 8 for a stream, whose
        data may be longer: they are many prompts). A stream's features include the constant one of
        an intercept.
    eps
        What one pass may be off by. Every pass is certified on its own inputs, and one that does
        not hold eps is refused; None accepts what comes out.
    layout
        "rows": a whole head in the prompt. "stream": tables in the prompt, data of any length.
    tokens
        Look-up tokens per sample (33 and 129).
    programs
        For rows: the class it is sized for, :func:`iceform_estimators.algorithms.library` by
        default.
    dtype, backend
        As for a construction.
    """

    layouts: ClassVar[dict[str, type[Machine]]] = {}
    layout: ClassVar[str]

    dim: int
    samples: int
    eps: float | None
    dtype: torch.dtype
    backend: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, _BORDER)
        if "layout" in vars(cls):
            Machine.layouts[cls.layout] = cls

    @overload
    def __new__(
        cls, dim: int = ..., samples: int | None = ..., eps: float | None = ..., *,
        layout: Literal["rows"] = ..., tokens: int | None = ...,
        programs: Sequence[Program] | None = ..., dtype: torch.dtype = ..., backend: str = ...,
    ) -> Rows: ...  # fmt: skip

    @overload
    def __new__(
        cls, dim: int = ..., samples: int | None = ..., eps: float | None = ..., *,
        layout: Literal["stream"], tokens: int | None = ...,
        programs: None = ..., dtype: torch.dtype = ..., backend: str = ...,
    ) -> Stream: ...  # fmt: skip

    def __new__(
        cls,
        dim: int = 8,
        samples: int | None = None,
        eps: float | None = None,
        *,
        layout: str = "rows",
        tokens: int | None = None,
        programs: Sequence[Program] | None = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> Machine:
        """The machine of the layout that is asked for."""
        kind = cls
        if cls is Machine:
            kind = Machine.layouts[check_choice("layout", layout, sorted(Machine.layouts))]
        return super().__new__(kind)

    @classmethod
    def for_programs(
        cls,
        programs: Sequence[Program],
        dim: int,
        samples: int,
        eps: float | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> Rows:
        """A machine in rows, sized for just these programs."""
        return Machine(dim, samples, eps, programs=programs, dtype=dtype, backend=backend)

    # --------------------------------------------------------------------- what a layout supplies

    @property
    def network(self) -> FrozenNetwork:
        """The literal frozen weights."""
        raise NotImplementedError

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network."""
        raise NotImplementedError

    def _taken(self, program: Any, x: Any, y: Tensor | None) -> tuple[Any, Tensor | None]:
        """Data as a run keeps them: what the caller writes into them later, it does not read."""
        raise NotImplementedError

    def _run(self, program: Any, x: Any, y: Tensor | None) -> Result:
        raise NotImplementedError

    def _ablated(self, program: Any, x: Any, y: Tensor | None) -> Result:
        """The same run, its attention taken out."""
        raise NotImplementedError

    def prompt(self, program: Program, x: Tensor, y: Tensor | None = None) -> Prompt:
        """The tokens of the program's first pass, as the frozen network reads them."""
        raise NotImplementedError

    def specialize(
        self, program: Program, x: Tensor | None = None, y: Tensor | None = None
    ) -> FrozenNetwork:
        """Bake the prompt into weights: the task-specific module of the same algorithm."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What the machine is sized for, JSON-ready."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------- what it inherits

    def __repr__(self) -> str:
        names = ("dim", "samples", "eps", "tokens", "layout", "dtype", "backend")
        sizes = ", ".join(f"{n}={getattr(self, n)!r}" for n in names if hasattr(self, n))
        return f"Machine({sizes})"

    def card(self) -> tuple[str, dict[str, str]]:
        what = (
            "One frozen softmax-attention module that runs every program it is sized for, by "
            "prompt alone."
        )
        return what, {}

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Machine:
        """The inverse of :meth:`pack`, in the layout that the content names."""
        return Machine.layouts[content["machine"]["layout"]].unpack(content, tensors)

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.network.digest

    def to(self, device: str | torch.device) -> Self:
        """Move the frozen weights to a device. Data run where they lie, whatever this says."""
        self.network.to(device)
        return self

    @full_precision
    def run(self, program: Program, x: Tensor | Source, y: Tensor | None = None) -> Result:
        """Run a program on data; the answer comes with its certificate, attestation and ledger.

        Parameters
        ----------
        program
            One of ``iceform_estimators.algorithms`` that names this layout among its engines.
        x, y
            Samples (samples, dim) and labels (samples,), or a :class:`Source` of both for a stream.
            Rows copy them. A stream does not, since its data may be long: what reads them again
            later (``without_attention()``) is refused where they have changed, and what a result
            needs to answer or to verify is copied. No gradient flows back to them.

        Raises
        ------
        ProgramError
            If the program does not run on this layout, or does not fit it.
        """
        self.check_runs(program)
        x, y = self._taken(program, x, y)
        result = self._run(program, x, y)
        result = program.verifiable(result, x, y)
        return replace(result, _ablated=_Again(self, program, x, y))

    def check_runs(self, program: Any) -> None:
        """Refuse what is no program, or not one for this layout."""
        if not isinstance(program, Program):
            raise ProgramError(f"not a program: {program!r}; see iceform_estimators.algorithms")
        if self.layout not in program.engines():
            on = " or ".join(f"Machine(..., layout={e!r})" for e in program.engines())
            raise ProgramError(f"{program.label} does not run on {self.layout}; it runs on {on}")

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has, where programs do not say so."""
        return

    @full_precision
    def trace(self, program: Program, x: Tensor, y: Tensor | None = None) -> Trace:
        """What every layer does in the program's first pass."""
        prompt = self.prompt(program, x, y)
        return trace_network(
            self.network, prompt.tokens, features=prompt.features, roles=prompt.roles
        )


@dataclass(frozen=True, eq=False)
class _Again:
    """The same run with attention taken out."""

    machine: Machine
    program: Program
    x: Tensor | Source  # a copy, or a source that notices when its data change
    y: Tensor | None

    def __call__(self) -> Tensor:
        return self.machine._ablated(self.program, self.x, self.y).value


_AGAIN = 1 << 20  # numbers up to which an algorithm is done again in pairs of float64


class Run:
    """A machine in a run: its ledger, and how answers get their names.

    Attributes
    ----------
    machine
        What runs.
    ledger
        What was done where so far.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine: Any = machine
        self.ledger = Ledger()

    @property
    def backend(self) -> str:
        """How the network is evaluated."""
        return str(self.machine.backend)

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        self.machine.check_dim(dim)

    def attest(self) -> Attestation:
        """Which weights ran, as they are now."""
        network = self.machine.network
        return Attestation(network.check(), network.expected or "", self.backend)

    def compared(
        self, found: Tensor, again: Callable[[], Doubled], numbers: int, before: Certificate
    ) -> Certificate:
        """What the answer is off by from the algorithm done again; ``before`` if that is blurred.

        ``before`` holds for whatever the network may return; ``again`` encloses the exact answer on
        the data as they are, in pairs of float64, of which it takes about ``numbers``.
        """
        if numbers > _AGAIN:
            return before
        self.ledger.note("host", "the proof: the exact algorithm again, in pairs of float64")
        gap, off = (float(part.max()) for part in again().apart(found))
        if not off < math.inf or before.error < off:
            return before
        return Certificate.total(
            {"distance from the exact answer": gap, "rounding of that": off},
            domain={**before.domain, "data": "as given"},
            dtype=before.dtype,
            backend=before.backend,
            derivation=(
                Step("before", "certified before the run", before.error, "whatever the data"),
                Step("gap", "largest |computed - exact|", gap, "exact: enclosed after the run"),
                Step("off", "what that may be off by", off, "pairs of float64, 98 bits"),
            ),
        )

    def result(
        self, answer: Tensor | Callable[[], Tensor], certificate: Certificate, passes: int,
        **rest: Any,
    ) -> Result:  # fmt: skip
        """An answer with this run's name to it."""
        certificate = replace(certificate, backend=self.backend)
        return Result(answer, certificate, self.attest(), self.ledger, passes, **rest)
