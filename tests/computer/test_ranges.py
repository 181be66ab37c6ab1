"""Ranges hold every value that a run can have."""

import math

import pytest
import torch

from iceform.computer import library
from iceform.computer.compile import compile
from iceform.computer.graph import Exact, run, run_exactly
from iceform.computer.language import algorithm, constant, mean, repeat, while_, zeros_like
from iceform.errors import BoundError, ProgramError
from iceform.expressions.formulas import Formula
from iceform.program import Range, enclosed, slope
from tests.computer.random_programs import data, program


@pytest.mark.parametrize("seed", range(25))
def test_every_value_of_a_random_program_lies_in_its_range(seed):
    made, dim = program(seed, kinks=True)
    compiled = compile(made, dim, 5, eps=1e-3, steps=(1, 10))
    for draw in range(5):
        X, y = data(1000 * seed + draw, dim)
        given = {"x": X, "y": y[:, None], **made.values(dim, {})}
        run(compiled.graph, Exact(5), lambda n, g=given: g[n.attr], _inside(compiled))


def _inside(compiled):
    def check(node, value):
        allowed = compiled.ranges[node]
        slack = 1e-12 * max(1.0, allowed.size)
        assert float(value.min()) >= allowed.low - slack, node
        assert float(value.max()) <= allowed.high + slack, node

    return check


@pytest.mark.parametrize(
    "text", ["tanh(z)", "z^2 - z", "abs(z - 0.3)", "max(z, 1 - z)", "exp(-z)/(1 + z^2)", "sin(3*z)"]
)
def test_enclosures_hold_values_and_slopes(text):
    formula = Formula.parse(text)
    low, high = enclosed(formula.tree, -2.0, 1.5)
    z = torch.linspace(-2.0, 1.5, 4001, dtype=torch.float64)
    values = formula(z)
    assert low <= float(values.min()) <= low + 0.1
    assert high - 0.1 <= float(values.max()) <= high
    flattest, steepest = slope(formula.tree, -2.0, 1.5)
    quotients = values.diff() / z.diff()
    assert flattest <= float(quotients.min()) + 1e-9
    assert steepest >= float(quotients.max()) - 1e-9


def test_arithmetic_is_rounded_outward():
    a = Range(0.1, 0.2) + Range(0.2, 0.3)
    assert a.low < 0.1 + 0.2 < a.high
    assert Range(-1.0, 2.0) * Range(-3.0, 1.0) == Range(
        math.nextafter(-6.0, -7), math.nextafter(3.0, 4)
    )
    with pytest.raises(BoundError):
        Range(1.0, 0.0)


def test_products_that_underflow_keep_their_sign():
    """From a number that is not 0, of either sign, to one that is not."""
    tiny = Range(1e-200, 1e-180)
    for range in (tiny * tiny, -tiny * -tiny, Range(-1.0, 1e-200) * tiny):
        assert range.high > 0
    for range in (-tiny * tiny, Range(-1e-200, 1.0) * tiny):
        assert range.low < 0
    assert tiny * Range(0.0, 0.0) == Range(0.0, 0.0)


def test_loops_that_close_need_no_assumption():
    def written(x, y, *, steps=50):
        v = mean(y)
        for _ in repeat(steps):
            v = 0.5 * v + 0.25 * mean(y)
        return torch.tanh(v)

    assert not compile(algorithm(written), 2, 4).ranges.assumed


def test_an_end_that_falls_towards_zero_stops_there():
    def written(x, y):
        v = 1.0 + 0.5 * mean(y)
        while while_(v > 0.1):
            v = 0.5 * v
        return v

    compiled = compile(algorithm(written), 2, 4)
    (state,) = (n for n in compiled.ranges.known if n.op == "state")
    assert compiled.ranges[state].low == 0.0
    assert not compiled.ranges.assumed


def test_a_loop_that_does_not_close_is_assumed_and_says_so():
    def written(x, y, *, steps=20):
        w = zeros_like(x)
        for _ in repeat(steps):
            w = w - 0.5 * mean(x * ((x * w).sum() - y))
        return w

    seen = compile(algorithm(written), 2, 6)
    (assumed,) = seen.ranges.assumed.values()
    assert assumed.by == "runs"
    assert assumed.range.size >= 1
    stated = compile(algorithm(written), 2, 6, bounds={"w": 3.0})
    (assumed,) = stated.ranges.assumed.values()
    assert assumed.by == "author"
    assert assumed.range == Range(-3.0, 3.0)


def test_an_end_that_never_moves_needs_no_assumption():
    def written(x, y, *, steps=20):
        v = constant(0.5)
        for _ in repeat(steps):
            v = v + mean(y) * mean(y)
        return 1.0 / v

    (assumed,) = compile(algorithm(written), 1, 4, steps=(1, 20)).ranges.assumed.values()
    assert assumed.range.low == 0.5


