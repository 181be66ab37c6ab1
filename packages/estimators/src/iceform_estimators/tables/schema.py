"""Schema: how a file's columns are read. Proposed from the texts, editable, and used again.

A column is numbers, dates, text, or left out; a proposal says why. What has two readings (1,234 is
1.234 or 1234; 3/4/2020 is in March or in April) is told apart by the other texts of the column,
then by the other columns of the file; what stays open has the type "?", and is refused until
somebody decides.
"""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from iceform.errors import DtypeError, IntegrityError, ProgramError
from iceform_estimators.tables.spelling import (
    CODES,
    DATES,
    LONG,
    NUMBERS,
    SHORT,
    Booleans,
    Clock,
    Dates,
    Numbers,
    Spelling,
    spellings,
)  # fmt: skip
from iceform_estimators.tables.words import listed, load, near, shown

_LOOKED_AT = 1000  # cells of a column of text, for numbers in disguise
_MARKS = " '\"`\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"  # of quotation, of any kind
_NOTATIONS = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+ *[/\u2044] *\d+)")  # that are not read
TYPES = ("number", "date", "text", "out")
OPEN = "?"
_MISSING = (
    "", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "-NaN", "NULL", "null", "Null", "None",
    "<NA>", "#NA", "#N/A N/A", "-1.#IND", "1.#IND", "1.#QNAN", "-1.#QNAN", ".", "#VALUE!",
    "#DIV/0!", "#REF!",
)  # fmt: skip
# Rows from which 1, 2, 3, ... is taken for a count of the rows: fewer, where its name says so.
_FEWEST_RUNNING, _FEWEST_UNNAMED = 5, 20
_IDENTIFIER = re.compile(
    r"(?i:^(?:id|index|nr|no|number|obs|order|row ?(?:names?|id)?)$)|^Unnamed: \d+$|_id$|Id$|ID$"
)
NOT_HELD = "has more digits than a float64 holds: a code, not an amount"
_KEYS = {"name", "type", "decimal", "thousands", "dressed", "boolean", "clock", "order", "mark"}


