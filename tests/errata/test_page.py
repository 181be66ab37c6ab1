"""docs/errata.md names tests that exist, and results by the labels that the paper gives them."""

import re
from pathlib import Path

import pytest

from tests.errata.common import PAGE, short

ROOT = Path(__file__).parents[2]
# \label{...} of its definitions, lemmas, theorems and corollaries, in the paper's order
LABELS = frozenset(
    """
    def:attn def:task_att thm:attn_sim_f cor:in-context-GD-attn cor:in-context-sim-gd
    thm:attn_sim_lr thm:attn_sim_rr def:input_attn thm:attn_sim_attn_multi thm:attn_sim_attn
    thm:attn_sim_stats_methods def:range def:interpolation lem:Soft_to_Hard lem:all_heads_cases
    thm:multi-head-truncated_in-context lem:still_attention lem:comp-error-convex-gd
    cor:gd-smooth-strongly-convex def:hopfield thm:hopfield_approx thrm:hopfield_sim_f
    cor:in-context-GD-hop
    """.split()  # noqa: SIM905
)
_LABEL = re.compile(r"\b(?:thm|thrm|cor|lem|def):[A-Za-z][\w-]*")
_TEXT = (".py", ".md", ".ipynb")

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is not in the package")


def sources():
    folders = [ROOT / name for name in ("src", "studies", "tests", "docs")]
    files = [f for folder in folders for f in folder.rglob("*") if f.suffix in _TEXT]
    return [f for f in files if f != Path(__file__)]


def test_results_are_named_by_the_paper_s_own_labels():
    wrong = {
        (str(file.relative_to(ROOT)), label)
        for file in sources()
        for label in _LABEL.findall(file.read_text(encoding="utf-8"))
        if label not in LABELS
    }
    assert not wrong


def test_every_test_that_the_page_names_exists():
    written = "".join(
        f.read_text(encoding="utf-8") for f in Path(__file__).parent.glob("test_*.py")
    )
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 50
    missing = [name for name in sorted(named) if f"def {name}(" not in written]
    assert not missing


def test_every_item_says_what_is_printed_and_what_stands_elsewhere():
    """Both are filled; what the paper says nowhere else is said to be so."""
    text = PAGE.read_text(encoding="utf-8").split("\n## 2.")[1].split("\n## 9.")[0]
    items = [part for part in re.split(r"\n### ", text)[1:] if "**Fails.**" in part]
    assert len(items) > 25
    for item in items:
        both = re.search(
            r"^- \*\*Printed\.\*\* (.+?)^- \*\*Elsewhere\.\*\* (.+?)^- \*\*Fails",
            item, re.DOTALL | re.MULTILINE,
        )  # fmt: skip
        assert both, item[:60]
        assert all(said.strip(" .–-\n") for said in both.groups()), item[:60]


def test_numbers_are_written_as_on_the_page():
    assert [short(v) for v in (0.0574, 8.84e-4, 54.2, 1.89)] == [".057", "8.8e-4", "54", "1.9"]
