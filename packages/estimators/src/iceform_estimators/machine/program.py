r"""Programs of a machine, and certificates of one fit or of several.

A program is data as tokens, a task in the prompt, a readout, a loop, an exact answer. The machine
itself, one frozen look-up layer (thm:attn_sim_f), is in :mod:`iceform_estimators.machine.stream`.

**Several fits**: of the columns of labels, or of one class against the others.

Fits state different things: how far coefficients are from the optimum's or, where those are not
unique, how far fitted values are; the optimum over all lines, or over some. What a certificate of
all of them states has to be true of each.

* Where all bound the same difference, the largest bound holds for each.
* Where some bound coefficients and others fitted values, what all have is a bound of fitted values:
  coefficients within e of the optimum's, and an intercept within b, leave fitted values within
  :math:`\sum_j e \max_i |x_{ij}| + b`.
* What else differs between their domains is said of each by its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import OUTWARD_FEW
from iceform.certificates import (
    Attestation,
    Certificate,
    DerivationStep,
    Excess,
    Result,
    Verification,
    weakest,
)
from iceform.errors import ProgramError
from iceform.heads import LookUps, SoftmaxAverage
from iceform.pretrained import Pretrained
from iceform.validation import dtype_name
from iceform_estimators.machine.sources import ArraySource, Source
from iceform_estimators.tuning import KEPT


class MachineProgram(Pretrained):
    """What a machine runs: an algorithm as prompts.

    A subclass supplies :meth:`stream` and :meth:`opening`.

    Examples
    --------
    >>> from iceform_estimators.algorithms import Ridge
    >>> issubclass(Ridge, MachineProgram), Ridge(alpha=2.0).label
    (True, 'Ridge')
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
    """Refuse ``verify()``, which fits do not offer."""
    raise ProgramError(_NOT_OFFERED)


def _refusal() -> Callable[..., Verification]:
    """Replacement of a :class:`FitRecord` when it is unpickled."""
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
    """The run behind a fit's certificate, for files and for tests.

    Data of up to 65,536 entries are kept. In another process it is gone, as the data are.
    """

    program: MachineProgram
    found: Result
    given: RunData | None

    @classmethod
    def of(
        cls, program: MachineProgram, found: Result, x: Tensor | Source, y: Tensor | None
    ) -> FitRecord:
        """The record of a run on these data."""
        data = x.x if isinstance(x, ArraySource) else x
        small = isinstance(data, Tensor) and data.numel() <= KEPT
        return cls(program, found, RunData.of(x, y) if small else None)

    def data(self) -> tuple[Tensor, ...]:
        """The data that were kept, if they were small."""
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
    """Distance by which storing in ``dtype`` moves numbers; those too small become 0."""
    return (values - values.to(dtype).to(values)).abs()


def stored(found: Result, dtype: torch.dtype, worst: float) -> Result:
    """The result with a certificate that also covers storing it in less precision."""
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


FITTED = "fitted - optimally fitted"  # what a certificate bounds where coefficients are open
_WHAT = "fitted values; the coefficients of some are not unique"


def of_fitted_values(found: Result, source: Source) -> Certificate:
    """Turn a bound of coefficients and intercept into one of the fitted values."""
    before = found.certificate
    if "what" in before.domain:
        return before
    largest = source.moments(products=False).largest.tolist()
    last = found.errors.get("intercept", 0.0)
    worst = math.inf
    if math.isfinite(before.error) and math.isfinite(last):
        worst = math.fsum([*(before.error * size for size in largest), last]) * OUTWARD_FEW
    terms = {"distance of the coefficients, times samples": worst}
    step = DerivationStep(
        "fitted", "distance of the fitted values", worst, "sum_j e max_i |x_ij| + b"
    )
    made = with_terms(
        before, terms, step, compared=FITTED, domain={**before.domain, "what": "fitted values"}
    )
    verifier: Any = before.verifier
    if verifier is None:
        return made
    told = replace(verifier, found=replace(verifier.found, certificate=made))
    return replace(made, verifier=told)


