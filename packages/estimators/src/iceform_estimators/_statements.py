r"""One certificate of several fits: of the columns of labels, or of one class against the others.

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
from collections.abc import Sequence
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
    weakest,
)
from iceform.errors import ProgramError
from iceform_estimators.algorithms import EstimationAlgorithm
from iceform_estimators.algorithms.linear import FITTED
from iceform_estimators.machine import Source
from iceform_estimators.machine.program import FitRecord, MachineProgram, refuse_verify, with_terms

_WHAT = "fitted values; the coefficients of some are not unique"


def of_fitted_values(found: Result, source: Source) -> Certificate:
    """What a bound of coefficients and intercept says of the fitted values on these samples."""
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
    """Of certificates that bound the same difference, the one that holds for each.

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
    """What all say as it is, the rest with the number of whom it is said."""
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
    """What holds for the objective of each, if each says something of its own."""
    known = [one for one in every if one is not None]
    if len(known) < len(every):
        return None
    over = dict.fromkeys(one.over or "all lines" for one in known)
    bound = max(one.bound for one in known)
    return Excess(bound, "" if list(over) == ["all lines"] else ", or ".join(over))


@dataclass(frozen=True, eq=False)
class FitRecords:
    """What the certificate of several fits speaks of: that of each."""

    every: tuple[Certificate, ...]
    __call__ = staticmethod(refuse_verify)


@dataclass(frozen=True, eq=False)
class Recalled(MachineProgram):
    """What a fit that keeps its samples answers at them, beside what is exact.

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

    model: EstimationAlgorithm
    memory: Any
    number: int | None = None

    def labels(self, y: Tensor) -> Tensor:
        """What is averaged."""
        return y if self.number is None else (y == self.number).to(y)

    def certified(self, found: Result, x: Tensor, y: Tensor) -> Certificate:
        """Of the answers at all samples for labels y.

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
    """Of all runs: the weights, where all ran on the same, and the row nearest to its limit."""
    every = [one.attestation for one in found]
    both = Attestation.together(every)
    names = {(one.weights, one.expected) for one in every}
    if len(names) > 1 or not both.weights:
        return both
    ((weights, expected),) = names
    return replace(both, weights=weights, expected=expected)
