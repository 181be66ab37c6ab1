"""Every target against random data, in processes without iceform; attack.py says more."""

import pytest

from .attack import TARGETS, attack

pytest.importorskip("flint", reason="runs are enclosed in balls, which needs python-flint")


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_random_data_stay_within_what_is_asked(name, tmp_path):
    found = attack(name, 30, 2, tmp_path)
    assert found["sets"] >= 30
    assert found["violations"] == 0
    assert found["measured"] > 0
