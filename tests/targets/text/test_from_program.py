"""Algorithms of the language as texts: the same algorithm, sizes, answers read back, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import iceform as ice
from iceform.computer.language import (
    algorithm,
    apply,
    attend,
    constant,
    maximum,
    mean,
    repeat,
    where,
    while_,
    zeros_like,
)
from iceform.computer.library import EXAMPLES, classics
from iceform.computer.samples import argmax, argmin, at, count, index, previous, running_sum
from iceform.computer.samples import min as smallest
from iceform.computer.samples import sum as total
from iceform.errors import BoundError, CapacityError, IceformError, ProgramError
from iceform.program import NodeOperation
from iceform.targets.text.from_program import AlgorithmText, text_of
from iceform.targets.text.words import LIBRARY, TextSizes

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type"

LONG = dataclasses.replace(LIBRARY, positions=2**16)
LONG_SMALL = TextSizes(positions=2**16, scalars=64, arrays=16, labels=255)
TOO_LONG = {"huber", "logistic", "gaussian_process", "adam"}
# What fixed point may cost: Adam divides by roots of squares that it rounds to 0.
BLUNT = {"lbfgs": 0.05, "adam": math.inf}


@cache
def written(name: str) -> AlgorithmText:
    example = EXAMPLES[name]
    return text_of(example.algorithm, example.X, example.y, sizes=LONG, **example.settings)


def largest(one: Any, other: Any) -> float:
    if isinstance(one, dict):
        return max(largest(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return max(largest(a, b) for a, b in zip(one, other, strict=True))
    assert one.shape == other.shape
    return float((one - other).abs().max())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_text_says_what_the_algorithm_says(name: str) -> None:
    """Run exactly, it is the algorithm; run in levels, it is near, and as near as is said."""
    text, example = written(name), EXAMPLES[name]
    meant = example.algorithm(example.X, example.y, **example.settings)
    assert text.loss.tables < 1e-12, text.loss.explain()
    distance = largest(text.answer, meant)
    assert distance <= text.loss.worst + 1e-12
    assert text.loss.worst <= BLUNT.get(name, 1e-2)
    assert largest(text.read(text.run.text), text.answer) == 0
    assert largest(text.read(text.text + " [1] " + text.run.text), text.answer) == 0


def test_an_operation_without_a_text_is_refused_by_name(monkeypatch) -> None:
    """As one whose row of the table is not the package's."""
    monkeypatch.setattr(type(NodeOperation.table["whole"]), "term", NodeOperation.term)
    example = EXAMPLES["collatz"]
    with pytest.raises(ProgramError, match="the operation whole has no text"):
        text_of(example.algorithm, example.X, example.y)


@pytest.mark.parametrize("name", EXAMPLES)
def test_algorithms_fit_into_16384_positions(name: str) -> None:
    example = EXAMPLES[name]
    if name in TOO_LONG:
        with pytest.raises(CapacityError, match=r"needs \d+ tokens.* prompt's \d+ .* 16384 pos"):
            text_of(example.algorithm, example.X, example.y, **example.settings)
        return
    assert written(name).tokens <= LIBRARY.positions
    assert written(name).lines <= 100


def test_a_compiled_program_writes_its_text() -> None:
    example = EXAMPLES["least_squares"]
    text = example.compile().text(example.X, example.y, steps=3)
    assert isinstance(text, AlgorithmText)
    assert text.text == text_of(example.algorithm, example.X, example.y, steps=3).text
    assert f"{text.lines} lines, {text.tokens} of 16384 positions" in text.explain()
    assert "not a certificate" in text.explain()


# -------------------------------------------------------- shapes of programs the library has not


@algorithm
def nested(x, y, *, outer=3, inner=4):
    a, b = constant(1.0), constant(0.5)
    w = zeros_like(x)
    for t in repeat(outer):
        c = +a
        for s in repeat(inner):
            c = 0.5 * c + 0.1 * s * b
        a, b = b + 0.01 * t, c + 0.0
        w = w + a * mean(x * y) - 0.1 * b
    return {"a": a, "b": b, "w": w}


