"""docs/studies.md quotes what results/ holds."""

import json
from pathlib import Path

import pytest

from studies import STUDIES, Request, load_records
from studies.heads import ROLES
from studies.published import HEADS, HOUSING, RESIDUAL, STATISTICS
from studies.report import markdown, markdown_table
from studies.script import COMMIT
from studies.sweeps import groups
from studies.tables import (
    number,
    pick,
    published_numbers,
    rates,
    readers,
    sections,
    shown,
    with_deviation,
)
from tests.claims.quotes import CELLS

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "studies.md"
RESULTS = ROOT / "results"

pytestmark = pytest.mark.skipif(
    not PAGE.exists() or not RESULTS.exists(), reason="docs and results are not in the package"
)


@pytest.fixture(scope="module")
def records():
    return load_records(RESULTS)


@pytest.mark.parametrize(("page", "study", "column", "metric", "variant"), CELLS)
def test_the_page_quotes_the_results(records, page, study, column, metric, variant):
    """And every other number of the page has a source: tests/claims."""
    value = shown(pick(records, study, column, metric, **variant)).removesuffix(" ± 0")
    text = " ".join((ROOT / page).read_text().split())
    assert value.removesuffix(".0") in text, f"{study} {column} {metric} {variant} is {value}"


def test_the_reader_s_table_and_the_report_are_those_of_the_cells(records):
    report = (RESULTS / "report" / "report.md").read_text()
    assert "\n".join(markdown_table(readers(records))) in report
    assert {cell.name for cell in published_numbers()} >= {"train mse", "1", "frozen, ridge"}
    figures = ("rates.png", "heads.png", "learning.png", "studies.png")
    told = markdown(sections(records), figures, records)
    assert told == report


def test_the_page_quotes_the_paper():
    page = PAGE.read_text()
    assert str(RESIDUAL["test mse"][0]) in page
    for cell in HEADS.values():
        assert with_deviation(cell) in page


def test_the_page_s_slope_is_that_of_the_published_table(records):
    published = next(c for c in rates(records) if c.label == "published (heads)")
    assert f"−{-2 * published.slope:.1f}" in PAGE.read_text()


STORED = ("their_script", "as_published", "our_reading", "as_the_theorem_asks", "constructed")
LENGTHS = {("residual", 100), ("heads", 50), ("statistics", 300), ("housing", 300)}
STOPPED = {("statistics", 300): ("statistics", 253)}  # device time ended


def test_nothing_is_left_to_compute_at_full_scale(records):
    """But for the authors' code, which is stored for as many seeds and epochs as were run."""
    assert groups(Request(tuple(STUDIES), STORED[1:], scale="paper", out=RESULTS)) == []
    assert {r["column"] for r in records} == set(STORED)
    lengths = [
        {(r["study"], r["spec"]["epochs"]) for r in records if r["column"] == column}
        for column in STORED[:2]
    ]
    assert lengths == [{STOPPED.get(ran, ran) for ran in LENGTHS}, LENGTHS]
    for r in records:
        if r["column"] == "their_script":
            assert r["notes"]["commit"] == COMMIT
            whole = STUDIES[r["study"]].spec(r["column"], "paper").to_dict()
            assert r["spec"] == {**whole, "epochs": r["spec"]["epochs"]}
            assert len(r["curves"]["train"]) == r["spec"]["epochs"]


def test_what_was_published_of_the_frozen_model_lies_among_the_script_s_trainings(records):
    for algorithm, (published, _) in STATISTICS["frozen"].items():
        ours = pick(records, "statistics", "their_script", f"{algorithm}: frozen mse").values
        assert min(ours) < published < max(ours)


def test_the_page_lists_the_trainings_that_are_fed_their_targets(records):
    page = " ".join(PAGE.read_text().split())
    for column in STORED[:2]:
        after, ends = (
            sorted(pick(records, "residual", column, metric, variant="script").values)
            for metric in ("mse after 19 epochs", "mse")
        )
        *others, worst = map(number, after)
        assert f"{', '.join(others)} and {worst}" in page
        assert f"between {number(ends[0])} and {number(ends[-1])}." in page
        assert (after[0] > RESIDUAL["test mse"][0]) == (column == "their_script"), "all above it"


def test_a_stored_constructed_study_has_one_digest(records):
    for study in STUDIES:
        own = [r for r in records if (r["study"], r["column"]) == (study, "constructed")]
        if study == "heads":
            own = [r for r in own if r["variant"] == {"regime": "spectral", "grid": 21}]
        assert len(own) == STUDIES[study].spec("constructed", "paper").seeds
        assert len({r["notes"]["digest"] for r in own}) == 1, study


def test_the_page_counts_the_networks_on_the_plateau(records):
    page = " ".join(PAGE.read_text().split())
    for probe, schedule in ((None, "constant"), ("longer", "constant")):
        errors = [
            r["metrics"][f"mse of {role}"] for r in records for role in ROLES
            if r["column"] == "our_reading" and r["variant"].get("heads") == 4
            and r["variant"].get("probe") == probe and r["variant"].get("schedule") == schedule
        ]  # fmt: skip
        left = sum(e < 0.01 for e in errors)
        if left == len(errors):
            assert f"all {left} have" in page
        else:
            assert f"{left} of {len(errors)} have" in page


def test_throughput_is_told_as_measured():
    told = (RESULTS / "README.md").read_text()
    for name in ("h200", "h200-compiled", "cpu"):
        measured = json.loads((RESULTS / f"throughput-{name}.json").read_text())
        assert measured["command"].startswith("python -m benchmarks.training")
        for row in measured["rows"]:
            short = f"{row['ratio']:.1f}" if row["ratio"] < 100 else f"{row['ratio']:.0f}"
            assert f"| {short} |" in told or f"| {short} (" in told, (name, row["case"], short)


def test_constructed_results_hold_what_they_promise(records):
    for r in records:
        m = r["metrics"]
        if r["column"] != "constructed":
            continue
        if r["study"] == "residual":
            assert m["sup error"] <= m["certified"] <= 1e-8
        if r["variant"] == {"regime": "spectral", "grid": 21}:
            assert m["sup error"] <= 1e-10
        for name, share in m.items():
            if name.endswith("distance over certificate"):
                assert share <= 1, (r["study"], r["seed"], name)


def test_the_best_training_of_the_script_is_above_what_was_published_of_houses(records):
    for algorithm, (published, _) in HOUSING["frozen"].items():
        ours = pick(records, "housing", "their_script", f"{algorithm}: frozen mse")
        assert min(ours.values) > published
