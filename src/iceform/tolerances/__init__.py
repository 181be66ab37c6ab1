"""Proven tolerances: how far a correct kernel may be from the exact result, for given inputs."""

from iceform.tolerances.attention import tolerance
from iceform.tolerances.kind import Kind

__all__ = ["Kind", "tolerance"]
