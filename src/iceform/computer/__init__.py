"""The frozen computer: a language, its compiler, and one block of attention that runs it."""

from iceform.computer.block import LAYERS
from iceform.computer.compile import Program
from iceform.computer.computer import Computer, Execution, accounted
from iceform.computer.costs import Cost
from iceform.computer.explain import curve, spelled
from iceform.computer.instructions import FLAG, Instruction
from iceform.computer.language import Algorithm
from iceform.computer.layout import ComputerSizes
from iceform.computer.literal import ComputerTrace, LayerAttention
from iceform.computer.prompt import ProgramPrompt
from iceform.computer.rounding import InstructionRounding, instruction_rounding
from iceform.computer.running import enclosure_of

__all__ = [
    "FLAG",
    "LAYERS",
    "Algorithm",
    "Computer",
    "ComputerSizes",
    "ComputerTrace",
    "Cost",
    "Execution",
    "Instruction",
    "InstructionRounding",
    "LayerAttention",
    "Program",
    "ProgramPrompt",
    "accounted",
    "curve",
    "enclosure_of",
    "instruction_rounding",
    "spelled",
]