@algorithm
def swap(x, y, *, steps=5):
    a, b = +mean(x), +mean(x * x)
    for _ in repeat(steps):
        a, b = +b, +a
    return {"a": a, "b": b}


@algorithm
def swapped_lanes(x, y, *, steps=3):
    u, v = +y, 2.0 * y
    for _ in repeat(steps):
        u, v = +v, u + 0.25
    return u, v


@algorithm
def lanes(x, y, *, steps=4):
    u = +y
    v = x * 1.0
    for _ in repeat(steps):
        m = mean(u)
        u, v = torch.tanh((v * x).sum() - m), v - m * u * x
    return {"u": u, "v": v}


@algorithm
def idle(x, y, *, bound=5.0):
    t = mean(y)
    while while_(t > bound):
        t = 0.5 * t
    return t + 1.0


@algorithm
def never(x, y, *, steps=0):
    w = zeros_like(x)
    for _ in repeat(steps):
        w = w + 1.0
    return w


@algorithm
def whiles(x, y, *, bound=0.2):
    t, k = mean(y * y) + 2.0, constant(0.0)
    while while_(t > bound):
        s = constant(0.0)
        while while_(s < 0.3 * t):
            s = s + 0.11
        t, k = t - s, k + 1.0
    return {"t": t, "k": k}


@algorithm
def attends_to_itself(x, y, *, steps=2):
    v = +y
    for _ in repeat(steps):
        v = 0.5 * v + attend(x, x, v, -0.1 * y)
    return v


@algorithm
def branches(x, y, *, steps=3):
    v = +y
    for _ in repeat(steps):
        v = where((x * x).sum() > 0.5, v - mean(v), maximum(v, 0.25 * y))
    return v


@algorithm
def passed_through(x, y):
    return x


@algorithm
def a_constant(x, y):
    return zeros_like(x) + 0.25


@algorithm
def smoothed(x, y, *, steps=2):
    for _ in repeat(steps):
        y = 0.5 * at(y, index() + 1) + 0.25 * previous(y, 1, 0.25) + at(mean(y), 1)
    return y


@algorithm
def places(x, y):
    return {"own": index(), "back": count() - 1 - index(), "far": at(index(), 99)}


@algorithm
def gathered(x, y):
    """Reads at places that the data say, of values that are no data."""
    return at(torch.tanh(x) * y, torch.floor(2.0 * y)) + running_sum(x)


@algorithm
def chosen(x, y, *, steps=2):
    for _ in repeat(steps):
        j = argmax(x[0] - y)
        y = y - (index() == j) * at(y, j)
    return {"least": smallest(x), "first": argmin(0.0 * y), "y": y, "sum": total(y * index())}


@algorithm
def scores_by_number(x, y):
    """A softmax whose keys and values are the samples' numbers, and that is no read."""
    return attend(0.1 * y, index(), y * index())


SHAPES = [
    nested, swap, swapped_lanes, lanes, idle, never, whiles, attends_to_itself, branches,
    passed_through, a_constant, smoothed, places, gathered, chosen, scores_by_number,
]  # fmt: skip


@pytest.mark.parametrize("sizes", [LONG, LONG_SMALL], ids=["float64", "float32"])
@pytest.mark.parametrize("shape", [(5, 2), (1, 1), (7, 3)], ids=str)
@pytest.mark.parametrize("of", SHAPES, ids=lambda a: a.name)
def test_other_programs_are_the_same_algorithm(of: Any, shape: Any, sizes: TextSizes) -> None:
    generator = torch.Generator().manual_seed(shape[0])
    X = 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1
    y = 2 * torch.rand(shape[0], generator=generator, dtype=torch.float64) - 1
    text = text_of(of, X, y, sizes=sizes)
    assert text.loss.tables < 1e-10  # of n samples the largest is known to n times 1e-11
    assert largest(text.read(text.run.text), text.answer) == 0
    assert text.text == text_of(of, X, y, sizes=sizes).text


