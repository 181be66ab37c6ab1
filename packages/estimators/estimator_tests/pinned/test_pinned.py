"""Weights, certificates and answers of the estimators are what they were."""

import json

from estimator_tests.pinned.__main__ import LIST
from estimator_tests.pinned.values import ESTIMATORS, every
from tests.pinned.comparison import compare


def test_nothing_has_moved():
    kept = json.loads(LIST.read_text(encoding="utf-8"))
    assert len(kept) == 3 * len(ESTIMATORS)
    compare(kept, every())
