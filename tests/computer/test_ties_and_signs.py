"""Random programs of what equal numbers, places, signs and written components do."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import iceform as ice
from iceform.errors import BoundError, CompileError

N = 6
# Data of few values, so that many are equal; whole places; divisors of either sign, none near 0.
LEVELS = (-0.75, -0.5, 0.0, 0.25, 0.5)


def drawn(rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [[rng.choice(LEVELS), rng.choice(LEVELS), rng.randrange(N)] for _ in range(N)]
    return torch.tensor(rows).double(), torch.tensor(
        [rng.choice(LEVELS) for _ in range(N)]
    ).double()


def comparison(rng: random.Random) -> Callable[[Any, Any], Any]:
    """Of two values that are often equal."""
    a, b = rng.choice((lambda x, y: x[0], lambda x, y: y)), rng.choice((
        lambda x, y: x[1], lambda x, y: ice.max(y), lambda x, y: ice.min(x[0]),
        lambda x, y: ice.at(y, torch.round(x[2])), lambda x, y: torch.relu(x[1]), lambda x, y: 0.0,
    ))  # fmt: skip
    word = rng.choice(("__gt__", "__ge__", "__lt__", "__le__"))
    return lambda x, y: getattr(a(x, y), word)(b(x, y))


def step(rng: random.Random) -> Callable[[Any, Any, Any, Any], Any]:
    """What one turn makes of a vector."""
    held, sign = comparison(rng), comparison(rng)
    by = rng.choice((2.0, -4.0))

    def compared(v, t, x, y):
        return v + ice.mean(held(x, y)) * 0.5

    def placed(v, t, x, y):
        v = +v
        v[t % 3] = v[(t + 1) % 3] + ice.at(y, t)
        return v

    def divided(v, t, x, y):
        d = ice.where(sign(x, y), 1.0, by) * ice.where(x[0] >= 0, 1.0, -1.0)
        return v + ice.mean((y + 1) / d)

    def written(v, t, x, y):
        v = 0.5 * v
        v[rng_place] = ice.at(x[0], t) * ice.one_hot(t % 3, 3).sum()
        return v

    rng_place = rng.randrange(3)
    return rng.choice((compared, placed, divided, written))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs_of_equal_numbers(seed):
    rng = random.Random(seed)
    turns, last, count = [step(rng), step(rng)], comparison(rng), rng.randrange(2, 6)

    def written(x, y):
        v = ice.constant([0.5, -0.25, 1.0])
        for t in ice.repeat(count):
            for turn in turns:
                v = turn(v, t, x, y)
        return v, last(x, y)

    X, y = drawn(rng)
    program = ice.compile(ice.algorithm(written), example=(X, y))
    computer = ice.Computer.for_programs([program])
    for again in range(2):
        X, y = (X, y) if again == 0 else (X.flip(0), y.roll(1))
        result = computer.run(program, X, y)
        exact = program.reference(X, y)
        off = max(float((a - b).abs().max()) for a, b in zip(result.value, exact, strict=True))
        assert off <= min(1e-8, result.enclosure.error + 1e-13)


def test_a_component_that_a_loop_writes_is_carried():
    def written(x, y):
        v, rows = (
            ice.constant([1.0, 2.0, 3.0]),
            [ice.constant([0.0, 1.0]), ice.constant([2.0, 3.0])],
        )
        same = v
        for t in ice.repeat(3):
            v[t] = v[t] + ice.mean(y)
            for row in rows:
                row[0] = row[0] + row[1]
            rows[1][1] = rows[0][0]
        return v, same, rows[0], rows[1]

    X, y = torch.zeros(2, 1).double(), torch.tensor([0.25, 0.75]).double()
    program = ice.compile(ice.algorithm(written), example=(X, y))
    result = ice.Computer.for_programs([program]).run(program, X, y)
    wanted = [[1.5, 2.5, 3.5], [1.5, 2.5, 3.5], [3.0, 1.0], [8.0, 3.0]]
    for found, numbers in zip(result.value, wanted, strict=True):
        assert torch.allclose(found, torch.tensor(numbers).double(), atol=1e-9)


@pytest.mark.parametrize("power", [-1, -2, -3])
def test_powers_of_divisors_of_either_sign(power):
    def written(x, y):
        return y**power, ice.mean(1 / y)

    X, y = torch.zeros(6, 1).double(), torch.tensor([0.5, -0.5, 2.0, -2.0, 1.0, -1.0]).double()
    program = ice.compile(ice.algorithm(written), example=(X, y))
    for data in (y, -0.9 * y):
        result = ice.Computer.for_programs([program]).run(program, X, data)
        assert torch.allclose(result.value[0], data**power, atol=1e-7)
        assert result.enclosure.error < 1e-7


def test_a_divisor_nearer_to_0_than_in_the_example_is_refused():
    X, y = torch.zeros(2, 1).double(), torch.tensor([0.5, -0.5]).double()
    program = ice.compile(ice.algorithm(lambda x, y: 1 / y), example=(X, y))
    computer, near = ice.Computer.for_programs([program]), torch.tensor([0.5, -0.0125]).double()
    with pytest.raises(BoundError, match=r"divisor's size in line \d+ reaches 0.0125"):
        computer.run(program, X, near)
    with pytest.raises(CompileError, match=r"divides by 0 on the example"):
        ice.compile(ice.algorithm(lambda x, y: 1 / y), example=(X, 0 * y))
