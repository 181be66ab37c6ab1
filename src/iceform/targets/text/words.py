r"""The vocabulary of the text machine: sizes, words in order, and the tokenizer.

A word is one token. In this order the vocabulary holds

========= ============================================== =====================================
kind      words                                          parts
========= ============================================== =====================================
start     ``<s>`` (first token)
table     ``<0>`` ... (prefix, nobody types them)        ``cell``: which
label     ``1:`` ...                                     ``label``
trace     ``[1]`` ... ``[end]``                          ``label`` (``END`` = 0 for ``end``)
line      the end of a line
goto      ``goto 1`` ... ``goto end``                    ``label``
test      ``if > 0 goto 1`` ...                          ``test``, ``label``
operand   ``a``, ``A[i]``, ``A[3]``, ``A(x)``            ``name``; ``index``, ``cell``
write     ``a =``, ``A[i] =``, ``A[3] =``                the same
operator  ``+ - * ,``                                    ``name``
function  ``tanh(``, ``max(``                            ``name``
number    ``0.25``                                       ``units``
========= ============================================== =====================================

The tokenizer strips comments, drops closing brackets and white space, keeps a line's end where
another program line follows and no ``goto`` has ended the line already, writes a list
``A = [3, 4]`` as the cells ``A[0] = 3 A[1] = 4``, and puts ``<s>`` and the table tokens before the
text and ``[1]`` after it. A word that is not in the vocabulary raises.
``A(x)`` is ``nearest``: the cell nearest to x.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from iceform.errors import CapacityError, DtypeError, ProgramError
from iceform.targets.text.numbers import NumberFormat
from iceform.validation import check_choice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = 0  # the label of ``end``
START = "<s>"
FUNCTIONS = (
    "abs",
    "sqrt",
    "recip",
    "rsqrt",
    "exp",
    "log",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "step",
    "floor",
)
PAIRS = ("max", "min")  # functions of two operands
OPERATORS = ("+", "-", "*", ",")
TESTS = (">", "<", ">=", "<=")
SCALARS = (*string.ascii_lowercase, *(f"t{i}" for i in range(74)))
INDICES = ("i", "j", "k", "l", "m", "n", "p", "q")
ARRAYS = tuple(string.ascii_uppercase)
MOST_LABELS = 999  # three digits, as the tokenizer's look-behind has them
MOST_TABLES = 99
DTYPES = ("float32", "float64")
ARCHITECTURES = {"gpt2": DTYPES, "llama": DTYPES[:1]}  # and the dtypes that each computes in

# What the tokenizer keeps, first match first; the last one catches what is no word.
_STOP = r"(?=[\s,)]|$)"
_LABEL = r"(?:\d+|end)"
PATTERN = "|".join(
    (
        rf"if [<>]=? 0 goto {_LABEL}(?!\S)",
        rf"goto {_LABEL}(?!\S)",
        r"\d+:(?!\S)",
        rf"\[{_LABEL}\](?!\S)",
        r"[A-Za-z]\w*(?:\[\w+\])? =(?!\S)",
        r"[A-Z]\([a-z]\w*\)",
        r"[a-z]+\(",
        rf"[A-Za-z]\w*(?:\[\w+\])?{_STOP}",
        rf"-?\d+(?:\.\d+)?{_STOP}",
        r"[-+*](?!\S)",
        r",",
        r"(?<!goto end|goto \d|goto \d\d|goto \d\d\d)\n(?=\d+:)",
        r"[^\s),]+",
    )
)
_COMMENT = r"#[^\n]*"
_DIGITS = r"-?[\d.]+"


@dataclass(frozen=True)
class TextWord:
    """One word: its text, its kind, and what it says (the module's table)."""

    text: str
    kind: str
    name: str | None = None
    label: int | None = None
    test: str | None = None
    index: str | None = None
    cell: int | None = None
    nearest: bool | None = None
    units: int | None = None


@dataclass(frozen=True)
class TextSizes:
    """How large a text machine is; everything else about its text follows.

    ``labels``: lines of a program; ``scalars``: names a to z, then t0, t1, ...; ``arrays``: capital
    letters; ``indices``: how many of i j k l m n p q address arrays; ``cells``: of each array;
    ``positions``: tokens in all; ``tables``: tokens of the prefix after ``<s>``, which a program in
    the weights keeps its numbers in; ``architecture``: "gpt2", or "llama", in float32 only.

    Examples
    --------
    >>> sizes = TextSizes(scalars=3, arrays=1, indices=0, cells=2)
    >>> sizes.scalar_names, sizes.array_names
    (('a', 'b', 'c'), ('A',))
    >>> sizes.words[sizes.ids["A[1]"]].cell
    1
    """

    format: NumberFormat = NumberFormat()  # noqa: RUF009 - frozen
    labels: int = 63
    scalars: int = 26
    arrays: int = 8
    indices: int = 8
    cells: int = 32
    positions: int = 4096
    tables: int = 0
    dtype: str = "float32"
    architecture: str = "gpt2"

    def __post_init__(self) -> None:
        limits = (
            ("labels", 1, MOST_LABELS),
            ("scalars", 1, len(SCALARS)),
            ("arrays", 0, len(ARRAYS)),
            ("indices", 0, len(INDICES)),
            ("cells", 1, 1024),
            ("positions", 16, 2**20),
            ("tables", 0, MOST_TABLES),
        )
        for name, least, most in limits:
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise CapacityError(
                    f"TextSizes(..., {name}={value!r}): a whole number between {least} and {most} "
                    "is possible."
                )
        if self.dtype not in DTYPES:
            raise DtypeError(
                f"TextSizes(..., dtype={self.dtype!r}): a text machine is written in float32 or "
                "float64. Half precision cannot hold its scores."
            )
        check_choice("architecture", self.architecture, tuple(ARCHITECTURES))
        if self.dtype not in ARCHITECTURES[self.architecture]:
            raise DtypeError(
                f"TextSizes(..., dtype={self.dtype!r}, architecture={self.architecture!r}): "
                "transformers computes a Llama's norms in float32 whatever the weights are. Take "
                "float32, or a GPT-2."
            )
        missing = [i for i in INDICES[: self.indices] if i not in self.scalar_names]
        if missing:
            raise ProgramError(
                f"TextSizes(scalars={self.scalars}, indices={self.indices}): the index "
                f"{missing[0]!r} is not among the names a to {self.scalar_names[-1]}. Take more "
                "scalars or fewer indices."
            )
        for cell in range(self.cells):
            if self.format.rounded(cell << self.format.fraction) != cell << self.format.fraction:
                raise ProgramError(
                    f"TextSizes(cells={self.cells}): the index {cell} is no level of "
                    f"{self.format}. Take at most {cell} cells, or more bits and a higher top."
                )

    @property
    def third_operand(self) -> bool:
        """Whether c + a * b is one line, as in float64 machines only."""
        return self.dtype == "float64"

    @property
    def is_rotary(self) -> bool:
        """Whether positions turn queries and keys, and nothing else says where a token is."""
        return self.architecture == "llama"

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """The names of scalars."""
        return SCALARS[: self.scalars]

    @property
    def index_names(self) -> tuple[str, ...]:
        """The scalars that address arrays."""
        return INDICES[: self.indices]

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of arrays."""
        return ARRAYS[: self.arrays]

    @cached_property
    def words(self) -> tuple[TextWord, ...]:
        """The vocabulary, in which the word with number k is token k."""
        return (
            TextWord(START, "start"),
            *(TextWord(f"<{k}>", "table", cell=k) for k in range(self.tables)),
            *(TextWord(f"{k}:", "label", label=k) for k in range(1, self.labels + 1)),
            *(TextWord(f"[{_label(k)}]", "trace", label=k) for k in self._targets),
            TextWord("\n", "line"),
            *(TextWord(f"goto {_label(k)}", "goto", label=k) for k in self._targets),
            *(
                TextWord(f"if {test} 0 goto {_label(k)}", "test", test=test, label=k)
                for test in TESTS
                for k in self._targets
            ),
            *self._operands("operand", ""),
            *self._calls,
            *self._operands("write", " ="),
            *(TextWord(o, "operator", name=o) for o in OPERATORS),
            *(TextWord(f"{f}(", "function", name=f) for f in (*FUNCTIONS, *PAIRS)),
            *(
                TextWord(word, "number", units=units)
                for word, units in zip(self.format.words, self.format.levels, strict=True)
            ),
        )

    @cached_property
    def ids(self) -> dict[str, int]:
        """The token of each word."""
        return {word.text: token for token, word in enumerate(self.words)}

    @property
    def prefix(self) -> tuple[str, ...]:
        """What the tokenizer puts before every text."""
        return (START, *(f"<{k}>" for k in range(self.tables)))

    @property
    def _targets(self) -> tuple[int, ...]:
        return (*range(1, self.labels + 1), END)

    @property
    def _calls(self) -> tuple[TextWord, ...]:
        """``A(x)``: the table A at the whole number nearest to x."""
        return tuple(
            TextWord(f"{a}({x})", "operand", name=a, index=x, nearest=True)
            for a in self.array_names
            for x in self.scalar_names
        )

    def _operands(self, kind: str, tail: str) -> tuple[TextWord, ...]:
        scalars = [TextWord(n + tail, kind, name=n) for n in self.scalar_names]
        indexed = [
            TextWord(f"{a}[{i}]{tail}", kind, name=a, index=i)
            for a in self.array_names
            for i in self.index_names
        ]
        cells = [
            TextWord(f"{a}[{c}]{tail}", kind, name=a, cell=c)
            for a in self.array_names
            for c in range(self.cells)
        ]
        return (*scalars, *indexed, *cells)

    def _lists(self) -> Iterator[tuple[str, str]]:
        r"""What turns a list into cells, in order: a pattern, and what it becomes.

        ``\K`` keeps what stands before it. A comma after the number of a cell is the next cell.
        """
        for array in self.array_names:
            yield rf"(?<!\w){array} = \[ ?", f"{array}[0] = "
            for cell in range(1, self.cells):
                yield rf"(?<!\w){array}\[{cell - 1}\] = {_DIGITS}\K ?, ?", f" {array}[{cell}] = "
        yield rf"\[\d+\] = {_DIGITS}\K ?\]", ""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A stock fast tokenizer of this vocabulary, with prefix and first trace label built in."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
        from transformers import AddedToken, PreTrainedTokenizerFast

        inner = Tokenizer(models.WordLevel(self.ids, unk_token="<not a word of this machine>"))
        inner.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(Regex(_COMMENT), ""),
                normalizers.Replace(Regex(r"[ \t\r\f\v]+"), " "),
                normalizers.Replace(Regex(r" ?\n\s*"), "\n"),
                normalizers.Strip(),
                *(normalizers.Replace(Regex(old), new) for old, new in self._lists()),
            ]
        )
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "removed", invert=True)
        first = f"[{1}]"
        inner.post_processor = processors.TemplateProcessing(
            single=[*self.prefix, "$A", first],
            special_tokens=[(word, self.ids[word]) for word in (*self.prefix, first)],
        )

        def special(word: str) -> AddedToken:  # looked for after comments have been stripped
            return AddedToken(word, normalized=True, special=True)

        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=inner,
            bos_token=special(START),
            pad_token=special(f"[{_label(END)}]"),
            eos_token=special(f"[{_label(END)}]"),
            additional_special_tokens=[special(word) for word in self.prefix[1:]],
            padding_side="left",
            model_max_length=self.positions,
            model_input_names=["input_ids", "attention_mask"],
            clean_up_tokenization_spaces=False,
        )


def _label(label: int) -> str:
    return "end" if label == END else str(label)


LIBRARY = TextSizes(
    format=NumberFormat(bits=10, fraction=12, top=13),
    labels=127,
    scalars=64,
    arrays=16,
    indices=8,
    cells=32,
    positions=16384,
    dtype="float64",
)
