"""The Ames houses as study 4 encodes them, with statistics of the rows one says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from iceform_estimators.tables import TableData

__all__ = ["Encoder", "houses", "number_columns"]

IDENTIFIERS = ("Order", "PID")


@lru_cache(maxsize=1)
def houses() -> TableData:
    """All 2930 sales; row and parcel numbers are among the features, and kinds are numbers."""
    from iceform_estimators.tables import ames

    return ames(drop=("rownames",), text=())


def number_columns(data: TableData) -> list[str]:
    """Features that are numbers, 36 of the 79; identifiers are no features."""
    from iceform_estimators.tables import is_number

    features = [name for name in data.features if name not in IDENTIFIERS]
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

    def __call__(self, data: TableData, fitted_on: NDArray[np.int64]) -> Tensor:
        """All rows encoded, with statistics and levels of the rows ``fitted_on`` alone."""
        numbers = number_columns(data)
        texts = [n for n in data.features if n not in (*numbers, *IDENTIFIERS)]
        if self.identifiers:
            numbers += IDENTIFIERS
        blocks = [_number(data.features[name], fitted_on) for name in numbers]
        blocks += [self._indicators(data.features[name], fitted_on) for name in texts]
        return torch.from_numpy(np.concatenate(blocks, 1))

    def _indicators(self, column: Any, fitted_on: NDArray[np.int64]) -> NDArray[np.float64]:
        levels = sorted(column.dropna().unique())[1:]
        block = np.stack([np.asarray(column == level, dtype=np.float64) for level in levels], 1)
        if self.missing_level and column.isna().any():
            block = np.column_stack([block, np.asarray(column.isna(), dtype=np.float64)])
        block[:, ~block[fitted_on].any(0)] = 0.0
        return block


def _number(column: Any, fitted_on: NDArray[np.int64]) -> NDArray[np.float64]:
    learnt = column.iloc[fitted_on]
    fill = float(np.median(learnt.dropna()))
    known, values = (np.asarray(c.fillna(fill), dtype=np.float64) for c in (learnt, column))
    if known.min() == known.max():
        return np.zeros((len(values), 1))
    largest = float(np.abs(known).max())  # divided by, so that no square overflows
    size = largest * float((known / largest).std())
    return np.asarray(((values - float(known.mean())) / size)[:, None])
