r"""What a text does, exactly: the reference for what the network writes.

Numbers are Python integers, in units of :math:`2^{-fraction}`. Every result is the level nearest to
the exact one; a tie goes up, and beyond the largest level it saturates. Sums, products, quotients
and roots are compared as fractions of integers; :math:`e^x` and its relatives are enclosed by balls
(python-flint) with more and more bits until both ends round to one level. They do: at a rational
argument other than 0 (1 for the logarithm) these functions are irrational, and no tie is.

Partial functions are total: ``recip(0)`` and ``rsqrt(a)`` for a <= 0 are the largest level,
``log(a)`` for a <= 0 is minus that, ``sqrt(a)`` for a < 0 is 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import isqrt
from typing import Any, Generic, Protocol, TypeVar

from iceform import tuning
from iceform.arithmetic.balls import balls_of, exact_end, function_of_ball
from iceform.errors import ProgramError
from iceform.targets.text.numbers import NumberFormat
from iceform.targets.text.syntax import ProgramLine, ProgramText, TextError, parse
from iceform.targets.text.words import END, FUNCTIONS, TextSizes, TextWord

V = TypeVar("V")
Cell = tuple[str, int | None]  # a scalar's name and None, or an array's and the number of a cell

STEP_TOKENS = len(("destination", "number", "next label"))  # of an instruction in a trace


# --------------------------------------------------------------------------------------- functions


def rounded_function(form: NumberFormat, name: str, units: int) -> int:
    """A function of one operand at a level, as a level: correctly rounded, in units."""
    return _rounded(form, name, units)


def is_rounded_function(flint: Any, form: NumberFormat, name: str, units: int, said: int) -> bool:
    """Whether a level is a function's at another, in units; balls decide it where they can.

    A level is the nearest where the exact value is not below half way to the level below it, and is
    below half way to the one above. This needs no rounding, so it is several times faster.
    """
    if name in _RATIONAL or units == 0 or (name == "log" and units <= 1 << form.fraction):
        return rounded_function(form, name, units) == said
    if not form.is_level(said) or abs(said) == form.largest:
        return rounded_function(form, name, units) == said
    above = form.gap(said) if said >= 0 else form.gap(-said - 1)
    below = form.gap(-said) if said <= 0 else form.gap(said - 1)
    twice = function_of_ball(name, flint.arb(units) / (1 << form.fraction)) * (2 << form.fraction)
    if twice >= 2 * said - below and twice < 2 * said + above:
        return True
    return rounded_function(form, name, units) == said


@lru_cache(maxsize=2**18)
def _rounded(form: NumberFormat, name: str, units: int) -> int:
    rule = _RATIONAL.get(name, partial(_irrational, name=name))
    return form.rounded(rule(form, units))


def _step(form: NumberFormat, units: int) -> int:
    return 1 << form.fraction if units > 0 else 0


def _floor(form: NumberFormat, units: int) -> int:
    return units >> form.fraction << form.fraction


def _recip(form: NumberFormat, units: int) -> Fraction | int:
    return Fraction(1 << 2 * form.fraction, units) if units else form.largest


def _sqrt(form: NumberFormat, units: int) -> Fraction:
    return _root(max(0, units) << form.fraction, 1)


def _rsqrt(form: NumberFormat, units: int) -> Fraction | int:
    return _root(1 << 3 * form.fraction, units) if units > 0 else form.largest


def _root(numerator: int, denominator: int) -> Fraction:
    """What rounds as the root of a fraction of units does.

    Boundaries of rounding are multiples of 1/2, so half units decide, and one bit that says whether
    the root is larger than so many of them.
    """
    halves = isqrt(4 * numerator // denominator)
    exact = halves * halves * denominator == 4 * numerator
    return Fraction(2 * halves + (not exact), 4)


_RATIONAL: dict[str, Callable[[NumberFormat, int], Fraction | int]] = {
    "abs": lambda form, units: abs(units),
    "step": _step,
    "floor": _floor,
    "recip": _recip,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
}
_AT_ZERO: dict[str, Fraction | int] = {
    "exp": 1,
    "cos": 1,
    "sin": 0,
    "tanh": 0,
    "sigmoid": Fraction(1, 2),
}


def _irrational(form: NumberFormat, units: int, name: str) -> Fraction | int:
    """The level nearest to e^x or a relative of it."""
    one = 1 << form.fraction
    if name == "log" and units <= 0:
        return -form.largest
    if units == 0:
        return _AT_ZERO[name] * one
    if name == "log" and units == one:
        return 0
    bits = tuning.TEXT_BITS
    while True:
        with balls_of(bits) as flint:
            value = function_of_ball(name, flint.arb(units) / one) * one
            if value > form.largest:  # however large: its digits are not asked for
                return form.largest
            if 4 * abs(value) < 1:
                return 0
            ends = (value.lower(), value.upper()) if value.is_finite() else ()
            levels = {form.rounded(exact_end(end)) for end in ends}
        if len(levels) == 1:
            return levels.pop()
        bits *= 2


# ------------------------------------------------------------------------------------ one execution


class TextArithmetic(Protocol[V]):
    """What a text is run in: levels, or balls."""

    def number(self, word: TextWord) -> V:
        """The value of a number word."""

    def compute(self, operation: str, operands: list[V]) -> V:
        """The result of a line's operation."""

    def holds(self, test: str, value: V, line: ProgramLine) -> bool:
        """Whether a value passes a test against 0."""

    def index(self, value: V) -> int | None:
        """A whole number that a value is, or None."""

    def nearest(self, value: V) -> int:
        """The whole number nearest to a value; a tie goes up."""


