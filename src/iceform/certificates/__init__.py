"""What is proven of a run, what it ran on, and what was computed where."""

from iceform.certificates.attestation import Attestation
from iceform.certificates.certificate import Certificate, Excess, Step, Verification, weakest
from iceform.certificates.ledger import Ledger
from iceform.certificates.result import Result
from iceform.certificates.witness import Witness

__all__ = [
    "Attestation",
    "Certificate",
    "Excess",
    "Ledger",
    "Result",
    "Step",
    "Verification",
    "Witness",
    "weakest",
]
