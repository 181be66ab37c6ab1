"""The table by label: every label of the paper, and tests that exist."""

import re
from pathlib import Path

from tests.claims.scan import ROOT

PAGE = (ROOT / "docs" / "theorems" / "index.md").read_text(encoding="utf-8")
# What the paper numbers and refers to, as its source calls it.
LABELS = {
    "def:attn",
    "def:hopfield",
    "def:input_attn",
    "def:interpolation",
    "def:range",
    "def:task_att",
    "thm:attn_sim_f",
    "thm:attn_sim_lr",
    "thm:attn_sim_rr",
    "thm:attn_sim_attn",
    "thm:attn_sim_attn_multi",
    "thm:attn_sim_stats_methods",
    "thm:hopfield_approx",
    "thm:multi-head-truncated_in-context",
    "thrm:hopfield_sim_f",
    "cor:in-context-GD-attn",
    "cor:in-context-GD-hop",
    "cor:in-context-sim-gd",
    "cor:gd-smooth-strongly-convex",
    "lem:Soft_to_Hard",
    "lem:all_heads_cases",
    "lem:comp-error-convex-gd",
    "lem:still_attention",
}


def rows() -> dict[str, list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {one[0].strip("`"): one for one in cells}


def written(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"^ *(?:def|class) (test_\w+|Test\w+)", text, re.M))
    return found


def test_every_label_has_its_row():
    assert set(rows()) == LABELS
    assert all(len(row) == 5 and all(row) for row in rows().values())


def test_every_label_of_the_errata_and_the_theorem_pages_is_one_of_them():
    """A label that is misspelt anywhere, or was forgotten here, is noticed."""
    pages = [ROOT / "docs" / "errata.md", *(ROOT / "docs" / "theorems").glob("*.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in pages)
    assert set(re.findall(r"`((?:thm|thrm|cor|lem|def):[\w-]+)`", text)) <= LABELS


def test_every_named_test_exists():
    conformance = (ROOT / "tests" / "conformance.py").read_text(encoding="utf-8")
    known = written(ROOT / "tests") | set(re.findall(r"def (test_\w+)", conformance))
    for label, row in rows().items():
        named = re.findall(r"`(\w+)`", row[4])
        assert named, label
        assert set(named) <= known, (label, set(named) - known)
