"""Every row of the table of operations on its own: in tensors, in balls and in ranges."""

import math

import pytest
import torch

from iceform.arithmetic.balls import balls_of
from iceform.computer import operations  # noqa: F401 - enters the rows
from iceform.computer.exact import Exact
from iceform.computer.graph import Node, NodeOperation
from iceform.computer.proofs import Balls
from iceform.computer.ranges import Range
from iceform.expressions.ball_tensors import BallTensor
from iceform.expressions.formulas import Formula

N, D = 4, 3
# Of each row: whether its arguments are one a sample, how wide they are, and its attribute.
CASES = {
    "constant": ((), None, 0.3),
    "numbers": ((), D, (0.5, -1.25, 2.0)),
    "add": ((D, D), D, None),
    "mul": ((D, D), D, None),
    "maximum": ((D, D), D, None),
    "minimum": ((D, D), D, None),
    "apply": ((D,), D, Formula("tanh(z)").tree),
    "step": ((D,), D, None),
    "whole": ((D,), D, ("nearest", 0.25)),
    "sum": ((D,), None, None),
    "mean": ((D,), D, None),
    "attend": ((D, D, D, None), D, None),
    "concat": ((D, None), D + 1, None),
    "component": ((D,), None, 1),
    "spread": ((None,), D, None),
    "bounded": ((D,), D, (-4.0, 4.0)),
    "stored": ((D,), D, None),
}  # fmt: skip


def test_every_row_has_a_case():
    rows = NodeOperation.table.items()
    assert set(CASES) == {k for k, row in rows if "iceform" in type(row).__module__}


@pytest.mark.parametrize("op", CASES)
def test_value_is_in_its_ball_and_in_its_range(op):
    widths, width, attr = CASES[op]
    generator = torch.Generator().manual_seed(1)
    given = tuple(Node("data", (), True, w, "x") for w in widths)
    node = Node(op, given, bool(widths) and op != "mean", width, attr)
    for _ in range(200):
        args = [
            4 * torch.rand(N, w or 1, generator=generator, dtype=torch.float64) - 2 for w in widths
        ]
        value = node.operation.value(Exact(N), node, *args)
        with balls_of(128):
            balls = Balls(N)
            exact = (
                node.operation.balls(balls, node, *map(BallTensor.of, args))
                if args
                else balls.constant(node)
            )
            middle = torch.tensor([float(b.mid()) for b in exact.flat], dtype=torch.float64)
            assert exact.widest() < 2.0**-90
        assert (value.flatten() - middle).abs().max() < 1e-13
        known = node.operation.bounds(node, *(Range(float(a.min()), float(a.max())) for a in args))
        assert known.low - 1e-15 <= float(middle.min())
        assert float(middle.max()) <= known.high + 1e-15


def test_a_row_from_outside_is_in_the_passes():
    class Halved(NodeOperation):
        name, shown = "halved in a test", "half"

        def value(self, run, node, a):
            return a / 2

        def bounds(self, node, a):
            return a.times(0.5)

    try:
        node = Node(Halved.name, (Node("data", (), True, None, "y"),), True, None)
        assert float(Exact(1).compute(node, [torch.ones(1, 1)])) == 0.5
        with balls_of(64):
            (ball,) = Balls(1).compute(node, [BallTensor.of(torch.ones(1, 1))]).flat
            assert ball == 0.5
        assert math.isclose(node.operation.bounds(node, Range(-1.0, 2.0)).high, 1.0)
        assert node.shown == "half"
    finally:
        del NodeOperation.table[Halved.name]
