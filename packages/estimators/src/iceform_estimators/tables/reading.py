"""Files: CSV or Parquet in and out.

Both go the same way: columns of text are read by a
:class:`~iceform_estimators.tables.schema.Schema`, given or proposed, so that the same table gives
the same numbers whichever file it comes in.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iceform.errors import DtypeError, IceformError, IntegrityError, ProgramError, ShapeError
from iceform_estimators.tables.cells import BLOCK, cells, layout_of
from iceform_estimators.tables.columns import (
    assembled,
    check_different,
    check_wanted,
    finite,
    text_column,
    typed_column,
)
from iceform_estimators.tables.schema import (
    NOT_HELD,
    Column,
    Schema,
    is_running,
    left_out,
    missing_removed,
    propose,
)
from iceform_estimators.tables.table import Table, first_value, is_number
from iceform_estimators.tables.words import counted, listed, load, shown

_PARQUET = b"PAR1"
_EXACT = 2**53  # whole numbers up to this are float64s
# What else people have, by how it begins.
_OTHERS = (
    (re.compile(rb"PK\x03\x04"), "a zipped folder, a workbook most likely; save the sheet as CSV"),
    (re.compile(rb"\xd0\xcf\x11\xe0"), "an old workbook; save the sheet as CSV"),
    (re.compile(rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"), "packed, and not by gzip; unpack it"),
    (re.compile(rb'\s*(?:\{\s*["}]|\[\s*[{\[])'), "JSON; save it as a table with a header"),
    (re.compile(rb"\s*<[!?a-zA-Z]"), "a page of HTML or XML; save the table as CSV"),
)


def read(
    path: str | Path,
    target: str | None = None,
    *,
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    schema: Schema | None = None,
    fewest: int = 2,
) -> Table:
    """Read a CSV or Parquet file; which of the two is found out from its first bytes.

    Every cell is in a column, or the file is refused. Numbers may have a decimal comma, marks
    between thousands and signs of money; dates become days since 1970; a column that counts the
    rows is left out. What was done is in the table's ``notes``, and how in its ``schema``.

    Parameters
    ----------
    path
        The file. A CSV file has a header, is UTF-8 (or what a byte order mark says), may be
        gzipped, and is separated by a comma, semicolon, tab, bar or space.
    target
        The column to predict; None for none.
    drop
        Columns to leave out.
    text
        Columns whose numbers are names: codes, not amounts.
    schema
        How to read it; proposed from the file by default.
    fewest
        Rows that there must be.
    """
    load("pandas")  # named first: where it is missing, pyarrow stumbles over that
    path = Path(path)
    columns, found, notes = _columns(path, schema)
    check_wanted(path.name, list(columns), target, drop, text)
    if schema is None:
        schema = _proposed(columns, found, target, text)
    else:
        schema.check_names(columns, path.name)
    notes = (*notes, *_remarks(schema, drop))
    out = {c.name for c in schema.columns if c.type == "out"} - {target}
    typed = {
        name: _read_column(column, schema.of(name), path.name, name in text)
        for name, column in columns.items()
        if name not in out and name not in drop
    }
    rows = len(next(iter(columns.values()))) if columns else 0
    return assembled(typed, target, rows, path.name, notes, fewest=fewest, schema=schema)


def columns_of(path: str | Path) -> list[str]:
    """Names of a file's columns."""
    return list(_columns(Path(path), None)[0])


def inspect(path: str | Path, target: str | None = None) -> tuple[Schema, tuple[str, ...]]:
    """A proposal of how to read a file, and what was noticed; nothing is refused that is open."""
    path = Path(path)
    columns, found, notes = _columns(path, None, guess=True)
    return _proposed(columns, found, target, ()), notes


