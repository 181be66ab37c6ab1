"""Stretches of instructions as CUDA graphs; without a GPU a body that runs again stands for one.

What can go wrong is where a graph reads and writes: a stale operand, an answer that the next launch
overwrites, a product of something overwritten, an argument beyond a closed form that nobody sees.
"""

import pytest
import torch

import iceform as ice
from iceform.computer import Computer, cuda_graphs, library
from iceform.computer.compile import compile
from iceform.computer.cuda_graphs import _leaves
from iceform.computer.fused import FastExecutor
from iceform.errors import CapacityError

NAMES = ("logistic", "nesterov", "bisection", "k_means")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def again(body):
    """As a graph does: the same operations on the same places, whenever it is launched."""
    states = body()

    def replay():
        for old, new in zip(states, body(), strict=True):
            pairs = [(old.memory[name], new.memory[name]) for name in old.memory]
            pairs += [(old.flag, new.flag), (old.before, new.before)]
            for into, value in pairs:
                for a, b in zip(_leaves(into), _leaves(value), strict=True):
                    if a is not b:
                        _once(a).copy_(_once(b))

    return states, replay


def _once(tensor):
    """What stands in several places, once."""
    for axis, stride in enumerate(tensor.stride()):
        tensor = tensor.narrow(axis, 0, 1) if stride == 0 and tensor.shape[axis] > 1 else tensor
    return tensor


@pytest.fixture
def launched(monkeypatch):
    """How many stretches were launched, on a GPU or as on one."""
    count = []
    if DEVICE.type == "cpu":
        monkeypatch.setattr(cuda_graphs, "_pays", lambda tensor: True)
        monkeypatch.setattr(cuda_graphs, "record", again)
    launch = cuda_graphs._Segment.launch
    monkeypatch.setattr(
        cuda_graphs._Segment, "launch", lambda self, held: (count.append(1), launch(self, held))[1]
    )
    return count


def run(computer, prompt, monkeypatch, *, one_by_one):
    if one_by_one:
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graphs.CapturedSegments, "of", lambda fused, start: None)
            return computer.execute(prompt, backend="fused")
    return computer.execute(prompt, backend="fused")


@pytest.mark.parametrize("name", NAMES)
def test_stretches_are_their_cycles(name, launched, monkeypatch):
    example = library.EXAMPLES[name]
    program = example.compile()
    computer = Computer.for_programs([program])
    x, y = example.X.to(DEVICE), example.y.to(DEVICE)
    prompt = computer.prompt(program, x, y, **example.settings)
    found = run(computer, prompt, monkeypatch, one_by_one=False)
    plain = run(computer, prompt, monkeypatch, one_by_one=True)
    assert launched
    assert found.cycles == plain.cycles
    assert found.attestation.ok
    for variable, value in plain.memory.items():
        torch.testing.assert_close(found.memory[variable], value, rtol=1e-13, atol=1e-13)


@ice.algorithm
def remembered(x, y, *, lr=0.5, steps=8):
    """A product of what the next turn overwrites stays what it was."""
    w = ice.zeros_like(x)
    kept = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * ((x * w).sum() - y))
        kept = kept * 0.5 + w * w.sum()
    return w, kept


def test_long_data_whose_products_nobody_multiplies_out(launched, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x = (2 * torch.rand(3000, 6, generator=draw, dtype=torch.float64) - 1).to(DEVICE)
    y = (2 * torch.rand(3000, generator=draw, dtype=torch.float64) - 1).to(DEVICE)
    for algorithm in (remembered, library.logistic):
        program = compile(algorithm, dim=6, samples=3000, bounds={"w": 4.0})
        computer = Computer.for_programs([program])
        prompt = computer.prompt(program, x, y.abs(), steps=12)
        found = run(computer, prompt, monkeypatch, one_by_one=False)
        plain = run(computer, prompt, monkeypatch, one_by_one=True)
        for name, value in plain.outputs.items():
            torch.testing.assert_close(found.outputs[name], value, rtol=1e-12, atol=1e-12)
    assert launched


def test_an_argument_beyond_a_closed_form_is_seen(launched, monkeypatch):
    """Then the run is made again without closed forms, and ends where masks cover no more."""
    seen = []
    outside = FastExecutor.outside.fget
    monkeypatch.setattr(
        FastExecutor, "outside", property(lambda self: seen.append(outside(self)) or seen[-1])
    )
    program = compile(library.least_squares, dim=6, samples=3000, bounds={"w": 4.0})
    computer = Computer.for_programs([program])
    x = torch.full((3000, 6), 1.0, dtype=torch.float64, device=DEVICE)
    y = torch.full((3000,), 1.0, dtype=torch.float64, device=DEVICE)
    prompt = computer.prompt(program, x, y, steps=40, lr=2.0)  # it diverges, turn by turn
    with pytest.raises(CapacityError, match="its masks cover no more"):
        computer.execute(prompt, backend="fused")
    assert seen == [True]
    assert launched
