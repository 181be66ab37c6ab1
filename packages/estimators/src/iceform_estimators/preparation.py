"""How rows of a table become rows of a matrix: scikit-learn's ColumnTransformer, with a report.

Everything is learnt from the training rows alone: the median that fills missing numbers, their
mean and deviation, the levels of a text column.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from iceform.errors import BoundError, DtypeError, ProgramError, ShapeError
from iceform.validation import check_capacity, check_choice
from iceform_estimators.tables import TableData, counted, is_number, listed

MISSING = "(missing)"  # how a missing value is called where it is a level


@dataclass(frozen=True, eq=False)
class Treatment:
    """What becomes of one column.

    Attributes
    ----------
    kind
        "number", "text" or "left out".
    done
        What was done, in words.
    step
        scikit-learn's transformer of the column; None where it is left out.
    levels
        Of a text column, those of the training rows.
    """

    kind: str
    done: str
    step: Any = None
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Preparation:
    """How rows of a table become rows of a matrix; learnt from training rows only.

    All levels of a text column get an indicator by default, so that no level is special: neither to
    a penalty, which would shrink towards the level left out, nor to a distance. A model with an
    intercept and no penalty needs ``reference=True``, since indicators that add up to one leave its
    coefficients undetermined; the level left out is the most frequent one.

    Attributes
    ----------
    transformer
        What scikit-learn fitted: one step for each column that is kept.
    treatments
        What becomes of each column, by name.
    missing
        Missing values of each column among the training rows.
    unknown
        What happens to a text that the training rows did not have: "error", or "ignore", which
        sets all indicators to 0 (with a reference level: takes it for that).

    Examples
    --------
    >>> from iceform_estimators.tables import table_from
    >>> table = table_from({"size": [30, 45, 60], "kind": ["a", "b", "a"]})
    >>> prepared = Preparation.fit(table, scale=False)
    >>> prepared.names
    ['size', 'kind=a', 'kind=b']
    >>> prepared.transform(table)[0]
    array([30.,  1.,  0.])
    """

    transformer: ColumnTransformer
    treatments: Mapping[str, Treatment]
    missing: Mapping[str, int]
    unknown: str

    @classmethod
    def fit(
        cls,
        table: TableData,
        *,
        scale: bool = True,
        reference: bool = False,
        unknown: str = "error",
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
        """
        check_choice("unknown", unknown, ("error", "ignore"))
        frame = _filled(table.features)
        treatments = {str(name): _treatment(frame[name], scale, reference) for name in frame}
        steps = [(name, one.step, [name]) for name, one in treatments.items() if one.step]
        if not steps:
            reasons = [f"{name!r} ({one.done})" for name, one in treatments.items()]
            raise ShapeError(f"{table.source} has no features left: {listed(reasons)}; add others")
        made = ColumnTransformer(steps, verbose_feature_names_out=False, sparse_threshold=0)
        missing = {str(name): int(table.features[name].isna().sum()) for name in frame}
        return cls(made.fit(frame), treatments, missing, unknown)

    @property
    def names(self) -> list[str]:
        """Names of the matrix's columns."""
        return [str(name) for name in self.transformer.get_feature_names_out()]

    def unknowns(self, table: TableData) -> list[dict[str, Any]]:
        """Texts that the training rows did not have: column, value, first row, and how often."""
        strange: list[dict[str, Any]] = []
        for name, one in self.treatments.items():
            if one.kind != "text":
                continue
            column = _filled(table.features[[name]])[name]
            odd = column[~column.isin(one.levels)]
            for value, rows in odd.groupby(odd):
                found = {"column": name, "value": str(value), "row": int(rows.index[0]) + 1}
                strange.append({**found, "count": len(rows)})
        return strange

    def transform(self, table: TableData) -> np.ndarray:
        """The matrix of these rows, shape (n, len(names)), float64."""
        self._check_columns(table)
        fix = "leave out text columns with many levels (--drop)"
        need = 8 * len(table) * (len(self.names) + 1)
        check_capacity("the prepared table", need, torch.device("cpu"), fix)
        strange = self.unknowns(table)
        if strange and self.unknown == "error":
            first = strange[0]
            known = self.treatments[first["column"]].levels
            raise BoundError(
                f"column {first['column']!r} of {table.source} holds {first['value']!r} in row "
                f"{first['row']}, which no training row has; known are {listed(known)}; leave such "
                "rows out, or encode what is unknown as zeros (unknown='ignore', --unknown ignore)"
            )
        with warnings.catch_warnings():  # of texts that are unknown, which was asked for
            warnings.simplefilter("ignore", UserWarning)
            made = self.transformer.transform(_filled(table.features))
        return np.asarray(made, dtype=np.float64)

    def _check_columns(self, table: TableData) -> None:
        for name, one in self.treatments.items():
            if one.kind == "left out":
                continue
            if name not in table.features:
                raise ProgramError(
                    f"{table.source} lacks the column {name!r}, which training rows have; add it"
                )
            if is_number(table.features[name]) != (one.kind == "number"):
                raise DtypeError(
                    f"column {name!r} of {table.source} held {one.kind}s in the training rows and "
                    "does not now; mend the file"
                )

    def report(self) -> list[dict[str, Any]]:
        """What was done to each column, for JSON."""
        return [
            {"column": name, "kind": one.kind, "missing": self.missing[name], "done": one.done}
            for name, one in self.treatments.items()
        ]

    def summary(self) -> list[tuple[str, str]]:
        """The report in a few lines: what, and how much of it."""
        lines = []
        words = {"number": "filled by the median", "text": "a level of their own"}
        for kind, what in words.items():
            own = {name: one for name, one in self.treatments.items() if one.kind == kind}
            if not own:
                continue
            done = next(iter(own.values())).done if kind == "number" else "one-hot"
            lines.append((counted(len(own), f"{kind} column"), done))
            filled = sum(self.missing[name] for name in own)
            if filled:
                lines.append((counted(filled, f"missing {kind}"), what))
        out = {name: one for name, one in self.treatments.items() if one.kind == "left out"}
        return lines + [(f"left out: {name}", one.done) for name, one in out.items()]


def _filled(features: pandas.DataFrame) -> pandas.DataFrame:
    """With a level for missing texts; missing numbers stay, for the imputer."""
    texts = [name for name in features if not is_number(features[name])]
    made = {
        name: features[name].astype(object).where(features[name].notna(), MISSING) for name in texts
    }
    return pandas.DataFrame({name: made.get(name, features[name]) for name in features})


def _treatment(column: Any, scale: bool, reference: bool) -> Treatment:
    levels = column.value_counts()
    if not len(levels):
        return Treatment("left out", "no value in the training rows")
    if len(levels) == 1:
        return Treatment("left out", f"constant: always {levels.index[0]} in the training rows")
    if is_number(column):
        fill = SimpleImputer(strategy="median")
        if not scale:
            return Treatment("number", "as they are", fill)
        return Treatment("number", "centred and scaled", make_pipeline(fill, StandardScaler()))
    if len(levels) == len(column):
        return Treatment("left out", "an identifier: every row has a text of its own")
    common = column.mode()[0] if reference else None
    encoder = OneHotEncoder(
        drop=None if common is None else [common],
        handle_unknown="ignore",
        sparse_output=False,
        feature_name_combiner=lambda name, level: f"{name}={level}",
    )
    beside = "" if common is None else f"; all 0 for {common!r}"
    done = f"indicators of {len(levels)} levels{beside}"
    return Treatment("text", done, encoder, tuple(sorted(map(str, levels.index))))
