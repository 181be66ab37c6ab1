"""One frozen network, two layouts: rows and stream; data sources; what a run returns."""

from iceform_estimators.machine.machine import Given, Machine, Program, Run, Sizes, Target, stored
from iceform_estimators.machine.problem import Coordinates, GramTask, LinearProblem, Scaling
from iceform_estimators.machine.rows import Heads, Rows
from iceform_estimators.machine.solvers import (
    Solution,
    advance,
    begin,
    minimise,
    nesterov,
    whitened_at,
)
from iceform_estimators.machine.sources import ArraySource, Source
from iceform_estimators.machine.stream import CLIP, CLIP_SQUARED, IDENTITY, Running, Stream, Table

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
    "whitened_at",
]
