"""Verifier: the exact answer of a run in ball arithmetic, beside what the run returned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic.balls import ball_arithmetic, uppermost
from iceform.certificates import Result, Verification
from iceform.certificates.result import set_verifiable
from iceform.errors import PrecisionError, ProgramError
from iceform.machine.program import Program
from iceform.machine.sources import ArraySource, Source

__all__ = ["Given", "Verifier", "stored", "verifiable"]

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
            given = Given.of(
                *(torch.as_tensor(part) for part in inputs), *[None] * (len(inputs) < 2)
            )
        if given is None:
            raise ProgramError(
                f"the data were more than {_KEPT} entries, or not in memory, and are not kept; "
                "give them again: certificate.verify(X, y)"
            )
        flint = ball_arithmetic()
        before = flint.ctx.prec
        try:
            return self._enclose(flint, given, certified, bits)
        finally:
            flint.ctx.prec = before

    def _enclose(self, flint: Any, given: Given, certified: float, bits: int) -> Verification:
        for finer in range(_FINER + 1):
            flint.ctx.prec = bits << finer
            try:
                pairs = self.program.enclosed(self.found, given)
            except PrecisionError:
                if finer == _FINER:
                    raise
                continue
            measured = max((uppermost(abs(a - b)) for a, b in pairs), default=0.0)
            if measured <= certified or finer == _FINER or math.isfinite(measured):
                break
        # Written so that NaN fails.
        return Verification(measured <= certified, measured, certified, flint.ctx.prec)


class _Gone:
    """In the place of a verifier that was pickled."""

    def __call__(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        raise ProgramError(
            "this certificate came from another process or a file, without its run; fit again and "
            "verify there"
        )


def verifiable(
    found: Result, program: Program, x: Tensor | Source | None = None, y: Tensor | None = None
) -> Result:
    """The same result, whose certificate verifies; where no data are kept, on data given again."""
    verifier = Verifier(program, found, None)
    if x is not None:
        verifier = Verifier.of(program, found, x, y)
    return replace(found, certificate=replace(found.certificate, _verifier=verifier))


set_verifiable(verifiable)


def stored(found: Result, dtype: torch.dtype, worst: float) -> Result:
    """The same answer for whoever stores it in less precision, which moves it by ``worst``."""
    name = str(dtype).removeprefix("torch.")
    terms = {**found.certificate.terms, f"stored as {name}": worst}
    error = math.nextafter(math.fsum(terms.values()), math.inf)
    verifier = found.certificate._verifier
    if isinstance(verifier, Verifier):
        parts = dict(found.parts)
        if "intercept" in parts:
            parts["intercept"] = parts["intercept"].to(dtype)
        rounded = replace(verifier.found, answer=found.value.to(dtype), parts=parts)
        verifier = replace(verifier, found=rounded)
    certificate = replace(found.certificate, error=error, terms=terms, _verifier=verifier)
    return replace(found, certificate=certificate)
