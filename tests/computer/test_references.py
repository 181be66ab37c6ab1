"""Parts that others are measured with, against plain Python: an error here would pass unnoticed."""

# ruff: noqa: B008

import math
from fractions import Fraction

import pytest
import torch

from iceform.arithmetic.balls import balls_of
from iceform.computer import Computer
from iceform.computer.compile import compile
from iceform.computer.graph import Exact
from iceform.computer.language import algorithm, apply, maximum, mean, minimum, repeat, vector
from iceform.computer.loop_bounds import growths
from iceform.computer.loop_slices import RangesAtParameters
from iceform.computer.piecewise_linear import Kink
from iceform.computer.proofs import Balls
from iceform.computer.tables import _fit, _with_room
from iceform.expressions.ball_tensors import BallTensor
from iceform.expressions.formulas import Formula, trees
from iceform.program import Node, Range

UNIT = 2.0**-53
DEFINED = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": lambda a, b: a**b,
    "neg": lambda a: -a,
    "clip": lambda a, low, high: min(max(a, low), high),
    "logcosh": lambda a: math.log(math.cosh(a)),
    "max": max,
    "min": min,
    "relu": lambda a: max(a, 0.0),
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "sign": lambda a: math.copysign(1.0, a),
    "softplus": lambda a: math.log(1 + math.exp(a)),
    "step": lambda a: float(a > 0),
    **{name: getattr(math, name) for name in ("atan", "cos", "cosh", "erf", "exp", "expm1", "log",
                                              "log1p", "sin", "sinh", "sqrt", "tan", "tanh")},
    "abs": abs,
}  # fmt: skip
OPERANDS = {"^": (0.25, 3.0), "log": (0.25, 3.0), "sqrt": (0.25, 3.0), "log1p": (-0.75, 3.0)}
WIDE = (-30.0, -3.0, -0.75, 0.25, 1.5, 3.0, 30.0)


def assert_balls_hold(tree, defined, points):
    argument = Node("data", (), True, None, "y")
    node = Node("apply", (argument,), True, None, tree)
    given = BallTensor.of(torch.tensor(points, dtype=torch.float64))
    with balls_of(128):
        found = Balls(1).compute(node, [given])
    for z, ball in zip(points, found, strict=True):
        expected = defined(z)
        size = max(1.0, abs(expected))
        assert float(ball.rad()) <= UNIT * size
        assert abs(float(ball.mid()) - expected) <= 16 * UNIT * size, (z, ball, expected)


@pytest.mark.parametrize("name", DEFINED)
def test_balls_hold_what_the_words_mean(name):
    """Exact answers are made of these functions: each against its definition in Python."""
    binary = dict.fromkeys(("+", "-", "*", "/", "^", "max", "min"), (0.375,))
    others = {"clip": (-0.5, 0.5), **binary}
    more = others.get(name, ())
    numbers = [trees.Number(Fraction(value)) for value in more]
    tree = trees.Operation(name, (trees.Variable(), *numbers))
    assert_balls_hold(tree, lambda z: DEFINED[name](z, *more), OPERANDS.get(name, WIDE))


@pytest.mark.parametrize(
    ("text", "defined"),
    [
        ("pi*z", lambda z: math.pi * z),
        ("z - e", lambda z: z - math.e),
        ("z/3", lambda z: z / 3),
        ("z^3", lambda z: z**3),
        ("z^(-3)", lambda z: z**-3),
        ("z^(7 - 8/2)", lambda z: z**3),
        ("(z + 40)^(2/3)", lambda z: (z + 40) ** (2 / 3)),
        ("(z + 40)^sqrt(2)", lambda z: (z + 40) ** math.sqrt(2)),
        ("(z + 40)^pi", lambda z: (z + 40) ** math.pi),
    ],
)
def test_balls_hold_numbers_and_powers(text, defined):
    assert_balls_hold(Formula(text).tree, defined, WIDE)


def test_a_named_exponent_is_the_number_and_not_its_float():
    argument = Node("data", (), True, None, "y")
    node = Node("apply", (argument,), True, None, Formula("z^pi").tree)
    with balls_of(128) as flint:
        (found,) = Balls(1).compute(node, [BallTensor.of(torch.tensor([3.0]).double())])
        assert found.overlaps((flint.arb(3).log() * flint.arb.pi()).exp())
        assert float(found.rad()) < 1e-30


@pytest.mark.parametrize("text", ["(z + 3)^(-3)", "(z + 3)^(2/3)", "(z + 3)^pi"])
def test_programs_with_powers_run_and_are_within_what_is_stated(text):
    def written(x, y):
        return apply(Formula(text), y)

    program = compile(algorithm(written), 1, 3)
    y = torch.tensor([-0.5, 0.1, 0.9], dtype=torch.float64)
    result = Computer.for_programs([program]).run(program, torch.zeros(3, 1), y)
    off = float((result.value - Formula(text)(y)).abs().max())
    assert 0 < off <= result.enclosure.error + 1e-14 <= program.certificate.error + 1e-14


