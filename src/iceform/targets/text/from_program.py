"""A compiled algorithm as a text: ``text_of(program, X, y)``, and the answer read back.

The text holds the data, rounded to words, and the algorithm's loops as loops. What rounding costs
is measured for the run at hand: the same lines are run in ball arithmetic on the exact data and
constants, which encloses the real-valued answer (:class:`TextLoss`). That is a statement about this
run, not a certificate for all data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch

from iceform import tuning
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.computer.graph import Graph, as_column
from iceform.computer.language import Algorithm
from iceform.computer.whole_numbers import check_whole
from iceform.errors import BoundError, CapacityError, ProgramError, ShapeError
from iceform.targets.text.allocating import Allocated, Element, Mark, TextInstruction, allocate
from iceform.targets.text.emitting import TextEmitter
from iceform.targets.text.interpreter import (
    Cell,
    LevelArithmetic,
    TextExecution,
    TextRun,
    check,
    execute,
)
from iceform.targets.text.numbers import NumberFormat
from iceform.targets.text.real_arithmetic import BallArithmetic
from iceform.targets.text.syntax import ProgramText, TextError, parse
from iceform.targets.text.terms import Slot
from iceform.targets.text.words import END, LIBRARY, TextSizes, TextWord


def text_of(
    program: Any, X: Any, y: Any = None, *, sizes: TextSizes = LIBRARY, **parameters: Any
) -> AlgorithmText:
    """An algorithm on data as a text for the machine of these sizes.

    Parameters
    ----------
    program
        What ``ice.compile`` returns, or a function made by ``@ice.algorithm``.
    X, y
        Samples (n, d) and targets (n,).
    sizes
        Of the text machine.
    **parameters
        Of the algorithm; the others have their defaults.

    Raises
    ------
    CapacityError
        If lines, names, arrays, cells or positions do not suffice; with the numbers.
    BoundError
        If a number of the data or of the run is beyond the largest level.

    Examples
    --------
    >>> @ice.algorithm
    ... def product(x, y):
    ...     return ice.mean(x[0] * y)
    >>> text = text_of(product, torch.tensor([[2.0]]), torch.tensor([0.5]))
    >>> text.text.splitlines()[0].startswith("1: ")
    True
    """
    algorithm = getattr(program, "algorithm", program)
    if not isinstance(algorithm, Algorithm):
        raise ProgramError(
            f"text_of takes a compiled program or an @ice.algorithm, got {type(program).__name__}"
        )
    x = as_column(X, vector=True)
    if x.ndim != 2:
        raise ShapeError(f"X has the shape (n, d), got {tuple(x.shape)}")
    targets = algorithm.targets(x, y)
    if targets.shape != x.shape[:1]:
        raise ShapeError(
            f"y has one number a sample: X is {tuple(x.shape)} and y {tuple(targets.shape)}"
        )
    if x.numel() == 0:
        raise ShapeError(f"X has a sample and a feature at least, got the shape {tuple(x.shape)}")
    given = algorithm.values(x.shape[1], parameters)
    for name, values in (("X", x), ("y", targets), *given.items()):
        if not bool(values.isfinite().all()):
            raise BoundError(f"{name} holds a number that is not finite. A text has none for it.")
    if len(x) > sizes.cells:
        raise CapacityError(
            f"{algorithm.name} has {len(x)} samples, one in a cell, and arrays of this machine "
            f"have {sizes.cells} cells. Take fewer samples, or a machine with more cells."
        )
    graph = algorithm.graph(x.shape[1])
    check_whole(graph, given)
    emitter = TextEmitter(graph, x, targets, given, sizes)
    outputs = [s for parts in emitter.outputs.values() for s in parts if isinstance(s, Slot)]
    allocated = allocate(
        emitter.code, outputs, emitter.data, emitter.indices, sizes, algorithm.name
    )
    answers = {
        name: [allocated.merged.get(s, s) if isinstance(s, Slot) else s for s in parts]
        for name, parts in emitter.outputs.items()
    }
    written = _Written(algorithm.name, sizes, allocated, answers)
    meant = algorithm(x, targets, **parameters)
    text = AlgorithmText(graph, sizes, written.text, written.exact, written.places, len(x), meant)
    text.run  # noqa: B018 - refuses what does not fit
    return text


# ------------------------------------------------------------------------------------ writing text


class _Written:
    """Lines with labels and names, and the data, as text and exactly."""

    def __init__(
        self, name: str, sizes: TextSizes, allocated: Allocated,
        answers: dict[str, list[Slot | Fraction]],
    ) -> None:  # fmt: skip
        self.name, self.sizes, self.names = name, sizes, allocated.names
        self.code = _ended(allocated, answers)
        lines = [x for x in self.code if isinstance(x, TextInstruction)]
        if len(lines) > sizes.labels:
            raise CapacityError(
                f"{name} needs {len(lines)} lines, and this machine has {sizes.labels} labels. "
                "Use fewer features, or a machine with more labels."
            )
        self.places = {
            answer: [self.names[s] if isinstance(s, Slot) else s for s in parts]
            for answer, parts in answers.items()
        }
        data = [
            (self.names[slot] if not slot.array else f"{self.names[slot]}[{k}]", value)
            for slot, values in allocated.data.items()
            for k, value in enumerate(values)
        ]
        self.text = "\n".join([*self._lines(), *self._data(data)]) + "\n"
        program = parse(sizes, self.text)
        self.exact = self._exactly(program, lines, dict(data))

    def _lines(self) -> list[str]:
        labels: dict[Mark, int] = {}
        count = 1
        for x in self.code:
            if isinstance(x, Mark):
                labels[x] = count
            else:
                count += 1
        out: list[str] = []
        for x in self.code:
            if isinstance(x, TextInstruction):
                jump = ""
                if x.target is not None:
                    target = labels.get(x.target, "end")
                    jump = f" if {x.test} 0 goto {target}" if x.test else f" goto {target}"
                dst = self._shown(x.dst)
                out.append(f"{len(out) + 1}: {dst} = {self._expression(x)}{jump}")
        return out

    def _expression(self, x: TextInstruction) -> str:
        shown = [self._shown(p) for p in x.operands]
        if x.operation == "copy":
            return shown[0]
        if x.operation in ("+", "-", "*"):
            return f" {x.operation} ".join(shown)
        if len(shown) == 3:
            return f"{shown[0]} {x.operation[2]} {shown[1]} * {shown[2]}"
        return f"{x.operation}({', '.join(shown)})"

    def _shown(self, place: Slot | Element | Fraction) -> str:
        if isinstance(place, Fraction):
            return self._word(place, "the constant")
        if isinstance(place, Slot):
            return self.names[place]
        index = place.index if isinstance(place.index, int) else self.names[place.index]
        return (
            f"{self.names[place.array]}({index})"
            if place.nearest
            else f"{self.names[place.array]}[{index}]"
        )

    def _word(self, value: Fraction, what: str) -> str:
        form = self.sizes.format
        if abs(value) * 2**form.fraction > form.largest:
            raise BoundError(
                f"{what} {float(value):g} of {self.name} is beyond the largest number of this "
                f"machine, {form.word(form.largest)}. Scale the data, or take a higher top."
            )
        return form.nearest(value)

    def _data(self, data: list[tuple[str, Fraction]]) -> list[str]:
        out: list[str] = []
        line = ""
        for name, value in data:
            word = f"{name} = {self._word(value, f'{name} =')}"
            if line and len(line) + 2 + len(word) > tuning.TEXT_COLUMNS:
                out.append(line)
                line = ""
            line += ("  " if line else "") + word
        return [*out, line] if line else out

    def _exactly(
        self, program: ProgramText, lines: list[TextInstruction], data: dict[str, Fraction]
    ) -> ProgramText:
        """The same program with its numbers as they are before they become words."""

        def number(word: TextWord, value: Fraction) -> TextWord:
            units = value * 2**self.sizes.format.fraction
            return replace(word, units=units)

        exact = []
        for line, x in zip(program.lines, lines, strict=True):
            operands = tuple(
                number(word, place) if isinstance(place, Fraction) else word
                for word, place in zip(line.operands, x.operands, strict=True)
            )
            exact.append(replace(line, operands=operands))
        numbers = tuple(
            (dst, number(word, data[dst.text.removesuffix(" =")]), at)
            for dst, word, at in program.data
        )
        return replace(program, lines=tuple(exact), data=numbers)


def _ended(allocated: Allocated, answers: dict[str, list[Slot | Fraction]]) -> list[Any]:
    """Code whose last line goes to the end; a line that shows an answer is added where needed."""
    code = list(allocated.code)
    last = code[-1] if code else None
    if isinstance(last, TextInstruction) and last.target is None:
        last.target = Mark()
        return code
    scalars = [s for parts in answers.values() for s in parts if isinstance(s, Slot)]
    shown = next((s for s in scalars if not s.array), None)
    if shown is None:
        shown = Slot(False)
        allocated.names[shown] = "a"
        end = TextInstruction(shown, "copy", [Fraction(0)])
    else:
        end = TextInstruction(shown, "copy", [shown])
    end.target = Mark()
    return [*code, end]


# ------------------------------------------------------------------------------------------ exactly


_NEVER_LARGER = ("copy", "max", "min", "abs")


class _OverflowLevels(LevelArithmetic):
    """Levels that notice a result beyond the largest one."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__(sizes.format)
        self.saturated: str | None = None

    def compute(self, operation: str, operands: list[int]) -> int:
        """The level nearest to the exact result."""
        value = super().compute(operation, operands)
        total = operation in ("recip", "rsqrt", "log") and operands[0] <= 0  # by definition
        if abs(value) == self.form.largest and not total and operation not in _NEVER_LARGER:
            self.saturated = self.saturated or operation
        return value


