r"""How texts spell numbers and dates, found for a column as a whole.

A :class:`Spelling` is a way to write numbers (decimal mark, mark between thousands, what may stand
before or after) or dates (order of day, month and year). :func:`spellings` lists those under which
*every* text of a column reads; where they give different values, the column is ambiguous, and
nobody is asked to guess.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iceform.errors import DtypeError
from iceform_estimators.tables.words import load, shown

_SPACES = "[ \u00a0\u2009\u202f]"
_MONEY = r"[$€£¥₹]|USD|EUR|GBP|CHF|JPY|kr|zł|Kč|R\$|%"
CODES = r"^[+-]?0[0-9]+$"
LONG = r"^[+-]?[0-9]{16,}$"  # more digits than a float64 holds, as card numbers have
SHORT = r"^[0-9]{1,2}([./-])[0-9]{1,2}([./-])[0-9]{2}$"  # dates without their century
_MINUS = "[-\u2212]"
_MICROSECONDS = 86_400e6  # of a day


@dataclass(frozen=True)
class Spelling(ABC):
    """One way to read all texts of a column."""

    def reads(self, texts: Any) -> bool:
        """Whether every one of these (pyarrow strings, none missing) is spelled so."""
        compute = load("pyarrow.compute")
        return bool(compute.all(compute.match_substring_regex(texts, self.pattern)).as_py())

    @property
    @abstractmethod
    def pattern(self) -> str:
        """What a text must match."""

    @abstractmethod
    def values(self, texts: Any) -> np.ndarray:
        """The numbers, float64."""

    @property
    @abstractmethod
    def says(self) -> str:
        """In words; empty for what needs none."""


@dataclass(frozen=True)
class Booleans(Spelling):
    """True and false."""

    @property
    def pattern(self) -> str:
        return "^(?i:true|false)$"

    def values(self, texts: Any) -> np.ndarray:
        compute = load("pyarrow.compute")
        return np.asarray(compute.equal(compute.utf8_lower(texts), "true"), dtype=np.float64)

    @property
    def says(self) -> str:
        return "true is 1, false is 0"


@dataclass(frozen=True)
class Numbers(Spelling):
    """Numbers with these marks; ``dressed`` allows money signs, per cent, and (1) or 1- for -1."""

    decimal: str = "."
    thousands: str = ""
    dressed: bool = False

    @property
    def pattern(self) -> str:
        mark = re.escape(self.decimal)
        whole = "[0-9]+"
        if self.thousands:
            between = _SPACES if self.thousands == " " else f"[{self.thousands}]"
            if self.thousands == "'":
                between = "['\u2019]"
            grouped = rf"[1-9][0-9]{{0,2}}(?:{between}[0-9]{{3}})+"  # no group of thousands is 0
            if self.thousands == ",":  # 12,34,567 is twelve lakh
                grouped += r"|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}"
            whole = f"(?:[0-9]+|{grouped})"
        number = rf"(?:{whole}(?:{mark}[0-9]*)?|{mark}[0-9]+)(?:[eE][+-]?[0-9]+|[dD][+-][0-9]+)?"
        infinite = "(?i:inf|infinity|nan)"
        if not self.dressed:
            return rf"^(?:\+|{_MINUS})?(?:{number}|{infinite})$"
        money, sign = rf"(?:{_MONEY})?{_SPACES}?", rf"(?:\+|{_MINUS})?"
        return (
            rf"^(?:{sign}{money}{sign}{number}{_SPACES}?(?:{_MONEY})?"
            rf"|\({money}{number}{_SPACES}?(?:{_MONEY})?\)|{money}{number}{_SPACES}?{_MINUS})$"
        )

    def reads(self, texts: Any) -> bool:
        """All of them, and in one currency: $5 beside 5 EUR, or 5% beside 5, are two units."""
        if not super().reads(texts):
            return False
        if not self.dressed:
            return True
        compute = load("pyarrow.compute")
        bare = compute.replace_substring_regex(texts, rf"^.*?({_MONEY}).*$", r"\1")
        signed = compute.match_substring_regex(texts, _MONEY)
        signs = set(compute.unique(bare.filter(signed)).to_pylist())
        mixed = "%" in signs and not compute.all(signed).as_py()
        return len(signs) <= 1 and not mixed

    def values(self, texts: Any) -> np.ndarray:
        arrow, compute = load("pyarrow"), load("pyarrow.compute")
        replace = compute.replace_substring_regex
        texts = compute.replace_substring(texts, "\u2212", "-")
        if self.dressed:
            texts = replace(texts, r"^\((.*)\)$|^(.*)-$", r"-\1\2")
            texts = replace(texts, _MONEY, "")
        texts = replace(texts, _SPACES, "")
        if self.thousands.strip():
            between = "['\u2019]" if self.thousands == "'" else re.escape(self.thousands)
            texts = replace(texts, between, "")
        if self.decimal != ".":
            texts = compute.replace_substring(texts, self.decimal, ".")
        texts = replace(texts, r"^\+|^(-?)\+", r"\1")
        texts = replace(texts, r"\.?[eEdD]", "e")  # 1.e5, and 1d5 as Fortran has it
        texts = replace(texts, r"\.$", "")
        try:
            numbers = compute.cast(texts, arrow.float64())
        except arrow.ArrowInvalid as wrong:
            raise DtypeError(f"a text is no number: {shown(wrong)}") from None
        return np.array(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)

    @property
    def says(self) -> str:
        words = []
        if self.decimal != ".":
            words.append("decimal comma")
        if self.thousands:
            names = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
            words.append(f"{names[self.thousands]} between thousands")
        if self.dressed:
            words.append("signs of money, per cent and brackets around negative numbers removed")
        return ", ".join(words)


@dataclass(frozen=True)
class Clock(Spelling):
    """Times of day."""

    @property
    def pattern(self) -> str:
        return r"^(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?$"

    def values(self, texts: Any) -> np.ndarray:
        pandas = load("pandas")
        short = pandas.Series(texts.to_pandas(), dtype=object)
        spans = pandas.to_timedelta(short.where(short.str.count(":") == 2, short + ":00"))
        return np.asarray(spans / pandas.Timedelta(days=1), dtype=np.float64)

    @property
    def says(self) -> str:
        return "times as shares of a day"


@dataclass(frozen=True)
class Dates(Spelling):
    """Dates in one order: "ymd", "dmy", "mdy", or "dby" with a month's English name."""

    order: str = "ymd"
    mark: str = "-"

    @property
    def pattern(self) -> str:
        m = re.escape(self.mark)
        day, month, year = "(?:0?[1-9]|[12][0-9]|3[01])", "(?:0?[1-9]|1[0-2])", "[0-9]{4}"
        named = "(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
        parts = {"d": day, "m": month, "y": year, "b": named}
        zone = "(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
        clock = rf"(?:[ T][0-9]{{1,2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]+)?)?{zone})?"
        return "^" + m.join(parts[p] for p in self.order) + clock + "$"

    def values(self, texts: Any) -> np.ndarray:
        pandas = load("pandas")
        names = {"d": "%d", "m": "%m", "y": "%Y", "b": "%b"}
        form = self.mark.join(names[p] for p in self.order)
        series = pandas.Series(texts.to_pandas(), dtype=object)
        iso = "ISO8601" if (self.order, self.mark) == ("ymd", "-") else None
        clocked = bool(series.str.contains(":", regex=False).any())
        try:
            if iso:
                moments = pandas.to_datetime(series, format="ISO8601", utc=True)
            elif clocked:
                first = self.order.startswith("d")
                moments = pandas.to_datetime(series, format="mixed", dayfirst=first, utc=True)
            else:
                moments = pandas.to_datetime(series, format=form, utc=True)
        except (ValueError, OverflowError) as wrong:
            raise DtypeError(f"a text is no date: {shown(wrong)}") from None
        return days(moments)

    @property
    def says(self) -> str:
        names = {"d": "day", "m": "month", "y": "year", "b": "month"}
        return f"dates ({', '.join(names[p] for p in self.order)}) as days since 1970"


