"""One frozen network that data stream through; data sources, problems, solvers."""

from iceform_estimators.machine.problem import LinearProblem, Scaling
from iceform_estimators.machine.program import MachineProgram
from iceform_estimators.machine.solvers import Solution, minimise
from iceform_estimators.machine.sources import ArraySource, Source
from iceform_estimators.machine.stream import (
    CLIP,
    CLIP_SQUARED,
    IDENTITY,
    Machine,
    MachineRun,
    ScalarTable,
)

__all__ = [
    "CLIP",
    "CLIP_SQUARED",
    "IDENTITY",
    "ArraySource",
    "LinearProblem",
    "Machine",
    "MachineProgram",
    "MachineRun",
    "ScalarTable",
    "Scaling",
    "Solution",
    "Source",
    "minimise",
]
