"""One row of the table is all that a scalar function takes; every row says one thing five ways."""

from fractions import Fraction

import pytest
import torch

from iceform import Formula, Interpolant
from iceform.arithmetic import Interval
from iceform.arithmetic.balls import balls_of
from iceform.expressions import ScalarFunction
from iceform.expressions.formulas.algebra import ONE, call, divide, multiply, subtract
from iceform.expressions.formulas.calculus import derivative
from iceform.expressions.formulas.enclosing import jets
from iceform.expressions.formulas.functions import ball_function, evaluate
from iceform.expressions.formulas.table import TABLE, ScalarOperation
from iceform.expressions.formulas.trees import Number, Operation, Variable
from iceform.expressions.tracing import trace

F64 = torch.float64
SMOOTH = sorted(name for name, row in TABLE.items() if row.arity == 1 and not row.condition)
POINTS = torch.tensor([0.3, 0.75, 1.25, 2.5], dtype=F64)


def _sinc(u):
    """sin(pi u)/(pi u), for u away from 0."""
    angle = multiply(Number(Fraction(torch.pi), "pi"), u)
    return divide(call("sin", angle), angle)


def _huber(u):
    """u^2/2 near 0, |u| - 1/2 elsewhere."""
    half = Number(Fraction(1, 2))
    near = call("clip", u, Number(Fraction(-1)), ONE)
    return multiply(near, subtract(u, multiply(half, near)))


@pytest.fixture
def added(monkeypatch):
    monkeypatch.setitem(TABLE, "sinc", ScalarOperation(torch.sinc, definition=_sinc))
    monkeypatch.setitem(TABLE, "huber", ScalarOperation(definition=_huber))


def test_a_function_added_from_outside_is_known_everywhere(added):
    """Parsed, printed, computed, differentiated, enclosed, in balls; followed through torch."""
    formula = Formula("sinc(2*z + 5)")
    assert str(formula) == "sinc(2*z + 5)"
    z = torch.linspace(-1, 1, 101, dtype=F64)
    expected = torch.sinc(2 * z + 5)
    assert torch.allclose(formula(z), expected, atol=1e-15)
    point = z.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(torch.sinc(2 * point + 5).sum(), point)
    assert torch.allclose(formula.derivative()(z), slope, atol=1e-14)
    followed = ScalarFunction(lambda u: torch.sinc(2 * u + 5), "f")
    assert followed.obstacle is None
    for found in (formula.function.jets, followed.jets):
        jet = found(Interval.point(z), 1)
        for k, want in enumerate((expected, slope)):
            assert bool(((jet[k].low <= want + 1e-13) & (want - 1e-13 <= jet[k].high)).all())
            assert float((jet[k].high - jet[k].low).max()) < 1e-12
    with balls_of(128) as flint:
        ball = ball_function(formula.tree)(flint.arb(0.5))
        assert ball.overlaps((6 * flint.arb.pi()).sin() / (6 * flint.arb.pi()))
        assert float(ball.rad()) < 1e-35
    table = Interpolant.fit(formula.function, -1.0, 1.0, tokens=33)
    assert table.kind == "proven"
    assert float((table(z) - expected).abs().max()) <= table.error + 1e-15


def test_a_definition_alone_is_enough_and_its_kinks_are_known(added):
    formula = Formula("huber(z - 0.25)")
    z = torch.linspace(-2, 2, 401, dtype=F64)
    torch_s = torch.nn.functional.huber_loss(z - 0.25, 0 * z, reduction="none")
    assert torch.allclose(formula(z), torch_s, atol=1e-15)
    assert formula.convex_on(-3.0, 3.0) is True
    assert formula.bound(-3.0, 3.0, order=2) == pytest.approx(1.0)
    assert formula.scalar_function(-2.0, 2.0).kinks == (-0.75, 1.25)


