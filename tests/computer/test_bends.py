"""Curves of straight pieces: at their kinks as exact as elsewhere, within what is stated."""

import pytest
import torch

from iceform.computer import Computer
from iceform.computer.bends import bent
from iceform.computer.compile import compile
from iceform.computer.language import algorithm, maximum, minimum, soft_threshold
from iceform.computer.ranges import Range
from iceform.functions.formulas import Formula

CURVES = {
    "relu": torch.relu,
    "abs": lambda z: 0.5 * abs(z) - 0.25,
    "clamp": lambda z: torch.clamp(z, -0.5, 0.5),
    "max": lambda z: maximum(z, 0.3 - 2.0 * z),
    "min": lambda z: minimum(3.0 * z, z * z),  # one straight, one not
    "threshold": lambda z: soft_threshold(z, 0.3),
}
KINKS = (-0.5, -0.3, 0.0, 0.1, 0.3, 0.5)


def compiled(name, eps=1e-8):
    def written(x, y):
        return CURVES[name]((x + y * 0.5).sum())

    return compile(algorithm(written), 1, 64, eps=eps)


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
        assert off <= result.certificate.error + 1e-15
        assert result.certificate.error <= program.certify(backend=backend)[0].error


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
    found = bent(curve.tree, Range(-2.0, 3.0), 1e-10)
    assert (0 if found is None else len(found.bends)) == kinks
    if found is not None:
        z = torch.linspace(-2, 3, 41, dtype=torch.float64)
        made = found.value + sum(
            (z - b.at) * torch.where(z < b.at, b.left, b.right) for b in found.bends
        )
        torch.testing.assert_close(made, curve(z), rtol=0, atol=1e-15)
