"""Programs compiled with an example: ranges as seen there, checked in every run."""

import math

import pytest
import torch

import iceform as ice
from iceform.errors import BoundError, CompileError, ShapeError

DRAW = torch.Generator()


def draw(n=24, d=2):
    X = torch.randn(n, d, dtype=torch.float64, generator=DRAW)
    noise = 0.1 * torch.randn(n, dtype=torch.float64, generator=DRAW)
    return X, X @ torch.linspace(0.5, -0.3, d, dtype=torch.float64) + noise


@ice.algorithm
def conjugate_gradients(x, y, *, steps=2):
    w, r = ice.zeros_like(x), ice.mean(x * y)
    p = +r
    for _ in ice.repeat(steps):
        q = ice.mean(x * (x @ p)) + 0.2 * p
        rate = (r @ r) / (p @ q)
        w = w + rate * p
        new = r - rate * q
        p = new + (new @ new) / (r @ r) * p
        r = new
    return w


@ice.algorithm
def quotient(x, y):
    return ice.mean(y) / ice.mean(x[0])


@pytest.fixture(scope="module")
def compiled():
    DRAW.manual_seed(0)
    return ice.compile(conjugate_gradients, eps=1e-6, example=draw())


def test_what_is_refused_without_an_example_runs_with_one(compiled):
    with pytest.raises(CompileError, match="contains 0"):
        ice.compile(conjugate_gradients, dim=2, samples=24, domain=8.0)
    DRAW.manual_seed(1)
    computer, refused = ice.Computer.for_programs([compiled]), 0
    for _ in range(16):
        X, y = draw()
        try:
            result = computer.run(compiled, X, y, backend="fused")
        except BoundError:
            refused += 1
            continue
        off = float((result.value - conjugate_gradients(X, y)).abs().max())
        assert off <= result.enclosure.error + 1e-14
        assert result.enclosure.error < 1e-6
    assert refused <= 2  # squares of what converges vary more than most values do


def test_every_run_checks_what_was_seen(compiled):
    """The same data scaled down: p.q is nearer to 0 than was assumed, and the line says so."""
    DRAW.manual_seed(1)
    X, y = draw()
    with pytest.raises(BoundError, match=r"rate = \(r @ r\) / \(p @ q\)"):
        ice.Computer.for_programs([compiled]).run(compiled, X / 64, y / 64, backend="fused")
    assert any("checked in every run" in str(v) for v in compiled.certificate.domain.values())


def test_a_domain_for_each_feature():
    X = torch.stack([torch.arange(2.0, 8.0), torch.linspace(-0.01, 0.01, 6)], 1).double()
    program = ice.compile(quotient, example=(X, X[:, 1]))
    far, near = program.domain.features
    assert near.size <= 0.03
    assert far.high >= 8
    assert any(a.range.low > 0 for a in program.ranges.assumed.values())  # what is divided by
    again = ice.compile(quotient, 2, 6, domain={"x": [(1, 12), (-0.02, 0.02)]})
    found = ice.Computer.for_programs([again]).run(again, X, X[:, 1], backend="fused")
    assert float((found.value - quotient(X, X[:, 1])).abs()) <= found.enclosure.error + 1e-15
    with pytest.raises(BoundError, match=r"X\[:, 1\] has the value"):
        ice.Computer.for_programs([again]).run(again, 2 + X, X[:, 1], backend="fused")


def test_an_example_that_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="takes X of shape"):
        ice.compile(quotient, example=(torch.ones(3, 2), torch.ones(4)))
    X, y = torch.ones(4, 2), torch.ones(4)
    for wrong in ((X,), (X, y, y)):
        with pytest.raises(ShapeError, match=rf"an example is .*; got a tuple of {len(wrong)}"):
            ice.compile(quotient, example=wrong)
    for number in (math.inf, math.nan):
        with pytest.raises(BoundError, match=f"y of the example holds {number}"):
            ice.compile(quotient, example=(X, number * y))
    with pytest.raises(ShapeError, match="dim is 3, and the X of the example has 2 features"):
        ice.compile(quotient, dim=3, domain=2.0, example=(X, y))
    with pytest.raises(BoundError, match="2 ranges for 3 features"):
        ice.compile(quotient, dim=3, samples=4, domain={"x": [(0, 1), (0, 1)]})


def grown(x, y, *, steps=40):
    """A state that is multiplied every turn: without a bound, nothing is known of its errors."""
    w = ice.constant(0.5)
    for _ in ice.repeat(steps):
        w = 3.9 * w * (1.0 - w)
    return ice.where(w > ice.mean(y), w, -w) * torch.sqrt(ice.mean(x[0] * x[0]))


def test_a_diagnosis_names_lines_and_a_bound_that_helps():
    DRAW.manual_seed(2)
    X, y = draw()
    program = ice.compile(ice.algorithm(grown), eps=1e-6, example=(X, y))
    found = program.diagnose(X, y)
    first = grown.__code__.co_firstlineno
    assert found.losses[0].line == first + 4
    assert found.losses[0].value > 1e-9
    (tie,), (divisor,) = found.ties, found.divisors
    assert (tie.line, divisor.line) == (first + 5, first + 5)
    assert divisor.value == pytest.approx(float((X[:, 0] ** 2).mean()))
    assert "alone moves the answer by" in str(found)


def test_a_diagnosis_takes_the_data_that_a_run_takes():
    program = ice.compile(ice.algorithm(lambda x, y: ice.mean(y * x[0])), dim=2, samples=4)
    X, y = torch.ones(4, 2), torch.ones(4)
    for data in ((X[:, :1], y), (X[:, 0], y), (X, y[:2]), (X[:0], y[:0])):
        with pytest.raises(ShapeError, match=r"takes X of shape \(n, 2\)"):
            program.diagnose(*data)
    for number in (50, math.inf, math.nan):
        with pytest.raises(BoundError, match=f"X has the value {number}, outside"):
            program.diagnose(number * X, y)


def root(x, y, *, steps=200):
    """Heron's, of a number near 2."""
    w = ice.constant(1.5)
    for _ in ice.repeat(steps):
        w = 0.5 * (w + (2.0 + 0.01 * ice.mean(y)) / w)
    return w


def test_the_bound_of_a_diagnosis_makes_the_certificate_finite():
    DRAW.manual_seed(2)
    X, y = draw()
    program = ice.compile(ice.algorithm(root), dim=2, samples=24, bounds={"w": (0.1, 9.0)})
    found = program.diagnose(X / 9, y / 9)
    assert found.certificate == float("inf")
    again = ice.compile(ice.algorithm(root), dim=2, samples=24, bounds=found.bounds)
    assert again.certificate.error < 1e-6
    assert str(found.bounds) in str(found)
