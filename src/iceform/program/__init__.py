"""Programs: nodes, the table of their operations, and what is told of them from it."""

from iceform.program.node import Moved, Node, NodeOperation, SourceLine
from iceform.program.operations import AffineMap, Moving, attention
from iceform.program.range import Range, enclosed, outward, slope
from iceform.program.tape import Tape

__all__ = [
    "AffineMap",
    "Moved",
    "Moving",
    "Node",
    "NodeOperation",
    "Range",
    "SourceLine",
    "Tape",
    "attention",
    "enclosed",
    "outward",
    "slope",
]