def _columns(
    path: Path, schema: Schema | None, *, guess: bool = False
) -> tuple[dict[str, Any], Schema, tuple[str, ...]]:
    """Every column, as pyarrow strings or a typed pandas column; where from; what was noticed."""
    head = _head(path)
    for begins, what in _OTHERS:
        if begins.match(head):
            raise IntegrityError(f"{path} is neither Parquet nor CSV but {what}")
    try:
        if head.startswith(_PARQUET):
            columns, notes = _parquet(path)
            return columns, Schema(()), notes
        given = Schema(()) if schema is None else schema
        layout = layout_of(path, encoding=given.encoding, separator=given.separator, guess=guess)
        check_different(path.name, [n for n in layout.names if n])
        found = Schema((), layout.encoding, layout.separator)
        return cells(path, layout), found, layout.notes
    except IceformError:
        raise
    except LookupError as wrong:
        raise IntegrityError(f"{path} cannot be read: {shown(wrong)}") from None
    except (ValueError, OSError, EOFError) as wrong:  # what pyarrow, codecs and gzip raise
        raise IntegrityError(f"{path} cannot be read: {_one_line(wrong)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _parquet(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    pandas, arrow = load("pandas"), load("pyarrow")
    threads = path.stat().st_size > BLOCK
    frame = load("pyarrow.parquet").read_table(path, use_threads=threads)
    frame = frame.to_pandas(use_threads=threads)
    notes: tuple[str, ...] = ()
    if not isinstance(frame.index, pandas.RangeIndex):
        notes = ("the index of the file was taken for row names and left out",)
        frame = frame.reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    check_different(path.name, list(frame.columns))
    columns: dict[str, Any] = {}
    for name in frame.columns:
        column = frame[name]
        texts = pandas.api.types.infer_dtype(column, skipna=True) == "string"
        categories = isinstance(column.dtype, pandas.CategoricalDtype)
        columns[name] = column
        if texts and not categories:
            columns[name] = arrow.array(column.where(column.notna(), None), arrow.string())
    return columns, notes


def _is_text(column: Any) -> bool:
    arrow = load("pyarrow")
    return isinstance(column, arrow.Array | arrow.ChunkedArray)


def _proposed(
    columns: Mapping[str, Any], found: Schema, target: str | None, text: Sequence[str]
) -> Schema:
    texts = {name: column for name, column in columns.items() if _is_text(column)}
    proposals = {c.name: c for c in propose(texts, text=text)}
    running: list[str] = []
    for name, column in columns.items():
        if name not in proposals:
            proposals[name] = _of_values(name, column, name in text)
        made = proposals[name]
        if name != target and made.type == "number" and _counts_rows(column, made):
            running.append(name)
            proposals[name] = left_out(made, "it counts the rows: a number, not a quantity")
        if name == target and made.type == "out":
            proposals[name] = Column(name, "text")
    kept = [name for name in columns if name != target and proposals[name].type != "out"]
    if running and not kept:  # the only feature there is
        proposals[running[0]] = _plain(columns[running[0]], running[0])
    ordered = tuple(proposals[name] for name in columns)
    return Schema(ordered, found.encoding, found.separator)


def _of_values(name: str, column: Any, as_text: bool) -> Column:
    """Of a column that came with a type: whole numbers that no float64 is are codes."""
    if not as_text and load("pandas").api.types.is_integer_dtype(column):
        known = column[column.notna()]
        far = known[(known > _EXACT) | (known < -_EXACT)]
        long = next((value for value in far if int(float(value)) != int(value)), None)
        if long is not None:
            return Column(name, "text", why=f"{shown(long)} {NOT_HELD}")
    return Column(name, "text" if as_text else "number")


def _plain(column: Any, name: str) -> Column:
    return propose({name: column})[0] if _is_text(column) else Column(name, "number")


def _counts_rows(column: Any, made: Column) -> bool:
    types = load("pandas").api.types
    if _is_text(column):
        texts, compute = missing_removed(column), load("pyarrow.compute")
        whole = compute.all(compute.match_substring_regex(texts, "^[0-9]+$"), skip_nulls=False)
        if not whole.as_py():
            return False
        return is_running(made.name, made.read(column, ""))
    whole = types.is_integer_dtype(column) and not column.isna().any()
    return bool(whole) and is_running(made.name, column)


def _remarks(schema: Schema, drop: Sequence[str]) -> list[str]:
    """What was done that somebody might not expect."""
    notes = []
    for column in schema.columns:
        if column.name in drop or not column.why or column.type == "?":
            continue
        said = "left out, " if column.type == "out" else ""
        notes.append(f"column {column.name!r}: {said}{column.why}")
    if len(notes) > 12:
        notes = [*notes[:12], f"{counted(len(notes) - 12, 'more column')} read likewise"]
    return notes


def _read_column(column: Any, made: Column | None, source: str, as_text: bool) -> Any:
    assert made is not None
    as_text = as_text or made.type == "text"
    if not _is_text(column):
        return typed_column(column, made.name, source, as_text)
    if as_text:
        made = Column(made.name, "text")
    return finite(made.read(column, source), made.name)


def _head(path: Path) -> bytes:
    """The first bytes of a file that can be read and is not empty."""
    if path.is_dir():
        raise IntegrityError(f"{path} is a directory; name a CSV or Parquet file in it")
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except FileNotFoundError:
        raise IntegrityError(f"{path} does not exist; {_beside(path)}") from None
    except OSError as refused:
        raise IntegrityError(f"{path} cannot be read: {refused.strerror}") from None
    if not head:
        raise IntegrityError(f"{path} is empty (0 bytes); a table needs a header and rows")
    return head


def _beside(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.is_file()]
    except OSError:
        return f"nor does the folder {path.parent}; check the path"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {str(path.with_name(close[0]))!r}?" if close else "check the path"


def read_like(path: str | Path, like: Table) -> Table:
    """Read more rows for a table that was read before: its columns, read as they were."""
    path = Path(path)
    columns, _, notes = _columns(path, None)
    absent = [name for name in like.columns if name not in columns]
    if absent:
        names = listed([repr(name) for name in absent])
        raise ProgramError(f"{path.name} lacks columns of {like.source}: {names}; add them")
    typed = {name: _typed_like(columns[name], like, name, path.name) for name in like.columns}
    frame = load("pandas").DataFrame(typed)
    if not len(frame):
        raise ShapeError(f"{path.name} has no rows of data; add some")
    return Table(frame, None, path.name, notes, like.schema)


def _typed_like(column: Any, like: Table, name: str, source: str) -> Any:
    numbers = is_number(like.features[name])
    if _is_text(column):
        made = None if like.schema is None else like.schema.of(name)
        if made is None or made.type == "text" or made.spelling is None:
            (guess,) = propose({name: column})
            made = guess if numbers else Column(name, "text")
        typed = finite(made.read(column, source), name)
    elif not numbers:
        return text_column(column)
    elif column.isna().all():
        return column.astype("float64")
    else:
        typed = typed_column(column, name, source, as_text=False)
    if numbers and not is_number(typed):
        raise DtypeError(
            f"column {name!r} of {source} holds text ({shown(first_value(typed))}) where "
            "there were numbers before; mend it"
        )
    return typed


def write_rows(parts: Sequence[Mapping[str, Any]], suffix: str) -> bytes:
    """Rows of columns as the bytes of a file: Parquet for ``.parquet`` and ``.pq``, else CSV."""
    pandas = load("pandas")
    frame = pandas.concat([pandas.DataFrame(part) for part in parts], ignore_index=True)
    buffer = io.BytesIO()
    if suffix in (".parquet", ".pq"):
        load("pyarrow")
        frame.to_parquet(buffer, index=False)
    else:
        frame.to_csv(buffer, index=False)
    return buffer.getvalue()
