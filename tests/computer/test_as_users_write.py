"""What forty algorithms, written from the documentation alone, ran into once."""

import warnings

import pytest
import torch

import iceform as ice
from iceform.errors import CompileError, PrecisionError, PrecisionWarning

Y = torch.tensor([0.5, 0.25, 0.75, 0.625, 1.0, 0.125], dtype=torch.float64)
X = torch.stack([Y, Y.flip(0) - 0.4, 0.3 - Y**2], 1)


def apart(algorithm, X=X, y=Y, example=(X, Y)):
    """The largest distance of a run's answers from the algorithm's own, and its enclosure."""
    algorithm = ice.algorithm(algorithm)
    program = ice.compile(algorithm, example=example)
    result = ice.Computer.for_programs([program]).run(program, X, y, backend="fused")
    exact = algorithm(X, y)
    several = isinstance(exact, (list, tuple))
    pairs = zip(result.value, exact, strict=True) if several else [(result.value, exact)]
    off = max(float((a - b).abs().max()) for a, b in pairs)
    assert off <= result.enclosure.error + 1e-14
    return off


def test_next_to_nothing_times_a_number_is_next_to_nothing():
    def rotated(x, y):
        nothing = ice.at(0.0 * y, 5 - ice.index())
        turned = torch.sin(x[0]) * nothing
        return ice.sum(turned + y), turned + x[0]

    assert apart(rotated) < 1e-12


def test_a_value_may_stay_at_the_end_of_its_range():
    def alarms(x, y):
        s, count = ice.constant(0.0), ice.constant(0)
        for t in ice.repeat(ice.count()):
            s = max(0.0, s + ice.at(y, t) - 0.4)
            over = s > 0.5
            count, s = count + over, ice.where(over, 0.0, s)
        return count, s

    assert apart(alarms) < 1e-10


def test_a_bound_that_holds_anyway_is_not_checked():
    def kept(x, y):
        return ice.sum(ice.bounded(ice.where(y > 0.55, 0.0, y), 0.0, 1.0))

    assert apart(kept) < 1e-10
    with pytest.raises(ice.errors.BoundError, match=r"reaches 1\.5"):
        apart(lambda x, y: ice.sum(ice.bounded(2 * y, 0.0, 1.25)), y=torch.full_like(Y, 0.75))


def test_what_is_written_again_before_it_is_read_may_share_its_value():
    def last_but_one(x, y):
        behind, total = ice.mean(y), ice.constant(0.0)
        for _ in ice.repeat(2):
            for t in ice.repeat(ice.count()):
                now = ice.at(y, t)
                total = total + now * behind
                behind = now
        return total, behind

    assert apart(last_but_one) < 1e-9


def test_two_names_that_are_read_still_need_values_of_their_own():
    def both(x, y):
        a, b = ice.mean(y), ice.constant(1.0)
        for _ in ice.repeat(3):
            new = a + 0.5 * b
            a = new
            b = new
        return a, b

    with pytest.raises(CompileError, match=r"one value at the end of a turn.*write b = \+a"):
        ice.compile(ice.algorithm(both), example=(X, Y))


def test_what_a_function_made_before_reads_is_read():
    def through(x, y):
        t, a = ice.mean(y), ice.constant(1.0)
        read = lambda: t  # noqa: E731
        for _ in ice.repeat(3):
            a = 0.5 * a + read()
            t = 0.25 * a
        return a

    assert apart(through) < 1e-10


@pytest.mark.parametrize(
    "kinked",
    [
        lambda x, y: ice.sum(1 / ice.maximum(abs(y - 0.5), 0.01)),
        lambda x, y: ice.sum(torch.exp(min(0.0, 8 * (x[1] - 0.1)))),
        lambda x, y: ice.sum(min(2.0, max(0.3, 0.9 * torch.sqrt(0.02 / (abs(x[1]) + 1e-3))))),
    ],
)
def test_a_kink_is_apart_from_a_curve_that_bends(kinked):
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        assert apart(kinked) <= 1e-8 * 100


def test_no_steeper_than_in_the_example():
    def logarithms(x, y):
        f = 4 * ice.at(x, 0)
        for t in ice.repeat(ice.count() - 1):
            f = torch.log(torch.exp(f).sum() * [1.0, 0.5, 0.25]) + ice.at(x, t + 1)
        return f

    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        assert apart(logarithms) <= 1e-7


def test_an_example_that_comes_out_right_is_not_warned_of():
    def furthest(x, y):
        return ice.max((x - ice.at(x, 2)).norm())  # a root at 0 too, of the sample itself

    assert apart(furthest) < 1e-8
    with pytest.warns(PrecisionWarning, match="a look-up in line"):
        ice.compile(ice.algorithm(furthest), dim=3, samples=6)


def test_turns_may_be_counted_by_the_data():
    def squares(x, y):
        total, n = ice.constant(0.0), torch.round(8 * ice.at(y, 0))
        for i in ice.repeat(n):
            n = n + 1  # as of Python's range: it was asked before
            for j in ice.repeat(i):
                total = total + i + j
        return total, n

    assert apart(squares) < 1e-9
    for other in (0.125, 0.0, 0.75):
        assert apart(squares, y=torch.full_like(Y, other)) < 1e-9


def test_turns_that_are_no_whole_number_are_refused():
    def turns(x, y):
        total = ice.constant(0.0)
        for _ in ice.repeat(4 * ice.at(y, 0)):
            total = total + 1
        return total

    program = ice.compile(ice.algorithm(turns), example=(X, Y))
    with pytest.raises(PrecisionError, match="the middle between two whole numbers"):
        ice.Computer.for_programs([program]).run(program, X, Y * 0.8, backend="fused")


WORDS = [
    torch.argmax,
    lambda v: v.argmin(),
    lambda v: torch.cumsum(v, 0),
    lambda v: v.prod(),
    lambda v: torch.flip(v, [0]),
    torch.var,
    lambda v: v.std(correction=0),
    lambda v: torch.stack([v[2], v[0]]),
    lambda v: torch.cat([v, v]),
    lambda v: torch.hypot(v[0], v[1]),
    torch.exp2,
    lambda v: (v * v).log2(),
    lambda v: torch.log10(v * v),
]


def test_words_of_torch_mean_what_they_do_there():
    found = apart(lambda x, y: [word(ice.at(x, 3)) for word in WORDS])
    assert found < 1e-7
    exact = ice.algorithm(lambda x, y: [word(ice.at(x, 3)) for word in WORDS])(X, Y)
    for value, word in zip(exact, WORDS, strict=True):
        assert torch.allclose(value, word(X[3]).double(), rtol=0, atol=1e-14)


def test_a_place_that_never_changes():
    assert apart(lambda x, y: (x @ ice.one_hot(1, 3), ice.one_hot(2, 4), ice.one_hot(7, 2))) < 1e-12


def test_words_outside_an_algorithm_say_so():
    with pytest.raises(CompileError, match=r"belongs into an algorithm.*got Tensor"):
        ice.zeros_like(X)
