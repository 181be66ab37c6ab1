"""A stock GPT-2 whose prompt is the text of a program and whose continuation is its run."""

from iceform.targets.text.from_program import AlgorithmText, TextLoss, text_of
from iceform.targets.text.interpreter import TextRun, check, interpret
from iceform.targets.text.library import TEXTS
from iceform.targets.text.machine import TextComputer
from iceform.targets.text.numbers import NumberFormat
from iceform.targets.text.syntax import TextError, parse
from iceform.targets.text.words import FUNCTIONS, LIBRARY, PAIRS, TESTS, TextSizes

__all__ = [
    "FUNCTIONS",
    "LIBRARY",
    "PAIRS",
    "TESTS",
    "TEXTS",
    "AlgorithmText",
    "NumberFormat",
    "TextComputer",
    "TextError",
    "TextLoss",
    "TextRun",
    "TextSizes",
    "check",
    "interpret",
    "parse",
    "text_of",
]
