"""Programs as users write them: loops in loops, stops of their own, numbers of NumPy, odd sizes.

What they should answer is written down a second time, in rational numbers where they allow it.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import iceform as ice
from iceform.computer import Computer
from iceform.computer.compile import compile
from tests.computer.random_programs import data


def stops_inside(x, y, *, steps=3):
    """A loop that the data end, in a loop that counts."""
    w = 0.5 * ice.mean(y)
    for _ in ice.repeat(steps):
        v = 1.0 + w * w
        while ice.while_(v > 0.4):
            v = 0.625 * v
        w = 0.5 * w + 0.25 * v
    return w


def stops_inside_exactly(X, y):
    w = sum(y) / len(y) / 2
    for _ in range(3):
        v = 1 + w * w
        while v > Fraction(0.4):
            v = Fraction(5, 8) * v
        w = w / 2 + v / 4
    return [w]


def counts_inside(x, y, *, tolerance=0.2):
    """A loop that counts, in a loop that the data end, through a function of one's own."""
    w, total = 1.0 + 0.25 * ice.mean(y), ice.constant(0.0)
    while ice.while_(w > tolerance):
        w = _shrunk(w)
        total = 0.5 * total + w
    return w, total


def _shrunk(v):
    for _ in ice.repeat(3):
        v = 0.875 * v
    return v


def counts_inside_exactly(X, y):
    w, total = 1 + sum(y) / len(y) / 4, Fraction(0)
    while w > Fraction(0.2):
        w = w * Fraction(7, 8) ** 3
        total = total / 2 + w
    return [w, total]


def chosen(x, y):
    """Maxima of minima, choices in choices, numbers of NumPy, powers of either sign."""
    a = ice.maximum(torch.minimum(x[0], x[1]), y)
    b = ice.where(a > 0.1, ice.where(y < 0.0, a, y), ice.minimum(a, -y))
    z = np.float32(1.5) + x[0] * np.int64(2) / 4
    return ice.maximum(b, 0.25), z**-2 + z**3, y / (x * x + 1.0).sum()


def chosen_exactly(X, y):
    out = []
    for (x0, x1), t in zip(X, y, strict=True):
        a = max(min(x0, x1), t)
        b = (a if t < 0 else t) if a > Fraction(0.1) else min(a, -t)
        z = Fraction(3, 2) + x0 / 2
        out.append((max(b, Fraction(1, 4)), z**-2 + z**3, t / (x0 * x0 + x1 * x1 + 2)))
    return [list(column) for column in zip(*out, strict=True)]


def swapped(x, y, *, steps=3):
    """States that trade places, in a dictionary, and a parameter that changes."""
    held = {"pair": (ice.mean(y), ice.constant(0.25))}
    for _ in ice.repeat(2 * steps):
        first, second = held["pair"]
        held = {"pair": (second, 0.5 * first + 0.125)}
    return held["pair"]


def swapped_exactly(X, y):
    first, second = sum(y) / len(y), Fraction(1, 4)
    for _ in range(6):
        first, second = second, first / 2 + Fraction(1, 8)
    return [first, second]


PROGRAMS = [
    (stops_inside, stops_inside_exactly),
    (counts_inside, counts_inside_exactly),
    (chosen, chosen_exactly),
    (swapped, swapped_exactly),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("written", "exactly"), PROGRAMS)
def test_answers_are_within_what_is_certified(written, exactly, dtype):
    program = compile(ice.algorithm(written), 2, 5)
    computer = Computer.for_programs([program], dtype=dtype)
    X, y = (t.to(dtype) for t in data(3, 2))
    answer = exactly(
        [[Fraction(v) for v in row] for row in X.tolist()], [Fraction(v) for v in y.tolist()]
    )
    for backend in ("literal", "fused"):
        run = computer.run(program, X, y, backend=backend)
        certified = run.enclosure.error
        before = program.certify(dtype, backend)[0].error
        assert certified <= before
        if dtype == torch.float64:  # in the other, rounding is more than comparisons tell apart
            assert before < 1e-7
        assert certified < (1e-10 if dtype == torch.float64 else 1e-4)
        for found, meant in zip(run.parts.values(), answer, strict=True):
            pairs = zip(found.flatten().tolist(), np.atleast_1d(meant), strict=True)
            assert max(abs(Fraction(f) - m) for f, m in pairs) <= Fraction(certified)


