"""One frozen network, two layouts: rows and stream; data sources; what a run returns."""

from iceform.machine.machine import Machine
from iceform.machine.problem import Coordinates, GramTask, LinearProblem
from iceform.machine.program import Program, Sizes, Target
from iceform.machine.rows import Heads, Rows
from iceform.machine.running import Run, Running
from iceform.machine.scaling import Scaling
from iceform.machine.solvers import Solution, advance, begin, minimise, nesterov
from iceform.machine.sources import ArraySource, Source
from iceform.machine.stream import Stream
from iceform.machine.tables import CLIP, CLIP_SQUARED, IDENTITY, Table
from iceform.machine.verifying import Given, stored, verifiable

__all__ = [
    "CLIP",
    "CLIP_SQUARED",
    "IDENTITY",
    "ArraySource",
    "Coordinates",
    "Given",
    "GramTask",
    "Heads",
    "LinearProblem",
    "Machine",
    "Program",
    "Rows",
    "Run",
    "Running",
    "Scaling",
    "Sizes",
    "Solution",
    "Source",
    "Stream",
    "Table",
    "Target",
    "advance",
    "begin",
    "minimise",
    "nesterov",
    "stored",
    "verifiable",
]
