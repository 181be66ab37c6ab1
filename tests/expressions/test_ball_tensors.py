"""Tensors of balls hold what a torch program computes, and nothing is left out in silence."""

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
        assert not (around * (around + 0) >= 0).all()


def test_what_balls_do_not_know_is_refused_by_name():
    with balls_of(64), pytest.raises(ProgramError, match="does not know torch's 'sort'"):
        torch.sort(BallTensor.of(Y))
