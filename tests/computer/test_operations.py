"""Every row of the table of operations on its own: in tensors, in balls and in ranges."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import iceform as ice
from iceform.arithmetic.balls import balls_of
from iceform.computer.graph import Exact
from iceform.computer.proofs import Balls, UndecidedError
from iceform.computer.values import emit
from iceform.expressions.ball_tensors import BallTensor
from iceform.expressions.formulas import Formula
from iceform.program import Node, NodeOperation, Range, Tape

N, D = 4, 3
ROUGH, FINE = 128, 256  # bits
# How wide the arguments and the result are (None: one number), and the row's attribute.
CASES = {
    "constant": ((), None, 0.3),
    "numbers": ((), D, (0.5, -1.25, 2.0)),
    "add": ((D, D), D, None),
    "mul": ((D, D), D, None),
    "maximum": ((D, D), D, None),
    "minimum": ((D, D), D, None),
    "apply": ((D,), D, Formula("tanh(z)").tree),
    "apply, not monotone": ((D,), D, Formula("z*z - sin(3*z)").tree),
    "step": ((D,), D, False),
    "step, or equal": ((D,), D, True),
    "whole": ((D,), D, ("nearest", 0.25)),
    "whole, zero": ((D,), D, ("zero", 0.25)),
    "sum": ((D,), None, None),
    "mean": ((D,), D, None),
    "attend": ((D, D, D, None), D, None),
    "attend, no bias": ((D, D, D), D, None),
    "concat": ((D, None), D + 1, None),
    "component": ((D,), None, 1),
    "spread": ((None,), D, None),
    "bounded": ((D,), D, (-20.0, 20.0)),
    "stored": ((D,), D, None),
}  # fmt: skip

OF_NETWORKS = {"affine", "matmul", "move", "softmax"}  # which the language has no word for
OF_GRAPHS = {"data", "parameter", "state", "result", "count", "index"}  # which a run is handed

# What a row computes, in numpy: balls and tensors share its formula, so neither can be the judge.
PEERS = {
    "add": np.add,
    "mul": np.multiply,
    "sum": lambda a: np.array([sum(row) for row in a]),
    "mean": lambda a: np.array([sum(column) / N for column in a.T]),
    "attend": lambda q, k, v, bias=None: attention(
        q, k, v, np.zeros((N, 1)) if bias is None else bias
    ),
    "concat": lambda a, b: np.hstack([a, b]),
    "component": lambda a: a[:, 1],
    "spread": lambda a: np.hstack([a] * D),
    "step": lambda a: np.heaviside(a, 1),
    "maximum": np.fmax,
    "minimum": np.fmin,
}


def attention(q, k, v, bias):
    weights = np.array(
        [[math.exp(q_i @ k_j + b_j[0]) for k_j, b_j in zip(k, bias, strict=True)] for q_i in q]
    )
    return (weights / weights.sum(1, keepdims=True)) @ v


@pytest.mark.parametrize("case", [case for case in CASES if case.partition(",")[0] in PEERS])
def test_value_is_the_peer_s(case):
    for seed in (0, 1):
        node, args = drawn(case, seed)
        value = node.operation.value(Exact(N), node, *args)
        peer = torch.from_numpy(PEERS[node.op](*(a.numpy() for a in args)))
        torch.testing.assert_close(value.flatten(), peer.flatten(), rtol=1e-12, atol=1e-12)


def drawn(case, seed):
    """A node of that row and random arguments, some small and some large."""
    widths, width, attr = CASES[case]
    generator = torch.Generator().manual_seed(seed)
    op = case.partition(",")[0]
    given = tuple(Node("data", (), True, w, "x") for w in widths)
    node = Node(op, given, bool(widths) and op != "mean", width, attr)
    size = 10.0 ** (seed % 3 - 1)
    args = [
        size * (2 * torch.rand(N, w or 1, generator=generator, dtype=torch.float64) - 1)
        for w in widths
    ]
    return node, args


def in_balls(node, args, bits):
    with balls_of(bits):
        run = Balls(N)
        return list(run.compute(node, list(map(BallTensor.of, args))).flat)


def test_every_row_has_a_case():
    rows = NodeOperation.table.items()
    ours = {k for k, row in rows if "iceform" in type(row).__module__}
    assert {case.partition(",")[0] for case in CASES} == ours - OF_NETWORKS - OF_GRAPHS


@pytest.mark.parametrize("case", CASES)
def test_exact_value_is_in_its_ball_and_in_its_range(case):
    """Of 60 draws: balls of two precisions meet, tensors are near, and the range has them all."""
    for seed in range(60):
        node, args = drawn(case, seed)
        rough, fine = in_balls(node, args, ROUGH), in_balls(node, args, FINE)
        value = node.operation.value(Exact(N), node, *args)
        assert len(fine) == value.numel()
        assert all(a.overlaps(b) for a, b in zip(rough, fine, strict=True))
        assert max(float(b.rad()) for b in fine) < 2.0**-200
        exact = torch.tensor([float(b.mid()) for b in fine], dtype=torch.float64)
        assert (value.flatten() - exact).abs().max() <= 2.0**-45 * max(
            1.0, float(exact.abs().max())
        )
        known = node.operation.bounds(node, *(Range(float(a.min()), float(a.max())) for a in args))
        with balls_of(FINE):
            outside = [b for b in fine if b < known.low or b > known.high]
        assert not outside, (known, outside)


@pytest.mark.parametrize("case", CASES)
def test_on_a_tape_no_argument_moves_it_farther_than_is_said(case):
    """Of 20 draws, and of arguments as far off as they may be, tried both ways at random."""
    for seed in range(20):
        node, args = drawn(case, seed)
        tape = Tape(run=Exact(N))
        radius = 10.0 ** -(seed % 5)
        if not args:
            continue
        step = tape.apply(node, *(tape.leaf(a, radius) for a in args))
        bound, value = tape.bound(step), tape.value(step)
        torch.testing.assert_close(value, node.operation.value(Exact(N), node, *args))
        seen = torch.zeros_like(value)
        for turn in range(20):
            signs = torch.Generator().manual_seed(100 * seed + turn)
            off = [
                (torch.rand(a.shape, generator=signs, dtype=torch.float64) * 2 - 1).sign() * radius
                for a in args
            ]
            away = node.operation.value(Exact(N), node, *map(torch.add, args, off)) - value
            seen = torch.maximum(seen, away.abs())
        assert bool((seen <= bound + 1e-14).all()), (seed, seen, bound)
        if node.op not in ("step", "whole", "attend"):  # which jump, or bend
            assert float(bound.max()) <= 12 * float(seen.max()) + 1e-14, (seed, seen, bound)


@pytest.mark.parametrize("case", ["add", "mul", "maximum", "minimum", "sum", "apply"])
def test_range_is_no_wider_than_what_the_row_can_reach(case):
    """The ends of a range are reached, or nearly, at corners of the arguments' ranges."""
    node, args = drawn(case, 1)
    ends = [(-0.5, 2.0), (-3.0, 1.0)][: len(args)]
    known = node.operation.bounds(node, *(Range(*both) for both in ends))
    values = torch.stack(
        [
            node.operation.value(Exact(N), node, *map(torch.full_like, args, corner))
            for corner in itertools.product(*ends)
        ]
    )
    assert float(values.min()) == pytest.approx(known.low, rel=1e-6)
    assert float(values.max()) == pytest.approx(known.high, rel=1e-6)