class LevelArithmetic:
    """Results as levels, in units."""

    def __init__(self, form: NumberFormat) -> None:
        self.form = form
        self.one = 1 << form.fraction

    def number(self, word: TextWord) -> int:
        """The level of a number word."""
        assert word.units is not None
        return word.units

    def compute(self, operation: str, operands: list[int]) -> int:
        """The level nearest to the exact result."""
        if operation in FUNCTIONS:
            return _rounded(self.form, operation, operands[0])
        return self.form.rounded(_OPERATIONS[operation](self.one, *operands))

    def holds(self, test: str, value: int, line: ProgramLine) -> bool:
        """Whether a level passes a test against 0."""
        return _COMPARE[test](value, 0)

    def index(self, value: int) -> int | None:
        """The whole number that a level is, or None."""
        whole, rest = divmod(value, self.one)
        return None if rest else whole

    def nearest(self, value: int) -> int:
        """The whole number nearest to a level; a tie goes up."""
        return (2 * value + self.one) // (2 * self.one)


_OPERATIONS: dict[str, Callable[..., Fraction | int]] = {  # of one in units, and the operands
    "copy": lambda one, a: a,
    "+": lambda one, a, b: a + b,
    "-": lambda one, a, b: a - b,
    "*": lambda one, a, b: Fraction(a * b, one),
    "max": lambda one, a, b: max(a, b),
    "min": lambda one, a, b: min(a, b),
    "c + a * b": lambda one, c, a, b: Fraction(c * one + a * b, one),
    "c - a * b": lambda one, c, a, b: Fraction(c * one - a * b, one),
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True)
class ExecutedInstruction(Generic[V]):
    """One instruction that has been executed: its line, where the result went, and what it was."""

    line: ProgramLine
    cell: Cell
    value: V
    next: int  # the label of the next instruction, END at the end


class TextExecution(Generic[V]):
    """Memory, and one instruction after another."""

    def __init__(self, program: ProgramText, arithmetic: TextArithmetic[V]) -> None:
        self.program, self.arithmetic = program, arithmetic
        self.memory: dict[Cell, V] = {}
        for destination, number, line in program.data:
            self.memory[self.cell(destination, line)] = arithmetic.number(number)

    def cell(self, word: TextWord, line: int) -> Cell:
        """The cell that a word names now."""
        assert word.name is not None
        if word.index is None:
            return word.name, word.cell
        value = self.read(self.program.sizes.words[self.program.sizes.ids[word.index]], line)
        last = self.program.sizes.cells - 1
        if word.nearest:
            return word.name, min(max(0, self.arithmetic.nearest(value)), last)
        at = self.arithmetic.index(value)
        if at is None or not 0 <= at <= last:
            form = self.program.sizes.format
            shown = form.word(value) if isinstance(value, int) else value
            raise TextError(
                line,
                word.text,
                f"{word.index} is {shown} when this line runs, and {word.name} has cells 0 to "
                f"{last}. Keep {word.index} in this range.",
            )
        return word.name, at

    def read(self, word: TextWord, line: int) -> V:
        """The value of an operand."""
        if word.kind == "number":
            return self.arithmetic.number(word)
        cell = self.cell(word, line)
        if cell not in self.memory:
            raise TextError(line, word.text, self._unwritten(word, cell))
        return self.memory[cell]

    def _unwritten(self, word: TextWord, cell: Cell) -> str:
        name = cell[0] if cell[1] is None else f"{cell[0]}[{cell[1]}]"
        if word.nearest:
            return (
                f"the table {word.name} has no value at {cell[1]}, the cell nearest to "
                f"{word.index} when this line runs. Give it more values, "
                f"'{word.name} = [0, 1, ...]', or keep {word.index} among those that it has."
            )
        where = f" ({word.index} is {cell[1]})" if word.index is not None else ""
        return (
            f"{name} is read{where} before anything is written to it. Give it a value in the "
            f"data, '{name} = 0', or on an earlier line."
        )

    def steps(self) -> Iterator[ExecutedInstruction[V]]:
        """Instruction after instruction until the end."""
        label = 1
        while label != END:
            line = self.program.lines[label - 1]
            values = [self.read(word, line.line) for word in line.operands]
            cell = self.cell(line.destination, line.line)
            value = self.arithmetic.compute(line.operation, values)
            self.memory[cell] = value
            label = following(line, self.arithmetic, value)
            yield ExecutedInstruction(line, cell, value, label)


