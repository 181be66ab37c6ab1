"""What becomes of a column: a scaled number, indicators, or nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from iceform.errors import DtypeError
from iceform_estimators.tables.table import first_value, is_number
from iceform_estimators.tables.words import counted, load

MISSING = "(missing)"  # how a missing value is called where it is a level


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
        absent = counted(self.missing, "missing value")
        return f"{absent} filled by the median {self.fill:.6g}; {scaled}"

    def encode(self, values: Any) -> np.ndarray:
        if not is_number(values):
            raise DtypeError(
                f"column {self.column!r} held numbers in the training rows and holds text now "
                f"({str(first_value(values))!r}); mend the file"
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
        words = f"{len(self.features)} indicators of {counted(len(self.known), 'level')}"
        if self.missing:
            words += f", one for {counted(self.missing, 'missing value')}"
        return words if self.reference is None else f"{words}; all 0 for {self.reference!r}"

    def _codes(self, values: Any) -> np.ndarray:
        """Position in ``known``, -1 where there is none."""
        pandas = load("pandas")
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
