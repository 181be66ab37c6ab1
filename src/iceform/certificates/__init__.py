"""What is proven of a run, what it ran on, and what was computed where."""

from iceform.certificates.result import (
    Attestation,
    Certificate,
    Enclosure,
    ErrorBound,
    Excess,
    Ledger,
    Result,
    Step,
    Verification,
    weakest,
)
from iceform.certificates.witness import Witness

__all__ = [
    "Attestation",
    "Certificate",
    "Enclosure",
    "ErrorBound",
    "Excess",
    "Ledger",
    "Result",
    "Step",
    "Verification",
    "Witness",
    "weakest",
]
