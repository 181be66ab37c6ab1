"""The check: every number in prose has a source, and another last digit has none."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from tests.claims.scan import Number, numbers, pages
from tests.claims.sources import (
    ERRATA,
    Source,
    asserted_sentences,
    canonical,
    locked,
    module_constants,
    section_constants,
    sources,
)


@dataclass(frozen=True)
class Claim:
    """A number and what stands behind it; None where nothing does."""

    number: Number
    source: Source | None

    def __str__(self) -> str:
        where = "UNBOUND" if self.source is None else f"{self.source.kind}: {self.source.where}"
        return f"{self.number.page}:{self.number.line}  {self.number.text}  {where}"


def claims(page: str, text: str) -> Iterator[Claim]:
    """Every number of a page with its source."""
    own = [s for s in sources() if s.of(page)]
    spans = list(_spans(text, own))
    if page == ERRATA:
        test = Source(ERRATA, "measured", "computed again by tests/errata")
        spans += [
            (m.start(), m.end(), test) for p in asserted_sentences() for m in p.finditer(text)
        ]
    for number in numbers(page, text):
        yield Claim(number, _source(number, text, own, spans))


def _spans(text: str, own: list[Source]) -> Iterator[tuple[int, int, Source]]:
    for source in own:
        for sentence in source.sentences:
            for found in _pattern(sentence).finditer(text):
                yield found.start(), found.end(), source


@cache
def _pattern(sentence: str) -> re.Pattern:
    return re.compile(r"\s+".join(map(re.escape, sentence.split())))


def _source(
    number: Number, text: str, own: list[Source], spans: list[tuple[int, int, Source]]
) -> Source | None:
    for start, end, source in spans:
        if start <= number.start and number.start + len(number.text) <= end:
            return source
    written = canonical(number.text)
    for source in own:
        if written in source.values:
            return source
    if number.page == ERRATA and number.value in section_constants(text, number.start):
        return Source(ERRATA, "asserted", "a constant of the tests that this part names")
    if number.page.startswith(("src/", "studies/")) and number.value in module_constants(
        number.page
    ):
        return Source(number.page, "defined", "a constant of the code beside it")
    return None


def unbound(texts: dict[str, str] | None = None) -> list[Claim]:
    """Numbers that nothing stands behind."""
    found = pages() if texts is None else texts
    return [c for page, text in found.items() for c in claims(page, text) if c.source is None]


def loose(page: str, text: str) -> list[Claim]:
    """Numbers whose last digit may change without notice.

    A sentence that is another one is not found, and where a test computes the number, it fails; so
    what is left to see is that the changed number is not among the values of the page's sources.
    """
    own = [s for s in sources() if s.of(page)]
    held = [sentence for at, sentence in locked() if at == page]
    spans = [m.span() for sentence in held for m in _pattern(sentence).finditer(text)]
    found = []
    for claim in claims(page, text):
        at = claim.number.start
        if any(start <= at < end for start, end in spans):
            continue
        digits = re.match(r"[\d,.]+", claim.number.text)
        if digits is None:  # in words: its sentence, or nothing, stands behind it
            continue
        mantissa = digits[0]
        last = int(mantissa[-1])
        for digit in {(last + 1) % 10, (last - 1) % 10}:
            moved = replace(
                claim.number, text=f"{mantissa[:-1]}{digit}{claim.number.text[len(mantissa) :]}"
            )
            if _source(moved, text, own, []) is not None:
                found.append(claim)
                break
    return found


def words_around(number: Number, text: str) -> str:
    """Enough of the line before and after a number to find it again."""
    before = text[max(0, number.start - 30) : number.start].split("\n")[-1]
    after = text[number.start + len(number.text) :][:12].split("\n")[0]
    before = before[before.find(" ") + 1 :] if len(before) == 30 else before
    after = after[: after.rfind(" ")] if " " in after else after
    return f"{before}{number.text}{after}".strip()


def lost() -> list[tuple[str, str]]:
    """Locked words that their page no longer has."""
    texts = pages()
    return [(page, s) for page, s in locked() if not _pattern(s).search(texts.get(page, ""))]
