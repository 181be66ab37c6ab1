"""Every number in README, docs, docstrings and changelog has a source that a check would miss.

``python -m tests.claims`` prints the ledger.
"""

import json
from fnmatch import fnmatch

import pytest

from benchmarks.text_tables import LIBRARY
from iceform.computer.library import EXAMPLES
from iceform.targets.text import TEXTS
from tests.claims.check import claims, loose, lost, unbound
from tests.claims.quotes import STATED
from tests.claims.scan import COUNTED, ROOT, numbers, pages
from tests.claims.sources import sources
from tests.claims.written import BLOCKS

pytestmark = pytest.mark.skipif(
    not (ROOT / "README.md").exists() or not (ROOT / "results" / "README.md").exists(),
    reason="pages and results are not in the package",
)


def test_no_number_is_unbound():
    found = unbound()
    assert not found, "\n".join(["python -m tests.claims --unbound", *map(str, found)])


@pytest.mark.parametrize(
    ("page", "planted"),
    [
        ("README.md", "\nIt is 3.7 times as fast.\n"),
        ("docs/studies.md", "\nWith seven heads the error is 0.412 ± 0.0321.\n"),
        ("docs/errata.md", "\nIt moves by $\\tanh 1.31 = .8643$.\n"),
        ("docs/notebooks/own_loss.ipynb", "\nIt takes 3.71 ms, 18 % less.\n"),
        ("CHANGELOG.md", "\n- Fits take a sixth of the time.\n"),
        ("src/iceform/tables/bounds.py", "\nErrors stay below 4.31e-7 everywhere.\n"),
        ("studies/heads.py", "\nThe error is 0.4127 there.\n"),
    ],
)
def test_a_planted_number_is_found(page, planted):
    found = unbound({page: pages()[page] + planted})
    assert {c.number.text for c in found} == {n.text for n in numbers(page, planted)}
    assert found


@pytest.mark.parametrize("page", ["pages", "docstrings"])
def test_another_last_digit_is_noticed(page):
    """Where a source has the neighbours of a number too, the words around it are kept."""
    wanted = {p: t for p, t in pages().items() if p.startswith("src/") == (page == "docstrings")}
    found = [c for name, text in wanted.items() for c in loose(name, text)]
    assert not found, "\n".join(
        ["look at them, then python -m tests.claims --lock", *map(str, found)]
    )
    assert not [words for words in lost() if words[0] in wanted], (
        "see python -m tests.claims --lock"
    )


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_are_what_the_kept_files_say(block):
    assert block.text() == block.shown(), f"kept by {block.command}; then tests.claims --write"


def test_no_number_is_bound_to_the_page_it_stands_on():
    """A source is a file, a test, a constant or another's work; a hash of the page is none."""
    folder = ROOT / "tests" / "claims"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert ("sha" + "256") not in text
    assert all(block.kept.suffix != ".md" for block in BLOCKS)


def test_what_is_stated_stands_on_a_page():
    """A number that left its page takes its source with it."""
    texts = {name: " ".join(text.replace("−", "-").split()) for name, text in pages().items()}
    dead = [
        (page, value)
        for page, _, _, values in STATED
        for value in values
        if not any(
            " ".join(value.split()) in text for name, text in texts.items() if fnmatch(name, page)
        )
    ]
    assert not dead


def test_the_one_file_ran_every_text_and_the_whole_library():
    kept = json.loads(LIBRARY.read_text(encoding="utf-8"))
    assert kept["iceform"] is False
    assert {row["name"] for row in kept["rows"]} == {*TEXTS, *EXAMPLES}
    assert not any(row["wrong"] for row in kept["rows"])
    assert all(row.get("greedy_equal", True) for row in kept["rows"])


def test_every_source_says_what_it_is():
    for source in sources():
        kinds = ("measured", "certified", "asserted", "defined", "theirs", "not kept")
        assert source.kind in kinds
        assert source.where


def test_counts_are_words_and_measures_are_numbers():
    assert COUNTED == 12
    found = [
        n.text
        for n in numbers("", "5 heads, 13 heads, 5 % off, 2x, 1,024 at 3.5e-4, SHA-256, 2^-53")
    ]
    assert found == ["13", "5", "2", "1,024", "3.5e-4"]


def test_the_ledger_has_all_of_them():
    text = pages()
    assert sum(1 for page in text for _ in claims(page, text[page])) > 1000
