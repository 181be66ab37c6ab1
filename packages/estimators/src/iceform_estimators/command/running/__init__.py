"""An algorithm on a table: split, prepare, fit, compare, predict.

Everything that can be wrong with the data or the settings is refused before the first pass.
"""

from iceform_estimators.command.running.data import Data, build
from iceform_estimators.command.running.passes import STAGES, Tick, build_peer, fitted, run
from iceform_estimators.command.running.results import (
    Coefficient,
    Part,
    Peer,
    Run,
    Score,
    Settings,
    check_device,
)

__all__ = [
    "STAGES",
    "Coefficient",
    "Data",
    "Part",
    "Peer",
    "Run",
    "Score",
    "Settings",
    "Tick",
    "build",
    "build_peer",
    "check_device",
    "fitted",
    "run",
]
