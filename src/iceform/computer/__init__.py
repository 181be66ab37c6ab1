"""The frozen computer: a language, its compiler, and one block of attention that runs it."""

from iceform.computer.attest import Attestation
from iceform.computer.computer import Computer, Execution
from iceform.computer.costs import Cost
from iceform.computer.integrity import unchecked
from iceform.computer.prompt import Prompt
from iceform.computer.rounding import InstructionRounding, instruction_rounding
from iceform.computer.sizes import Sizes

__all__ = [
    "Attestation",
    "Computer",
    "Cost",
    "Execution",
    "InstructionRounding",
    "Prompt",
    "Sizes",
    "instruction_rounding",
    "unchecked",
]
