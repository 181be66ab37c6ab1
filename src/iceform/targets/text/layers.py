r"""The heads of the text machine, layer by layer.

====== ==================================================================================
layer  does
====== ==================================================================================
0      look back: the end of a line collects label, destination, operation and operands; a
       number collects the name it is written to; a trace token its label
1      fetch the line whose label is current; branch: a head between that line and the
       start token, by the sign of the number just written
2      the values of indices and of arguments of tables, as codes of cells that numbers carry
3      one token back: the cell that a number was written to
4      read the operands: same name and cell, the latest; literals by line and place
5, 6   the result: sums, copies, functions, maxima; products by long multiplication, one head
       a bit of the first operand
7      the exponent of the result: compared with where segments end
8      the result over its step
9 ...  its digits, highest first: compared with their boundaries; what remains is passed on
====== ==================================================================================

A head that must do nothing looks at the start token, whose values are 0. A head that works on its
own token looks at the latest one there is, which is itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iceform.heads import Design, Head, Move, Row, Vocabulary
from iceform.heads.head import Pair
from iceform.targets.text.features import SLOT_BITS, TextFeatures, code
from iceform.targets.text.words import FUNCTIONS

HEAD = 16  # numbers that a head carries
SHARP = 256.0  # logits by which the token that is meant leads
LOOK_BACK = 4 * SHARP  # times 1 - cos(2 pi/16): a neighbour is 78 below
RECENT = SHARP / 4  # logits a token
SCORE = RECENT  # of a bit in the language-model head
KIND = 64 * SCORE  # of the right kind of word there: more than all bits
BALLAST = {"float32": 2.0**16, "float64": 2.0**30}
EPSILON = torch.nn.LayerNorm(1).eps  # which is GPT-2's own


@dataclass(frozen=True)
class TurningPairs:
    """Two pairs of rows at places that a rotary embedding turns together; ``place`` is which."""

    place: int
    first: Pair
    second: Pair


Logit = tuple[Pair | TurningPairs, ...]
ONE = Row(constant=1.0)
times = Row.times


def reads(name: str, coefficient: float = 1.0, index: int = 0) -> Row:
    """One feature."""
    return Row.of(name, index, coefficient)


def plus(*rows: Row) -> Row:
    """A sum of rows."""
    out: dict[tuple[str, int], float] = {}
    for row in rows:
        for where, c in row.reads.items():
            out[where] = out.get(where, 0.0) + c
    return Row(out, sum(row.constant for row in rows))


@dataclass(frozen=True)
class TextLayers:
    """Heads, layer by layer; ``gathers`` is False where lines are not in the prompt."""

    features: TextFeatures
    gathers: bool = True
    carries: ClassVar[int] = HEAD  # numbers, by one head
    blocks: ClassVar[tuple[int, int] | None] = None  # of the design

    @cached_property
    def design(self) -> Design:
        """The residual stream on paper."""
        return Design(
            self.features.all,
            tuple(tuple(layer) for layer in self._layers()),
            norm=EPSILON,
            ballast=BALLAST[self.features.sizes.dtype],
            blocks=self.blocks,
        )

    def vocabulary(self, tokens: Float[Tensor, "ids f"]) -> Vocabulary:
        """What the words of these features and the positions mean, and what scores them."""
        return Vocabulary(tokens, self.features.positions(), self.scores)

    def _layers(self) -> Iterator[list[Head]]:
        yield [*self._look_backs()]
        yield [*self._fetch(), self._branch()]
        yield [*self._indices()]
        yield [*self._cells()]
        yield [*self._operands()]
        yield from self._operations()
        yield [*self._exponents()]
        yield [*self._steps()]
        for digit in range(len(self.features.digits)):
            yield [*self._digit(digit)]

    # ------------------------------------------------------------------------------ pieces

    def width(self, name: str) -> int:
        """How many numbers a feature is."""
        found = self.features.all[name]
        return int(found.stop - found.start)

    def copies(self, *names: tuple[str | Row, str]) -> list[Move]:
        """Features copied to features of the same width; a row to a feature of width one."""
        out = []
        for source, to in names:
            for k in range(self.width(to)):
                row = source if isinstance(source, Row) else reads(source, 1.0, k)
                out.append(Move(row, {(to, k): 1.0}))
        return out

    def heads(self, role: str, logit: Logit, moves: Sequence[Move]) -> Iterator[Head]:
        """As many heads of one logit as the moves need."""
        parts = [moves[k : k + self.carries] for k in range(0, len(moves), self.carries)]
        for number, part in enumerate(parts, 1):
            name = role if len(parts) == 1 else f"{role}, part {number} of {len(parts)}"
            yield self.head(name, logit, part)

    def head(self, role: str, logit: Logit, moves: Sequence[Move]) -> Head:
        """One head."""
        return Head(role, self.placed(logit), tuple(moves))

    def placed(self, logit: Logit) -> tuple[Pair, ...]:
        """The pairs of a logit in the places of a head: one after the other where none turns."""
        return tuple(pair for pair in logit if not isinstance(pair, TurningPairs))

    def match(self, query: Sequence[str], key: str, scale: float, exempt: Row) -> tuple[Pair, ...]:
        """0 where two codes agree, at most -2 scale elsewhere, 0 on exempt tokens.

        The query is the sum of codes of which all but one are 0.
        """
        bits = self.width(key)
        rows = [
            (plus(*(reads(q, scale, k) for q in query)), reads(key, 1.0, k)) for k in range(bits)
        ]
        fixed = plus(reads("one", -bits * scale), times(exempt, bits * scale))
        return (*rows, (ONE, fixed))

    def only(self, allowed: Row, scale: float) -> tuple[Row, Row]:
        """0 on tokens where the row is 1; -scale where it is 0."""
        return ONE, plus(times(allowed, scale), reads("one", -scale))

    def recent(self) -> Row:
        """As a key: RECENT a token."""
        return reads("recent", RECENT * self.features.span)

    def recency(self) -> Logit:
        """RECENT logits more for every token that is later."""
        return ((ONE, self.recent()),)

    @property
    def far(self) -> float:
        """More than recency can make up."""
        return RECENT * self.features.span

    # ---------------------------------------------------------------------------- layer 0

    def _back(self, tokens: int, role: str, moves: Sequence[Move]) -> Iterator[Head]:
        rows = []
        for j, period in enumerate(self.features.periods):
            c, s = (f(2 * math.pi * tokens / period) * LOOK_BACK for f in (math.cos, math.sin))
            here = (reads("angle", c, 2 * j), reads("angle", s, 2 * j + 1))
            there = (reads("angle", -s, 2 * j), reads("angle", c, 2 * j + 1))
            rows.append((plus(*here), reads("angle", 1.0, 2 * j)))
            rows.append((plus(*there), reads("angle", 1.0, 2 * j + 1)))
        yield from self.heads(f"{tokens} back: {role}", tuple(rows), moves)

    def _latest(self, flag: str, role: str, moves: Sequence[Move]) -> Iterator[Head]:
        logit = (self.only(reads(flag), 2 * self.far), *self.recency())
        yield from self.heads(f"latest {role}", logit, moves)

    def _look_backs(self) -> Iterator[Head]:
        numbers = self.copies(
            ("name", "into.name"), ("is_index", "into.index"), ("is_write", "into.written"),
            ("slot", "before"),
        )  # fmt: skip
        yield from self._back(1, "where a number goes", numbers)
        yield from self._back(1, "label", self.copies(("word.label", "label1")))
        traces = self.copies(("is_label", "into.line"), ("word.label", "label2"))
        yield from self._back(2, "label", traces)
        if self.gathers:
            yield from self._gather()

    def _gather(self) -> Iterator[Head]:
        """What the end of a line collects."""
        for back, operand in zip((3, 1, 5), self.features.operands, strict=False):
            address = [(part, f"line.{operand}.{part}") for part in self.features.address]
            moves = self.copies(*address, ("is_number", f"line.{operand}.literal"))
            yield from self._back(back, f"operand {operand}", moves)
        inner = self.copies(
            (plus(reads("plus"), reads("minus")), "line.sum"), ("minus", "line.negate"),
            ("star", "line.times"), ("is_write", "line.copy"),
            ("word.function", "line.function"), ("slot", "line.b.slot"),
        )  # fmt: skip
        yield from self._back(2, "operation", inner)
        turned = plus(*(reads(n) for n in ("minus", "word.max", "word.min")))
        outer: list[tuple[str | Row, str]] = [
            (turned, "line.negate"), ("word.max", "line.max"), ("word.min", "line.min"),
            ("slot", "line.a.slot"),
        ]  # fmt: skip
        if self.features.sizes.third_operand:
            outer.append((plus(reads("plus"), reads("minus")), "line.third"))
        yield from self._back(4, "outer operation", self.copies(*outer))
        label = self.copies(("word.label", "line.label"), ("word.next", "line.next"))
        yield from self._latest("is_label", "label", label)
        target = self.copies(*((part, f"line.d.{part}") for part in self.features.address))
        yield from self._latest("is_write", "destination", target)

    # ---------------------------------------------------------------------------- layer 1

    def _current(self, exempt: Row, labels: Sequence[str]) -> Logit:
        """Lines of the current label: all else is 4 SHARP below, the exempt at 0."""
        allowed = plus(reads("is_end"), exempt)
        match = self.match(labels, "line.label", 4 * SHARP, exempt)
        return (*match, self.only(allowed, 16 * SHARP * self.features.label_bits))

    def _fetch(self) -> Iterator[Head]:
        names = [part for part in self.features.line if part != "label"]
        moves = self.copies(*((f"line.{part}", f"run.{part}") for part in names))
        current = self._current(Row(), ("word.label", "label1", "label2"))
        yield from self.heads("fetch the line", current, moves)

    def _branch(self) -> Head:
        """Jump - next where the sign of the number passes the test; 0 where it does not."""
        logit = (
            *self._current(reads("start"), ("label2",)),
            (reads("sign", 2 * SHARP), reads("test")),
            (ONE, plus(reads("or_zero", SHARP), reads("always", SHARP))),
        )
        moves = [
            Move(plus(reads("jump", 1.0, k), reads("line.next", -1.0, k)), {("branch", k): 1.0})
            for k in range(self.features.label_bits)
        ]
        return self.head("branch", logit, moves)

    # ------------------------------------------------------------------------ layers 2, 3

    def _written(self) -> Row:
        """1 on numbers that are writes: after a write word, but not in a program line."""
        return plus(reads("into.written"), reads("into.line", -1.0))

    def _indices(self) -> Iterator[Head]:
        places = [
            (f"run.{o}.uses", f"run.{o}.cell", f"operand {o}") for o in self.features.operands
        ]
        for uses, cell, role in (*places, ("uses", "cell", "the cell written")):
            logit = (
                *self.match([uses], "into.index", self.far, Row()),
                self.only(self._written(), 2 * self.far),
                *self.recency(),
            )
            yield from self.heads(f"index of {role}", logit, self.copies(("place", cell)))

    def _cells(self) -> Iterator[Head]:
        yield from self._back(1, "cell of a number", self.copies(("cell", "into.cell")))

    # ---------------------------------------------------------------------------- layer 4

    def _variable(self, operand: str, idle: Row) -> Logit:
        *name, (_, low) = self.match([f"run.{operand}.name"], "into.name", self.far, Row())
        *cell, (_, lower) = self.match([f"run.{operand}.cell"], "into.cell", self.far, Row())
        bits = self.features.name_bits + self.features.cell_bits
        return (
            *name, *cell, (ONE, plus(low, lower)), self.only(self._written(), 2 * self.far),
            *self.recency(),
            (times(idle, 2 * (bits + 2) * self.far), reads("start")),
        )  # fmt: skip

    def _literal(self, operand: str, idle: Row) -> Logit:
        """The number in the line that runs, by what stands before it."""
        allowed = plus(reads("is_number"), times(self._written(), -1.0))
        slots: Logit = tuple(
            (
                Row(constant=-4 * SHARP)
                if operand == "c"
                else reads(f"run.{operand}.slot", 4 * SHARP, k),
                reads("before", 1.0, k),
            )
            for k in range(SLOT_BITS)
        )
        scale = 16 * SHARP * (self.features.label_bits + SLOT_BITS)
        return (
            *self.match(("word.label", "label1", "label2"), "line.label", 4 * SHARP, Row()),
            *slots, self.only(allowed, scale), (times(idle, 4 * scale), reads("start")),
        )  # fmt: skip

    def _read(self, operand: str, role: str, moves: Sequence[Move], idle: Row) -> Iterator[Head]:
        literal = reads(f"run.{operand}.literal")
        variable = self._variable(operand, plus(idle, literal))
        yield from self.heads(f"read {role}", variable, moves)
        other = plus(idle, Row(constant=1.0), times(literal, -1.0))
        yield from self.heads(f"read {role}, a literal", self._literal(operand, other), moves)

    def _operands(self) -> Iterator[Head]:
        bits = ("value", "positive", "negative")
        yield from self._read("a", "a and its bits", self.copies(*((b, b) for b in bits)), Row())
        negate = reads("run.negate")
        for sign, idle in ((1.0, negate), (-1.0, plus(Row(constant=1.0), times(negate, -1.0)))):
            moves = [Move(reads("value", sign), {("second", 0): 1.0})]
            yield from self._read("b", "b" if sign > 0 else "-b", moves, idle)
        yield from self._read("b", "functions of b", self.copies(("at", "at")), Row())
        if self.features.sizes.third_operand:
            idle = plus(Row(constant=1.0), reads("run.third", -1.0))
            yield from self._read("c", "c", self.copies(("value", "result")), idle)

    # ------------------------------------------------------------------------ layers 5, 6

    def _own(self, role: str, lead: Row, value: Row, to: str, factor: float = 1.0) -> Head:
        """The token itself where ``lead`` is negative, the start token where it is positive."""
        return self.head(role, self._lead(lead), (Move(value, {(to, 0): factor}),))

    def _lead(self, lead: Row) -> Logit:
        """The token itself at the logit 0, the start token at ``lead``, all others far below."""
        start = reads("start")
        return ((ONE, self.recent()), (self.recent(), start), (lead, start))

    def _if(
        self, role: str, flags: Sequence[Row], value: Row, to: str, factor: float = 1.0
    ) -> Head:
        """The value where all flags are 1, 0 where one of them is 0."""
        lead = plus(
            *(times(f, -2 * SHARP) for f in flags), Row(constant=SHARP * (2 * len(flags) - 1))
        )
        return self._own(role, lead, value, to, factor)

    def _operations(self) -> Iterator[list[Head]]:
        a, b, least = reads("value"), reads("second"), 2.0**-(self.features.value_bits)
        first = [
            self._if("sum", [reads("run.sum")], plus(a, b), "result"),
            self._if("copy", [reads("run.copy")], b, "result"),
            *(
                self._if(name, [reads("run.function", 1.0, k)], reads("at", 1.0, k), "result")
                for k, name in enumerate(FUNCTIONS)
            ),
            self._own("a - b if positive", times(plus(a, b), -SHARP / least), plus(a, b), "larger"),
        ]
        larger = reads("larger")
        second = [
            self._if("maximum", [reads("run.max")], plus(larger, times(b, -1.0)), "result"),
            self._if("minimum", [reads("run.min")], plus(a, times(larger, -1.0)), "result"),
        ]
        for head in self._products():
            min(first, second, key=len).append(head)
        yield first
        yield second

    def _products(self) -> Iterator[Head]:
        """Long multiplication: 2^k b for every bit 2^k of a, with a's sign."""
        for sign, name in ((1.0, "positive"), (-1.0, "negative")):
            for k in range(self.features.value_bits):
                power = 2.0 ** (k - self.features.format.fraction)
                yield self._if(
                    f"times {sign * power:g}", [reads("run.times"), reads(name, 1.0, k)],
                    reads("second"), "result", sign * power,
                )  # fmt: skip

    # --------------------------------------------------------------------- layers 7, 8, ...

    def _unless_start(self, factor: float) -> Row:
        """A constant that the start token does not have: what looks there writes nothing."""
        return plus(reads("one", factor), reads("start", -factor))

    def _exponents(self) -> Iterator[Head]:
        f = self.features
        bits = f.format.bits
        unit = 2.0 ** -(f.format.fraction + f.format.top)  # in results over 2^top
        for j in range(f.segments):
            # Results differ by parts of a step of their segment: compared over 2^(bits + j) units.
            scale = 2.0 ** -(bits + j) / unit
            for sign in (1, -1):
                writes = {("exponent", j): 1.0}
                if j == f.segments - 1:
                    writes[("rest", 0)] = sign * (1 - 2.0**-bits)  # the largest level
                edge = f.edge(j, sign) * unit
                lead = SHARP / (f.least_shift * 2.0**-bits) * scale * sign
                row = plus(reads("one", lead * edge), reads("result", -lead))
                role = f"{'above' if sign > 0 else 'below'} segment {j}"
                yield self.head(role, self._lead(row), (Move(self._unless_start(1.0), writes),))

    def _steps(self) -> Iterator[Head]:
        f = self.features.format
        for j in range(self.features.segments):
            power = 2.0 ** (f.fraction + f.top - f.bits - j)
            passed = reads("exponent", 1.0, j - 1) if j else Row(constant=1.0)
            within = plus(passed, reads("exponent", -1.0, j))
            shift = self._unless_start(self.features.shift(j) / 2**f.bits / power)
            value = plus(reads("result"), shift)
            yield self._if(f"over 2^{j - f.fraction}", [within], value, "rest", power)

    def _digit(self, digit: int) -> Iterator[Head]:
        f = self.features
        scale = 2.0**-f.format.bits
        lead = SHARP / (f.least_shift * scale)
        width = f.digit_width(digit) * scale
        for j, (edge, side) in enumerate(f.digit_edges(digit)):
            row = plus(reads("one", lead * side * edge * scale), reads("rest", -lead * side))
            writes = {(f"digit{digit}", j): 1.0, ("rest", 0): -side * width}
            role = f"digit {digit + 1}, {'above' if side > 0 else 'below'} {edge:g}"
            yield self.head(role, self._lead(row), (Move(self._unless_start(1.0), writes),))

    # -------------------------------------------------------------------------------- scores

    @cached_property
    def scores(self) -> Float[Tensor, "ids f"]:
        """The language-model head: after a write word a number, then a label, then a write word."""
        f = self.features
        words = f.sizes.words
        out = torch.zeros(len(words), f.all.total, dtype=torch.float64)

        def put(token: int | list[int], kind: str, **codes: Tensor) -> None:
            out[token, f.all[kind]] = KIND
            for name, bits in codes.items():
                out[token, f.all[name.replace("__", ".")]] = SCORE * bits

        for token, word in enumerate(words):
            if word.kind == "trace":
                assert word.label is not None
                bits = code(word.label, f.label_bits)
                put(token, "is_number", run__next=bits, branch=bits)
            elif word.kind == "write":
                held = f.of_word(word)
                codes = {f"run.d.{part}": held[part] for part in f.address if part in held}
                put(token, "is_trace", **codes)  # type: ignore[arg-type]
        numbers = [token for token, word in enumerate(words) if word.kind == "number"]
        put(numbers, "is_write", **self._number_codes(np.array(f.format.levels)))
        return out

    def _number_codes(self, units: np.ndarray) -> dict[str, Tensor]:
        """What scores levels: +-2 for every comparison, less what a row of ones would score."""
        codes = {name: 2 * passed - 1 for name, passed in self.features.level_codes(units).items()}
        codes["exponent"][:, -1] = 0.0  # what saturates is written as the largest level
        total = torch.stack([c.sum(1) for c in codes.values()]).sum(0)
        return {**{name: 2 * c for name, c in codes.items()}, "one": -total[:, None]}