def days(moments: Any) -> np.ndarray:
    """Moments (pandas, with a zone) as days since 1970, in any year that pandas holds."""
    since = np.asarray(moments.dt.tz_localize(None), dtype="datetime64[us]")
    whole = since.astype("datetime64[D]")
    rest = (since - whole).astype("timedelta64[us]").astype(np.float64) / _MICROSECONDS
    found = whole.astype(np.int64) + rest
    return np.where(np.isnat(since), np.nan, found)


_MARKS = [(decimal, between) for between in ("", ",", ".", " ", "'") for decimal in ".,"]
NUMBERS: Sequence[Numbers] = [Numbers(d, t, s) for s in (False, True) for d, t in _MARKS if d != t]
DATES: Sequence[Dates] = [
    *(Dates("ymd", mark) for mark in ("-", "/", ".")),
    *(Dates(order, mark) for mark in ("/", ".", "-") for order in ("dmy", "mdy")),
    *(Dates("dby", mark) for mark in ("-", " ")),
]


def spellings(texts: Any) -> Iterator[Spelling]:
    """All that read every text, the plainest of those that agree on all values."""
    found: list[tuple[Spelling, np.ndarray]] = []
    kinds: Sequence[Spelling] = [Booleans(), Clock(), *NUMBERS, *DATES]
    for spelling in kinds:
        if not spelling.reads(texts):
            continue
        try:
            values = spelling.values(texts)
        except DtypeError:  # the 31st of February
            continue
        if not any(np.array_equal(values, other, equal_nan=True) for _, other in found):
            found.append((spelling, values))
            yield spelling
