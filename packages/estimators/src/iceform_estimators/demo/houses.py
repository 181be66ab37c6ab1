"""The Ames houses as numbers: split first, then prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from iceform_estimators.preparation import Preparation
from iceform_estimators.tables import ames
from iceform_estimators.tuning import TEST_SHARE

Array = np.ndarray[Any, np.dtype[np.float64]]
SEED = 0


@dataclass(frozen=True, eq=False)
class Houses:
    """Training and test rows as numbers.

    Attributes
    ----------
    x, x_test
        Prepared features.
    price, price_test
        Sale prices in dollars.
    names
        Of the features.
    repeats
        Features left out because they repeat another one on the training rows.
    features
        Columns of the table before preparation.
    """

    x: Array
    x_test: Array
    price: Array
    price_test: Array
    names: list[str]
    repeats: int
    features: int


def load(rows: int | None = None, seed: int = SEED) -> Houses:
    """Split, then prepare: what is learnt is learnt from the training rows.

    Parameters
    ----------
    rows
        Only so many houses, for a quick look; all by default.
    seed
        Of the split.
    """
    table = ames()
    order = np.random.default_rng(seed).permutation(len(table))[:rows]
    tests = round(TEST_SHARE * len(order))
    train, test = table.take(np.sort(order[tests:])), table.take(np.sort(order[:tests]))
    # A level that only the test rows have is encoded as none of the known ones.
    prepared = Preparation.fit(train, reference=True, unknown="ignore")
    x, x_test = (prepared.transform(part) for part in (train, test))
    _, first = np.unique(x, axis=1, return_index=True)
    keep = np.sort(first)
    return Houses(
        x[:, keep],
        x_test[:, keep],
        train.numbers(),
        test.numbers(),
        [prepared.names[j] for j in keep],
        x.shape[1] - len(keep),
        table.features.shape[1],
    )