@dataclass(frozen=True)
class TextLoss:
    """How far the text's answers are from the real-valued algorithm's, on these data.

    ``distances``: for each answer an upper bound of the largest distance of a component, between
    the run in levels and the exact run (in balls). ``tables``: the largest difference
    between the exact run and the algorithm in float64: what tables in arrays leave out, or float64.

    Examples
    --------
    >>> loss = TextLoss({"value": 0.001}, tables=1e-15)
    >>> loss.worst
    0.001
    >>> print(loss.explain().splitlines()[0])
    value: within 1.00e-03 of the exact run
    """

    distances: Mapping[str, float]
    tables: float

    @property
    def worst(self) -> float:
        """The largest of all."""
        return max(self.distances.values(), default=0.0)

    def explain(self) -> str:
        """As lines of text."""
        lines = [f"{name}: within {d:.2e} of the exact run" for name, d in self.distances.items()]
        return "\n".join(
            [
                *lines,
                f"exact run and algorithm in float64 differ by {self.tables:.1e}",
                "an enclosure for this run and these data, not a certificate for others",
            ]
        )


# ----------------------------------------------------------------------------------------- results


@dataclass(frozen=True, eq=False)
class AlgorithmText:
    """An algorithm on data as a text.

    Attributes
    ----------
    text
        What is typed.
    exact
        The same program with exact numbers.
    places
        For each answer and component the name that holds it at the end, or a number.

    Examples
    --------
    :func:`text_of` makes one. ``run`` is what the interpreter makes of it, ``read`` the answer:

    >>> @ice.algorithm
    ... def slope(x, y):
    ...     return ice.mean(x * y)
    >>> X, y = torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, 0.25])
    >>> text = text_of(slope, X, y)
    >>> text.read(text.run.text)
    tensor([0.5000], dtype=torch.float64)
    """

    graph: Graph
    sizes: TextSizes
    text: str
    exact: ProgramText
    places: Mapping[str, list[str | Fraction]]
    samples: int
    meant: Any  # the algorithm's answer in float64

    def __str__(self) -> str:
        return self.text

    @cached_property
    def run(self) -> TextRun:
        """What the interpreter makes of it; refuses what does not fit."""
        watched = _OverflowLevels(self.sizes)
        program = parse(self.sizes, self.text)
        try:
            run = check(self.sizes, program)
        except TextError as error:
            if "tokens" not in str(error):
                raise
            raise CapacityError(f"{self.graph.name}: {error}") from None
        execute(program, watched)
        if watched.saturated is not None:
            form = self.sizes.format
            raise BoundError(
                f"{self.graph.name} leaves the range of this machine: a result of "
                f"'{watched.saturated}' is beyond {form.word(form.largest)}. Scale the data, or "
                "take a machine with a higher top."
            )
        return run

    @property
    def lines(self) -> int:
        """Lines of the program."""
        return len(self.exact.lines)

    @property
    def tokens(self) -> int:
        """Positions that prompt and run take."""
        return self.run.tokens

    @property
    def answer(self) -> Any:
        """What the interpreter's run answers, in the form that the algorithm returns."""
        return self._packed(lambda cell: float(self.run.value(*cell)))

    def read(self, output: str) -> Any:
        """The answer in what a machine wrote: the run, with or without the text before it.

        Destinations and jumps are followed through the program, so a text that is no run of it, or
        only the beginning of one, is refused. (A pipeline strips the last word, ``[end]``.)
        """
        form = self.sizes.format
        memory = _replayed(parse(self.sizes, self.text), self._run_in(output))
        return self._packed(lambda cell: float(form.value(memory[cell])))

    def _run_in(self, output: str) -> list[str]:
        """The words of a run, without the prompt that may stand before it."""
        words = output.removeprefix(self.text).split()
        if words[:1] in (["1:"], ["<s>"], ["[1]"]) and "[1]" in words:
            words = words[words.index("[1]") + 1 :]
        return words

    @cached_property
    def loss(self) -> TextLoss:
        """What rounding to levels costs in this run."""
        with balls_of(tuning.TEXT_RUN_BITS) as flint:
            memory = execute(self.exact, BallArithmetic(flint, self.sizes))
            distances, middles = {}, {}
            form = self.sizes.format
            for name in self.places:
                off = 0.0
                for cell in self._cells(name):
                    if isinstance(cell, Fraction):
                        continue
                    units = form.value(self.run.memory[cell])
                    level = flint.arb(units.numerator) / units.denominator
                    off = max(off, uppermost(abs(memory[cell] - level)))
                distances[name] = off
            middles = {c: float(v.mid()) for c, v in memory.items()}
        exact = self._packed(lambda cell: middles[cell])
        return TextLoss(distances, _difference(exact, self.meant))

    def explain(self) -> str:
        """Size, answer and loss, as lines of text."""
        where = [
            f"{name} is in {', '.join(p if isinstance(p, str) else str(float(p)) for p in places)}"
            for name, places in self.places.items()
        ]
        return "\n".join(
            [
                f"{self.graph.name}: {self.lines} lines, {self.tokens} of {self.sizes.positions} "
                f"positions, {self.run.steps} instructions executed",
                *where,
                self.loss.explain(),
            ]
        )

    def _cells(self, name: str) -> list[Cell | Fraction]:
        """The cells of an answer, component by component, samples within."""
        node = self.graph.outputs[name]
        out: list[Cell | Fraction] = []
        for place in self.places[name]:
            if isinstance(place, str) and place.isupper():
                out += [(place, k) for k in range(self.samples)]
            else:
                one: Cell | Fraction = (place, None) if isinstance(place, str) else place
                out += [one] * (self.samples if node.samples else 1)
        return out

    def _packed(self, value: Any) -> Any:
        answers = {}
        for name, node in self.graph.outputs.items():
            cells = self._cells(name)
            numbers = [float(c) if isinstance(c, Fraction) else value(c) for c in cells]
            column = torch.tensor(numbers, dtype=torch.float64)
            if node.samples:
                column = column.reshape(-1, self.samples).T
                answers[name] = column[:, 0] if node.width is None else column
            else:
                answers[name] = column[0] if node.width is None else column
        if self.graph.packed == "dict":
            return answers
        return tuple(answers.values()) if self.graph.packed == "tuple" else answers["value"]


