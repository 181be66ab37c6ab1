"""Curves of straight pieces: at their kinks as exact as elsewhere, within what is stated."""

import re
from fractions import Fraction

import pytest
import torch

from iceform.computer import Computer
from iceform.computer.compile import compile
from iceform.computer.language import algorithm, maximum, minimum, repeat, soft_threshold, where
from iceform.computer.piecewise_linear import piecewise_linear
from iceform.expressions.formulas import Formula
from iceform.program import Range

CURVES = {
    "relu": torch.relu,
    "abs": lambda z: 0.5 * abs(z) - 0.25,
    "clamp": lambda z: torch.clamp(z, -0.5, 0.5),
    "max": lambda z: maximum(z, 0.3 - 2.0 * z),
    "min": lambda z: minimum(3.0 * z, z * z),  # one straight, one not
    "threshold": lambda z: soft_threshold(z, 0.3),
    "tilted": lambda z: 0.3 * torch.relu(z) + 0.3 * z - 0.25,
    "decimals": lambda z: (
        0.7 * torch.relu(0.1 - 0.3 * z) + 0.1
    ),  # neither slopes nor kink are exact
}
KINKS = (-0.5, -0.3, 0.0, 0.1, 0.3, 1 / 3, 0.5)


def compiled(name, eps=1e-8):
    def written(x, y):
        return CURVES[name]((x + y * 0.5).sum())

    return compile(algorithm(written), 1, 80, eps=eps)


def near_kinks():
    """Arguments at kinks and from 1e-16 to 1e-3 beside them, by two summands."""
    away = torch.logspace(-16, -3, 5, dtype=torch.float64)
    z = torch.cat([k + torch.cat([-away, away[:0] if k else away[:1] * 0, away]) for k in KINKS])
    y = torch.linspace(-0.5, 0.5, len(z), dtype=torch.float64)
    return (z - 0.5 * y)[:, None], y


@pytest.mark.parametrize("name", CURVES)
def test_kinks_are_within_what_is_stated(name):
    program = compiled(name)
    X, y = near_kinks()
    exact = program.reference(X, y)
    known = program.certificate.error
    assert known <= 1e-8
    found = program.interpreted(X, y).outputs["value"]
    assert float((found - exact).abs().max()) <= known
    computer = Computer.for_programs([program])
    for backend in ("literal", "fused"):
        result = computer.run(program, X, y, backend=backend)
        off = float((result.value - exact).abs().max())
        assert off <= result.enclosure.error + 1e-15
        assert result.enclosure.error <= program.certify(backend=backend)[0].error


@pytest.mark.parametrize("name", CURVES)
def test_the_worst_argument_is_within_what_is_charged(name):
    """Searched from 1e-15 beside every kink to the ends of the range."""
    program = compiled(name)
    away = torch.logspace(-15, 0, 3001, dtype=torch.float64)
    z = torch.cat([k + sign * away for k in KINKS for sign in (-1, 1)])
    y = z.clamp(-1, 1)
    X = (z - 0.5 * y).clamp(-1, 1)[:, None]
    off = (program.interpreted(X, y).outputs["value"] - program.reference(X, y)).abs()
    known = program.certificate.error
    assert known / 8 <= float(off.max()) <= known


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("height", "base"), [(0.3, 0.0), (0.3, 0.1), (1e6 / 3, 0.1)])
def test_values_of_comparisons_are_rounded_within_what_is_stated(height, base, dtype):
    def written(x, y):
        return height * where(y > 0.1, 1.0, 0.0) + base

    program = compile(algorithm(written), 1, 4)
    X, y = torch.zeros(4, 1), torch.tensor([0.5, -0.5, 0.3, 0.0])
    computer = Computer.for_programs([program], dtype=dtype)
    for backend in ("literal", "fused"):
        found = computer.run(program, X, y, backend=backend).enclosure.error
        assert found <= program.certify(dtype, backend)[0].error
        assert found <= 4 * torch.finfo(dtype).eps * height


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_comparisons_of_what_is_off_by_more_than_their_gap_are_not_vouched_for(dtype):
    """Arguments beside the gap, which a run may be made on, come out on the other side."""

    def steps(z):
        for _ in repeat(5):
            z = torch.sin(3.0 * z)
        return z

    def written(x, y):
        return where(steps(y) > 0.25, 1.0, 0.0)

    program = compile(algorithm(written), 1, 64)
    (gap,) = program.fused.gaps.values()
    y = torch.linspace(-1, 1, 2_000_001).double()
    z = y.clone()
    for _ in range(5):
        z = torch.sin(3.0 * z)
    near = (z - 0.25).abs()
    y = y[(near > gap) & (near < 30 * gap)][:64]
    known = program.certify(dtype, "fused")[0].error
    found = Computer.for_programs([program], dtype=dtype).run(
        program, torch.zeros(len(y), 1), y, backend="fused"
    )
    assert found.enclosure.error <= known
    assert (known < 1e-14) == (dtype == torch.float64)


