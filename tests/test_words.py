"""How much there is to read: the sources of the documentation, its pages, and the changelog.

Counted are the pages of ``docs`` beside the reference and the notebooks, and the READMEs of the
packages: code, tables and formulas too. A word has a letter or a digit; a bar of a table is none.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MOST_WORDS, MOST_PAGES = 40_000, 45
MOST_OF_A_RELEASE = 1000

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="pages are not in the package")


def words(text: str) -> int:
    return sum(any(c.isalnum() for c in word) for word in text.split())


def pages() -> list[Path]:
    apart = (DOCS / "api", DOCS / "notebooks")
    own = [p for p in DOCS.rglob("*.md") if not any(p.is_relative_to(a) for a in apart)]
    return own + sorted(ROOT.glob("packages/*/README.md"))


def releases() -> dict[str, str]:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_pages_can_be_read():
    counted = {p.relative_to(ROOT).as_posix(): words(p.read_text("utf-8")) for p in pages()}
    longest = sorted(counted.items(), key=lambda item: -item[1])[:5]
    assert sum(counted.values()) <= MOST_WORDS, longest
    assert len(counted) <= MOST_PAGES


@pytest.mark.parametrize("release", releases())
def test_a_release_is_told_in_a_thousand_words(release):
    assert words(releases()[release]) <= MOST_OF_A_RELEASE
