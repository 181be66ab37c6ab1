"""What a refusal or a warning says to write instead is accepted, and right."""

import re
import warnings

import pytest
import torch

import iceform as ice
from iceform.errors import CompileError, PrecisionError

Y = torch.tensor([0.5, 0.25, 0.75, 0.625, 1.0, 0.125], dtype=torch.float64)
X = torch.stack([Y, Y.flip(0) - 0.4, 0.3 - Y**2], 1)


def largest_component(told):
    def algorithm(x, y):
        v = ice.mean(x)
        return ice.where(v > v.max() - 1e-4 if told else v >= v.max(), v, 0.0)

    return algorithm


def smaller_ones(told):
    gap = 1e-4 if told else 0.0

    def algorithm(x, y):
        count = 0.0 * y
        for t in ice.repeat(ice.count()):
            count = count + ice.where(y < ice.at(y, t) - gap, 1, 0)
        return count

    return algorithm


def interpolated(told):
    def algorithm(x, y):  # at 0.4, through the points (y, tanh y)
        i, part = ice.index(), 0.0 * y + 1.0
        for t in ice.repeat(ice.count()):
            node = ice.at(y, t)
            v = ice.where(i == t, 1.0, y - node)
            inverse = (2 * (v > 0) - 1) / abs(v) if told else 1 / v
            part = part * ice.where(i == t, 1.0, (0.4 - node) * inverse)
        return ice.sum(torch.tanh(y) * part)

    return algorithm


FOLLOWED = {
    largest_component: (PrecisionError, "v > v.max() - 1e-4"),
    smaller_ones: (PrecisionError, "u < v - 1e-4"),
    interpolated: (CompileError, "1/v is (2 * (v > 0) - 1) / abs(v)"),
}


def run(algorithm, **options):
    """A run's answer, and the exact one."""
    program = ice.compile(algorithm, example=(X, Y), **options)
    found = ice.Computer.for_programs([program]).run(program, X, Y, backend="fused")
    return found.value, algorithm(X, Y)


@pytest.mark.parametrize("written", FOLLOWED)
def test_a_refusal_says_what_to_write(written):
    error, remedy = FOLLOWED[written]
    with pytest.raises(error, match=re.escape(remedy)) as refused:
        run(ice.algorithm(written(told=False)))
    assert re.search(r"line \d+:\n", str(refused.value))  # and where
    found, exact = run(ice.algorithm(written(told=True)))
    assert float((found - exact).abs().max()) <= 1e-8


def test_an_answer_that_lost_too_much_says_which_setting_narrows():
    @ice.algorithm
    def geometric(x, y, *, steps=12):
        total = ice.constant(0.0)
        for k in ice.repeat(steps):
            total = total + 9 * 0.5**k
        return total

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(geometric)
    assert re.search(r"proven to be within .* margin=1\.5", str(told[-1].message))
    run(geometric, margin=1.5)  # a warning is an error here
