"""What a refusal or a warning says to write instead is accepted, and right."""

import re
import warnings

import pytest
import torch

import iceform as ice
from iceform.computer.running import _narrower
from iceform.errors import CompileError, PrecisionError

Y = torch.tensor([0.5, 0.25, 0.75, 0.625, 1.0, 0.125], dtype=torch.float64)
X = torch.stack([Y, Y.flip(0) - 0.4, 0.3 - Y**2], 1)


def the_root_again(told):
    gap = 1e-4 if told else 0.0

    def algorithm(x, y):
        root = torch.sqrt(y)
        return ice.where(root * root > y + gap, 1.0, y)

    return algorithm


def divided_by_nothing(told):
    def algorithm(x, y):
        v = y - 0.5
        return y / ice.where(abs(v) > 0.01, v, 1.0) if told else y / v

    return algorithm


FOLLOWED = {
    the_root_again: (PrecisionError, "u < v - 1e-4"),
    divided_by_nothing: (CompileError, "ice.where(v == 0, 1, v)"),
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

    run(geometric)  # a warning is an error here; it was off by 2e-8 in ranges 8 times as wide
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(geometric, eps=1e-15)
    assert re.search(r"proven to be within .* program\.diagnose", str(told[-1].message))
    wide = ice.compile(geometric, example=(X, Y), eps=1e-4)
    assert "margin=1.5" in _narrower(wide)
