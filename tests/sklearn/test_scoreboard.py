"""The scoreboard's list: read as it is meant."""

import json

from tests.sklearn.scoreboard import LISTED, MODULES, draft, reason_for


def test_a_name_alone_stands_for_all_variants():
    listed = {"test_a": "why", "test_b[x-1]": "because"}
    assert reason_for("test_a", listed) == reason_for("test_a[y]", listed) == "why"
    assert reason_for("test_b[x-1]", listed) == "because"
    assert reason_for("test_b[x-2]", listed) is None
    assert reason_for("test_ab", listed) is None


def test_only_refusals_are_drafted():
    refusal = "ParameterError: InContextRidge refuses solver='svd': one solver; leave solver out"
    outcomes = {
        "test_a[1]": ["failed", refusal], "test_a[2]": ["failed", refusal],
        "test_b[1]": ["failed", refusal], "test_b[2]": ["passed", ""],
        "test_c": ["failed", "AssertionError"],
    }  # fmt: skip
    why = "refused parameter solver: one solver"
    assert draft(outcomes, {}) == {"test_a": why, "test_b[1]": why}


def test_every_entry_has_a_file_and_a_reason():
    listed = json.loads(LISTED.read_text(encoding="utf-8"))
    assert set(listed) <= {module.rpartition(".")[2] for module in MODULES}
    reasons = [why for entries in listed.values() for why in entries.values()]
    assert all(why.startswith(("refused", "sparse", "it asks")) for why in reasons)
