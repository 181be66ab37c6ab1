"""A few attacks of every family; ``make attack`` makes many."""

import pytest

from tests.attacks.__main__ import Row
from tests.attacks.families import DEAR, FAMILIES

# Certified for all inputs that a machine in rows, or a network, takes; met by one.
LOOSE = {
    "descent in rows": 1e6,
    "kernel regression in rows": 1e4,
    "Hopfield retrieval": 1e5,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_certificate_is_violated(family):
    seeds = range(10_000, 10_000 + (2 if family in DEAR else 4))
    row = Row.of(family, seeds, [FAMILIES[family](seed) for seed in seeds])
    assert not row.violated, row
    assert row.claimed, "nothing was certified, so nothing was attacked"
    assert row.ratio <= LOOSE.get(family, 1000), row
