"""Result: an answer, its proof, what it ran on, and what was computed where."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from iceform.certificates.attestation import Attestation, digest_of
from iceform.certificates.certificate import Certificate, Verification
from iceform.certificates.ledger import Ledger
from iceform.errors import IceformError, IntegrityError, ProgramError, ShapeError
from iceform.pretrained import Pretrained, unpacked, write
from iceform.validation import full_precision

__all__ = ["Result", "set_verifiable"]

_SHOWN = 12  # entries of an answer that fit on a screen


@dataclass(frozen=True, eq=False, repr=False)
class Result(Pretrained, kept_as="Result"):
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

    ``save(path)`` keeps it in a folder, with the SHA-256 of the data that its certificate is about;
    what :func:`iceform.load` reads back is "claimed" until it is verified on those data.
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
    _data: str | None = field(default=None, repr=False)

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
        """The exact answer enclosed in ball arithmetic, beside this one.

        A result from a file is given its data, which must be those it was saved with.
        """
        if inputs and self._data is not None and _digest(inputs) != self._data:
            raise IntegrityError(
                f"these data have the SHA-256 {_digest(inputs)[:12]}..., and the result is about "
                f"data with {self._data[:12]}...; give the same X and y"
            )
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

    # ---------------------------------------------------------------------------------- files

    def data_digest(self, *data: Tensor) -> str | None:
        """SHA-256 of the data of the run: of those given, or as the run has kept them."""
        kept = getattr(self.certificate._verifier, "data", None)
        data = data or (kept() if kept is not None else ())
        return _digest(data) if data else self._data

    def save(self, path: str | Path, *data: Tensor) -> Path:
        """Write it into a folder: answer, certificate, attestation, ledger.

        Large data are not kept with a run; ``save(path, X, y)`` says which they were.
        """
        return write(replace(self, _data=self.data_digest(*data)), path)

    def card(self) -> tuple[str, dict[str, str]]:
        known = {"What is known of it": self.explain()}
        known |= {"Its data, SHA-256": self._data} if self._data else {}
        return "The answer of a run of a frozen network.", known

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        parts = {f"part.{k}": v for k, v in self.parts.items()}
        parts |= {f"error.{k}": v for k, v in self.errors.items()}
        tensors = {k: v for k, v in parts.items() if isinstance(v, Tensor)}
        program = getattr(self.certificate._verifier, "program", None)
        try:
            made, its = program.pack() if isinstance(program, Pretrained) else (None, {})
        except ProgramError:  # a function of the user's own, which files do not hold
            made, its = None, {}
        content = {
            **self.to_dict(),
            "history": list(self.history),
            "certificate": self.certificate.to_dict(),
            "plain": {k: v for k, v in parts.items() if k not in tensors},
            "data": self.data_digest(),
            "program": made,
        }
        return content, {"value": self.value, **tensors, **{f"its.{k}": v for k, v in its.items()}}

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Result:
        held = {**content["plain"], **tensors}
        under = {
            kind: {k.removeprefix(kind): v for k, v in held.items() if k.startswith(kind)}
            for kind in ("part.", "error.", "its.")
        }
        ledger = Ledger({(e["where"], e["what"]): e["times"] for e in content["ledger"]})
        found = cls(
            tensors["value"], Certificate.from_dict(content["certificate"]),
            Attestation(**content["attestation"]), ledger, content["passes"], under["part."],
            under["error."], content["converged"], tuple(content["history"]),
            _data=content["data"],
        )  # fmt: skip
        if content["program"] is None or not _VERIFIABLE:
            return found
        program = unpacked("Program", content["program"], under["its."])
        return _VERIFIABLE[0](found, program)

    def to_dict(self) -> dict[str, Any]:
        """What is kept of it in a file, the tensors aside."""
        return {
            "passes": self.passes,
            "converged": self.converged,
            "attestation": self.attestation.to_dict(),
            "ledger": self.ledger.to_dict(),
        }


def _digest(data: tuple[Tensor, ...]) -> str:
    """SHA-256 of samples, labels and what samples weigh; no labels are labels of 0."""
    zeros = [data[0].new_zeros(len(data[0]))] if len(data) == 1 else []
    return digest_of(*data, *zeros)


_VERIFIABLE: list[Callable[[Result, Any], Result]] = []


def set_verifiable(verifiable: Callable[[Result, Any], Result]) -> None:
    """Say what makes a result verifiable again by its program; machines, a level below, do."""
    _VERIFIABLE[:] = [verifiable]
