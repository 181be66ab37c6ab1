"""Result: an answer, its proof, what it ran on, and what was computed where."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from iceform.certificates.attestation import Attestation
from iceform.certificates.certificate import Certificate, Verification
from iceform.certificates.ledger import Ledger
from iceform.errors import IceformError, ProgramError, ShapeError
from iceform.validation import full_precision

__all__ = ["Result"]

_SHOWN = 64  # entries of an answer that fit on a screen


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What every run returns.

    Attributes
    ----------
    answer
        ``value``, or what computes it once it is asked for.
    certificate
        Proven distance of ``value`` from the exact answer, term by term.
    attestation
        Which weights ran, and what running rows of it again has shown.
    ledger
        What was computed where.
    passes
        Passes of the frozen network over the data.
    parts
        Named parts of the answer beside ``value``: an intercept, a scale, variances.
    errors
        Proven distances of those parts, where they are known.
    converged
        Whether a loop ended below its tolerance.
    history
        Lengths of the steps of a loop.
    """

    answer: Tensor | Callable[[], Tensor]
    certificate: Certificate
    attestation: Attestation
    ledger: Ledger
    passes: int = 1
    parts: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, Any] = field(default_factory=dict)
    converged: bool = True
    history: tuple[float, ...] = ()
    _predict: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    _ablated: Callable[[], Tensor] | None = field(default=None, repr=False)
    _save: Callable[..., Any] | None = field(default=None, repr=False)

    @cached_property
    @full_precision
    def value(self) -> Tensor:
        """The answer, be it coefficients, components, a retrieved state or an output."""
        return self.answer if isinstance(self.answer, Tensor) else self.answer()

    def __repr__(self) -> str:
        """The answer with its proof and its weights in a line each; ``explain()`` has the rest."""
        parts = [self._shown(), self._unsettled(), self.certificate.statement]
        parts.append(str(self.attestation).partition("\n")[0])
        return "Result(\n  " + ",\n  ".join(part for part in parts if part) + "\n)"

    def _shown(self) -> str:
        if not isinstance(self.answer, Tensor) and "value" not in vars(self):
            return "a value that is computed when it is asked for"
        few = self.value.numel() <= _SHOWN
        return repr(self.value) if few else f"a tensor of shape {tuple(self.value.shape)}"

    @property
    def digest(self) -> str:
        """SHA-256 of the weights that ran."""
        return self.attestation.weights

    @property
    def coef(self) -> Tensor:
        """The coefficients of a linear model."""
        return self.value

    @property
    def intercept(self) -> Tensor:
        """The intercept of a linear model; 0 where it has none."""
        found: Tensor = self.parts.get("intercept", self.value.new_zeros(()))
        return found

    @full_precision
    def predict(self, x: Tensor) -> Tensor:
        """Predictions for new points, shape (m,), where the answer makes any."""
        if self._predict is None:
            raise ProgramError("this algorithm makes no predictions; its answer is in .value")
        if x.ndim != 2:
            raise ShapeError(f"points must have shape (m, dim), got {tuple(x.shape)}")
        return self._predict(x)

    @property
    def predictor(self) -> Any:
        """What answers new points, a line or samples that are kept in the prompt."""
        return self._predict

    @full_precision
    def without_attention(self) -> float:
        """How far the answer moves when attention is taken out of the whole run.

        Every look-up then returns what is looked up, and every average weighs all tokens alike. 0
        means that attention computes nothing of this answer; infinity, that there is none without.
        """
        if self._ablated is None:
            raise ProgramError("this run cannot be repeated: its data are gone")
        try:
            moved = (self._ablated() - self.value).abs().max()
        except IceformError:
            return math.inf
        return math.inf if bool(moved.isnan()) else float(moved)

    def verify(self, *inputs: Tensor, bits: int = 256) -> Verification:
        """The exact answer enclosed in ball arithmetic, beside this one."""
        return self.certificate.verify(*inputs, bits=bits)

    def explain(self) -> str:
        """Whether its loop settled, the proof, the attestation and the ledger, as text."""
        parts = [
            self._unsettled(), self.certificate.explain(), self.attestation.explain(),
            self.ledger.explain(),
        ]  # fmt: skip
        return "\n\n".join(part for part in parts if part)

    def _unsettled(self) -> str:
        if self.converged:
            return ""
        left = f", a step of length {self.history[-1]:.3g} still to go" if self.history else ""
        return (
            f"NOT CONVERGED: stopped after {self.passes} passes{left}; the certificate is of where "
            "it stopped"
        )

    def to_dict(self) -> dict[str, Any]:
        """What is kept of it in a file, the tensors aside."""
        return {
            "passes": self.passes,
            "converged": self.converged,
            "attestation": self.attestation.to_dict(),
            "ledger": self.ledger.to_dict(),
        }
