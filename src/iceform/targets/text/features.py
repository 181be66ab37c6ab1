r"""What a token of the text machine holds: named features, and those that each word starts with.

Names of labels, variables, indices and cells are codes of bits +-1. A number word holds its value
over 2^top, its sign, the bits of its magnitude (one feature a bit for positive numbers, one for
negative ones), the code of the cell that it addresses (of the nearest whole number), and the value
of every function of one operand at it.

**Rounding.** A result is a multiple of a *granule*. In segment j, whose levels are :math:`2^j`
units apart, a granule is at least so many steps: of a sum :math:`2^{-j}`, of a product
:math:`2^{-\text{bits}}` (:math:`2^{-\text{fraction}}` for j = 0), of c + a b
:math:`2^{-\text{fraction} - j}`. All boundaries lie half a granule below the ties, so that ties go
up and every result keeps its distance from them. Heads compare the result with each boundary: first
with those between segments, then, in steps, with those between the values of each digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iceform.heads import Features
from iceform.targets.text.numbers import NumberFormat
from iceform.targets.text.words import FUNCTIONS, TextSizes, TextWord

PERIODS = 16  # ratio of the periods of positions
_DIGIT = 4  # bits that are compared at once
_SLOTS = {
    "+": 1,
    "-": 1,
    "*": 2,
    ",": 2,
}  # what stands before a literal; functions 1, write words 0
SLOT_BITS = max(_SLOTS.values()).bit_length()
OPERANDS = ("a", "b", "c")


def code(number: int, bits: int) -> Float[Tensor, "bits"]:
    """The bits of a number, lowest first, as +-1."""
    return torch.tensor([1.0 if number >> j & 1 else -1.0 for j in range(bits)]).double()


@dataclass(frozen=True)
class TextFeatures:
    """The features of the machine of these sizes, and of each of its words."""

    sizes: TextSizes

    @property
    def format(self) -> NumberFormat:
        """Of the numbers."""
        return self.sizes.format

    # ------------------------------------------------------------------------------- codes

    @property
    def label_bits(self) -> int:
        """0 is ``end``."""
        return self.sizes.labels.bit_length()

    @property
    def name_bits(self) -> int:
        """Scalars, then arrays."""
        return max(1, (self.sizes.scalars + self.sizes.arrays - 1).bit_length())

    @property
    def index_bits(self) -> int:
        """Of a scalar that addresses a cell; 0 is none."""
        return self.sizes.scalars.bit_length()

    @property
    def cell_bits(self) -> int:
        """Of a cell; a scalar is in cell 0."""
        return max(1, (self.sizes.cells - 1).bit_length())

    @property
    def value_bits(self) -> int:
        """Of a number's magnitude, from 2^-fraction up."""
        return self.format.fraction + self.format.top

    @property
    def segments(self) -> int:
        """Of one sign: uniform steps, then one a binade."""
        return self.format.coarsest + 1

    @cached_property
    def digits(self) -> tuple[int, ...]:
        """Bits of each digit of M + 2^bits, highest first."""
        most, left = _DIGIT, self.format.bits + 1
        count = -(-left // most)
        return tuple(left // count + (i < left % count) for i in range(count))

    @cached_property
    def names(self) -> dict[str, int]:
        """The number of each scalar and array."""
        return {n: k for k, n in enumerate((*self.sizes.scalar_names, *self.sizes.array_names))}

    @cached_property
    def index_numbers(self) -> dict[str | None, int]:
        """The number of each scalar as an index."""
        return {None: 0, **{n: k for k, n in enumerate(self.sizes.scalar_names, 1)}}

    @property
    def operands(self) -> tuple[str, ...]:
        """Those that a line can have."""
        return OPERANDS if self.sizes.third_operand else OPERANDS[:2]

    @property
    def periods(self) -> tuple[int, ...]:
        """Of the angles of positions."""
        count = max(1, math.ceil(math.log(self.sizes.positions, PERIODS)))
        return tuple(PERIODS ** (k + 1) for k in range(count))

    @property
    def span(self) -> float:
        """A power of two of at least all positions."""
        return _power(self.sizes.positions)

    # ---------------------------------------------------------------------------- features

    @cached_property
    def address(self) -> dict[str, int]:
        """What names an operand."""
        return {"name": self.name_bits, "uses": self.index_bits, "cell": self.cell_bits}

    @cached_property
    def line(self) -> dict[str, int]:
        """What the end of a line knows of it."""
        out = {"label": self.label_bits, "next": self.label_bits}
        out |= {f"d.{part}": n for part, n in self.address.items()}
        for operand in self.operands:
            out |= {f"{operand}.{part}": n for part, n in self.address.items()}
            out[f"{operand}.literal"] = 1
        out |= {"a.slot": SLOT_BITS, "b.slot": SLOT_BITS}
        out |= dict.fromkeys(("sum", "negate", "times", "copy", "max", "min"), 1)
        out["function"] = len(FUNCTIONS)
        return out | ({"third": 1} if self.sizes.third_operand else {})

    @cached_property
    def all(self) -> Features:
        """Every feature, in order."""
        label = self.label_bits
        sizes = {
            "one": 1, "start": 1,
            **({} if self.sizes.is_rotary else {"recent": 1, "angle": 2 * len(self.periods)}),
            # of words
            "word.label": label, "word.next": label, "is_label": 1, "is_trace": 1,
            "is_write": 1, "is_number": 1, "is_end": 1,
            "jump": label, "test": 1, "or_zero": 1, "always": 1,
            **self.address, "is_index": self.index_bits, "slot": SLOT_BITS,
            "plus": 1, "minus": 1, "star": 1, "word.max": 1, "word.min": 1,
            "word.function": len(FUNCTIONS),
            # of numbers
            "value": 1, "sign": 1, "positive": self.value_bits, "negative": self.value_bits,
            "place": self.cell_bits, "at": len(FUNCTIONS),
            # what a line knows of itself; what a trace knows of the line that it runs
            **{f"line.{part}": n for part, n in self.line.items()},
            **{f"run.{part}": n for part, n in self.line.items() if part != "label"},
            # what a number knows of where it was written
            "into.name": self.name_bits, "into.index": self.index_bits, "into.cell": self.cell_bits,
            "into.written": 1, "into.line": 1, "before": SLOT_BITS,
            # what a trace token knows of the run
            "label1": label, "label2": label, "branch": label,
            "second": 1, "larger": 1, "result": 1, "rest": 1,
            "exponent": self.segments,
            **{f"digit{d}": 2**bits - 1 for d, bits in enumerate(self.digits)},
        }  # fmt: skip
        return Features.of(**sizes)

    # ------------------------------------------------------------------------- rounding

    def shift(self, segment: int) -> float:
        """By how much boundaries of a segment lie below ties, in steps: half the least granule."""
        f = self.format
        if self.sizes.third_operand:
            return 2.0 ** -(f.fraction + segment + 1)
        return 2.0 ** -(max(segment, f.bits if segment else f.fraction) + 1)

    @property
    def least_shift(self) -> float:
        """Of all segments."""
        return min(self.shift(j) for j in range(self.segments))

    def edge(self, segment: int, sign: int) -> float:
        """Where a segment ends, for results of this sign, in units: at a tie, less the shift."""
        half = 2.0**self.format.bits - 0.5
        return (sign * half - self.shift(segment)) * 2.0**segment

    def digit_width(self, digit: int) -> float:
        """What one more in a digit is worth, in steps."""
        return 2.0 ** sum(self.digits[digit + 1 :])

    def digit_edges(self, digit: int) -> list[tuple[float, int]]:
        """Boundaries of a digit in steps, and whether it counts what is above (1) or below (-1).

        The first digit counts from 0 in both directions, so that what remains of a number of any
        sign is between -1/2 and one less than the digit's width.
        """
        width, count = self.digit_width(digit), 2 ** self.digits[digit]
        if digit:
            return [(j * width - 0.5, 1) for j in range(1, count)]
        middle = count // 2
        return [((j - middle) * width - 0.5, 1 if j > middle else -1) for j in range(1, count)]

    def level_codes(self, units: np.ndarray) -> dict[str, Float[Tensor, "n c"]]:
        """What the comparisons say of levels (1 or 0 each): ``exponent``, ``digit0``, ..."""
        lengths = np.frexp(np.abs(units).astype(float))[1]  # as int.bit_length
        segment = np.maximum(0, lengths - self.format.bits)
        codes = {"exponent": np.arange(self.segments) < segment[:, None]}
        left = (units >> segment).astype(float)
        for d in range(len(self.digits)):
            edges, sides = (np.array(part) for part in zip(*self.digit_edges(d), strict=True))
            passed = (left[:, None] - edges) * sides > 0
            left = left - passed @ sides * self.digit_width(d)
            codes[f"digit{d}"] = passed
        return {name: torch.from_numpy(passed).double() for name, passed in codes.items()}

    # ---------------------------------------------------------------------------- tokens

    def word_features(self) -> Float[Tensor, "ids f"]:
        """The embedding: one row of features a word."""
        table = _Table(self.all, len(self.sizes.words))
        for token, word in enumerate(self.sizes.words):
            if word.kind != "number":
                table.put(token, one=1.0, **self.of_word(word))
        self._numbers(table)
        return table.rows

    def of_word(self, word: TextWord) -> dict[str, Tensor | float]:
        """The features of a word that is no number."""
        found: dict[str, Tensor | float] = getattr(self, f"_{word.kind}")(word)
        return found

    def _start(self, _: TextWord) -> dict[str, Tensor | float]:
        """Where heads look that find nothing; written as the index of what uses none."""
        return {"start": 1.0, "into.written": 1.0, "into.index": code(0, self.index_bits)}

    def _table(self, _: TextWord) -> dict[str, Tensor | float]:
        """Nothing, unless a program is in the weights."""
        return {}

    def _label(self, word: TextWord) -> dict[str, Tensor | float]:
        assert word.label is not None
        after = (word.label + 1) % 2**self.label_bits
        return {"is_label": 1.0, "word.label": code(word.label, self.label_bits),
                "word.next": code(after, self.label_bits)}  # fmt: skip

    def _trace(self, word: TextWord) -> dict[str, Tensor | float]:
        assert word.label is not None
        return {"is_trace": 1.0, "word.label": code(word.label, self.label_bits)}

    def _line(self, _: TextWord) -> dict[str, Tensor | float]:
        return {"is_end": 1.0, "always": -1.0}

    def _goto(self, word: TextWord) -> dict[str, Tensor | float]:
        assert word.label is not None
        return {"is_end": 1.0, "always": 1.0, "jump": code(word.label, self.label_bits)}

    def _test(self, word: TextWord) -> dict[str, Tensor | float]:
        assert word.label is not None
        assert word.test is not None
        return {"is_end": 1.0, "jump": code(word.label, self.label_bits),
                "test": 1.0 if ">" in word.test else -1.0,
                "or_zero": 1.0 if "=" in word.test else -1.0}  # fmt: skip

    def _operand(self, word: TextWord) -> dict[str, Tensor | float]:
        assert word.name is not None
        out: dict[str, Tensor | float] = {
            "name": code(self.names[word.name], self.name_bits),
            "uses": code(self.index_numbers[word.index], self.index_bits),
        }
        if word.index is None:
            out["cell"] = code(word.cell or 0, self.cell_bits)
        return out

    def _write(self, word: TextWord) -> dict[str, Tensor | float]:
        out = self._operand(word) | {"is_write": 1.0, "slot": code(0, SLOT_BITS)}
        number = self.index_numbers.get(word.name) if word.name else None
        return out | ({"is_index": code(number, self.index_bits)} if number else {})

    def _operator(self, word: TextWord) -> dict[str, Tensor | float]:
        assert word.name is not None
        flags: dict[str, Tensor | float] = {
            flag: 1.0
            for flag, sign in (("plus", "+"), ("minus", "-"), ("star", "*"))
            if sign == word.name
        }
        return flags | {"slot": code(_SLOTS[word.name], SLOT_BITS)}

    def _function(self, word: TextWord) -> dict[str, Tensor | float]:
        slot: dict[str, Tensor | float] = {"slot": code(1, SLOT_BITS)}
        if word.name in FUNCTIONS:
            which = FUNCTIONS.index(word.name)
            return slot | {"word.function": torch.eye(len(FUNCTIONS)).double()[which]}
        return slot | {f"word.{word.name}": 1.0}

    def _numbers(self, table: _Table) -> None:
        """All number words at once."""
        words = self.sizes.words
        tokens = [t for t, word in enumerate(words) if word.kind == "number"]
        units = np.array([words[t].units for t in tokens])
        table.put(tokens, **self.of_numbers(units))

    def of_numbers(self, units: np.ndarray) -> dict[str, Tensor | float]:
        """The features of the number words of these levels, one row a level."""
        f = self.format
        values = units / 2.0**f.fraction
        bits = (np.abs(units)[:, None] >> np.arange(self.value_bits)) & 1
        cells = np.floor(values + 0.5).clip(0, self.sizes.cells - 1).astype(int)
        place = 2.0 * ((cells[:, None] >> np.arange(self.cell_bits)) & 1) - 1
        at = np.stack([function_values(f, name, values) for name in FUNCTIONS], 1)
        return {
            "one": 1.0, "is_number": 1.0, "uses": code(0, self.index_bits),
            "place": torch.from_numpy(place),
            "value": torch.from_numpy(values / 2.0**f.top)[:, None],
            "sign": torch.from_numpy(np.sign(values))[:, None],
            "positive": torch.from_numpy(bits * (units > 0)[:, None]).double(),
            "negative": torch.from_numpy(bits * (units < 0)[:, None]).double(),
            "at": torch.from_numpy(at / 2.0**f.top),
        }  # fmt: skip

    def positions(self) -> Float[Tensor, "p f"]:
        """Every position's features: how recent it is, and its angles; of rotary ones none."""
        table = _Table(self.all, self.sizes.positions)
        if self.sizes.is_rotary:
            return table.rows
        p = torch.arange(self.sizes.positions, dtype=torch.float64)[:, None]
        turns = 2 * math.pi * p / torch.tensor(self.periods).double()
        table.put(
            slice(None), recent=p / self.span,
            angle=torch.stack([turns.cos(), turns.sin()], -1).flatten(1),
        )  # fmt: skip
        return table.rows


class _Table:
    """Rows of features, put by name."""

    def __init__(self, features: Features, count: int) -> None:
        self.features = features
        self.rows = torch.zeros(count, features.total, dtype=torch.float64)

    def put(self, where: int | slice | list[int], **values: Tensor | float) -> None:
        for name, value in values.items():
            held = torch.as_tensor(value, dtype=torch.float64)
            self.rows[where, self.features[name.replace("__", ".")]] = held


def function_values(form: NumberFormat, name: str, values: np.ndarray) -> np.ndarray:
    """A function of one operand at these numbers, rounded to levels, in float64.

    Partial functions are total: a pole is the largest level with the sign that the limit from
    above has, the root of a negative number is 0.
    """
    top = 2.0**form.top
    positive = np.where(values > 0, values, 1.0)
    other = np.where(values != 0, values, 1.0)
    exact: dict[str, Callable[[], np.ndarray]] = {
        "abs": lambda: np.abs(values),
        "sqrt": lambda: np.sqrt(np.maximum(values, 0)),
        "recip": lambda: np.where(values != 0, 1 / other, top),
        "rsqrt": lambda: np.where(values > 0, 1 / np.sqrt(positive), top),
        "exp": lambda: np.exp(np.minimum(values, form.top)),
        "log": lambda: np.where(values > 0, np.log(positive), -top),
        "tanh": lambda: np.tanh(values),
        "sigmoid": lambda: 0.5 + 0.5 * np.tanh(values / 2),
        "sin": lambda: np.sin(values),
        "cos": lambda: np.cos(values),
        "step": lambda: (values > 0).astype(float),
        "floor": lambda: np.floor(values),
    }
    return rounded(form, exact[name]())


def rounded(form: NumberFormat, values: np.ndarray) -> np.ndarray:
    """Numbers in float64 as the nearest levels, ties up, saturating."""
    largest = form.largest / 2.0**form.fraction
    exponents = np.frexp(values)[1] - form.bits
    step = np.exp2(np.maximum(exponents, -form.fraction).astype(float))
    nearest: np.ndarray = np.floor(values / step + 0.5) * step
    return nearest.clip(-largest, largest)


def _power(least: float) -> float:
    return 2.0 ** math.ceil(math.log2(least))
