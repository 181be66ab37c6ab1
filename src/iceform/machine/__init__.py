"""One frozen network, two layouts: rows and stream; data sources; what a run returns."""

from iceform.machine.machine import Machine
from iceform.machine.program import Program, Sizes, Target
from iceform.machine.rows import Heads, Rows
from iceform.machine.running import Run, Running
from iceform.machine.sources import ArraySource, Source
from iceform.machine.stream import Stream

__all__ = [
    "ArraySource",
    "Heads",
    "Machine",
    "Program",
    "Rows",
    "Run",
    "Running",
    "Sizes",
    "Source",
    "Stream",
    "Target",
]
