"""What is proven of a run, what it ran on, and what was computed where."""

from iceform.certificates.certificate import Certificate, Step, Verification

__all__ = ["Certificate", "Step", "Verification"]
