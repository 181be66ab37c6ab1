"""How rows of a table become rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from iceform.errors import BoundError, ProgramError, ShapeError
from iceform.validation import check_capacity, check_choice
from iceform_estimators.tables.table import Table, is_number
from iceform_estimators.tables.treatments import (
    MISSING,
    Category,
    LeftOut,
    Number,
    Treatment,
    Unknown,
)
from iceform_estimators.tables.words import counted, listed

UNKNOWN = ("error", "ignore")


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
            if is_number(table.features[name])
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
            reasons = listed([f"{t.column!r} ({t.why})" for t in out], most=3)
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
            names = listed([repr(name) for name in absent])
            raise ProgramError(
                f"{table.source} lacks columns of the training rows: {names}; add them"
            )

    def _strange(self, strange: Sequence[Unknown]) -> str:
        first, others = strange[0], len({u.column for u in strange}) - 1
        (levels,) = (
            t.known for t in self.treatments if isinstance(t, Category) and t.column == first.column
        )
        value = "a missing value" if first.value == MISSING else repr(first.value)
        more = f" ({counted(others, 'other column')} likewise)" if others else ""
        return (
            f"column {first.column!r} holds {value} in row {first.row}, which no training row "
            f"has{more}; known are {listed(levels)}; leave such rows out, or encode what is "
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
            lines.append((counted(len(numbers), "number column"), scaled))
        if texts:
            lines.append((counted(len(texts), "text column"), self._indicators(texts)))
        filled = {t.column: t.missing for t in numbers if t.missing}
        if filled:
            total = counted(sum(filled.values()), "missing number")
            lines.append((total, f"filled by the median: {_tally(filled)}"))
        lines += [(f"left out: {t.column}", t.why) for t in out]
        return lines

    def _indicators(self, texts: Sequence[Category]) -> str:
        words = counted(sum(len(t.features) for t in texts), "indicator")
        absent = {t.column: t.missing for t in texts if t.missing}
        if absent:
            words += f"; missing is a level in {len(absent)} of them"
        if any(t.reference is not None for t in texts):
            words += "; the most frequent level is the reference"
        return words


def _tally(counts: dict[str, int], most: int = 3) -> str:
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return listed([f"{name} ({count:,})" for name, count in ranked], most)