class _SaidLevels(LevelArithmetic):
    """Results that are not computed, but read in a run: its third word, its seventh, ..."""

    def __init__(self, form: NumberFormat, words: list[str]) -> None:
        super().__init__(form)
        self.numbers = iter(words[2::4])

    def compute(self, operation: str, operands: list[int]) -> int:
        """The next number; refused where there is none."""
        number = next(self.numbers, "")
        if not self.form.is_word(number):
            raise ProgramError(f"the run says {number!r} where a number belongs: {_NO_RUN}")
        return self.form.units(number)


_NO_RUN = "it is not complete, or not of this program. Generate until [end]."


def _replayed(program: ProgramText, words: list[str]) -> dict[Cell, int]:
    """What memory holds after a run that is given as words; refused if the program runs another."""
    execution = TextExecution(program, _SaidLevels(program.sizes.format, words))
    for count, step in enumerate(execution.steps()):
        line, at = step.line.destination.text, 4 * count
        said, shown = words[at : at + 4], f"[{step.next or 'end'}]"
        meant = [*line.split(), said[2], shown]
        if said != meant and not (step.next == END and said == meant[:3]):
            raise ProgramError(
                f"at word {at + 1} the run says {' '.join(said)!r}, and the program writes "
                f"{' '.join(meant)!r}: {_NO_RUN}"
            )
    return execution.memory


def _difference(one: Any, other: Any) -> float:
    """The largest difference of two answers of one form."""
    if isinstance(one, Mapping):
        return max(_difference(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return max(_difference(a, b) for a, b in zip(one, other, strict=True))
    left, right = torch.as_tensor(one), torch.as_tensor(other)
    return float((left - right).abs().max())
