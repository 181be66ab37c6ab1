"""Files: CSV or Parquet in and out."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iceform.errors import DtypeError, IceformError, IntegrityError, ProgramError, ShapeError
from iceform.tables.columns import check_different, table_from, text_column, typed_column
from iceform.tables.extra import load
from iceform.tables.table import Table, first_value, is_number
from iceform.tables.words import listed

__all__ = ["read", "read_like", "write_rows"]

_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_SEPARATORS = (",", ";", "\t", "|")


def read(
    path: str | Path,
    target: str | None = None,
    *,
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    fewest: int = 2,
) -> Table:
    """Read a CSV or Parquet file; which of the two is found out from its first bytes.

    Parameters
    ----------
    path
        The file. A CSV file has a header, is UTF-8, may be gzipped, and is separated by a comma,
        semicolon, tab or bar.
    target
        The column to predict; None for none.
    drop
        Columns to leave out.
    text
        Columns whose numbers are names: codes, not amounts.
    fewest
        Rows that there must be.
    """
    path = Path(path)
    frame, notes = _frame(path, _head(path))
    return table_from(
        frame, target, drop=drop, text=text, source=path.name, notes=notes, fewest=fewest
    )


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


def _frame(path: Path, head: bytes) -> tuple[Any, tuple[str, ...]]:
    pandas = load("pandas")
    try:
        if head.startswith(_PARQUET):
            load("pyarrow")
            return pandas.read_parquet(path), ()
        return _read_csv(pandas, path, head)
    except UnicodeDecodeError as wrong:
        raise IntegrityError(
            f"{path} is neither Parquet nor CSV in UTF-8 (byte {wrong.start}: {wrong.reason}); "
            "save it as one of them"
        ) from None
    except IceformError:
        raise
    except (ValueError, OSError, EOFError) as wrong:  # what pandas, pyarrow and gzip raise
        raise IntegrityError(f"{path} cannot be read: {_one_line(wrong)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def read_like(path: str | Path, like: Table) -> Table:
    """Read more rows for a table that was read before: its columns and types; no others."""
    path = Path(path)
    frame, notes = _frame(path, _head(path))
    absent = [name for name in like.columns if name not in frame.columns]
    if absent:
        names = listed([repr(name) for name in absent])
        raise ProgramError(f"{path.name} lacks columns of {like.source}: {names}; add them")
    if not len(frame):
        raise ShapeError(f"{path.name} has no rows of data; add some")
    typed = {
        name: _typed_like(frame[name], like.features[name], path.name) for name in like.columns
    }
    return Table(load("pandas").DataFrame(typed), None, path.name, notes)


def _typed_like(column: Any, like: Any, source: str) -> Any:
    if not is_number(like):
        return text_column(column)
    if column.isna().all():
        return column.astype(np.float64)
    typed = typed_column(column, str(like.name), source, as_text=False)
    if not is_number(typed):
        raise DtypeError(
            f"column {like.name!r} of {source} holds text ({str(first_value(typed))!r}) where "
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


def _read_csv(pandas: Any, path: Path, head: bytes) -> tuple[Any, tuple[str, ...]]:
    opener = gzip.open if head.startswith(_GZIP) else open
    if b"\x00" in head and opener is open:
        raise IntegrityError(f"{path} is neither Parquet nor CSV: it holds zero bytes")
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        first = file.readline().removeprefix(_BYTE_ORDER_MARK)
    separator = max(_SEPARATORS, key=first.count)
    names = next(csv.reader(io.StringIO(first), delimiter=separator), [])
    if not any(name.strip() for name in names):
        raise IntegrityError(f"{path} has no header; its first line must name the columns")
    check_different(path.name, [n for n in names if n])
    frame = pandas.read_csv(
        path,
        sep=separator,
        encoding="utf-8-sig",
        compression="gzip" if opener is gzip.open else None,
        low_memory=False,
        index_col=False,
        skipinitialspace=True,
    )
    notes = [] if separator == "," else [f"columns are separated by {separator!r}"]
    if not names[0].strip() and len(names) > 1:
        frame = frame.drop(columns=frame.columns[0])
        notes.append("the first column has no name: it was taken for row names and left out")
    return frame, tuple(notes)
