r"""The exact answer of an algorithm on given data, enclosed in ball arithmetic.

Data, options and answers are floating-point numbers, so known exactly; only the answer that is
meant needs enclosing, and nothing of how the machine found its own is looked at.

**Optima.** With g the gradient of a convex objective, v near its zero, V a box around v and J an
enclosure of the slopes of g on V, kinks included: where every entry of :math:`J^{-1} g(v)` is
smaller than V is wide, g has one zero in V, within :math:`v - J^{-1} g(v)` (Newton's method for
intervals). It is the optimum, since the objective is convex, and the only one. Coefficients that an
absolute value holds at 0 are checked by the slope beside it, a quantile's line by the dual of its
linear program in exact fractions.

**Dependent features.** Where coefficients are not unique those of independent columns, found by
exact elimination, give the same fitted values, and these are compared.

**Others** are replayed: averages, neighbours, components, passes of a perceptron.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from estimator_tests.exact import corners, lines, replays  # noqa: F401  they say of what
from estimator_tests.exact.balls import exact_of
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.certificates import Certificate, Result, Verification
from iceform.errors import PrecisionError, ProgramError
from iceform.validation import tensor_of
from iceform_estimators.machine.program import FitRecord, FitRecords, RunData

_FINER = 3  # times the bits are doubled where an enclosure is too wide to tell


def verify(about: Result | Certificate, *inputs: Any, bits: int = 256) -> Verification:
    """Whether what was found is as near to the exact answer as its certificate says.

    ``inputs`` are X, y and weights of the samples, where the fit has kept none.
    """
    certificate = about.certificate if isinstance(about, Result) else about
    return _of(certificate.verifier, inputs, certificate.error, bits)


def _of(record: Any, inputs: tuple[Any, ...], certified: float, bits: int) -> Verification:
    if isinstance(record, FitRecords):
        done = [
            _of(one.verifier, _column(inputs, k), certified, bits)
            for k, one in enumerate(record.every)
        ]
        holds, measured = all(one.holds for one in done), max(one.measured for one in done)
        return Verification(holds, measured, certified, max(one.bits for one in done))
    assert isinstance(record, FitRecord)
    parts = [tensor_of(f"input {k}", part) for k, part in enumerate(inputs)]
    given = RunData.of(*parts, *[None] * (len(parts) < 2)) if parts else record.given
    if given is None:
        raise ProgramError("the fit has kept no data: give them again")
    with balls_of(bits) as flint:
        return _enclose(flint, record, given, certified, bits)


def _column(inputs: tuple[Any, ...], k: int) -> tuple[Any, ...]:
    """X, y and weights of one fit: of labels in columns its own."""
    given = [tensor_of(f"input {place}", part) for place, part in enumerate(inputs)]
    if len(given) > 1 and given[1].ndim == 2:
        given[1] = given[1][:, k]
    return tuple(given)


def _enclose(
    flint: Any, record: FitRecord, given: RunData, certified: float, bits: int
) -> Verification:
    for finer in range(_FINER + 1):
        flint.ctx.prec = bits << finer
        try:
            pairs = exact_of(record.program, record.found, given)
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
                f"the exact answer is enclosed to {measured:.2g}: too wide to tell"
            )
    # Written so that NaN fails.
    return Verification(measured <= certified, measured, certified, flint.ctx.prec)


def moved(certificate: Certificate, **changes: Any) -> Certificate:
    """The same certificate of a result in which something was changed."""
    record = certificate.verifier
    return replace(certificate, verifier=replace(record, found=replace(record.found, **changes)))
