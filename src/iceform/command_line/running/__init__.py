"""A program of the catalogue on a table: split, prepare, fit, compare, predict.

Everything that can be wrong with the data or the settings is refused before the first pass.
"""

from iceform.command_line.running.comparing import build_peer
from iceform.command_line.running.data import Data
from iceform.command_line.running.fitting import fitted
from iceform.command_line.running.models import Model, build, gamma_of
from iceform.command_line.running.passes import STAGES, Tick, run
from iceform.command_line.running.results import Coefficient, Part, Peer, Run, Score
from iceform.command_line.running.settings import Settings, check_device

__all__ = [
    "STAGES",
    "Coefficient",
    "Data",
    "Model",
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
    "gamma_of",
    "run",
]