def test_whole_numbers_are_exact() -> None:
    """Quotients in levels may be short of a whole number: remainders decide."""
    nothing = torch.zeros(2, 1, dtype=torch.float64)
    for a, b in itertools.product((1, 3, 35, 36, 49, 499, 500), (0, 1, 7, 12, 49, 98, 499)):
        pair = torch.tensor([a, b], dtype=torch.float64)
        text = text_of(classics.greatest_common_divisor, nothing, pair)
        assert (text.answer, text.loss.worst) == (math.gcd(a, b), 0), (a, b)


@algorithm
def quotients(x, y):
    return {"by": y // x[0], "rest": y % x[0], "third": y // 3, "nearest": round(y / 4.0 + 0.1)}


@pytest.mark.parametrize("sizes", [LIBRARY, LONG_SMALL], ids=["float64", "float32"])
def test_remainders_have_the_sign_of_the_divisor(sizes: TextSizes) -> None:
    pairs = [(a, b) for a in (-30, -7, -1, 0, 5, 29) for b in (-9, -3, -1, 2, 7)]
    y, x = torch.tensor(pairs, dtype=torch.float64).T
    text = text_of(quotients, x[:, None], y, sizes=sizes)
    a, b = y.long(), x.long()
    meant = {"by": a // b, "rest": a % b, "third": a // 3, "nearest": torch.floor(y / 4 + 0.6)}
    assert largest(text.answer, {name: v.double() for name, v in meant.items()}) == 0


@pytest.mark.parametrize("y", [[2, 0, 2, 1], [0, 0, 0, 0], [-1, -1, 5, 5]], ids=str)
def test_of_equal_samples_the_first_is_the_largest(y: list[int]) -> None:
    seen = torch.tensor(y, dtype=torch.float64)
    text = text_of(classics.largest_sample, seen[:, None], seen)
    assert text.answer == {"value": max(y), "place": y.index(max(y))}


@pytest.mark.parametrize("name", ["nesterov", "lasso", "softmax_attention", "k_means", "bisection"])
def test_the_library_without_a_third_operand(name: str) -> None:
    example = EXAMPLES[name]
    text = text_of(example.algorithm, example.X, example.y, sizes=LONG_SMALL, **example.settings)
    assert text.loss.tables < 1e-12
    assert not any(len(line.operands) > 2 for line in text.exact.lines)


# ------------------------------------------------------------------------------------ functions

FORMULAS = [
    "3*z^2 - z/2 + 1", "cosh(z)", "sinh(z)", "expm1(z)", "log1p(z + 2)", "logcosh(2*z)", "relu(z)",
    "softplus(z)", "tan(z/2)", "sign(z)", "clip(z, -0.5, 0.25)", "max(z, 0.1) * min(z, 0.2)",
    "1/(2 + z)", "(z + 2)^(-0.5)", "(z + 2)^0.5", "(z + 2)^1.7", "z^(-2)", "abs(z)^3", "sin(3*z)",
    "sigmoid(4*z)", "exp(-z^2)",
]  # fmt: skip


@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas_by_composition(formula: str) -> None:
    f = ice.Formula(formula)
    X = torch.tensor([[-1.0], [-0.625], [-0.25], [0.5], [0.75], [1.0]], dtype=torch.float64)
    text = text_of(algorithm(lambda x, y: apply(f, x[0])), X, X[:, 0], sizes=LONG)
    assert text.loss.tables < 1e-12
    assert text.loss.worst < 2e-2


@pytest.mark.parametrize(("formula", "error"), [("atan(8*z)", 2e-4), ("erf(2*z)", 2e-3)])
def test_functions_outside_the_set_are_tables_in_an_array(formula: str, error: float) -> None:
    f = ice.Formula(formula)
    X = torch.linspace(-2, 2, 31, dtype=torch.float64)[:, None]
    text = text_of(algorithm(lambda x, y: apply(f, x[0])), X, X[:, 0], sizes=LONG)
    assert 0 < text.loss.tables < error
    assert largest(text.answer, text.meant) < 2 * error + text.loss.worst
    assert "[k]" in text.text


# ------------------------------------------------------------------------------------- refusals


def data(n: int, d: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = scale * torch.rand(n, d, generator=generator, dtype=torch.float64)
    return X, X.sum(1)


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    of = EXAMPLES["least_squares"].algorithm
    with pytest.raises(CapacityError, match=r"33 samples.* 32 cells"):
        text_of(of, *data(33, 1))
    with pytest.raises(CapacityError, match=r"needs 21 arrays at once.* has 16"):
        text_of(of, *data(3, 20))
    with pytest.raises(CapacityError, match=r"needs \d+ lines.* has 8 labels"):
        text_of(of, *data(3, 1), sizes=dataclasses.replace(LIBRARY, labels=8))
    small = dataclasses.replace(LIBRARY, scalars=17, indices=3, arrays=26)
    with pytest.raises(CapacityError, match=r"needs \d+ scalars at once.* has 17"):
        text_of(of, *data(3, 12), sizes=small)
    with pytest.raises(CapacityError, match=r"needs \d+ tokens"):
        text_of(of, *data(30, 3), steps=100)
    with pytest.raises(BoundError, match="beyond the largest number"):
        text_of(of, *data(3, 1, 1e5))
    with pytest.raises(BoundError, match="leaves the range"):
        text_of(of, *data(3, 1, 1000.0))
    with pytest.raises(BoundError, match=r"the factor 3\.33e-06 is nearer to 0"):
        text_of(of, *data(3, 1), lr=1e-5)
    with pytest.raises(IceformError, match="no parameter"):
        text_of(of, *data(3, 1), rate=1.0)
    with pytest.raises(BoundError, match="X holds a number that is not finite"):
        text_of(of, torch.full((2, 1), torch.nan), torch.ones(2))
    with pytest.raises(BoundError, match="lr holds a number that is not finite"):
        text_of(of, *data(3, 1), lr=float("inf"))
    with pytest.raises(IceformError, match="at least"):
        text_of(of, torch.ones(0, 2), torch.ones(0))
    with pytest.raises(IceformError, match="compiled program"):
        text_of(None, *data(3, 1))
    with pytest.raises(IceformError, match="one number a sample"):
        text_of(of, data(3, 1)[0], data(4, 1)[1])


def test_a_run_without_an_end_is_not_read() -> None:
    text = written("bisection")
    run = text.run.text
    words = run.split(" ")
    other = [*words[:3], "[9]", *words[4:]]
    for wrong in ("", "a = 1 [2]", text.text, run[: len(run) // 2], " ".join(other)):
        with pytest.raises(ProgramError, match="not complete"):
            text.read(wrong)


def test_a_run_is_read_as_machines_write_it() -> None:
    text = written("bisection")
    run = text.run.text
    prompt = " ".join(text.run.program.words)
    for shown in (
        run,
        text.text + run.removesuffix(" [end]"),  # a pipeline drops the end
        f"{prompt} [1] {run}",  # generate(), decoded
        f"<s> <0> <1> {prompt} [1] {run}",
        f"[1] {run}",
    ):
        assert largest(text.read(shown), text.answer) == 0


def test_a_text_refuses_a_fraction_where_whole_numbers_are_compared():
    """Comparisons of whole numbers are decided half-way, where 2.3 > 2 would be false."""
    made = algorithm(lambda x, y, *, k=3: 1.0 * (k > 2) + 0.0 * mean(x[0]))
    X, y = torch.full((4, 1), 0.5).double(), torch.zeros(4).double()
    assert float(text_of(made, X, y, k=3).answer) == 1
    with pytest.raises(ProgramError, match=r"k is compared with whole numbers.*; got 2\.3"):
        text_of(made, X, y, k=2.3)
