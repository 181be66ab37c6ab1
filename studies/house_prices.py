"""``house_prices`` of OpenML, the table that study 4's script reads, encoded as the script does.

It is a part of the Ames table: 1460 of its 2930 sales in another order, with a number ``Id`` from 1
on in place of De Cock's own. ``house_prices.txt`` holds, for each Id, the row of the Ames table, so
nothing is downloaded. Ids are features in the script, as is everything else but the price.

The encoding: missing words are the level "Missing" and missing numbers the median; a column for
every level but the first; then every column, those of the levels included, less its mean over its
standard deviation. All of it is fitted on all rows. 37 numbers and 225 levels make 262 columns.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from studies.ames import IDENTIFIERS, houses

__all__ = ["house_prices", "raw_house_prices", "rows_in_ames"]

_MISSING = "Missing"
_PRICE = "SalePrice"
# The Ames table that we have lacks the word for no veneer: where the area is known, it belongs.
_VENEER, _VENEER_AREA, _NO_VENEER = "Mas.Vnr.Type", "Mas.Vnr.Area", "None"


def rows_in_ames() -> NDArray[np.int64]:
    """Row of the Ames table for Id 1, 2, ..., 1460."""
    text = files("studies").joinpath("house_prices.txt").read_text(encoding="ascii")
    return np.array(text.split(), dtype=np.int64)


def raw_house_prices() -> Any:
    """The table as a frame: Id, the features as they are, and SalePrice."""
    data, rows = houses(), rows_in_ames()
    frame = data.features.iloc[rows].drop(columns=list(IDENTIFIERS)).reset_index(drop=True)
    known = frame[_VENEER_AREA].notna() & frame[_VENEER].isna()
    frame.loc[known, _VENEER] = _NO_VENEER
    frame.insert(0, "Id", np.arange(1.0, len(rows) + 1))
    frame[_PRICE] = data.numbers()[rows]
    return frame


@lru_cache(maxsize=1)
def house_prices() -> tuple[Tensor, Tensor]:
    """X (1460, 262) and log(1 + price) (1460,), float64."""
    frame = raw_house_prices()
    price = np.asarray(frame.pop(_PRICE), dtype=np.float64)
    x = np.concatenate([_encoded(frame[name]) for name in frame.columns], 1)
    scaled = (x - x.mean(0)) / x.std(0)
    return torch.from_numpy(scaled), torch.from_numpy(np.log1p(price))


def _encoded(column: Any) -> NDArray[np.float64]:
    """A number, its median where it is missing; or an indicator for every level but the first."""
    from iceform_estimators.tables import is_number

    if is_number(column):
        return np.asarray(column.fillna(column.median()), dtype=np.float64)[:, None]
    words = column.fillna(_MISSING)
    levels = sorted(words.unique())
    return np.stack([np.asarray(words == level, dtype=np.float64) for level in levels[1:]], 1)
