"""Numbers in prose: where they stand, and which of them need a source.

Read are README, CHANGELOG, CONTRIBUTING, the pages of docs, benchmarks and results, what the
notebooks say between their cells, and the docstrings of the package and of the studies. Left out is
what is no claim in words: code, what it prints, links, exponents and the whole numbers of formulas,
headings, names with digits in them (SHA-256, GPT-2, float64), and whole numbers up to twelve, which
count things, unless a unit makes a measure of them (10 %, 5x, 2 GiB). Measures in words are numbers
on pages are numbers too: "three times", "a fifth".
"""

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "benchmarks/README.md",
    "results/*.md",
)  # fmt: skip
COUNTED = 12  # whole numbers up to here are words
_UNIT = r"(?=\s?(?:%|×|x\b|times\b|ms\b|GiB|MiB))"
_NUMBER = re.compile(
    r"(?<![\w.,^])(?<!\^-)(?<![A-Za-z]-)(?<!\d-)"
    r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:(?<=\d)\.\d+|(?<!\d)\.\d+)?(?:(?<=\d)[eE][-−+]?\d+)?"
    r"(?![\w]*[A-Za-z_](?<!x))"
)
_SOME = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|fifty|a hundred|a thousand"
_WORDS = re.compile(
    rf"\b(?:(?:{_SOME})(?:\s+to\s+\w+(?:\s+\w+)?)?\s+times"
    r"|(?:a|two|three|four)\s+(?:third|quarter|fifth|sixth|tenth|twentieth|hundredth)s?)\b"
)
_FORMULAS = (
    re.compile(r"\$\$.+?\$\$|\$[^$\n]+(?:\n[^$\n]+)?\$", re.DOTALL),
    re.compile(r":math:`[^`]*`|\.\. math::(?:.|\n)*?(?=\n\s*\n|\Z)"),
)
_DECIMAL = re.compile(r"(?<![\w.^{])(?<!\^-)(?:\d*\.\d+(?:e-?\d+)?|\d+e-?\d+)")
_BLANKED = (
    re.compile(r"^(`{3,})[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL),  # fences
    re.compile(r"<!--.*?-->", re.DOTALL),
    *_FORMULAS,
    re.compile(r"``[^`]+``|`[^`]+`"),
    re.compile(r"\]\([^)]*\)|https?://\S+"),
    re.compile(r"\A---\n.*?^---$", re.MULTILINE | re.DOTALL),  # front matter
    re.compile(r"^#+ .*$", re.MULTILINE),  # headings
    re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*", re.MULTILINE),  # examples, which tests run
)


@dataclass(frozen=True)
class Number:
    """One number of a page: its place, how it is written, and the words around it."""

    page: str
    line: int
    start: int  # in the blanked text
    text: str

    @property
    def value(self) -> float:
        """Not a number, where it is words."""
        digits = self.text.replace(",", "").replace("−", "-")
        return float(digits) if digits[0] in "0123456789." else math.nan


def blanked(text: str) -> str:
    """The text with everything that is no prose replaced by spaces, place by place.

    Of formulas the decimals are left, which are measured or chosen: e = .856, not 2n + 1.
    """
    for pattern in _BLANKED:
        kept = _DECIMAL if pattern in _FORMULAS else None
        text = pattern.sub(lambda m, kept=kept: _only(kept, m[0]), text)
    return text


def _only(kept: re.Pattern | None, text: str) -> str:
    out = re.sub(r"[^\n]", " ", text)
    for found in kept.finditer(text) if kept else ():
        out = out[: found.start()] + found[0] + out[found.end() :]
    return out


def numbers(page: str, text: str) -> Iterator[Number]:
    """Every number of a text that is a claim."""
    prose = blanked(text)
    for found in () if page.endswith(".py") else _WORDS.finditer(prose):
        yield Number(page, prose.count("\n", 0, found.start()) + 1, found.start(), found[0])
    for found in _NUMBER.finditer(prose):
        written = found[0]
        if not written:
            continue
        whole = re.fullmatch(r"\d+", written)
        if whole and int(written) <= COUNTED and not re.match(_UNIT, prose[found.end() :]):
            continue
        yield Number(page, prose.count("\n", 0, found.start()) + 1, found.start(), written)


@cache
def pages() -> dict[str, str]:
    """The pages, and the docstrings of every module as one text, with their lines kept."""
    found = {}
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        told = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
        found[path.relative_to(ROOT).as_posix()] = "\n\n".join(told)
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "studies").rglob("*.py")]):
        found[path.relative_to(ROOT).as_posix()] = docstrings(path.read_text(encoding="utf-8"))
    return found


def docstrings(source: str) -> str:
    """The docstrings of a module, each at its own lines."""
    lines = [""] * (source.count("\n") + 2)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) or not node.body:
            continue
        first = node.body[0]
        value = getattr(getattr(first, "value", None), "value", None)
        if isinstance(first, ast.Expr) and isinstance(value, str):
            for offset, line in enumerate(value.split("\n")):
                lines[first.lineno - 1 + offset] = line
    return "\n".join(lines)
