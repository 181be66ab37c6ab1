"""Machine: frozen weights that every program runs on, by prompt alone.

Two layouts. ``rows`` (thm:attn_sim_attn) is given a whole attention head in the prompt, two layers
multiply it out and attend. ``stream`` (thm:attn_sim_f) is given look-up tables, and data of any
length as many prompts. Either way the weights depend on sizes and bounds only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor

from iceform.arithmetic.doubled import Doubled
from iceform.attention import FrozenNetwork, Prompt
from iceform.attention.inspection import Trace, trace_network
from iceform.certificates import Attestation, Certificate, Ledger, Result, Step
from iceform.constructions import Plan
from iceform.errors import ProgramError
from iceform.machine.program import Program
from iceform.machine.sources import Source
from iceform.pretrained import Pretrained
from iceform.validation import check_choice, full_precision, guard

if TYPE_CHECKING:
    from iceform.machine.rows import Rows
    from iceform.machine.stream import Stream

__all__ = ["Machine", "Run"]

# Where calls come in from outside, whatever modes are on there.
_BORDER = ("__init__", "attend", "average", "look_up", "prompt", "specialize", "start", "trace")


class Machine(Pretrained, kept_as="Machine"):
    """One frozen network, many programs (thm:attn_sim_stats_methods).

    Parameters
    ----------
    dim, samples
        The largest data of a prompt: features, and samples (16 for rows, 32 for a stream, whose
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
        For rows: the class it is sized for, :func:`iceform.algorithms.library` by default.
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

    def _run(self, program: Any, x: Tensor | Source, y: Tensor | None) -> Result:
        raise NotImplementedError

    def _ablated(self, program: Any, x: Tensor | Source, y: Tensor | None) -> Result:
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
            One of ``iceform.algorithms`` that names this layout among its engines.
        x, y
            Samples (samples, dim) and labels (samples,), or a :class:`Source` of both for a stream.

        Raises
        ------
        ProgramError
            If the program does not run on this layout, or does not fit it.
        """
        self.check_runs(program)
        result = self._run(program, x, y)
        result = program.verifiable(result, x, y)
        return replace(result, _ablated=_Again(self, program, x, y))

    def check_runs(self, program: Any) -> None:
        """Refuse what is no program, or not one for this layout."""
        if not isinstance(program, Program):
            raise ProgramError(f"not a program: {program!r}; see iceform.algorithms")
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
    x: Tensor | Source
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
