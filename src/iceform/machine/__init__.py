"""One frozen network, two layouts: rows and stream; data sources; what a run returns."""

from iceform.machine.program import Program, Result, Sizes, Target
from iceform.machine.rows import Machine
from iceform.machine.sources import ArraySource, Source
from iceform.machine.stream import Running, StreamMachine

__all__ = [
    "ArraySource",
    "Machine",
    "Program",
    "Result",
    "Running",
    "Sizes",
    "Source",
    "StreamMachine",
    "Target",
]
