"""Weights are the same bits as before, certificates no larger, answers the same numbers.

The list holds what was computed when it was written (``python -m tests.pinned``); this compares
what is computed now. It fails where a change of the insides moves a weight or weakens a bound.
"""

import json

import pytest

from tests.pinned.__main__ import LIST
from tests.pinned.comparison import compare, grown_bounds, moved_answers, moved_digests
from tests.pinned.values import Pinned, every

KEPT = json.loads(LIST.read_text(encoding="utf-8"))


def test_nothing_has_moved(tmp_path):
    pytest.importorskip("transformers", reason="checkpoints need transformers")
    assert len(KEPT) >= 163
    compare(KEPT, every(tmp_path))


def test_what_moves_is_seen():
    kept = {
        "a": ["digest", "ab"],
        "b: certificate": ["bound", 1e-9],
        "b: answer": ["answer", [1.0]],
    }
    now = {
        "a": Pinned("digest", "ac"),
        "b: certificate": Pinned("bound", 1.01e-9),
        "b: answer": Pinned("answer", [1.0 + 1e-7]),
    }
    assert set(moved_digests(kept, now)) == {"a"}
    assert set(grown_bounds(kept, now)) == {"b: certificate"}
    assert set(moved_answers(kept, now)) == {"b: answer"}
