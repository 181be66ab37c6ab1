"""What an interpreter shows of an object: its sizes and what is proven of it, on a few lines."""

import re

import pytest
import torch

import iceform as ice
from iceform.paper.library import PromptLibrary, RidgePrompts

X = torch.tensor([[0.5, -0.25], [0.75, 0.5], [-1.0, 0.125]]).double()
Y = torch.tensor([0.5, 0.25, -0.5]).double()
W = torch.tensor([0.5, 0.25]).double()


@ice.algorithm
def descent(x, y, *, lr=0.3, steps=3):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * ((x * w).sum() - y))
    return w


def program():
    return ice.compile(descent, dim=2, samples=3)


def residual():
    return ice.paper.ResidualMap(torch.tanh, dim=2, samples=3)


def in_context():
    net = ice.in_context(torch.nn.Sequential(torch.nn.Linear(2, 1)).double(), calibration=[X])
    return net.enclosure(X)


SHOWN = {
    "algorithm": (lambda: descent, "descent(x, y, *, lr=0.3, steps=3)"),
    "program": (program, "Program(descent, dim=2, samples=3, eps=1e-08: "),
    "computer": (lambda: ice.Computer.for_programs([program()]), "Computer(width="),
    "library": (lambda: PromptLibrary(2, 3), "PromptLibrary(dim=2, samples=3, eps=None"),
    "result": (
        lambda: ice.Computer.for_programs([program()]).run(program(), X, Y),
        "in every entry (proven)",
    ),
    "certificate": (lambda: program().certificate, "in every entry (proven), float64"),
    "table": (lambda: ice.Interpolant.fit(torch.tanh, -1, 1, 1e-6), "tanh on [-1, 1]"),
    "look-ups": (lambda: residual().prompt(X, Y, W), "LookUps(3 samples of 2, Interpolant(tanh"),
    "prompt": (
        lambda: PromptLibrary(2, 3).prompt(RidgePrompts(), X, Y),
        "; features ",
    ),
    "network's certificate": (in_context, "in every entry (proven), float64"),
    "construction": (lambda: ice.paper.ResidualMap(torch.tanh, dim=2, samples=3), "(proven)"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_interpreter_shows_sizes_and_bounds_on_a_few_lines(name):
    make, part = SHOWN[name]
    text = repr(make())
    assert part in text
    assert len(text) < 400


def test_printing_a_certificate_explains_it():
    certificate = program().certificate
    assert str(certificate) == certificate.explain()
    attested = PromptLibrary(2, 3).run(RidgePrompts(), X, Y).attestation
    assert str(attested) == attested.explain()


def test_showing_a_result_computes_nothing():
    def answer():
        raise AssertionError("asked for")

    certificate = program().certificate
    result = ice.Result(
        answer,
        certificate,
        ice.certificates.Attestation.none("of a test"),
        ice.certificates.Ledger(),
    )
    assert "when it is asked for" in repr(result)


def test_assembly_has_numbers_as_short_as_a_float64s():
    """0.95 of this program is (1 + 0.9)/2, a float64 of fifty digits."""

    @ice.algorithm
    def momentum(x, y, *, steps=3):
        m, w = ice.zeros_like(x), ice.zeros_like(x)
        for _ in ice.repeat(steps):
            m = 0.9 * m + ice.mean(x * ((x * w).sum() - y))
            w = w - 0.1 * m
        return w

    text = ice.compile(momentum, dim=2, samples=3).explain()
    assert "0.95*z" in text
    assert not re.search(r"\d\.\d{18,}", text)