def test_an_assumed_bound_holds_for_data_that_have_something_to_learn():
    """Draws of noise alone let w seem small, the smaller the more samples there are."""
    program = compile(library.logistic, 4, 300)
    generator = torch.Generator().manual_seed(0)
    X = 2 * torch.rand(300, 4, dtype=torch.float64, generator=generator) - 1
    y = (X[:, 0] > 0).double()
    found = program.interpreted(X, y, steps=30).outputs
    assert program.enclosed(X, y, found, steps=30).distance <= 1e-8


def test_a_state_of_one_sign_is_assumed_to_keep_it_where_it_must():
    """Newton's square root divides by its state, which interval arithmetic lets fall to 0."""

    def written(x, y, *, steps=4):
        a = 1.0 + mean(y) * mean(y)
        r = +a
        for _ in repeat(steps):
            r = 0.5 * (r + a / r)
        return r

    made = algorithm(written)
    program = compile(made, 1, 4, steps=(1, 8))
    (assumed,) = program.ranges.assumed.values()
    assert 0 < assumed.range.low < 1
    X, y = torch.zeros(4, 1).double(), torch.full((4,), 0.75).double()
    found = program.interpreted(X, y).outputs
    enclosed = program.enclosed(X, y, found)
    assert enclosed.distance <= 1e-8
    assert float((found["value"] - made(X, y)).abs()) <= enclosed.distance + 1e-15


def test_loops_in_loops_are_bounded_by_what_is_known_in_the_end():
    def written(x, y, *, steps=3):
        a, b = mean(y), mean(y)
        for _ in repeat(steps):
            for _ in repeat(2):
                b = 0.5 * b + 0.25 * a
            a = a + 0.5 * b * b * a
        return b

    ranges = compile(algorithm(written), 1, 4, steps=(1, 3)).ranges
    assert all(ranges[n].size <= 64 for n in ranges.known)


def test_equal_factors_are_powers():
    def written(x, y, *, share=0.5):
        return (1.0 - share) * y * y, y * (y * y)

    outputs = compile(algorithm(written), 1, 4, share=(0.25, 0.75))
    square, cube = (outputs.ranges[node] for node in outputs.graph.outputs.values())
    assert square.low == 0.0
    assert cube.low < -0.9
    assert Range(-2.0, 1.0).power(4).holds(Range(0.0, 16.0))
    assert Range(-2.0, 1.0).power(4).low == 0.0
    assert 3.9 < Range(-3.0, -2.0).power(2).low <= 4


def test_a_state_that_leaves_its_bound_is_refused():
    def written(x, y, *, steps=10):
        w = constant(0.0)
        for _ in repeat(steps):
            w = w + mean(y)
        return w

    compiled = compile(algorithm(written), 1, 4, bounds={"w": 2.0}, steps=(1, 10))
    X, y = torch.zeros(4, 1).double(), torch.ones(4).double()
    found = compiled.interpreted(X, y, steps=2).outputs
    assert compiled.enclosed(X, y, found, steps=2).distance < 1e-12
    with pytest.raises(BoundError, match="w reaches 3"):
        compiled.enclosed(X, y, found, steps=4)


def test_a_ball_that_grows_wider_than_a_bound_is_made_finer():
    """Balls forget that w is in both terms: 128 bits are spent long before 400 turns are over."""
    example = library.EXAMPLES["ridge"]
    program, settings = example.compile(), {"steps": 400}
    found = program.interpreted(example.X, example.y, **settings).outputs
    enclosed = program.enclosed(example.X, example.y, found, **settings)
    assert enclosed.bits > 128
    assert enclosed.distance <= 1e-13


@pytest.mark.parametrize("bound", [1.0, 2.0, 1e200])
def test_a_state_that_outgrows_float64_is_bounded_or_refused(bound):
    """Squares of squares leave float64 within a few turns of widening."""

    def written(x, y, *, steps=5):
        v = mean(y)
        for _ in repeat(steps):
            for _ in repeat(steps):
                v = 0.5 * v * v + 0.1
            v = v + mean(y)
        return v

    if bound > 2:
        with pytest.raises(BoundError if bound < 1e100 else ProgramError, match="bound"):
            compile(algorithm(written), 2, 3, domain={"y": bound})
        return
    compiled = compile(algorithm(written), 2, 3, domain={"y": bound})
    X, y = data(0, 2)
    found = run_exactly(compiled.graph, {"x": X, "y": 0.1 * y[:, None], **compiled.parameters()})
    assert abs(float(found["value"])) <= compiled.ranges[compiled.graph.outputs["value"]].size


def test_powers_of_four_end_where_float64_does():
    assert Range(0.0, 1e308).widened(Range(0.0, 1.0)) == Range(0.0, math.inf)
    assert Range(0.0, math.inf).widened(Range(0.0, 1.0)) == Range(0.0, math.inf)
    assert Range(-3.0, 5.0).widened(Range(-1.0, 1.0)) == Range(-4.0, 16.0)
