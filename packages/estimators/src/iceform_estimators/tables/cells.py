"""A CSV file as named columns of text: every cell is in one of them, or the file is refused.

pyarrow splits the file; a row whose number of cells is not that of the others is an error there.
What is decided here is the :class:`Layout`: encoding, separator, and how the header sits on the
rows. Three ways to sit are common: as many names as cells; one name fewer, since the first cells
are row names (R's ``write.table``); one fewer, since every row ends in a separator.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from iceform.errors import BoundError, IntegrityError, ShapeError
from iceform_estimators.tables.words import counted, load, shown

_GZIP = b"\x1f\x8b"
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins as UTF-16's does
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SEPARATORS = (",", ";", "\t", "|")
_WIDEST = 20_000  # columns
_LONGEST_HEADER = 1 << 20  # characters
_LONGEST_CELL = 1 << 15  # characters; a spreadsheet's limit too
BLOCK = 1 << 24  # bytes that are split at once
_LEGACY = "cp1252"


@dataclass(frozen=True)
class Layout:
    """How a file is laid out.

    Attributes
    ----------
    encoding
        Of its characters.
    separator
        Between cells.
    names
        Of the columns, one a cell; empty for cells that hold nothing.
    skipped
        Lines before the first row.
    notes
        What was noticed.
    """

    encoding: str
    separator: str
    names: tuple[str, ...]
    skipped: int
    notes: tuple[str, ...] = ()


def layout_of(
    path: Path, *, encoding: str | None = None, separator: str | None = None, guess: bool = False
) -> Layout:
    """Find it out from the bytes; ``guess`` takes what is not UTF-8 for a Western code page."""
    notes: list[str] = []
    if encoding is None:
        encoding = _encoding(path, guess)
        if encoding == _LEGACY:
            notes.append(f"not UTF-8: read as {_LEGACY}, Windows' Western code page")
    with _opened(path, encoding) as file:
        header, skipped, announced = _header(path, file, notes)
        separator = separator or announced or _separator(header)
        names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
        rows = csv.reader(file, delimiter=separator)
        firsts = [row for row, _ in zip(_filled(rows), range(100), strict=False)]
    if separator != ",":
        notes.append(f"columns are separated by {separator!r}")
    if not any(names):
        raise IntegrityError(f"{path} has no header; its first line must name the columns")
    notes += _check_names(path, names)
    if len(names) > _WIDEST:
        raise ShapeError(
            f"{path} has {len(names):,} columns, more than {_WIDEST:,}; leave some out"
        )
    placed, note = _placed(path, names, firsts)
    return Layout(encoding, separator, placed, skipped, (*notes, *note))


def _check_names(path: Path, names: list[str]) -> list[str]:
    """Refuse a first line of numbers, which is a row and no header; names may count from anywhere.

    What is written of a matrix without names has 0, 1, 2, ... as names, and years are names too.
    """
    quoted = [name for name in names if name.strip().startswith('"') and name.strip() != '"']
    if quoted:
        raise IntegrityError(
            f"{path} names a column {shown(quoted[0])}: quotation marks behind a blank count as "
            "text, and separators between them as separators; remove the blanks behind separators"
        )
    try:
        numbers = [float(name) for name in names if name]
    except ValueError:
        return []
    if any(b - a != 1 or not a.is_integer() for a, b in pairwise(numbers)) or len(numbers) < 2:
        raise IntegrityError(
            f"{path} has no header: its first line holds numbers alone "
            f"({shown(', '.join(names))}); name the columns in a line above"
        )
    return [f"the columns' names are numbers ({shown(', '.join(names))}), not a row"]


def _separator(header: str) -> str:
    """What the header has most of; a space where it has nothing else."""
    found = max(_SEPARATORS, key=header.count)
    return " " if found not in header and " " in header.strip() else found


def _filled(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if row)


def _raw(path: Path) -> IO[bytes]:
    """Its bytes, unzipped."""
    with path.open("rb") as file:
        zipped = file.read(2) == _GZIP
    opened: Any = gzip.open if zipped else open
    file = opened(path, "rb")
    return file  # type: ignore[no-any-return]


def _opened(path: Path, encoding: str) -> IO[str]:
    return io.TextIOWrapper(_raw(path), encoding=encoding, newline="")


def _bytes(path: Path) -> Iterator[bytes]:
    with _raw(path) as raw:
        while part := raw.read(1 << 20):
            yield part


def _encoding(path: Path, guess: bool) -> str:
    """UTF-8, or what a byte order mark says; a code page only where that is asked for."""
    decoder, before = codecs.getincrementaldecoder("utf-8")(), 0
    for part in _bytes(path):
        if before == 0:
            for mark, name in _MARKS.items():
                if part.startswith(mark):
                    return name
            if b"\x00" in part[:4096]:
                why = "holds zero bytes; if it is UTF-16 without its mark, save it as UTF-8"
                raise IntegrityError(f"{path} is neither Parquet nor CSV: it {why}")
        try:
            decoder.decode(part)
        except UnicodeDecodeError as wrong:
            if guess:
                return _LEGACY
            around = part[max(0, wrong.start - 12) : wrong.start + 12].decode(_LEGACY, "replace")
            raise IntegrityError(
                f"{path} is neither Parquet nor CSV in UTF-8 (byte {before + wrong.start}: "
                f"{wrong.reason}); as {_LEGACY} it reads {shown(around)}: if that is right, let "
                "iceform inspect write a schema and pass it on (--schema), or save it as UTF-8"
            ) from None
        before += len(part)
    return "utf-8"


def _header(path: Path, file: IO[str], notes: list[str]) -> tuple[str, int, str | None]:
    """The line of names, the lines up to it, and the separator that a first line announces."""
    lines, announced, header = 0, None, ""
    while lines < 100:
        line = file.readline(_LONGEST_HEADER)
        lines += 1
        if len(line) == _LONGEST_HEADER:
            raise ShapeError(
                f"{path} begins with a line of more than {_LONGEST_HEADER:,} characters, which is "
                "no header; its first line must name the columns"
            )
        if line.lower().startswith("sep=") and len(line.strip()) == 5:  # as spreadsheets write it
            announced = line.strip()[4]
            continue
        if not header and line.startswith("#") and not any(s in line for s in _SEPARATORS):
            notes.append(
                f"a remark was passed over: {shown(line)}"
            )  # a header may begin with # too
            continue
        header += line
        if (header.strip() and header.count('"') % 2 == 0) or not line:
            break
        if not header.strip():
            header = ""
    return header.rstrip("\r\n"), lines, announced


def _placed(
    path: Path, names: list[str], rows: list[list[str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """One name for each cell of a row."""
    widths = {len(row) for row in rows}
    more = len(names) + 1
    if rows and widths == {more}:
        if not any(row[-1].strip() for row in rows):
            return (*names, ""), ("every row ends in a separator; nothing follows it",)
        if len({row[0] for row in rows}) == len(rows):
            note = "rows have one cell more than the header: the first were taken for row names"
            return ("", *names), (f"{note} and left out",)
    if names[0] == "" and len(names) > 1:
        note = "the first column has no name: it was taken for row names and left out"
        return tuple(names), (note,)
    return tuple(names), ()


def cells(path: Path, layout: Layout) -> dict[str, Any]:
    """Every named column as pyarrow strings; an empty cell is missing.

    In this thread alone: a worker that lets go of the file while Python shuts down aborts it.
    """
    arrow, reader = load("pyarrow"), load("pyarrow.csv")
    keys = [str(i) for i in range(len(layout.names))]
    try:
        with _raw(path) as file:
            table = reader.read_csv(
                file,
                read_options=reader.ReadOptions(
                    column_names=keys, skip_rows=layout.skipped,
                    block_size=BLOCK, use_threads=False,
                    encoding="utf-8" if layout.encoding == "utf-8-sig" else layout.encoding,
                ),
                parse_options=reader.ParseOptions(
                    delimiter=layout.separator, newlines_in_values=True
                ),
                convert_options=reader.ConvertOptions(
                    column_types=dict.fromkeys(keys, arrow.string()), null_values=[""],
                    strings_can_be_null=True, quoted_strings_can_be_null=True,
                ),
            )  # fmt: skip
    except arrow.ArrowInvalid as wrong:
        if "Empty CSV" in str(wrong):
            return {n: arrow.chunked_array([[]], arrow.string()) for n in layout.names if n}
        why = _uneven(path, layout) or f"{path} cannot be read: {shown(wrong)}"
        raise IntegrityError(why) from None
    found = {}
    for name, key in zip(layout.names, keys, strict=True):
        column = table[key]
        if not name:
            _check_nothing(path, column, int(key))
            continue
        _check_lengths(path, name, column)
        found[name] = column
    return found


def _check_nothing(path: Path, column: Any, place: int) -> None:
    """Only row names and empty columns may be without a name."""
    if place > 0 and column.null_count < len(column):
        first = column.drop_null()[0].as_py()
        raise IntegrityError(
            f"column {place + 1} of {path.name} has no name and holds {shown(first)}; name it in "
            "the header"
        )


def _check_lengths(path: Path, name: str, column: Any) -> None:
    compute = load("pyarrow.compute")
    longest = compute.max(compute.binary_length(column)).as_py() or 0
    if longest > _LONGEST_CELL:
        raise BoundError(
            f"column {shown(name)} of {path.name} has a cell of {longest:,} bytes, more than "
            f"{_LONGEST_CELL:,}: a quotation mark that nothing closes, most likely; mend it"
        )


def _uneven(path: Path, layout: Layout) -> str | None:
    """The first row with another number of cells than there are names."""
    with _opened(path, layout.encoding) as file:
        for _ in range(layout.skipped):
            file.readline()
        rows = csv.reader(file, delimiter=layout.separator)
        try:
            for at, row in enumerate(_filled(rows), 1):
                if any(len(cell) > _LONGEST_CELL for cell in row):
                    return (
                        f"{path.name} has a cell of more than {_LONGEST_CELL:,} characters in row "
                        f"{at}: a quotation mark that nothing closes, most likely; mend it"
                    )
                if len(row) != len(layout.names):
                    found, wanted = counted(len(row), "cell"), counted(len(layout.names), "column")
                    mend = f"mend the row, or quote cells that hold {layout.separator!r}"
                    if any("\n" in cell for cell in row):
                        mend = "a quotation mark that nothing closes, most likely; mend it"
                    if layout.separator == " " and "" in (*row, *layout.names):
                        mend = "columns stand below each other; put a comma or one space between"
                    return (
                        f"{path.name} has {found} in row {at} "
                        f"({shown(layout.separator.join(row))}) where there are {wanted}: no cell "
                        f"may be without a column; {mend}"
                    )
        except (csv.Error, UnicodeError) as wrong:
            return f"{path.name} cannot be read: {shown(wrong)}"
    return None
