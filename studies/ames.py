"""The Ames houses as study 4 encodes them, with statistics of the rows one says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iceform_estimators.tables import Category, Number, Table, ames
from iceform_estimators.tables.table import is_number

__all__ = ["Encoder", "houses", "number_columns"]

IDENTIFIERS = ("Order", "PID")


@lru_cache(maxsize=1)
def houses() -> Table:
    """All 2930 sales; row and parcel numbers are among the features, and kinds are numbers."""
    return ames(drop=("rownames",), text=())


def number_columns(data: Table) -> list[str]:
    """Features that are numbers, 36 of the 79; identifiers are no features."""
    features = [name for name in data.columns if name not in IDENTIFIERS]
    return [name for name in features if is_number(data.features[name])]


@dataclass(frozen=True)
class Encoder:
    """Median for missing numbers, standardised; then one column per level but the first.

    Every split has the same width, as the networks need it: what says nothing in the rows it is
    fitted on is a column of zeros.

    Parameters
    ----------
    missing_level
        Whether a missing category is a level of its own (276 columns) or all zeros (260).
    identifiers
        Whether row and parcel numbers count as features, as in our reading of study 4 (262
        columns; the script has 262 others, of 1460 rows).
    """

    missing_level: bool = True
    identifiers: bool = False

    def __call__(self, data: Table, fitted_on: NDArray[np.int64]) -> Tensor:
        """All rows encoded, with statistics and levels of the rows ``fitted_on`` alone."""
        numbers = number_columns(data)
        texts = [n for n in data.columns if n not in (*numbers, *IDENTIFIERS)]
        if self.identifiers:
            numbers += IDENTIFIERS
        blocks = [_number(data.features[name], fitted_on) for name in numbers]
        blocks += [self._indicators(data.features[name], fitted_on) for name in texts]
        return torch.from_numpy(np.concatenate(blocks, 1))

    def _indicators(self, column: Any, fitted_on: NDArray[np.int64]) -> NDArray[np.float64]:
        levels = tuple(sorted(column.dropna().unique()))
        missing = int(column.isna().sum()) if self.missing_level else 0
        block = Category(str(column.name), missing, levels, reference=levels[0]).encode(column)
        block[:, ~block[fitted_on].any(0)] = 0.0
        return block


def _number(column: Any, fitted_on: NDArray[np.int64]) -> NDArray[np.float64]:
    learnt = Number.fitted(column.iloc[fitted_on], scale=True)
    return learnt.encode(column) if learnt.features else np.zeros((len(column), 1))