def test_an_operation_of_others_is_one_class_and_is_known_everywhere():
    """v on a grid: in the language, exactly, in balls, in ranges, in errors and in the text."""

    class OnGrid(NodeOperation):
        name, shown = "on grid", "to a grid"

        def expand(self, run, node, apply, v):
            steps = apply("apply", v, attr=Formula(f"z/{node.attr}").tree)
            near = apply("whole", steps, attr=("nearest", 2.0**-11))
            return apply("apply", near, attr=Formula(f"{node.attr}*z").tree)

    try:

        @ice.algorithm
        def snapped(x, y):
            return ice.mean(emit("on grid", x, attr=0.25) * y)

        draw = torch.Generator().manual_seed(0)
        X = torch.randint(-3, 4, (6, 2), generator=draw) / 4 + 0.03
        y = torch.rand(6, generator=draw)
        want = ((X.double() * 4).round() / 4 * y.double()[:, None]).mean(0)
        torch.testing.assert_close(snapped(X, y), want)
        program = ice.compile(snapped, 2, 6)
        assert 0 < program.certificate.error < 1e-6
        grid = [n for n in program.graph.block.walk() if n.name == "to a grid"]
        assert [n.op for n in grid] == ["apply", "whole", "apply"]
        known = program.ranges[grid[-1]]
        assert (known.low, known.high) == pytest.approx((-1.0, 1.0))
        assert "to a grid" in program.explain()
        result = ice.Computer.for_programs([program]).run(program, X, y)
        off = float((result.value - want).abs().max())
        assert off <= result.enclosure.error <= program.certificate.error
        with pytest.raises(ice.errors.PrecisionError):  # half-way between two points of the grid
            ice.Computer.for_programs([program]).run(program, 0 * X + 0.125, y)
        tape = Tape(run=Exact(6))
        step = tape.apply(replace(grid[0], op="on grid", attr=0.25), tape.leaf(X, 1e-3))
        torch.testing.assert_close(tape.value(step), (X.double() * 4).round() / 4)
        assert float(tape.bound(step).max()) <= 1e-15
    finally:
        del NodeOperation.table["on grid"]