def of_all(found: Sequence[Result], sources: Sequence[Source], each: str) -> Certificate:
    """The statement that holds for every fit; ``each`` is what they are, "column" or "class"."""
    every = [one.certificate for one in found]
    if len({one.compared for one in every}) > 1:
        every = [of_fitted_values(*pair) for pair in zip(found, sources, strict=True)]
        every = [replace(one, domain={**one.domain, "what": _WHAT}) for one in every]
    return together(every, each)


def together(every: Sequence[Certificate], each: str) -> Certificate:
    """One certificate that holds for each of several, which bound the same difference.

    Terms and derivation are those of the largest bound.
    """
    if len(every) == 1:
        return every[0]
    kinds = {one.compared for one in every}
    if len(kinds) > 1:
        raise ProgramError(f"certificates of different things are not one: {sorted(kinds)}")
    # Written so that NaN, which bounds nothing, counts as the largest.
    sizes = [math.inf if math.isnan(one.error) else one.error for one in every]
    worst = max(range(len(every)), key=sizes.__getitem__)
    return replace(
        every[worst],
        domain=_domains(every, each, worst),
        kind=weakest(one.kind for one in every),
        assumptions=tuple(dict.fromkeys(a for one in every for a in one.assumptions)),
        excess=_excess([one.excess for one in every]),
        verifier=FitRecords(tuple(every)),
    )


def _domains(every: Sequence[Certificate], each: str, worst: int) -> dict[str, float | str]:
    """Merge domains: entries that agree as they are, the others numbered."""
    names = dict.fromkeys(name for one in every for name in one.domain)
    out: dict[str, float | str] = {}
    for name in names:
        said = [one.domain.get(name) for one in every]
        if all(value == said[0] for value in said) and said[0] is not None:
            out[name] = said[0]
        else:
            out |= {f"{name} of {each} {k}": v for k, v in enumerate(said) if v is not None}
    out[f"of every {each}"] = f"{len(every)} of them; terms and derivation are of {each} {worst}"
    return out


def _excess(every: Sequence[Excess | None]) -> Excess | None:
    """An excess that holds for every fit's objective; None if one fit has none."""
    known = [one for one in every if one is not None]
    if len(known) < len(every):
        return None
    over = dict.fromkeys(one.over or "all lines" for one in known)
    bound = max(one.bound for one in known)
    return Excess(bound, "" if list(over) == ["all lines"] else ", or ".join(over))


@dataclass(frozen=True, eq=False)
class FitRecords:
    """The certificates of several fits, behind the one that holds for all."""

    every: tuple[Certificate, ...]
    __call__ = staticmethod(refuse_verify)


@dataclass(frozen=True, eq=False)
class Recalled(MachineProgram):
    """Answers of a fit at the samples that it keeps, as a program with its exact peer.

    Parameters
    ----------
    model
        The algorithm.
    memory
        The fit's samples, which answer points: with their own labels, or with any column.
    number
        The class whose share among the neighbours is meant, of labels that are numbers of classes;
        None where labels are averaged as they are.
    """

    model: MachineProgram
    memory: Any
    number: int | None = None

    def labels(self, y: Tensor) -> Tensor:
        """The labels that are averaged."""
        return y if self.number is None else (y == self.number).to(y)

    def certified(self, found: Result, x: Tensor, y: Tensor) -> Certificate:
        """Certificate of the answers at all samples, for labels y.

        ``found`` is of a run with the labels that the memory holds.
        """
        made, own = found.certificate, self.labels(y)
        if not torch.equal(own, self.memory.y):
            made = replace(self.memory, y=own.to(self.memory.y)).certificate()
            made = replace(made, backend=found.certificate.backend)
        if self.number is not None:
            made = replace(made, domain={**made.domain, "answers": "shares of the classes"})
        return replace(made, verifier=FitRecord.of(self, found, x, y))


def attested(found: Sequence[Result]) -> Attestation:
    """One attestation of several runs: common weights, and the row nearest to its limit."""
    every = [one.attestation for one in found]
    both = Attestation.together(every)
    names = {(one.weights, one.expected) for one in every}
    if len(names) > 1 or not both.weights:
        return both
    ((weights, expected),) = names
    return replace(both, weights=weights, expected=expected)
