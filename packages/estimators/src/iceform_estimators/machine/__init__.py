"""One frozen network that data stream through; data sources, problems, solvers."""

from iceform_estimators.machine.problem import Coordinates, LinearProblem, Scaling, gram_of
from iceform_estimators.machine.program import MachineProgram, RunData, stored
from iceform_estimators.machine.solvers import (
    Solution,
    advance,
    begin,
    minimise,
    nesterov,
    whitened_at,
)
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
    "Coordinates",
    "LinearProblem",
    "Machine",
    "MachineProgram",
    "MachineRun",
    "RunData",
    "ScalarTable",
    "Scaling",
    "Solution",
    "Source",
    "advance",
    "begin",
    "gram_of",
    "minimise",
    "nesterov",
    "stored",
    "whitened_at",
]
