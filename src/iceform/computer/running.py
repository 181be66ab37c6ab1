"""A compiled program on the frozen computer: the answer, its proof, its attestation, its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from iceform.arithmetic import at_least, at_most
from iceform.certificates import Certificate, Ledger, Result, Step
from iceform.computer.compile import Program
from iceform.computer.exact import as_column
from iceform.computer.proofs import Enclosure, available
from iceform.errors import ProgramError, ShapeError

if TYPE_CHECKING:
    from iceform.computer.computer import Computer, Execution

_UNCHECKED = (
    "names stayed within their bounds and comparisons away from ties, which is checked in ball "
    "arithmetic; install it with pip install 'iceform[rigor]'"
)


def run(
    computer: Computer,
    program: Program,
    X: Tensor,
    y: Tensor | None = None,
    *,
    backend: str = "literal",
    **settings: Any,
) -> Result:
    """:meth:`Computer.run`."""
    if not isinstance(program, Program):
        raise ProgramError(
            f"run takes a compiled program, got {type(program).__name__}; compile it first, or use "
            "computer.prompt and computer.execute with an assembly"
        )
    x, targets = _data(program, X, y)
    given = program.parameters(**settings)
    program.domain.check(x, targets, given)
    prompt = computer.prompt(program, x.to(computer.dtype), targets.to(computer.dtype), **settings)
    execution = computer.execute(prompt, backend=backend)
    found = {name: value.double() for name, value in execution.outputs.items()}
    certificate = certificate_of(program, x, targets, found, settings, computer.dtype, backend)
    names = list(program.graph.outputs)
    return Result(
        execution.outputs[names[0]],
        certificate=certificate,
        attestation=execution.attestation,
        ledger=_ledger(execution),
        passes=execution.cycles,
        parts=execution.outputs,
    )


def _data(program: Program, X: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
    x = as_column(X, vector=True)
    targets = program.algorithm.targets(x, y)
    d = program.graph.dim
    if x.ndim != 2 or x.shape[1] != d or targets.shape != x.shape[:1]:
        raise ShapeError(
            f"{program.name} takes X of shape (n, {d}) and y of shape (n,), got {tuple(x.shape)} "
            f"and {tuple(targets.shape)}"
        )
    if len(x) > program.samples:
        raise ShapeError(
            f"{program.name} was compiled for at most {program.samples} samples, got {len(x)}; "
            f"compile with samples={len(x)}"
        )
    return x, targets


def certificate_of(
    program: Program,
    x: Tensor,
    y: Tensor,
    found: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    backend: str,
) -> Certificate:
    """Of answers that a run left: by balls, or without them what is known before the fact.

    Parameters
    ----------
    program, x, y, settings
        What ran, on which data (n, d) and (n,), with which parameters.
    found
        Its answers by name, in float64.
    dtype, backend
        Of the run.
    """
    if not available():
        known, _ = program.certify(dtype, backend, **settings)
        return replace(known, kind="estimated", assumptions=(*known.assumptions, _UNCHECKED))
    enclosure = program.enclosed(x, y, found, **settings)
    return Certificate.total(
        {"distance": enclosure.distance},
        domain=_domain(program, enclosure),
        dtype=dtype,
        backend=backend,
        derivation=(_step(enclosure),),
        compared="computed - exact program on these data",
    )


def _step(enclosure: Enclosure) -> Step:
    return Step(
        "distance",
        "max |answer - ball|",
        enclosure.distance,
        f"the exact program on the same data in balls of {enclosure.bits} bits, radius "
        f"{at_most(enclosure.radius, '.1e')}",
    )


def _domain(program: Program, enclosure: Enclosure) -> dict[str, float | str]:
    domain: dict[str, float | str] = {"data": "of this run"}
    for line, nearest in enclosure.nearest.items():
        domain[f"comparison in line {line}"] = (
            f"came no nearer to a tie than {at_least(nearest, '.3g')}"
        )
    if enclosure.turns:
        domain["turns of data-dependent loops"] = str(enclosure.turns)
    return domain


def _ledger(execution: Execution) -> Ledger:
    """What the execution has done, and the proof."""
    ledger = Ledger()
    ledger.merge(execution.ledger)
    ledger.note("host", "the exact program in balls, for the certificate alone")
    return ledger
