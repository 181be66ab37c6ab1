"""What is built, or first used, under inference_mode works outside, backward passes included."""

import pytest
import torch

import iceform as ice

F64 = torch.float64
X, Y, W = torch.rand(3, 2, dtype=F64), torch.rand(3, dtype=F64), torch.rand(2, dtype=F64)
MATRIX = torch.rand(2, 2, dtype=F64)

BUILT = {
    "ResidualMap": (lambda: ice.paper.ResidualMap(torch.tanh, dim=2, samples=3), (X, Y, W)),
    "kinks": (lambda: ice.paper.ResidualMap("huber", dim=2, samples=3, eps=1e-3), (X, Y, W)),
    "hard": (
        lambda: ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=0.1, regime="hard"),
        (X, Y, W),
    ),
    "literal": (
        lambda: ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, backend="literal"), (X, Y, W)
    ),
    "GradientStep": (lambda: ice.paper.GradientStep(torch.tanh, 0.1, dim=2, samples=3), (X, Y, W)),
    "CompactStep": (lambda: ice.paper.CompactStep(torch.tanh, 0.1, dim=2, samples=3), (X, Y, W)),
    "GradientDescent": (
        lambda: ice.paper.GradientDescent("squared", 3, 0.1, dim=2, samples=3), (X, Y, W)
    ),
    "HopfieldMap": (lambda: ice.paper.HopfieldMap(torch.tanh, [1.0, 2.0], samples=3), (X,)),
    "LinearLayer": (lambda: ice.paper.LinearLayer(2, 2, samples=3), (X, MATRIX)),
    "AttentionHead": (
        lambda: ice.paper.AttentionHead(2, 2, 2, 3, eps=None), (X, MATRIX, MATRIX, MATRIX)
    ),
    "MLP": (
        lambda: ice.paper.MLP([2, 2, 1], torch.tanh, samples=3, eps=None),
        (X, MATRIX, W, MATRIX[:1], W[:1]),
    ),
}  # fmt: skip


def gradient(made, inputs):
    given = [t.clone().requires_grad_(True) for t in inputs]
    made(*given).sum().backward()
    return [t.grad for t in given]


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("when", ["built", "used"])
def test_inference_mode_leaves_nothing_behind(name, when):
    build, inputs = BUILT[name]
    with torch.inference_mode(when == "built"):
        made = build()
    if when == "used":
        with torch.inference_mode():
            made(*inputs)
    assert not any(t.is_inference() for t in (*made.parameters(), *made.buffers()))
    for found, wanted in zip(gradient(made, inputs), gradient(build(), inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_function_without_a_derivative_is_no_raw_error():
    def ramp(z):
        return z * torch.heaviside(z, torch.tensor(0.5, dtype=z.dtype))

    it = ice.Interpolant.fit(ramp, -1.0, 1.0, 1e-3)
    z = torch.linspace(-1, 1, 999, dtype=F64)
    assert float((it(z) - torch.relu(z)).abs().max()) <= it.error <= 1e-3
    step = ice.Interpolant.hard(lambda z: torch.heaviside(z, 0 * z), -1.0, 1.0, cells=9)
    assert step.error >= 0.5  # at a jump nothing continuous does better
    with pytest.raises(ice.errors.ProgramError, match="jumps"):
        ice.paper.ResidualMap(lambda z: torch.heaviside(z, 0 * z), dim=2, samples=3)