def following(line: ProgramLine, arithmetic: TextArithmetic[V], value: V) -> int:
    """The label of the next instruction after one whose result is ``value``."""
    end = line.end
    if end.kind == "line":
        return line.label + 1
    assert end.label is not None
    if end.kind == "goto":
        return end.label
    assert end.test is not None
    return end.label if arithmetic.holds(end.test, value, line) else line.label + 1


def execute(
    program: ProgramText, arithmetic: TextArithmetic[V], most_steps: int = tuning.TEXT_STEPS
) -> dict[Cell, V]:
    """Run to the end in some arithmetic; what memory holds then."""
    execution = TextExecution(program, arithmetic)
    for count, step in enumerate(execution.steps(), start=1):
        if count == most_steps and step.next != END:
            raise ProgramError(
                f"the program did not end within {most_steps} instructions. Look at its loops."
            )
    return execution.memory


# ------------------------------------------------------------------------------------------- users


@dataclass(frozen=True)
class TextRun:
    r"""What follows a text: its words, and what memory holds at the end (in units).

    Examples
    --------
    >>> run = check(TextSizes(), "1: s = a * a goto end\na = 1.5")
    >>> run.text, run.steps
    ('s = 2.25 [end]', 1)
    >>> float(run.value("s"))
    2.25
    """

    program: ProgramText
    words: tuple[str, ...]
    memory: dict[Cell, int]

    @property
    def text(self) -> str:
        """The words as the tokenizer decodes them."""
        return " ".join(self.words)

    @property
    def steps(self) -> int:
        """Instructions executed."""
        return len(self.words) // STEP_TOKENS

    @property
    def tokens(self) -> int:
        """Positions that text and run take together."""
        return self.program.prompt_tokens + len(self.words)

    def value(self, name: str, cell: int | None = None) -> Fraction:
        """A scalar, or a cell of an array, at the end."""
        if (name, cell) not in self.memory:
            shown = name if cell is None else f"{name}[{cell}]"
            raise ProgramError(f"nothing was written to {shown} in this run.")
        return self.program.sizes.format.value(self.memory[name, cell])


def check(sizes: TextSizes, text: str | ProgramText) -> TextRun:
    r"""Run a text, or refuse it: what is wrong, in which line, at which word, and the remedy.

    Parameters
    ----------
    sizes
        Of the machine.
    text
        A program with its data.

    Raises
    ------
    TextError
        If the text is no program, reads what was not written, leaves an array or does not fit the
        positions.

    Examples
    --------
    >>> check(TextSizes(), "1: n = n - 1 if > 0 goto 1\n2: s = n goto end\nn = 2").text
    'n = 1 [1] n = 0 [2] s = 0 [end]'
    """
    program = text if isinstance(text, ProgramText) else parse(sizes, text)
    form, room = sizes.format, sizes.positions - program.prompt_tokens
    execution = TextExecution(program, LevelArithmetic(form))
    words: list[str] = []
    for step in execution.steps():
        target = "end" if step.next == END else step.next
        words += (step.line.destination.text, form.word(step.value), f"[{target}]")
        is_last = step.next == END or len(words) >= STEP_TOKENS * tuning.TEXT_STEPS
        if len(words) > room and is_last:
            more = "" if step.next == END else "more than "
            raise TextError(
                step.line.line,
                f"{step.line.label}:",
                f"the run needs {more}{len(words)} tokens, and after the prompt's "
                f"{program.prompt_tokens} there are {max(0, room)} of {sizes.positions} positions. "
                "Make fewer turns, or take a machine with more positions.",
            )
    return TextRun(program, tuple(words), execution.memory)


def interpret(sizes: TextSizes, text: str) -> list[str]:
    r"""The words that follow a text, after the ``[1]`` that the tokenizer puts at its end.

    Examples
    --------
    >>> interpret(TextSizes(), "1: s = max(a, 3) goto end\na = 1.5")
    ['s =', '3', '[end]']
    """
    return list(check(sizes, text).words)
