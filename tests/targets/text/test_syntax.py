"""A text is a program whose words are the tokenizer's, or one error with line, word and remedy."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from iceform.errors import IceformError
from iceform.targets.text.interpreter import check
from iceform.targets.text.library import TEXTS
from iceform.targets.text.syntax import ProgramText, TextError, parse
from iceform.targets.text.words import LIBRARY, TextSizes

SMALL = TextSizes()
NEAR = SMALL.format.nearest
THIRD = "1: p = c + a * b\n2: p = p - 0.5 * p goto end\na = 2 b = 3 c = 0.25"

# text, line, word, and what the message says; SMALL is a float32 machine
WRONG: list[tuple[str, int, str, str]] = [
    ("", 1, "", "no program line"),
    ("# nothing\n\n", 1, "", "no program line"),
    ("a = 1", 1, "a", "begins with a program line"),
    ("a = 1\n1: a = 1 goto end", 1, "a", "begins with a program line"),
    ("1: a = 1 goto end\nb = 1\n2: a = 2 goto end", 3, "2:", "program lines come first"),
    ("1: a = 1", 1, "1:", "goto end"),
    ("1: a = 1\n2: a = 2 if > 0 goto 1", 2, "2:", "goto end"),
    ("1: a = 1 goto 2", 1, "goto 2", "no label 2: this program has label 1"),
    ("1: a = 1 if < 0 goto 9\n2: b = 2 goto end", 1, "if < 0 goto 9", "labels 1 to 2"),
    ("1: a = 1 goto 64", 1, "64", "labels 1 to 63"),
    ("1: a = 1 goto 0", 1, "0", "a label such as 3"),
    ("1: a = 1 goto stop", 1, "stop", "a label such as 3, or 'end'"),
    ("2: a = 1 goto end", 1, "2:", "This line is '1:'"),
    ("1: a = 1\n3: b = 1 goto end", 2, "3:", "This line is '2:'"),
    ("1: a = 1\n1: b = 1 goto end", 2, "1:", "This line is '2:'"),
    ("01: a = 1 goto end", 1, "01:", "This line is '1:'"),
    ("1:a = 1 goto end", 1, "1:a", "begins with a program line"),
    ("1: a=b goto end", 1, "a=b", "Write 'a = b'"),
    ("1: a =b goto end", 1, "=b", "Write 'a = ...'"),
    ("1: a = b+c goto end", 1, "b+c", "Write 'b + c'"),
    ("1: a = b*c goto end", 1, "b*c", "Write 'b * c'"),
    ("1: a = b-1 goto end", 1, "b-1", "Write 'b - 1'"),
    ("1: a = b -1 goto end", 1, "-1", "Write '- 1'"),
    ("1: a = -b goto end", 1, "-b", "Write '0 - b'"),
    ("1: a = b / c goto end", 1, "/", "recip"),
    ("1: a = b/c goto end", 1, "b/c", "Write 'b / c'"),
    ("1: a = b ** 2 goto end", 1, "**", "an operator belongs here"),
    ("1: a = b > c goto end", 1, ">", "'t = a - b if > 0 goto 3'"),
    ("1: a = b == c goto end", 1, "==", "'t = a - b if > 0 goto 3'"),
    ("1: a = b if == 0 goto end", 1, "==", "a test is one of >, <, >=, <="),
    ("1: a = b if > 1 goto end", 1, "1", "compares with 0"),
    ("1: a = b if a > 0 goto end", 1, "a", "a test is one of"),
    ("1: a = b if > 0 then 3", 1, "then", "'goto' belongs here"),
    ("1: a = b if > 0", 1, "0", "'goto' is missing"),
    ("1: a = b gotoend", 1, "gotoend", "Did you mean 'goto'?"),
    ("1: a = b goto", 1, "goto", "a label or 'end' is missing"),
    ("1: a = 1 goto end b = 2", 1, "b", "on a line of its own"),
    ("1: a = 1 b = 2 goto end", 1, "b", "an operator belongs here"),
    ("1: a = b = 2 goto end", 1, "=", "one '=' a line"),
    ("1: a = 1 2: b = 2 goto end", 1, "2:", "line of its own"),
    ("1: goto end", 1, "goto", "a destination belongs here"),
    ("1: a goto end", 1, "goto", "comes ' = '"),
    ("1: a = goto end", 1, "goto", "an operand belongs here"),
    ("1: a =", 1, "=", "an operand is missing"),
    ("1: a", 1, "a", "comes ' = '"),
    ("1:", 1, "1:", "a destination"),
    ("1: a = b + goto end", 1, "goto", "an operand belongs here"),
    ("1: a = b + c + d goto end", 1, "+", "one operation"),
    ("1: a = b * c + d goto end", 1, "+", "one operation"),
    ("1: a = c + a * b goto end", 1, "*", "'t = a * b'"),
    ("1: a = c - a * b goto end", 1, "*", "float64 machines only"),
    ("1: total = 1 goto end", 1, "total", "Names are a to z"),
    ("1: a = total goto end", 1, "total", "Names are a to z"),
    ("1: a = t0 goto end", 1, "t0", "Names are a to z"),
    ("1: a = I[i] goto end", 1, "I[i]", "arrays A to H"),
    ("1: a = A goto end", 1, "A", "Name a cell"),
    ("1: A = 1 goto end", 1, "A", "Name a cell"),
    ("1: a = a[i] goto end", 1, "a[i]", "Did you mean 'A[i]'?"),
    ("1: a = A[32] goto end", 1, "A[32]", "cells 0 to 31"),
    ("1: a = A[-1] goto end", 1, "A[-1]", "cells 0 to 31"),
    ("1: a = A[b] goto end", 1, "A[b]", "b is no index"),
    ("1: a = A[i+1] goto end", 1, "A[i+1]", "on a line of its own"),
    ("1: a = A[] goto end", 1, "A[]", "an index is one of"),
    ("1: a = A[i goto end", 1, "A[i", "no word"),
    ("1: a = 0.3333 goto end", 1, "0.3333", f"nearest is {NEAR(0.3333)}."),
    ("1: a = 1.0 goto end", 1, "1.0", "nearest is 1."),
    ("1: a = .5 goto end", 1, ".5", "nearest is 0.5"),
    ("1: a = +1 goto end", 1, "+1", "nearest is 1."),
    ("1: a = -0 goto end", 1, "-0", "nearest is 0."),
    ("1: a = 007 goto end", 1, "007", "nearest is 7."),
    ("1: a = 1e5 goto end", 1, "1e5", "no exponent"),
    ("1: a = 1e999999999 goto end", 1, "1e999999999", "no exponent"),
    ("1: a = 300 goto end", 1, "300", f"the largest is {NEAR(300)}"),
    ("1: a = nan goto end", 1, "nan", "no word"),
    ("1: a = 1_000 goto end", 1, "1_000", "no word"),
    ("1: a = " + "9" * 5000 + " goto end", 1, "9" * 5000, "5000 digits"),
    ("1: a = \u0663 goto end", 1, "\u0663", "U+0663"),
    ("1: a = \u2212b goto end", 1, "\u2212", "U+2212"),
    ("1: a = 1\u00a0goto end", 1, "\u00a0", "U+00A0"),
    ("1: a = b\x00 goto end", 1, "\x00", "U+0000"),
    ("1: a = b goto end # \udc80", 1, "U+DC80", "half of a sign"),
    ("1: a = tan(b) goto end", 1, "tan(", "Did you mean 'tanh'?"),
    ("1: a = sqr(b) goto end", 1, "sqr(", "Did you mean 'sqrt'?"),
    ("1: a = softplus(b) goto end", 1, "softplus(", "another one is a table"),
    ("1: a = tanh (b) goto end", 1, "tanh", "no space before the bracket"),
    ("1: a = tanh b goto end", 1, "tanh", "no word"),
    ("1: a = tanh(b goto end", 1, "goto", "close with ')'"),
    ("1: a = tanh() goto end", 1, ")", "an operand is missing"),
    ("1: a = tanh(b + c) goto end", 1, "+", "on a line of its own before"),
    ("1: a = tanh(b, c) goto end", 1, ",", "takes 1 operand"),
    ("1: a = tanh(b) + c goto end", 1, "+", "Put this on a line of its own"),
    ("1: a = c + tanh(b) goto end", 1, "tanh(", "only operation of its line"),
    ("1: a = max(b) goto end", 1, ")", "max takes two operands"),
    ("1: a = max(b, c, d) goto end", 1, ",", "takes 2 operands"),
    ("1: a = (b + c) goto end", 1, "(", "brackets belong to functions"),
    ("1: a = 1 goto end\nb = c", 2, "c", "hold numbers"),
    ("1: a = 1 goto end\nb", 2, "b", "comes ' = '"),
    ("1: a = 1 goto end\nb =", 2, "=", "a number is missing"),
    ("1: a = 1 goto end\nb = 1 + 2", 2, "+", "without a label"),
    ("1: a = 1 goto end\nb = 1 goto 1", 2, "goto", "without a label"),
    ("1: a = 1 goto end\nA[i] = 1", 2, "A[i]", "Write 'A[0] ='"),
    ("1: a = 1 goto end\nA[40] = 1", 2, "A[40]", "cells 0 to 31"),
    ("1: a = 1 goto end\nb = 0.311", 2, "0.311", f"nearest is {NEAR(0.311)}."),
    ("1: a = 1 goto end\n<0>", 2, "<0>", "no word"),
    ("1: a = 1 goto end\n[end]", 2, "[end]", "no word"),
    ("1: a = 1 goto end\n<s> a = 1", 2, "<s>", "no word"),
    ("1: y = F(3) goto end", 1, "3", "'F(x)'"),
    ("1: y = F(x + 1) goto end", 1, "+", "takes one name"),
    ("1: y = F(A[i]) goto end", 1, "A[i]", "on a line of its own"),
    ("1: y = F() goto end", 1, ")", "called with a name"),
    ("1: y = F(x goto end", 1, "goto", "takes one name"),
    ("1: y = F( x) goto end", 1, ")", "no space inside"),
    ("1: y = F(x) + F(x\t) goto end", 1, ")", "no space inside"),
    ("1: y = Z(x) goto end", 1, "Z(", "no function 'Z'"),
    ("1: F(x) = 2 goto end", 1, "F(", "a destination belongs"),
    ("1: y = 1 goto end\nF = 3", 2, "3", "'F = [0, 1, 4]'"),
    ("1: y = 1 goto end\nF = [3", 2, "3", "',' or ']' is missing"),
    ("1: y = 1 goto end\nF = []", 2, "]", "holds numbers"),
    ("1: y = 1 goto end\nF = [1 2]", 2, "2]", "a comma"),
    ("1: y = 1 goto end\nF = [1, 2]]", 2, "2]]", "holds numbers"),
    ("1: y = 1 goto end\nF = [1, a]", 2, "a]", "holds numbers"),
    ("1: y = 1 goto end\nF = [1, 0.3333]", 2, "0.3333]", "nearest is"),
    ("1: y = 1 goto end\nf = [1]", 2, "[1]", "hold numbers"),
    ("1: y = 1 goto end\nF = [" + "1, " * 32 + "1]", 2, "1]", "has 32 cells"),
    ("1: y = F(x) goto end\nF = [1, 2]", 1, "x", "'x = 0'"),
    ("1: y = F(x) goto end\nF = [1, 2] x = 8.5", 1, "F(x)", "no value at 9"),
    ("1: a = b goto end", 1, "b", "'b = 0'"),
    ("1: a = A[3] goto end", 1, "A[3]", "'A[3] = 0'"),
    ("1: a = A[i] goto end", 1, "i", "'i = 0'"),
    ("1: a = A[i] goto end\ni = 7", 1, "A[i]", "A[7] is read (i is 7)"),
    ("1: a = A[i] goto end\ni = 32", 1, "A[i]", "i is 32"),
    ("1: A[i] = 1 goto end\ni = -1", 1, "A[i] =", "i is -1"),
    ("1: A[i] = 1 goto end\ni = 0.5", 1, "A[i] =", "i is 0.5"),
    ("1: a = 1 goto 1", 1, "1:", "more than 150000 tokens, and after the prompt's"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "word", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named(text: str, line: int, word: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        check(SMALL, text)
    assert (caught.value.line, caught.value.word) == (line, word)
    assert message in str(caught.value), str(caught.value)
    assert str(caught.value).startswith(f"line {line}, ")
    assert len(str(caught.value)) < 400


def test_a_run_that_is_too_long_says_the_three_numbers() -> None:
    turns = "1: n = n - 1 if > 0 goto 1\n2: s = 0 goto end\nn = "
    sizes = TextSizes(positions=100, tables=7)
    prompt = parse(sizes, turns + "5").prompt_tokens
    most = (100 - prompt) // 3 - 1
    assert check(sizes, turns + str(most)).tokens <= 100
    with pytest.raises(TextError, match=rf"needs {3 * (most + 2)} tokens.*{prompt} there are"):
        check(sizes, turns + str(most + 1))


def test_more_lines_than_labels() -> None:
    text = "\n".join(f"{k}: a = {k}" for k in range(1, 65)) + " goto end"
    with pytest.raises(TextError, match="line 64, '64:': this machine has labels up to 63"):
        check(SMALL, text)


def test_a_third_operand_is_a_line_of_float64_machines() -> None:
    assert check(LIBRARY, THIRD).value("p") == 3.125
    assert [line.operation for line in parse(LIBRARY, THIRD).lines] == ["c + a * b", "c - a * b"]
    with pytest.raises(TextError, match="float64"):
        check(SMALL, THIRD)


def test_a_text_that_is_no_text() -> None:
    for wrong in (None, 3, b"1: a = 1 goto end"):
        with pytest.raises(IceformError, match="is a text"):
            parse(SMALL, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("space", ["  ", "\t", " \r", " \f ", "\v", "   # [end] <s> \u00e9\n\n"])
def test_white_space_and_comments_change_nothing(space: str) -> None:
    text = TEXTS["brackets"].split("\n", 2)[2]
    if "\n" in space:
        spaced = f"#\u2028 first\n{text.replace(chr(10), space)}"
    else:
        spaced = space + text.replace(" ", space).replace("\n", f"{space}\r\n{space}")
    plain = parse(SMALL, text)
    assert parse(SMALL, spaced).words == plain.words
    ids = tokenizer(SMALL)(spaced)["input_ids"]
    assert [SMALL.words[k].text for k in ids] == [*SMALL.prefix, *plain.words, "[1]"]


# --------------------------------------------------------------------- a thousand mutated texts

PIECES = [
    *"abi=+-*/(),:[]<>0.#\n ",
    "C(i)",
    ", 3",
    "C = [1, 2]",
    "goto",
    "if",
    "end",
    "tanh(",
    "A[3]",
    "A[i] =",
    "0.25",
    "<s>",
]


def mutated(text: str, rng: random.Random) -> str:
    """One to three random changes: letters, pieces and lines dropped, put in, swapped, doubled."""
    for _ in range(rng.randint(1, 3)):
        kind, at = rng.randrange(7), rng.randrange(len(text) + 1)
        lines = text.split("\n")
        one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
        words = text.split(" ")
        place = rng.randrange(len(words))
        if kind == 0:
            text = text[:at] + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif kind == 2:
            text = text[:at] + rng.choice(PIECES) + text[at + 1 :]
        elif kind == 3:
            text = "\n".join(lines[:one] + lines[one + 1 :])
        elif kind == 4:
            lines[one], lines[two] = lines[two], lines[one]
            text = "\n".join(lines)
        elif kind == 5:
            text = " ".join(words[:place] + words[place + 1 :])
        else:
            words[place], words[-1] = words[-1], words[place]
            text = " ".join(words)
    return text


@cache
def tokenizer(sizes: TextSizes) -> Any:
    return sizes.tokenizer()


def read(sizes: TextSizes, text: str) -> ProgramText | None:
    """A program, or None after one error that names a line and a word of it."""
    try:
        return parse(sizes, text)
    except TextError as caught:
        error = caught
    there = text.split("\n")[error.line - 1]
    assert "".join(error.word.split()) in "".join(there.split()), str(error)
    assert str(error).endswith(".")
    return None


def test_a_thousand_malformed_texts() -> None:
    """Each has one clear error; the others are programs that tokenizer and parser read alike."""
    rng, bases = random.Random(0), [*TEXTS.values(), THIRD]
    refused = accepted = 0
    for count in itertools.count():
        if refused == 1000:
            break
        base = bases[count % len(bases)]
        sizes = LIBRARY if base is THIRD else SMALL
        text = mutated(base, rng)
        program = read(sizes, text)
        if program is None:
            refused += 1
            continue
        accepted += 1
        ids = tokenizer(sizes)(text)["input_ids"]
        assert [sizes.words[k].text for k in ids] == [*sizes.prefix, *program.words, "[1]"], text
        with suppress(TextError):  # a name that is never written, a run without an end
            assert check(sizes, program).words[-1] == "[end]"
    assert accepted > 100
