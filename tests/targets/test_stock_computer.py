"""albert and bert: the frozen computer, programs in the prompt, proven run by run."""

import pytest
import torch

import iceform as ice
from iceform import targets
from iceform.computer.compile import compile as compiled
from iceform.computer.library import ALGORITHMS

from .stock import written

pytest.importorskip("flint", reason="runs are enclosed in balls, which needs python-flint")
FEW = ("least_squares", "logistic", "kernel_regression")


def data(n=4, seed=1):
    torch.manual_seed(seed)
    x = 0.9 * (2 * torch.rand(n, 2, dtype=torch.float64) - 1)
    return x, 0.5 * x[:, 0] - 0.2 * x[:, 1]


def program(name):
    return compiled(ALGORITHMS[name], dim=2, samples=4)


def settings(p, steps):
    return {"steps": steps} if "steps" in p.graph.parameters else {}


@pytest.fixture(scope="module")
def few():
    return {name: program(name) for name in FEW}


@pytest.fixture(scope="module", params=["albert", pytest.param("bert", marks=pytest.mark.slow)])
def stock(request, few, tmp_path_factory):
    cycles = 24 if request.param == "albert" else 9
    spec = targets.StockComputer.for_programs(few.values(), cycles)
    return written(request.param, spec, tmp_path_factory.mktemp(request.param))


def test_one_checkpoint_runs_every_program(stock, few):
    model, networks = stock
    x, y = data()
    for name, p in few.items():
        if model.architecture.name == "bert" and name != "kernel_regression":
            continue  # more cycles than it has
        for attention in ("eager", "sdpa") if name == "kernel_regression" else ("sdpa",):
            given = settings(p, 2)
            value = model.spec.run(networks[attention], x, y, program=p, **given)
            proof, _ = model.spec.judge(value, x, y, attention, program=p, **given)
            assert proof.error <= 1e-8
            exact = torch.as_tensor(p.reference(x, y, **given)).flatten()
            assert float((value - exact).abs().max()) <= 1e-8


def test_least_squares_against_descent_written_again(few, tmp_path):
    targets.write("albert", few["least_squares"], tmp_path, cycles=16)
    x, y = data()
    found = ice.check(tmp_path, x, y, program=few["least_squares"], steps=2, lr=0.4)
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(2):
        w = w - 0.4 * x.T @ (x @ w - y) / 4
    assert float((found.value - w).abs().max()) <= 1e-12
    assert found.certificate.error <= 1e-12
    assert found.attestation.ok


def test_a_wrong_answer_is_enclosed_as_such(stock, few):
    model, _ = stock
    x, y = data()
    p = few["least_squares"]
    right = torch.as_tensor(p.reference(x, y, steps=2)).flatten()
    proof, _ = model.spec.judge(right + 1e-3, x, y, "eager", program=p, steps=2)
    assert 0.99e-3 <= proof.error <= 1.01e-3


def test_a_program_that_has_not_halted_is_refused(stock, few):
    model, networks = stock
    with pytest.raises(ice.ProgramError, match="not at its halt"):
        model.spec.run(networks["sdpa"], *data(), program=few["least_squares"], steps=40)


def test_a_causal_mask_forbids_it(stock, tmp_path):
    with pytest.raises(ice.TargetError, match="a causal mask hides"):
        targets.write("gpt2", stock[0].spec, tmp_path / "no")


def test_a_program_is_required(stock):
    with pytest.raises(ice.ProgramError, match="pass program="):
        stock[0].prompt(*data())


@pytest.mark.slow
def test_four_hundred_cycles(tmp_path):
    p = program("ridge")
    model = targets.write("albert", p, tmp_path, cycles=420)
    found = ice.check(model.path, *data(), program=p, steps=50)
    assert found.certificate.error <= 1e-12
