"""Reading a text: program lines and data, or one error with line, word and remedy.

A program line is ``label: destination = expression end``:

- expression: ``a``, ``a + b``, ``a - b``, ``a * b``, ``tanh(a)`` and the other functions,
  ``max(a, b)``, ``min(a, b)``, and on float64 machines ``c + a * b``, ``c - a * b``;
- an operand may be ``F(x)``, the table F at the whole number nearest to x (among its cells);
- end: nothing, ``goto L`` or ``if > 0 goto L`` (also ``<``, ``>=``, ``<=``), L a label or ``end``.

The data follow: ``name = number`` and ``F = [number, number, ...]``, any number of them in a line.
A text that :func:`parse` accepts
is made of words of the vocabulary, in exactly the order in which the tokenizer gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from iceform import tuning
from iceform.errors import ProgramError
from iceform.targets.text.words import END, FUNCTIONS, PAIRS, TESTS, TextSizes, TextWord

_PIECE = re.compile(r"[A-Za-z]\w*\(|[,()]|[^\s,()]+", re.ASCII)
_LABEL = re.compile(r"[0-9]+:")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_GLUED = re.compile(r"(?=.*\w)(?!<).*[-=+*/<>:].*")
_ARRAY = re.compile(r"([A-Za-z]\w*)\[([^\]]*)\](.*)", re.ASCII)


class TextError(ProgramError):
    """What is wrong with a text: ``line`` (from 1), ``word``, and what to do about it.

    Examples
    --------
    >>> try:
    ...     check(TextSizes(), "1: a = b goto 7")
    ... except TextError as error:
    ...     print(error.line, error.word)
    1 goto 7
    """

    def __init__(self, line: int, word: str, message: str) -> None:
        quoted = word if len(word) <= tuning.TEXT_QUOTED else word[: tuning.TEXT_QUOTED] + "..."
        super().__init__(f"line {line}, {quoted!r}: {message}")
        self.line, self.word = line, word


@dataclass(frozen=True)
class ProgramLine:
    """One instruction.

    ``operation``: ``copy``, ``+``, ``-``, ``*``, ``max``, ``min``, the name of a function, or
    ``c + a * b`` and ``c - a * b``, whose operands are in this order: c, a, b.
    ``operands``: words of kind operand or number. ``end``: a word of kind line, goto or test.
    ``line``: where it stands in the text, from 1.
    """

    label: int
    destination: TextWord
    operation: str
    operands: tuple[TextWord, ...]
    end: TextWord
    line: int


@dataclass(frozen=True)
class ProgramText:
    """A text, read: the program, the data, and the words that the tokenizer makes of it."""

    sizes: TextSizes
    lines: tuple[ProgramLine, ...]
    data: tuple[tuple[TextWord, TextWord, int], ...]  # destination, number, line of the text
    words: tuple[str, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first one that is written: prefix, text, ``[1]``."""
        return len(self.sizes.prefix) + len(self.words) + 1


def parse(sizes: TextSizes, text: str) -> ProgramText:
    """The program and the data of a text; :class:`TextError` if it is not one.

    Nothing is run: a name that no line writes is refused by :func:`check`.

    Examples
    --------
    >>> read = parse(TextSizes(), "1: s = a + 1 goto end  # the next number")
    >>> read.lines[0].operation, read.words
    ('+', ('1:', 's =', 'a', '+', '1', 'goto end'))
    """
    if not isinstance(text, str):
        raise ProgramError(f"a program is a text, got {type(text).__name__}. Pass a str.")
    lines: list[ProgramLine] = []
    data: list[tuple[TextWord, TextWord, int]] = []
    words: list[str] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        half = next((sign for sign in raw if "\ud800" <= sign <= "\udfff"), None)
        if half is not None:  # in a comment too: a tokenizer takes none
            code = f"U+{ord(half):04X}"
            raise TextError(number, code, "half of a sign, as bad decoding leaves it. Remove it.")
        reader = _LineReader(sizes, number, raw.partition("#")[0])
        if reader.done:
            continue
        if _LABEL.fullmatch(reader.word):
            if data:
                reader.fail("program lines come first, the data after them. Move this line up.")
            if lines and lines[-1].end.kind == "line":
                words.append("\n")
            lines.append(reader.program_line(expected=len(lines) + 1))
        elif not lines:
            reader.fail(
                "the text begins with a program line, such as '1: a = b + c'. "
                "Put a label before this one, or move data below the program."
            )
        else:
            data += reader.data()
        words += reader.read
    _whole(sizes, lines)
    return ProgramText(sizes, tuple(lines), tuple(data), tuple(words))


