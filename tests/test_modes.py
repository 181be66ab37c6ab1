"""Modes that a caller has switched on do not reach into runs: answers are the same bit for bit.

float32 is what they could change: autocast rounds its products, and leaves float64 as it is.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn

import iceform as ice
from iceform.paper.library import HeadPrompts, PromptLibrary
from iceform.validation import full_precision
from tests.computer.programs import prompt_of
from tests.conformance import MODES

F32 = torch.float32


def data(rows: int, dim: int, dtype: torch.dtype = F32) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(rows, dim, generator=draw, dtype=torch.float64) - 1
    return x.to(dtype), (x @ torch.ones(dim, dtype=torch.float64)).div(dim).to(dtype)


def unchanged(run) -> None:
    """``run`` returns tensors and numbers that are the same whatever is on around it."""
    plain = run()
    for mode in MODES:
        with mode():
            found = run()
        for got, want in zip(found, plain, strict=True):
            assert torch.equal(torch.as_tensor(got), torch.as_tensor(want)), (mode, got, want)


@pytest.mark.parametrize("backend", ["fused", "literal"])
def test_a_library_of_prompts(backend):
    x, _ = data(6, 2)
    program = HeadPrompts(*(torch.eye(2, dtype=F32) for _ in range(3)))

    def run():
        machine = PromptLibrary(2, 6, algorithms=[program], dtype=F32, backend=backend)
        found = machine.run(program, x)
        return found.value, found.certificate.error

    unchanged(run)


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_the_computer(backend):
    computer, prompt, cycles = prompt_of("least squares", 4, F32)

    def run():
        return tuple(computer.execute(prompt, cycles, backend=backend).outputs.values())

    unchanged(run)


def test_a_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, dtype=F32), nn.Tanh(), nn.Linear(4, 2, dtype=F32))
    x, _ = data(5, 3)

    def run():
        network = ice.in_context(model, calibration=x, dtype=F32)
        return network(x), network.run(x).value, network.certificate.error

    unchanged(run)


def test_what_was_on_is_on_again():
    inside = full_precision(lambda: torch.is_autocast_enabled("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert inside() is False
        assert torch.is_autocast_enabled("cpu")
        with pytest.raises(ZeroDivisionError):
            full_precision(lambda: 1 // 0)()
        assert torch.is_autocast_enabled("cpu")
    assert inside() is False


_BEFORE_ANYTHING = """
import torch
torch.set_default_device("meta")
import iceform as ice
ice.Interpolant.fit(ice.Formula("tanh(pi*z)"), low=-2, high=2, eps=1e-6)

@ice.algorithm
def descent(x, y, *, lr=0.1):
    w = ice.zeros_like(x)
    for _ in ice.repeat(2):
        w = w - lr * ice.mean((x @ w - y) * x)
    return w

program = ice.compile(descent, dim=2, samples=3, eps=1e-6)
x, y = torch.ones(3, 2, dtype=torch.float64, device="cpu"), torch.ones(3, device="cpu").double()
ice.Computer.for_programs([program]).run(program, x, y)
assert torch.get_default_device().type == "meta"
"""


def test_a_default_device_from_before_anything_was_imported(tmp_path):
    """Constants of modules are made when they are first used."""
    program = tmp_path / "first.py"
    program.write_text(_BEFORE_ANYTHING)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
