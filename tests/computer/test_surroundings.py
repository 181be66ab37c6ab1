"""Proofs are of what was traced: every turn, and every run, must be like it."""

import random

import numpy as np
import pytest
import torch

from iceform import algorithm, compile
from iceform.errors import CompileError
from tests.computer.hidden_state import HIDDEN, HONEST
from tests.computer.random_programs import data


@pytest.mark.parametrize("case", HIDDEN)
def test_what_tracing_does_not_see_is_refused(case):
    with pytest.raises(CompileError, match=r"hidden from the program|for a loop of their own|"
                       "begin with"):  # fmt: skip
        algorithm(HIDDEN[case]()).graph(2)


@pytest.mark.parametrize("case", HONEST)
def test_pure_functions_compile_and_mean_what_they_say(case):
    written = algorithm(HONEST[case])
    program = compile(written, 2, 6, bounds={"w": 4.0} if case == "with_a_class" else None)
    X, y = data(0, 2)
    for steps in (0, 1, 9):
        meant, traced = written(X, y, steps=steps), program.traced(X, y, steps=steps)
        torch.testing.assert_close(traced, meant, rtol=0, atol=0)


def test_compiling_leaves_random_numbers_alone():
    def drawn():
        old = np.random.get_state()[1]  # noqa: NPY002
        return random.getstate()[1][:4], old[:4].tolist(), torch.rand(1)

    torch.manual_seed(0)
    before = drawn()
    torch.manual_seed(0)
    compile(algorithm(HONEST["seeded"]), 2, 6)
    assert drawn() == before


def test_the_refusal_names_what_changes_and_the_loop():
    with pytest.raises(CompileError, match=r"Counter\.turns changes in this loop") as caught:
        algorithm(HIDDEN["a class attribute"]()).graph(2)
    assert "ice.repeat(steps)" in (caught.value.source or "")