@pytest.mark.parametrize("steps", [0, 1])
def test_one_sample_of_one_feature(steps):
    """No turn, and one; nothing but constants beside it."""

    def written(x, y, *, steps=1):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = w - 0.5 * ice.mean(x * ((x * w).sum() - y))
        return w, ice.constant(3.0) * 0.5

    program = compile(ice.algorithm(written), 1, 1)
    x, y = torch.tensor([[0.5]]).double(), torch.tensor([0.75]).double()
    for backend in ("literal", "fused"):
        run = Computer.for_programs([program]).run(program, x, y, backend=backend, steps=steps)
        w, three_halves = run.parts.values()
        assert abs(float(w[0]) - 0.1875 * steps) <= run.enclosure.error < 1e-13
        assert abs(float(three_halves) - 1.5) <= run.enclosure.error


def test_a_parameter_beside_samples_and_beside_a_state():
    """What a prompt holds for every lane and for lane 0 alone are two registers."""

    @ice.algorithm
    def beside(x, y, *, p=0.7, steps=2):
        v, w = ice.stored(x), ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = 0.5 * w + 0.25 * ice.mean(x)
        return {"sample": 0.5 * ice.concat(v, p)[2], "state": 0.5 * ice.concat(w, p).sum()}

    X, y = data(7, 2)
    program = compile(beside, 2, len(X))
    exact = program.reference(X, y)
    for backend in ("literal", "fused"):
        found = Computer.for_programs([program]).run(program, X, y, backend=backend)
        for name, value in exact.items():
            off = float((found.parts[name] - value).abs().max())
            assert off <= found.enclosure.error + 1e-15, f"{backend}, {name}: {off}"


WORDS = {
    "0.8 ** x": (lambda x: 0.8**x, lambda X: 0.8**X),
    "softmax": (lambda x: torch.softmax(x, -1), lambda X: X.softmax(1)),
    "F.softmax": (lambda x: F.softmax(x, dim=0), lambda X: X.softmax(1)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda X: X.logsumexp(1)),
    "max": (lambda x: x.max(), lambda X: X.amax(1)),
    "torch.max of two": (lambda x: torch.max(x, 0.5 * x), lambda X: torch.max(X, 0.5 * X)),
    "amin": (lambda x: torch.amin(x, -1), lambda X: X.amin(1)),
    "softshrink": (lambda x: F.softshrink(x, 0.25), lambda X: F.softshrink(X, 0.25)),
    "softshrink as it is": (F.softshrink, F.softshrink),
    "lerp": (lambda x: torch.lerp(x, x * x, 0.3), lambda X: X.lerp(X * X, 0.3)),
    "matmul": (lambda x: torch.matmul(x, torch.ones_like(x)), lambda X: X.sum(1)),
    "full_like": (lambda x: x + torch.full_like(x, 0.25), lambda X: X + 0.25),
    "zeros_like": (lambda x: x + torch.zeros_like(x), lambda X: X),
}


@pytest.mark.parametrize("word", WORDS)
def test_words_of_torch_mean_what_they_mean_on_one_sample(word):
    ours, theirs = WORDS[word]
    X, y = data(2, 3, 6)
    program = compile(ice.algorithm(lambda x, y: ice.mean(ours(x))), dim=3, samples=6)
    result = Computer.for_programs([program]).run(program, X, y)
    assert result.enclosure.kind == "proven"
    assert result.enclosure.error <= 1e-9
    assert (result.value - theirs(X).mean(0)).abs().max() <= result.enclosure.error + 1e-14


SINGULAR = {
    "standardised": lambda x: (x - ice.mean(x)) * torch.rsqrt(ice.mean(x * x) + 1e-3),
    "a root": lambda x: torch.sqrt(x * x + 1e-6),
    "a root at 0": lambda x: torch.sqrt(0.1 + x[0] * x[0] * x[1] ** 2),
    "a share": lambda x: torch.relu(x) / (ice.mean(torch.relu(x)) + 1e-3),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_what_is_nearly_singular_at_an_end_has_a_table(name):
    """1/sqrt(z + 1e-3) on [0, 1]: entries crowd where its slope changes fastest."""
    X, y = data(3, 3, 6)
    written = ice.algorithm(lambda x, y: ice.mean(SINGULAR[name](x)))
    program = compile(written, dim=3, samples=6)
    result = Computer.for_programs([program]).run(program, X, y)
    assert result.enclosure.kind == "proven"
    assert result.enclosure.error <= 1e-6
    assert (result.value - written(X, y)).abs().max() <= result.enclosure.error + 1e-13
