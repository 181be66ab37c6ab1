"""How much there is to read, and by which words: pages, their sources, and the changelog.

Counted are the pages of ``docs`` beside the reference and the notebooks, and the READMEs of the
packages: code, tables and formulas too. A word has a letter or a digit; a bar of a table is none.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
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


# One name for one thing: what is not said any more, and what is said instead.
RETIRED = {
    r"mild(ly)?|fitted (look-ups?|rows?|heads?|regime)": "spectral",
    r"lookups?|look up tables?": "look-up",
    r"a[- ]priori": "before the fact",
    r"a[- ]posteriori": "after the fact",
    r"guarantee(d|s)?|rigorous(ly)?": "proven",
    r"witness(es|ed)?|attest[eo]rs?": "attestation",
    r"dense backend": "literal backend",
    r"stretch(es)?": "segment",
    r"data-?sets?": "data set",
    r"hyper-?parameters?": "parameter",
    r"ground-truth": "ground truth",
    r"sink token|garbage token": "null token",
    r"lane zero": "lane 0",
    r"proven bounds? of (the )?certificates?": "certificate",
    r"error bars?": "certificate, or deviation",
    r"frozen weights? (file|matrix)": "frozen network",
    r"task head": "target head",
    r"toy (model|network|transformer)s?": "small network",
    r"hallucinat\w+": "wrong token",
}
PARTICIPLES = r"found|held|asked|known|seen|kept|told|moved|reached"  # of titles: say what it is


def prose() -> Iterator[tuple[str, str]]:
    """Pages, READMEs, the markdown of notebooks, without code, formulas and links."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("packages/*/README.md")]
    for path in [*files, *DOCS.rglob("*.md"), *DOCS.glob("notebooks/*.ipynb")]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"`[^`\n]+`|\]\([^)]*\)|https?://\S+", "", text)
        yield path.relative_to(ROOT).as_posix(), text


def said_of(thing: object) -> str:
    """A docstring without its code."""
    text = re.sub(r"^\s*(>>>|\.\.\.).*$", "", inspect.getdoc(thing) or "", flags=re.MULTILINE)
    return re.sub(r"``[^`]+``|`[^`\n]+`", "", text)


def docstrings() -> Iterator[tuple[str, str]]:
    """Of every public name of the library, and of what a public class offers."""
    for module in ["iceform", *(f"iceform.{name}" for name in OPEN)]:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            thing = getattr(loaded, name)
            yield f"{module}.{name}", said_of(thing)
            for own, part in vars(thing).items() if inspect.isclass(thing) else ():
                if not own.startswith("_"):
                    yield f"{module}.{name}.{own}", said_of(part)


OPEN = ("heads", "paper", "tables", "expressions", "targets", "networks", "export", "bench", "lab")


@pytest.mark.parametrize("where", [prose, docstrings])
def test_one_thing_has_one_name(where):
    wrong = [
        f"{place}: “{hit[0]}”, say “{instead}”"
        for place, text in where()
        for pattern, instead in RETIRED.items()
        for hit in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    ]
    assert not wrong, "\n".join(wrong)


def test_titles_say_what_a_thing_is():
    titles = [(page, line) for page, text in prose() for line in re.findall(r"^#+ .+$", text, re.M)]
    wrong = [t for t in titles if re.search(rf"\b(?:{PARTICIPLES})\b", t[1], re.IGNORECASE)]
    assert len(titles) > 100
    assert not wrong


def test_the_glossary_has_each_word_once():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| word | meaning |")[1]
    words_of = [row.split("|")[1] for row in text.split("\n\n")[0].splitlines()[2:]]
    listed = [word.strip() for row in words_of for word in row.split(",")]
    assert 20 <= len(words_of) <= 30
    assert len(listed) == len(set(listed))
