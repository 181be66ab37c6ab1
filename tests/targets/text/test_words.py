"""Levels, their decimal words, and a stock tokenizer that reads a program as the machine does."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from fractions import Fraction
from pathlib import Path

import pytest

from iceform.errors import IceformError
from iceform.targets.text.numbers import NumberFormat
from iceform.targets.text.words import LIBRARY, TextSizes

FORMATS = [
    NumberFormat(),
    NumberFormat(7, 7, 7),
    NumberFormat(7, 8, 7),
    NumberFormat(4, 3, 5),
    LIBRARY.format,
]
PROGRAM = """
# a comment, and an empty line

1: i = 0     # set
2: e = y - A[i]
3: p = tanh(e) if < 0 goto 2

   4: m = max(a, -0.25)
5: A[i] = e * A[3] goto end
# the data, then [end] <s> <0>
w = 0.25  A[2] = -1
y = 3
"""
TOKENS = [
    "1: |i =|0|\n|2:|e =|y|-|A[i]|\n|3:|p =|tanh(|e|if < 0 goto 2|4:|m =|max(|a|,|-0.25|\n",
    "5:|A[i] =|e|*|A[3]|goto end|w =|0.25|A[2] =|-1|y =|3",
]


def by_definition(form: NumberFormat) -> list[Fraction]:
    """All M 2^E, straight from the definition."""
    exponents = range(-form.fraction, form.top - form.bits + 1)
    mantissas = range(-(2**form.bits) + 1, 2**form.bits)
    return sorted({m * Fraction(2) ** e for e in exponents for m in mantissas})


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_levels_are_those_of_the_definition(form: NumberFormat) -> None:
    assert [form.value(u) for u in form.levels] == by_definition(form)
    assert form.count == len(form.levels)
    assert form.levels[-1] == form.largest


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_number_is_rounded_to_the_nearest_level_and_a_tie_goes_up(form: NumberFormat) -> None:
    levels, rng = form.levels, random.Random(0)
    middles = [Fraction(a + b, 2) for a, b in itertools.pairwise(levels)]
    assert [form.rounded(m) for m in middles] == list(levels[1:])
    tiny = Fraction(1, 10**30)
    assert [form.rounded(m - tiny) for m in middles] == list(levels[:-1])
    assert [form.rounded(u) for u in levels] == list(levels)
    for _ in range(300):
        number = Fraction(rng.randint(-3 * form.largest, 3 * form.largest), rng.randint(1, 50))
        at = bisect_left(levels, number)
        near = levels[max(0, at - 1) : at + 1]
        best = min(abs(number - u) for u in near)
        assert form.rounded(number) == max(u for u in near if abs(number - u) == best)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_word_is_the_shortest_decimal_nearer_to_its_level_than_to_any_other(
    form: NumberFormat,
) -> None:
    assert len(set(form.words)) == form.count
    neighbours = zip((None, *form.levels), (*form.levels[1:], None), strict=False)
    for units, word, beside in zip(form.levels, form.words, neighbours, strict=True):
        assert form.units(word) == units
        assert form.rounded(Fraction(word) * 2**form.fraction) == units
        value = form.value(units)
        if value.denominator == 1:
            assert word == str(value)
            continue
        assert "e" not in word
        assert not word.endswith("0")
        places = len(word.split(".")[1]) - 1
        for digits in (value * 10**places // 1, value * 10**places // 1 + 1):
            shorter = Fraction(digits, 10**places) * 2**form.fraction
            other = min(abs(u - shorter) for u in beside if u is not None)
            assert other <= abs(units - shorter), (word, float(shorter))


def test_a_number_off_the_grid_is_refused_with_the_nearest_word() -> None:
    with pytest.raises(IceformError, match=r"0\.3333.*nearest word is 0\.336"):
        NumberFormat(7, 7, 7).units("0.3333")
    with pytest.raises(IceformError, match=r"1\.0 .*nearest word is 1\."):
        NumberFormat().units("1.0")
    with pytest.raises(IceformError, match=r"1000 .*nearest word is 127\."):
        NumberFormat(7, 7, 7).units("1000")


@pytest.mark.parametrize("sizes", [TextSizes(tables=17), LIBRARY], ids=["float32", "float64"])
def test_the_saved_tokenizer_reads_a_program_and_decodes_a_run(
    sizes: TextSizes, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    sizes.tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    words = tokenizer.convert_ids_to_tokens(tokenizer(PROGRAM)["input_ids"])
    expected = "|".join(TOKENS).replace("1: ", "1:").split("|")
    assert words == [*sizes.prefix, *expected, "[1]"]
    assert len(tokenizer) == len(sizes.words) == len(sizes.ids)
    run = "i = 0 [2] e = 0.25 [3] A[i] = -1 [4] t = -0.5 [end]"
    ids = tokenizer(run, add_special_tokens=False)["input_ids"]
    assert [sizes.words[k].kind for k in ids] == ["write", "number", "trace"] * 4
    assert tokenizer.decode(ids) == run
    for text in ("1: a=b", "alpha = 1", "a = 0.33333", "a = 1e5", "a ~ b", "1: a = b / 2"):
        with pytest.raises(Exception, match="UNK"):
            tokenizer(text)


def test_sizes_that_cannot_be_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"labels": 0},
        {"tables": 100},
        {"dtype": "bfloat16"},
        {"scalars": 8},
        {"cells": 300},
        {"format": NumberFormat(3, 3, 3)},
    ]
    for change in wrong:
        with pytest.raises(IceformError):
            TextSizes(**change)  # type: ignore[arg-type]
    for numbers in ((0, 8, 8), (9, 2, 4), (20, 20, 8)):
        with pytest.raises(IceformError):
            NumberFormat(*numbers)