@dataclass(frozen=True)
class Column:
    """How one column is read."""

    name: str
    type: str
    spelling: Spelling | None = None  # of numbers and dates that are texts
    why: str = ""

    def read(self, texts: Any, source: str) -> Any:
        """Texts (pyarrow strings) as a pandas column: float64, or text with NaN where missing."""
        pandas, compute = load("pandas"), load("pyarrow.compute")
        texts = missing_removed(texts)
        known = np.asarray(compute.is_valid(texts))
        if self.type == OPEN:
            raise DtypeError(f"column {self.name!r} of {source} {self.why}")
        if self.type == "text":
            words = np.full(len(texts), np.nan, dtype=object)
            words[known] = texts.drop_null().to_pylist()
            return pandas.Series(words, name=self.name, dtype=object)
        numbers = np.full(len(texts), np.nan)
        if known.any():
            numbers[known] = self._numbers(texts, source)
        return pandas.Series(numbers, name=self.name)

    def _numbers(self, texts: Any, source: str) -> np.ndarray:
        compute = load("pyarrow.compute")
        known = texts.drop_null()
        if self.spelling is None:
            raise DtypeError(
                f"column {self.name!r} of {source} holds text ({shown(known[0])}) where there were "
                "numbers before; mend it"
            )
        if not self.spelling.reads(known):
            wrong = compute.invert(compute.match_substring_regex(known, self.spelling.pattern))
            first = known.filter(wrong)[0].as_py()
            row = texts.to_pylist().index(first) + 1
            what = "date" if isinstance(self.spelling, Dates) else "number"
            raise DtypeError(
                f"column {self.name!r} of {source} holds {shown(first)} in row {row}, where the "
                f"others are {what}s; mend it, or say that the column is text "
                f"(text=[{self.name!r}], --text {self.name})"
            )
        return self.spelling.values(known)

    def to_dict(self) -> dict[str, Any]:
        """What a schema file says of it."""
        found: dict[str, Any] = {"name": self.name, "type": self.type}
        if self.spelling is not None:
            found |= {k: v for k, v in vars(self.spelling).items() if v not in ("", False)}
            found |= {"boolean": True} if isinstance(self.spelling, Booleans) else {}
            found |= {"clock": True} if isinstance(self.spelling, Clock) else {}
        return found

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], source: str) -> Column:
        """One of a schema file, checked."""
        strange = sorted(set(found) - _KEYS)
        if strange or "name" not in found or "type" not in found:
            what = f"has {strange[0]!r}, which" if strange else "lacks a name or a type; a column"
            raise ProgramError(f"{source}: column {found.get('name')!r} {what} says nothing known")
        name, kind = found["name"], found["type"]
        if kind not in (*TYPES, OPEN):
            raise ProgramError(
                f"{source}: column {name!r} has the type {kind!r}; {near(str(kind), TYPES)}"
            )
        spelling: Spelling | None = None
        if kind == "number" and (found.get("boolean") or found.get("clock")):
            spelling = Booleans() if found.get("boolean") else Clock()
        elif kind == "number":
            spelling = Numbers(
                found.get("decimal", "."), found.get("thousands", ""), found.get("dressed", False)
            )
            if spelling not in NUMBERS:
                raise ProgramError(
                    f"{source}: column {name!r} has decimal={spelling.decimal!r} and thousands="
                    f"{spelling.thousands!r}; decimal is . or , and thousands another mark: , . ' "
                    "or a space"
                )
        if kind == "date":
            spelling = Dates(found.get("order", "ymd"), found.get("mark", "-"))
            if sorted(spelling.order) not in (sorted("ymd"), sorted("dby")):
                raise ProgramError(
                    f"{source}: column {name!r} has order={spelling.order!r}; it is ymd, dmy, mdy "
                    "or dby (a month's name)"
                )
        return cls(str(name), kind, spelling)


_DECIDE = "say which in a schema (iceform inspect FILE --write FILE.toml, then --schema FILE.toml)"


@dataclass(frozen=True)
class Schema:
    """How a file is read: its encoding and separator, and its columns."""

    columns: tuple[Column, ...]
    encoding: str | None = None
    separator: str | None = None

    def of(self, name: str) -> Column | None:
        """One column's."""
        return next((c for c in self.columns if c.name == name), None)

    def check_names(self, names: Iterable[str], source: str) -> None:
        """The file has these columns and no others."""
        names = list(names)
        known = [c.name for c in self.columns]
        for name in names:
            if name not in known:
                raise ProgramError(
                    f"{source} has a column {shown(name)} that the schema lacks; add it, with type "
                    '"out" to leave it out'
                )
        absent = [name for name in known if name not in names]
        if absent:
            raise ProgramError(
                f"{source} lacks columns of the schema: {listed([shown(n) for n in absent])}"
            )

    def to_toml(self, source: str) -> str:
        """A file to edit."""
        quoted = json.dumps
        lines = [
            f"# How {source} is read. Edit it, and pass it on: iceform run ... --schema THIS.toml",
            '# type: "number", "date" (days since 1970), "text" (one indicator a level) or "out".',
            "[file]",
        ]
        if self.encoding:
            lines.append(f"encoding = {quoted(self.encoding)}")
        if self.separator:
            lines.append(f"separator = {quoted(self.separator)}")
        for column in self.columns:
            lines += ["", "[[columns]]"]
            for key, value in column.to_dict().items():
                lines.append(f"{key} = {quoted(value, ensure_ascii=False)}")
            lines += [f"# {' '.join(column.why.split())}"] if column.why else []
        return "\n".join(lines) + "\n"


