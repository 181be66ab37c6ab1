"""Weights are the same bits as before, certificates no larger, answers the same numbers.

The list holds what was computed when it was written (``python -m tests.pinned``); this compares
what is computed now. It fails where a change of the insides moves a weight or weakens a bound.
"""

import json
import math

import pytest

from tests.pinned.__main__ import LIST
from tests.pinned.values import every

KEPT = json.loads(LIST.read_text(encoding="utf-8"))
# Answers may change in their last bits: processors differ in how they round a sum. Bounds after the
# fact hold that rounding, so they change by more than its share of them.
ROUNDING = 1e-8
BOUNDS = 1e-4


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    pytest.importorskip("transformers", reason="checkpoints need transformers")
    pytest.importorskip("sklearn", reason="estimators need scikit-learn")
    return every(tmp_path_factory.mktemp("checkpoints"))


def test_nothing_is_missing(now):
    assert set(KEPT) == set(now)
    assert len(KEPT) >= 200


def test_digests_are_the_same(now):
    moved = {n: (v, now[n].value) for n, (k, v) in KEPT.items() if k == "digest"}
    assert not {n: pair for n, pair in moved.items() if pair[0] != pair[1]}


def test_bounds_are_no_larger(now):
    grown = {
        name: (value, now[name].value)
        for name, (kind, value) in KEPT.items()
        if kind == "bound" and not now[name].value <= value * (1 + BOUNDS)
    }
    assert not grown


def test_answers_are_the_same_numbers(now):
    """Both within the certified distance of the exact ones, or else the same but for rounding."""
    apart = {}
    for name, (kind, value) in KEPT.items():
        if kind != "answer":
            continue
        scale = max(map(abs, value)) or 1.0
        allowed = max(ROUNDING * scale, _certified(name))
        off = max(abs(a - b) for a, b in zip(value, now[name].value, strict=True))
        if not off <= allowed:
            apart[name] = (off, allowed)
    assert not apart


def _certified(name: str) -> float:
    row = KEPT.get(name.replace("answer", "certificate"))
    return 2 * row[1] if row and math.isfinite(row[1]) and row[1] < 1e-6 else 0.0
