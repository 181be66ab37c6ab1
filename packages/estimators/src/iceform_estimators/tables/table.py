"""A table: typed columns, one of them the target."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iceform.errors import BoundError, DtypeError, ProgramError, ShapeError
from iceform_estimators.tables.words import counted, load

if TYPE_CHECKING:
    from iceform_estimators.tables.schema import Schema


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
    schema
        How its columns were read, where it came from a file.
    """

    features: Any
    target: Any
    source: str
    notes: tuple[str, ...] = ()
    schema: Schema | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of names, types and values as they were read, rows in order."""
        found = hashlib.sha256()
        columns = [*self.features.items(), *([] if self.target is None else [("", self.target)])]
        for name, column in columns:
            found.update(json.dumps([str(name), str(column.name), is_number(column)]).encode())
            if is_number(column):
                values = np.asarray(column, dtype="<f8") + 0.0  # one zero, and one NaN
                found.update(np.where(np.isnan(values), np.nan, values).tobytes())
            else:
                absent = column.isna()
                texts = [None if a else str(v) for v, a in zip(column, absent, strict=True)]
                found.update(json.dumps(texts).encode())
        return found.hexdigest()

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
        return replace(self, features=self.features.iloc[positions], target=target)

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
        if not is_number(target):
            raise DtypeError(
                f"the target column {target.name!r} of {self.source} holds text "
                f"({str(first_value(target))!r} in row {self.rows[0]}), a regression needs "
                "numbers; name another column, or use a classifier (logistic, knn-classifier)"
            )
        return np.array(target, dtype=np.float64)

    def classes(self) -> np.ndarray:
        """The target as labels, whole numbers or text, shape (n,)."""
        target = self._target()
        if not is_number(target):
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
                f"{self.source} has {counted(len(self), 'row')}; {tested} for testing leave fewer "
                "than 2 to learn from; use more rows or a smaller share of test rows "
                "(--test-share)"
            )
        divide = load("sklearn.model_selection").train_test_split
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


def is_number(column: Any) -> bool:
    """Whether a typed column holds numbers."""
    return bool(column.dtype == np.float64)


def first_value(column: Any) -> Any:
    """The first value that is not missing."""
    return column[column.notna()].iloc[0]
