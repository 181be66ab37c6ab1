"""A few attacks on every kind of fit; ``make attack`` makes many."""

import pytest

from estimator_tests.attacks.families import DEAR, FAMILIES, ORDINARY
from tests.attacks.__main__ import assert_unbroken


@pytest.mark.parametrize("family", FAMILIES)
def test_no_certificate_is_violated(family):
    assert_unbroken(family, FAMILIES[family], 2 if family in DEAR else 3)


@pytest.mark.parametrize("program", ORDINARY)
def test_ordinary_input_gets_a_proven_bound(program):
    assert [ORDINARY[program](seed) for seed in range(2)] == ["proven"] * 2
