"""A few attacks of every family; ``make attack`` makes many."""

import pytest

from tests.attacks.__main__ import Row
from tests.attacks.families import FAMILIES

# Most of a family's cases are certified, and tightly; what is dear to make is attacked less.
FEW = {"Huber, optimum": 3, "quantile lines": 4, "look-ups": 6}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_certificate_is_violated(family):
    seeds = range(10_000, 10_000 + FEW.get(family, 5))
    row = Row.of(family, seeds, [FAMILIES[family](seed) for seed in seeds])
    assert not row.violated, row
    assert row.claimed, "nothing was certified, so nothing was attacked"
    assert row.ratio <= 1000, row
