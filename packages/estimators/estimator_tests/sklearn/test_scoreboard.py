"""The scoreboard's list: read as it is meant."""

import json

from estimator_tests.sklearn.scoreboard import LISTED, MODULES, reason_for

PASSED, FAILED = ["passed", ""], ["failed", "AssertionError: 1 is not 2"]


def test_a_name_alone_stands_for_all_variants():
    listed = {
        "test_a": {"why": "why", "fails": "1 is not"},
        "test_b[x-1]": {"why": "because", "fails": "AssertionError"},
    }
    assert reason_for("test_a", FAILED, listed) == reason_for("test_a[y]", FAILED, listed) == "why"
    assert reason_for("test_b[x-1]", FAILED, listed) == "because"
    assert reason_for("test_b[x-2]", FAILED, listed) is None
    assert reason_for("test_ab", FAILED, listed) is None


def test_what_passes_or_fails_at_something_else_applies():
    listed = {"test_a": {"why": "why", "fails": "no attribute 'solver_'"}}
    assert reason_for("test_a", ["failed", "no attribute\n'solver_'"], listed) == "why"
    assert reason_for("test_a", FAILED, listed) is None
    assert reason_for("test_a", PASSED, listed) is None


def test_what_ends_in_a_refusal_by_name_does_not_apply():
    refusal = "ParameterError: InContextRidge refuses solver='svd': one solver; leave solver out"
    assert reason_for("test_a", ["failed", refusal], {}) == "refused parameter solver"
    sparse = "TypeError: Sparse data was passed for X, but dense data is required."
    assert reason_for("test_a", ["failed", sparse], {}) == "sparse storage"
    bare = "TypeError: fit() got an unexpected keyword argument 'solver'"
    range_ = (
        "InvalidParameterError: The 'alpha' parameter of Ridge must be a float. Got 'x' instead."
    )
    for last in (bare, range_, "AssertionError"):
        assert reason_for("test_a", ["failed", last], {}) is None
    assert reason_for("test_a", ["passed", refusal], {}) is None


def test_every_entry_has_a_file_and_a_reason():
    listed = json.loads(LISTED.read_text(encoding="utf-8"))
    assert set(listed) <= {module.rpartition(".")[2] for module in MODULES}
    reasons = [one["why"] for entries in listed.values() for one in entries.values()]
    assert all(why.startswith(("sparse storage", "it ")) for why in reasons)
    assert len(reasons) < 40  # the rest is refused by name, or applies
