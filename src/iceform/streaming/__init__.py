"""Data of any length through one frozen layer: prompts, passes, solvers and proofs."""

from iceform.streaming.machine import StreamMachine
from iceform.streaming.sources import ArraySource, Source

__all__ = ["ArraySource", "Source", "StreamMachine"]