def read_schema(path: str | Path) -> Schema:
    """A schema file."""
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as refused:
        raise IntegrityError(f"{path} cannot be read: {refused.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as wrong:
        raise IntegrityError(f"{path} is no schema: {shown(wrong)}") from None
    file, columns = found.get("file", {}), found.get("columns", [])
    if not isinstance(file, dict) or not isinstance(columns, list) or not columns:
        raise IntegrityError(f"{path} is no schema: it needs [file] and [[columns]]")
    return Schema(
        tuple(Column.from_dict(c, path.name) for c in columns),
        file.get("encoding"),
        file.get("separator"),
    )


def missing_removed(texts: Any) -> Any:
    """Trimmed, with null for what stands for a missing value."""
    arrow, compute = load("pyarrow"), load("pyarrow.compute")
    texts = compute.utf8_trim_whitespace(texts)
    absent = compute.is_in(texts, value_set=arrow.array(_MISSING))
    out = compute.if_else(absent, arrow.scalar(None, arrow.string()), texts)
    return out.combine_chunks() if hasattr(out, "combine_chunks") else out


def propose(columns: Mapping[str, Any], *, text: Iterable[str] = ()) -> tuple[Column, ...]:
    """A column each for these texts."""
    named = set(text)
    cleaned = {name: missing_removed(column) for name, column in columns.items()}
    known = {name: texts.drop_null() for name, texts in cleaned.items()}
    first = {name: _first(name, texts, name in named) for name, texts in cleaned.items()}
    settled = [c.spelling for c in first.values() if isinstance(c, Column) and c.spelling]
    commas = any(isinstance(s, Numbers) and s.decimal == "," for s in settled)
    points = any(c.spelling == Numbers() and _pointed(known[c.name])
                 for c in first.values() if isinstance(c, Column))  # fmt: skip
    mark = "," if commas else "." if points else None
    dates = {s for s in settled if isinstance(s, Dates)}
    return tuple(
        c if isinstance(c, Column) else _decided(name, known[name], c, mark, dates)
        for name, c in first.items()
    )


def _pointed(texts: Any) -> bool:
    """Whether plain numbers have decimal points."""
    compute = load("pyarrow.compute")
    return bool(compute.any(compute.match_substring(texts, ".")).as_py())


def _first(name: str, cleaned: Any, as_text: bool) -> Column | list[Spelling]:
    """What a column's own texts say: a column, or several readings."""
    compute = load("pyarrow.compute")
    if as_text:
        return Column(name, "text")
    texts = cleaned.drop_null()
    if not len(texts):
        return Column(name, "out", why="every cell is empty")
    matched = compute.match_substring_regex
    plain = Numbers()
    if plain.reads(texts):
        if why := _code(texts):
            return Column(name, "text", why=why)
        odd = matched(texts, r"^[+-]?[0-9]{1,3}\.[0-9]{3}$")
        if not (compute.all(odd).as_py()):
            return Column(name, "number", plain)
    found = list(spellings(texts))
    if len(found) == 1:
        return Column(name, *_typed(found[0], texts))
    return found if found else _words(name, cleaned)


def _typed(spelling: Spelling, texts: Any) -> tuple[str, Spelling, str]:
    kind = "date" if isinstance(spelling, Dates) else "number"
    return kind, spelling, f"{shown(texts[0])}: {spelling.says}" if spelling.says else ""


def _decided(
    name: str, texts: Any, found: list[Spelling], mark: str | None, dates: set[Dates]
) -> Column:
    """What the file's other columns say of several readings: their decimal mark, their dates."""
    plain = Numbers()
    if plain in found and mark != ",":
        return Column(name, "number", plain)
    wanted = [s for s in found if isinstance(s, Numbers) and s.decimal == mark]
    if len(wanted) == 1 and plain not in found:
        return Column(name, *_typed(wanted[0], texts))
    among = [s for s in found if s in dates]
    if len(among) == 1:
        return Column(name, *_typed(among[0], texts))
    values = [_spelled(s, s.values(texts[:1])[0]) for s in found[:2]]
    why = f"holds {shown(texts[0])}, which is {values[0]} or {values[1]}: nothing in the file tells"
    return Column(name, OPEN, why=f"{why}; {_DECIDE}")


def _spelled(spelling: Spelling, value: float) -> str:
    if isinstance(spelling, Dates):
        day = np.datetime64(0, "D") + np.timedelta64(int(value), "D")
        return str(day)
    return f"{value:.10g}"


def _words(name: str, cleaned: Any) -> Column:
    """Text; but a word among numbers is a slip, most likely, and must not become a level."""
    compute = load("pyarrow.compute")
    texts = cleaned.drop_null()
    for spelling in (*NUMBERS, Dates("ymd", "-")):
        read = compute.match_substring_regex(texts, spelling.pattern)
        count = int(compute.sum(read).as_py())
        if count == len(texts):
            return Column(name, OPEN, why=_together(spelling, texts))
        if 2 * count > len(texts):
            word = texts.filter(compute.invert(read))[0]
            row = compute.index(cleaned, word).as_py() + 1
            what = "dates" if isinstance(spelling, Dates) else "numbers"
            why = (
                f"holds {shown(word)} in row {row}, where {count:,} others are {what}; mend it, or "
                f"say that the column is text (text=[{name!r}], --text {name})"
            )
            return Column(name, OPEN, why=why)
    any_of = "|".join([SHORT, *(spelling.pattern for spelling in DATES)])
    if compute.all(compute.match_substring_regex(texts, any_of)).as_py():
        why = (
            f"holds dates such as {shown(texts[0])} in more than one order, or without their "
            f"century; write all as 2021-12-31, or say that the column is text (--text {name})"
        )
        return Column(name, OPEN, why=why)
    some = [word.as_py() for word in texts[:_LOOKED_AT]]
    veiled = [word for word in some if _unveiled(word)]
    if 2 * len(veiled) > len(some):
        why = (
            f"holds {veiled[0]!a}, a number but for marks around it, digits of another script, "
            "what is not seen, base 16 or a fraction; mend it, or say that the column is text "
            f"(--text {name})"
        )
        return Column(name, OPEN, why=why)
    return Column(name, "text")


def _unveiled(word: str) -> bool:
    """Whether a cell is a number once marks around it and what is not seen are taken away."""
    plain = unicodedata.normalize("NFKC", word)
    seen = "".join(c for c in plain if unicodedata.category(c) not in ("Cc", "Cf")).strip(_MARKS)
    if _NOTATIONS.fullmatch(seen):
        return True
    try:
        float(seen)
    except ValueError:
        return False
    return True


def _together(spelling: Spelling, texts: Any) -> str:
    """Why texts that read one by one do not read as a column."""
    if isinstance(spelling, Dates):
        return f"holds dates such as {shown(texts[0])}, and one that no calendar has; mend it"
    return (
        f"holds numbers such as {shown(texts[0])} in more than one unit; mend it: one currency, or "
        "all in per cent"
    )


def _code(texts: Any) -> str:
    """Why whole numbers among these texts are codes, or nothing."""
    compute = load("pyarrow.compute")
    matched = compute.match_substring_regex
    codes = texts.filter(matched(texts, CODES))
    if len(codes):
        return f"{shown(codes[0])} begins with 0: a code, not an amount"
    long = texts.filter(matched(texts, LONG)).to_pylist()
    found = next((text for text in long if int(text) != int(float(text))), None)
    return "" if found is None else f"{shown(found)} {NOT_HELD}"


def is_running(name: str, values: Any) -> bool:
    """Whether a column of numbers counts the rows from 0 or 1, and is not called a quantity."""
    numbers = np.asarray(values, dtype=np.float64)
    fewest = _FEWEST_RUNNING if _IDENTIFIER.search(name) else _FEWEST_UNNAMED
    if len(numbers) < fewest or numbers[0] not in (0.0, 1.0):
        return False
    return bool(np.array_equal(numbers, numbers[0] + np.arange(len(numbers))))


def left_out(column: Column, why: str) -> Column:
    """The same column, left out."""
    return replace(column, type="out", spelling=None, why=why)