@pytest.mark.parametrize("width", [None, 1, 4])
@pytest.mark.parametrize("arithmetic", [Exact(1), Balls(1)], ids=["floats", "balls"])
def test_constants_are_as_wide_as_their_node(arithmetic, width):
    """A scalar is a vector of width 1."""
    constant = arithmetic.compute(Node("constant", (), False, width, 0.1), [])
    assert [float(v) for v in constant] == [0.1] * (width or 1)
    numbers = tuple(0.5 * k - 1 for k in range(width or 1))
    assert [
        float(v) for v in arithmetic.compute(Node("numbers", (), False, width, numbers), [])
    ] == [*numbers]


# --------------------------------------------------------------------------------------- kinks


@pytest.mark.parametrize("kink", [-300.0, -1.0, 0.0, 0.3, 5.0, 700.0])
@pytest.mark.parametrize("on", [(-1.0, 1.0), (0.5, 900.0), (-900.0, 0.25), (-3.0, 8.0)])
def test_logits_beside_a_kink_are_as_large_as_is_allowed_and_no_larger(kink, on):
    """2^20 is what the bounds are derived for; half of it would be off by twice as much."""
    first, second = Kink(kink, -0.5, 2.0).steps(Range(*on), 1e-14)
    largest = max(abs(Fraction(z) - Fraction(kink)) for z in on) * Fraction(first.sharpness)
    assert 2**19 < largest <= 2**20
    assert 2.0**10 <= second.sharpness <= 2.0**20


def test_every_kink_is_charged_once():
    """A curve of two kinks is off by little more than one of one."""

    def ramp(x, y):
        return torch.relu(y)

    def clamp(x, y):
        return torch.clamp(y, -0.5, 0.5)

    one, two = (compile(algorithm(f), 1, 2, eps=1e-9).certificate.error for f in (ramp, clamp))
    assert 0 < two <= 8 * one <= 8e-9


# ---------------------------------------------------------------------------- turns of a loop


def two_of_one(x, y, *, start=vector(), steps=1):
    v = +start
    for _ in repeat(steps):
        u = v - 0.25 * mean(x * (x * v).sum())
        v = 0.25 * (maximum(u, mean(y)) + minimum(0.5 * mean(y), u))
    return v


def two_of_two(x, y, *, start=vector(), steps=1):
    v = +start
    for _ in repeat(steps):
        v = maximum(0.25 * v, mean(y)) + maximum(mean(y), 0.5 * v)
    return v


@pytest.mark.parametrize("written", [two_of_one, two_of_two])
def test_maxima_are_added_only_where_they_are_of_the_same_vector(written):
    """Of one vector there is a bound in the Euclidean norm; of two, each has its own slope."""
    program = compile(algorithm(written), 2, 3)
    scalars = {n: float(v[0]) for n, v in program.parameters().items()}
    (loop,) = program.graph.block.loops()
    found = list(growths(loop, RangesAtParameters(program.ranges, scalars)))
    by_vector = [g for g in found if "derivative has norm" in g.description]
    assert bool(by_vector) == (written is two_of_one)
    X, y = torch.zeros(3, 2).double(), -torch.ones(3).double()
    start = torch.tensor([0.25, 0.5]).double()
    moved = start + torch.tensor([0.25, 0.0]).double()
    ends = [program.reference(X, y, start=s, steps=1) for s in (start, moved)]
    apart = float((ends[1] - ends[0]).norm())
    assert apart > 0
    for growth in found:
        assert apart <= growth.after(1, 0.25, 0.0), growth.description


# -------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("span", "ends"),
    [((3.1, 5.3), (3.0, 5.5)), ((0.1, 7.3), (None, 8.0)), ((-5.3, -3.1), (-5.5, -3.0))],
)
def test_tables_have_round_ends_that_others_meet_again(span, ends):
    """But for a low end near 0, which no table moves by more than half."""
    exp = Formula.parse("exp(z/8)").tree
    room = _with_room(Range(*span), exp, None)
    assert room.low <= span[0] < span[1] <= room.high
    assert room.high == ends[1]
    assert room.low == ends[0] if ends[0] is not None else span[0] / 2 <= room.low < span[0]


def test_the_table_of_one_point_reaches_to_both_sides_of_it():
    it = _fit(Formula.parse("exp(z)").tree, 1.0, 1.0, 1e-10)
    z = torch.tensor([1 - 2.0**-10, 1.0, 1 + 2.0**-10], dtype=torch.float64)
    off = max(abs(a - math.exp(b)) for a, b in zip(it(z).tolist(), z.tolist(), strict=True))
    assert off <= it.error + 4 * UNIT * math.e <= 1e-10