def test_what_is_next_to_nothing_has_a_scale():
    def written(x, y):
        return where(y > 0.1, 1.0, 0.0) + 0.0 * (y * y)

    def kept(x, y):
        return +y

    program, data = compile(algorithm(written), 1, 2), torch.tensor([0.5, -0.5]).double()
    torch.testing.assert_close(
        program.interpreted(data[:, None], data).outputs["value"], (data > 0).double()
    )
    untouched = compile(algorithm(kept), 1, 2)
    found = Computer.for_programs([untouched]).run(untouched, data[:, None], data)
    assert found.enclosure.error == untouched.certificate.error == 0


def test_one_table_is_enough_where_less_is_asked():
    fine, coarse = compiled("relu"), compiled("relu", eps=1e-4)
    assert coarse.plan["instructions"] < fine.plan["instructions"]
    assert coarse.certificate.error > 1e-10


@pytest.mark.parametrize(
    ("text", "kinks"),
    [("relu(z)", 1), ("2*abs(z - 0.25)", 1), ("min(max(z, -1), 0.5)", 2), ("z^2*relu(z)", 0),
     ("tanh(abs(z))", 0), ("abs(abs(z) - 1)", 0)],
)  # fmt: skip
def test_only_straight_pieces_are_taken_apart(text, kinks):
    curve = Formula.parse(text)
    found = piecewise_linear(curve.tree, Range(-2.0, 3.0), 1e-10)
    assert (0 if found is None else len(found.kinks)) == kinks
    if found is not None:
        z = torch.linspace(-2, 3, 41, dtype=torch.float64)
        made = found.value + sum(
            (z - b.at) * torch.where(z < b.at, b.left, b.right) for b in found.kinks
        )
        torch.testing.assert_close(made, curve(z), rtol=0, atol=1e-15)


@pytest.mark.parametrize("text", ["relu(0.1 - 0.3*z)/7", "min(max(z/3, -0.1), 0.7)/0.3 + 1/3"])
def test_rounded_kinks_and_slopes_are_charged(text):
    """Against the curve in rational arithmetic, at its kinks and at the ends."""
    on = Range(-2.0, 3.0)
    found = piecewise_linear(Formula.parse(text).tree, on, 1e-10)
    off = Fraction(0)
    for z in (Fraction(on.low), Fraction(on.high), *(Fraction(b.at) for b in found.kinks)):
        off = max(off, abs(found(z) - exactly(text, z)))
    assert 0 < off <= found.off <= 1e-14


def exactly(text, z):
    """A formula of rational numbers, by Python."""
    words = {"relu": lambda t: max(t, Fraction(0)), "min": min, "max": max, "z": z}
    rational = re.sub(r"[0-9.]+", lambda n: f"Fraction('{n[0]}')", text)
    return eval(rational, {"Fraction": Fraction, **words})
