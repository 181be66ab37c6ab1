"""What authors write first and the language once refused, or got wrong without a word."""

import time

import pytest
import torch

import iceform as ice
from iceform.errors import CompileError

X = torch.tensor([[0.5, -0.25, 1.0], [-0.75, 0.5, 0.25], [0.1, 0.9, -0.3], [0.3, -0.6, 0.7]])
X = X.double()
FOURS = ice.vector(4.0)
Y = torch.tensor([0.5, -0.2, 0.8, 0.1], dtype=torch.float64)


def run(algorithm, **options):
    program = ice.compile(algorithm, dim=3, samples=4, **options)
    result = ice.Computer.for_programs([program]).run(program, X, Y, backend="fused")
    return program, result


def assert_right(algorithm, allowed=1e-8, **options):
    program, result = run(algorithm, **options)
    off = float((result.value - program.reference(X, Y)).abs().max())
    assert off <= allowed, off
    assert off <= result.enclosure.error * (1 + 1e-6) + 1e-15
    return program


def test_two_loops_may_use_one_name_for_a_temporary():
    @ice.algorithm
    def twice(x, y, *, steps=3):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            slope = ice.mean(x * ((x * w).sum() - y))
            w = w - 0.3 * slope
        for _ in ice.repeat(steps):
            slope = ice.mean(x * ((x * w).sum() - y))
            w = w - 0.1 * slope
        return w

    assert_right(twice)


def test_a_temporary_of_an_earlier_loop_is_not_read_in_a_later_one():
    @ice.algorithm
    def stale(x, y, *, steps=3):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            slope = ice.mean(x * y)
            w = w - 0.3 * slope
        for _ in ice.repeat(steps):
            w = w - 0.1 * slope
            slope = 0.5 * w
        return w

    with pytest.raises(CompileError, match="slope is set inside a loop and read after it"):
        ice.compile(stale, dim=3, samples=4)


@pytest.mark.parametrize("form", [tuple, list, dict])
def test_a_result_holds_what_the_function_returns(form, tmp_path):
    @ice.algorithm
    def moments(x, y):
        first, second = ice.mean(y), ice.mean(x)
        if form is dict:
            return {"slope": first, "at": second}
        return form((first, second))

    program, result = run(moments)
    want = program.reference(X, Y)
    assert type(result.value) is type(want) is form
    pairs = zip(
        result.value.values() if form is dict else result.value,
        want.values() if form is dict else want,
        strict=True,
    )
    for got, exact in pairs:
        assert got.shape == exact.shape
        assert float((got - exact).abs().max()) <= 1e-8
    if form is dict:
        assert list(result.value) == ["slope", "at"]
    again = ice.load(result.save(tmp_path / "result"))
    assert type(again.value) is form
    assert "tensor" in repr(result)


def test_chains_in_one_variable_compile_in_a_time_that_grows_with_their_length():
    @ice.algorithm
    def chain(x, y):
        t = ice.mean(y)
        for _ in range(16):  # written out: each line would be three times the one before
            t = t * t * 0.5 + t * 0.25 + 0.1
        return t

    begun = time.process_time()
    assert_right(chain)
    assert time.process_time() - begun < 20


def test_attention_takes_scalars():
    @ice.algorithm
    def kernel(x, y):
        return ice.attend(x[0], 4.0 * x[1], y)

    assert_right(kernel)


def test_functions_of_numbers_are_numbers():
    @ice.algorithm
    def shifted(x, y):
        nothing = ice.constant(0.0)
        return torch.exp(nothing) + ice.mean(y) + torch.sqrt(nothing + 0.0)

    assert_right(shifted)


def test_a_choice_is_between_its_two_values():
    @ice.algorithm
    def chosen(x, y):
        a, b = ice.mean(x), ice.mean(y)
        t = a
        for _ in range(4):
            t = ice.where(b > 0.013, t, ice.where(b > 0.02, 0.5, b))
            t = ice.where(b > 0.03, ice.where(b < 0.9, t, -0.25), 0.75)
        return t

    program = assert_right(chosen)
    ends = program.ranges[program.graph.outputs["value"]]
    assert (ends.low, ends.high) == (-1.0, 1.0)


def test_a_share_outside_of_0_and_1_is_no_choice():
    """c (a - b) + b with c in [0, 2] leaves the hull of a and b."""

    @ice.algorithm
    def beyond(x, y):
        a, b = ice.mean(x), ice.mean(y)
        return (1.0 + b) * (a - b) + b

    program = ice.compile(beyond, dim=3, samples=4)
    ends = program.ranges[program.graph.outputs["value"]]
    assert ends.high >= 3.0


@pytest.mark.filterwarnings("ignore::iceform.errors.PrecisionWarning")
def test_defaults_lie_within_their_ranges():
    @ice.algorithm
    def scaled(x, y, *, c=FOURS, steps=5):
        total = ice.constant(0.0)
        for _ in ice.repeat(steps):
            total = total + ice.mean(y) / steps
        return total * c

    assert_right(scaled, 1e-6)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (lambda v: ice.minimum(float("inf"), v), "must be finite, got inf"),
        (lambda v: ice.maximum(1.0, 2.0) * v, "Python's own max"),
        (lambda v: ice.argmax(v) + 1, "ice.argmax is not a word of the language"),
    ],
)
def test_refusals_quote_the_line(word, says):
    @ice.algorithm
    def wrong(x, y):
        return word(ice.mean(y))

    with pytest.raises(CompileError, match=says) as refused:
        ice.compile(wrong, dim=3, samples=4)
    assert "lambda v: ice." in str(refused.value)
