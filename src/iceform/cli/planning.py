"""What either regime of a gradient step needs, before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from iceform.errors import IceformError, PrecisionError
from iceform.paper import CompactStep, GradientStep, Plan, plan_look_ups, room_for
from iceform.tables import MOST_HARD_CELLS, Interpolant

_REFERENCE_CELLS = 1024  # where the hard regime's 1/P law is read off
_MOST_BUILT = 1 << 14  # grid tokens up to which a hard table is built instead of estimated


@dataclass(frozen=True)
class Need:
    """What a regime needs for an eps.

    Attributes
    ----------
    regime
        "spectral" or "hard".
    plan
        Its sizes.
    error
        The error it is certified to.
    terms
        The parts of that error; None for an estimate.
    refusal
        Why the library would not build it; None where it would.
    """

    regime: str
    plan: Plan
    error: float
    terms: dict[str, float] | None = None
    refusal: str | None = None

    @classmethod
    def of(cls, step: GradientStep) -> Need:
        """The needs of a step that was planned."""
        certificate = step.certificate
        return cls(step.regime, step.plan, certificate.error, dict(certificate.terms))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "regime": self.regime,
            "plan": self.plan.to_dict(),
            "error": self.error,
            "terms": self.terms,
            "estimate": self.terms is None,
            "refusal": self.refusal,
        }


def other_regime(step: GradientStep, eps: float) -> Need | None:
    """What the regime that was not asked for needs for the same eps, without allocating it.

    The hard regime is estimated from its law where it is too large to build. None where the
    spectral one cannot be had.
    """
    if step.regime == "hard":
        try:
            return Need.of(_again(step, eps, "spectral"))
        except PrecisionError:
            return None
    tokens = _hard_tokens(step, eps)
    if tokens > MOST_HARD_CELLS:
        return _estimate(step, tokens, eps, f"the library stops at {MOST_HARD_CELLS:,} grid tokens")
    if tokens > _MOST_BUILT:
        return _estimate(step, tokens, eps, None)
    try:
        return Need.of(_again(step, eps, "hard"))
    except PrecisionError as error:
        return _estimate(step, tokens, eps, str(error))


def fewest_tokens(step: GradientStep, eps: float) -> int | None:
    """Tokens of the shortest prompt that is known for the same eps: one table for all samples.

    None where there is none: the loss is not one of residuals, or eps cannot be had.
    """
    d = step.domain
    try:
        short = CompactStep(
            step.loss, dim=d.dim, samples=d.samples, bound=d.x, eps=eps, dtype=step.dtype
        )
    except IceformError:
        return None
    return short.plan.tokens


def _again(step: GradientStep, eps: float, regime: str) -> GradientStep:
    d = step.domain
    return GradientStep(
        step.loss, dim=d.dim, samples=d.samples, bound=d.x, eps=eps, regime=regime, dtype=step.dtype
    )


def _hard_tokens(step: GradientStep, eps: float) -> int:
    """Grid tokens of the hard regime for eps: its error falls as 1/P."""
    low, high = step.domain.residuals
    table = Interpolant.hard(step.loss.derivative, low, high, cells=_REFERENCE_CELLS)
    gain = step.rates.gain * step.domain.x
    return 1 + math.ceil(_REFERENCE_CELLS * gain * table.error / eps)


def _estimate(step: GradientStep, tokens: int, eps: float, refusal: str | None) -> Need:
    d = step.domain
    layout = replace(step.layout, tokens=room_for(tokens))
    sizes = plan_look_ups(layout, d.samples, tokens, step.dtype)
    return Need("hard", sizes, eps, refusal=refusal)
