"""The exact interpreter against plain Python: functions, arithmetic, control, whole programs."""

from __future__ import annotations

import itertools
import math
import random
import re
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import pytest

from iceform.arithmetic.balls import balls_of
from iceform.errors import ProgramError
from iceform.targets.text.interpreter import (
    LevelArithmetic,
    check,
    execute,
    interpret,
    is_rounded_function,
    rounded_function,
)
from iceform.targets.text.library import TEXTS
from iceform.targets.text.numbers import NumberFormat
from iceform.targets.text.syntax import parse
from iceform.targets.text.words import FUNCTIONS, LIBRARY, TextSizes

SMALL = TextSizes()


def nearest(levels: list[Fraction], value: Fraction) -> Fraction:
    """By the definition: the nearest level, of two the larger."""
    at = bisect_left(levels, value)
    return min(reversed(levels[max(0, at - 1) : at + 1]), key=lambda u: abs(u - value))


def in_floats(name: str, x: float, top: float) -> float:
    """A function in float64, total as the text machine's are."""
    if name == "recip":
        return 1 / x if x else top
    if name == "rsqrt":
        return 1 / math.sqrt(x) if x > 0 else top
    if name == "log":
        return math.log(x) if x > 0 else -top
    if name == "sqrt":
        return math.sqrt(max(x, 0.0))
    if name == "exp":
        return math.exp(min(x, 100.0))
    if name == "sigmoid":
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    if name == "step":
        return float(x > 0)
    plain: dict[str, Callable[[float], float]] = {"abs": abs, "floor": math.floor}
    return (plain.get(name) or getattr(math, name))(x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("form", [SMALL.format, LIBRARY.format], ids=["small", "library"])
def test_a_function_at_a_level_is_the_nearest_level(form: NumberFormat, name: str) -> None:
    levels = [float(form.value(u)) for u in form.levels]
    every = form.levels if form.count < 3000 else form.levels[::7]
    for units in every:
        exact = in_floats(name, units / 2**form.fraction, levels[-1])
        got = rounded_function(form, name, units)
        at = form.levels.index(got) if form.count < 3000 else bisect_left(form.levels, got)
        assert form.levels[at] == got
        exact = max(levels[0], min(levels[-1], exact))
        room = 1e-12 * max(1.0, abs(exact))  # float64's own error
        for beside in (at - 1, at + 1):
            if 0 <= beside < len(levels):
                assert abs(levels[at] - exact) <= abs(levels[beside] - exact) + room, (units, exact)
        if at + 1 < len(levels) and (levels[at] + levels[at + 1]) / 2 == exact:
            assert name in ("sin", "cos", "tanh", "sigmoid", "exp", "log")  # a tie went down


def test_ties_of_roots_go_up_and_partial_functions_are_total() -> None:
    form = NumberFormat(3, 0, 8)  # 1 to 7, then 8, 10, ..., 14, 16, 20, ...
    assert rounded_function(form, "sqrt", 80) == 8 < math.sqrt(80)
    assert [rounded_function(form, "sqrt", u) for u in (0, -4, 64)] == [0, 0, 8]
    assert rounded_function(NumberFormat(3, 1, 8), "sqrt", 2 * 224) == 2 * 14  # 14.97
    eight = SMALL.format
    top = eight.largest
    assert rounded_function(eight, "recip", 0) == rounded_function(eight, "rsqrt", 0) == top
    assert rounded_function(eight, "rsqrt", -5) == top
    assert rounded_function(eight, "log", 0) == rounded_function(eight, "log", -5) == -top
    assert rounded_function(eight, "exp", top) == top
    assert rounded_function(eight, "step", 0) == 0
    wide = NumberFormat(4, 2, 50)  # e^(2^50) has more digits than there is room for
    assert rounded_function(wide, "exp", wide.largest) == wide.largest
    assert rounded_function(wide, "exp", -wide.largest) == 0
    assert rounded_function(wide, "sigmoid", -wide.largest) == 0


# ------------------------------------------------------------- random programs, two interpreters


def random_text(sizes: TextSizes, seed: int) -> str:
    """A program with a counted loop around random lines; every name has a value."""
    rng = random.Random(seed)
    words = sizes.format.words

    def number() -> str:
        if rng.random() < 0.3:
            return words[rng.randrange(len(words))]
        return sizes.format.nearest(Fraction(rng.randint(-300, 300), 64))

    def operand() -> str:
        call = f"C({rng.choice('abcdeijn')})"
        cells = (f"A[{rng.randrange(4)}]", f"B[{rng.choice('ij')}]", call)
        return rng.choice((rng.choice("abcde"), *cells, number()))

    def expression() -> str:
        kind = rng.randrange(8 if sizes.third_operand else 7)
        if kind < 3:
            return f"{operand()} {rng.choice('+-*')} {operand()}"
        if kind == 3:
            return f"{rng.choice(('max', 'min'))}({operand()}, {operand()})"
        if kind == 4:
            return operand()
        if kind < 7:
            return f"{rng.choice(FUNCTIONS)}({operand()})"
        return f"{operand()} {rng.choice('+-')} {operand()} * {operand()}"

    count = rng.randint(3, 9)
    lines = []
    for at in range(1, count + 1):
        destination = rng.choice((*"abcde", "A[j]", "B[i]", "A[2]"))
        jump = ""
        if rng.random() < 0.4:
            test = rng.choice((">", "<", ">=", "<="))
            jump = f" if {test} 0 goto {rng.randint(at + 1, count + 1)}"
        elif rng.random() < 0.1:
            jump = f" goto {rng.randint(at + 1, count + 1)}"
        lines.append(f"{at}: {destination} = {expression()}{jump}")
    lines.append(f"{count + 1}: i = {rng.randrange(4)} - i")
    lines.append(f"{count + 2}: i = abs(i)")
    lines.append(f"{count + 3}: n = n - 1 if > 0 goto 1")
    lines.append(f"{count + 4}: j = i goto end")
    data = [f"{name} = {number()}" for name in "abcde"]
    data += [f"{a}[{k}] = {number()}" for a in "AB" for k in range(4)]
    data += ["C = [" + ", ".join(number() for _ in range(sizes.cells)) + "]"]
    return "\n".join([*lines, *data, f"i = 1 j = {rng.randrange(4)} n = {rng.randint(1, 9)}"])


def second_interpreter(sizes: TextSizes, text: str) -> list[str]:
    """Written apart from the first: regular expressions, fractions, a search for the nearest."""
    levels = [sizes.format.value(u) for u in sizes.format.levels]
    word = dict(zip(levels, sizes.format.words, strict=True))
    value = {w: v for v, w in word.items()}
    program, memory = {}, {}
    for line in text.split("\n"):
        if match := re.match(r"(\d+): (\S+) = (.*?)( if (\S+) 0)?(?: goto (\w+))?$", line):
            program[int(match[1])] = match
        else:
            for name, values in re.findall(r"([A-Z]) = \[(.*?)\]", line):
                cells = enumerate(values.split(", "))
                memory.update({f"{name}[{k}]": value[v] for k, v in cells})
            memory.update({n: value[v] for n, v in re.findall(r"(\S+) = ([^\s\[]+)", line)})

    def place(name: str) -> str:
        if call := re.fullmatch(r"([A-Z])\((\w+)\)", name):
            ordered = sorted(range(sizes.cells), key=lambda k: (abs(k - memory[call[2]]), -k))
            return f"{call[1]}[{ordered[0]}]"
        return re.sub(r"\[([a-z])\]", lambda m: f"[{memory[m[1]]}]", name)

    def get(name: str) -> Fraction:
        return value[name] if name in value else memory[place(name)]

    out, at = [], 1
    while True:
        _, destination, body, _, test, target = program[at].groups()
        names = re.findall(r"-?[A-Za-z0-9][\w.\[\]]*(?!\w*\()", body)
        if call := re.match(r"([a-z]\w*)\((.*)\)$", body):
            args = [get(name) for name in call[2].split(", ")]
            if len(args) == 2:
                exact = max(args) if call[1] == "max" else min(args)
            else:
                units = rounded_function(
                    sizes.format, call[1], int(args[0] * 2**sizes.format.fraction)
                )
                exact = sizes.format.value(units)
        else:
            parts = body.split(" ")
            exact = get(parts[0])
            if len(parts) == 5:
                exact += (1 if parts[1] == "+" else -1) * get(parts[2]) * get(parts[4])
            elif len(parts) == 3:
                other = get(parts[2])
                exact = {"+": exact + other, "-": exact - other, "*": exact * other}[parts[1]]
        assert names
        result = nearest(levels, exact)
        memory[place(destination)] = result
        holds = {">": result > 0, "<": result < 0, ">=": result >= 0, "<=": result <= 0}
        jumps = target is not None and (test is None or holds[test])
        at += 1
        if jumps:
            at = 0 if target == "end" else int(target)
        out += [f"{destination} =", word[result], f"[{at or 'end'}]"]
        if at == 0:
            return out


@pytest.mark.parametrize("sizes", [SMALL, LIBRARY], ids=["float32", "float64"])
def test_random_programs_run_as_a_second_interpreter_runs_them(sizes: TextSizes) -> None:
    tokens = 0
    for seed in range(60):
        text = random_text(sizes, seed)
        found = interpret(sizes, text)
        assert found == second_interpreter(sizes, text), text
        tokens += len(found)
    assert tokens > 5000


def test_a_run_without_end_is_given_up() -> None:
    text = "1: n = n - 1 if > 0 goto 1\n2: s = 0 goto end\nn = 9"
    program, levels = parse(SMALL, text), LevelArithmetic(SMALL.format)
    assert execute(program, levels, most_steps=10)["s", None] == 0
    with pytest.raises(ProgramError, match="within 9 instructions"):
        execute(program, levels, most_steps=9)


# ----------------------------------------------------------------------------- whole programs


def memory_of(name: str, sizes: TextSizes = SMALL, **changes: str) -> dict[str, Fraction]:
    """What a program of the library leaves, with some of its data changed."""
    text = TEXTS[name]
    for variable, number in changes.items():
        text, count = re.subn(rf"\b{variable} = [-\d.]+", f"{variable} = {number}", text)
        assert count, variable
    run = check(sizes, text)
    shown = {c if k is None else f"{c}[{k}]": v for (c, k), v in run.memory.items()}
    return {key: sizes.format.value(v) for key, v in shown.items()}


def cells(memory: dict[str, Fraction], array: str, count: int, first: int = 0) -> list[Fraction]:
    return [memory[f"{array}[{k}]"] for k in range(first, first + count)]


@pytest.mark.parametrize("a", ["2", "3", "1", "0.5"])
def test_inverse_square_root(a: str) -> None:
    assert abs(memory_of("inverse square root", a=a)["s"] - float(a) ** -0.5) < 0.02


@pytest.mark.parametrize(("a", "b"), [(84, 36), (17, 5), (7, 7), (12, 100), (126, 96)])
def test_greatest_common_divisor(a: int, b: int) -> None:
    assert memory_of("greatest common divisor", a=str(a), b=str(b))["g"] == math.gcd(a, b)


def test_gradient_descent() -> None:
    x, y = [-1, -0.5, 0.5, 1], [-0.75, -0.25, 0.5, 0.625]
    slope = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
    assert abs(memory_of("gradient descent", LIBRARY)["s"] - slope) < 1e-3
    assert abs(memory_of("gradient descent")["s"] - slope) < 0.03


@pytest.mark.parametrize("seed", range(4))
def test_bubble_sort(seed: int) -> None:
    text = TEXTS["bubble sort"].partition("A[0] = 3")[0]
    numbers = [Fraction(random.Random(10 * seed + k).randint(-8, 8), 4) for k in range(6)]
    words = [f"A[{k}] = {SMALL.format.nearest(v)}" for k, v in enumerate(numbers)]
    run = check(SMALL, text + " ".join(words))
    assert [run.value("A", k) for k in range(6)] == sorted(numbers)


@pytest.mark.parametrize("brackets", ["(()(()))", "", "(()", "())(", ")(", "()()", "(((((())))))"])
def test_brackets(brackets: str) -> None:
    code = [{"(": 1, ")": -1}[c] for c in brackets] + [0]
    text = TEXTS["brackets"].partition("A[0] = 1")[0]
    run = check(SMALL, text + " ".join(f"A[{k}] = {v}" for k, v in enumerate(code)))
    depths = list(itertools.accumulate(code))
    good = min(depths) >= 0 and depths[-1] == 0
    assert run.value("b") == good
    if good:
        assert run.value("m") == max(depths)


@pytest.mark.parametrize("x", [0, 1, 4, 11, 13, 23, 24])
def test_binary_search(x: int) -> None:
    primes = [1, 2, 3, 5, 7, 11, 13, 17, 19, 23]
    place = primes.index(x) if x in primes else -1
    assert memory_of("binary search", x=str(x))["p"] == place


@pytest.mark.parametrize("d", [11, 3, 7, 12])
def test_long_division(d: int) -> None:
    memory = memory_of("long division", d=str(d))
    quotient = int("".join(str(v) for v in cells(memory, "B", 6)))
    assert (quotient, int(memory["r"])) == divmod(801979, d)


def test_rule_110() -> None:
    row = [0] * 14 + [1, 0]
    for _ in range(8):
        code = [4 * a + 2 * b + c for a, b, c in zip(row, row[1:], row[2:], strict=False)]
        row = [0, *((110 >> k) & 1 for k in code), 0]
    assert cells(memory_of("rule 110"), "A", 16) == row


def test_a_level_is_a_function_or_it_is_not() -> None:
    """The quick decision against the rounding itself: the right level, and both neighbours."""
    form, rng = NumberFormat(5, 4, 4), random.Random(1)
    levels = form.levels
    with balls_of(64) as flint:
        for name in FUNCTIONS:
            for units in levels:
                at = levels.index(rounded_function(form, name, units))
                for other in (at - 1, at, at + 1, rng.randrange(len(levels))):
                    said = levels[min(max(other, 0), len(levels) - 1)]
                    expected = said == levels[at]
                    assert is_rounded_function(flint, form, name, units, said) == expected
