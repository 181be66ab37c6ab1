"""Modes that a caller has switched on do not reach into runs: answers are the same bit for bit.

float32 is what they could change: autocast rounds its products, and leaves float64 as it is.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn

import iceform as ice
import iceform_estimators
from iceform.validation import full_precision
from iceform_estimators import InContextKNeighborsRegressor, InContextLogisticRegression, algorithms
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
def test_a_machine_in_rows(backend):
    x, _ = data(6, 2)
    program = algorithms.Head(*(torch.eye(2, dtype=F32) for _ in range(3)))

    def run():
        machine = iceform_estimators.Machine(2, 6, programs=[program], dtype=F32, backend=backend)
        found = machine.run(program, x)
        return found.value, found.certificate.error

    unchanged(run)


@pytest.mark.parametrize("dtype", [F32, torch.float64])
def test_a_machine_that_streams(dtype):
    x, y = data(40, 3, torch.float64)

    def run():
        machine = iceform_estimators.Machine(4, layout="stream", dtype=dtype)
        found = machine.run(algorithms.Ridge(0.1), x, y)
        return found.value, found.certificate.error, found.intercept, found.predict(x)

    unchanged(run)


def test_estimators():
    x, y = data(30, 2, torch.float64)
    classes = (y > 0).numpy()

    def run():
        line = InContextLogisticRegression().fit(x.numpy(), classes)
        near = InContextKNeighborsRegressor(3).fit(x.numpy(), y.numpy())
        return (
            line.coef_, line.certificate_.error, line.predict_proba(x.numpy()),
            near.predict(x.numpy() + 0.01), near.certificate_.error,
        )  # fmt: skip

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
import numpy as np, torch
torch.set_default_device("meta")
import iceform as ice
from iceform_estimators import InContextHuberRegressor, InContextKNeighborsRegressor
rng = np.random.default_rng(0)
x = rng.normal(size=(20, 3))
y = x.sum(1) + 0.1 * rng.normal(size=20)
ice.Interpolant.fit(ice.Formula("tanh(pi*z)"), low=-2, high=2, eps=1e-6)
assert InContextHuberRegressor().fit(x, y).certificate_.verify()
InContextKNeighborsRegressor(2).fit(x, y).predict(x)

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
