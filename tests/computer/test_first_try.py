"""Algorithms as one would write them from the documentation: most run at once, none is off."""

import pytest

from iceform.errors import IceformError
from tests.computer import more_algorithms  # noqa: F401
from tests.computer.forty_algorithms import CASES, ran

REFUSED = {
    "secant": "contains 0",  # a divisor of either sign
    "levenberg_marquardt": "of a tie",  # losses that hardly differ any more
    "jacobi_rotation": "not a word",  # atan2
}
QUICK = ("primes", "knapsack", "gram_schmidt", "rule110", "cusum", "union_find", "bresenham")


def check(name: str) -> None:
    """It runs, and is within eps or warns."""
    if name in REFUSED:
        with pytest.raises(IceformError, match=REFUSED[name]):
            ran(name)
    else:
        assert ran(name).startswith("ran")


@pytest.mark.parametrize("name", QUICK)
def test_some_run_at_the_first_try(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_the_others_do_too(name):
    check(name)


def test_nine_in_ten_run_at_once():
    assert len(CASES) == 85
    assert len(REFUSED) <= 8
