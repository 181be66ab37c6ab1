"""The frozen computer: a language, its compiler, and one block of attention that runs it."""

from iceform.computer.computer import Computer, Execution
from iceform.computer.costs import Cost
from iceform.computer.optimality import certify_minimiser
from iceform.computer.prompt import Prompt
from iceform.computer.rounding import InstructionRounding, instruction_rounding
from iceform.computer.sizes import Sizes
from iceform.computer.watching import ComputerTrace, LayerAttention

__all__ = [
    "Computer",
    "ComputerTrace",
    "Cost",
    "Execution",
    "InstructionRounding",
    "LayerAttention",
    "Prompt",
    "Sizes",
    "certify_minimiser",
    "instruction_rounding",
]
