"""What a machine runs, and what every run shares: a program, its record, its ledger.

A program is data as tokens, a task in the prompt, a readout, a loop, an exact answer. The machine
itself, one frozen look-up layer (thm:attn_sim_f), is in :mod:`iceform_estimators.machine.stream`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iceform.certificates import Certificate, DerivationStep, Result, Verification
from iceform.errors import ProgramError
from iceform.heads import LookUps, SoftmaxAverage
from iceform.pretrained import Pretrained
from iceform.validation import dtype_name
from iceform_estimators.machine.sources import ArraySource, Source
from iceform_estimators.tuning import KEPT


class MachineProgram(Pretrained):
    """What a machine runs: an algorithm as prompts.

    A subclass supplies :meth:`stream` and :meth:`opening`.
    """

    @property
    def label(self) -> str:
        """As in tables."""
        return type(self).__name__

    def verifiable(
        self, found: Result, x: Tensor | Source | None = None, y: Tensor | None = None
    ) -> Result:
        """The result of a run, whose certificate knows what it speaks of."""
        record = FitRecord(self, found, None) if x is None else FitRecord.of(self, found, x, y)
        return replace(found, certificate=replace(found.certificate, verifier=record))

    def stream(self, machine: Any, source: Source) -> Result:
        """Loop a machine that data of any length stream through."""
        raise ProgramError(f"{self.label} does not run by itself; its predictor does")

    def opening(self, machine: Any, source: Source) -> LookUps | SoftmaxAverage:
        """The first prompts of :meth:`stream`."""
        raise ProgramError(f"{self.label} has no prompts of its own; its predictor has")


_NOT_OFFERED = (
    "verify() is not offered for fits: a fit's certificate is proven on its data after the fact, "
    "and certificate.explain() prints the proof; programs and constructions of iceform verify"
)


def refuse_verify(*inputs: Tensor, certified: float, bits: int) -> Verification:
    """What ``verify()`` of every fit does, whatever it is given."""
    raise ProgramError(_NOT_OFFERED)


def _refusal() -> Callable[..., Verification]:
    """What a :class:`FitRecord` is in another process."""
    return refuse_verify


@dataclass(frozen=True, eq=False)
class RunData:
    """The data of a run, as they were given."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(
        cls, x: Tensor | Source, y: Tensor | None, weights: Tensor | None = None
    ) -> RunData | None:
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


@dataclass(frozen=True, eq=False)
class FitRecord:
    """What the certificate of a fit speaks of, for files and for tests.

    Data of up to 65,536 entries are kept. In another process it is gone, as the data are.
    """

    program: MachineProgram
    found: Result
    given: RunData | None

    @classmethod
    def of(
        cls, program: MachineProgram, found: Result, x: Tensor | Source, y: Tensor | None
    ) -> FitRecord:
        """Of a run on these data."""
        data = x.x if isinstance(x, ArraySource) else x
        small = isinstance(data, Tensor) and data.numel() <= KEPT
        return cls(program, found, RunData.of(x, y) if small else None)

    def data(self) -> tuple[Tensor, ...]:
        """What is kept of the data."""
        kept = self.given
        parts = (kept.x, kept.y, kept.weights) if kept is not None else ()
        return tuple(part for part in parts if part is not None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _refusal, ()

    def __call__(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        """``verify()`` of the fit."""
        return refuse_verify(*inputs, certified=certified, bits=bits)


def with_terms(
    before: Certificate, terms: Mapping[str, float], *steps: DerivationStep, **changes: Any
) -> Certificate:
    """A certificate with these terms, and what they add up to; steps come after those it has."""
    error = math.fsum(terms.values()) if all(map(math.isfinite, terms.values())) else math.inf
    error = math.nextafter(error, math.inf)
    steps = (*before.derivation, *steps)
    return replace(before, terms=terms, error=error, derivation=steps, **changes)


def moved(values: Tensor, dtype: torch.dtype) -> Tensor:
    """How far numbers go when they are stored: to 0, where the dtype has none so small."""
    return (values - values.to(dtype).to(values)).abs()


def stored(found: Result, dtype: torch.dtype, worst: float) -> Result:
    """The same answer for whoever stores it in less precision, which moves it by ``worst``."""
    name = dtype_name(dtype)
    terms = {**found.certificate.terms, f"stored as {name}": worst}
    verifier, errors, last = found.certificate.verifier, dict(found.errors), []
    if errors.get("intercept"):
        by = float(moved(found.intercept, dtype).max())
        errors["intercept"] = math.nextafter(errors["intercept"] + by, math.inf)
        told = f"as above, and stored as {name}"
        last = [DerivationStep("intercept", "bound of its distance", errors["intercept"], told)]
    if isinstance(verifier, FitRecord):
        parts = dict(found.parts)
        if "intercept" in parts:
            parts["intercept"] = parts["intercept"].to(dtype)
        rounded = replace(verifier.found, answer=found.value.to(dtype), parts=parts, errors=errors)
        verifier = replace(verifier, found=rounded)
    excess = found.certificate.excess
    if excess is not None:  # how much F grows by rounding is not known here
        over = (
            f"{excess.over or 'all lines'}, found being the answer before it was stored as {name}"
        )
        excess = replace(excess, over=over)
    certificate = with_terms(found.certificate, terms, *last, excess=excess, verifier=verifier)
    return replace(found, certificate=certificate, errors=errors)