def _whole(sizes: TextSizes, lines: list[ProgramLine]) -> None:
    """Refuse a program without an end, or with a jump to a label that is not there."""
    if not lines:
        raise TextError(1, "", "there is no program line. Begin with '1: a = 0 goto end'.")
    last = lines[-1]
    if last.end.kind != "goto":
        raise TextError(
            last.line,
            f"{last.label}:",
            "the last line of a program goes somewhere. End it with 'goto end', or with 'goto' and "
            "a label.",
        )
    for line in lines:
        target = line.end.label
        if target is not None and target != END and target > len(lines):
            raise TextError(
                line.line,
                line.end.text,
                f"there is no label {target}: this program has {_labels(len(lines))}. "
                "Go to one of them, or to 'end'.",
            )


def _labels(count: int) -> str:
    return "label 1" if count == 1 else f"labels 1 to {count}"


class _LineReader:
    """One line of a text, read from left to right; ``read`` collects the tokenizer's words."""

    def __init__(self, sizes: TextSizes, number: int, text: str) -> None:
        self.sizes, self.number = sizes, number
        odd = next((c for c in text if not (" " <= c <= "~" or c in "\t\r\f\v")), None)
        if odd is not None:
            raise TextError(
                number, odd, f"the sign U+{ord(odd):04X} is in no word. Use plain ASCII letters."
            )
        found = list(_PIECE.finditer(text))
        self.pieces = [piece[0] for piece in found]
        self.starts = [piece.start() for piece in found]
        self.at = 0
        self.read: list[str] = []

    # ------------------------------------------------------------------------------- one piece

    @property
    def done(self) -> bool:
        return self.at == len(self.pieces)

    @property
    def word(self) -> str:
        return "" if self.done else self.pieces[self.at]

    def fail(self, message: str, word: str | None = None) -> None:
        raise TextError(self.number, self.word if word is None else word, message)

    def next(self, wanted: str) -> str:
        if self.done:
            self.fail(f"{wanted} is missing at the end of the line.", self.pieces[-1])
        self.at += 1
        return self.pieces[self.at - 1]

    def back(self, message: str) -> None:
        """Fail at the piece that was read last."""
        self.at -= 1
        self.fail(message)

    def keep(self, text: str) -> TextWord:
        self.read.append(text)
        return self.sizes.words[self.sizes.ids[text]]

    # --------------------------------------------------------------------------- program lines

    def program_line(self, expected: int) -> ProgramLine:
        label = self.label(expected)
        destination = self.destination()
        operation, operands = self.expression()
        end = self.end()
        return ProgramLine(label, destination, operation, operands, end, self.number)

    def label(self, expected: int) -> int:
        word = self.next("a label")
        if word != f"{expected}:":
            self.back(f"labels count 1, 2, 3, ... in order. This line is '{expected}:'.")
        if expected > self.sizes.labels:
            self.back(
                f"this machine has labels up to {self.sizes.labels}, and the program needs more. "
                "Use loops, or a machine with more labels."
            )
        self.keep(word)
        return expected

    def destination(self) -> TextWord:
        word = self.next("a destination, such as 'a ='")
        if word != "=" and (self.word == "=" or not _GLUED.fullmatch(word)):
            self.operand_word(word, "destination")
        else:
            self.unknown(word, "a name to write to")
        if self.word != "=":
            self.fail(
                f"after the destination {word!r} comes ' = '. Write '{word} = ...'.",
                self.word or word,
            )
        self.at += 1
        return self.keep(f"{word} =")

    def expression(self) -> tuple[str, tuple[TextWord, ...]]:
        if len(self.word) > 1 and self.word.endswith("(") and not self.at_table:
            return self.call()
        first = self.operand()
        if self.done or self.word in ("goto", "if"):
            return "copy", (first,)
        operator = self.operator()
        second = self.operand()
        if self.done or self.word in ("goto", "if"):
            return operator, (first, second)
        outer, operator = operator, self.operator()
        if outer not in "+-" or operator != "*":
            self.back(
                "a line has one operation, or a sum whose second part is a product: c + a * b. "
                "Put the first part on a line of its own, 't = a + b'."
            )
        if not self.sizes.third_operand:
            self.back(
                f"c {outer} a * b is a line of float64 machines only, and this one is "
                f"{self.sizes.dtype}. Write two lines: 't = a * b' and then 'p = c {outer} t'."
            )
        third = self.operand()
        if not self.done and self.word not in ("goto", "if"):
            self.fail("a line has at most three operands. Put the rest on a line of its own.")
        return f"c {outer} a * b", (first, second, third)

    def operator(self) -> str:
        word = self.next("an operator")
        if word in ("+", "-", "*"):
            self.keep(word)
            return word
        if word == "/":
            self.back("there is no division. Write 't = recip(b)' and then 'a * t'.")
        if word == "=":
            self.back("one '=' a line. Begin the next instruction on a line of its own.")
        if word in (">", "<", ">=", "<=", "==", "!="):
            self.back(
                "a comparison is a difference and a test of it: 't = a - b if > 0 goto 3'. "
                f"Tests are {', '.join(TESTS)}."
            )
        if word.startswith("-") and len(word) > 1:
            self.back(f"an operator has a space on both sides. Write '- {word[1:]}'.")
        if word == "(" or word.endswith("("):
            self.back("a function is the only operation of its line. Write 't = f(a)' before.")
        if _LABEL.fullmatch(word):
            self.back("an instruction begins on a line of its own. Put a line break before it.")
        self.at -= 1
        self.glued(word)
        self.fail(
            f"an operator belongs here (+, -, *), or 'goto', or 'if'. {self._near(word, _AFTER)}"
            "One operation a line."
        )
        raise AssertionError

    def call(self) -> tuple[str, tuple[TextWord, ...]]:
        word = self.next("a function")
        name = word[:-1]
        if name not in (*FUNCTIONS, *PAIRS):
            near = self._near(name, (*FUNCTIONS, *PAIRS))
            self.back(
                f"there is no function {name!r}. {near}There are "
                f"{', '.join((*FUNCTIONS, *PAIRS))}; another one is a table, "
                "'F = [0, 1, 4]' in the data and F(a) here."
            )
        self.keep(word)
        operands = [self.operand(inside=True)]
        if name in PAIRS:
            if self.word != ",":
                self.fail(f"{name} takes two operands. Write '{name}(a, b)'.", self.word or name)
            self.at += 1
            self.keep(",")
            operands.append(self.operand(inside=True))
        if self.word != ")":
            self.fail(
                f"{name}(...) takes {len(operands)} operand{'s' * (len(operands) > 1)} and then a "
                "bracket. Put a sum or a product on a line of its own before, and close with ')'.",
                self.word or word,
            )
        self.at += 1
        if not self.done and self.word not in ("goto", "if"):
            self.fail(
                f"nothing but 'goto' or 'if' follows {name}(...). Put this on a line of its own."
            )
        return name, tuple(operands)

    def end(self) -> TextWord:
        if self.done:
            return self.sizes.words[self.sizes.ids["\n"]]
        word = self.next("'goto'")
        test = ""
        if word == "if":
            test = self.next(f"a test ({', '.join(TESTS)})")
            if test not in TESTS:
                self.back(f"a test is one of {', '.join(TESTS)}: 'if > 0 goto 3'.")
            zero = self.next("0")
            if zero != "0":
                self.back("a test compares with 0. Subtract first: 't = a - b if > 0 goto 3'.")
            word = self.next("'goto'")
        if word != "goto":
            self.back("'goto' belongs here: 'if > 0 goto 3'.")
        target = self.next("a label or 'end'")
        label = re.fullmatch(r"[1-9][0-9]*|end", target)
        if label is None:
            self.back("after 'goto' comes a label such as 3, or 'end'.")
        if target != "end" and (len(target) > 4 or int(target) > self.sizes.labels):
            self.back(f"this machine has labels 1 to {self.sizes.labels}, and 'end'.")
        if not self.done:
            self.fail("the jump ends the line. Put this on a line of its own.")
        return self.keep(f"if {test} 0 goto {target}" if test else f"goto {target}")

    # ------------------------------------------------------------------------------------ data

    def data(self) -> Iterator[tuple[TextWord, TextWord, int]]:
        while not self.done:
            if self.word in self.sizes.array_names and self.pieces[self.at + 1 : self.at + 2] == [
                "="
            ]:
                yield from self.table()
                continue
            destination = self.destination()
            if destination.index is not None:
                self.at -= 2
                self.fail(
                    f"data are written to a cell by its number. Write '{destination.name}[0] ='."
                )
            word = self.next("a number")
            if not _NUMBER.fullmatch(word):
                self.back(
                    "the data hold numbers, such as 'a = 0.25'. An instruction needs a label."
                )
            yield destination, self.number_word(word), self.number
            if self.word in ("+", "-", "*", "/", "goto", "if"):
                self.fail("this is an instruction without a label. Write '3: a = b + c'.")

    def table(self) -> Iterator[tuple[TextWord, TextWord, int]]:
        """The cells of ``F = [0, 1, 4]``."""
        name, most, cell = self.next("a name"), self.sizes.cells, 0
        self.at += 1
        if not self.word.startswith("["):
            self.fail(
                f"{name} is an array. Give it a list, '{name} = [0, 1, 4]', or one cell, "
                f"'{name}[0] = 1'.",
                self.word or name,
            )
        self.pieces[self.at : self.at + 1] = [p for p in ("[", self.word[1:]) if p]
        self.at += 1
        closed = False
        while not closed:
            word = self.next("a number, or ']',")
            closed = word.endswith("]")
            number = word.rstrip("]")
            if not _NUMBER.fullmatch(number) or len(word) - len(number) > 1:
                self.back(f"a list holds numbers with commas between: '{name} = [0, 1, 4]'.")
            if cell == most:
                self.back(f"the list has more than {most} numbers, and {name} has {most} cells.")
            yield self.keep(f"{name}[{cell}] ="), self.number_word(number), self.number
            cell += 1
            if not closed and self.word == "]":
                self.at, closed = self.at + 1, True
            elif not closed:
                comma = self.next("',' or ']'")
                if comma != ",":
                    self.back("between two numbers of a list there is a comma.")

    # -------------------------------------------------------------------------------- operands

    @property
    def at_table(self) -> bool:
        return self.word[:-1] in self.sizes.array_names

    def table_call(self) -> TextWord:
        """``F(x)``."""
        name = self.next("a table")[:-1]
        word = self.next(f"a name, and ')', after '{name}('")
        if word not in self.sizes.scalar_names:
            self.back(
                f"a table is called with a name: '{name}(x)'. Put anything else on a line of its "
                f"own before, 'x = ...'; a cell is '{name}[3]'."
            )
        if self.word != ")":
            self.fail(f"{name}(...) takes one name. Write '{name}({word})'.", self.word or word)
        self.at += 1
        first, *_, last = self.starts[self.at - 3 : self.at]
        if last - first != len(f"{name}({word}"):  # to a tokenizer it is one word
            self.back(f"no space inside the brackets of a table. Write '{name}({word})'.")
        return self.keep(f"{name}({word})")

    def operand(self, *, inside: bool = False) -> TextWord:
        if self.word.endswith("(") and self.at_table:
            return self.table_call()
        word = self.next("an operand")
        if _NUMBER.fullmatch(word):
            return self.number_word(word)
        if word == "(":
            self.back("brackets belong to functions. Put this sum on a line of its own before.")
        if word.endswith("("):
            self.back("a function is the only operation of its line. Write 't = f(a)' before.")
        if word in (",", ")") and inside:
            self.back("an operand is missing in the brackets.")
        if self.word == "(":
            self.fail(f"no space before the bracket of a function. Write '{word}('.", word)
        self.operand_word(word, "operand")
        return self.keep(word)

    def number_word(self, word: str) -> TextWord:
        if len(word) > tuning.TEXT_QUOTED:
            self.back(f"this number has {len(word)} digits. Write at most {tuning.TEXT_QUOTED}.")
        if "e" in word.lower():
            self.back("numbers have no exponent. Write a decimal, such as 0.25 or 100.")
        form, value = self.sizes.format, Fraction(word)
        plain = form.nearest(value)
        if word != plain:
            beyond = abs(value) * 2**form.fraction > form.largest
            limit = f", the largest is {form.word(form.largest)}" if beyond else ""
            self.back(f"this number is no word of the machine{limit}. The nearest is {plain}.")
        return self.keep(plain)

    def operand_word(self, word: str, wanted: str) -> None:
        """Refuse what is no name or cell of the machine; the piece has been read already."""
        sizes = self.sizes
        if word in sizes.ids and sizes.words[sizes.ids[word]].kind == "operand":
            return
        self.unknown(word, f"an {wanted}" if wanted == "operand" else f"a {wanted}")

    def unknown(self, word: str, wanted: str) -> None:
        sizes = self.sizes
        self.at -= 1
        cell = _ARRAY.fullmatch(word)
        if cell is not None and not cell[3] and cell[1] in sizes.array_names:
            self.bad_cell(cell[1], cell[2])
        self.glued(word)
        if word in ("goto", "if", "end", "="):
            self.fail(f"{wanted} belongs here. Write '3: a = b + c goto 2'.")
        names = f"a to {sizes.scalar_names[-1]}"
        arrays = f"arrays {sizes.array_names[0]} to {sizes.array_names[-1]}" if sizes.arrays else ""
        if word in sizes.array_names:
            self.fail(
                f"{word} is an array. Name a cell, '{word}[0]' or '{word}[i]', or '{word}(x)'."
            )
        known = (*sizes.scalar_names, *(a + "[i]" for a in sizes.array_names))
        self.fail(
            f"this is no word of the machine where {wanted} belongs. {self._near(word, known)}"
            f"Names are {names}{', ' + arrays if arrays else ''}."
        )

    def bad_cell(self, array: str, index: str) -> None:
        sizes = self.sizes
        if re.fullmatch(r"-?[0-9]+", index):
            self.fail(f"the array {array} has cells 0 to {sizes.cells - 1}. Take one of them.")
        if index in sizes.scalar_names:
            self.fail(
                f"{index} is no index: these are {', '.join(sizes.index_names)}. Copy it first, "
                f"'i = {index}', and write '{array}[i]'."
            )
        self.fail(
            f"an index is one of {', '.join(sizes.index_names)} or a number from 0 to "
            f"{sizes.cells - 1}. Compute it on a line of its own: 'i = a + b'."
        )

    def glued(self, word: str) -> None:
        """Refuse a word that is several: spaces are missing."""
        if word.startswith("-") and re.fullmatch(r"-[A-Za-z].*", word):
            self.fail(f"a negative name is a difference. Write '0 - {word[1:]}'.")
        if _GLUED.fullmatch(word):
            apart = " ".join(p for p in re.split(r"([=+*/<>:-])", word) if p).replace(" :", ":")
            self.fail(f"spaces are missing. Write '{apart}'.")

    def _near(self, word: str, known: tuple[str, ...]) -> str:
        same = [k for k in known if k.lower() == word.lower()]
        found = same or get_close_matches(word, known, n=1, cutoff=0.5)
        return f"Did you mean {found[0]!r}? " if found else ""


_AFTER = ("+", "-", "*", "goto", "if")
