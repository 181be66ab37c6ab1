"""A compiled program on the frozen computer: the answer, its proof, its attestation, its ledger."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from iceform.arithmetic import at_least, at_most
from iceform.certificates import Certificate, DerivationStep, Enclosure, Ledger, Result
from iceform.computer.compile import Program
from iceform.computer.proofs import ExactDistance, available
from iceform.errors import PrecisionError, PrecisionWarning, ProgramError

if TYPE_CHECKING:
    from iceform.computer.computer import Computer, Execution


def run(
    computer: Computer,
    program: Program,
    X: Tensor,
    y: Tensor | None = None,
    *,
    backend: str = "auto",
    **settings: Any,
) -> Result:
    """:meth:`Computer.run`."""
    if not isinstance(program, Program):
        raise ProgramError(
            f"run takes a compiled program, got {type(program).__name__}; compile it first, or use "
            "computer.prompt and computer.execute with an assembly"
        )
    x, targets = program.checked(X, y, **settings)
    check_balls(program)
    prompt = computer.prompt(program, x.to(computer.dtype), targets.to(computer.dtype), **settings)
    execution = computer.execute(prompt, backend=backend)
    outputs = {name: execution.outputs[name] for name in program.graph.outputs}
    found = {name: value.double() for name, value in outputs.items()}
    exact = _exact(program, x, targets, found, settings, program.eps)
    enclosure = _enclosure(exact, computer.dtype, execution.backend) if available() else None
    if enclosure is not None and computer.dtype == torch.float64:
        _warn(program, enclosure.error, math.inf if exact is None else exact.relative)
    return Result(
        next(iter(outputs.values())),
        certificate=_but_for_ties(
            _certificate(computer, program, execution.backend, settings), enclosure
        ),
        attestation=execution.attestation,
        ledger=_ledger(execution),
        passes=execution.cycles,
        parts=outputs,
        enclosed=enclosure,
        form=program.graph.packed,
    )


def _certificate(
    computer: Computer, program: Program, backend: str, settings: Mapping[str, Any]
) -> Certificate:
    """What is known before the fact, found once for the same parameters."""
    numbers = (tuple(v.flatten().tolist()) for v in program.parameters(**settings).values())

    def found() -> tuple[Program, Certificate]:
        width = computer.sizes.width
        return program, program.certified_on(width, computer.dtype, backend, settings)[0]

    return computer.certificates.get((id(program), backend, *numbers), found)[1]


_NEAR = "came nearer to a tie than its table tells apart"


def _but_for_ties(known: Certificate, enclosure: Enclosure | None) -> Certificate:
    """What is known of a run before the fact: nothing, where a comparison came too near to a tie.

    The bound rests on comparisons that are decided as in the exact program.
    """
    ties = {} if enclosure is None else {k: v for k, v in enclosure.domain.items() if v == _NEAR}
    if not ties:
        return known
    terms = dict.fromkeys(known.terms, math.inf)
    return replace(known, error=math.inf, terms=terms, domain={**known.domain, **ties})


def _warn(program: Program, error: float, relative: float) -> None:
    """Of an answer with an entry that is off by more than look-ups may be."""
    if relative > program.eps:
        warnings.warn(
            f"the answer of {program.name} is proven to be within {at_most(error, '.2g')}, and the "
            f"program was compiled for eps = {program.eps:.2g}; program.diagnose(X, y) says which "
            f"lines lose it{_narrower(program)}",
            PrecisionWarning,
            stacklevel=5,
        )


def _narrower(program: Program) -> str:
    """What ranges that an example gave can still be narrowed by."""
    if not program.ranges.example or program.ranges.margin is not None:
        return ""
    return ", and compile(..., margin=1.5) narrows what they are made for to what the example shows"


def check_balls(program: Program, *, every: bool = False) -> None:
    """Refuse, where ball arithmetic is missing, a program whose runs leave something to check.

    ``every`` asks for the distance of the answer too, which any run leaves.
    """
    if available():
        return
    names = [assumed.name for assumed in program.ranges.assumed.values()]
    if names or program.fused.gaps or every:
        what = f"that {names[0]} stays within its bounds" if names else "how near comparisons come"
        what = what if names or program.fused.gaps else "how far the answer is from the exact one"
        raise PrecisionError(
            f"what a run of {program.name} leaves to check, {what}, is checked in ball arithmetic, "
            "and python-flint, on which iceform depends, is missing here: pip install python-flint"
        )


def enclosure_of(
    program: Program,
    x: Tensor,
    y: Tensor,
    found: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    backend: str,
    eps: float = 0.0,
) -> Enclosure | None:
    """After the fact: the proven distance of answers from the exact program's, on these data.

    Parameters
    ----------
    program, x, y, settings
        What ran, on which data (n, d) and (n,), with which parameters.
    found
        Its answers by name, in float64.
    dtype, backend
        Of the run.
    eps
        What an answer may be off by although a comparison came nearer to a tie than its table
        tells apart; else that is refused.

    Returns
    -------
    Infinite where an answer holds NaN or infinity; None where ball arithmetic is missing.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=1)
    >>> X, y = program.checked([[0.5]])
    >>> answer = {"value": torch.tensor([0.2501], dtype=torch.float64)}
    >>> found = enclosure_of(program, X, y, answer, {}, torch.float64, "literal")
    >>> abs(found.error - 1e-4) < 1e-12
    True
    """
    if not available():
        return None
    return _enclosure(_exact(program, x, y, found, settings, eps), dtype, backend)


def _exact(
    program: Program, x: Tensor, y: Tensor, found: Mapping[str, Tensor],
    settings: Mapping[str, Any], eps: float,
) -> ExactDistance | None:  # fmt: skip
    """How far answers are from the exact program's; None where nothing can be told."""
    finite = all(bool(torch.isfinite(value).all()) for value in found.values())
    return program.enclosed(x, y, found, eps, **settings) if finite and available() else None


def _enclosure(exact: ExactDistance | None, dtype: torch.dtype, backend: str) -> Enclosure:
    step = DerivationStep("distance", "max |answer|", math.inf, "the answer holds NaN or infinity")
    step = step if exact is None else _step(exact)
    return Enclosure.total(
        {"distance": step.value},
        domain={"data": "of this run", **({} if exact is None else _domain(exact))},
        dtype=dtype,
        backend=backend,
        derivation=(step,),
        compared="computed - exact program on these data",
    )


def _step(exact: ExactDistance) -> DerivationStep:
    return DerivationStep(
        "distance",
        "max |answer - ball|",
        exact.distance,
        f"the exact program on the same data in balls of {exact.bits} bits, radius "
        f"{at_most(exact.radius, '.1e')}",
    )


def _domain(exact: ExactDistance) -> dict[str, float | str]:
    domain: dict[str, float | str] = {
        f"comparison in line {line}": f"came no nearer to a tie than {at_least(nearest, '.3g')}"
        for line, nearest in exact.nearest.items()
    }
    domain |= {f"comparison in line {line}": _NEAR for line in exact.near}
    if exact.turns:
        domain["turns of data-dependent loops"] = str(exact.turns)
    return domain


def _ledger(execution: Execution) -> Ledger:
    """What the execution has done, and the proof."""
    ledger = Ledger()
    ledger.merge(execution.ledger)
    if available():
        ledger.note("host", "the exact program in balls, for the enclosure alone")
    return ledger
