"""Tensors of balls hold what a torch program computes, and nothing is left out in silence."""

import numpy as np
import pytest
import torch

from iceform.arithmetic.balls import balls_of
from iceform.errors import ProgramError
from iceform.expressions.ball_tensors import BallTensor

F64 = torch.float64
X = torch.tensor([[0.5, -1.25], [2.0, 0.75], [-0.25, 1.5]], dtype=F64)
Y = torch.tensor([1.0, -0.5, 0.25], dtype=F64)
EYE = torch.eye(2, dtype=F64)

PROGRAMS = {
    "attention": lambda x, y: torch.softmax(x @ x.mT, -1) @ x,
    "ridge": lambda x, y: torch.linalg.solve(x.mT @ x / 3 + 0.5 * EYE, (y[None, :] @ x)[0] / 3),
    "gradients": lambda x, y: ((torch.tanh(x @ EYE[0] - y))[..., None] * x).mean(-2),
    "norms": lambda x, y: y / (x.square().sum((-2, -1)) + 0.25)[..., None],
    "choices": lambda x, y: torch.maximum(x.clamp(-0.5, 0.9), torch.minimum(2 * x, 1 - x)),
    "shapes": lambda x, y: torch.cat([x, torch.stack([y, y.expand(3)], 1)], -1).sum(-1, True),
    "conditions": lambda x, y: torch.where((x > 0.6) | ~(x <= X + 0.5), x, -x),
    "comparisons": lambda x, y: sum(
        torch.where(c, y, 2 * y)
        for c in (y < 0.25, y <= 0.25, y == 0.25, y != 0.25, y >= 0.25, y > 0.25, torch.gt(Y, y))
    ),
    "slices": lambda x, y: torch.stack(x.unbind(-1)).sum(0) - torch.mul(y, y),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_on_balls_is_the_program_on_numbers(name):
    program = PROGRAMS[name]
    expected = program(X, Y)
    with balls_of(128):
        found = program(BallTensor.of(X), BallTensor.of(Y))
        assert found.shape == tuple(expected.shape)
        assert found.widest() < 1e-35
        middles = torch.tensor([float(ball.mid()) for ball in found.flat], dtype=F64)
    assert float((middles - expected.flatten()).abs().max()) < 1e-14


def test_a_square_of_a_ball_around_zero_is_not_negative():
    with balls_of(64) as flint:
        around = BallTensor.of([flint.arb(0, 0.5)])
        assert (around.square() >= 0).all()
        with pytest.raises(ProgramError, match="leave a comparison open"):
            bool((around * (around + 0) >= 0).all())


def test_an_open_comparison_is_never_taken_for_a_false_one():
    with balls_of(64) as flint:
        around, surely = (BallTensor.of([flint.arb(mid, 1)]) for mid in (1, 9))
        for condition in (around > 1, around <= 1, torch.gt(around, 1), around == 1, ~(around < 1)):
            (held,) = torch.where(condition, around * 10, around * 0)
            assert held.contains(0), condition.values
            assert held.contains(20), condition.values
            with pytest.raises(ProgramError, match="leave a comparison open"):
                bool(condition)
        assert surely > 1
        assert not (around > surely) & (around > 1)
        assert (surely > 1) | (around > 1)


@pytest.mark.parametrize("choose", [
    lambda b: torch.max(b, 0), lambda b: torch.min(b, dim=0), torch.max, lambda b: b.max(),
    lambda b: b.argmax(), np.sort, lambda b: np.maximum(b, 1.0), lambda b: b.clip(0, 1), bool,
])  # fmt: skip
def test_what_would_decide_by_open_comparisons_is_refused(choose):
    with balls_of(64) as flint, pytest.raises(ProgramError, match="ball"):
        choose(BallTensor.of([flint.arb(0, 1)]))


def test_what_balls_do_not_know_is_refused_by_name():
    with balls_of(64), pytest.raises(ProgramError, match="does not know torch's 'sort'"):
        torch.sort(BallTensor.of(Y))
