"""What was asked for, refused where it cannot be had, and what a run leaves behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from iceform.backends import resolve
from iceform.certificates import Attestation, Certificate, Ledger
from iceform.errors import DeviceError
from iceform.validation import check_eps
from iceform_estimators.algorithms import Algorithm
from iceform_estimators.tables import Preparation, Unknown


@dataclass(frozen=True)
class Settings:
    """What was asked for.

    Attributes
    ----------
    entry
        The algorithm.
    options
        Its options that were given.
    device
        Where the passes run.
    eps
        The certified error to reach; None takes what the tolerance gives.
    test_share, seed
        The split.
    unknown, scale, strict
        As for :class:`iceform_estimators.tables.Preparation`.
    compare
        Whether scikit-learn runs beside.
    backend
        How passes are evaluated.
    """

    entry: type[Algorithm]
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    eps: float | None = None
    test_share: float = 0.2
    seed: int = 0
    unknown: str = "error"
    scale: bool = True
    strict: bool = False
    compare: bool = True
    backend: str = "auto"

    def __post_init__(self) -> None:
        self.entry.check_options(self.options)
        for name, value in self.options.items():
            one = self.entry.options()[name]
            one.check(one.parse(value))
        resolve(self.backend)
        check_eps(self.eps)
        check_device(self.device)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("device", "eps", "test_share", "seed", "unknown", "scale", "strict", "backend")
        return {
            "algorithm": self.entry.name,
            "options": dict(self.options),
            **{name: getattr(self, name) for name in names},
        }


def check_device(name: str) -> torch.device:
    """A device that is there and has float64."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as refused:
        reason = " ".join(str(refused).split("\n")[0].split())
        raise DeviceError(f"device {name!r} cannot be used: {reason}; use cpu") from None
    if device.type == "meta":
        raise DeviceError("the meta device holds no numbers; use cpu")
    return device


@dataclass(frozen=True)
class Score:
    """A figure of merit on rows that were not learnt from, ours and the peer's."""

    name: str
    ours: float
    peer: float | None = None


@dataclass(frozen=True)
class Coefficient:
    """One coefficient, ours and the peer's."""

    name: str
    value: float
    peer: float | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows with their predictions."""

    name: str  # "train", "test", "unlabelled" or "new"
    rows: np.ndarray
    actual: np.ndarray | None
    predicted: np.ndarray  # (n,) or, for components, (n, k)


@dataclass(frozen=True, eq=False)
class Peer:
    """What the other library found."""

    name: str
    seconds: float
    coef: np.ndarray | None
    predicted: np.ndarray  # of the rows that are scored
    distance: float | None  # largest difference of a coefficient
    apart: float  # largest difference of a prediction, or the share of labels that differ
    chances: np.ndarray | None = None  # of the classes, where it tells


@dataclass(frozen=True, eq=False)
class Run:
    """A program's run on a table, and all there is to say about it.

    Attributes
    ----------
    settings, source, target, notes, data_digest
        What was asked for, of which file and column, what was done on reading it, and the SHA-256
        of the table as it was read.
    preparation, unknowns
        What was done to the columns, and what the training rows did not know.
    counts
        Rows for training, testing, and without a target.
    scored
        "test" or, without test rows, "train".
    scores, coefficients, intercept
        What was found.
    certificate, attestation, ledger, digest, passes, seconds
        How it was found.
    peer
        The other library's, if it was asked.
    parts
        Predictions.
    warnings
        What was warned of on the way.
    """

    settings: Settings
    source: str
    target: str | None
    notes: tuple[str, ...]
    data_digest: str
    preparation: Preparation
    unknowns: tuple[Unknown, ...]
    counts: Mapping[str, int]
    scored: str
    scores: tuple[Score, ...]
    coefficients: tuple[Coefficient, ...]
    intercept: float | None
    certificate: Certificate
    attestation: Attestation
    ledger: Ledger
    digest: str
    passes: int
    seconds: float
    peer: Peer | None
    parts: tuple[Part, ...]
    warnings: tuple[str, ...]

    @property
    def largest(self) -> float:
        """The largest coefficient."""
        return max((abs(c.value) for c in self.coefficients), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers that are not finite are null."""
        entry, peer = self.settings.entry, self.peer
        return {
            **self.settings.to_dict(),
            "data": {
                "source": self.source,
                "target": self.target,
                "rows": dict(self.counts),
                "features": len(self.preparation.names),
                "notes": list(self.notes),
                "digest": self.data_digest,
            },
            "preparation": self.preparation.report(),
            "unknown_values": [vars(u) for u in self.unknowns],
            "scored_on": self.scored,
            "scores": {s.name: finite(s.ours) for s in self.scores},
            "coefficients": {c.name: finite(c.value) for c in self.coefficients},
            "intercept": None if self.intercept is None else finite(self.intercept),
            "certified_error": finite(self.certificate.error),
            "certificate_terms": {k: finite(v) for k, v in self.certificate.terms.items()},
            "attestation": self.attestation.to_dict(),
            "ledger": self.ledger.to_dict(),
            "passes": self.passes,
            "seconds": self.seconds,
            "digest": self.digest,
            "scikit_learn": None
            if peer is None
            else {
                "class": peer.name,
                "differs": (entry.peer and entry.peer.differs) or None,
                "scores": {s.name: finite(s.peer) for s in self.scores if s.peer is not None},
                "seconds": peer.seconds,
                "coefficient_distance": None if peer.distance is None else finite(peer.distance),
                "prediction_distance": finite(peer.apart),
            },
            "warnings": list(self.warnings),
        }


def finite(value: float) -> float | None:
    """The number, or None where JSON has none."""
    return float(value) if math.isfinite(value) else None
