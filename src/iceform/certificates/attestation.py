"""Attestation: which weights ran, and what running some of it again through them has shown."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Attestation", "digest_of", "joined"]


def digest_of(*data: Tensor) -> str:
    """SHA-256 of data: shapes, and entries as float64."""
    found = hashlib.sha256()
    for part in data:
        found.update(repr(tuple(part.shape)).encode())
        found.update(part.detach().to("cpu", torch.float64).contiguous().numpy().data)
    return found.hexdigest()


def joined(digests: Iterable[str]) -> str:
    """One SHA-256 for several, in order."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@dataclass(frozen=True)
class Attestation:
    """What is known of a run beside its proof.

    Attributes
    ----------
    weights
        SHA-256 of the weights used in this run.
    expected
        SHA-256 that the sizes imply.
    backend
        How the network was evaluated.
    rows
        Query rows, drawn at random, that were run again through the literal matrices.
    difference
        The largest difference found.
    allowed
        What the certificates of both evaluations allow of it.
    note
        What the numbers do not say; for a run without attestation, why there is none.
    """

    weights: str
    expected: str
    backend: str
    rows: int = 0
    difference: float = 0.0
    allowed: float = 0.0
    note: str = ""

    @classmethod
    def none(cls, why: str, backend: str = "none") -> Attestation:
        """No attestation, and the reason."""
        return cls("", "", backend, note=why)

    @classmethod
    def together(cls, parts: Sequence[Attestation]) -> Attestation:
        """Of a run on several networks: their digests as one, and the row nearest to its limit."""
        missing = [part for part in parts if not part.weights]
        if missing or not parts:
            return missing[0] if missing else cls.none("nothing ran")
        checked = [part for part in parts if part.rows]
        worst = max(checked, key=_share, default=parts[0])
        return cls(
            joined(part.weights for part in parts),
            joined(part.expected for part in parts),
            parts[0].backend,
            sum(part.rows for part in parts),
            worst.difference,
            worst.allowed,
            "" if checked else worst.note,
        )

    @property
    def ok(self) -> bool:
        """Whether the weights are those of the sizes and the rows agree."""
        return bool(self.weights) and self.weights == self.expected and self.within

    @property
    def within(self) -> bool:
        """Whether the rows that were run again agree."""
        return self.difference <= self.allowed

    def explain(self) -> str:
        """In words."""
        if not self.weights:
            return f"not attested: {self.note}"
        same = (
            "as its sizes imply"
            if self.weights == self.expected
            else (f"but its sizes imply {self.expected[:12]}")
        )
        lines = [f"weights {self.weights[:12]} ran, {same} ({self.backend} backend)"]
        if self.backend == "literal":
            lines.append("every row went through the literal matrices")
        elif self.rows:
            lines.append(
                f"{self.rows} rows drawn at random and run again through the literal matrices: "
                f"off by {self.difference:.1e}, {self.allowed:.1e} allowed"
            )
        return "\n".join([*lines, self.note] if self.note else lines)

    def __str__(self) -> str:
        return self.explain()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _share(part: Attestation) -> float:
    """How much of what is allowed was found; infinite where more."""
    return part.difference / part.allowed if part.within and part.allowed else math.inf