@pytest.mark.parametrize("name", SMOOTH)
def test_every_row_says_the_same_in_torch_jets_balls_and_by_its_slope(name):
    tree = Operation(name, (Variable(),))
    values = evaluate(tree, POINTS)
    slopes = evaluate(derivative(tree), POINTS)
    point = POINTS.clone().requires_grad_(True)
    out = evaluate(tree, point)
    (seen,) = torch.autograd.grad(out.sum(), point)
    assert torch.allclose(slopes, seen, rtol=1e-13, atol=1e-15)
    jet = jets(tree, Interval.point(POINTS), 1)
    for k, want in enumerate((values, slopes)):
        slack = 1e-14 * (1 + want.abs())
        assert bool((jet[k].low <= want + slack).all())
        assert bool((want - slack <= jet[k].high).all())
    with balls_of(128):
        for z, value in zip(POINTS.tolist(), values.tolist(), strict=True):
            ball = ball_function(tree)(_ball(z))
            assert abs(float(ball.mid()) - value) <= 1e-14 * (1 + abs(value))
            assert float(ball.rad()) < 1e-30


def _ball(value):
    with balls_of(128) as flint:
        return flint.arb(value)


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.rational))
def test_rational_values_are_those_of_balls(name):
    """A value that is taken for exact is the value of the function, whatever is said of it."""
    row = TABLE[name]
    for numbers in ([Fraction(0)] * row.arity, [Fraction(-3, 4), Fraction(2)][-row.arity :]):
        exact = row.rational(*numbers)
        if exact is None:
            continue
        tree = Operation(name, tuple(Variable() for _ in numbers)) if row.arity == 1 else None
        with balls_of(128) as flint:
            given = [flint.arb(flint.fmpq(n.numerator, n.denominator)) for n in numbers]
            ball = ball_function(tree)(*given) if tree else row.ball(*given)
            assert ball.contains(flint.fmpq(exact.numerator, exact.denominator)), numbers


def test_a_torch_function_of_eighteen_hundred_steps_is_followed():
    """Parts that are shared are one object: as a tree without sharing it has 3^600."""

    def f(z):
        for _ in range(600):
            z = z - 0.001 * (z * z)
        return z

    tree = trace(f)
    assert tree.size > 2**500
    z = torch.tensor([0.5], dtype=F64)
    found = ScalarFunction(f, "f").jets(Interval.point(z), 1)[0]
    assert float(found.low) - 1e-12 <= float(f(z)) <= float(found.high) + 1e-12
    assert float(found.high - found.low) < 1e-10


def test_the_three_values_of_a_condition():
    """Where it is open which branch holds, jets and balls hold both."""
    tree = trace(lambda z: torch.where((z > 0) & ~(z > 1), z + 1, -z))
    cells = Interval(*(torch.tensor(v, dtype=F64) for v in ([-2, -0.1, 0.2], [-1, 0.1, 0.3])))
    value = jets(tree, cells, 0)[0]
    assert value.low.tolist() == pytest.approx([1.0, -0.1, 1.2])
    assert value.high.tolist() == pytest.approx([2.0, 1.1, 1.3])
    with balls_of(64) as flint:
        f = ball_function(tree)
        open_one = f(flint.arb(0, 0.25))
        assert open_one.contains(flint.arb(1.2))
        assert open_one.contains(flint.arb(0.2))
        assert float(f(flint.arb(0.5)).mid()) == 1.5
        assert float(f(flint.arb(0)).mid()) == 0
        assert float(f(flint.arb(2)).mid()) == -2
    z = torch.tensor([0.0, 0.5, 2.0]).double()
    assert evaluate(tree, z).tolist() == [0.0, 1.5, -2.0]
    assert evaluate(derivative(tree), z).tolist() == [-1.0, 1.0, -1.0]


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_balls_hold_the_line_that_torch_goes_on_with_after_softplus(beta):
    f = ScalarFunction(lambda z: torch.nn.functional.softplus(z, beta=beta, threshold=1.0), "f")
    z = torch.tensor([-1.0, 0.25, 0.5, 0.75, 2.0], dtype=F64)
    with balls_of(64) as flint:
        for at, value in zip(z.tolist(), f(z).tolist(), strict=True):
            ball = f.balls(flint.arb(at))
            assert ball.overlaps(flint.arb(value, 1e-15)), at
            assert at * beta > 1 or float(ball.rad()) < 1e-15, at
