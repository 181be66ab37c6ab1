"""Algorithms as one would write them from the documentation: all run at once, none is off."""

import pytest

from tests.computer import new_users_algorithms  # noqa: F401
from tests.computer.forty_algorithms import CASES, ran

QUICK = ("primes", "knapsack", "gram_schmidt", "rule110", "cusum", "union_find", "bresenham")


def check(name: str) -> None:
    """It runs, and is within eps without a warning."""
    assert ran(name) == "ran"


@pytest.mark.parametrize("name", QUICK)
def test_some_run_at_the_first_try(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_the_others_do_too(name):
    check(name)


def test_how_many_there_are():
    assert len(CASES) == 133
