"""docs/studies.md quotes what results/ holds."""

import json
from pathlib import Path

import pytest

from iceform.experiments import STUDIES, Request, load_records
from iceform.experiments.heads import ROLES
from iceform.experiments.published import HEADS, RESIDUAL
from iceform.experiments.sweeps import groups
from iceform.experiments.tables import pick, rates, shown, with_deviation

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "studies.md"
RESULTS = ROOT / "results"

QUOTED = [
    ("residual", "our_reading", "mse", {"variant": "leak"}),
    ("residual", "our_reading", "mse", {"variant": "no-leak"}),
    ("residual", "our_reading", "trivial mse", {"variant": "no-leak"}),
    ("residual", "our_reading", "r2", {"variant": "no-leak"}),
    ("residual", "as_the_theorem_asks", "r2", {"variant": "asked"}),
    ("residual", "as_the_theorem_asks", "r2", {"variant": "asked-unit-x"}),
    ("residual", "as_the_theorem_asks", "mse", {"variant": "asked"}),
    ("residual", "as_the_theorem_asks", "prompt another mse", {"variant": "asked"}),
    ("residual", "as_the_theorem_asks", "trivial mse", {"variant": "asked"}),
    ("residual", "constructed", "sup error", {}),
    ("heads", "constructed", "sup error", {"regime": "spectral", "grid": 21}),
    *[("heads", "our_reading", "mse", {"heads": h, "schedule": s, "probe": None})
      for h in HEADS for s in ("constant", "cosine")],
    *[("heads", "our_reading", "mse", {"probe": p}) for p in ("longer", "xavier")],
    *[("heads", "as_the_theorem_asks", "r2", {"heads": h}) for h in (1, 12)],
    ("heads", "constructed", "mse", {"regime": "hard", "grid": 2049}),
    *[("statistics", "our_reading", f"{a}: frozen mse", {"schedule": s})
      for a in ("lasso", "ridge", "linear") for s in ("constant", "cosine")],
    *[("statistics", "our_reading", f"{a}: linear baseline mse", {"schedule": "constant"})
      for a in ("lasso", "ridge", "linear")],
    ("statistics", "our_reading", "ridge: baseline mse", {"schedule": "constant"}),
    ("statistics", "our_reading", "lasso: spread over test draws", {"schedule": "constant"}),
    ("statistics", "as_the_theorem_asks", "ridge to linear", {}),
    ("statistics", "as_the_theorem_asks", "lasso to linear", {}),
    *[("statistics", "as_the_theorem_asks", f"{a}: frozen fidelity", {})
      for a in ("lasso", "ridge", "linear")],
    *[("housing", c, f"{a}: frozen mse", {})
      for c in ("our_reading", "as_the_theorem_asks") for a in ("lasso", "ridge", "linear")],
    ("housing", "our_reading", "lasso: frozen, zero prompt mse", {}),
    ("housing", "as_the_theorem_asks", "lasso: frozen fidelity", {}),
    ("housing", "as_the_theorem_asks", "lasso: frozen, another prompt fidelity", {}),
    ("housing", "as_the_theorem_asks", "lasso: frozen, zero prompt fidelity", {}),
    ("housing", "as_the_theorem_asks", "lasso: trivial mse", {}),
    ("housing", "as_the_theorem_asks", "ridge: baseline mse", {}),
    ("housing", "constructed", "lasso: certified", {}),
    ("housing", "constructed", "lasso: distance to scikit-learn", {}),
]  # fmt: skip

pytestmark = pytest.mark.skipif(
    not PAGE.exists() or not RESULTS.exists(), reason="docs and results are not in the package"
)


@pytest.fixture(scope="module")
def records():
    return load_records(RESULTS)


@pytest.mark.parametrize(("study", "column", "metric", "variant"), QUOTED)
def test_the_page_quotes_the_results(records, study, column, metric, variant):
    value = shown(pick(records, study, column, metric, **variant))
    assert value in PAGE.read_text(), f"{study} {column} {metric} {variant} is {value}"


def test_the_page_quotes_the_paper():
    page = PAGE.read_text()
    assert str(RESIDUAL["test mse"][0]) in page
    for cell in HEADS.values():
        assert with_deviation(cell) in page


def test_the_page_s_slope_is_that_of_the_published_table(records):
    published = next(c for c in rates(records) if c.label == "published (heads)")
    assert f"−{-2 * published.slope:.1f}" in PAGE.read_text()


STORED = ("our_reading", "as_the_theorem_asks", "constructed")


def test_nothing_is_left_to_compute_at_full_scale_but_the_script_s_settings(records):
    assert groups(Request(tuple(STUDIES), STORED, scale="paper", out=RESULTS)) == []
    assert {r["column"] for r in records} == set(STORED)
    assert "No cell of `as_published` is stored" in " ".join(PAGE.read_text().split())


def test_the_page_counts_the_networks_on_the_plateau(records):
    page = PAGE.read_text()
    for probe, schedule in ((None, "constant"), ("longer", "constant")):
        errors = [
            r["metrics"][f"mse of {role}"] for r in records for role in ROLES
            if r["column"] == "our_reading" and r["variant"].get("heads") == 4
            and r["variant"].get("probe") == probe and r["variant"].get("schedule") == schedule
        ]  # fmt: skip
        left, above = sum(e < 0.01 for e in errors), sum(e > 0.1 for e in errors)
        if left == len(errors):
            assert f"all {left} have" in page
        else:
            assert f"{left} of {len(errors)} have" in page
            assert f"{above} are above 0.1" in page


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
