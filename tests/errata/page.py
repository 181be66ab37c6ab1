"""docs/errata.md and how it writes numbers, for the tests whose figures it quotes."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "errata.md"


def text():
    """The page with its line breaks undone."""
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def short(value):
    """Two digits, as the page writes them: .057, 8.8e-4, 54."""
    if value < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    plain = f"{value:.2g}" if value < 10 else f"{value:.0f}"
    return plain.removeprefix("0") if value < 1 else plain


def span(values):
    """From the least to the largest."""
    return f"{short(min(values))} to {short(max(values))}"


def assert_on_page(sentence):
    """The page says so, where there is a page."""
    if PAGE.exists():
        assert sentence in text(), f"docs/errata.md should say: {sentence}"