def test_a_row_from_outside_is_in_every_pass():
    """With a value of its own, not made of others: selected, enclosed, bounded, and a text."""

    class Halved(NodeOperation):
        name, shown = "halved in a test", "half"

        def value(self, run, node, a):
            return a / 2

        def bounds(self, node, a):
            return a.times(0.5)

        def select(self, code, node):
            return code.function_of(Formula("z/2").tree, node.args[0])

        def term(self, text, node, a):
            return text.terms.affine(a, Fraction(1, 2))

    @ice.algorithm
    def halved(x, y):
        return ice.mean(emit(Halved.name, x) * y)

    try:
        X, y = torch.ones(3, 2).double(), torch.tensor([0.5, 1.0, -0.25]).double()
        program = ice.compile(halved, 2, 3)
        (node,) = (n for n in program.graph.block.walk() if n.op == Halved.name)
        assert (node.shown, program.ranges[node].size) == ("half", pytest.approx(0.5))
        want = (X / 2 * y[:, None]).mean(0)
        torch.testing.assert_close(program.interpreted(X, y, exact=True).outputs["value"], want)
        result = ice.Computer.for_programs([program]).run(program, X, y)
        off = float((result.value - want).abs().max())
        assert off <= result.enclosure.error + 1e-15
        assert result.enclosure.error <= program.certificate.error < 1e-11
        text = program.text(X, y)
        assert float((text.answer - want).abs().max()) <= text.loss.worst + 1e-12 <= 1e-2
        with balls_of(64):
            (ball,) = Balls(1).compute(node, [BallTensor.of(torch.ones(1, 1))]).flat
            assert ball == 0.5
    finally:
        del NodeOperation.table[Halved.name]


@pytest.mark.parametrize(
    ("op", "attr", "values"),
    [
        ("step", False, [0.5, 0.0]),
        ("step", True, [0.0, -1.0]),
        ("whole", ("nearest", 0.25), [2.0, 2.5]),
        ("whole", ("zero", 0.25), [-0.5, 1.0]),
    ],
)
def test_a_tie_is_undecided_in_balls(op, attr, values):
    """Of numbers that are known roughly; a 0 that is known is what the comparison says of it."""
    node = Node(op, (Node("data", (), True, 2, "x"),), True, 2, attr)
    with balls_of(64):
        exactly = BallTensor.of(torch.tensor([values], dtype=torch.float64))
        third = BallTensor.of(torch.tensor([[1.0]], dtype=torch.float64)) / 3
        roughly = exactly + (third + third + third - 1.0)
        with pytest.raises(UndecidedError):
            Balls(1).compute(node, [roughly])
        if op == "step":
            found = [float(b.mid()) for b in Balls(1).compute(node, [exactly]).flat]
            assert found == [float(v >= 0 if attr else v > 0) for v in values]


def test_which_rows_keep_whole_numbers_whole_and_zeros_zero():
    """By trial: a row that says so does, for whole numbers and for zeros beyond a vector."""
    for case in CASES:
        node, args = drawn(case, 2)
        rounded = [a.round() for a in args]
        value = node.operation.value(Exact(N), node, *rounded)
        if node.operation.whole(node, [True] * len(args)):
            assert bool((value == value.round()).all()), case
    assert not NodeOperation.table["mean"].whole(node, [True])
    assert NodeOperation.table["mul"].whole(node, [True, True])
    assert not NodeOperation.table["mul"].whole(node, [True, False])
    assert NodeOperation.table["mul"].clean(node, [True, False])
    assert not NodeOperation.table["add"].clean(node, [True, False])
    zero, one = (Node("constant", (), False, None, number) for number in (0.0, 1.0))
    assert NodeOperation.table["constant"].clean(zero, [])
    assert not NodeOperation.table["constant"].clean(one, [])
