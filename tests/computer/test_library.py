"""The library: each algorithm beside its peer, compiled, and on one computer."""

import inspect

import numpy as np
import pytest
import torch

from iceform.computer import Computer, library
from iceform.computer.compile import Program, compile
from tests.computer.peers import CASES

QUICK = (
    "least_squares", "nesterov", "ridge", "perceptron", "gaussian_process", "softmax_attention",
    "kernel_regression", "pagerank",
)  # fmt: skip
CERTIFIED = 1e-8  # what a run is to be certified to, kinks or not
_COMPILED: dict[str, Program] = {}


def compiled(name: str) -> Program:
    """A case's program, once."""
    if name not in _COMPILED:
        case = CASES[name]
        _COMPILED[name] = compile(
            case.algorithm, case.X.shape[1], len(case.X), eps=1e-8, **case.compiled
        )
    return _COMPILED[name]


def parts(value) -> dict[str, torch.Tensor]:
    """Answers by name."""
    return value if isinstance(value, dict) else {"value": value}


def test_there_are_twenty_and_every_one_has_a_case():
    assert len(library.ALGORITHMS) >= 20
    assert set(CASES) == set(library.ALGORITHMS)


@pytest.mark.parametrize("name", library.ALGORITHMS)
def test_no_algorithm_is_longer_than_fifteen_lines(name):
    lines = inspect.getsource(library.ALGORITHMS[name].function).splitlines()
    code = [line for line in lines if line.strip() and '"""' not in line and "@" not in line]
    assert len(code) <= 15


@pytest.mark.parametrize("name", CASES)
def test_an_algorithm_agrees_with_its_peer(name):
    case = CASES[name]
    found = parts(case.algorithm(case.X, case.y, **case.settings))
    wanted = case.peer(case.X.numpy(), case.y.numpy())
    for part, value in found.items():
        expected = wanted[part] if isinstance(wanted, dict) else wanted
        off = np.abs(value.numpy() - expected).max()
        assert off <= case.within, f"{part} is {off} from its peer's"


def check(name: str, computer: Computer, backend: str) -> None:
    """One run on a computer, against the exact algorithm and its certificate."""
    case, program = CASES[name], compiled(name)
    result = computer.run(program, case.X, case.y, backend=backend, **case.settings)
    certificate = result.enclosure
    assert certificate.kind == "proven"
    assert certificate.error <= CERTIFIED
    exact = parts(case.algorithm(case.X, case.y, **case.settings))
    for part, value in exact.items():
        off = float((result.parts[part] - value).abs().max())
        assert off <= certificate.error + 1e-14
    assert result.attestation.ok
    assert result.digest == computer.digest


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_a_few_on_one_computer(backend):
    computer = Computer.for_programs([compiled(name) for name in QUICK])
    for name in QUICK if backend == "fused" else QUICK[5:]:
        check(name, computer, backend)


CLASSICS = ("sort", "greatest_common_divisor", "viterbi", "gaussian_elimination")


@pytest.mark.parametrize("name", CLASSICS)
def test_a_classic_on_a_computer_of_its_own(name):
    check(name, Computer.for_programs([compiled(name)]), "fused")


SINGLE = ("ridge", "perceptron", "softmax_attention", "kernel_regression", "pagerank")


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_five_of_them_in_float32(backend):
    """The proof of a run is of its own answers, for the data as they were given."""
    programs = [compiled(name) for name in SINGLE]
    computer = Computer.for_programs(programs, dtype=torch.float32)
    for name, program in zip(SINGLE, programs, strict=True):
        case = CASES[name]
        result = computer.run(program, case.X, case.y, backend=backend, **case.settings)
        certificate = result.enclosure
        known, _ = program.certify(torch.float32, backend, **case.settings)
        assert (certificate.kind, certificate.dtype) == ("proven", torch.float32)
        assert certificate.error <= min(2e-5, known.error)
        for part, value in parts(case.algorithm(case.X, case.y, **case.settings)).items():
            assert result.parts[part].dtype == torch.float32
            off = float((result.parts[part].double() - value).abs().max())
            assert 0 < off <= certificate.error + 1e-14
        assert result.attestation.ok


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_all_of_them_on_one_computer(backend):
    computer = Computer.for_programs([compiled(name) for name in CASES])
    for name in CASES:
        check(name, computer, backend)


@pytest.mark.parametrize("name", QUICK)
def test_a_compiled_algorithm_is_within_its_certificate(name):
    case, program = CASES[name], compiled(name)
    found = program.interpreted(case.X, case.y, **case.settings).outputs
    enclosed = program.enclosed(case.X, case.y, found, **case.settings)
    assert enclosed.distance <= CERTIFIED
    exact = parts(case.algorithm(case.X, case.y, **case.settings))
    for part, value in exact.items():
        assert float((found[part] - value).abs().max()) <= enclosed.distance + 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES) - {*QUICK, *CLASSICS}))
def test_the_others_are_within_theirs(name):
    case, program = CASES[name], compiled(name)
    found = program.interpreted(case.X, case.y, **case.settings).outputs
    assert program.enclosed(case.X, case.y, found, **case.settings).distance <= CERTIFIED


def test_other_settings_are_another_prompt_for_the_same_weights():
    case, program = CASES["ridge"], compiled("ridge")
    computer = Computer.for_programs([program])
    digests = set()
    for settings in ({"steps": 3}, {"steps": 5, "lr": 0.25}, {"steps": 2, "alpha": 0.02}):
        result = computer.run(program, case.X, case.y, backend="fused", **settings)
        exact = case.algorithm(case.X, case.y, **settings)
        torch.testing.assert_close(result.value, exact, rtol=0, atol=1e-11)
        digests.add(result.digest)
    assert len(digests) == 1
