"""A program in the weights: trace labels carry lines, table tokens carry literals.

The word ``[k]`` starts with the features that the end of line k would have collected, so that the
prompt is data only. A number that stands in a line is held by a table token of the prefix, with the
label of its line and what stands before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import CapacityError
from iceform.targets.text.features import SLOT_BITS, TextFeatures, code
from iceform.targets.text.syntax import ProgramLine, ProgramText
from iceform.targets.text.words import FUNCTIONS, MOST_TABLES, TextSizes, TextWord

# What stands before each operand (0 a write word, 1 or 2 an operator), and the flags of a line.
_SLOTS = {
    "copy": {"b": 0}, "+": {"a": 0, "b": 1}, "-": {"a": 0, "b": 1}, "*": {"a": 0, "b": 2},
    "max": {"a": 1, "b": 2}, "min": {"a": 1, "b": 2},
    "c + a * b": {"c": 0, "a": 1, "b": 2}, "c - a * b": {"c": 0, "a": 1, "b": 2},
}  # fmt: skip
_FLAGS = {
    "copy": ("copy",), "+": ("sum",), "-": ("sum", "negate"), "*": ("times",),
    "max": ("max", "negate"), "min": ("min", "negate"), "c + a * b": ("times", "third"),
    "c - a * b": ("times", "third", "negate"),
}  # fmt: skip


@dataclass(frozen=True)
class _Literal:
    label: int
    slot: int
    units: int


def _operands(line: ProgramLine) -> Iterator[tuple[str, int, TextWord]]:
    """Each operand's letter, what stands before it, and its word."""
    slots = _SLOTS.get(line.operation, {"b": 1})
    for (letter, slot), word in zip(slots.items(), line.operands, strict=True):
        yield letter, slot, word


def _literals(program: ProgramText) -> list[_Literal]:
    return [
        _Literal(line.label, slot, word.units)
        for line in program.lines
        for _, slot, word in _operands(line)
        if word.units is not None
    ]


def sizes_with(program: ProgramText) -> TextSizes:
    """The sizes, with a table token for every literal of the program."""
    count = len(_literals(program))
    if count > MOST_TABLES:
        raise CapacityError(
            f"the program has {count} numbers in its lines; in the weights at most {MOST_TABLES} "
            "fit. Give some of them as data."
        )
    return replace(program.sizes, tables=max(program.sizes.tables, count))


def carried(features: TextFeatures, program: ProgramText) -> Float[Tensor, "ids f"]:
    """The features of all words, with the program in those of ``[1]``, ... and the table."""
    out, sizes = features.word_features(), features.sizes

    def put(word: str, **values: Tensor | float) -> None:
        for name, value in values.items():
            held = torch.as_tensor(value, dtype=torch.float64)
            out[sizes.ids[word], features.all[name]] = held

    for line in program.lines:
        put(f"[{line.label}]", **_line_features(features, line))
    for row, literal in enumerate(_literals(program)):
        number = features.of_numbers(np.array([literal.units]))
        put(f"<{row}>", **number)
        put(f"<{row}>", **{"line.label": code(literal.label, features.label_bits),
                           "before": code(literal.slot, SLOT_BITS)})  # fmt: skip
    return out


def _line_features(features: TextFeatures, line: ProgramLine) -> dict[str, Tensor | float]:
    label = features.of_word(TextWord(f"{line.label}:", "label", label=line.label))
    found = {"line.label": label["word.label"], "line.next": label["word.next"]}
    found |= features.of_word(line.end)
    found |= _address(features, "d", line.destination)
    for letter, slot, word in _operands(line):
        if word.units is None:
            found |= _address(features, letter, word)
        else:
            found |= {f"line.{letter}.literal": 1.0,
                      f"line.{letter}.uses": code(0, features.index_bits)}  # fmt: skip
        if letter != "c":
            found[f"line.{letter}.slot"] = code(slot, SLOT_BITS)
    if line.operation in FUNCTIONS:
        which = FUNCTIONS.index(line.operation)
        found["line.function"] = torch.eye(len(FUNCTIONS)).double()[which]
    return found | {f"line.{flag}": 1.0 for flag in _FLAGS.get(line.operation, ())}


def _address(features: TextFeatures, letter: str, word: TextWord) -> dict[str, Tensor | float]:
    held = features.of_word(word)
    return {f"line.{letter}.{part}": held[part] for part in features.address if part in held}
