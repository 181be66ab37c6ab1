"""Rows: one frozen two-layer module that runs every head by prompt alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.attention import Features, FrozenNetwork, Prompt, SoftmaxAttention
from iceform.attention.inspection import Trace
from iceform.backends import Backend
from iceform.certificates import Attestation, Certificate, Result, Witness, weakest
from iceform.constructions import AttentionHead, Plan
from iceform.constructions.base import Emulator
from iceform.errors import IntegrityError, PrecisionError, ProgramError
from iceform.interpolation import bounds
from iceform.validation import (
    check_bound,
    check_eps,
    check_size,
    check_tensors,
    plain_tensor,
    unit_roundoff,
)
from iceform_estimators.machine.machine import Machine, Program, Run, Sizes, Target, library
from iceform_estimators.machine.sources import Source

_LEAK_BITS = 8  # padding tokens' mass is kept this many bits below rounding
_SAMPLES, _TOKENS = 16, 33  # by default: samples, and look-up tokens of the library's programs
_WRITTEN = 8  # roundings of a key and a query as they are balanced and written
_PADDING = 2  # features the machine adds to every token: "is padding" and "one"


class Rows(Machine):
    """A machine that is given a whole head in the prompt: an :class:`AttentionHead` in row form.

    A program turns data into tokens and itself into a target head; the machine runs that head.
    """

    layout: ClassVar[str] = "rows"

    @property
    def fewest_tokens(self) -> int:
        """The weights' rows take tokens too, so there are at least as many."""
        return max(self.head._shape[0])

    @property
    def padding_token(self) -> Tensor:
        """As :meth:`padded`: the last two features of x are "is padding" and "one"."""
        token = torch.zeros(self.plan.features, dtype=torch.float64)
        token[self.head.dim - 2 : self.head.dim] = 1.0
        return token

    def through(self, forward: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        """A function of a prompt's tokens, or of a program and its data (the first pass)."""

        def run(
            first: Program | Tensor, x: Tensor | None = None, y: Tensor | None = None
        ) -> Tensor:
            if isinstance(first, Tensor):
                return forward(first)
            if x is None:
                raise ProgramError("give a prompt's tokens, or a program and its data")
            out = forward(self.prompt(first, x, y).tokens)
            target = first.targets(x, y)
            return out[self.padded(target).queries, : len(target.w_v)]

        return run

    def __init__(
        self,
        dim: int = 8,
        samples: int | None = None,
        eps: float | None = None,
        *,
        layout: str = "rows",
        tokens: int | None = None,
        programs: Sequence[Program] | None = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> None:
        samples = _SAMPLES if samples is None else samples
        check_size("dim", dim)
        check_size("samples", samples)
        chosen = list(
            library(check_size("tokens", tokens or _TOKENS)) if programs is None else programs
        )
        if not chosen:
            raise ProgramError("a machine needs at least one program to be sized for")
        for program in chosen:
            self.check_runs(program)
        sizes = chosen[0].sizes(dim, samples)
        for program in chosen[1:]:
            sizes = sizes.cover(program.sizes(dim, samples))
        # Any head on dim features may be asked for as well.
        sizes = replace(sizes, nonzeros=max(sizes.nonzeros, dim))
        self.eps = check_eps(eps)
        self._build(dim, samples, sizes, dtype, backend)

    def _size(self, dim: int, samples: int, sizes: Sizes, dtype: torch.dtype) -> None:
        self.dim, self.samples, self.sizes, self.dtype = dim, samples, sizes, dtype
        # Padding tokens must lose against any logit a program can make.
        target = math.log(sizes.tokens) - math.log(unit_roundoff(dtype)) + _LEAK_BITS * math.log(2)
        # As the dtype holds it: the grid's range must cover what stands in the prompt.
        self._root = float(torch.tensor(math.sqrt(2 * sizes.logits + target), dtype=dtype))

    def _build(
        self, dim: int, samples: int, sizes: Sizes, dtype: torch.dtype, backend: str
    ) -> None:
        self._size(dim, samples, sizes, dtype)
        self.head = AttentionHead(
            sizes.features + _PADDING,
            sizes.head_dim + 1,
            sizes.value_dim,
            sizes.tokens,
            bound=max(sizes.bound, 1.0),
            weight_bound=max(sizes.weight_bound, self._root),
            reach=max(sizes.reach, self._root),
            nonzeros=sizes.nonzeros,
            eps=None,
            dtype=dtype,
            backend=backend,
        )

    # ----------------------------------------------------------------------------------- run

    @property
    def network(self) -> FrozenNetwork:
        """The literal frozen weights."""
        return self.head.network

    @property
    def backend(self) -> str:  # type: ignore[override]
        """How passes are evaluated."""
        return self.head.backend

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network."""
        return self.head.plan

    def _taken(self, program: Program, x: Any, y: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self._check(program, x, y, copy=True)

    def _run(self, program: Program, x: Any, y: Tensor | None) -> Result:
        return program.rows(self.start(), x, y)

    def _ablated(self, program: Program, x: Any, y: Tensor | None) -> Result:
        return program.rows(_Alike(self), x, y)

    def start(self) -> Heads:
        """The machine in a run."""
        return Heads(self)

    def _check(
        self, program: Program, x: Any, y: Tensor | None, *, copy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Data as numbers, refused where they do not fit; a copy where they are kept."""
        if isinstance(x, Source):
            raise ProgramError(
                "a machine in rows reads tensors; Machine(..., layout='stream') reads sources"
            )
        x = plain_tensor("x", x)
        y = None if y is None else plain_tensor("y", y)
        device = x.device
        check_tensors({"x": (x, tuple(x.shape[-2:]))}, self.dtype, device)
        if x.ndim != 2:
            raise ProgramError(f"data must be (samples, dim), got shape {tuple(x.shape)}")
        check_bound("x", x, self.sizes.bound, "scale the data")
        if y is not None:
            check_tensors({"y": (y, program.label_shape(x))}, self.dtype, device)
            check_bound("y", y, math.inf, "remove what is not a number")
            if y.ndim != 1:
                raise ProgramError(f"the second input must be a vector, got {tuple(y.shape)}")
        self.sizes.check_fits(program.sizes(x.shape[1], x.shape[0]), program.label)
        if copy:
            return x.clone(), None if y is None else y.clone()
        return x, y

    def attend(self, target: Target, backend: Backend | None = None) -> tuple[Tensor, float]:
        """One pass: the target head's outputs at its queries, and their certified error.

        A run passes the backend that it bound to the weights, and that is under watch.
        """
        padded = self.padded(target)
        inputs = (padded.tokens, padded.w_k, padded.w_q, padded.w_v)
        value_dim = len(target.w_v)
        certificate = self.head.certify(*inputs, queries=padded.queries)
        if self.eps is not None and not certificate.error <= self.eps:
            raise PrecisionError(
                f"this pass is certified to {at_most(certificate.error, '.3g')}, not to the "
                "machine's eps = "
                f"{self.eps:.3g}; use a larger eps, or a machine sized for fewer programs",
                best=certificate.error,
            )
        out = self.head.through(self.bind() if backend is None else backend, *inputs)
        # Padding tokens are masked by a margin, not by nothing; their values are zero.
        values = float((target.tokens @ target.w_v.mT).abs().max())
        stray = 2 * values * unit_roundoff(self.dtype) * 2.0**-_LEAK_BITS
        return out[padded.queries, :value_dim], certificate.error + stray

    def bind(self) -> Backend:
        """The backend on the machine's weights, which are checked now."""
        return self.head.bind()

    def padded(self, target: Target) -> Target:
        """The same head on this machine's sizes, with padding tokens masked."""
        sizes, count = self.sizes, len(target.tokens)
        tokens = target.tokens.new_zeros(sizes.tokens, sizes.features + _PADDING)
        tokens[:count, : target.tokens.shape[1]] = target.tokens
        tokens[count:, -2], tokens[:, -1] = 1.0, 1.0

        def wide(w: Tensor, rows: int) -> Tensor:
            out = w.new_zeros(rows, sizes.features + _PADDING)
            out[: len(w), : w.shape[1]] = w
            return out

        w_k, w_q = wide(target.w_k, sizes.head_dim + 1), wide(target.w_q, sizes.head_dim + 1)
        w_k[-1, -2], w_q[-1, -1] = -self._root, self._root
        start, stop, _ = target.queries.indices(count)
        return Target(tokens, w_k, w_q, wide(target.w_v, sizes.value_dim), slice(start, stop))

    def prompt(self, program: Program, x: Tensor, y: Tensor | None = None) -> Prompt:
        """The tokens of the program's first pass, as the frozen network reads them."""
        self.check_runs(program)
        x, y = self._check(program, x, y)
        padded = self.padded(program.targets(x, y))
        found = self.head.prompt(padded.tokens, padded.w_k, padded.w_q, padded.w_v)
        assert isinstance(found, Prompt)
        return found

    def trace(self, program: Program, x: Tensor, y: Tensor | None = None) -> Trace:
        """What both layers do in the program's first pass."""
        self.check_runs(program)
        x, y = self._check(program, x, y)
        padded = self.padded(program.targets(x, y))
        return self.head.trace(padded.tokens, padded.w_k, padded.w_q, padded.w_v)

    def specialize(
        self, program: Program, x: Tensor | None = None, y: Tensor | None = None
    ) -> FrozenNetwork:
        """Bake the prompt into weights: the task-specific module of the same algorithm.

        The target head of the program's first pass as a frozen layer of its own; it reads the same
        tokens as the machine. Data are needed only where a program's prompt depends on them, as
        the temperature of several neighbours does, or for data smaller than the machine's.
        """
        if x is None:
            x = torch.zeros(self.samples, self.dim, dtype=self.dtype)
            y = torch.zeros(program.label_shape(x), dtype=self.dtype)
        self.check_runs(program)
        x, y = self._check(program, x, y)
        padded = self.padded(program.targets(x, y))
        eye = torch.eye(self.sizes.tokens).to(padded.tokens)
        layer = SoftmaxAttention(
            padded.w_k[None], padded.w_q[None], padded.w_v[None], eye[None], labels=[program.label]
        )
        return FrozenNetwork([layer], Features.of(tokens=padded.tokens.shape[1]))

    # ---------------------------------------------------------------------------------- files

    def describe(self) -> dict[str, Any]:
        """What the machine is sized for, JSON-ready."""
        return {
            "layout": self.layout,
            "dim": self.dim,
            "samples": self.samples,
            "eps": self.eps,
            "sizes": asdict(self.sizes),
        }

    def card(self) -> tuple[str, dict[str, str]]:
        return super().card()[0], {"Certificate": self.head.certificate.explain()}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        head, tensors = self.head.pack()
        return {"head": head, "machine": self.describe()}, tensors

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Rows:
        head, saved = Emulator.unpack(content["head"], tensors), content["machine"]
        try:
            machine = object.__new__(cls)
            machine.eps = check_eps(saved["eps"])
            machine._size(saved["dim"], saved["samples"], Sizes(**saved["sizes"]), head.dtype)
        except (ValueError, KeyError, TypeError) as broken:
            raise IntegrityError(f"the folder cannot be read as a machine: {broken}") from None
        if not isinstance(head, AttentionHead) or head.samples != machine.sizes.tokens:
            raise IntegrityError("the folder holds weights that are not this machine's")
        machine.head = head
        return machine


class Heads(Run):
    """A machine in rows, in a run: heads are in its prompts."""

    machine: Rows

    def __init__(self, machine: Rows) -> None:
        super().__init__(machine)
        self.witness = Witness(machine.bind(), self.ledger)

    def attend(self, target: Target) -> tuple[Tensor, float]:
        """One pass: the target head's outputs at its queries, and their certified error."""
        return self.machine.attend(target, self.witness)

    def attest(self) -> Attestation:
        """Which weights ran, and what running rows again literally shows."""
        return self.witness.attest()

    def certificate(
        self,
        terms: Mapping[str, float],
        domain: Mapping[str, float | str],
        assumptions: tuple[str, ...] = (),
    ) -> Certificate:
        """Of an answer that is off by these terms."""
        return Certificate.total(
            terms,
            domain=domain,
            dtype=self.machine.dtype,
            backend=self.backend,
            derivation=self.machine.head.certificate.derivation,
            assumptions=assumptions,
            # An algorithm takes for granted no more than what its tables do.
            kind=weakest([self.machine.head.certificate.kind, *["estimated"] * bool(assumptions)]),
        )

    def slip(self, logits: float, terms: int) -> float:
        """How far weights of an average move where a prompt is rounded: in the 1-norm, halved.

        Logits are sums of products of a key and a query, each rounded a few times, and of
        ``terms`` terms in a feature.
        """
        unit = unit_roundoff(self.machine.dtype)
        return bounds.total_variation((terms + _WRITTEN) * unit * logits)


class _Alike(Heads):
    """Attention taken out: a pass returns the mean of the target's values at every query."""

    def attend(self, target: Target) -> tuple[Tensor, float]:
        values = (target.tokens @ target.w_v.mT).mean(0)
        start, stop, _ = target.queries.indices(len(target.tokens))
        return values.expand(stop - start, -1), math.inf

    def attest(self) -> Attestation:
        return Attestation.none("attention was taken out")
