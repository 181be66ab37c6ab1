"""What is proven of a run, what it ran on, and what was computed where."""

from iceform.certificates.result import (
    Attestation,
    Certificate,
    DerivationStep,
    Enclosure,
    ErrorBound,
    Excess,
    Ledger,
    Result,
    Verification,
    in_form,
    weakest,
)
from iceform.certificates.witness import RecordingBackend

__all__ = [
    "Attestation",
    "Certificate",
    "DerivationStep",
    "Enclosure",
    "ErrorBound",
    "Excess",
    "Ledger",
    "RecordingBackend",
    "Result",
    "Verification",
    "in_form",
    "weakest",
]
